//! A program that runs in a sandbox, as the toolbox sees it.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::sandbox::Pairs;

/// The maximum number of pieces of output that wait for their reader.
pub(super) const BACKLOG: usize = 64;

/// A program to run.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The input of the shell.
    pub(crate) script: ShellInput,
    /// The working directory; the home directory if it is `None`.
    pub(crate) cwd: Option<String>,
    /// Its environment, on top of the sandbox's own.
    pub(crate) env: Pairs,
    /// Whether standard error goes to standard output.
    pub(crate) merged: bool,
}

/// The input of a shell.
#[derive(Debug, Clone)]
pub(crate) enum ShellInput {
    /// This text on standard input, followed by the end. A command in it that reads standard input
    /// consumes the rest, as in the real service.
    Fed(String),
    /// Everything written by [`write()`].
    Open,
    /// Everything typed on a terminal, which also shows the output.
    Terminal,
}

/// One of the two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// An event of a running program.
#[derive(Debug)]
pub(crate) enum ExecutionEvent {
    /// The program wrote output.
    Output(OutputStream, Bytes),
    /// The program ended with this code. No event follows.
    Ended(i32),
}

/// A running program. If its events end without [`ExecutionEvent::Ended`], its sandbox has ended.
pub(crate) struct Execution {
    /// The events of the program.
    pub(crate) events: mpsc::Receiver<ExecutionEvent>,
    /// The standard input.
    pub(super) stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// Requests its end.
    pub(super) kill: mpsc::Sender<()>,
}

/// A handle to end a program.
#[derive(Debug, Clone)]
pub(crate) struct Killer(mpsc::Sender<()>);

impl Killer {
    /// Kills the program and what it started in its process group.
    pub(crate) fn kill(&self) {
        // The program has ended, or was already asked to.
        let _ = self.0.try_send(());
    }
}

impl Execution {
    /// Returns a handle to end the program.
    pub(crate) fn killer(&self) -> Killer {
        Killer(self.kill.clone())
    }

    /// Takes the standard input.
    pub(crate) fn stdin(&mut self) -> Option<Pin<Box<dyn AsyncWrite + Send>>> {
        self.stdin.take()
    }
}

/// Writes all of a text.
pub(crate) async fn write(
    stdin: &mut Pin<Box<dyn AsyncWrite + Send>>,
    text: &[u8],
) -> io::Result<()> {
    stdin.write_all(text).await?;
    stdin.flush().await
}
