//! The journal: how the owner of a run writes down what happens to it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, broadcast};
use tracing::warn;

use crate::crashpoint::{self, Crashpoint};
use crate::id::RunId;
use crate::ledger::{Ledger, LedgerError, NewRun, OwnerRecord, RunRecord};
use crate::owner::Owner;
use crate::run::{Logged, RunEvent, RunState};
use crate::task;

use super::writer::{Entry, Writer};
use super::{RecordsError, Result, catch_up, note_lost_events};

/// How long words of the agent wait for others before they are written.
const DELAY: Duration = Duration::from_millis(100);

/// How long words that could not be written wait for another go.
const RETRY: Duration = Duration::from_secs(2);

/// How many events somebody who listens may be behind; then the log has them.
const LISTENER_ROOM: usize = 1024;

/// Writes down what happens to a run. There is one for each run, and its owner has it.
#[derive(Debug)]
pub struct Journal {
    /// The run.
    run: RunId,
    /// What is known after the newest call.
    state: RunState,
    /// Shared with the task that writes words after their delay.
    writer: Arc<Mutex<Writer>>,
    /// Gives out receivers.
    told: broadcast::Sender<Arc<Logged>>,
}

impl Journal {
    /// Records that a run was asked for: its row, then its first event.
    ///
    /// # Errors
    ///
    /// Fails when that could not be made durable: then nothing of the run may happen.
    pub async fn begin(ledger: &Ledger, run: &NewRun) -> Result<Self> {
        // Opened first, so that a log that cannot be used leaves no row without events.
        ledger.event_log().await?;
        let record = ledger.create_run(run).await?;
        crashpoint::reach(Crashpoint::RunCreatedNotLogged);
        let mut journal = Self::open(ledger, record, &run.owner.owner).await?;
        journal.record(RunEvent::Queued).await?;
        Ok(journal)
    }

    /// Goes on with a run that is this owner's already, bringing row and log together.
    ///
    /// # Errors
    ///
    /// Fails when there is no such run, when it is another's, or when ledger or log cannot be
    /// used.
    pub async fn resume(ledger: &Ledger, run: RunId, me: &Owner) -> Result<Self> {
        let record = ledger.run(run).await?.ok_or(LedgerError::UnknownRun { run })?;
        if record.owner.owner != *me {
            let owner = record.owner.owner.to_string();
            return Err(LedgerError::NotOwner { run, owner }.into());
        }
        Self::open(ledger, record, me).await
    }

    /// Takes a run over from another owner and goes on with it; returns nothing where somebody
    /// else was quicker.
    ///
    /// # Errors
    ///
    /// Fails when ledger or log cannot be used.
    pub async fn take_up(
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
            // Its driver lives; only an heir may go on without the events.
            return Err(RecordsError::Incomplete { run, logged, held: saved });
        }
        catch_up(&log, run, &mut state).await?;
        let (told, _) = broadcast::channel(LISTENER_ROOM);
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
            told: told.clone(),
        };
        if state.sequence > saved {
            writer.save_row().await?;
        }
        Ok(Self { run, state, writer: Arc::new(Mutex::new(writer)), told })
    }

    /// Returns the run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Returns what its events have made of it, the words that wait to be written included.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Returns a way to hear of events once they are on disk. Whoever falls behind reads the log.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Logged>> {
        self.told.subscribe()
    }

    /// Records what happened. All but the words of the agent are on disk when this returns;
    /// those follow within a moment, or with the next event.
    ///
    /// # Errors
    ///
    /// Fails when the event cannot follow, or could not be made durable: then it did not
    /// happen, and [`Journal::state`] is as before. The exception is
    /// [`RecordsError::RowBehind`]: then it did.
    pub async fn record(&mut self, event: RunEvent) -> Result<()> {
        self.enter(Entry { event, spooled: None }).await
    }

    /// Records what the bridge had in its spool under this number; one that is known is dropped.
    ///
    /// # Errors
    ///
    /// See [`Journal::record`].
    pub async fn record_spooled(&mut self, event: RunEvent, number: u64) -> Result<()> {
        self.enter(Entry { event, spooled: Some(number) }).await
    }

    /// Records several events, all or none, in one write.
    ///
    /// # Errors
    ///
    /// See [`Journal::record`].
    pub async fn record_all(&mut self, events: Vec<RunEvent>) -> Result<()> {
        let entries = events.into_iter().map(|event| Entry { event, spooled: None }).collect();
        self.with_writer(|mut writer| async move {
            let taken = writer.take(entries).await;
            (writer, taken)
        })
        .await
    }

    /// Records what the bridge had in its spool under this number, and before it what had to wait
    /// for it: all or none, in one write.
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
        let before = before.into_iter().map(|event| Entry { event, spooled: None });
        let last = Entry { event, spooled: Some(number) };
        let entries = before.chain([last]).collect();
        self.with_writer(|mut writer| async move {
            let taken = writer.take(entries).await;
            (writer, taken)
        })
        .await
    }

    /// Writes what waits.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable; it goes on waiting then.
    pub async fn flush(&mut self) -> Result<()> {
        self.with_writer(|mut writer| async move {
            let written = writer.write_pending().await;
            (writer, written)
        })
        .await
    }

    /// Returns the newest event of the spool that is on disk: up to here the bridge may forget.
    pub async fn safe_spool(&self) -> u64 {
        self.writer.lock().await.safe_spool
    }

    async fn enter(&mut self, entry: Entry) -> Result<()> {
        if !matches!(entry.event, RunEvent::Text { .. }) {
            return self
                .with_writer(|mut writer| async move {
                    let taken = writer.take(vec![entry]).await;
                    (writer, taken)
                })
                .await;
        }
        let first = self
            .with_writer(|mut writer| async move {
                let taken = writer.take_words(entry).await;
                (writer, taken)
            })
            .await?;
        if first {
            self.write_after_delay();
        }
        Ok(())
    }

    /// Does one thing under the lock, in a task of its own: a caller that is cancelled cuts
    /// nothing, and the next call finds what became of it.
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
        task::background(write_words(self.run, Arc::clone(&self.writer)));
    }
}

/// Writes the words that wait, after their delay; again and again where that fails, as long as
/// there is a journal.
async fn write_words(run: RunId, writer: Arc<Mutex<Writer>>) {
    tokio::time::sleep(DELAY).await;
    let mut written = writer.lock().await.write_pending().await;
    let journal = Arc::downgrade(&writer);
    drop(writer);
    while let Err(error) = written {
        // Whoever records the next event is told the same.
        warn!(run_id = %run, %error, "words of the agent could not be written yet");
        tokio::time::sleep(RETRY).await;
        let Some(writer) = journal.upgrade() else { return };
        written = writer.lock().await.write_pending().await;
    }
}
