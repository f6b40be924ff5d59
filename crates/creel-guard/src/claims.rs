//! Claims: records on the ledger, owned by the guard, of what a guarded command creates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use creel_core::pipeline::Pipeline;
use creel_core::reap::ItemReport;
use creel_ledger::{
    Event, Intent, Ledger, LedgerError, OnOwnerDeath, OwnerRecord, Record, RecordFilter,
};
use creel_model::id::{ResourceId, RunId};
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{Identity, Kind, Marks, Provider, ProviderName, Providers};
use serde::Serialize;
use tracing::{info, warn};

/// The ownership and lifetime of claimed resources.
#[derive(Debug, Clone)]
pub struct ClaimDefaults {
    /// The process that owns them.
    pub owner: OwnerRecord,
    /// The run they belong to: one per guard.
    pub run: RunId,
    /// How long they may live without a renewal.
    pub lease: Duration,
    /// What happens to them when the guard dies.
    pub on_owner_death: OnOwnerDeath,
}

/// An event about a resource that a command uses.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct GuardEvent {
    /// `created`, `refused` or `released`.
    pub event: &'static str,
    /// The provider of the resource.
    pub provider: ProviderName,
    /// The kind of the resource.
    pub kind: Kind,
    /// The provider's id. A refused resource has none.
    pub id: Option<String>,
    /// The name, as far as known.
    pub name: String,
    /// The reason, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Receives guard events.
pub trait GuardListener: Send + Sync {
    /// Called for every event.
    fn on_event(&self, event: GuardEvent);
}

/// Ignores all events.
impl GuardListener for () {
    fn on_event(&self, _: GuardEvent) {}
}

/// Records resources on the ledger. Cheap to clone.
#[derive(Clone)]
pub struct Claims {
    ledger: Ledger,
    defaults: ClaimDefaults,
    listener: Arc<dyn GuardListener>,
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("terms", &self.defaults).finish_non_exhaustive()
    }
}

/// A create that is about to be forwarded.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) resource: ResourceId,
    pub(super) kind: Kind,
    provider: ProviderName,
    name: String,
    /// The labels it must carry, if its kind supports labels.
    pub(super) labels: Labels,
}

impl Claims {
    /// Creates claims on behalf of a process.
    pub fn new(ledger: Ledger, defaults: ClaimDefaults, listener: Arc<dyn GuardListener>) -> Self {
        Self { ledger, defaults, listener }
    }

    /// Returns the run for which everything is claimed.
    pub fn run(&self) -> RunId {
        self.defaults.run
    }

    /// Returns the label that everything of this guard carries, if its kind supports labels.
    pub(super) fn run_label(&self) -> String {
        format!("{}={}", labels::RUN, self.defaults.run)
    }

    /// Records a create before it is forwarded. If this fails, it must not be forwarded.
    pub(super) async fn intend(
        &self,
        provider: ProviderName,
        kind: Kind,
        name: Option<String>,
    ) -> Result<Claim, LedgerError> {
        let (claim, intent) = self.prepare(provider, kind, name, None);
        self.ledger.record_intent(&intent).await?;
        Ok(claim)
    }

    /// Records something that exists already, or that is being created.
    pub(super) async fn claim_existing(
        &self,
        provider: ProviderName,
        kind: Kind,
        name: String,
    ) -> Result<Claim, LedgerError> {
        let (claim, intent) = self.prepare(provider, kind, Some(name), None);
        self.ledger.record_existing(&intent).await?;
        Ok(claim)
    }

    /// Records that an image reference is about to be made, with the image that it names now.
    pub(super) async fn intend_reference(
        &self,
        reference: &str,
        names: Option<&str>,
    ) -> Result<Claim, LedgerError> {
        let name = Some(reference.to_owned());
        let (claim, intent) = self.prepare(creel_docker::NAME, Kind::Image, name, names);
        self.ledger.record_intent(&intent).await?;
        Ok(claim)
    }

    fn prepare(
        &self,
        provider: ProviderName,
        kind: Kind,
        name: Option<String>,
        replaced: Option<&str>,
    ) -> (Claim, Intent) {
        let resource = ResourceId::new();
        let (ledger, run) = (self.ledger.id(), Some(&self.defaults.run));
        let mut labels = labels::of_resource(&resource, &ledger, &self.defaults.owner.owner, run);
        labels.extend(replaced.map(|image| (labels::REPLACED_IMAGE, image)));
        let name = name.unwrap_or_else(|| resource.object_name());
        let intent = Intent {
            id: resource,
            run: Some(self.defaults.run),
            provider,
            kind,
            name: name.clone(),
            labels: labels.clone(),
            owner: self.defaults.owner.clone(),
            on_owner_death: self.defaults.on_owner_death,
            lease: self.defaults.lease,
        };
        (Claim { resource, kind, provider, name, labels }, intent)
    }

