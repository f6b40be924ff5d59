//! Commands in a running container, with their input and output attached.
//!
//! The connection of a command is its lifeline. When either side dies, the engine closes the
//! command's input. But it does not end the command, so the command has to exit when its input
//! closes.

use std::io;

use creel_model::provider::{Kind, Result, Usage};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

use super::classify::EngineAction;
use super::encode::encoded;
use super::model::{CreatedId, Stats};
use super::provider::DockerProvider;

/// The largest chunk of output that is read at once.
const CHUNK_SIZE: usize = 64 * 1024;
/// The length of the header before every chunk: its stream and its length.
const HEAD: usize = 8;

/// A chunk of a command's output.
#[derive(Debug)]
pub enum ExecOutput<'a> {
    /// Standard output.
    Output(&'a [u8]),
    /// Standard error.
    Error(&'a [u8]),
}

/// A command that runs in a container. Its input closes when this is dropped.
#[derive(Debug)]
pub struct Attached {
    connection: BufReader<TokioIo<Upgraded>>,
    buffer: Vec<u8>,
    /// Whether the current chunk belongs to the standard error.
    is_error: bool,
    /// How many bytes of that chunk are still to come.
    left: usize,
}

impl Attached {
    /// Writes to the command's input.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.write_all(bytes).await?;
        self.connection.flush().await
    }

    /// Reads the next output of the command. `None` means that it has ended.
    ///
    /// The client library's own decoder collects a whole chunk first. An engine may announce up to
    /// 4 GiB in one, so this one passes on what has arrived.
    pub async fn read(&mut self) -> io::Result<Option<ExecOutput<'_>>> {
        while self.left == 0 {
            let mut head = [0; HEAD];
            match self.connection.read_exact(&mut head).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                result => drop(result?),
            }
            let [stream, _, _, _, length @ ..] = head;
            self.is_error = stream == 2;
            self.left = u32::from_be_bytes(length) as usize;
        }
        let most = self.left.min(CHUNK_SIZE);
        let count = self.connection.read(&mut self.buffer[..most]).await?;
        if count == 0 {
            return Ok(None);
        }
        self.left -= count;
        let bytes = &self.buffer[..count];
        Ok(Some(if self.is_error { ExecOutput::Error(bytes) } else { ExecOutput::Output(bytes) }))
    }
}

/// A command as the engine reports it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ExecStatus {
    #[serde(default)]
    exit_code: Option<i64>,
}

impl DockerProvider {
    /// Runs a command in a container, with its input and output attached to the caller.
    pub async fn attach(&self, id: &str, command: &[String]) -> Result<(Attached, String)> {
        let operation = Self::check("run a command in", Kind::Container, id)?;
        let connection = self.connection();
        let attach = async {
            let body = json!({
                "AttachStdin": true,
                "AttachStdout": true,
                "AttachStderr": true,
                "Tty": false,
                "Cmd": command,
            });
            let path = format!("/containers/{}/exec", encoded(id));
            let created: CreatedId = connection.post(&path, &body).await?;
            let start = json!({ "Detach": false, "Tty": false });
            let path = format!("/exec/{}/start", encoded(&created.id));
            Ok((connection.hijack(&path, &start).await?, created.id))
        };
        let attached = attach.await;
        let (upgraded, exec) =
            attached.map_err(|error| self.classified(error, EngineAction::Inspect, operation))?;
        let connection = BufReader::with_capacity(CHUNK_SIZE, TokioIo::new(upgraded));
        Ok((Attached { connection, buffer: vec![0; CHUNK_SIZE], is_error: false, left: 0 }, exec))
    }

    /// Returns the exit code of a command, or `None` while it runs.
    pub async fn exit_code(&self, exec: &str) -> Result<Option<i64>> {
        let status: std::result::Result<ExecStatus, _> =
            self.connection().get(&format!("/exec/{}/json", encoded(exec)), &[]).await;
        let status = status
            .map_err(|error| self.classified(error, EngineAction::Inspect, "inspect a command"));
        Ok(status?.exit_code)
    }

    /// Starts a stopped container. One that runs already is not an error.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses. A container that does not exist is `Gone`.
    pub async fn start(&self, id: &str) -> Result<()> {
        let operation = Self::check("start", Kind::Container, id)?;
        let start = async {
            let library = self.connection().library().await?;
            library
                .start_container(id, None::<bollard::query_parameters::StartContainerOptions>)
                .await
        };
        start.await.map_err(|error| self.classified(error, EngineAction::Inspect, operation))
    }

    /// Returns the resource usage of a container.
    ///
    /// # Errors
    ///
    /// Fails when the engine does not respond.
    pub async fn usage(&self, id: &str) -> Result<Usage> {
        let operation = Self::check("measure", Kind::Container, id)?;
        let path = format!("/containers/{}/stats", encoded(id));
        let query = [("stream", "false"), ("one-shot", "true")];
        let stats = self.connection().get::<Stats>(&path, &query).await;
        Ok(used(&stats.map_err(|error| self.classified(error, EngineAction::Inspect, operation))?))
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
