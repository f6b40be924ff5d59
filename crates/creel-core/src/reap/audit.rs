//! The audit of every try, written in batches beside the work.
//!
//! A try is on disk at the latest when the reaper returns. A crash before that
//! may lose the newest tries, never a state: those are written by the ledger
//! itself before and after each act. On a full disk both wait here until the
//! end of the plan, by when there may be room; what cannot be written then is
//! counted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::id::ResourceId;
use crate::ledger::write::WhenFull;
use crate::ledger::{Event, Ledger, LedgerError, Try};
use crate::plan::PlanItem;
use crate::task;

use super::item::try_of;
use super::send::RELEASE;
use super::warrant::Warrant;

/// How many tries one transaction takes; few enough that little is left to write at the end.
const BATCH: usize = 64;
/// How long a try waits for others: each transaction waits for the disk, which the engine
/// needs at the same time.
const GATHER: Duration = Duration::from_millis(500);

/// How many tries wait for room on a full disk.
const MOST_WAITING: usize = 4096;

/// Takes tries and writes them in the background.
#[derive(Debug)]
pub(super) struct Audit {
    ledger: Option<Ledger>,
    queue: Mutex<Option<mpsc::UnboundedSender<Try>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Tries that could not be written.
    lost: Arc<AtomicUsize>,
    /// Changes of records that there was no room for.
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

    /// Keeps a change of a record that there was no room for, to be written at the end.
    pub(super) fn owe(&self, resource: ResourceId, change: Event) {
        let mut unwritten = self.unwritten.lock().expect("no holder of this lock panics");
        match unwritten.iter_mut().find(|(owed, _)| *owed == resource) {
            Some((_, changes)) => changes.push(change),
            None => unwritten.push((resource, vec![change])),
        }
    }

    /// Returns whether an earlier change of a record waits to be written.
    pub(super) fn owes(&self, resource: ResourceId) -> bool {
        let unwritten = self.unwritten.lock().expect("no holder of this lock panics");
        unwritten.iter().any(|(owed, _)| *owed == resource)
    }

    /// Writes what may be released and why, before anything is: a crash leaves no release without
    /// a row. What is tracked has its reason in its own events, written before each release.
    pub(super) async fn announce(&self, items: &[PlanItem]) {
        let Some(ledger) = &self.ledger else { return };
        let untracked = items.iter().filter(|item| item.resource.is_none());
        let mut rows: Vec<Try> = untracked
            .map(|item| Try {
                evidence: Some(Warrant::by_rule(item).evidence.into()),
                ..try_of(item, RELEASE, 0, "planned", "")
            })
            .collect();
        if rows.is_empty() {
            return;
        }
        match ledger.append_tries(&rows).await {
            Ok(()) => {}
            // They are written with the tries that follow: there may be room then.
            Err(error) if error.is_disk_full() => rows.into_iter().for_each(|row| self.note(row)),
            Err(error) => lose(&mut rows, &self.lost, &error),
        }
    }

    /// Takes a try. The queue is bounded by the plan: an item has few tries.
    pub(super) fn note(&self, one: Try) {
        if let Some(queue) = &*self.queue.lock().expect("no holder of this lock panics") {
            // The writer ends only after this sender: a failed send cannot happen before.
            let _ = queue.send(one);
        }
    }

    /// Waits until everything is on disk; returns how much could not be written.
    pub(super) async fn finish(&self) -> usize {
        self.queue.lock().expect("no holder of this lock panics").take();
        let writer = self.writer.lock().expect("no holder of this lock panics").take();
        let changes = self.write_owed().await;
        if let Some(writer) = writer {
            // A panic of the writer has been reported by the panic hook.
            let _ = writer.await;
        }
        changes + self.lost.load(Ordering::Relaxed)
    }

    /// Writes the changes that there was no room for; returns how many are still owed.
    async fn write_owed(&self) -> usize {
        let owed =
            std::mem::take(&mut *self.unwritten.lock().expect("no holder of this lock panics"));
        let Some(ledger) = &self.ledger else { return 0 };
        let mut left = 0;
        for (resource, changes) in owed {
            let events: Vec<_> = changes.into_iter().map(|change| (resource, change)).collect();
            match ledger.append(&events).await {
                // Illegal: somebody else has closed the record meanwhile.
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

/// Writes tries until no more come, and counts those that could not be written.
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
            // They are kept for the next round: there may be room then.
            Err(error) if error.is_disk_full() && batch.len() < MOST_WAITING => {
                warn!(%error, waiting = batch.len(), "the audit waits for room");
            }
            Err(error) => lose(&mut batch, &lost, &error),
        }
    }
    if !batch.is_empty()
        && let Err(error) = ledger.append_tries(&batch).await
    {
        lose(&mut batch, &lost, &error);
    }
}

fn lose(batch: &mut Vec<Try>, lost: &AtomicUsize, error: &LedgerError) {
    warn!(%error, lost = batch.len(), "audit incomplete: tries are not on record");
    lost.fetch_add(batch.len(), Ordering::Relaxed);
    batch.clear();
}

/// Fills a batch until it is full, has waited long enough, or nothing more will come.
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
