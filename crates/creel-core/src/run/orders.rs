//! Orders: what others want of whoever drives a run.
//!
//! ```text
//!   creel cancel ──▶ orders (ledger) ◀── looks ── owner
//!        │                                          ▲
//!        └───── one datagram, no content ───────────┘
//!                (owners/<pid>-<start>.sock)
//! ```
//!
//! The order is durable before the poke is sent. A poke that is lost costs a few
//! seconds, since an owner looks by itself, too. An owner takes an order only
//! after it acted on it, so one that dies in between leaves it to its heir; the
//! key makes it happen once.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use crate::id::RunId;
use crate::ledger::{
    Ledger, LedgerError, NewOrder, OnOwnerDeath, PlacedOrder, RunRecord, database,
};
use crate::os::ProcessKey;
use crate::owner::{Liveness, Owner};
use crate::sanitise::Masked;
use crate::task;

use super::{Phase, messages};

/// How long an owner waits for a poke before it looks by itself.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

/// What somebody wants of whoever drives a run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Order {
    /// End it, and give everything back.
    Cancel,
    /// Tell the agent something; the text is in a file of its own, by the order's key.
    Message {
        /// The question it answers; the one that waits, where none is named.
        request: Option<Masked>,
    },
    /// Go on after a pause.
    Resume,
}

impl Order {
    /// Returns the word for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Message { .. } => "message",
            Self::Resume => "resume",
        }
    }
}

/// Shows which order it is, and not a word of a message.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An order that could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
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
    /// Nobody is there to take it.
    #[error("whoever drove {run} is dead, so nobody can take this order")]
    OwnerDead {
        /// The run.
        run: RunId,
        /// What becomes of the run.
        on_owner_death: OnOwnerDeath,
    },
    /// The text of a message could not be saved.
    #[error("the text of the message could not be saved")]
    Text(#[source] io::Error),
}

/// How an order was placed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Receipt {
    /// The key it was placed under.
    pub key: String,
    /// Whether the owner was told at once; else it finds the order when it looks next.
    pub poked: bool,
}

/// Leaves an order for whoever drives a run, and pokes it.
///
/// # Errors
///
/// Fails when there is no such run, when it is over, when its owner is dead, or when the order
/// could not be made durable.
pub async fn place(ledger: &Ledger, run: RunId, order: Order) -> Result<Receipt, OrderError> {
    let record = driven(ledger, run).await?;
    let key = new_key(&order);
    put(ledger, &record, key, order).await
}

/// Leaves a message for the agent of a run, and pokes whoever drives it.
///
/// # Errors
///
/// As [`place`], and when the text could not be saved.
pub async fn place_message(
    ledger: &Ledger,
    run: RunId,
    text: &str,
    request: Option<&str>,
) -> Result<Receipt, OrderError> {
    let record = driven(ledger, run).await?;
    let order = Order::Message { request: request.map(Masked::from) };
    let key = new_key(&order);
    // Before the order: whoever finds that finds the text.
    messages::save(ledger.home(), run, &key, text).map_err(OrderError::Text)?;
    let placed = put(ledger, &record, key.clone(), order).await;
    if placed.is_err() {
        messages::remove(ledger.home(), run, &key);
    }
    placed
}

/// Returns a run that somebody drives.
async fn driven(ledger: &Ledger, run: RunId) -> Result<RunRecord, OrderError> {
    let record = ledger.run(run).await?.ok_or(LedgerError::UnknownRun { run })?;
    if record.state.phase.is_final() {
        return Err(OrderError::Over { run, phase: record.state.phase });
    }
    if record.owner_liveness() == Liveness::Dead {
        return Err(OrderError::OwnerDead { run, on_owner_death: record.on_owner_death });
    }
    Ok(record)
}

fn new_key(order: &Order) -> String {
    format!("{}-{}", order.name(), uuid::Uuid::now_v7().simple())
}

/// Makes an order durable, then pokes the owner.
async fn put(
    ledger: &Ledger,
    record: &RunRecord,
    key: String,
    order: Order,
) -> Result<Receipt, OrderError> {
    let run = record.id;
    ledger.place_order(&NewOrder { key: key.clone(), run, order }).await?;
    let poked = poke(ledger.home(), record.owner.owner.process).await;
    if let Err(error) = &poked {
        debug!(run_id = %run, %error, "the owner could not be poked");
    }
    Ok(Receipt { key, poked: poked.is_ok() })
}

/// Tells an owner to look for orders.
async fn poke(home: &Path, owner: ProcessKey) -> io::Result<()> {
    let directory = Directory::open(home)?;
    let socket = UnixDatagram::unbound()?;
    socket.send_to(b"!", directory.path_of(&socket_name(owner))).await?;
    Ok(())
}

