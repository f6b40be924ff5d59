//! The leak certificate: what was there, what was done, what is left.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::LedgerId;
use crate::ledger::Record;
use crate::os;
use crate::plan::World;
use crate::provider::{Kind, Observed, ProviderError, ProviderName};
use crate::sanitise::Masked;

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
    pub name: Masked,
}

impl Entry {
    /// Describes something that was seen.
    pub fn of(seen: &Observed) -> Self {
        Self {
            provider: seen.provider,
            kind: seen.kind,
            id: seen.id.clone(),
            name: seen.name.as_str().into(),
        }
    }
}

impl From<&Record> for Entry {
    fn from(record: &Record) -> Self {
        Self {
            provider: record.provider,
            kind: record.kind,
            id: record.state.object().unwrap_or(&record.name).to_owned(),
            name: record.name.as_str().into(),
        }
    }
}

/// What the certificate says in a word or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Everything that was to go is verified gone, and the final inventory agrees.
    #[serde(rename = "clean")]
    Clean,
    /// Something that was to go is still there, its absence is not verified, or something
    /// appeared that nothing explains.
    #[serde(rename = "leaking")]
    Leaking,
    /// What was to go is gone; the rest stays on record, as was asked for.
    #[serde(rename = "kept")]
    Kept,
    /// Nothing is known to be left, but an inventory could not be read.
    #[serde(rename = "inventory unread")]
    InventoryUnread,
}

/// A provider whose inventory could not be read.
#[derive(Debug, Clone, Serialize)]
pub struct Unread {
    /// Which one.
    pub provider: ProviderName,
    /// What it said, or did not.
    pub error: String,
}

impl From<&ProviderError> for Unread {
    fn from(error: &ProviderError) -> Self {
        Self { provider: error.provider, error: error.message.clone() }
    }
}

/// How the inventories differ; of a provider that was not read twice it says nothing.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// Gone, and we released it.
    pub released: Vec<Entry>,
    /// Gone, but not by us.
    pub vanished: Vec<Entry>,
    /// New since the baseline.
    pub appeared: Vec<Entry>,
    /// Of what is new, that which may be ours and is not on record.
    pub unexplained: Vec<Entry>,
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
    /// The providers whose inventory could not be read, before or after.
    pub unread: Vec<Unread>,
    /// What stays on record, as was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Entry>,
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
    /// The providers whose inventory could not be read, before or after.
    pub unread: Vec<Unread>,
    /// What is on record as still to go, whether an inventory shows it or not.
    pub outstanding: Vec<Entry>,
    /// What stays on record, as was asked for.
    pub kept: Vec<Entry>,
    /// Of what [`appeared`], that which may be ours and is not on record.
    pub unexplained: Vec<Entry>,
}

impl Certificate {
    /// Compares the inventories and judges.
    pub fn issue(evidence: Evidence<'_>) -> Self {
        let difference = Difference::of(&evidence);
        let leaking = !difference.remaining.is_empty() || !difference.unexplained.is_empty();
        let verdict = match (leaking, evidence.unread.is_empty(), evidence.kept.is_empty()) {
            (true, ..) => Verdict::Leaking,
            (false, false, _) => Verdict::InventoryUnread,
            (false, true, false) => Verdict::Kept,
            (false, true, true) => Verdict::Clean,
        };
        Self {
            version: 1,
            verdict,
            ledger: evidence.ledger,
            worlds: evidence.worlds,
            started_at: evidence.started_at,
            finished_at: Timestamp::now(),
            baseline: entries(evidence.baseline),
            actions: evidence.report.items.clone(),
            inventory: entries(evidence.inventory),
            unread: evidence.unread,
            kept: sorted(evidence.kept.into_iter()),
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

/// What tells one object from another; an image may have another name by now.
type Key<'a> = (ProviderName, Kind, &'a str);

/// Returns what the second inventory has and the first one has not.
pub fn appeared<'a>(before: &[Observed], after: &'a [Observed]) -> Vec<&'a Observed> {
    let known = keys(before);
    after.iter().filter(|seen| !known.contains(&key(seen))).collect()
}

impl Difference {
    fn of(evidence: &Evidence<'_>) -> Self {
        let is_read = |provider: ProviderName| {
            evidence.unread.iter().all(|unread| unread.provider != provider)
        };
        let entries_of = |seen: Vec<&Observed>, wanted: &dyn Fn(&Observed) -> bool| {
            let wanted = |seen: &&Observed| is_read(seen.provider) && wanted(seen);
            sorted(seen.into_iter().filter(wanted).map(Entry::of))
        };
        let (gone, failed) = (
            evidence.acted(|outcome| outcome == Outcome::Gone),
            evidence.acted(Outcome::is_failure),
        );
        let is_ours = |seen: &Observed| gone.contains(&key(seen)) || failed.contains(&key(seen));
        let missing = || appeared(evidence.inventory, evidence.baseline);
        let unexplained = evidence.unexplained.iter().filter(|entry| is_read(entry.provider));
        Self {
            released: entries_of(missing(), &|seen| gone.contains(&key(seen))),
            vanished: entries_of(missing(), &|seen| !is_ours(seen)),
            appeared: entries_of(appeared(evidence.baseline, evidence.inventory), &|_| true),
            unexplained: sorted(unexplained.cloned()),
            remaining: remaining(evidence, &gone),
        }
    }
}

