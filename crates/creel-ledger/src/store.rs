//! The store: domain operations, independent of the database.

use std::fmt;

use async_trait::async_trait;
use creel_model::id::{LedgerId, ResourceId, RunId};
use creel_model::owner::Owner;
use creel_model::provider::{Kind, ProviderName};
use creel_model::run::RunState;

use crate::Result;
use crate::event::{Event, StoredEvent};
use crate::owner::OwnerRecord;
use crate::record::{Intent, Record, RecordFilter, Try};
use crate::run::{NewCommand, NewRun, PlacedCommand, RunFilter, RunRecord, WorkflowRecord};
use crate::unfinished::{Noted, UnfinishedDelete};

/// Stores records. Every write is one durable transaction.
///
/// After a crash, a write is there in whole or not at all. Once the call has returned, it is there.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns the id of this ledger.
    fn id(&self) -> LedgerId;

    /// Records the intent to create a resource.
    ///
    /// # Errors
    ///
    /// Fails when the intent could not be made durable. Nothing may be created then.
    async fn record_intent(&self, intent: &Intent) -> Result<Record>;

    /// Records a resource that exists or is already being created.
    ///
    /// It exists whether it can be recorded or not, so this may use the space reserved for a full
    /// disk. Otherwise it works like [`Store::record_intent`].
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn record_existing(&self, intent: &Intent) -> Result<Record>;

    /// Appends all events or none, and returns the records after them.
    ///
    /// # Errors
    ///
    /// Fails when an event is not legal or could not be made durable.
    async fn append(&self, events: &[(ResourceId, Event)]) -> Result<Vec<Record>>;

    /// Transfers open records from one owner to another atomically, and returns those transferred.
    ///
    /// A record must still belong to the old owner, so only one of several concurrent heirs gets
    /// it.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn take_over(
        &self,
        resources: &[ResourceId],
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Vec<Record>>;

    /// Renews the leases of all open records of an owner.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn renew_leases(&self, owner: &Owner) -> Result<u64>;

    /// Appends attempts to the audit.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn append_tries(&self, tries: &[Try]) -> Result<()>;

    /// Returns one record.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn record(&self, id: ResourceId) -> Result<Option<Record>>;

    /// Returns the matching records, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn records(&self, filter: &RecordFilter) -> Result<Vec<Record>>;

    /// Returns the events of one resource, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn history(&self, id: ResourceId) -> Result<Vec<StoredEvent>>;

    /// Returns the newest attempts, newest first, optionally of one resource.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn tries(&self, resource: Option<ResourceId>, limit: u32) -> Result<Vec<Try>>;

    /// Returns the newest attempts to release an object, newest first.
    ///
    /// `object` is the object's id or at least twelve characters of it, its name, or the resource.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn releases_of(&self, object: &str, limit: u32) -> Result<Vec<Try>>;

    /// Checks the whole store and returns one sentence for each problem.
    ///
    /// It checks the integrity of the file, and that replaying every log gives the stored state.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn check(&self) -> Result<Vec<String>>;

    /// Records a requested run with the user's input.
    ///
    /// # Errors
    ///
    /// Fails when the run could not be made durable. It must not start then.
    async fn create_run(&self, run: &NewRun) -> Result<RunRecord>;

    /// Returns one run.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn run(&self, id: RunId) -> Result<Option<RunRecord>>;

    /// Returns the matching runs, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRecord>>;

    /// Saves the state that results from a run's events.
    ///
    /// A state older than the saved one changes nothing.
    ///
    /// # Errors
    ///
    /// Fails when another process drives the run now, or when the state could not be made durable.
    async fn save_run(&self, id: RunId, owner: &Owner, state: &RunState) -> Result<()>;

    /// Transfers a run from one owner to another atomically, and returns it.
    ///
    /// Returns `None` when the run no longer belongs to the old owner. Only one of several
    /// concurrent heirs gets it.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn claim_run(
        &self,
        id: RunId,
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Option<RunRecord>>;

    /// Returns the user's input for a run. Only the process that drives the run may use it.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn workflow_of(&self, run: RunId) -> Result<Option<WorkflowRecord>>;

    /// Places a command for the process that drives a run. Returns whether its key is new.
    ///
    /// A command whose key is already known is not placed again.
    ///
    /// # Errors
    ///
    /// Fails when there is no such run, or when it could not be made durable.
    async fn place_command(&self, command: &NewCommand) -> Result<bool>;

    /// Returns the open commands for a run, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn open_commands(&self, run: RunId) -> Result<Vec<PlacedCommand>>;

    /// Marks a command as done. Returns whether it was open until now.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn complete_command(&self, key: &str) -> Result<bool>;

    /// Records a delete that was accepted but did not finish.
    ///
    /// If it is already on record, the reason is replaced and the first date stays.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn note_unfinished(&self, delete: &UnfinishedDelete) -> Result<Noted>;

    /// Returns the deletes that were accepted but did not finish, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn unfinished_deletes(&self) -> Result<Vec<UnfinishedDelete>>;

    /// Removes an unfinished delete, because the absence of its object is verified.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn forget_unfinished(
        &self,
        provider: ProviderName,
        kind: Kind,
        object: &str,
    ) -> Result<()>;
}
