//! Faults: what goes wrong, where, for which sandboxes, and how often.
//!
//! A fault fires while its count lasts, with its probability, on the operations and sandboxes it
//! names. The server counts how often each has fired, so a test can prove that the fault did
//! happen.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::route::Operation;

/// How long the list is wrong after a delete, unless the fault sets it.
const FLAP: Duration = Duration::from_millis(2700);

/// A requested fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// The operations it applies to.
    #[serde(default)]
    pub at: At,
    /// The sandboxes it applies to; all of them if it is `None`.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<Match>,
    /// What goes wrong.
    pub fault: FaultKind,
    /// The status of the response, for `status` and `html`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Headers of the response, for `status`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The message of the response, for `status`, or of the sandbox's error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the sandbox of a failed create can be recovered; it can if this is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recoverable: Option<bool>,
    /// The duration, for `latency`, `flap` and what gets stuck. For `cut_stream`, the time after
    /// which it fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The maximum number of times it fires; unlimited if it is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The probability that it fires; always if it is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
}

/// The operations a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the operation of its name")]
pub enum At {
    Create,
    Get,
    List,
    Delete,
    Stop,
    Start,
    Exec,
    Follow,
    #[default]
    Any,
}

/// The sandboxes a fault applies to. All given fields must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// A label, as `key` or `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name. A `*` at the end matches anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The response is delayed.
    Latency,
    /// The response is an error with this status, and nothing was done.
    Status,
    /// The connection is closed before anything is done.
    CutBefore,
    /// The request is carried out, but the connection is closed before the response.
    CutAfter,
    /// The request is carried out, but only half of the response arrives.
    HalfBody,
    /// The sandbox never gets beyond `creating` or `starting`.
    StuckStarting,
    /// The sandbox never gets beyond `destroying`.
    StuckDestroying,
    /// The delete fails at the runner. Only one list flag still shows the record.
    ErroredDeleted,
    /// The list omits a deleted sandbox, and then shows it again in its former state.
    Flap,
    /// The create answers 400 without an id, and the sandbox exists in `error`.
    CreateFailsAfterAlloc,
    /// A followed log closes with 1011 in the middle of its first output.
    BreakOff,
    /// The connection of a followed log is dropped without a close frame after a while.
    CutStream,
    /// The key has expired.
    ExpiredKey,
    /// A captive portal answers with HTML.
    Html,
}

impl FaultKind {
    /// Returns whether this fault is meaningful for an operation.
    fn fits(self, operation: Operation) -> bool {
        match self {
            Self::StuckStarting => matches!(operation, Operation::Create | Operation::Start),
            Self::StuckDestroying | Self::ErroredDeleted => operation == Operation::Delete,
            Self::Flap => operation == Operation::Delete,
            Self::BreakOff | Self::CutStream => operation == Operation::Follow,
            Self::CreateFailsAfterAlloc => operation == Operation::Create,
            Self::Latency
            | Self::Status
            | Self::CutBefore
            | Self::CutAfter
            | Self::HalfBody
            | Self::ExpiredKey
            | Self::Html => true,
        }
    }
}

/// The sandbox a request is about, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// A fault that fired.
#[derive(Debug, Clone)]
pub(crate) struct Strike {
    pub(crate) kind: FaultKind,
    pub(crate) spec: FaultSpec,
}

/// The faults that the gate passes on to the operation itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct InjectedFaults(pub(crate) Vec<Strike>);

impl InjectedFaults {
    /// Returns the fault of a kind, if it fired.
    pub(crate) fn get(&self, kind: FaultKind) -> Option<&Strike> {
        self.0.iter().find(|strike| strike.kind == kind)
    }
}

impl Strike {
    /// Returns its duration, if it ends by itself.
    pub(crate) fn lasting(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.spec.seconds?).ok()
    }

    /// Returns how long the list is wrong.
    pub(crate) fn flap(&self) -> Duration {
        self.lasting().unwrap_or(FLAP)
    }
}

/// A fault, and how often it has fired.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ArmedFault {
    id: u64,
    #[serde(flatten)]
    spec: FaultSpec,
    fired: u64,
}

/// All faults, first armed first.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<ArmedFault>,
    next_id: u64,
}

impl Faults {
    /// Arms a fault, and returns its number.
    pub(crate) fn add(&mut self, spec: FaultSpec) -> u64 {
        self.next_id += 1;
        self.armed.push(ArmedFault { id: self.next_id, spec, fired: 0 });
        self.next_id
    }