fn socket_name(owner: ProcessKey) -> String {
    format!("{}-{}.sock", owner.pid, owner.started_ticks)
}

/// The directory of the sockets, held open: a path through its descriptor is short enough for
/// a socket's address, however deep the directory is.
struct Directory {
    handle: OwnedFd,
    path: PathBuf,
}

impl Directory {
    fn open(home: &Path) -> io::Result<Self> {
        let path = home.join("owners");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Self { handle, path })
    }

    fn path_of(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()))
    }

    /// Removes sockets behind which nobody listens any more.
    fn remove_stale(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.ends_with(".sock")) else { continue };
            let probe = std::os::unix::net::UnixDatagram::unbound()?;
            let refused = probe
                .connect(self.path_of(name))
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if refused {
                // Somebody else may have been quicker.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// Where an owner hears of orders; one for each process, however many runs it drives.
#[derive(Debug)]
pub struct OrderBox {
    ledger: Ledger,
    /// Counts the pokes.
    pokes: watch::Receiver<u64>,
    /// Listens to the socket.
    listener: JoinHandle<()>,
    /// The socket, removed on drop; one that stays is removed by the next owner.
    socket: PathBuf,
}

impl OrderBox {
    /// Starts to listen, and removes the sockets of owners that died.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be made.
    pub fn open(ledger: &Ledger, owner: &Owner) -> io::Result<Self> {
        let path = ledger.home().join("owners");
        database::make_private_directory(&path)?;
        let directory = Directory::open(ledger.home())?;
        if let Err(error) = directory.remove_stale() {
            warn!(%error, "sockets of dead owners could not be removed");
        }
        let name = socket_name(owner.process);
        let socket = path.join(&name);
        // Only an earlier box of this very process can have left one of this name.
        let _ = fs::remove_file(&socket);
        let listening = UnixDatagram::bind(directory.path_of(&name))?;
        let (poked, pokes) = watch::channel(0);
        let listener = task::background(listen(listening, poked));
        Ok(Self { ledger: ledger.clone(), pokes, listener, socket })
    }

    /// Returns the orders for one run.
    pub fn of(&self, run: RunId) -> Orders {
        Orders {
            ledger: self.ledger.clone(),
            run,
            pokes: self.pokes.clone(),
            waiting: VecDeque::new(),
            given: HashSet::new(),
        }
    }
}

impl Drop for OrderBox {
    fn drop(&mut self) {
        self.listener.abort();
        // A courtesy: a socket without a listener harms nobody.
        let _ = fs::remove_file(&self.socket);
    }
}

async fn listen(socket: UnixDatagram, poked: watch::Sender<u64>) {
    let mut nothing = [0; 1];
    loop {
        if let Err(error) = socket.recv(&mut nothing).await {
            warn!(%error, "pokes are not heard any more; orders are looked for instead");
            return;
        }
        poked.send_modify(|count| *count += 1);
    }
}

/// The orders for one run, in the order in which they were placed.
#[derive(Debug)]
pub struct Orders {
    ledger: Ledger,
    run: RunId,
    pokes: watch::Receiver<u64>,
    /// Read, and not given out yet.
    waiting: VecDeque<PlacedOrder>,
    /// The keys of those that were given out.
    given: HashSet<String>,
}

impl Orders {
    /// Waits for the next order. Each is given out once by this value; one that is never
    /// [taken](Self::take) is given out again to whoever drives the run next.
    ///
    /// Cancel-safe: an order is either given out or still waits.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be read.
    pub async fn next(&mut self) -> Result<PlacedOrder, LedgerError> {
        loop {
            if let Some(order) = self.waiting.pop_front() {
                self.given.insert(order.key.clone());
                return Ok(order);
            }
            // Marked before the look: a poke during it leads to another one.
            self.pokes.borrow_and_update();
            let open = self.ledger.open_orders(self.run).await?;
            self.waiting.extend(open.into_iter().filter(|order| !self.given.contains(&order.key)));
            if self.waiting.is_empty() {
                self.wait().await;
            }
        }
    }

    /// Marks an order as done with; returns whether it was open until now.
    ///
    /// # Errors
    ///
    /// Fails when that could not be made durable.
    pub async fn take(&self, key: &str) -> Result<bool, LedgerError> {
        self.ledger.take_order(key).await
    }

    /// Waits for a poke, or for the time to look anyway.
    async fn wait(&mut self) {
        let deaf = match tokio::time::timeout(LOOK_ANYWAY, self.pokes.changed()).await {
            Ok(heard) => heard.is_err(),
            Err(_) => false,
        };
        if deaf {
            tokio::time::sleep(LOOK_ANYWAY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tempfile::TempDir;

    use super::*;
    use crate::ledger::{NewRun, OwnerRecord};
    use crate::run::RunState;
    use crate::run::records::tests::{a_dead_owner, a_run_of, me};

    async fn ledger_with(owner: OwnerRecord) -> (TempDir, Ledger, NewRun) {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let run = a_run_of(owner);
        ledger.create_run(&run).await.unwrap();
        (home, ledger, run)
    }

    fn message() -> Order {
        Order::Message { request: None }
    }

    #[tokio::test]
    async fn an_order_reaches_its_owner_at_once_and_in_turn() {
        let (_home, ledger, run) = ledger_with(me()).await;
        let orders = OrderBox::open(&ledger, &me().owner).unwrap();
        let mut orders_of_run = orders.of(run.id);
        let started_at = Instant::now();
        let send = async {
            let first = place(&ledger, run.id, message()).await.unwrap();
            let second = place(&ledger, run.id, Order::Cancel).await.unwrap();
            assert!(first.poked && second.poked);
        };
        let receive = async {
            assert_eq!(orders_of_run.next().await.unwrap().order, message());
            assert_eq!(orders_of_run.next().await.unwrap().order, Order::Cancel);
        };
        tokio::join!(receive, send);
        assert!(started_at.elapsed() < LOOK_ANYWAY, "it was found by looking, not by a poke");
    }

    #[tokio::test]
    async fn an_order_without_a_poke_is_found_by_looking() {
        let (_home, ledger, run) = ledger_with(me()).await;
        let orders = OrderBox::open(&ledger, &me().owner).unwrap();
        let mut orders = orders.of(run.id);
        let order = NewOrder { key: "k".to_owned(), run: run.id, order: Order::Resume };
        let send = async {
            tokio::task::yield_now().await;
            ledger.place_order(&order).await.unwrap();
        };
        let (received, ()) = tokio::join!(orders.next(), send);
        assert_eq!(received.unwrap().order, Order::Resume);
    }

    #[tokio::test]
    async fn an_order_that_was_not_taken_is_given_to_the_next_driver() {
        let (_home, ledger, run) = ledger_with(me()).await;
        let orders = OrderBox::open(&ledger, &me().owner).unwrap();
        let _ = place(&ledger, run.id, Order::Cancel).await.unwrap();
        let first = orders.of(run.id).next().await.unwrap();
        let mut heir = orders.of(run.id);
        let again = heir.next().await.unwrap();
        assert_eq!(first, again);
        assert!(heir.take(&again.key).await.unwrap());
        assert!(!heir.take(&again.key).await.unwrap());
        assert_eq!(ledger.open_orders(run.id).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_for_a_socket_is_none_too_long_for_orders() {
        let home = tempfile::tempdir().unwrap();
        let deep = home.path().join("d".repeat(100)).join("e".repeat(100));
        let ledger = Ledger::open(&deep).await.unwrap();
        let run = a_run_of(me());
        ledger.create_run(&run).await.unwrap();
        let _orders = OrderBox::open(&ledger, &me().owner).unwrap();
        assert!(place(&ledger, run.id, Order::Cancel).await.unwrap().poked);
    }

    #[tokio::test]
    async fn sockets_of_dead_owners_are_removed_and_those_of_live_ones_stay() {
        let (home, ledger, _run) = ledger_with(me()).await;
        let owners = home.path().join("owners");
        fs::create_dir(&owners).unwrap();
        let bind = |name: &str| std::os::unix::net::UnixDatagram::bind(owners.join(name)).unwrap();
        drop(bind("1-1.sock"));
        let _live = bind("2-2.sock");
        let mine = OrderBox::open(&ledger, &me().owner).unwrap();
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
    async fn a_dead_owner_and_a_run_that_is_over_are_named() {
        let (_home, ledger, run) = ledger_with(a_dead_owner()).await;
        let dead = place(&ledger, run.id, Order::Cancel).await.unwrap_err();
        assert!(matches!(dead, OrderError::OwnerDead { .. }), "{dead}");
        let over = RunState { sequence: 3, phase: Phase::Failed, ..RunState::new() };
        ledger.save_run(run.id, &run.owner.owner, &over).await.unwrap();
        let over = place(&ledger, run.id, message()).await.unwrap_err();
        assert_eq!(over.to_string(), format!("{} is over: it is failed", run.id));
        let unknown = place(&ledger, RunId::new(), Order::Cancel).await.unwrap_err();
        assert!(matches!(unknown, OrderError::Ledger(LedgerError::UnknownRun { .. })));
        assert_eq!(ledger.open_orders(run.id).await.unwrap(), []);
    }
}
