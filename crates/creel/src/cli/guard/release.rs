//! Releases, verifies and certifies everything after the command has ended.

use std::path::Path;
use std::time::{Duration, Instant};

use creel_core::reap::{
    Certificate, CertificateEvidence, CertificateVerdict, Difference, ItemReport, Outcome, Report,
    appeared,
};
use creel_core::reconcile::Unreachable;
use creel_ledger::{Ledger, OnOwnerDeath, Record, RecordFilter};
use creel_model::certificate::CertificateEntry;
use creel_model::failure::Code;
use creel_model::provider::{ErrorClass, Kind, Providers};
use jiff::Timestamp;

use crate::app::{App, Listing};
use crate::cli::report::items_table;
use crate::output::{Exit, Failure, table};

use super::GuardSetup;
use super::events::EventFile;
use super::unexplained::Unexplained;

/// How long to wait for creates without a response. After it they are left to the next reconcile.
const LATE: Duration = Duration::from_secs(5);
/// The first pause between two searches for them. Later pauses grow.
const PAUSE: Duration = Duration::from_millis(100);

/// The context of the end of a guard.
pub(super) struct ReleaseContext<'a> {
    pub(super) app: &'a App,
    pub(super) setup: GuardSetup,
    /// Whether everything but processes and temporary files stays.
    pub(super) kept: bool,
    /// Whether images stay.
    pub(super) images_stay: bool,
    pub(super) events: &'a EventFile,
    pub(super) certificate: Option<&'a Path>,
    pub(super) baseline: Listing,
    pub(super) providers: &'a Providers,
    pub(super) ledger: &'a Ledger,
}

/// The outcome of a guard's end.
struct ReleaseOutcome {
    /// What was released, with the outcome of each release.
    report: Report,
    /// The records that are still to be released.
    outstanding: Vec<Record>,
    /// The records that stay, as requested with `--keep`.
    kept: Vec<Record>,
    /// The records whose object a label or a rule protects.
    protected: Vec<Record>,
    /// Providers that could not be reached.
    unreachable: Vec<Unreachable>,
}

/// Releases everything, and reports the outcome.
pub(super) async fn release(mut end: ReleaseContext<'_>) -> Result<(), Failure> {
    let (started_at, started) = (Timestamp::now(), Instant::now());
    let app = end.app;
    let ended = end.release().await?;
    for item in &ended.report.items {
        end.events.released(item);
    }
    let gone = ended.report.count(Outcome::Gone);
    let left: Vec<ItemReport> =
        ended.report.items.iter().filter(|item| item.result != Outcome::Gone).cloned().collect();
    app.printer.say(&format!("released {gone} in {:.1}s", started.elapsed().as_secs_f64()));
    if !left.is_empty() {
        app.printer.say(&table::render(&items_table(&left)));
    }
    if !ended.kept.is_empty() {
        let kept = ended.kept.len();
        app.printer.say(&format!("kept {kept}; remove them with: creel sweep --owned --apply"));
    }
    let Some(path) = end.certificate else { return ended.verdict() };
    let certificate = end.certify(started_at, &ended).await?;
    certificate.write(path).map_err(|error| {
        Failure::file(&format!("cannot write the certificate {}", path.display()), &error)
    })?;
    ended.verdict().and_then(|()| certified(&certificate, path))
}

impl ReleaseOutcome {
    /// Fails unless everything that was to be released is verified gone.
    fn verdict(&self) -> Result<(), Failure> {
        let failure = |message: String| {
            Err(Failure::new(Code::NotGone, Exit::Guard, message)
                .hint("creel ledger lists it; creel reconcile tries again"))
        };
        if let Some(provider) = self.unreachable.first() {
            return failure(format!("what was created may still be there: {}", provider.error));
        }
        match self.outstanding.len() {
            0 if self.report.audit_incomplete > 0 => failure(format!(
                "{} changes could not be written to the ledger",
                self.report.audit_incomplete
            )),
            0 => Ok(()),
            not_gone => failure(format!("{not_gone} not verified gone")),
        }
    }
}