    /// Records that a create succeeded. If the record cannot be written, the intent stays open and
    /// is searched for.
    pub(super) async fn confirm(&self, claim: &Claim, object: &str) {
        let identity = claim.kind.has_lasting_ids().then(|| Identity::id(object));
        self.confirm_as(claim, object, identity).await;
    }

    /// Confirms like [`Claims::confirm`], with what distinguishes the object from a replacement.
    pub(super) async fn confirm_as(&self, claim: &Claim, object: &str, identity: Option<Identity>) {
        info!(resource = %claim.resource, kind = %claim.kind, object, "created");
        self.append(claim, Event::Created { object: object.to_owned(), identity }).await;
        self.listener
            .on_event(GuardEvent { id: Some(object.to_owned()), ..claim.event("created", None) });
    }

    /// Records that a create made nothing.
    pub(super) async fn refute(&self, claim: &Claim, evidence: String) {
        self.append(claim, Event::NeverCreated { evidence: evidence.into() }).await;
    }

    /// Records a new identity of a resource: the same command moved a name of its image.
    pub(super) async fn refresh(&self, record: &Record, identity: Identity) {
        let Some(object) = record.state.object().map(str::to_owned) else { return };
        self.note(record, Event::Created { object, identity: Some(identity) }).await;
    }

    /// Claims something that exists already and is known to be the command's.
    pub(super) async fn adopt(
        &self,
        provider: ProviderName,
        kind: Kind,
        object: &str,
        identity: Option<Identity>,
    ) -> Result<(), LedgerError> {
        let claim = self.claim_existing(provider, kind, object.to_owned()).await?;
        self.confirm_as(&claim, object, identity).await;
        Ok(())
    }

    /// Records that the command itself deletes a resource.
    pub(super) async fn leaving(&self, record: &Record) {
        let why = "the command deleted it".to_owned();
        self.note(record, Event::ReleaseRequested { why: why.into() }).await;
    }

    /// Records that a resource deleted by the command is verified gone.
    pub(super) async fn gone(&self, record: &Record, object: &str) {
        self.note(record, Event::VerifiedGone).await;
        self.listener.on_event(GuardEvent {
            event: "released",
            provider: record.provider,
            kind: record.kind,
            id: Some(object.to_owned()),
            name: record.name.clone(),
            reason: Some("the command deleted it".to_owned()),
        });
    }

    async fn note(&self, record: &Record, event: Event) {
        match self.ledger.append(&[(record.id, event)]).await {
            // The record was closed meanwhile.
            Ok(_) | Err(LedgerError::Illegal { .. }) => {}
            Err(error) => warn!(resource = %record.id, %error, "a delete is not recorded"),
        }
    }

    /// Reports that a create was refused.
    pub(super) fn refused(&self, provider: ProviderName, kind: Kind, name: &str, reason: &str) {
        warn!(%provider, %kind, name, reason, "refused");
        let (name, reason) = (name.to_owned(), Some(reason.to_owned()));
        self.listener.on_event(GuardEvent {
            event: "refused",
            provider,
            kind,
            id: None,
            name,
            reason,
        });
    }

    /// Returns the records of one kind that are not released.
    pub(super) async fn open(&self, kind: Kind) -> Result<Vec<Record>, LedgerError> {
        let mine = RecordFilter::open().of(&self.defaults.owner.owner);
        let records = self.ledger.records(&mine).await?;
        Ok(records.into_iter().filter(|record| record.kind == kind).collect())
    }

    /// Releases a resource at once, before the command ends.
    pub(super) async fn release(
        &self,
        provider: Arc<dyn Provider>,
        claim: &Claim,
    ) -> Result<ItemReport, LedgerError> {
        let pipeline = Pipeline::new(Providers::new(vec![provider]), Some(self.ledger.clone()));
        let why = "the create it was made for came to nothing";
        pipeline.release_record(claim.resource, why).await
    }

    async fn append(&self, claim: &Claim, event: Event) {
        if let Err(error) = self.ledger.append(&[(claim.resource, event)]).await {
            warn!(resource = %claim.resource, %error, "the outcome of a create is not recorded");
        }
    }
}

impl Claim {
    /// Returns the claim that belongs to a record.
    pub(super) fn of(record: &Record) -> Self {
        Self {
            resource: record.id,
            kind: record.kind,
            provider: record.provider,
            name: record.name.clone(),
            labels: record.labels.clone(),
        }
    }

    /// Returns the name of the resource.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the marks by which the object is found again.
    pub(super) fn marks(&self) -> Marks {
        Marks { kind: self.kind, resource: self.resource, name: self.name.clone() }
    }

    fn event(&self, event: &'static str, reason: Option<String>) -> GuardEvent {
        GuardEvent {
            event,
            provider: self.provider,
            kind: self.kind,
            id: None,
            name: self.name.clone(),
            reason,
        }
    }
}
