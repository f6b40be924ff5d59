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

/// How large a terminal is, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    pub(crate) cols: u16,
    pub(crate) rows: u16,
}

/// A terminal. When it is dropped, whatever runs on it hears that the line was cut.
pub(crate) struct Terminal {
    /// Our end, to read from. A terminal is no pipe, but waits and wakes like one.
    shown: pipe::Receiver,
    /// Our end, to write to.
    typed: pipe::Sender,
    /// The other end: as long as somebody has it open, reading ours never fails.
    theirs: OwnedFd,
    /// Where the other end is, for programs on this machine.
    path: String,
    /// What marks the programs that run on it.
    mark: String,
}

impl fmt::Debug for Terminal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Terminal").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Terminal {
    /// Makes a terminal.
    pub(crate) fn open(size: Size) -> io::Result<Self> {
        // The server must not get it as its own, to be ended by whatever is typed there.
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

    /// Sets how large it is; whatever runs on it is told.
    pub(crate) fn resize(&self, size: Size) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.shown, size)?)
    }

    /// Returns how large it is.
    pub(super) fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(&self.shown)?;
        Ok(Size { cols: size.ws_col, rows: size.ws_row })
    }

    /// Returns what marks the programs that run on it.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns where programs on this machine find it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the other end, for a program's standard input or output.
    pub(super) fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.theirs.try_clone()?.into())
    }

    /// Waits until something is shown, and takes it.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.shown.readable().await?;
            match self.shown.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    /// Takes what is shown already.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> Option<usize> {
        self.shown.try_read(buffer).ok().filter(|count| *count > 0)
    }

    /// Types something.
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
