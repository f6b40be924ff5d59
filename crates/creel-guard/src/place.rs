//! A directory for sockets, reached through a path that is short enough for them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};

/// The longest path a socket may have.
const PATH_LIMIT: usize = 107;
/// The length of the longest socket name used here.
const NAME_LIMIT: usize = "/docker.sock".len();

/// A directory, and the path through which its sockets are reached.
///
/// If the real path is too long, the directory is reached through a file descriptor of this
/// process. That leaves nothing behind when the process dies.
#[derive(Debug)]
pub struct SocketPlace {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl SocketPlace {
    /// Returns a short path to a directory.
    ///
    /// # Errors
    ///
    /// Fails when the directory cannot be opened.
    pub fn of(directory: &Path) -> io::Result<Self> {
        if directory.as_os_str().len() + NAME_LIMIT <= PATH_LIMIT {
            return Ok(Self { path: directory.to_owned(), _directory: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty())?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), opened.as_raw_fd());
        Ok(Self { path: path.into(), _directory: Some(opened) })
    }

    /// Returns the path. It becomes invalid once this is dropped.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_in_a_deep_directory_is_reached() {
        let home = tempfile::tempdir().expect("a directory can be made");
        for depth in [1, 200] {
            let directory = home.path().join("d".repeat(depth));
            std::fs::create_dir(&directory).expect("a directory can be made");
            let place = SocketPlace::of(&directory).expect("it is there");
            let socket = place.path().join("docker.sock");
            let _listener = UnixListener::bind(&socket).expect("the path is short");
            UnixStream::connect(&socket).expect("a listener is bound");
            assert!(directory.join("docker.sock").exists());
        }
    }
}
