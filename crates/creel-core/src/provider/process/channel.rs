//! What supervisor, holder and init say to each other.
//!
//! Each pair shares one stream socket, which is the standard input of the one
//! that was started. Messages are JSON, one per line. The socket is also the
//! lifeline: its end means that the other side is dead or has let go.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::id::ResourceId;
use crate::os::ProcessKey;
use crate::provider::ErrorClass;

use super::cover::Cover;
use super::group::GroupRecord;
use super::world::HolderProgram;

/// How long the other side may take to read a message that does not fit the socket.
const WRITE_PATIENCE: Duration = Duration::from_secs(15);

/// What keeps a process tree together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A pid namespace: the kernel ends the tree with its first process.
    PidNamespace,
    /// A control group: everything in it is ended together.
    Cgroup,
    /// Descent and a marker in the environment.
    Subreaper,
}

impl Containment {
    /// All of them, the best first.
    pub const ALL: [Self; 3] = [Self::PidNamespace, Self::Cgroup, Self::Subreaper];

    /// Returns the name used in records and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PidNamespace => "pid_namespace",
            Self::Cgroup => "cgroup",
            Self::Subreaper => "subreaper",
        }
    }
}

/// How a process tree ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The workload exited with this code.
    Code(i32),
    /// The workload was ended by this signal.
    Signal(i32),
    /// The lease was not renewed, so the holder ended the tree.
    LeaseExpired,
    /// The init was killed, by the kernel's memory limit for one, and the tree with it.
    InitDied,
}

/// What the workload is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Workload {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Where it starts.
    pub directory: PathBuf,
    /// The file that takes what it writes.
    pub log: PathBuf,
}

/// Which of the two processes of ours an order is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// Watches the lease and answers for the tree.
    Hold,
    /// Starts the workload and reaps.
    Init,
}

/// The order a holder gets, and hands on to its init.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct HolderOrder {
    /// Who reads this.
    pub role: Role,
    /// The resource the tree belongs to.
    pub resource: ResourceId,
    /// How to start the init.
    pub program: HolderProgram,
    /// What keeps the tree together.
    pub containment: Containment,
    /// The control groups to join; they exist.
    pub cgroups: Vec<GroupRecord>,
    /// What to run; `None` only tries the containment.
    pub workload: Option<Workload>,
    /// How long the tree may live without a change of the lease file.
    pub lease: Duration,
    /// The lease file.
    pub lease_file: PathBuf,
    /// Where the ending is recorded.
    pub ending_file: PathBuf,
}

/// The processes of ours that hold a tree, as seen from the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TreeRecord {
    /// What keeps the tree together.
    pub containment: Containment,
    /// The holder.
    pub holder: ProcessKey,
    /// The init.
    pub init: ProcessKey,
}

/// What a holder or an init reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// From the init: the workload runs, outside of these control groups that it could not join.
    Spawned {
        /// The groups that were not joined.
        not_joined: Vec<PathBuf>,
    },
    /// From the holder: the tree stands.
    Started {
        /// Its processes.
        tree: TreeRecord,
        /// The groups that were not joined.
        not_joined: Vec<PathBuf>,
    },
    /// This containment cannot be had here.
    Unavailable {
        /// What the system said.
        reason: String,
    },
    /// The workload cannot be started.
    Refused {
        /// Why.
        reason: String,
        /// Whose fault it is.
        class: ErrorClass,
    },
    /// From the init: the workload ended.
    Ended(Ending),
}

/// What a guard tells the attendant of its command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AttendantOrder {
    /// Start the command.
    Begin {
        /// The control groups to join, where they exist.
        cgroups: Vec<GroupRecord>,
        /// How long the tree may live without a change of the lease file.
        lease: Duration,
        /// The lease file.
        lease_file: PathBuf,
        /// What the command finds in another's place.
        cover: Option<Cover>,
    },
    /// Pass a signal on.
    Signal {
        /// Which one.
        signal: i32,
    },
    /// Take the terminal again and go on.
    Resume,
}

/// What the attendant of a command reports.
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
        /// What the system said.
        reason: String,
        /// Whether there is no such program.
        not_found: bool,
    },
    /// The command's group got a signal.
    Signalled {
        /// Which one.
        signal: i32,
    },
    /// The user asked to suspend the command.
    Suspended,
    /// The command ended.
    Ended(Ending),
}

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Channel {
    stream: BufReader<UnixStream>,
}

/// What came through a channel.
#[derive(Debug)]
pub(super) enum Heard<T> {
    /// A message.
    Message(T),
    /// Nothing in time.
    Silence,
    /// The other side is gone.
    End,
}

impl Channel {
    /// Takes the conversation that this process was started with.
    pub(super) fn of_this_process() -> io::Result<Self> {
        Ok(Self::over(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    /// Wraps a socket.
    pub(super) fn over(stream: UnixStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// Returns a second handle for another thread to write to.
    pub(super) fn writer(&self) -> io::Result<UnixStream> {
        self.stream.get_ref().try_clone()
    }

    /// Says something.
    pub(super) fn send<T: Serialize>(&self, message: &T) -> io::Result<()> {
        self.stream.get_ref().set_write_timeout(Some(WRITE_PATIENCE))?;
        write_message(self.stream.get_ref(), message)
    }

    /// Waits for a message; `None` waits for as long as the other side lives.
    ///
    /// Both sides write whole lines of a few hundred bytes at once, so a line that has begun
    /// to arrive arrives whole.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        patience: Option<Duration>,
    ) -> io::Result<Heard<T>> {
        // The socket takes a zero for "never", which is the opposite of what is meant.
        let patience = patience.map(|wait| wait.max(Duration::from_millis(1)));
        self.stream.get_ref().set_read_timeout(patience)?;
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Ok(Heard::End),
            Ok(_) => Ok(Heard::Message(serde_json::from_str(&line)?)),
            Err(error) if is_impatience(&error) => Ok(Heard::Silence),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Heard::End),
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
