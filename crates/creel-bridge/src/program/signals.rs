//! Signals as a descriptor to poll.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::error::BridgeError;

/// Signals sent to this process from here on.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Receives one byte per signal.
    reader: UnixStream,
    /// Whether this process was asked to end.
    asked_to_end: Arc<AtomicBool>,
}

impl Signals {
    /// Catches ended children and requests to end.
    pub(crate) fn catch() -> Result<Self, BridgeError> {
        Self::register().map_err(BridgeError::of("catch signals"))
    }

    fn register() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        let asked_to_end = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // Set the flag before writing the byte, which wakes the loop that checks the flag.
            flag::register(signal, Arc::clone(&asked_to_end))?;
            low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        low_level::pipe::register(SIGCHLD, writer)?;
        Ok(Self { reader, asked_to_end })
    }

    /// Discards pending wake-up bytes. The caller checks the flags and children afterwards.
    pub(crate) fn drain(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.reader.read(&mut bytes), Ok(count) if count > 0) {}
    }

    /// Returns whether this process was asked to end.
    pub(crate) fn asked_to_end(&self) -> bool {
        self.asked_to_end.load(Ordering::SeqCst)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
