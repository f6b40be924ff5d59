//! Process sandboxes: a directory and a process tree on this machine.
//!
//! ```text
//!   <directory>/.creel/     creel's own: the program, the holder's socket
//!   <directory>/home/       HOME
//!   <directory>/tmp/        TMPDIR
//!   <directory>/workspace/  where a relative workspace path begins
//! ```
//!
//! With a disk of a fixed size all but the first are below `<directory>/disk/`,
//! where it is mounted. What creel itself writes is not on it: a run whose agent
//! has filled the disk still ends with its outcome.
//!
//! The tree's workload is `creel-bridge hold`, with an environment of its own
//! and nothing of ours. Every command is started by it, over its socket, so all
//! of them are in the tree and end with it, whatever they do to get away. The
//! lease is the business of the tree's own holder, which needs no second one.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use creel_bridge::exec::Order;
use creel_bridge::file;
use rustix::fs::{CWD, Mode, OFlags, openat};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::provider::process::{Ending, ProcessProvider, RESOURCE_VARIABLE};
use crate::provider::{
    ErrorClass, Kind, Limits, ProcessSpec, Provider, ProviderError, ProviderName, Usage,
};

use super::Sight;
use super::answer::Answer;
use super::entered::Way;
use super::place::{CREEL_DIRECTORY, Place, WORKSPACE};

/// The holder's socket, in creel's own directory.
const SOCKET: &str = "hold.sock";
/// The lease that the holder would watch by itself: ten years.
const ENDLESS_MS: &str = "315360000000";
/// The largest piece that is read at once.
const PIECE: usize = 64 * 1024;
/// How long a holder may take to listen.
const START_PATIENCE: Duration = Duration::from_secs(15);
/// The pause between two looks whether it does.
const START_PAUSE: Duration = Duration::from_millis(10);

/// The way into a process sandbox.
#[derive(Debug)]
pub(super) struct ProcessWay {
    pub provider: ProcessProvider,
    /// The id of the process tree.
    pub tree: String,
    /// Where everything is.
    pub home: Home,
}

/// Where the parts of a process sandbox are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    /// The directory that holds everything, and what is creel's own.
    pub root: PathBuf,
    /// The directory of what the workload writes: the same one, or its disk.
    pub work: PathBuf,
}

impl Home {
    /// Returns what is where for the commands in it.
    pub(super) fn place(&self, program: &str, env: BTreeMap<String, SecretString>) -> Place {
        let (root, work) = (self.root.display().to_string(), self.work.display().to_string());
        Place::apart(&root, &work, program, env)
    }
}

/// Makes the directories of a sandbox, and puts the program there.
///
/// Each sandbox has a copy of its own: a tree is no boundary, and a program that several of them
/// share could be changed under the others.
pub(super) fn furnish(home: &Home, name: &str, program: &[u8]) -> io::Result<()> {
    let own = home.root.join(CREEL_DIRECTORY);
    let theirs = ["home", "tmp", WORKSPACE].map(|name| home.work.join(name));
    for directory in std::iter::once(&own).chain(&theirs) {
        DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
    }
    file::put(&own.join(name), 0o700, program)
}

/// Returns what the tree of a sandbox runs.
pub(super) fn tree_spec(home: &Home, program: &str, limits: Limits) -> ProcessSpec {
    let command =
        [program, "hold", "--lease-file", "lease", "--lease-ms", ENDLESS_MS, "--socket", SOCKET];
    let below = |name: &str| home.work.join(name).display().to_string();
    ProcessSpec {
        command: command.map(str::to_owned).to_vec(),
        env: [("HOME", "home"), ("TMPDIR", "tmp")]
            .map(|(name, place)| (name.to_owned(), below(place)))
            .into(),
        directory: Some(home.root.join(CREEL_DIRECTORY)),
        limits,
    }
}

impl ProcessWay {
    /// Waits until the holder listens.
    pub(super) async fn until_ready(&self) -> Result<(), ProviderError> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            match self.connect().await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    return Err(self.broken("reach the holder", &error));
                }
                Err(_) if !matches!(self.look().await?, Sight::Running) => {
                    let message = "the holder ended at its start".to_owned();
                    return Err(self.failure("reach the holder", ErrorClass::Invalid, message));
                }
                Err(_) => tokio::time::sleep(START_PAUSE).await,
            }
        }
    }

    /// Connects by way of the directory's handle, because the name of a socket may not be long.
    async fn connect(&self) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, self.home.root.join(CREEL_DIRECTORY), flags, Mode::empty())?;
        UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())).await
    }

    async fn converse(&self, order: &Order, answer: &mut Answer<'_>) -> io::Result<()> {
        let mut stream = self.connect().await?;
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut piece = vec![0; PIECE];
        // The connection stays open in both directions: its end would be the command's.
        while !answer.is_finished() {
            match stream.read(&mut piece).await? {
                0 => break,
                count => answer.feed(&piece[..count]),
            }
        }
        Ok(())
    }

    fn failure(&self, operation: &str, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: ProviderName::Process,
            operation: format!("{operation} of process {}", self.tree),
            message,
            class,
            retry_after: None,
        }
    }

    fn broken(&self, operation: &str, error: &io::Error) -> ProviderError {
        self.failure(operation, ErrorClass::Unreachable, error.to_string())
    }
}

#[async_trait]
impl Way for ProcessWay {
    fn provider(&self) -> ProviderName {
        ProviderName::Process
    }

    fn id(&self) -> &str {
        &self.tree
    }

    async fn carry(
        &self,
        _: &Place,
        mut order: Order,
        answer: &mut Answer<'_>,
    ) -> Result<(), ProviderError> {
        // Every process of the tree is found again by it.
        order.env.remove(RESOURCE_VARIABLE);
        let conversed = self.converse(&order, answer).await;
        conversed.map_err(|error| self.broken("speak with the holder", &error))
    }

    async fn look(&self) -> Result<Sight, ProviderError> {
        let Some(seen) = self.provider.inspect(Kind::Process, &self.tree).await? else {
            return Ok(Sight::Absent);
        };
        if seen.is_running() {
            return Ok(Sight::Running);
        }
        Ok(Sight::Resting(match self.provider.ending(&self.tree)? {
            Some(Ending::LeaseExpired) => "ended, because its lease was not renewed".to_owned(),
            Some(Ending::Code(code)) => format!("{} with code {code}", seen.state),
            Some(Ending::Signal(signal)) => format!("{} by signal {signal}", seen.state),
            Some(Ending::InitDied) | None => seen.state,
        }))
    }

    async fn start(&self, place: &Place) -> Result<(), ProviderError> {
        let spec = tree_spec(&self.home, &place.bridge_path, Limits::default());
        self.provider.restart(&self.tree, &spec).await?;
        self.until_ready().await
    }

    async fn stop(&self, patience: Duration) -> Result<(), ProviderError> {
        self.provider.stop(Kind::Process, &self.tree, patience).await?;
        // Whoever connects is to see at once that nobody listens.
        let _ = fs::remove_file(self.home.root.join(CREEL_DIRECTORY).join(SOCKET));
        Ok(())
    }

    async fn wake(&self) -> Result<(), ProviderError> {
        self.provider.wake(&self.tree).await
    }

    async fn usage(&self) -> Result<Usage, ProviderError> {
        self.provider.usage(&self.tree).await
    }

    async fn renew(&self) -> Result<(), ProviderError> {
        Provider::renew(&self.provider, Kind::Process, &self.tree).await
    }
}
