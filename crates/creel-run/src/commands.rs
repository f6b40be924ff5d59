//! Commands that other processes send to the driver of a run.
//!
//! ```text
//!   creel cancel ──▶ orders (ledger) ◀── polls ── owner
//!        │                                          ▲
//!        └───── one datagram, no content ───────────┘
//!                (owners/<pid>-<start>.sock)
//! ```
//!
//! A command is durable before the notification is sent. A lost notification
//! costs a few seconds, because an owner also polls. An owner marks a command as
//! taken only after it has acted on it. If the owner dies in between, the next
//! owner finds the command again, and the command's key ensures that it takes
//! effect only once.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use creel_ledger::{
    Ledger, LedgerError, NewCommand, OnOwnerDeath, PlacedCommand, RunRecord, make_private_directory,
};
use creel_model::id::RunId;
use creel_model::os::ProcessKey;
use creel_model::owner::{Liveness, Owner};
use creel_model::run::{Phase, RunCommand};
use creel_model::task;
use creel_sanitise::Masked;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::messages;

/// How long an owner waits for a notification before it polls.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The error of a command that could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum RunCommandError {
    /// The ledger could not be used, or does not have the run.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The run is over.
    #[error("{run} is over: it is {phase}")]
    Over {
        /// The run.
        run: RunId,
        /// How it ended.
        phase: Phase,
    },
    /// The owner is dead, so no process can take the command.
    #[error("the driver of {run} is dead, so it takes no commands")]
    OwnerDead {
        /// The run.
        run: RunId,
        /// What happens to the run.
        on_owner_death: OnOwnerDeath,
    },
    /// The text of a message could not be saved.
    #[error("the text of the message could not be saved")]
    Text(#[source] io::Error),
}

/// The receipt of a command that was placed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Receipt {
    /// The key of the command.
    pub key: String,
    /// Whether the owner was notified at once. If not, it finds the command at its next poll.
    pub poked: bool,
}

/// Places a command for the driver of a run, and notifies the driver.
///
/// # Errors
///
/// Fails when there is no such run, when the run is over, when its owner is dead, or when the
/// command could not be made durable.
pub async fn place(
    ledger: &Ledger,
    run: RunId,
    command: RunCommand,
) -> Result<Receipt, RunCommandError> {
    let record = driven(ledger, run).await?;
    let key = new_key(&command);
    put(ledger, &record, key, command).await
}

/// Places a message for the agent of a run, and notifies the driver.
///
/// # Errors
///
/// As [`place`], and when the text could not be saved.
pub async fn place_message(
    ledger: &Ledger,
    run: RunId,
    text: &str,
    request: Option<&str>,
) -> Result<Receipt, RunCommandError> {
    let record = driven(ledger, run).await?;
    let command = RunCommand::Message { request: request.map(Masked::from) };
    let key = new_key(&command);
    // Saved first, so that a driver that finds the command also finds the text.
    messages::save(ledger.home(), run, &key, text).map_err(RunCommandError::Text)?;
    let placed = put(ledger, &record, key.clone(), command).await;
    if placed.is_err() {
        messages::remove(ledger.home(), run, &key);
    }
    placed
}

/// Returns the record of a run that is not over and whose owner is not dead.
async fn driven(ledger: &Ledger, run: RunId) -> Result<RunRecord, RunCommandError> {
    let record = ledger.run(run).await?.ok_or(LedgerError::UnknownRun { run })?;
    if record.state.phase.is_final() {
        return Err(RunCommandError::Over { run, phase: record.state.phase });
    }
    if record.owner_liveness() == Liveness::Dead {
        return Err(RunCommandError::OwnerDead { run, on_owner_death: record.on_owner_death });
    }
    Ok(record)
}

fn new_key(command: &RunCommand) -> String {
    format!("{}-{}", command.name(), uuid::Uuid::now_v7().simple())
}

/// Makes a command durable, then notifies the owner.
async fn put(
    ledger: &Ledger,
    record: &RunRecord,
    key: String,
    command: RunCommand,
) -> Result<Receipt, RunCommandError> {
    let run = record.id;
    ledger.place_command(&NewCommand { key: key.clone(), run, command }).await?;
    let poked = poke(ledger.home(), record.owner.owner.process).await;
    if let Err(error) = &poked {
        debug!(run_id = %run, %error, "the owner could not be notified");
    }
    Ok(Receipt { key, poked: poked.is_ok() })
}

/// Notifies an owner to check for commands.
async fn poke(home: &Path, owner: ProcessKey) -> io::Result<()> {
    let directory = SocketDirectory::open(home)?;
    let socket = UnixDatagram::unbound()?;
    socket.send_to(b"!", directory.path_of(&socket_name(owner))).await?;
    Ok(())
}

fn socket_name(owner: ProcessKey) -> String {
    format!("{}-{}.sock", owner.pid, owner.started_ticks)
}

