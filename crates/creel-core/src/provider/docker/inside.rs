//! The way into a container that runs: commands with both their ends attached.
//!
//! The connection of a command is its lifeline. The engine closes the
//! command's input when it is gone, whoever of the two sides died; but it does
//! not end the command, so the command has to take that as its end.

use std::io;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

use crate::provider::{Kind, Result, Usage};

use super::classify::Act;
use super::encode::encoded;
use super::model::{Made, Stats};
use super::provider::DockerProvider;

/// The largest piece of output that is read at once.
const PIECE: usize = 64 * 1024;
/// The length of what stands before every piece: which stream it is of, and how long it is.
const HEAD: usize = 8;

/// A piece of what a command wrote.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// To its standard output.
    Output(&'a [u8]),
    /// To its standard error.
    Error(&'a [u8]),
}

/// A command that runs in a container, and hears of it when this is dropped.
#[derive(Debug)]
pub(crate) struct Attached {
    connection: BufReader<TokioIo<Upgraded>>,
    buffer: Vec<u8>,
    /// Whether the piece that is under way is of the standard error.
    is_error: bool,
    /// How much of that piece is still to come.
    left: usize,
}

impl Attached {
    /// Writes to the command's input.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.write_all(bytes).await?;
        self.connection.flush().await
    }

    /// Reads what the command writes; `None` means that it has ended.
    pub(crate) async fn read(&mut self) -> io::Result<Option<Piece<'_>>> {
        while self.left == 0 {
            let mut head = [0; HEAD];
            match self.connection.read_exact(&mut head).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                answer => drop(answer?),
            }
            let [stream, _, _, _, length @ ..] = head;
            self.is_error = stream == 2;
            self.left = u32::from_be_bytes(length) as usize;
        }
        let most = self.left.min(PIECE);
        let count = self.connection.read(&mut self.buffer[..most]).await?;
        if count == 0 {
            return Ok(None);
        }
        self.left -= count;
        let bytes = &self.buffer[..count];
        Ok(Some(if self.is_error { Piece::Error(bytes) } else { Piece::Output(bytes) }))
    }
}

/// A command as the engine knows it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Command {
    #[serde(default)]
    exit_code: Option<i64>,
}

impl DockerProvider {
    /// Runs a command in a container, with both ends of it in the caller's hands.
    pub(crate) async fn attach(&self, id: &str, command: &[String]) -> Result<(Attached, String)> {
        let words = Self::check("run a command in", Kind::Container, id)?;
        let connection = self.connection();
        let attach = async {
            let order = json!({
                "AttachStdin": true,
                "AttachStdout": true,
                "AttachStderr": true,
                "Tty": false,
                "Cmd": command,
            });
            let path = format!("/containers/{}/exec", encoded(id));
            let made: Made = connection.post(&path, &order).await?;
            let start = json!({ "Detach": false, "Tty": false });
            let path = format!("/exec/{}/start", encoded(&made.id));
            Ok((connection.hijack(&path, &start).await?, made.id))
        };
        let attached = attach.await;
        let (upgraded, exec) =
            attached.map_err(|error| self.classified(error, Act::Look, words))?;
        let connection = BufReader::with_capacity(PIECE, TokioIo::new(upgraded));
        Ok((Attached { connection, buffer: vec![0; PIECE], is_error: false, left: 0 }, exec))
    }

    /// Asks how a command ended; `None` while it runs.
    pub(crate) async fn exit_code(&self, exec: &str) -> Result<Option<i64>> {
        let asked: std::result::Result<Command, _> =
            self.connection().get(&format!("/exec/{}/json", encoded(exec)), &[]).await;
        let asked = asked.map_err(|error| self.classified(error, Act::Look, "look at a command"));
        Ok(asked?.exit_code)
    }

    /// Starts a container that was stopped; one that runs is fine.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses; one that does not exist is `Gone`.
    pub async fn start(&self, id: &str) -> Result<()> {
        let words = Self::check("start", Kind::Container, id)?;
        let start = async {
            let library = self.connection().library().await?;
            library
                .start_container(id, None::<bollard::query_parameters::StartContainerOptions>)
                .await
        };
        start.await.map_err(|error| self.classified(error, Act::Look, words))
    }

    /// Tells what a container uses.
    ///
    /// # Errors
    ///
    /// Fails when the engine does not answer.
    pub async fn usage(&self, id: &str) -> Result<Usage> {
        let words = Self::check("measure", Kind::Container, id)?;
        let path = format!("/containers/{}/stats", encoded(id));
        let query = [("stream", "false"), ("one-shot", "true")];
        let stats = self.connection().get::<Stats>(&path, &query).await;
        Ok(used(&stats.map_err(|error| self.classified(error, Act::Look, words))?))
    }
}

fn used(stats: &Stats) -> Usage {
    let memory = &stats.memory_stats;
    let reclaimable = memory.stats.inactive_file.or(memory.stats.total_inactive_file);
    let nanoseconds = stats.cpu_stats.cpu_usage.total_usage;
    Usage {
        memory: memory.usage.map(|used| used.saturating_sub(reclaimable.unwrap_or_default())),
        cpu_seconds: nanoseconds.map(|time| time as f64 / 1e9),
        processes: stats.pids_stats.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_kernel_would_take_back_is_not_counted() {
        let stats: Stats = serde_json::from_value(json!({
            "memory_stats": { "usage": 1000, "stats": { "inactive_file": 300, "anon": 1 } },
            "cpu_stats": { "cpu_usage": { "total_usage": 2_500_000_000_u64 } },
            "pids_stats": { "current": 4 },
        }))
        .unwrap();
        let expected = Usage { memory: Some(700), cpu_seconds: Some(2.5), processes: Some(4) };
        assert_eq!(used(&stats), expected);
    }

    #[test]
    fn a_container_that_does_not_run_uses_nothing_that_is_known() {
        let stats: Stats = serde_json::from_value(json!({
            "memory_stats": {}, "cpu_stats": null, "pids_stats": {},
        }))
        .unwrap();
        assert_eq!(used(&stats), Usage::default());
    }
}
