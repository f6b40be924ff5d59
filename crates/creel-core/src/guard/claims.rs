//! Claims: what a guarded command creates, put on the ledger in its guard's name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tracing::{info, warn};

use crate::id::{ResourceId, RunId};
use crate::labels::{self, Labels};
use crate::ledger::{
    Event, Intent, Ledger, LedgerError, OnOwnerDeath, OwnerRecord, Record, RecordFilter,
};
use crate::provider::{Identity, Kind, Marks, Provider, ProviderName, Providers};
use crate::reap::{ItemReport, ReapOptions, Reaper};

/// On what terms things are claimed.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The process that answers for them.
    pub owner: OwnerRecord,
    /// The run they belong to: one per guard.
    pub run: RunId,
    /// How long they may live without a renewal.
    pub lease: Duration,
    /// What becomes of them when the guard dies.
    pub on_owner_death: OnOwnerDeath,
}

/// Something that happened to what a command uses.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct Happening {
    /// `created`, `refused` or `released`.
    pub event: &'static str,
    /// The world.
    pub provider: ProviderName,
    /// What it is.
    pub kind: Kind,
    /// The provider's id; what was refused has none.
    pub id: Option<String>,
    /// Its name, as far as known.
    pub name: String,
    /// Why, where there is something to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Hears what happens.
pub trait Listener: Send + Sync {
    /// Something happened.
    fn hear(&self, happening: Happening);
}

/// Nobody listens.
impl Listener for () {
    fn hear(&self, _: Happening) {}
}

/// Puts things on the ledger. Cheap to clone.
#[derive(Clone)]
pub struct Claims {
    ledger: Ledger,
    terms: Terms,
    listener: Arc<dyn Listener>,
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// A create that is about to be passed on.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) resource: ResourceId,
    pub(super) kind: Kind,
    provider: ProviderName,
    name: String,
    /// The labels it must carry, where its kind can.
    pub(super) labels: Labels,
}

impl Claims {
    /// Makes claims in the name of a process.
    pub fn new(ledger: Ledger, terms: Terms, listener: Arc<dyn Listener>) -> Self {
        Self { ledger, terms, listener }
    }

    /// Returns the run that everything is claimed for.
    pub fn run(&self) -> RunId {
        self.terms.run
    }

    /// Returns the label that everything of this guard carries, where its kind can.
    pub(super) fn run_label(&self) -> String {
        format!("{}={}", labels::RUN, self.terms.run)
    }

    /// Records a create before it is passed on; if that fails it must not be.
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

    /// Records something that exists already, or that is being made.
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

    /// Records that a reference of an image is about to be made, with the image that it names now.
    pub(super) async fn intend_reference(
        &self,
        reference: &str,
        names: Option<&str>,
    ) -> Result<Claim, LedgerError> {
        let name = Some(reference.to_owned());
        let (claim, intent) = self.prepare(ProviderName::Docker, Kind::Image, name, names);
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
        let (ledger, run) = (self.ledger.id(), Some(&self.terms.run));
        let mut labels = labels::of_resource(&resource, &ledger, &self.terms.owner.owner, run);
        labels.extend(replaced.map(|image| (labels::REPLACED_IMAGE, image)));
        let name = name.unwrap_or_else(|| resource.object_name());
        let intent = Intent {
            id: resource,
            run: Some(self.terms.run),
            provider,
            kind,
            name: name.clone(),
            labels: labels.clone(),
            owner: self.terms.owner.clone(),
            on_owner_death: self.terms.on_owner_death,
            lease: self.terms.lease,
        };
        (Claim { resource, kind, provider, name, labels }, intent)
    }

    /// Records what came of a create. A record that cannot be written stays an open intent,
    /// which is searched for.
    pub(super) async fn confirm(&self, claim: &Claim, object: &str) {
        let identity = claim.kind.has_lasting_ids().then(|| Identity::id(object));
        self.confirm_as(claim, object, identity).await;
    }

    /// As [`Claims::confirm`], with what tells the object from a replacement.
    pub(super) async fn confirm_as(&self, claim: &Claim, object: &str, identity: Option<Identity>) {
        info!(resource = %claim.resource, kind = %claim.kind, object, "created");
        self.append(claim, Event::Created { object: object.to_owned(), identity }).await;
        self.listener
            .hear(Happening { id: Some(object.to_owned()), ..claim.happening("created", None) });
    }

    /// Records that nothing came of a create.
    pub(super) async fn refute(&self, claim: &Claim, evidence: String) {
        self.append(claim, Event::NeverCreated { evidence: evidence.into() }).await;
    }

    /// Records another identity of something: a name of its image was moved by the same command.
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

    /// Records that the command itself ordered the end of something.
    pub(super) async fn leaving(&self, record: &Record) {
        let why = "the command deleted it".to_owned();
        self.note(record, Event::ReleaseRequested { why: why.into() }).await;
    }

    /// Records that something is proven gone that the command itself deleted.
    pub(super) async fn gone(&self, record: &Record, object: &str) {
        self.note(record, Event::VerifiedGone).await;
        self.listener.hear(Happening {
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

    /// Tells that a create was refused.
    pub(super) fn refused(&self, provider: ProviderName, kind: Kind, name: &str, reason: &str) {
        warn!(%provider, %kind, name, reason, "refused");
        let (name, reason) = (name.to_owned(), Some(reason.to_owned()));
        self.listener.hear(Happening { event: "refused", provider, kind, id: None, name, reason });
    }

    /// Returns what is on record of one kind and not given back.
    pub(super) async fn open(&self, kind: Kind) -> Result<Vec<Record>, LedgerError> {
        let mine = RecordFilter::open().of(&self.terms.owner.owner);
        let records = self.ledger.records(&mine).await?;
        Ok(records.into_iter().filter(|record| record.kind == kind).collect())
    }

    /// Releases something at once, before the end of the command.
    pub(super) async fn give_back(
        &self,
        provider: Arc<dyn Provider>,
        claim: &Claim,
    ) -> Result<ItemReport, LedgerError> {
        let reaper = Reaper::new(Providers::new(vec![provider]), Some(self.ledger.clone()));
        let why = "the create it was made for came to nothing";
        reaper.release_record(claim.resource, why, &ReapOptions::default()).await
    }

    async fn append(&self, claim: &Claim, event: Event) {
        if let Err(error) = self.ledger.append(&[(claim.resource, event)]).await {
            warn!(resource = %claim.resource, %error, "the outcome of a create is not recorded");
        }
    }
}

impl Claim {
    /// Returns the claim that a record is of.
    pub(super) fn of(record: &Record) -> Self {
        Self {
            resource: record.id,
            kind: record.kind,
            provider: record.provider,
            name: record.name.clone(),
            labels: record.labels.clone(),
        }
    }

    /// Returns the name it is to have.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the object is found again by.
    pub(super) fn marks(&self) -> Marks {
        Marks { kind: self.kind, resource: self.resource, name: self.name.clone() }
    }

    fn happening(&self, event: &'static str, reason: Option<String>) -> Happening {
        Happening {
            event,
            provider: self.provider,
            kind: self.kind,
            id: None,
            name: self.name.clone(),
            reason,
        }
    }
}
