//! Determines the owner of a resource from the ledger and from labels.

use std::collections::HashMap;

use creel_ledger::{Ledger, LedgerError, Record, RecordFilter, StateName};
use creel_model::id::{LedgerId, ResourceId};
use creel_model::labels;
use creel_model::owner::Liveness;
use creel_model::provider::{Identity, IdentityCheck, Kind, Observed, ProviderName};
use jiff::Timestamp;

use super::LedgerChoice;

/// The owner of a resource.
#[derive(Debug, Clone, PartialEq)]
pub enum Ownership {
    /// creel knows no owner.
    Foreign,
    /// This ledger tracks it.
    Ours {
        /// The record.
        record: Box<Record>,
        /// Whether its owner is alive.
        liveness: Liveness,
    },
    /// It was made under this ledger, but its record is missing.
    Unrecorded {
        /// The resource that its label names.
        resource: ResourceId,
        /// Whether the owner that its label names is alive.
        liveness: Liveness,
    },
    /// Its labels name an owner that is alive.
    ///
    /// Labels are copied and inherited, so they may not be its own. They are enough to spare it,
    /// but not to release it.
    Labelled {
        /// Whether that owner is alive.
        liveness: Liveness,
    },
    /// Another ledger made it.
    OtherLedger {
        /// The id of that ledger.
        ledger: LedgerId,
        /// Whether the owner that its label names is alive.
        liveness: Liveness,
    },
}

impl Ownership {
    /// Returns whether it was made under this ledger.
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Ours { .. } | Self::Unrecorded { .. })
    }

    /// Returns whether it belongs to the chosen other ledger.
    pub fn is_of(&self, choice: LedgerChoice) -> bool {
        match (self, choice) {
            (Self::OtherLedger { ledger, .. }, LedgerChoice::Id(wanted)) => *ledger == wanted,
            (Self::OtherLedger { liveness, .. }, LedgerChoice::Lost) => *liveness == Liveness::Dead,
            _ => false,
        }
    }

    /// Returns the record, if this ledger has one.
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Ours { record, .. } => Some(record),
            _ => None,
        }
    }
}

/// The ledger's records, indexed for lookups by observed object.
#[derive(Debug, Default)]
pub struct RecordIndex {
    ledger: Option<LedgerId>,
    by_object: HashMap<(ProviderName, Kind, String), Record>,
    by_resource: HashMap<ResourceId, Record>,
    /// The records of images by the references they claim, made or about to be.
    by_reference: HashMap<(ProviderName, String), Vec<Record>>,
    /// Closed records whose resource an object claims by its labels.
    closed: HashMap<ResourceId, Record>,
}

impl RecordIndex {
    /// Builds the index.
    pub fn new(ledger: LedgerId, records: Vec<Record>) -> Self {
        let mut record_index = Self { ledger: Some(ledger), ..Self::default() };
        for record in records {
            if let Some(object) = record.state.object() {
                let key = (record.provider, record.kind, object.to_owned());
                record_index.by_object.insert(key, record.clone());
            }
            if record.kind == Kind::Image {
                let object = record.state.object().filter(|object| *object != record.name);
                for reference in object.into_iter().chain([record.name.as_str()]) {
                    let key = (record.provider, reference.to_owned());
                    record_index.by_reference.entry(key).or_default().push(record.clone());
                }
            }
            record_index.by_resource.insert(record.id, record);
        }
        record_index
    }

    /// Reads the records that decide who owns these objects: all open ones, and the closed ones
    /// that an object claims by its labels.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be read.
    pub async fn read(ledger: &Ledger, inventory: &[Observed]) -> Result<Self, LedgerError> {
        let open = ledger.records(&RecordFilter::open()).await?;
        let mut record_index = Self::new(ledger.id(), open);
        for seen in inventory {
            let Some(resource) = labels::claimed_resource(&seen.labels) else { continue };
            let is_ours = labels::claimed_ledger(&seen.labels) == Some(ledger.id());
            if !is_ours || record_index.by_resource.contains_key(&resource) {
                continue;
            }
            if let Some(record) = ledger.record(resource).await? {
                record_index.closed.insert(resource, record);
            }
        }
        Ok(record_index)
    }

