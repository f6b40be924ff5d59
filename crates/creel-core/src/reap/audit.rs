//! The audit of every try, written in batches beside the work.
//!
//! A try is on disk at the latest when the reaper returns. A crash before that
//! may lose the newest tries, never a state: those are written by the ledger
//! itself before and after each act.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::ledger::{Ledger, Try};
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

/// Takes tries and writes them in the background.
#[derive(Debug)]
pub(super) struct Audit {
    ledger: Option<Ledger>,
    queue: Mutex<Option<mpsc::UnboundedSender<Try>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    pub(super) fn start(ledger: Option<Ledger>) -> Self {
        let Some(ledger) = ledger else {
            return Self { ledger: None, queue: Mutex::new(None), writer: Mutex::new(None) };
        };
        let (queue, waiting) = mpsc::unbounded_channel();
        let writer = task::background(write_all(ledger.clone(), waiting));
        Self {
            ledger: Some(ledger),
            queue: Mutex::new(Some(queue)),
            writer: Mutex::new(Some(writer)),
        }
    }

    /// Writes what may be released and why, before anything is: a crash leaves no release without
    /// a row. What is tracked has its reason in its own events, written before each release.
    pub(super) async fn announce(&self, items: &[PlanItem]) {
        let Some(ledger) = &self.ledger else { return };
        let untracked = items.iter().filter(|item| item.resource.is_none());
        let rows: Vec<Try> = untracked
            .map(|item| Try {
                evidence: Some(Warrant::by_rule(item).evidence),
                ..try_of(item, RELEASE, 0, "planned", "")
            })
            .collect();
        if !rows.is_empty()
            && let Err(error) = ledger.append_tries(&rows).await
        {
            warn!(%error, lost = rows.len(), "the audit could not be written");
        }
    }

    /// Takes a try. The queue is bounded by the plan: an item has few tries.
    pub(super) fn note(&self, one: Try) {
        if let Some(queue) = &*self.queue.lock().expect("no holder of this lock panics") {
            // The writer ends only after this sender: a failed send cannot happen before.
            let _ = queue.send(one);
        }
    }

    /// Waits until every try is on disk.
    pub(super) async fn finish(&self) {
        self.queue.lock().expect("no holder of this lock panics").take();
        let writer = self.writer.lock().expect("no holder of this lock panics").take();
        if let Some(writer) = writer {
            // A panic of the writer has been reported by the panic hook.
            let _ = writer.await;
        }
    }
}

async fn write_all(ledger: Ledger, mut waiting: mpsc::UnboundedReceiver<Try>) {
    let mut batch = Vec::with_capacity(BATCH);
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        gather(&mut batch, &mut waiting).await;
        if let Err(error) = ledger.append_tries(&batch).await {
            warn!(%error, lost = batch.len(), "the audit could not be written");
        }
        batch.clear();
    }
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