    /// Disarms all faults.
    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    /// Returns all faults, fired or not.
    pub(crate) fn all(&self) -> &[ArmedFault] {
        &self.armed
    }

    /// Returns whether any fault could apply to this operation.
    pub(crate) fn concern(&self, operation: Operation) -> bool {
        self.armed.iter().any(|fault| fault.concerns(operation))
    }

    /// Fires every matching delay, and the first of the other matching faults.
    pub(crate) fn strike(&mut self, operation: Operation, subject: &Subject) -> InjectedFaults {
        let mut strikes = Vec::new();
        let mut struck = false;
        for fault in &mut self.armed {
            let is_delay = fault.spec.fault == FaultKind::Latency;
            if (struck && !is_delay) || !fault.concerns(operation) || !fault.fits(subject) {
                continue;
            }
            if fault.spec.probability.is_some_and(|likely| fastrand::f64() >= likely) {
                continue;
            }
            fault.fired += 1;
            struck |= !is_delay;
            strikes.push(Strike { kind: fault.spec.fault, spec: fault.spec.clone() });
        }
        InjectedFaults(strikes)
    }
}

impl ArmedFault {
    fn concerns(&self, operation: Operation) -> bool {
        let here = match self.spec.at {
            At::Any => true,
            At::Create => operation == Operation::Create,
            At::Get => operation == Operation::Get,
            At::List => operation == Operation::List,
            At::Delete => operation == Operation::Delete,
            At::Stop => operation == Operation::Stop,
            At::Start => operation == Operation::Start,
            At::Exec => operation == Operation::Exec,
            At::Follow => operation == Operation::Follow,
        };
        let spent = self.spec.count.is_some_and(|count| self.fired >= count);
        here && !spent && self.spec.fault.fits(operation)
    }

    fn fits(&self, subject: &Subject) -> bool {
        let Some(matching) = &self.spec.matching else { return true };
        let id = matching.id.as_ref().is_none_or(|id| subject.id.as_ref() == Some(id));
        let name = matching.name.as_ref().is_none_or(|name| match name.strip_suffix('*') {
            Some(prefix) => subject.name.as_ref().is_some_and(|name| name.starts_with(prefix)),
            None => subject.name.as_ref() == Some(name),
        });
        let label = matching.label.as_ref().is_none_or(|label| match label.split_once('=') {
            Some((key, value)) => subject.labels.get(key).is_some_and(|found| found == value),
            None => subject.labels.contains_key(label),
        });
        id && name && label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> FaultSpec {
        serde_json::from_str(text).expect("the spec is well formed")
    }

    #[test]
    fn a_fault_fires_as_often_as_its_count_and_only_where_it_matches() {
        let mut faults = Faults::default();
        faults.add(spec(
            r#"{"at":"delete","match":{"label":"run=1"},"fault":"status","status":503,"count":2}"#,
        ));
        let mut subject = Subject::default();
        assert!(faults.strike(Operation::Delete, &subject).0.is_empty());
        subject.labels.insert("run".to_owned(), "1".to_owned());
        assert!(faults.strike(Operation::Get, &subject).0.is_empty());
        for struck in [1, 1, 0] {
            assert_eq!(faults.strike(Operation::Delete, &subject).0.len(), struck);
        }
        assert_eq!(faults.all()[0].fired, 2);
    }

    #[test]
    fn delays_add_to_another_fault() {
        let mut faults = Faults::default();
        faults.add(spec(r#"{"fault":"cut_after"}"#));
        faults.add(spec(r#"{"fault":"status","status":500}"#));
        faults.add(spec(r#"{"fault":"latency","seconds":0.1}"#));
        let kinds: Vec<FaultKind> = faults
            .strike(Operation::Get, &Subject::default())
            .0
            .into_iter()
            .map(|strike| strike.kind)
            .collect();
        assert_eq!(kinds, [FaultKind::CutAfter, FaultKind::Latency]);
    }

    #[test]
    fn a_fault_of_deletes_does_not_fire_elsewhere() {
        let mut faults = Faults::default();
        faults.add(spec(r#"{"fault":"flap"}"#));
        assert!(!faults.concern(Operation::Get));
        assert!(faults.concern(Operation::Delete));
    }
}
