//! The audit of every attempt, written in batches alongside the work.
//!
//! An attempt is on disk at the latest when the reaper returns. A crash before that may lose the
//! newest attempts, but never a state: the ledger itself writes states before and after each
//! operation. On a full disk both wait here until the end of the plan, when there may be space.
//! Whatever cannot be written then is counted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use creel_ledger::WhenFull;
use creel_ledger::{Event, Ledger, LedgerError, Try};
use creel_model::id::ResourceId;
use creel_model::provider::Providers;
use creel_model::task;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::plan::PlanItem;

use super::authorization::Authorization;
use super::dependents;
use super::item::planned;

/// Attempts per transaction; few enough that little is left to write at the end.
const BATCH: usize = 64;
/// How long an attempt waits to be batched. Each transaction waits for the disk, which the engine
/// needs at the same time.
const GATHER: Duration = Duration::from_millis(500);

/// Maximum number of attempts that wait for space on a full disk.
const MOST_WAITING: usize = 4096;

/// Receives attempts and writes them in the background.
#[derive(Debug)]
pub(super) struct Audit {
    ledger: Option<Ledger>,
    queue: Mutex<Option<mpsc::UnboundedSender<Try>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// The number of attempts that could not be written.
    lost: Arc<AtomicUsize>,
    /// Changes of records for which there was no space.
    unwritten: Mutex<Vec<(ResourceId, Vec<Event>)>>,
}

impl Audit {
    pub(super) fn start(ledger: Option<Ledger>) -> Self {
        let Some(ledger) = ledger else {
            return Self {
                queue: Mutex::new(None),
                writer: Mutex::new(None),
                ledger: None,
                lost: Arc::default(),
                unwritten: Mutex::new(Vec::new()),
            };
        };
        let (queue, waiting) = mpsc::unbounded_channel();
        let lost: Arc<AtomicUsize> = Arc::default();
        let counter = Arc::clone(&lost);
        let writer = task::background(write_all(ledger.clone(), waiting, counter));
        Self {
            queue: Mutex::new(Some(queue)),
            writer: Mutex::new(Some(writer)),
            ledger: Some(ledger),
            lost,
            unwritten: Mutex::new(Vec::new()),
        }
    }

    /// Keeps a change of a record for which there was no space, to be written at the end.
    pub(super) fn defer(&self, resource: ResourceId, change: Event) {
        let mut unwritten = self.unwritten.lock().expect("no holder of this lock panics");
        match unwritten.iter_mut().find(|(deferred, _)| *deferred == resource) {
            Some((_, changes)) => changes.push(change),
            None => unwritten.push((resource, vec![change])),
        }
    }

    /// Returns whether an earlier change of a record still has to be written.
    pub(super) fn has_deferred(&self, resource: ResourceId) -> bool {
        let unwritten = self.unwritten.lock().expect("no holder of this lock panics");
        unwritten.iter().any(|(deferred, _)| *deferred == resource)
    }

    /// Records the untracked objects that may be released and why, before any release.
    ///
    /// A crash therefore leaves no release without a row. A tracked object has the reason in its
    /// own events, which are written before each release. Objects that are removed together with it
    /// have no events, so they get rows too.
    pub(super) async fn announce(&self, items: &[PlanItem], providers: &Providers) {
        let mut rows = Vec::new();
        for item in items {
            let evidence = Authorization::by_rule(item).evidence;
            if let Ok(provider) = providers.get(item.seen.provider) {
                rows.extend(dependents::rows(provider.as_ref(), item, &item.seen, &evidence));
            }
            if item.resource.is_none() {
                rows.push(planned(item, &evidence));
            }
        }
        self.write_ahead(rows).await;
    }

    /// Writes rows before the releases that they describe.
    pub(super) async fn write_ahead(&self, mut rows: Vec<Try>) {
        let Some(ledger) = self.ledger.as_ref().filter(|_| !rows.is_empty()) else { return };
        match ledger.append_tries(&rows).await {
            Ok(()) => {}
            // They are written with the attempts that follow, when there may be space.
            Err(error) if error.is_disk_full() => rows.into_iter().for_each(|row| self.note(row)),
            Err(error) => lose(ledger, &mut rows, &self.lost, &error),
        }
    }

    /// Queues an attempt. The queue is bounded by the plan: an item has few attempts.
    pub(super) fn note(&self, one: Try) {
        if let Some(queue) = &*self.queue.lock().expect("no holder of this lock panics") {
            // The writer ends only after this sender, so a send cannot fail before that.
            let _ = queue.send(one);
        }
    }

    /// Waits until everything is on disk. Returns how many entries could not be written.
    pub(super) async fn finish(&self) -> usize {
        self.queue.lock().expect("no holder of this lock panics").take();
        let writer = self.writer.lock().expect("no holder of this lock panics").take();
        let changes = self.write_deferred().await;
        if let Some(writer) = writer {
            // The panic hook has already reported a panic of the writer.
            let _ = writer.await;
        }
        changes + self.lost.load(Ordering::Relaxed)
    }

    /// Writes the changes for which there was no space. Returns how many are still unwritten.
    async fn write_deferred(&self) -> usize {
        let deferred =
            std::mem::take(&mut *self.unwritten.lock().expect("no holder of this lock panics"));
        let Some(ledger) = &self.ledger else { return 0 };
        let mut left = 0;
        for (resource, changes) in deferred {
            let events: Vec<_> = changes.into_iter().map(|change| (resource, change)).collect();
            match ledger.append(&events).await {
                // Illegal: another process has closed the record in the meantime.
                Ok(_) | Err(LedgerError::Illegal { .. }) => {}
                Err(error) => {
                    warn!(%resource, %error, "audit incomplete: its release is not on record");
                    left += events.len();
                }
            }
        }
        left
    }
}

/// Writes attempts until the queue is closed, and counts those that could not be written.
async fn write_all(
    ledger: Ledger,
    mut waiting: mpsc::UnboundedReceiver<Try>,
    lost: Arc<AtomicUsize>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        gather(&mut batch, &mut waiting).await;
        match ledger.append_tries(&batch).await {
            Ok(()) => batch.clear(),
            // They are kept for the next batch, when there may be space.
            Err(error) if error.is_disk_full() && batch.len() < MOST_WAITING => {
                warn!(%error, waiting = batch.len(), "the audit waits for room");
            }
            Err(error) => lose(&ledger, &mut batch, &lost, &error),
        }
    }
    if !batch.is_empty()
        && let Err(error) = ledger.append_tries(&batch).await
    {
        lose(&ledger, &mut batch, &lost, &error);
    }
}

fn lose(ledger: &Ledger, batch: &mut Vec<Try>, lost: &AtomicUsize, error: &LedgerError) {
    warn!(%error, lost = batch.len(), "audit incomplete: tries are not on record");
    lost.fetch_add(batch.len(), Ordering::Relaxed);
    ledger.defer_tries(std::mem::take(batch));
}

/// Fills a batch until it is full, has waited long enough, or the queue is closed.
async fn gather(batch: &mut Vec<Try>, waiting: &mut mpsc::UnboundedReceiver<Try>) {
    let end = Instant::now() + GATHER;
    while batch.len() < BATCH {
        let more = waiting.recv_many(batch, BATCH - batch.len());
        match timeout_at(end, more).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
}
