//! The socket of a holder: one command per connection.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::process::umask;

use crate::program::error::BridgeError;
use crate::program::spawn::this_program;

/// How long to wait after a connection cannot be accepted, to avoid a busy loop.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections. Each sends a request line and receives the frames.
#[derive(Debug)]
pub(super) struct ExecListener {
    socket: UnixListener,
}

impl ExecListener {
    /// Listens at a path that only this user may access. An existing socket there is replaced.
    pub(super) fn bind(path: &Path) -> Result<Self, BridgeError> {
        let socket =
            bind(path).map_err(BridgeError::of(format!("listen at {}", path.display())))?;
        Ok(Self { socket })
    }

    /// Accepts the pending connections.
    pub(super) fn accept_pending(&self) {
        loop {
            match self.socket.accept() {
                // A refused client sees its connection end.
                Ok((connection, _)) => {
                    let _ = start_exec(connection);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return thread::sleep(PAUSE),
            }
        }
    }
}

impl AsFd for ExecListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Binds under a temporary name and renames: a visible socket accepts connections.
///
/// A socket exists after `bind` but refuses connections until `listen`. The path leads through the directory's file
/// descriptor, because socket paths must be short.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = File::open(directory)?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
    let temporary = short.join(format!("{}.new", name.display()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let before = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(&temporary);
    umask(before);
    let socket = bound?;
    socket.set_nonblocking(true)?;
    fs::rename(&temporary, short.join(name))?;
    Ok(socket)
}

/// Starts an `exec` that speaks over the connection. The holder reaps it like any other child.
fn start_exec(connection: UnixStream) -> io::Result<()> {
    // Connections do not inherit the listener's mode, and `exec` needs blocking reads.
    connection.set_nonblocking(false)?;
    let output = OwnedFd::from(connection.try_clone()?);
    let child = this_program(["exec", "--while-connected"])
        .stdin(Stdio::from(OwnedFd::from(connection)))
        .stdout(Stdio::from(output))
        .spawn()?;
    drop(child);
    Ok(())
}
