//! Signals as something to poll for.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::failure::Failure;

/// Signals that this process is sent, from here on.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Has a byte for every signal.
    reader: UnixStream,
    /// Somebody asked this process to end.
    asked_to_end: Arc<AtomicBool>,
}

impl Signals {
    /// Catches the ends of children, and requests to end.
    pub(crate) fn catch() -> Result<Self, Failure> {
        Self::register().map_err(Failure::of("catch signals"))
    }

    fn register() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        let asked_to_end = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // First the flag, then the byte that makes somebody look at it.
            flag::register(signal, Arc::clone(&asked_to_end))?;
            low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        low_level::pipe::register(SIGCHLD, writer)?;
        Ok(Self { reader, asked_to_end })
    }

    /// Forgets the signals so far; what they mean is looked at afterwards.
    pub(crate) fn drain(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.reader.read(&mut bytes), Ok(count) if count > 0) {}
    }

    /// Returns whether somebody asked this process to end.
    pub(crate) fn asked_to_end(&self) -> bool {
        self.asked_to_end.load(Ordering::SeqCst)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
