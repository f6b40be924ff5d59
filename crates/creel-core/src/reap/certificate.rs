//! The leak certificate: what was there, what was done, what is left.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::LedgerId;
use crate::os;
use crate::plan::World;
use crate::provider::{Kind, Observed, ProviderName};

use super::{ItemReport, Outcome, Report};

/// One object in an inventory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// The world.
    pub provider: ProviderName,
    /// What it is.
    pub kind: Kind,
    /// The provider's id.
    pub id: String,
    /// Its name.
    pub name: String,
}

impl Entry {
    /// Describes something that was seen.
    pub(crate) fn of(seen: &Observed) -> Self {
        Self {
            provider: seen.provider,
            kind: seen.kind,
            id: seen.id.clone(),
            name: seen.name.clone(),
        }
    }
}

/// What the certificate says in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything that was to go is verified gone, and the final inventory agrees.
    Clean,
    /// Something that was to go is still there, or its absence is not verified.
    Leaking,
}

/// How the inventories differ.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// Gone, and we released it.
    pub released: Vec<Entry>,
    /// Gone, but not by us.
    pub vanished: Vec<Entry>,
    /// New since the baseline.
    pub appeared: Vec<Entry>,
    /// Should have gone, but is in the final inventory or unverified.
    pub remaining: Vec<Entry>,
}

/// The proof of one release: two inventories, the actions between, the difference.
#[derive(Debug, Clone, Serialize)]
#[must_use]
pub struct Certificate {
    /// The version of this shape.
    pub version: u32,
    /// What it says in one word.
    pub verdict: Verdict,
    /// The ledger of whoever made it.
    pub ledger: Option<LedgerId>,
    /// The worlds it speaks of.
    pub worlds: Vec<World>,
    /// When the baseline was taken.
    pub started_at: Timestamp,
    /// When the final inventory was taken.
    pub finished_at: Timestamp,
    /// What was there before.
    pub baseline: Vec<Entry>,
    /// What was done.
    pub actions: Vec<ItemReport>,
    /// What is there now.
    pub inventory: Vec<Entry>,
    /// How the two differ.
    pub difference: Difference,
}

/// What a certificate is made from.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The ledger of whoever makes it.
    pub ledger: Option<LedgerId>,
    /// The worlds it speaks of.
    pub worlds: Vec<World>,
    /// When the baseline was taken.
    pub started_at: Timestamp,
    /// What was there before.
    pub baseline: &'a [Observed],
    /// What was done.
    pub report: &'a Report,
    /// What is there now.
    pub inventory: &'a [Observed],
}

impl Certificate {
    /// Compares the inventories and judges.
    pub fn issue(evidence: Evidence<'_>) -> Self {
        let entries =
            |seen: &[Observed]| -> BTreeSet<Entry> { seen.iter().map(Entry::of).collect() };
        let (before, after) = (entries(evidence.baseline), entries(evidence.inventory));
        let acted = |wanted: fn(Outcome) -> bool| -> BTreeSet<(ProviderName, Kind, &str)> {
            let done = evidence.report.items.iter().filter(|item| wanted(item.result));
            done.map(|item| (item.provider, item.kind, item.id.as_str())).collect()
        };
        let key = |entry: &Entry, set: &BTreeSet<(ProviderName, Kind, &str)>| {
            set.contains(&(entry.provider, entry.kind, entry.id.as_str()))
        };
        let gone = acted(|outcome| outcome == Outcome::Gone);
        let unverified = acted(Outcome::is_failure);
        let mut remaining: Vec<Entry> =
            after.iter().filter(|entry| key(entry, &gone)).cloned().collect();
        remaining.extend(before.iter().filter(|entry| key(entry, &unverified)).cloned());
        let missing = || before.difference(&after);
        let difference = Difference {
            released: missing().filter(|entry| key(entry, &gone)).cloned().collect(),
            vanished: missing()
                .filter(|entry| !key(entry, &gone) && !key(entry, &unverified))
                .cloned()
                .collect(),
            appeared: after.difference(&before).cloned().collect(),
            remaining,
        };
        Self {
            version: 1,
            verdict: if difference.remaining.is_empty() {
                Verdict::Clean
            } else {
                Verdict::Leaking
            },
            ledger: evidence.ledger,
            worlds: evidence.worlds,
            started_at: evidence.started_at,
            finished_at: Timestamp::now(),
            baseline: before.into_iter().collect(),
            actions: evidence.report.items.clone(),
            inventory: after.into_iter().collect(),
            difference,
        }
    }

    /// Writes the certificate, in whole or not at all.
    ///
    /// # Errors
    ///
    /// Fails when the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).expect("a certificate is plain data");
        os::write_atomically(path, &format!("{text}\n"))
    }
}
