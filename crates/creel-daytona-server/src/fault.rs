//! Faults: what goes wrong, where, for whom, and how often.
//!
//! A fault strikes while its count lasts, with its probability, on the
//! operations and sandboxes it names. How often each has struck is kept, so a
//! test can prove that what it survived did happen.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::route::Operation;

/// How long the list lies after a delete, unless the fault says otherwise.
const FLAP: Duration = Duration::from_millis(2700);

/// A fault as it is ordered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultOrder {
    /// Where it strikes.
    #[serde(default)]
    pub at: At,
    /// Which sandboxes it strikes; all of them without it.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<Match>,
    /// What goes wrong.
    pub fault: Kind,
    /// The status of the answer, for `status` and `html`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Headers of the answer, for `status`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The message of the answer, for `status`, or of the sandbox's error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the sandbox of a failed create can be recovered; it can without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recoverable: Option<bool>,
    /// How long it lasts, for `latency`, `flap` and what gets stuck; after
    /// which time it strikes, for `cut_stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// How often it strikes; without it there is no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How likely it strikes; always without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
}

/// Where a fault strikes.
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

/// Which sandboxes a fault strikes: all that is given must fit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// A label, as `key` or `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name; a `*` at the end stands for anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The answer comes later.
    Latency,
    /// The answer is an error of this status; nothing was done.
    Status,
    /// The connection is closed before anything was done.
    CutBefore,
    /// It was done, but the connection is closed before the answer.
    CutAfter,
    /// It was done, but only half of the answer arrives.
    HalfBody,
    /// The sandbox never gets beyond `creating` or `starting`.
    StuckStarting,
    /// The sandbox never gets beyond `destroying`.
    StuckDestroying,
    /// The delete fails at the runner: the record hides from everything but one list flag.
    ErroredDeleted,
    /// The list forgets a deleted sandbox, then shows it again as it was.
    Flap,
    /// The create answers 400 without an id, and the sandbox exists in `error`.
    CreateFailsAfterAlloc,
    /// A followed log closes with 1011 in the middle of what it has to say first.
    BreakOff,
    /// The connection of a followed log is dropped without a word after a while.
    CutStream,
    /// The key is no longer good.
    ExpiredKey,
    /// A captive portal answers with HTML.
    Html,
}

impl Kind {
    /// Returns whether this fault has a meaning for an operation.
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

/// Whom a request is about, as far as that is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// A fault that struck.
#[derive(Debug, Clone)]
pub(crate) struct Strike {
    pub(crate) kind: Kind,
    pub(crate) order: FaultOrder,
}

/// What the gate tells the operation itself to do wrong.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mischief(pub(crate) Vec<Strike>);

impl Mischief {
    /// Returns the strike of a kind.
    pub(crate) fn get(&self, kind: Kind) -> Option<&Strike> {
        self.0.iter().find(|strike| strike.kind == kind)
    }
}

impl Strike {
    /// Returns how long it lasts, if it ends by itself.
    pub(crate) fn lasting(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.order.seconds?).ok()
    }

    /// Returns how long the list lies.
    pub(crate) fn flap(&self) -> Duration {
        self.lasting().unwrap_or(FLAP)
    }
}

/// A fault and how often it has struck.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Armed {
    id: u64,
    #[serde(flatten)]
    order: FaultOrder,
    fired: u64,
}

/// All faults, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<Armed>,
    next_id: u64,
}

impl Faults {
    /// Arms a fault; returns its number.
    pub(crate) fn add(&mut self, order: FaultOrder) -> u64 {
        self.next_id += 1;
        self.armed.push(Armed { id: self.next_id, order, fired: 0 });
        self.next_id
    }

    /// Disarms all.
    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    /// Returns all, struck or not.
    pub(crate) fn all(&self) -> &[Armed] {
        &self.armed
    }

    /// Returns whether any could strike this operation.
    pub(crate) fn concern(&self, operation: Operation) -> bool {
        self.armed.iter().any(|fault| fault.concerns(operation))
    }

    /// Strikes: every delay that fits, and the first of the other faults that does.
    pub(crate) fn strike(&mut self, operation: Operation, subject: &Subject) -> Mischief {
        let mut strikes = Vec::new();
        let mut struck = false;
        for fault in &mut self.armed {
            let is_delay = fault.order.fault == Kind::Latency;
            if (struck && !is_delay) || !fault.concerns(operation) || !fault.fits(subject) {
                continue;
            }
            if fault.order.probability.is_some_and(|likely| fastrand::f64() >= likely) {
                continue;
            }
            fault.fired += 1;
            struck |= !is_delay;
            strikes.push(Strike { kind: fault.order.fault, order: fault.order.clone() });
        }
        Mischief(strikes)
    }
}

impl Armed {
    fn concerns(&self, operation: Operation) -> bool {
        let here = match self.order.at {
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
        let spent = self.order.count.is_some_and(|count| self.fired >= count);
        here && !spent && self.order.fault.fits(operation)
    }

    fn fits(&self, subject: &Subject) -> bool {
        let Some(matching) = &self.order.matching else { return true };
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

    fn order(text: &str) -> FaultOrder {
        serde_json::from_str(text).expect("the order is well formed")
    }

    #[test]
    fn a_fault_strikes_as_often_as_its_count_says_and_only_where_it_fits() {
        let mut faults = Faults::default();
        faults.add(order(
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
        faults.add(order(r#"{"fault":"cut_after"}"#));
        faults.add(order(r#"{"fault":"status","status":500}"#));
        faults.add(order(r#"{"fault":"latency","seconds":0.1}"#));
        let kinds: Vec<Kind> = faults
            .strike(Operation::Get, &Subject::default())
            .0
            .into_iter()
            .map(|strike| strike.kind)
            .collect();
        assert_eq!(kinds, [Kind::CutAfter, Kind::Latency]);
    }

    #[test]
    fn a_fault_of_deletes_does_not_strike_elsewhere() {
        let mut faults = Faults::default();
        faults.add(order(r#"{"fault":"flap"}"#));
        assert!(!faults.concern(Operation::Get));
        assert!(faults.concern(Operation::Delete));
    }
}
