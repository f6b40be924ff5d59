//! `creel stop`: stops named resources without releasing them.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use creel_core::cleanup::Cleanup;
use creel_core::pipeline::{Listing, Survey};
use creel_core::plan::PlanItem;
use creel_model::failure::Code;
use creel_model::provider::{ErrorClass, Kind, ProviderError, ProviderName};
use futures::future::join_all;
use serde::Serialize;

use crate::app::App;
use crate::backends::{parse_name, provider_help};
use crate::output::{Exit, Failure, table};

use super::finder::Finder;

/// Stop sandboxes, containers and process trees without releasing them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel stop web-1
  creel stop web-1 web-2 --stop-timeout 2s")]
pub(crate) struct Stop {
    /// The resources to stop
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Wait this long before killing
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = creel_model::duration::parse)]
    stop_timeout: Duration,
    #[arg(long, value_name = "NAME", value_parser = parse_name, help = provider_help())]
    provider: Vec<ProviderName>,
    /// Also stop resources held by a live owner
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct StopJson {
    version: u32,
    stopped: usize,
    failed: usize,
    items: Vec<StoppedJson>,
}

#[derive(Serialize)]
struct StoppedJson {
    provider: ProviderName,
    kind: Kind,
    id: String,
    name: String,
    result: &'static str,
    reason: Option<String>,
}

impl Stop {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let providers = app.providers(&self.provider)?;
        let ledger = app.ledger_if_any().await;
        let listing = Listing::read(&providers, &[]).await;
        let survey = &Survey::new(listing, ledger.as_ref()).await?;
        let (ledger, force) = (ledger.as_ref(), self.force);
        let finder = Finder { app, ledger, survey, providers: &providers, force };
        let items = finder.find_all(&self.ids).await?;
        let timeout = self.stop_timeout;
        let stops = items.into_iter().map(|item| {
            let provider = providers.get(item.seen.provider).map(Arc::clone);
            async move {
                let provider = provider?;
                let cleanup = Cleanup::new(provider).with_options(app.reap_options());
                Ok((cleanup.stop(item.seen.kind, &item.seen.id, timeout).await, item))
            }
        });
        let done: Result<Vec<_>, ProviderError> = join_all(stops).await.into_iter().collect();
        show(app, done?)
    }
}

fn show(app: &App, done: Vec<(Result<(), ProviderError>, PlanItem)>) -> Result<Exit, Failure> {
    let lost = done
        .iter()
        .any(|(result, _)| matches!(result, Err(e) if e.class == ErrorClass::Unreachable));
    let items: Vec<StoppedJson> = done
        .into_iter()
        .map(|(result, item)| StoppedJson {
            provider: item.seen.provider,
            kind: item.seen.kind,
            id: item.seen.id,
            name: item.seen.name,
            result: if result.is_ok() { "stopped" } else { "failed" },
            reason: result.err().map(|error| error.message),
        })
        .collect();
    let failed = items.iter().filter(|item| item.reason.is_some()).count();
    let stopped = items.len() - failed;
    if app.printer.json {
        app.printer.json(&StopJson { version: 1, stopped, failed, items });
    } else {
        let mut table = table::new(&["RESULT", "KIND", "ID", "NAME", "REASON"]);
        for item in &items {
            table.add_row([
                item.result.to_owned(),
                item.kind.to_string(),
                table::short_id(&item.id).to_owned(),
                item.name.clone(),
                item.reason.clone().unwrap_or_default(),
            ]);
        }
        app.printer.data(&table::render(&table));
    }
    match (failed, lost) {
        (0, _) => Ok(Exit::Done),
        (_, true) => {
            Err(Failure::new(Code::Unreachable, Exit::Provider, "a provider stopped answering")
                .after_output())
        }
        (_, false) => Err(Failure::new(
            Code::NotGone,
            Exit::Unverified,
            format!("{failed} could not be stopped"),
        )
        .hint("creel rm releases them whether they stop or not")
        .after_output()),
    }
}
