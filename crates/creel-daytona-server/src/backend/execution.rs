//! A program that runs in a sandbox, as the toolbox sees it.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::sandbox::Pairs;

/// How many pieces of output may wait for their reader.
pub(super) const BACKLOG: usize = 64;

/// What is to be run.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// What the shell reads.
    pub(crate) script: Script,
    /// Where it starts; the home directory without it.
    pub(crate) cwd: Option<String>,
    /// Its environment, on top of the sandbox's own.
    pub(crate) env: Pairs,
    /// Whether the standard error goes where the standard output goes.
    pub(crate) merged: bool,
}

/// What the shell reads.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// This text on its standard input, then the end: a command in it that reads the
    /// standard input eats the rest, as in the real service.
    Fed(String),
    /// Whatever is written to [`Execution::write`].
    Open,
    /// Whatever is typed on a terminal, where its output goes too.
    Terminal,
}

/// One of the two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// What a running program does.
#[derive(Debug)]
pub(crate) enum Event {
    /// It wrote something.
    Output(Stream, Bytes),
    /// It ended with this code; nothing follows.
    Ended(i32),
}

/// A running program. When its events end without [`Event::Ended`], its sandbox ended.
pub(crate) struct Execution {
    /// What it does.
    pub(crate) events: mpsc::Receiver<Event>,
    /// Its standard input.
    pub(super) stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// Asks for its end.
    pub(super) kill: mpsc::Sender<()>,
}

/// Ends a program from elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct Killer(mpsc::Sender<()>);

impl Killer {
    /// Kills the program and what it started in its process group.
    pub(crate) fn kill(&self) {
        // It has ended, or was asked already.
        let _ = self.0.try_send(());
    }
}

impl Execution {
    /// Returns a way to end it.
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
