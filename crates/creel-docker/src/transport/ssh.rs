//! An engine behind `ssh`.
//!
//! It works as in the Docker command line: an `ssh` process runs `docker system dial-stdio` on the
//! remote host, and HTTP goes over its standard input and output. Keys, aliases, jump hosts, known
//! hosts and connection sharing come from the user's `ssh` configuration. No user is there to
//! answer a prompt, so `ssh` runs without prompts.

use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;

use creel_model::task;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Join, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use crate::address::SshTarget;

/// Maximum length of the kept part of the errors of `ssh`.
const STDERR_LIMIT: usize = 4096;
/// How long to wait for the error output of a failed `ssh`.
const STDERR_TIMEOUT: Duration = Duration::from_secs(2);

/// A running `ssh`, whose standard input and output are the connection.
#[derive(Debug)]
pub(super) struct SshStream {
    stream: Join<ChildStdout, ChildStdin>,
    /// Ends with the connection: it is killed when dropped.
    _child: Child,
}

/// The standard error of `ssh`, available once it has ended.
#[derive(Debug)]
pub(super) struct SshStderr(oneshot::Receiver<String>);

/// Starts `ssh`. Whether it reaches the host shows when the connection is used.
pub(super) fn open(target: &SshTarget) -> io::Result<(SshStream, SshStderr)> {
    let mut child = Command::new("ssh")
        .args(arguments(target))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // An interrupt at the terminal is ours to handle: cleaning up needs the connection.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(io::ErrorKind::NotConnected, "the program ssh is not installed")
            }
            _ => error,
        })?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::Error::other("ssh has no pipes"));
    };
    let (sender, receiver) = oneshot::channel();
    task::background(async move {
        // The receiver is gone when the request succeeded. Then the text is not needed.
        let _ = sender.send(read_stderr(stderr).await);
    });
    let stream = SshStream { stream: tokio::io::join(stdout, stdin), _child: child };
    Ok((stream, SshStderr(receiver)))
}

fn arguments(target: &SshTarget) -> Vec<String> {
    let options = ["BatchMode=yes", "ConnectTimeout=30", "ServerAliveInterval=15"];
    let mut arguments = vec!["-T".to_owned()];
    for option in options {
        arguments.extend(["-o".to_owned(), option.to_owned()]);
    }
    if let Some(user) = &target.user {
        arguments.extend(["-l".to_owned(), user.clone()]);
    }
    if let Some(port) = target.port {
        arguments.extend(["-p".to_owned(), port.to_string()]);
    }
    arguments.extend(["--".to_owned(), target.host.clone(), "docker".to_owned()]);
    if let Some(socket) = &target.socket {
        arguments.extend(["--host".to_owned(), quoted(&format!("unix://{socket}"))]);
    }
    arguments.extend(["system".to_owned(), "dial-stdio".to_owned()]);
    arguments
}

/// Quotes an argument for the remote shell.
fn quoted(argument: &str) -> String {
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// Reads to the end, so that `ssh` never blocks, but keeps only the last part.
async fn read_stderr(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..count]);
        let excess = kept.len().saturating_sub(STDERR_LIMIT);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

impl SshStderr {
    /// Converts the error output of `ssh` into the reason why the connection broke, if there is
    /// any.
    pub(super) async fn into_error(self) -> Option<io::Error> {
        let text = tokio::time::timeout(STDERR_TIMEOUT, self.0).await.ok()?.ok()?;
        as_error(&text)
    }
}

fn as_error(text: &str) -> Option<io::Error> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let refused = ["Permission denied", "Host key verification failed", "Too many authentication"];
    let kind = if refused.iter().any(|phrase| text.contains(phrase)) {
        io::ErrorKind::PermissionDenied
    } else {
        io::ErrorKind::NotConnected
    };
    Some(io::Error::new(kind, line.to_owned()))
}

impl AsyncRead for SshStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for SshStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_is_called_without_questions_and_with_the_socket_quoted() {
        let target = SshTarget {
            user: Some("me".to_owned()),
            host: "far".to_owned(),
            port: Some(2222),
            socket: Some("/run/it's.sock".to_owned()),
        };
        assert_eq!(
            arguments(&target).join(" "),
            r"-T -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15 -l me -p 2222 -- far docker --host 'unix:///run/it'\''s.sock' system dial-stdio"
        );
    }

    #[test]
    fn ssh_stderr_becomes_the_error() {
        let denied = as_error("Warning: added.\nme@far: Permission denied (publickey).\n").unwrap();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(denied.to_string(), "me@far: Permission denied (publickey).");
        let refused = as_error("ssh: connect to host far port 22: Connection refused\r\n").unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
        assert!(as_error("\n").is_none());
    }
}
