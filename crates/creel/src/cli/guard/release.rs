//! Releases, verifies and certifies everything after the command has ended.

use std::path::Path;
use std::time::Instant;

use creel_core::pipeline::{CertificateRequest, Listing, Pipeline};
use creel_core::reap::{
    Certificate, CertificateVerdict, Difference, ItemReport, Outcome, appeared,
};
use creel_core::teardown::{Teardown, TeardownScope};
use creel_ledger::{Ledger, RecordFilter};
use creel_model::certificate::CertificateEntry;
use creel_model::failure::Code;
use creel_model::provider::Providers;
use jiff::Timestamp;

use crate::app::App;
use crate::cli::report::items_table;
use crate::output::{Exit, Failure, incomplete_audit, table};

use super::GuardSetup;
use super::events::EventFile;
use super::unexplained::Unexplained;

/// The context of the end of a guard.
pub(super) struct ReleaseContext<'a> {
    pub(super) app: &'a App,
    pub(super) setup: GuardSetup,
    /// What is released, and what stays.
    pub(super) scope: TeardownScope,
    /// Whether images stay.
    pub(super) images_stay: bool,
    pub(super) events: &'a EventFile,
    pub(super) certificate: Option<&'a Path>,
    pub(super) baseline: Listing,
    pub(super) providers: &'a Providers,
    pub(super) ledger: &'a Ledger,
}

/// Releases everything, and reports the outcome.
pub(super) async fn release(mut end: ReleaseContext<'_>) -> Result<(), Failure> {
    let (started_at, started) = (Timestamp::now(), Instant::now());
    let app = end.app;
    let held = std::mem::take(&mut end.setup.held);
    let ended = end.setup.supervisor.tear_down(held, end.scope).await?;
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
    let Some(path) = end.certificate else { return verdict(&ended) };
    let certificate = end.certify(started_at, &ended).await?;
    certificate.write(path).map_err(|error| {
        Failure::file(&format!("cannot write the certificate {}", path.display()), &error)
    })?;
    verdict(&ended).and_then(|()| certified(&certificate, path))
}

/// Fails unless everything that was to be released is verified gone.
fn verdict(ended: &Teardown) -> Result<(), Failure> {
    let failure = |message: String| {
        Err(Failure::new(Code::NotGone, Exit::Guard, message)
            .hint("creel ledger lists it; creel reconcile tries again"))
    };
    if let Some(provider) = ended.unreachable.first() {
        return failure(format!("what was created may still be there: {}", provider.error));
    }
    match (ended.outstanding.len(), ended.report.audit_incomplete) {
        (0, 0) => Ok(()),
        (0, unwritten) => Err(Failure::incomplete_audit(unwritten).exiting(Exit::Guard)),
        (not_gone, 0) => failure(format!("{not_gone} not verified gone")),
        (not_gone, unwritten) => {
            let unwritten = incomplete_audit(unwritten);
            failure(format!("{not_gone} not verified gone; {unwritten}"))
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
    /// Compares the current inventory with the one before the command.
    async fn certify(
        &self,
        started_at: Timestamp,
        ended: &Teardown,
    ) -> Result<Certificate, Failure> {
        let pipeline = Pipeline::new(self.providers.clone(), Some(self.ledger.clone()));
        let after = pipeline.list().await;
        let known = self.ledger.records(&RecordFilter::open()).await?;
        let unexplained = Unexplained {
            run: self.setup.claims.run(),
            images_stay: self.images_stay,
            known: &known,
            inventory: &after.inventory,
        };
        let unexplained = unexplained.among(appeared(&self.baseline.inventory, &after.inventory));
        let request = CertificateRequest {
            outstanding: &ended.outstanding,
            kept: ended.kept.iter().chain(&ended.protected).collect(),
            unexplained,
            ..CertificateRequest::of_plan(started_at, (&self.baseline, &after), &ended.report)
        };
        Ok(pipeline.certify(request).await)
    }
}

/// Lists objects by kind and name.
fn names_of(entries: &[CertificateEntry]) -> String {
    let names = entries.iter().map(|entry| format!("{} {}", entry.kind, entry.name));
    names.collect::<Vec<_>>().join(", ")
}
