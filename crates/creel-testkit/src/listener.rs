//! A socket with a thread behind it, for replacements of an engine.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::engine::temporary_directory;

/// A socket in its own directory. Both are removed on drop.
#[derive(Debug)]
pub(crate) struct UnixServer {
    socket: PathBuf,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl UnixServer {
    /// Listens under a name, and serves every client on its own thread.
    pub(crate) fn start(
        name: &str,
        serve: impl Fn(UnixStream) + Clone + Send + 'static,
    ) -> Result<Self> {
        let socket = temporary_directory()?.join(name);
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        let acceptor = thread::spawn(move || {
            for client in listener.incoming() {
                if flag.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                let serve = serve.clone();
                thread::spawn(move || serve(client));
            }
        });
        Ok(Self { socket, stopped, acceptor: Some(acceptor) })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for UnixServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees the flag.
        let _ = UnixStream::connect(&self.socket);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        if let Some(directory) = self.socket.parent() {
            let _ = fs::remove_dir_all(directory);
        }
    }
}