impl Evidence<'_> {
    /// Returns what ended so.
    fn acted(&self, wanted: fn(Outcome) -> bool) -> BTreeSet<Key<'_>> {
        let done = self.report.items.iter().filter(|item| wanted(item.result));
        done.map(|item| (item.provider, item.kind, item.id.as_str())).collect()
    }
}

/// Returns what should have gone: what a release did not achieve, what is still on record, and
/// what was called gone and is in the inventory all the same.
fn remaining(evidence: &Evidence<'_>, gone: &BTreeSet<Key<'_>>) -> Vec<Entry> {
    let failed = evidence.report.items.iter().filter(|item| item.result.is_failure());
    let failed = failed.map(|item| Entry {
        provider: item.provider,
        kind: item.kind,
        id: item.id.clone(),
        name: item.name.as_str().into(),
    });
    let there = evidence.inventory.iter().filter(|seen| gone.contains(&key(seen))).map(Entry::of);
    let mut remaining = sorted(failed.chain(there).chain(evidence.outstanding.iter().cloned()));
    // A record may know the object under a name that its release did not.
    remaining.dedup_by(|a, b| (a.provider, a.kind, &a.id) == (b.provider, b.kind, &b.id));
    remaining
}

fn key(seen: &Observed) -> Key<'_> {
    (seen.provider, seen.kind, &seen.id)
}

fn keys(seen: &[Observed]) -> BTreeSet<Key<'_>> {
    seen.iter().map(key).collect()
}

fn entries(seen: &[Observed]) -> Vec<Entry> {
    sorted(seen.iter().map(Entry::of))
}

fn sorted(entries: impl Iterator<Item = Entry>) -> Vec<Entry> {
    entries.collect::<BTreeSet<Entry>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::selector::tests::container;

    fn volume(name: &str) -> Observed {
        Observed::known_by_id(ProviderName::Docker, Kind::Volume, name)
    }

    fn evidence<'a>(
        baseline: &'a [Observed],
        report: &'a Report,
        inventory: &'a [Observed],
    ) -> Evidence<'a> {
        Evidence {
            ledger: None,
            worlds: Vec::new(),
            started_at: Timestamp::now(),
            baseline,
            report,
            inventory,
            unread: Vec::new(),
            outstanding: Vec::new(),
            kept: Vec::new(),
            unexplained: Vec::new(),
        }
    }

    #[test]
    fn an_inventory_that_could_not_be_read_proves_nothing() {
        let (baseline, report) = ([container("a", "running"), volume("v")], Report::default());
        let unread = Unread { provider: ProviderName::Docker, error: "no answer".to_owned() };
        let evidence = Evidence { unread: vec![unread], ..evidence(&baseline, &report, &[]) };
        let certificate = Certificate::issue(evidence);
        assert_eq!(certificate.verdict, Verdict::InventoryUnread);
        let Difference { released, vanished, appeared, .. } = certificate.difference;
        assert!(released.is_empty() && vanished.is_empty() && appeared.is_empty());
        let text = serde_json::to_value(certificate.verdict).unwrap();
        assert_eq!(text, "inventory unread");
    }

    #[test]
    fn what_is_outstanding_on_record_leaks_though_no_inventory_shows_it() {
        let report = Report::default();
        let outstanding = vec![Entry::of(&volume("v"))];
        let evidence = Evidence { outstanding, ..evidence(&[], &report, &[]) };
        let certificate = Certificate::issue(evidence);
        assert_eq!(certificate.verdict, Verdict::Leaking);
        assert_eq!(certificate.difference.remaining, [Entry::of(&volume("v"))]);
    }

    #[test]
    fn only_what_appeared_without_an_explanation_leaks() {
        let (report, after) = (Report::default(), [volume("theirs"), volume("unknown")]);
        let clean = Certificate::issue(evidence(&[], &report, &after));
        assert_eq!((clean.verdict, clean.difference.appeared.len()), (Verdict::Clean, 2));
        let unexplained = vec![Entry::of(&volume("unknown"))];
        let leaking = Evidence { unexplained, ..evidence(&[], &report, &after) };
        assert_eq!(Certificate::issue(leaking).verdict, Verdict::Leaking);
    }

    #[test]
    fn an_object_under_another_name_neither_vanished_nor_appeared() {
        let (before, mut after) = (container("a", "running"), container("a", "running"));
        after.id.clone_from(&before.id);
        after.name = "renamed".to_owned();
        let (before, after, report) = ([before], [after], Report::default());
        let difference = Certificate::issue(evidence(&before, &report, &after)).difference;
        assert!(difference.vanished.is_empty() && difference.appeared.is_empty());
    }
}
