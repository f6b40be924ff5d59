//! The events of a resource, as stored.

use creel_model::clock::ClockReading;
use creel_model::provider::Identity;
use creel_sanitise::Masked;
use serde::{Deserialize, Serialize};

use crate::owner::OwnerRecord;

/// The version of the stored format. A new version needs a test that reads the old one.
pub(super) const VERSION: i64 = 1;

/// One event in the life of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Its create was decided.
    Intended {
        /// The owner that decided it.
        owner: OwnerRecord,
    },
    /// The provider answered the create with an id.
    Created {
        /// The provider's id.
        object: String,
        /// Distinguishes it from a replacement; absent in events of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<Identity>,
    },
    /// A search found it by name and label.
    Found {
        /// The provider's id.
        object: String,
        /// Distinguishes it from a replacement; absent in events of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<Identity>,
    },
    /// It was verified that the create made no object.
    NeverCreated {
        /// The evidence.
        evidence: Masked,
    },
    /// Its release was requested.
    ReleaseRequested {
        /// Why.
        why: Masked,
    },
    /// Its absence was verified.
    VerifiedGone,
    /// Another object was found under its name, so the recorded one is gone.
    Replaced {
        /// The evidence.
        why: Masked,
    },
    /// It cannot be removed.
    Quarantined {
        /// Why.
        reason: Masked,
    },
    /// It was found absent although we did not release it.
    Vanished,
    /// Another process is responsible for it now.
    OwnerChanged {
        /// The new owner.
        owner: OwnerRecord,
    },
    /// It is kept for inspection, whether its owner lives or not.
    Kept {
        /// For how long from now, in milliseconds.
        lease_ms: i64,
    },
    /// A kept resource is in use again, and is released when its owner dies.
    Reused {
        /// How long it may live without a renewal, in milliseconds.
        lease_ms: i64,
    },
    /// The clocks jumped, so one full lease was granted from this moment.
    LeaseGranted {
        /// When.
        from: ClockReading,
    },
    /// The time since its create is unknown, so a full search starts at this moment.
    SearchRestarted {
        /// When.
        from: ClockReading,
    },
}

impl Event {
    /// Returns the text for it after "cannot be".
    pub fn past_participle(&self) -> &'static str {
        match self {
            Self::Intended { .. } => "intended",
            Self::Created { .. } => "created",
            Self::Found { .. } => "found",
            Self::NeverCreated { .. } => "called never created",
            Self::ReleaseRequested { .. } => "released",
            Self::VerifiedGone => "verified gone",
            Self::Replaced { .. } => "called replaced",
            Self::Quarantined { .. } => "quarantined",
            Self::Vanished => "called vanished",
            Self::OwnerChanged { .. } => "given to another owner",
            Self::Kept { .. } => "kept",
            Self::Reused { .. } => "put to use again",
            Self::LeaseGranted { .. } => "granted a lease",
            Self::SearchRestarted { .. } => "searched for again",
        }
    }
}

/// An event with its position in the ledger.
#[derive(Debug, Clone, Serialize)]
pub struct StoredEvent {
    /// Its sequence number in the whole ledger.
    pub sequence: i64,
    /// When it was stored, in milliseconds since the epoch.
    pub at_ms: i64,
    /// The process that stored it.
    pub actor: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

#[cfg(test)]
pub(super) mod tests {
    use creel_model::os::ProcessKey;
    use creel_model::owner::Owner;
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn some_owner() -> OwnerRecord {
        OwnerRecord {
            owner: Owner {
                host: "host".to_owned(),
                boot: "boot".to_owned(),
                pid_namespace: 1,
                process: ProcessKey { pid: 1, started_ticks: 1 },
            },
            command: "test".into(),
            started_at_ms: 0,
        }
    }

    pub(crate) fn some_intent() -> Event {
        Event::Intended { owner: some_owner() }
    }

    pub(crate) fn any_event() -> impl Strategy<Value = Event> {
        let object = || prop_oneof![Just("a".to_owned()), Just("b".to_owned())];
        let identity = || {
            prop_oneof![Just(None), Just(Some(Identity::id("a"))), Just(Some(Identity::id("b")))]
        };
        prop_oneof![
            Just(some_intent()),
            (object(), identity())
                .prop_map(|(object, identity)| Event::Created { object, identity }),
            (object(), identity()).prop_map(|(object, identity)| Event::Found { object, identity }),
            Just(Event::Replaced { why: Masked::ours("another image") }),
            Just(Event::NeverCreated { evidence: Masked::ours("refused") }),
            Just(Event::ReleaseRequested { why: Masked::ours("test") }),
            Just(Event::VerifiedGone),
            Just(Event::Quarantined { reason: Masked::ours("stuck") }),
            Just(Event::Vanished),
            Just(Event::OwnerChanged { owner: some_owner() }),
            Just(Event::SearchRestarted { from: ClockReading { wall_ms: 7, awake_ms: 5 } }),
        ]
    }

    #[test]
    fn events_of_versions_without_identities_can_be_read() {
        let old = r#"{"event":"created","object":"c1"}"#;
        let created = Event::Created { object: "c1".to_owned(), identity: None };
        assert_eq!(serde_json::from_str::<Event>(old).unwrap(), created);
        assert_eq!(serde_json::to_string(&created).unwrap(), old);
    }

    proptest! {
        #[test]
        fn an_event_survives_the_round_trip_through_its_stored_form(event in any_event()) {
            let stored = serde_json::to_string(&event).expect("events are plain data");
            prop_assert_eq!(serde_json::from_str::<Event>(&stored).expect("stored by us"), event);
        }
    }
}
