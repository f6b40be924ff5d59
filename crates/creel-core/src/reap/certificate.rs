//! The leak certificate: what existed before, what was done, and what is left.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use creel_model::certificate::CertificateEntry;
use creel_model::id::LedgerId;
use creel_model::os;
use creel_model::provider::{Kind, Observed, ProviderError, ProviderName};
use jiff::Timestamp;
use serde::Serialize;

use crate::plan::ProviderIdentity;

use super::{ItemReport, Outcome, Report, is_zero};

/// The verdict of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CertificateVerdict {
    /// Everything that should be gone is verified gone, and the final inventory agrees.
    #[serde(rename = "clean")]
    Clean,
    /// Something that should be gone still exists, its absence is not verified, or an unexplained
    /// object appeared.
    #[serde(rename = "leaking")]
    Leaking,
    /// Everything that should be gone is gone. The rest stays on record, as requested or protected.
    #[serde(rename = "kept")]
    Kept,
    /// Nothing is known to be left, but an inventory could not be read.
    #[serde(rename = "inventory unread")]
    InventoryUnread,
}

/// A provider whose inventory could not be read.
#[derive(Debug, Clone, Serialize)]
pub struct UnreadInventory {
    /// The provider.
    pub provider: ProviderName,
    /// The provider's error.
    pub error: String,
}

impl From<&ProviderError> for UnreadInventory {
    fn from(error: &ProviderError) -> Self {
        Self { provider: error.provider, error: error.message.clone() }
    }
}

/// The difference between the inventories. It omits providers that were not read twice.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// Gone, released by us.
    pub released: Vec<CertificateEntry>,
    /// Gone, not released by us.
    pub vanished: Vec<CertificateEntry>,
    /// New since the baseline.
    pub appeared: Vec<CertificateEntry>,
    /// New objects that may be ours and are not on record.
    pub unexplained: Vec<CertificateEntry>,
    /// Objects that should be gone, but are in the final inventory or unverified.
    pub remaining: Vec<CertificateEntry>,
}

/// The proof of one release: two inventories, the actions in between, and the difference.
#[derive(Debug, Clone, Serialize)]
#[must_use]
pub struct Certificate {
    /// The version of this format.
    pub version: u32,
    /// The verdict.
    pub verdict: CertificateVerdict,
    /// The ledger of the issuer.
    pub ledger: Option<LedgerId>,
    /// The providers it covers.
    #[serde(rename = "worlds")]
    pub identities: Vec<ProviderIdentity>,
    /// When the baseline was taken.
    pub started_at: Timestamp,
    /// When the final inventory was taken.
    pub finished_at: Timestamp,
    /// The objects that existed before.
    pub baseline: Vec<CertificateEntry>,
    /// The actions that were taken.
    pub actions: Vec<ItemReport>,
    /// The objects that exist now.
    pub inventory: Vec<CertificateEntry>,
    /// The providers whose inventory could not be read, before or after.
    pub unread: Vec<UnreadInventory>,
    /// The objects that stay on record, as requested or protected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<CertificateEntry>,
    /// How many changes and attempts could not be written to the ledger, because the disk is full.
    #[serde(skip_serializing_if = "is_zero")]
    pub audit_incomplete: usize,
    /// The difference between the two inventories.
    pub difference: Difference,
}

/// The input of a certificate.
#[derive(Debug)]
pub(crate) struct CertificateEvidence<'a> {
    /// The ledger of the issuer.
    pub(crate) ledger: Option<LedgerId>,
    /// The providers it covers.
    pub(crate) identities: Vec<ProviderIdentity>,
    /// When the baseline was taken.
    pub(crate) started_at: Timestamp,
    /// The objects that existed before.
    pub(crate) baseline: &'a [Observed],
    /// The actions that were taken.
    pub(crate) report: &'a Report,
    /// The objects that exist now.
    pub(crate) inventory: &'a [Observed],
    /// The providers whose inventory could not be read, before or after.
    pub(crate) unread: Vec<UnreadInventory>,
    /// The objects on record that still have to be released, whether an inventory shows them or
    /// not.
    pub(crate) outstanding: Vec<CertificateEntry>,
    /// The objects that stay on record, as requested or protected.
    pub(crate) kept: Vec<CertificateEntry>,
    /// Those of the [`appeared`] objects that may be ours and are not on record.
    pub(crate) unexplained: Vec<CertificateEntry>,
}

impl Certificate {
    /// Compares the inventories and determines the verdict.
    pub(crate) fn issue(evidence: CertificateEvidence<'_>) -> Self {
        let difference = Difference::of(&evidence);
        let leaking = !difference.remaining.is_empty() || !difference.unexplained.is_empty();
        let verdict = match (leaking, evidence.unread.is_empty(), evidence.kept.is_empty()) {
            (true, ..) => CertificateVerdict::Leaking,
            (false, false, _) => CertificateVerdict::InventoryUnread,
            (false, true, false) => CertificateVerdict::Kept,
            (false, true, true) => CertificateVerdict::Clean,
        };
        Self {
            version: 1,
            verdict,
            ledger: evidence.ledger,
            identities: evidence.identities,
            started_at: evidence.started_at,
            finished_at: Timestamp::now(),
            baseline: entries(evidence.baseline),
            actions: evidence.report.items.clone(),
            inventory: entries(evidence.inventory),
            unread: evidence.unread,
            kept: sorted(evidence.kept.into_iter()),
            audit_incomplete: evidence.report.audit_incomplete,
            difference,
        }
    }