/// The directory of the sockets, held open.
///
/// A path through its descriptor is always short enough for a socket address.
struct SocketDirectory {
    handle: OwnedFd,
    path: PathBuf,
}

impl SocketDirectory {
    fn open(home: &Path) -> io::Result<Self> {
        let path = home.join("owners");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Self { handle, path })
    }

    fn path_of(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()))
    }

    /// Removes sockets that no process listens on any more.
    fn remove_stale(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.ends_with(".sock")) else { continue };
            let probe = std::os::unix::net::UnixDatagram::unbound()?;
            let refused = probe
                .connect(self.path_of(name))
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if refused {
                // Another process may have removed it already.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// The endpoint where an owner receives commands: one per process, for all the runs it drives.
#[derive(Debug)]
pub struct CommandInbox {
    ledger: Ledger,
    /// Counts the notifications.
    pokes: watch::Receiver<u64>,
    /// The task that reads from the socket.
    listener: JoinHandle<()>,
    /// The socket, removed on drop. A leftover socket is removed by the next owner.
    socket: PathBuf,
}

impl CommandInbox {
    /// Starts to listen, and removes the sockets of dead owners.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be created.
    pub fn open(ledger: &Ledger, owner: &Owner) -> io::Result<Self> {
        let path = ledger.home().join("owners");
        make_private_directory(&path)?;
        let directory = SocketDirectory::open(ledger.home())?;
        if let Err(error) = directory.remove_stale() {
            warn!(%error, "sockets of dead owners could not be removed");
        }
        let name = socket_name(owner.process);
        let socket = path.join(&name);
        // Only an earlier box of this process can have left a socket of this name.
        let _ = fs::remove_file(&socket);
        let listening = UnixDatagram::bind(directory.path_of(&name))?;
        let (poked, pokes) = watch::channel(0);
        let listener = task::background(listen(listening, poked));
        Ok(Self { ledger: ledger.clone(), pokes, listener, socket })
    }

    /// Returns the commands for one run.
    pub fn of(&self, run: RunId) -> RunCommands {
        RunCommands {
            ledger: self.ledger.clone(),
            run,
            pokes: self.pokes.clone(),
            waiting: VecDeque::new(),
            returned: HashSet::new(),
        }
    }
}

impl Drop for CommandInbox {
    fn drop(&mut self) {
        self.listener.abort();
        // Best effort: a socket without a listener does no harm.
        let _ = fs::remove_file(&self.socket);
    }
}

async fn listen(socket: UnixDatagram, poked: watch::Sender<u64>) {
    let mut buffer = [0; 1];
    loop {
        if let Err(error) = socket.recv(&mut buffer).await {
            warn!(%error, "notifications do not arrive any more; orders are polled instead");
            return;
        }
        poked.send_modify(|count| *count += 1);
    }
}

/// The commands for one run, oldest first.
#[derive(Debug)]
pub struct RunCommands {
    ledger: Ledger,
    run: RunId,
    pokes: watch::Receiver<u64>,
    /// Commands that were read but not returned yet.
    waiting: VecDeque<PlacedCommand>,
    /// The keys of the commands that were returned.
    returned: HashSet<String>,
}

impl RunCommands {
    /// Waits for the next command.
    ///
    /// This value returns each command once. A command that is never [taken](Self::take) is
    /// returned again to the next driver of the run.
    ///
    /// Cancel-safe: a command is either returned or still pending.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be read.
    pub async fn next(&mut self) -> Result<PlacedCommand, LedgerError> {
        loop {
            if let Some(order) = self.waiting.pop_front() {
                self.returned.insert(order.key.clone());
                return Ok(order);
            }
            // Marked as seen before the query, so a notification during it leads to another query.
            self.pokes.borrow_and_update();
            let open = self.ledger.open_commands(self.run).await?;
            self.waiting
                .extend(open.into_iter().filter(|order| !self.returned.contains(&order.key)));
            if self.waiting.is_empty() {
                self.wait().await;
            }
        }
    }

    /// Marks a command as done. Returns whether it was open until now.
    ///
    /// # Errors
    ///
    /// Fails when that could not be made durable.
    pub async fn take(&self, key: &str) -> Result<bool, LedgerError> {
        self.ledger.complete_command(key).await
    }

    /// Waits for a notification or for the polling interval.
    async fn wait(&mut self) {
        let is_closed = match tokio::time::timeout(POLL_INTERVAL, self.pokes.changed()).await {
            Ok(changed) => changed.is_err(),
            Err(_) => false,
        };
        if is_closed {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use creel_ledger::examples::{a_dead_owner, a_run_of, me};
    use creel_ledger::{NewRun, OwnerRecord};
    use creel_model::run::RunState;
    use tempfile::TempDir;

    use super::*;

    async fn ledger_with(owner: OwnerRecord) -> (TempDir, Ledger, NewRun) {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let run = a_run_of(owner);
        ledger.create_run(&run).await.unwrap();
        (home, ledger, run)
    }

    fn message() -> RunCommand {
        RunCommand::Message { request: None }
    }

    #[tokio::test]
    async fn a_command_reaches_its_owner_at_once_and_in_sequence() {
        let (_home, ledger, run) = ledger_with(me()).await;
        let inbox = CommandInbox::open(&ledger, &me().owner).unwrap();
        let mut commands_of_run = inbox.of(run.id);
        let started_at = Instant::now();
        let send = async {
            let first = place(&ledger, run.id, message()).await.unwrap();
            let second = place(&ledger, run.id, RunCommand::Cancel).await.unwrap();
            assert!(first.poked && second.poked);
        };
        let receive = async {
            assert_eq!(commands_of_run.next().await.unwrap().command, message());
            assert_eq!(commands_of_run.next().await.unwrap().command, RunCommand::Cancel);
        };
        tokio::join!(receive, send);
        assert!(started_at.elapsed() < POLL_INTERVAL, "it was found by polling, not by a poke");
    }

    #[tokio::test]
    async fn a_command_without_a_poke_is_found_by_polling() {
        let (_home, ledger, run) = ledger_with(me()).await;
        let inbox = CommandInbox::open(&ledger, &me().owner).unwrap();
        let mut commands = inbox.of(run.id);
        let command = NewCommand { key: "k".to_owned(), run: run.id, command: RunCommand::Resume };
        let send = async {
            tokio::task::yield_now().await;
            ledger.place_command(&command).await.unwrap();
        };
        let (received, ()) = tokio::join!(commands.next(), send);
        assert_eq!(received.unwrap().command, RunCommand::Resume);
    }

    #[tokio::test]
    async fn an_open_command_is_returned_to_the_next_driver() {
        let (_home, ledger, run) = ledger_with(me()).await;
        let inbox = CommandInbox::open(&ledger, &me().owner).unwrap();
        let _ = place(&ledger, run.id, RunCommand::Cancel).await.unwrap();
        let first = inbox.of(run.id).next().await.unwrap();
        let mut heir = inbox.of(run.id);
        let again = heir.next().await.unwrap();
        assert_eq!(first, again);
        assert!(heir.take(&again.key).await.unwrap());
        assert!(!heir.take(&again.key).await.unwrap());
        assert_eq!(ledger.open_commands(run.id).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_path_too_long_for_a_socket_still_receives_commands() {
        let home = tempfile::tempdir().unwrap();
        let deep = home.path().join("d".repeat(100)).join("e".repeat(100));
        let ledger = Ledger::open(&deep).await.unwrap();
        let run = a_run_of(me());
        ledger.create_run(&run).await.unwrap();
        let _inbox = CommandInbox::open(&ledger, &me().owner).unwrap();
        assert!(place(&ledger, run.id, RunCommand::Cancel).await.unwrap().poked);
    }

    #[tokio::test]
    async fn sockets_of_dead_owners_are_removed_and_those_of_live_ones_stay() {
        let (home, ledger, _run) = ledger_with(me()).await;
        let owners = home.path().join("owners");
        fs::create_dir(&owners).unwrap();
        let bind = |name: &str| std::os::unix::net::UnixDatagram::bind(owners.join(name)).unwrap();
        drop(bind("1-1.sock"));
        let _live = bind("2-2.sock");
        let mine = CommandInbox::open(&ledger, &me().owner).unwrap();
        let names = || {
            let entries = fs::read_dir(&owners).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert!(!names().contains(&"1-1.sock".to_owned()), "{:?}", names());
        assert_eq!(names().len(), 2, "{:?}", names());
        drop(mine);
        assert_eq!(names(), ["2-2.sock"]);
    }

    #[tokio::test]
    async fn commands_to_a_dead_owner_or_a_finished_run_are_refused() {
        let (_home, ledger, run) = ledger_with(a_dead_owner()).await;
        let dead = place(&ledger, run.id, RunCommand::Cancel).await.unwrap_err();
        assert!(matches!(dead, RunCommandError::OwnerDead { .. }), "{dead}");
        let over = RunState { sequence: 3, phase: Phase::Failed, ..RunState::new() };
        ledger.save_run(run.id, &run.owner.owner, &over).await.unwrap();
        let over = place(&ledger, run.id, message()).await.unwrap_err();
        assert_eq!(over.to_string(), format!("{} is over: it is failed", run.id));
        let unknown = place(&ledger, RunId::new(), RunCommand::Cancel).await.unwrap_err();
        assert!(matches!(unknown, RunCommandError::Ledger(LedgerError::UnknownRun { .. })));
        assert_eq!(ledger.open_commands(run.id).await.unwrap(), []);
    }
}
