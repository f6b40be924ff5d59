//! The journal: how the owner of a run records its events.

use std::sync::Arc;
use std::time::Duration;

use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::id::RunId;
use creel_model::owner::Owner;
use creel_model::run::{Logged, RunEvent, RunState};
use creel_model::task;
use tokio::sync::{Mutex, OwnedMutexGuard, broadcast};
use tracing::warn;

use crate::{Ledger, LedgerError, NewRun, OwnerRecord, RunRecord};

use super::writer::{PendingEvent, Writer};
use super::{RecordsError, Result, catch_up, note_lost_events};

/// How long agent output is buffered before it is written.
const DELAY: Duration = Duration::from_millis(100);

/// The pause before a failed write of agent output is retried.
const RETRY: Duration = Duration::from_secs(2);

/// How many events a subscriber may lag behind before it has to read the log instead.
const SUBSCRIBER_CAPACITY: usize = 1024;

/// Records the events of a run. Each run has one journal, which belongs to its owner.
#[derive(Debug)]
pub struct Journal {
    /// The run.
    run: RunId,
    /// The state after the newest call.
    state: RunState,
    /// Shared with the task that writes agent output after its delay.
    writer: Arc<Mutex<Writer>>,
    /// Creates receivers.
    subscribers: broadcast::Sender<Arc<Logged>>,
}

impl Journal {
    /// Records a new run: its row, then its first event.
    ///
    /// # Errors
    ///
    /// Fails when that could not be made durable. Then no work of the run may start.
    pub async fn begin(ledger: &Ledger, run: &NewRun) -> Result<Self> {
        // Opened first, so that an unusable log leaves no row without events.
        ledger.event_log().await?;
        let record = ledger.create_run(run).await?;
        crashpoint::reach(Crashpoint::RunCreatedNotLogged);
        let mut journal = Self::open(ledger, record, &run.owner.owner).await?;
        journal.record(RunEvent::Queued).await?;
        Ok(journal)
    }

    /// Continues a run that this owner already owns, and brings row and log into agreement.
    ///
    /// # Errors
    ///
    /// Fails when there is no such run, when another owner has it, or when ledger or log cannot be
    /// used.
    pub async fn resume(ledger: &Ledger, run: RunId, me: &Owner) -> Result<Self> {
        let record = ledger.run(run).await?.ok_or(LedgerError::UnknownRun { run })?;
        if record.owner.owner != *me {
            let owner = record.owner.owner.to_string();
            return Err(LedgerError::NotOwner { run, owner }.into());
        }
        Self::open(ledger, record, me).await
    }

    /// Takes over a run from another owner and continues it.
    ///
    /// Returns `None` if another process was quicker.
    ///
    /// # Errors
    ///
    /// Fails when ledger or log cannot be used.
    pub async fn claim(
        ledger: &Ledger,
        run: RunId,
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Option<Self>> {
        let Some(record) = ledger.claim_run(run, from, heir).await? else { return Ok(None) };
        crashpoint::reach(Crashpoint::RunClaimedNotWritten);
        note_lost_events(ledger, &record).await?;
        Self::open(ledger, record, &heir.owner).await.map(Some)
    }

    async fn open(ledger: &Ledger, record: RunRecord, me: &Owner) -> Result<Self> {
        let (run, mut state) = (record.id, record.state);
        let log = ledger.event_log().await?.clone();
        let (saved, logged) = (state.sequence, log.newest(run).await?);
        if logged < saved {
            // Its driver is alive. Only a new owner may continue without the events.
            return Err(RecordsError::Incomplete { run, logged, held: saved });
        }
        catch_up(&log, run, &mut state).await?;
        let (subscribers, _) = broadcast::channel(SUBSCRIBER_CAPACITY);
        let writer = Writer {
            run,
            owner: me.clone(),
            ledger: ledger.clone(),
            log,
            safe_spool: state.spooled,
            state: state.clone(),
            pending: Vec::new(),
            pending_bytes: 0,
            dropped: None,
            is_row_behind: false,
            subscribers: subscribers.clone(),
        };
        if state.sequence > saved {
            writer.save_row().await?;
        }
        Ok(Self { run, state, writer: Arc::new(Mutex::new(writer)), subscribers })
    }

    /// Returns the run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Returns the state of the run, including events that are not written yet.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Returns a receiver of the events that are on disk. A receiver that lags behind reads the
    /// log.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Logged>> {
        self.subscribers.subscribe()
    }

