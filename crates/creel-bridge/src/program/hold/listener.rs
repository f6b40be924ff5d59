//! The socket of a holder: a command per connection.

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

use crate::program::failure::Failure;
use crate::program::spawn::this_program;

/// How long to wait when a connection cannot be taken, so that this does not become a busy loop.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections; each sends the line of an order, and hears the frames.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
}

impl Listener {
    /// Listens at a path, which only this user may use. An old socket there is replaced.
    pub(super) fn bind(path: &Path) -> Result<Self, Failure> {
        let socket = bind(path).map_err(Failure::of(format!("listen at {}", path.display())))?;
        Ok(Self { socket })
    }

    /// Takes the connections that wait.
    pub(super) fn take(&self) {
        loop {
            match self.socket.accept() {
                // Whoever is refused sees its connection end.
                Ok((connection, _)) => {
                    let _ = start_exec(connection);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return thread::sleep(PAUSE),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Binds by way of the directory's handle, because the name of a socket may not be long.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let directory = File::open(directory)?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    let before = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(short);
    umask(before);
    let socket = bound?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Starts an `exec` that speaks over the connection. It is reaped like everybody else.
fn start_exec(connection: UnixStream) -> io::Result<()> {
    // What the listener is, its connections are not; and `exec` relies on it.
    connection.set_nonblocking(false)?;
    let output = OwnedFd::from(connection.try_clone()?);
    let child = this_program(["exec", "--while-connected"])
        .stdin(Stdio::from(OwnedFd::from(connection)))
        .stdout(Stdio::from(output))
        .spawn()?;
    drop(child);
    Ok(())
}