/// Fails if the certificate does not say that everything is gone or stays as requested.
fn certified(certificate: &Certificate, path: &Path) -> Result<(), Failure> {
    let listed = format!("the certificate {} lists everything", path.display());
    match certificate.verdict {
        CertificateVerdict::Clean | CertificateVerdict::Kept => Ok(()),
        CertificateVerdict::Leaking => {
            let Difference { unexplained, remaining, .. } = &certificate.difference;
            let parts = [
                (remaining, "not verified gone"),
                (unexplained, "appeared, and no record says who made it"),
            ];
            let parts = parts.into_iter().filter(|(entries, _)| !entries.is_empty());
            let parts: Vec<String> =
                parts.map(|(entries, what)| format!("{what}: {}", names_of(entries))).collect();
            Err(Failure::new(Code::NotGone, Exit::Guard, parts.join("; "))
                .hint("if it may go: creel rm NAME")
                .hint(listed))
        }
        CertificateVerdict::InventoryUnread => {
            let unread = certificate.unread.iter();
            let unread: Vec<String> =
                unread.map(|one| format!("{}: {}", one.provider, one.error)).collect();
            let message = format!("the final inventory could not be read: {}", unread.join("; "));
            Err(Failure::new(Code::Unreachable, Exit::Guard, message)
                .hint("creel doctor shows what was tried and what answered")
                .hint(listed))
        }
    }
}

impl ReleaseContext<'_> {
    /// Releases everything that is not to be kept.
    async fn release(&mut self) -> Result<ReleaseOutcome, Failure> {
        let held = std::mem::take(&mut self.setup.held);
        let supervisor = &self.setup.supervisor;
        let (mut report, mut unreachable) = (Report::default(), Vec::new());
        if self.kept {
            for held in held {
                // A resource that is not gone stays on record, which is read below.
                report.items.extend(supervisor.release(held).await.ok());
            }
        } else {
            held.into_iter().for_each(creel_core::scope::Held::forget);
            (report, unreachable) = release_all(supervisor).await?;
        }
        let mine = RecordFilter::open().of(&supervisor.owner().owner);
        let mut outstanding = self.ledger.records(&mine).await?;
        let is_kept =
            |record: &mut Record| self.kept && record.on_owner_death == OnOwnerDeath::Hold;
        let kept = outstanding.extract_if(.., is_kept).collect();
        let is_protected = |record: &mut Record| {
            let mut items = report.items.iter();
            items.any(|item| item.resource == Some(record.id) && item.is_protected)
        };
        let protected = outstanding.extract_if(.., is_protected).collect();
        Ok(ReleaseOutcome { report, outstanding, kept, protected, unreachable })
    }

    /// Compares the current inventory with the one before the command.
    async fn certify(
        &self,
        started_at: Timestamp,
        ended: &ReleaseOutcome,
    ) -> Result<Certificate, Failure> {
        let after = self.app.list(self.providers, &[]).await;
        let known = self.ledger.records(&RecordFilter::open()).await?;
        let unexplained = Unexplained {
            run: self.setup.claims.run(),
            images_stay: self.images_stay,
            known: &known,
            inventory: &after.inventory,
        };
        let unexplained = unexplained.among(appeared(&self.baseline.inventory, &after.inventory));
        Ok(Certificate::issue(CertificateEvidence {
            ledger: Some(self.ledger.id()),
            identities: self.app.identities(self.providers, |_| true).await.unwrap_or_default(),
            started_at,
            baseline: &self.baseline.inventory,
            report: &ended.report,
            inventory: &after.inventory,
            unread: after.unread(),
            outstanding: ended.outstanding.iter().map(CertificateEntry::from).collect(),
            kept: ended.kept.iter().chain(&ended.protected).map(CertificateEntry::from).collect(),
            unexplained,
        }))
    }
}

/// Lists objects by kind and name.
fn names_of(entries: &[CertificateEntry]) -> String {
    let names = entries.iter().map(|entry| format!("{} {}", entry.kind, entry.name));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns whether the guard need not wait for this item: it is protected, or a foreign container
/// uses the image.
fn stays(item: &ItemReport) -> bool {
    let is_used = item.kind == Kind::Image && item.class == Some(ErrorClass::InUse);
    // An image that only other images depend on has no user: its build was cut.
    let by_container = item.reason.as_ref().is_some_and(|reason| reason.contains("container"));
    item.result == Outcome::Spared || (is_used && by_container)
}

/// Releases the records of this process, until nothing is left or can land late.
async fn release_all(
    supervisor: &creel_core::scope::Supervisor,
) -> Result<(Report, Vec<Unreachable>), Failure> {
    let (deadline, mut pause) = (Instant::now() + LATE, PAUSE);
    let mut items: Vec<ItemReport> = Vec::new();
    loop {
        let status = supervisor.release_all().await?;
        for item in &status.items {
            items.retain(|known| known.id != item.id || known.kind != item.kind);
            items.push(item.clone());
        }
        let waits_for_others = status.open_intents == 0
            && status.recovered == 0
            && status.unreachable.is_empty()
            && items.iter().all(|item| item.result == Outcome::Gone || stays(item));
        if status.is_final() || waits_for_others || Instant::now() > deadline {
            let report = Report { items, audit_incomplete: status.audit_incomplete };
            return Ok((report, status.unreachable));
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}