    /// Returns the open records.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.by_resource.values()
    }

    /// Determines who owns an object.
    ///
    /// Containers inherit labels from their image. So a label counts only if no other object is on
    /// record for it and the object has the name from its create.
    pub fn ownership(&self, seen: &Observed) -> Ownership {
        let key = (seen.provider, seen.kind, seen.id.clone());
        if let Some(record) = self.by_object.get(&key) {
            return match record.check(seen) {
                // Another object under a name that was ours.
                IdentityCheck::Replaced { .. } => Ownership::Foreign,
                // If unproven, its owner is respected; a release requires proof again.
                IdentityCheck::Same { .. } | IdentityCheck::Unproven { .. } => Self::ours(record),
            };
        }
        if let Some(record) = self.held_image(seen) {
            return Self::ours(record);
        }
        let Some(resource) = labels::claimed_resource(&seen.labels) else {
            return Ownership::Foreign;
        };
        let liveness = claimed_liveness(seen);
        if seen.name != resource.object_name() {
            let is_unknown = !self.by_resource.contains_key(&resource);
            return match liveness {
                Liveness::Alive if is_unknown => Ownership::Labelled { liveness },
                _ => Ownership::Foreign,
            };
        }
        match (self.by_resource.get(&resource), labels::claimed_ledger(&seen.labels)) {
            (Some(record), _) if record.state.object().is_none() => Self::ours(record),
            (Some(_), _) => Ownership::Foreign,
            (None, Some(ledger)) if Some(ledger) == self.ledger => {
                if self.is_replacement(resource, seen) {
                    return Ownership::Foreign;
                }
                Ownership::Unrecorded { resource, liveness }
            }
            (None, Some(ledger)) => Ownership::OtherLedger { ledger, liveness },
            (None, None) => Ownership::Foreign,
        }
    }

    /// Returns whether the object of a closed record was another one, whatever the labels and the
    /// name of this one say.
    fn is_replacement(&self, resource: ResourceId, seen: &Observed) -> bool {
        let recorded = self.closed.get(&resource).and_then(|record| record.identity.as_ref());
        let (Some(recorded), Some(observed)) = (recorded, seen.identity()) else { return false };
        matches!(Identity::compare(recorded, &observed), IdentityCheck::Replaced { .. })
    }

    /// Returns the record by which an owner that may be alive holds one of an image's references.
    ///
    /// A reference may name another image by now, so that of a dead owner proves nothing. That of a
    /// live owner spares any image it names.
    fn held_image(&self, seen: &Observed) -> Option<&Record> {
        let claims = |reference: &str| {
            let key = (seen.provider, reference.to_owned());
            self.by_reference.get(&key).into_iter().flatten()
        };
        let is_held = |record: &&Record| {
            record.state.name().is_open() && record.owner_liveness() != Liveness::Dead
        };
        seen.tags.iter().flat_map(|tag| claims(tag)).find(is_held)
    }

    /// Fills in since when an image exists, if only the ledger knows.
    pub fn date(&self, seen: &mut Observed) {
        if seen.kind != Kind::Image || seen.tagged_at.is_some() {
            return;
        }
        let key = (seen.provider, seen.kind, seen.id.clone());
        let record = self.by_object.get(&key).or_else(|| self.held_image(seen));
        seen.tagged_at =
            record.and_then(|record| Timestamp::from_millisecond(record.changed_at_ms).ok());
    }

    fn ours(record: &Record) -> Ownership {
        if record.state.name() == StateName::Gone {
            // A ghost: it appeared after its record was closed.
            return Ownership::Unrecorded {
                resource: record.id,
                liveness: record.owner_liveness(),
            };
        }
        Ownership::Ours { liveness: record.owner_liveness(), record: Box::new(record.clone()) }
    }
}

fn claimed_liveness(seen: &Observed) -> Liveness {
    labels::claimed_owner(&seen.labels).map_or(Liveness::Unknown, |owner| owner.liveness())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use creel_ledger::{Event, Intent, OnOwnerDeath, OwnerRecord};
    use creel_model::labels::Labels;
    use creel_model::owner::Owner;

    use super::*;
    use crate::select::selector::tests::container;

    #[test]
    fn an_inherited_label_is_not_ownership() {
        let resource = ResourceId::new();
        let ledger = LedgerId::new();
        let mut heir = container("foreign", "running");
        heir.labels.insert(labels::RESOURCE, resource.to_string());
        heir.labels.insert(labels::LEDGER, ledger.to_string());
        let record_index = RecordIndex::new(ledger, Vec::new());
        assert_eq!(record_index.ownership(&heir), Ownership::Foreign);

        heir.name = resource.object_name();
        assert!(matches!(record_index.ownership(&heir), Ownership::Unrecorded { .. }));
        let other = RecordIndex::new(LedgerId::new(), Vec::new());
        assert!(matches!(other.ownership(&heir), Ownership::OtherLedger { .. }));
    }

    /// Returns the index of a ledger on which an owner claims an image by its reference.
    async fn index_with(reference: &str, owner: Owner, is_created: bool) -> RecordIndex {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let intent = Intent {
            id: ResourceId::new(),
            run: None,
            provider: creel_docker::NAME,
            kind: Kind::Image,
            name: reference.to_owned(),
            labels: Labels::new(),
            owner: OwnerRecord { owner, command: "guard".into(), started_at_ms: 0 },
            on_owner_death: OnOwnerDeath::Release,
            lease: Duration::from_secs(60),
        };
        ledger.record_intent(&intent).await.unwrap();
        if is_created {
            let created = Event::Created { object: reference.to_owned(), identity: None };
            let _ = ledger.append(&[(intent.id, created)]).await.unwrap();
        }
        RecordIndex::new(ledger.id(), ledger.records(&RecordFilter::open()).await.unwrap())
    }

    #[tokio::test]
    async fn a_live_owner_holds_an_image_by_any_of_its_references() {
        let mut seen = Observed {
            tags: vec!["mine:1".to_owned(), "theirs:1".to_owned()],
            ..Observed::known_by_id(creel_docker::NAME, Kind::Image, "sha256:1")
        };
        let alive = Owner::this_process().unwrap();
        let dead = Owner { boot: "earlier".to_owned(), ..alive.clone() };
        for is_created in [true, false] {
            let record_index = index_with("mine:1", alive.clone(), is_created).await;
            let ownership = record_index.ownership(&seen);
            assert!(
                matches!(ownership, Ownership::Ours { liveness: Liveness::Alive, .. }),
                "{ownership:?}"
            );
        }
        // The reference of a dead owner may name another image by now.
        assert_eq!(index_with("mine:1", dead, true).await.ownership(&seen), Ownership::Foreign);
        let record_index = index_with("other:1", alive, true).await;
        assert_eq!(record_index.ownership(&seen), Ownership::Foreign);
        record_index.date(&mut seen);
        assert_eq!(seen.known_since(), None);
    }
}
