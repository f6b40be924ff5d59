//! The audit of every try, written in batches beside the work.
//!
//! A try is on disk at the latest when the reaper returns. A crash before that
//! may lose the newest tries, never a state: those are written by the ledger
//! itself before and after each act.

use std::sync::Mutex;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::ledger::{Ledger, Try};
use crate::task;

/// How many tries may wait to be written; more than a batch, so that work never waits.
const QUEUE: usize = 4096;
/// How many tries one transaction takes.
const BATCH: usize = 256;

/// Takes tries and writes them in the background.
#[derive(Debug)]
pub(super) struct Audit {
    queue: Mutex<Option<mpsc::Sender<Try>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    pub(super) fn start(ledger: Option<Ledger>) -> Self {
        let Some(ledger) = ledger else {
            return Self { queue: Mutex::new(None), writer: Mutex::new(None) };
        };
        let (queue, waiting) = mpsc::channel(QUEUE);
        let writer = task::background(write_all(ledger, waiting));
        Self { queue: Mutex::new(Some(queue)), writer: Mutex::new(Some(writer)) }
    }

    pub(super) async fn note(&self, one: Try) {
        let queue = self.queue.lock().expect("no holder of this lock panics").clone();
        if let Some(queue) = queue {
            // The writer ends only after this sender: a failed send cannot happen before.
            let _ = queue.send(one).await;
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

async fn write_all(ledger: Ledger, mut waiting: mpsc::Receiver<Try>) {
    let mut batch = Vec::with_capacity(BATCH);
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        if let Err(error) = ledger.append_tries(&batch).await {
            warn!(%error, lost = batch.len(), "the audit could not be written");
        }
        batch.clear();
    }
}
