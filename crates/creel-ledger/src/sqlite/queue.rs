//! The queue of database writers: first come, first served.
//!
//! SQLite lets waiting writers poll, so on a busy machine one of them can lose every race. Here
//! each writer takes a ticket and waits for all lower tickets to end. A ticket is an exclusive lock
//! on one byte of a file beside the database. The wait is a shared lock on all lower bytes:
//!
//! ```text
//!   byte        1    2    3    4
//!   writer A   [X]                      has the turn
//!   writer B    s   [X]                 waits for byte 1
//!   writer C    s    s   [X]            waits for bytes 1 and 2
//! ```
//!
//! The writer with the turn holds its own byte exclusively and all lower ones shared, so two
//! writers can never have the turn at once. Nothing is stored: the kernel releases the locks of a
//! killed process, whether it waited or had the turn. An empty queue starts at byte 1 again. A wait
//! ends when the holder ends its turn or dies, and never otherwise.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use creel_model::os::range_lock;
use creel_model::os::range_lock::{ByteRange, LockMode};
use creel_model::task;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tracing::warn;

/// How long a writer waits before it logs a warning.
const NOTICE_AFTER: Duration = Duration::from_secs(10);

/// The first ticket; byte 0 stays free.
const FIRST: u64 = 1;

/// The writers of one database, in this process and in all others.
#[derive(Debug, Clone)]
pub(crate) struct WriteQueue {
    /// Carries the locks.
    file: Arc<File>,
    /// The writers of this process. Only the first of them waits in the shared queue.
    local: Arc<Mutex<()>>,
}

/// The right to write. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct WriteTurn {
    file: Arc<File>,
    /// Released after the file lock, because fields are dropped after `drop`.
    _local: OwnedMutexGuard<()>,
}

impl WriteQueue {
    /// Opens the queue in this file, and creates the file if it is missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = Arc::new(options.open(path)?);
        Ok(Self { file, local: Arc::new(Mutex::new(())) })
    }

    /// Waits for the turn, as long as the writers ahead of it live.
    pub(crate) async fn turn(&self) -> io::Result<WriteTurn> {
        let local = Arc::clone(&self.local).lock_owned().await;
        let mut turn = WriteTurn { file: Arc::clone(&self.file), _local: local };
        let ticket = take_ticket(&turn.file)?;
        if has_turn(&turn.file, ticket)? {
            return Ok(turn);
        }
        let waiting = task::on_detached_thread("ledger-queue", move || {
            let waited = wait_for_turn(&turn.file, ticket);
            waited.map(|()| turn)
        });
        tokio::pin!(waiting);
        loop {
            match tokio::time::timeout(NOTICE_AFTER, &mut waiting).await {
                Ok(ended) => {
                    turn = ended?.ok_or_else(|| io::Error::other("the wait panicked"))??;
                    return Ok(turn);
                }
                Err(_) => warn!("waiting for other processes that write to the ledger"),
            }
        }
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        if let Err(error) = range_lock::unlock_all(&self.file) {
            // Cannot happen to a file that was locked. The kernel unlocks it when this process ends
            // at the latest.
            warn!(%error, "a turn at writing could not be ended");
        }
    }
}

/// Takes the ticket after all others.
fn take_ticket(file: &File) -> io::Result<u64> {
    loop {
        let mut ticket = FIRST;
        // The kernel reports some lock, not the last one: each step skips half of the rest on
        // average.
        while let Some(last) = range_lock::end_of_any_lock_from(file, ticket)? {
            ticket = last + 1;
        }
        // Another process may have taken the same ticket. A ticket that is now below a holder's
        // ticket is rejected as well, by the holder's shared lock.
        let own = ByteRange { start: ticket, length: 1 };
        if range_lock::try_lock(file, own, LockMode::Exclusive)? {
            return Ok(ticket);
        }
    }
}

/// Returns whether all lower tickets have ended.
fn has_turn(file: &File, ticket: u64) -> io::Result<bool> {
    match lower_than(ticket) {
        Some(lower) => range_lock::try_lock(file, lower, LockMode::Shared),
        None => Ok(true),
    }
}