    /// Writes the certificate atomically.
    ///
    /// # Errors
    ///
    /// Fails when the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).expect("a certificate is plain data");
        os::write_atomically(path, &format!("{text}\n"))
    }
}

/// The key that identifies an object. It has no name, because an image may have been renamed.
type EntryKey<'a> = (ProviderName, Kind, &'a str);

/// Returns the objects that only the second inventory has.
pub fn appeared<'a>(before: &[Observed], after: &'a [Observed]) -> Vec<&'a Observed> {
    let known = keys(before);
    after.iter().filter(|seen| !known.contains(&key(seen))).collect()
}

impl Difference {
    fn of(evidence: &CertificateEvidence<'_>) -> Self {
        let is_read = |provider: ProviderName| {
            evidence.unread.iter().all(|unread| unread.provider != provider)
        };
        let entries_of = |seen: Vec<&Observed>, wanted: &dyn Fn(&Observed) -> bool| {
            let wanted = |seen: &&Observed| is_read(seen.provider) && wanted(seen);
            sorted(seen.into_iter().filter(wanted).map(CertificateEntry::of))
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

impl CertificateEvidence<'_> {
    /// Returns the items with a matching outcome.
    fn acted(&self, wanted: fn(Outcome) -> bool) -> BTreeSet<EntryKey<'_>> {
        let done = self.report.items.iter().filter(|item| wanted(item.result));
        done.map(|item| (item.provider, item.kind, item.id.as_str())).collect()
    }
}

/// Returns the objects that should be gone but are not verified gone.
///
/// These are failed releases, objects still on record, and objects that were reported as gone but
/// are in the inventory.
fn remaining(
    evidence: &CertificateEvidence<'_>,
    gone: &BTreeSet<EntryKey<'_>>,
) -> Vec<CertificateEntry> {
    let failed = evidence.report.items.iter().filter(|item| item.result.is_failure());
    let failed = failed.map(|item| CertificateEntry {
        provider: item.provider,
        kind: item.kind,
        id: item.id.clone(),
        name: item.name.as_str().into(),
    });
    let there = evidence
        .inventory
        .iter()
        .filter(|seen| gone.contains(&key(seen)))
        .map(CertificateEntry::of);
    let mut remaining = sorted(failed.chain(there).chain(evidence.outstanding.iter().cloned()));
    // A record may have another name for the object than its release.
    remaining.dedup_by(|a, b| (a.provider, a.kind, &a.id) == (b.provider, b.kind, &b.id));
    remaining
}

fn key(seen: &Observed) -> EntryKey<'_> {
    (seen.provider, seen.kind, &seen.id)
}

fn keys(seen: &[Observed]) -> BTreeSet<EntryKey<'_>> {
    seen.iter().map(key).collect()
}

fn entries(seen: &[Observed]) -> Vec<CertificateEntry> {
    sorted(seen.iter().map(CertificateEntry::of))
}

fn sorted(entries: impl Iterator<Item = CertificateEntry>) -> Vec<CertificateEntry> {
    entries.collect::<BTreeSet<CertificateEntry>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::selector::tests::container;

    fn volume(name: &str) -> Observed {
        Observed::known_by_id(creel_docker::NAME, Kind::Volume, name)
    }

    fn evidence<'a>(
        baseline: &'a [Observed],
        report: &'a Report,
        inventory: &'a [Observed],
    ) -> CertificateEvidence<'a> {
        CertificateEvidence {
            ledger: None,
            identities: Vec::new(),
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
        let unread =
            UnreadInventory { provider: creel_docker::NAME, error: "no answer".to_owned() };
        let evidence =
            CertificateEvidence { unread: vec![unread], ..evidence(&baseline, &report, &[]) };
        let certificate = Certificate::issue(evidence);
        assert_eq!(certificate.verdict, CertificateVerdict::InventoryUnread);
        let Difference { released, vanished, appeared, .. } = certificate.difference;
        assert!(released.is_empty() && vanished.is_empty() && appeared.is_empty());
        let text = serde_json::to_value(certificate.verdict).unwrap();
        assert_eq!(text, "inventory unread");
    }

    #[test]
    fn what_is_outstanding_on_record_leaks_though_no_inventory_shows_it() {
        let report = Report::default();
        let outstanding = vec![CertificateEntry::of(&volume("v"))];
        let evidence = CertificateEvidence { outstanding, ..evidence(&[], &report, &[]) };
        let certificate = Certificate::issue(evidence);
        assert_eq!(certificate.verdict, CertificateVerdict::Leaking);
        assert_eq!(certificate.difference.remaining, [CertificateEntry::of(&volume("v"))]);
    }

    #[test]
    fn only_what_appeared_without_an_explanation_leaks() {
        let (report, after) = (Report::default(), [volume("theirs"), volume("unknown")]);
        let clean = Certificate::issue(evidence(&[], &report, &after));
        assert_eq!(
            (clean.verdict, clean.difference.appeared.len()),
            (CertificateVerdict::Clean, 2)
        );
        let unexplained = vec![CertificateEntry::of(&volume("unknown"))];
        let leaking = CertificateEvidence { unexplained, ..evidence(&[], &report, &after) };
        assert_eq!(Certificate::issue(leaking).verdict, CertificateVerdict::Leaking);
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
