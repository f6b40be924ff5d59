//! Finds out whether an engine runs on this machine, so that its clients are visible processes.
//!
//! A unix socket is no proof. It may be forwarded to another machine, and in a container it may be
//! the host's, whose processes are not visible. The kernel reports which process listens. Its id is
//! 0 if it is outside our pid namespace, and its program must be an engine's.

use std::path::Path;

use tokio::net::UnixStream;

/// The programs that listen on an engine's socket: the engine, or the init system that starts it.
const LISTENERS: [&str; 4] = ["dockerd", "podman", "systemd", "init"];

/// Returns the process id of the engine on this machine that listens on a socket. In doubt, returns
/// `None`.
pub(super) async fn listener(socket: &Path) -> Option<i32> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let pid = stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    LISTENERS.contains(&name.trim_end()).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_that_is_no_engine_may_lead_anywhere() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s.sock");
        assert_eq!(listener(&socket).await, None);
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(listener(&socket).await, None);
    }
}