    /// Records an event.
    ///
    /// The event is on disk when this returns, unless it is agent output. Agent output is written
    /// after a short delay, or with the next event.
    ///
    /// # Errors
    ///
    /// Fails when the event is illegal in the current state, or could not be made durable. Then it
    /// is not recorded, and [`Journal::state`] is unchanged. The exception is
    /// [`RecordsError::RowBehind`]: then the event is recorded.
    pub async fn record(&mut self, event: RunEvent) -> Result<()> {
        self.enter(PendingEvent { event, spooled: None }).await
    }

    /// Records an event from the bridge's spool by its number. A known number is ignored.
    ///
    /// # Errors
    ///
    /// See [`Journal::record`].
    pub async fn record_spooled(&mut self, event: RunEvent, number: u64) -> Result<()> {
        self.enter(PendingEvent { event, spooled: Some(number) }).await
    }

    /// Records several events, all or none, in one write.
    ///
    /// # Errors
    ///
    /// See [`Journal::record`].
    pub async fn record_all(&mut self, events: Vec<RunEvent>) -> Result<()> {
        let entries =
            events.into_iter().map(|event| PendingEvent { event, spooled: None }).collect();
        self.with_writer(|mut writer| async move {
            let written = writer.write(entries).await;
            (writer, written)
        })
        .await
    }

    /// Records an event from the bridge's spool by its number, preceded by events that had to wait
    /// for it.
    ///
    /// All or none are written, in one write.
    ///
    /// # Errors
    ///
    /// See [`Journal::record`].
    pub async fn record_with(
        &mut self,
        before: Vec<RunEvent>,
        event: RunEvent,
        number: u64,
    ) -> Result<()> {
        let before = before.into_iter().map(|event| PendingEvent { event, spooled: None });
        let last = PendingEvent { event, spooled: Some(number) };
        let entries = before.chain([last]).collect();
        self.with_writer(|mut writer| async move {
            let written = writer.write(entries).await;
            (writer, written)
        })
        .await
    }

    /// Writes the buffered events.
    ///
    /// # Errors
    ///
    /// Fails when they could not be made durable. Then they stay in the buffer.
    pub async fn flush(&mut self) -> Result<()> {
        self.with_writer(|mut writer| async move {
            let written = writer.write_pending().await;
            (writer, written)
        })
        .await
    }

    /// Returns the newest spool event that is on disk. The bridge may forget events up to this one.
    pub async fn safe_spool(&self) -> u64 {
        self.writer.lock().await.safe_spool
    }

    async fn enter(&mut self, entry: PendingEvent) -> Result<()> {
        if !matches!(entry.event, RunEvent::Text { .. }) {
            return self
                .with_writer(|mut writer| async move {
                    let written = writer.write(vec![entry]).await;
                    (writer, written)
                })
                .await;
        }
        let first = self
            .with_writer(|mut writer| async move {
                let written = writer.buffer_output(entry).await;
                (writer, written)
            })
            .await?;
        if first {
            self.write_after_delay();
        }
        Ok(())
    }

    /// Runs one operation under the lock, in its own task.
    ///
    /// Cancelling the caller does not interrupt the operation, and the next call sees its result.
    async fn with_writer<T, F>(
        &mut self,
        work: impl FnOnce(OwnedMutexGuard<Writer>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = (OwnedMutexGuard<Writer>, Result<T>)> + Send + 'static,
    {
        let guard = Arc::clone(&self.writer).lock_owned().await;
        let (writer, done) = task::finish(work(guard)).await;
        self.state.clone_from(&writer.state);
        done
    }

    fn write_after_delay(&self) {
        task::background(write_output(self.run, Arc::clone(&self.writer)));
    }
}

/// Writes the buffered agent output after its delay.
///
/// Retries after a failure for as long as the journal exists.
async fn write_output(run: RunId, writer: Arc<Mutex<Writer>>) {
    tokio::time::sleep(DELAY).await;
    let mut written = writer.lock().await.write_pending().await;
    let journal = Arc::downgrade(&writer);
    drop(writer);
    while let Err(error) = written {
        // The caller that records the next event gets the same error.
        warn!(run_id = %run, %error, "words of the agent could not be written yet");
        tokio::time::sleep(RETRY).await;
        let Some(writer) = journal.upgrade() else { return };
        written = writer.lock().await.write_pending().await;
    }
}