/// Blocks until all lower tickets have ended.
fn wait_for_turn(file: &File, ticket: u64) -> io::Result<()> {
    let Some(lower) = lower_than(ticket) else { return Ok(()) };
    // Wait for the next lower ticket first: once it has had its turn, so have all lower ones. A
    // wait for the whole range would wake every waiter at the end of every turn.
    let next_lower = ByteRange { start: ticket - 1, length: 1 };
    range_lock::lock(file, next_lower, LockMode::Shared)?;
    // It may have died while it was waiting itself.
    range_lock::lock(file, lower, LockMode::Shared)
}

fn lower_than(ticket: u64) -> Option<ByteRange> {
    (ticket > FIRST).then(|| ByteRange { start: FIRST, length: ticket - FIRST })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// The environment variable that passes the queue to a child process of a test.
    const QUEUE: &str = "CREEL_TEST_QUEUE";
    const MYSELF: &str =
        "sqlite::queue::tests::a_killed_waiter_and_a_killed_holder_let_the_next_one_in";

    fn queue_in(home: &Path) -> WriteQueue {
        WriteQueue::open(&home.join("queue.lock")).unwrap()
    }

    /// Waits until a writer has this ticket.
    async fn wait_for_ticket(queue: &WriteQueue, ticket: u64) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while range_lock::end_of_any_lock_from(&queue.file, ticket).unwrap().is_none() {
            assert!(tokio::time::Instant::now() < deadline, "ticket {ticket} is never taken");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    #[tokio::test]
    async fn turns_are_granted_in_ticket_sequence() {
        let home = tempfile::tempdir().unwrap();
        let watcher = queue_in(home.path());
        let holder = queue_in(home.path()).turn().await.unwrap();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..40 {
            let (queue, order) = (queue_in(home.path()), Arc::clone(&order));
            waiting.push(task::background(async move {
                let _turn = queue.turn().await.unwrap();
                order.lock().unwrap().push(number);
            }));
            wait_for_ticket(&watcher, FIRST + number + 1).await;
        }
        assert_eq!(*order.lock().unwrap(), [0_u64; 0], "a writer did not wait");
        drop(holder);
        futures::future::join_all(waiting).await;
        assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_two_have_the_turn_at_once() {
        let home = tempfile::tempdir().unwrap();
        let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let writers = (0..16).map(|_| {
            let (queue, inside) = (queue_in(home.path()), Arc::clone(&inside));
            task::finish(async move {
                for _ in 0..100 {
                    let _turn = queue.turn().await.unwrap();
                    let before = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(before, 0, "two have the turn");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                }
            })
        });
        futures::future::join_all(writers).await;
        let last = range_lock::end_of_any_lock_from(&queue_in(home.path()).file, 0).unwrap();
        assert_eq!(last, None, "a lock was left behind");
    }

    /// Starts a process that enters the queue and keeps its turn forever.
    fn queueing_process(home: &Path) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", MYSELF])
            .env(QUEUE, home)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }

    #[tokio::test]
    async fn a_killed_waiter_and_a_killed_holder_let_the_next_one_in() {
        if let Some(home) = std::env::var_os(QUEUE) {
            let _turn = queue_in(home.as_ref()).turn().await.unwrap();
            std::future::pending::<()>().await;
        }
        let home = tempfile::tempdir().unwrap();
        let watcher = queue_in(home.path());
        let mut holder = queueing_process(home.path());
        wait_for_ticket(&watcher, FIRST).await;
        let mut waiter = queueing_process(home.path());
        wait_for_ticket(&watcher, FIRST + 1).await;
        let queue = queue_in(home.path());
        let turn = queue.turn();
        tokio::pin!(turn);
        assert!(futures::poll!(&mut turn).is_pending());
        wait_for_ticket(&watcher, FIRST + 2).await;

        waiter.kill().unwrap();
        waiter.wait().unwrap();
        let early = tokio::time::timeout(Duration::from_millis(200), &mut turn).await;
        assert!(early.is_err(), "the holder still has the turn");
        holder.kill().unwrap();
        holder.wait().unwrap();
        tokio::time::timeout(Duration::from_secs(20), turn).await.unwrap().unwrap();
    }
}
