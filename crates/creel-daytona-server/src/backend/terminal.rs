//! A pseudo terminal: programs in the sandbox have one end, the server the other.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use uuid::Uuid;

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TerminalSize {
    pub(crate) cols: u16,
    pub(crate) rows: u16,
}

/// A terminal. When it is dropped, programs on it receive a hang-up.
pub(crate) struct Terminal {
    /// The server's end, for reading. A terminal is not a pipe, but can be polled like one.
    shown: pipe::Receiver,
    /// The server's end, for writing.
    typed: pipe::Sender,
    /// The other end. As long as it is open anywhere, reading the server's end never fails.
    theirs: OwnedFd,
    /// The path of the other end, for programs on this machine.
    path: String,
    /// The mark of the programs that run on it.
    mark: String,
}

impl fmt::Debug for Terminal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Terminal").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Terminal {
    /// Creates a terminal.
    pub(crate) fn open(size: TerminalSize) -> io::Result<Self> {
        // It must not become the server's controlling terminal, where typed keys could end the
        // server.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let path = ptsname(&ours, Vec::new())?;
        let path = path.into_string().map_err(|_| io::ErrorKind::InvalidData)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
        let typed = pipe::Sender::from_owned_fd_unchecked(ours.try_clone()?)?;
        let shown = pipe::Receiver::from_owned_fd_unchecked(ours)?;
        let mark = Uuid::new_v4().simple().to_string();
        let terminal = Self { shown, typed, theirs, path, mark };
        terminal.resize(size)?;
        Ok(terminal)
    }

    /// Sets the size, and notifies the programs on the terminal.
    pub(crate) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.shown, size)?)
    }

    /// Returns the size.
    pub(super) fn size(&self) -> io::Result<TerminalSize> {
        let size = tcgetwinsize(&self.shown)?;
        Ok(TerminalSize { cols: size.ws_col, rows: size.ws_row })
    }

    /// Returns the mark of the programs that run on it.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the path for programs on this machine.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the other end, for a program's standard input or output.
    pub(super) fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.theirs.try_clone()?.into())
    }

    /// Waits for output, and reads it.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.shown.readable().await?;
            match self.shown.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    /// Reads the output that is already available.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> Option<usize> {
        self.shown.try_read(buffer).ok().filter(|count| *count > 0)
    }

    /// Writes input to the terminal.
    pub(crate) async fn write(&self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            self.typed.writable().await?;
            match self.typed.try_write(text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => text = &text[written?..],
            }
        }
        Ok(())
    }
}
