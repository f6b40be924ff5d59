//! Records: the ledger's data about one resource.

use std::time::Duration;

use creel_model::certificate::CertificateEntry;
use creel_model::id::{ResourceId, RunId};
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::owner::{Liveness, Owner};
use creel_model::provider::{Identity, IdentityCheck, Kind, Marks, Observed, ProviderName};
use creel_sanitise::Masked;
use jiff::Timestamp;
use serde::Serialize;

use crate::lease::Lease;
use crate::owner::{OnOwnerDeath, OwnerRecord};
use crate::state::{ResourceState, StateName};
use crate::window::SearchWindow;

/// What is recorded before a create.
#[derive(Debug, Clone)]
pub struct Intent {
    /// The new resource.
    pub id: ResourceId,
    /// The run it is acquired for.
    pub run: Option<RunId>,
    /// The provider it will live in.
    pub provider: ProviderName,
    /// Its kind.
    pub kind: Kind,
    /// The deterministic name it will have.
    pub name: String,
    /// The labels it will have.
    pub labels: Labels,
    /// The responsible owner.
    pub owner: OwnerRecord,
    /// What happens to it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// How long it may live without a renewal.
    pub lease: Duration,
}

/// The ledger's data about one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The resource.
    pub id: ResourceId,
    /// The run it was acquired for.
    pub run: Option<RunId>,
    /// The provider it lives in.
    pub provider: ProviderName,
    /// Its kind.
    pub kind: Kind,
    /// Its deterministic name.
    pub name: String,
    /// The labels it was created with.
    pub labels: Labels,
    /// Its lifecycle state.
    pub state: ResourceState,
    /// Distinguishes its object from a replacement, where it was observed.
    pub identity: Option<Identity>,
    /// The responsible owner.
    pub owner: OwnerRecord,
    /// What happens to it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// How long it may live without a renewal.
    pub lease: Lease,
    /// When the search for its object began, while no response has named the object.
    pub search: SearchWindow,
    /// When the intent was recorded, in milliseconds since the epoch.
    pub intended_at_ms: i64,
    /// When the state last changed, in milliseconds since the epoch.
    pub changed_at_ms: i64,
}

impl Record {
    /// Returns the marks that identify its object in a search.
    pub fn marks(&self) -> Marks {
        Marks { kind: self.kind, resource: self.id, name: self.name.clone() }
    }

    /// Returns its object as recorded, without inspecting it.
    pub fn as_recorded(&self) -> Observed {
        let id = self.state.object().unwrap_or(&self.name);
        Observed { name: self.name.clone(), ..Observed::known_by_id(self.provider, self.kind, id) }
    }

    /// Returns whether its owner asked to keep it, and the lease has not expired.
    pub fn is_kept_on_request(&self, now: Timestamp) -> bool {
        let ends_at_ms = self.lease.renewed.wall_ms.saturating_add(self.lease.duration_ms);
        self.on_owner_death == OnOwnerDeath::Hold
            && self.state.name() == StateName::Created
            && ends_at_ms > now.as_millisecond()
    }

    /// Compares an object found under its id or name with the record.
    ///
    /// Older versions wrote records without an identity. Where names are reused, such a record
    /// proves nothing unless the object carries the label of this exact create.
    pub fn check(&self, seen: &Observed) -> IdentityCheck {
        let observed = seen.identity();
        if let Some(recorded) = &self.identity {
            return match &observed {
                Some(observed) => Identity::compare(recorded, observed),
                None => {
                    IdentityCheck::Unproven { why: "its identity could not be read".to_owned() }
                }
            };
        }
        let labelled = labels::claimed_resource(&seen.labels) == Some(self.id);
        match (&self.state.object(), observed) {
            (Some(object), Some(observed @ Identity::Id { .. })) => {
                Identity::compare(&Identity::id(*object), &observed)
            }
            (_, Some(Identity::Volume { .. })) if labelled => {
                IdentityCheck::Same { evidence: format!("it carries the label of {}", self.id) }
            }
            (Some(_), Some(Identity::Volume { engine_made: true, .. })) => IdentityCheck::Same {
                evidence: "the engine made up its name for a container of ours".to_owned(),
            },
            // Its create carried the label, and volume labels never change.
            (Some(_), Some(Identity::Volume { .. }))
                if labels::claimed_resource(&self.labels) == Some(self.id) =>
            {
                IdentityCheck::Replaced {
                    why: "the volume of that name was created again without our label".to_owned(),
                }
            }
            _ => IdentityCheck::Unproven {
                why: format!(
                    "nothing on record distinguishes it from another {} of that name",
                    self.kind
                ),
            },
        }
    }

    /// Checks whether its owner is alive.
    pub fn owner_liveness(&self) -> Liveness {
        self.owner.owner.liveness()
    }
}

/// Selects records. An empty filter selects all.
#[derive(Debug, Clone, Default)]
pub struct RecordFilter {
    /// Only records in one of these states.
    pub states: Vec<StateName>,
    /// Only records of this owner.
    pub owner: Option<Owner>,
    /// Only records of this run.
    pub run: Option<RunId>,
}

impl RecordFilter {
    /// Selects records that may still need a release.
    pub fn open() -> Self {
        Self {
            states: StateName::ALL.into_iter().filter(|state| state.is_open()).collect(),
            ..Self::default()
        }
    }

    /// Selects all records of a run.
    pub fn of_run(run: RunId) -> Self {
        Self { run: Some(run), ..Self::default() }
    }

    /// Selects only records of one owner.
    pub fn of(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}

/// One attempt of one provider call, kept for the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Try {
    /// When it ended, in milliseconds since the epoch.
    pub at_ms: i64,
    /// The resource, if it is one of ours.
    pub resource: Option<ResourceId>,
    /// The provider.
    pub provider: ProviderName,
    /// The kind of the object.
    pub kind: Kind,
    /// The provider's id, or the name where there is none yet.
    pub object: String,
    /// The display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Masked>,
    /// The operation that was attempted.
    pub operation: Masked,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// `ok`, or the class of the error.
    pub outcome: Masked,
    /// The provider's message.
    pub detail: Masked,
    /// For a release: what allowed it, either the proof of ownership or the selecting rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Masked>,
}

impl From<&Record> for CertificateEntry {
    fn from(record: &Record) -> Self {
        Self {
            provider: record.provider,
            kind: record.kind,
            id: record.state.object().unwrap_or(&record.name).to_owned(),
            name: record.name.as_str().into(),
        }
    }
}
