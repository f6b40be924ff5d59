//! After the command: everything is released, verified and certified.

use std::path::Path;
use std::time::{Duration, Instant};

use creel_core::failure::Code;
use creel_core::ledger::Ledger;
use creel_core::provider::{ErrorClass, Kind, Providers};
use creel_core::reap::{Certificate, Evidence, ItemReport, Outcome, Report};
use creel_core::reconcile::{Status, Unreachable};
use jiff::Timestamp;

use crate::app::{App, Listing};
use crate::cli::report::items_table;
use crate::output::{Exit, Failure, table};

use super::Post;
use super::events::Events;

/// How long creates that were not answered are waited for; after it they are left to the next
/// reconcile.
const LATE: Duration = Duration::from_secs(5);
/// The first pause between two looks for them; later ones grow.
const PAUSE: Duration = Duration::from_millis(100);

/// What is needed at the end.
pub(super) struct End<'a> {
    pub(super) app: &'a App,
    pub(super) post: Post,
    /// Whether everything but processes and temporary files stays.
    pub(super) kept: bool,
    pub(super) events: &'a Events,
    pub(super) certificate: Option<&'a Path>,
    pub(super) baseline: Listing,
    pub(super) providers: &'a Providers,
    pub(super) ledger: &'a Ledger,
}

/// Gives everything back, and says what came of it.
pub(super) async fn give_back(end: End<'_>) -> Result<(), Failure> {
    let (started_at, started) = (Timestamp::now(), Instant::now());
    let app = end.app;
    let (items, unsettled) = if end.kept {
        let mut items = Vec::new();
        for held in end.post.held {
            // One that is not gone stays on record, for the next reconcile.
            items.extend(end.post.supervisor.release(held).await.ok());
        }
        (items, Unsettled::default())
    } else {
        end.post.held.into_iter().for_each(creel_core::scope::Held::forget);
        release_all(&end.post.supervisor).await?
    };
    for item in &items {
        end.events.released(item);
    }
    let report = Report { items, ..Report::default() };
    let gone = report.count(Outcome::Gone);
    let left: Vec<ItemReport> =
        report.items.iter().filter(|item| item.result != Outcome::Gone).cloned().collect();
    app.printer.say(&format!("gave back {gone} in {:.1}s", started.elapsed().as_secs_f64()));
    if !left.is_empty() {
        app.printer.say(&table::render(&items_table(&left)));
    }
    if let Some(path) = end.certificate {
        let after = app.list(end.providers, &[]).await;
        let certificate = Certificate::issue(Evidence {
            ledger: Some(end.ledger.id()),
            worlds: app.worlds(end.providers, |_| true).await.unwrap_or_default(),
            started_at,
            baseline: &end.baseline.inventory,
            report: &report,
            inventory: &after.inventory,
        });
        certificate.write(path).map_err(|error| {
            Failure::file(&format!("cannot write the certificate {}", path.display()), &error)
        })?;
    }
    let not_gone = left.iter().filter(|item| !may_stay(item)).count() + unsettled.open_intents;
    let failure = |message: String| {
        Err(Failure::new(Code::NotGone, Exit::Guard, message)
            .hint("creel ledger lists it; creel reconcile tries again"))
    };
    match unsettled.unreachable.first() {
        Some(world) => failure(format!("what was created may still be there: {}", world.error)),
        None if not_gone > 0 => failure(format!("{not_gone} not verified gone")),
        None => Ok(()),
    }
}

/// What nobody can say yet.
#[derive(Debug, Default)]
struct Unsettled {
    /// Creates that were not answered, and may still land.
    open_intents: usize,
    /// Worlds that could not be asked.
    unreachable: Vec<Unreachable>,
}

/// Returns whether something may stay without a failure of the guard: what is protected, and an
/// image that somebody else uses by now. That one stays on record, and goes when they are done.
fn may_stay(item: &ItemReport) -> bool {
    let is_used = item.kind == Kind::Image && item.class == Some(ErrorClass::InUse);
    item.result == Outcome::Spared || is_used
}

/// Releases what is on record in this process's name, until nothing is left or can land late.
async fn release_all(
    supervisor: &creel_core::scope::Supervisor,
) -> Result<(Vec<ItemReport>, Unsettled), Failure> {
    let (deadline, mut pause) = (Instant::now() + LATE, PAUSE);
    let mut items: Vec<ItemReport> = Vec::new();
    loop {
        let status = supervisor.release_all().await?;
        for item in &status.items {
            items.retain(|known| known.id != item.id || known.kind != item.kind);
            items.push(item.clone());
        }
        let waits_for_others = status.open_intents == 0
            && status.unreachable.is_empty()
            && items.iter().all(|item| item.result == Outcome::Gone || may_stay(item));
        if status.is_final() || waits_for_others || Instant::now() > deadline {
            let Status { open_intents, unreachable, .. } = status;
            return Ok((items, Unsettled { open_intents, unreachable }));
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}
