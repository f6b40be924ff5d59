//! Messages between supervisor, holder and init.
//!
//! Each pair shares one stream socket, which is the standard input of the started process. Messages
//! are JSON, one per line. The socket is also the lifeline: its end means that the other side is
//! dead or has disconnected.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use creel_model::backend::HolderProgram;
use creel_model::id::ResourceId;
use creel_model::os::ProcessKey;
use creel_model::provider::ErrorClass;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroup::GroupRecord;
use super::cover::SocketCover;
use super::tree_record::{Containment, ProcessEnding, TreeRecord};

/// How long the other side may take to read a message that does not fit the socket buffer.
const WRITE_PATIENCE: Duration = Duration::from_secs(15);

/// The workload of a tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Workload {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Its working directory.
    pub directory: PathBuf,
    /// The file that receives its output.
    pub log: PathBuf,
}

/// Which of our two processes a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// Watches the lease and manages the tree.
    Hold,
    /// Starts the workload and reaps.
    Init,
}

/// The request to a holder, which it also passes to its init.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct HolderRequest {
    /// The receiver.
    pub role: Role,
    /// The resource the tree belongs to.
    pub resource: ResourceId,
    /// The program that runs as init.
    pub program: HolderProgram,
    /// What keeps the tree together.
    pub containment: Containment,
    /// The control groups to join; they already exist.
    pub cgroups: Vec<GroupRecord>,
    /// The workload; `None` only tests the containment.
    pub workload: Option<Workload>,
    /// How long the tree may live without a change of the lease file.
    pub lease: Duration,
    /// The lease file.
    pub lease_file: PathBuf,
    /// The file that records the ending.
    pub ending_file: PathBuf,
}

/// A report of a holder or an init.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HolderReport {
    /// From the init: the workload runs, but outside these control groups, which it could not join.
    Spawned {
        /// The groups that were not joined.
        not_joined: Vec<PathBuf>,
    },
    /// From the holder: the tree is running.
    Started {
        /// Its processes.
        tree: TreeRecord,
        /// The groups that were not joined.
        not_joined: Vec<PathBuf>,
    },
    /// This containment is unavailable here.
    Unavailable {
        /// The error of the system.
        reason: String,
    },
    /// The workload cannot be started.
    Refused {
        /// Why.
        reason: String,
        /// The class of the error.
        class: ErrorClass,
    },
    /// From the init: the workload ended.
    Ended(ProcessEnding),
}

/// A request of a guard to the attendant of its command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AttendantCommand {
    /// Start the command.
    Begin {
        /// The control groups to join, if they exist.
        cgroups: Vec<GroupRecord>,
        /// How long the tree may live without a change of the lease file.
        lease: Duration,
        /// The lease file.
        lease_file: PathBuf,
        /// The socket that replaces another one for the command.
        cover: Option<SocketCover>,
    },
    /// Forward a signal.
    Signal {
        /// The signal.
        signal: i32,
    },
    /// Continue in the foreground.
    Resume,
}

/// A report of a command's attendant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AttendantReport {
    /// The command runs.
    Started {
        /// The attendant itself.
        attendant: ProcessKey,
    },
    /// The command cannot be started.
    Refused {
        /// The error of the system.
        reason: String,
        /// Whether there is no such program.
        not_found: bool,
    },
    /// The command's process group received a signal.
    Signalled {
        /// The signal.
        signal: i32,
    },
    /// The user asked to suspend the command.
    Suspended,
    /// The command ended.
    Ended(ProcessEnding),
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Channel {
    stream: BufReader<UnixStream>,
}

/// The result of a receive.
#[derive(Debug)]
pub(super) enum Received<T> {
    /// A message.
    Message(T),
    /// No message in time.
    Silence,
    /// The other side is gone.
    End,
}

impl Channel {
    /// Returns the channel on the standard input of this process.
    pub(super) fn of_this_process() -> io::Result<Self> {
        Ok(Self::over(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    /// Wraps a socket.
    pub(super) fn over(stream: UnixStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// Returns a second handle that another thread can write to.
    pub(super) fn writer(&self) -> io::Result<UnixStream> {
        self.stream.get_ref().try_clone()
    }

    /// Sends a message.
    pub(super) fn send<T: Serialize>(&self, message: &T) -> io::Result<()> {
        self.stream.get_ref().set_write_timeout(Some(WRITE_PATIENCE))?;
        write_message(self.stream.get_ref(), message)
    }

    /// Waits for a message; without a timeout it waits as long as the other side lives.
    ///
    /// Both sides write whole lines of a few hundred bytes at once, so a line that has begun to
    /// arrive arrives whole.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        patience: Option<Duration>,
    ) -> io::Result<Received<T>> {
        // The socket treats zero as "no timeout", which is the opposite of its meaning here.
        let patience = patience.map(|wait| wait.max(Duration::from_millis(1)));
        self.stream.get_ref().set_read_timeout(patience)?;
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Ok(Received::End),
            Ok(_) => Ok(Received::Message(serde_json::from_str(&line)?)),
            Err(error) if is_impatience(&error) => Ok(Received::Silence),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Received::End),
            Err(error) => Err(error),
        }
    }
}

/// Writes one message as one line.
pub(super) fn write_message<T: Serialize>(mut stream: &UnixStream, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn is_impatience(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
