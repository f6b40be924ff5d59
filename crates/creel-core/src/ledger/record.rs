//! Records: what the ledger knows of one resource.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{ResourceId, RunId};
use crate::labels::{self, Labels};
use crate::os;
use crate::owner::{Liveness, Owner};
use crate::provider::{Identity, IdentityCheck, Kind, Marks, Observed, ProviderName, UnknownName};
use crate::sanitise::Masked;

use super::{Lease, SearchWindow, State, StateName};

/// What becomes of a resource when its owner dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOwnerDeath {
    /// The watchdog, or whoever looks next, releases it at once.
    Release,
    /// It is kept until its lease ends.
    Hold,
}

impl OnOwnerDeath {
    /// Returns the word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Hold => "hold",
        }
    }
}

impl std::str::FromStr for OnOwnerDeath {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        UnknownName::pick(text, "policy", &[Self::Release, Self::Hold], Self::name)
    }
}

/// An owner with what people want to know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// The identity.
    pub owner: Owner,
    /// The command it runs, without arguments that could hold a secret.
    pub command: Masked,
    /// When the process started, in milliseconds since the epoch.
    pub started_at_ms: i64,
}

impl OwnerRecord {
    /// Describes this process.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn this_process(command: &str) -> std::io::Result<Self> {
        let owner = Owner::this_process()?;
        let started_at_ms = os::started_at_ms(&owner.process);
        let command = Masked::from(command);
        Ok(Self { owner, command, started_at_ms })
    }

    /// Returns when the process started.
    pub fn started_at(&self) -> Timestamp {
        Timestamp::from_millisecond(self.started_at_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// What is recorded before a create.
#[derive(Debug, Clone)]
pub struct Intent {
    /// The new resource.
    pub id: ResourceId,
    /// The run it is taken for.
    pub run: Option<RunId>,
    /// The world it will live in.
    pub provider: ProviderName,
    /// What it will be.
    pub kind: Kind,
    /// The deterministic name it will have.
    pub name: String,
    /// The labels it will have.
    pub labels: Labels,
    /// Who answers for it.
    pub owner: OwnerRecord,
    /// What becomes of it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// How long it may live without a renewal.
    pub lease: Duration,
}

/// What the ledger knows of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The resource.
    pub id: ResourceId,
    /// The run it was taken for.
    pub run: Option<RunId>,
    /// The world it lives in.
    pub provider: ProviderName,
    /// What it is.
    pub kind: Kind,
    /// Its deterministic name.
    pub name: String,
    /// The labels it was made with.
    pub labels: Labels,
    /// Where it is in its life.
    pub state: State,
    /// What tells its object from a replacement, where that was seen.
    pub identity: Option<Identity>,
    /// Who answers for it.
    pub owner: OwnerRecord,
    /// What becomes of it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// How long it may live without a renewal.
    pub lease: Lease,
    /// Since when its object is searched for, while no answer has named it.
    pub search: SearchWindow,
    /// When the intent was recorded, in milliseconds since the epoch.
    pub intended_at_ms: i64,
    /// When the state changed last, in milliseconds since the epoch.
    pub changed_at_ms: i64,
}

impl Record {
    /// Returns what its object is found again by.
    pub fn marks(&self) -> Marks {
        Marks { kind: self.kind, resource: self.id, name: self.name.clone() }
    }

    /// Returns whether its dead owner asked to keep it, and the time for that has not passed.
    pub fn is_kept_on_request(&self, now: Timestamp) -> bool {
        let ends_at_ms = self.lease.renewed.wall_ms.saturating_add(self.lease.duration_ms);
        self.on_owner_death == OnOwnerDeath::Hold
            && self.state.name() == StateName::Created
            && ends_at_ms > now.as_millisecond()
    }

    /// Compares an object that was found under its id or name with what is on record.
    ///
    /// A record without an identity, as older versions wrote them, proves nothing where names
    /// come back, unless the object carries the label of this very create.
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
            // Its create carried the label, and labels of volumes never change.
            (Some(_), Some(Identity::Volume { .. }))
                if labels::claimed_resource(&self.labels) == Some(self.id) =>
            {
                IdentityCheck::Replaced {
                    why: "the volume of that name was created again without our label".to_owned(),
                }
            }
            _ => IdentityCheck::Unproven {
                why: format!("nothing on record tells it from another {} of that name", self.kind),
            },
        }
    }

    /// Judges whether its owner still lives.
    pub fn owner_liveness(&self) -> Liveness {
        self.owner.owner.liveness()
    }
}

/// Which records are wanted; an empty filter wants all.
#[derive(Debug, Clone, Default)]
pub struct RecordFilter {
    /// Only those in one of these states.
    pub states: Vec<StateName>,
    /// Only those of this owner.
    pub owner: Option<Owner>,
    /// Only those taken for this run.
    pub run: Option<RunId>,
}

impl RecordFilter {
    /// Wants what may still have to be given back.
    pub fn open() -> Self {
        Self {
            states: StateName::ALL.into_iter().filter(|state| state.is_open()).collect(),
            ..Self::default()
        }
    }

    /// Wants everything that was ever taken for a run.
    pub fn of_run(run: RunId) -> Self {
        Self { run: Some(run), ..Self::default() }
    }

    /// Wants only those of one owner.
    pub fn of(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}

/// One try of one provider call, kept for the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Try {
    /// When it ended, in milliseconds since the epoch.
    pub at_ms: i64,
    /// The resource, where it is one of ours.
    pub resource: Option<ResourceId>,
    /// The world.
    pub provider: ProviderName,
    /// What it is.
    pub kind: Kind,
    /// The provider's id, or the name where there is none yet.
    pub object: String,
    /// The name people know it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Masked>,
    /// What was tried.
    pub operation: Masked,
    /// The number of the try, from 1.
    pub attempt: u32,
    /// `ok`, or the class of the error.
    pub outcome: Masked,
    /// What the provider said.
    pub detail: Masked,
    /// Of a release: what allowed it, the proof of ownership or the rule that selected it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Masked>,
}
