//! Cleanup as a library: list, stop and release.
//!
//! This module is for harnesses that clean up after themselves without the command line. Each
//! release is retried as the policy says, verified, and reported. Nothing fails silently. The
//! example works on directories, which need no engine. With a
//! [`DockerProvider`](creel_docker::DockerProvider) the same calls work on containers,
//! networks, volumes and images.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use creel_core::cleanup::Cleanup;
//! use creel_process::{HolderProgram, ProcessProvider, ProcessSettings};
//! use creel_model::provider::{Kind, Provider};
//! use creel_core::reap::Outcome;
//! use creel_core::select::Selector;
//! # use creel_model::id::ResourceId;
//! # use creel_model::labels::Labels;
//! # use creel_model::provider::{CreateRequest, Spec};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! let local: Arc<dyn Provider> = Arc::new(ProcessProvider::new(ProcessSettings {
//!     root: home.path().join("sandboxes"),
//!     // Directories need no holder; process trees do.
//!     holder: HolderProgram { program: "/bin/false".into(), args: vec![] },
//!     containment: None,
//! }));
//! # let leave = async |job: &str| {
//! #     let resource = ResourceId::new();
//! #     let labels = Labels::from([("job".to_owned(), job.to_owned())]);
//! #     let (name, lease) = (resource.object_name(), Duration::from_secs(60));
//! #     local.create(&CreateRequest { resource, name, labels, lease, spec: Spec::Directory }).await
//! # };
//! # let first = leave("nightly").await?;
//! # leave("nightly").await?;
//! # leave("nightly-2").await?;
//!
//! // Earlier jobs left three directories behind.
//! let cleanup = Cleanup::new(Arc::clone(&local));
//! assert_eq!(cleanup.list().await?.len(), 3);
//!
//! // One, by its id.
//! let report = cleanup.release(Kind::Directory, &first).await?;
//! assert_eq!((report.result, report.tries), (Outcome::Gone, 1));
//!
//! // Those with a label.
//! let nightly = Selector { labels: vec!["job=nightly".parse()?], ..Selector::default() };
//! let report = cleanup.release_matching(&[nightly]).await?;
//! assert_eq!(report.count(Outcome::Gone), 1);
//!
//! // Those that are a day old: none yet.
//! let day = Duration::from_secs(24 * 60 * 60);
//! let report = cleanup.release_old(Kind::Directory, day).await?;
//! assert!(report.items.is_empty());
//! assert_eq!(cleanup.list().await?.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! The same calls clean up cloud sandboxes. This example runs against a local server; without
//! `api_url` it runs against Daytona itself.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use creel_core::cleanup::Cleanup;
//! use creel_model::provider::Kind;
//! use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
//! use creel_core::reap::Outcome;
//! # use creel_daytona_server::{Scenario, Server, Settings};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let seeds = [("started", 2, 0), ("stopped", 2, 0), ("started", 1, 172_800)];
//! # let seeds = seeds.map(|(state, count, age)| {
//! #     format!("[[seeds]]\nstate = '{state}'\ncount = {count}\nage_seconds = {age}\nidle_seconds = 0\n")
//! # });
//! # let scenario: Scenario = toml::from_str(&seeds.concat())?;
//! # let server = Server::start(Settings { scenario, ..Settings::hollow() }).await?;
//! # let (key, url) = (server.api_key().to_owned(), server.url());
//! let environment = DaytonaEnvironment {
//!     api_key: Some(key.into()),
//!     api_url: Some(url),
//!     ..DaytonaEnvironment::default()
//! };
//! let cloud = DaytonaProvider::connect(&environment, DaytonaSettings::default())?;
//! let cleanup = Cleanup::new(Arc::new(cloud));
//!
//! // Earlier jobs left five: three run, one of them for two days; two are stopped.
//! let all = cleanup.list().await?;
//! assert_eq!(all.len(), 5);
//!
//! // Those that are stopped or failed. The service keeps a sandbox that failed for seven days:
//! // its outcome is `Accepted`, with the date as its reason.
//! let report = cleanup.release_stopped().await?;
//! assert_eq!((report.count(Outcome::Gone), report.is_all_gone()), (2, true));
//!
//! // Those that were made a day ago or earlier, running or not.
//! let day = Duration::from_secs(24 * 60 * 60);
//! let report = cleanup.release_old(Kind::Sandbox, day).await?;
//! assert_eq!(report.count(Outcome::Gone), 1);
//!
//! // One, by its id: requested once, tried again where that can help, and verified.
//! let young = cleanup.list().await?.remove(0);
//! let report = cleanup.release(Kind::Sandbox, &young.id).await?;
//! assert_eq!(report.result, Outcome::Gone);
//! assert_eq!(cleanup.list().await?.len(), 1);
//! # server.stop().await;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use creel_ledger::{Ledger, LedgerError};
use creel_model::duration;
use creel_model::provider::{
    ErrorClass, Kind, Observed, Permit, Preset, Provider, ProviderError, Providers,
};
use futures::FutureExt;

use crate::pipeline::{Pipeline, Selection, Survey};
use crate::plan::{Binding, PlanItem};
use crate::reap::{ItemReport, ReapOptions, Report};
use crate::select::{RecordIndex, Selector, preset_selectors};

/// Why a cleanup failed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The provider call failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The ledger could not be read, so the records that protect objects are unknown.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Cleans up the objects of one provider.
#[derive(Debug, Clone)]
pub struct Cleanup {
    provider: Arc<dyn Provider>,
    ledger: Option<Ledger>,
    options: ReapOptions,
}

impl Cleanup {
    /// Cleans up the objects of this provider, with three retries and without a ledger.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self { provider, ledger: None, options: ReapOptions::default() }
    }

    /// Skips objects that live owners on this ledger hold, and records releases on it.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Ledger) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// Sets retries, stop timeout, fail-fast and protection.
    #[must_use]
    pub fn with_options(mut self, options: ReapOptions) -> Self {
        self.options = options;
        self
    }

    /// Lists all objects, in every state.
    ///
    /// # Errors
    ///
    /// Fails when the provider call fails.
    pub async fn list(&self) -> Result<Vec<Observed>, ProviderError> {
        self.provider.list(self.provider.kinds()).await
    }

    /// Stops one object, with retries. The object continues to exist.
    ///
    /// # Errors
    ///
    /// Fails when it could not be stopped.
    pub async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<(), ProviderError> {
        let mut policy = self.options.retry.clone();
        policy.deadline += timeout;
        let retries = policy.retries;
        let note = |attempt: u32, error: &ProviderError, wait: Option<Duration>| {
            if let Some(wait) = wait {
                let wait = duration::show(wait);
                tracing::warn!(
                    id,
                    "attempt {attempt}/{retries} failed: {error}; retrying in {wait}"
                );
            }
        };
        let no_response = || ProviderError {
            provider: self.provider.name(),
            operation: format!("stop {kind} {id}"),
            message: format!("no answer within {}", duration::show(policy.deadline)),
            class: ErrorClass::Unreachable,
            retry_after: None,
        };
        let stop = |deadline| {
            let provider = Arc::clone(&self.provider).within(Permit::FREE, deadline);
            async move { provider.stop(kind, id, timeout).await }.boxed()
        };
        policy.run(stop, note, no_response).await.result
    }

    /// Releases one object by its id, with retries and verification.
    ///
    /// # Errors
    ///
    /// Fails when the object does not exist, or when the provider or the ledger cannot be read. The
    /// report has the outcome of the release.
    pub async fn release(&self, kind: Kind, id: &str) -> Result<ItemReport, CleanupError> {
        let Some(seen) = self.provider.inspect(kind, id).await? else {
            return Err(CleanupError::Provider(ProviderError {
                provider: self.provider.name(),
                operation: format!("release {kind} {id}"),
                message: "there is no such object".to_owned(),
                class: ErrorClass::Gone,
                retry_after: None,
            }));
        };
        let record_index = match &self.ledger {
            Some(ledger) => RecordIndex::read(ledger, std::slice::from_ref(&seen)).await?,
            None => RecordIndex::default(),
        };
        let resource = record_index.ownership(&seen).record().map(|record| record.id);
        let rule = "released by id".to_owned();
        let item = PlanItem { seen, rule, resource, binding: Binding::Identity, evidence: None };
        let mut report = self.pipeline().release_ours(vec![item]).await;
        Ok(report.items.remove(0))
    }

    /// Releases every object that a selector matches and nothing protects.
    ///
    /// # Errors
    ///
    /// Fails when the provider or the ledger cannot be read. Nothing is released in that case.
    pub async fn release_matching(&self, selectors: &[Selector]) -> Result<Report, CleanupError> {
        let pipeline = self.pipeline();
        let mut listing = pipeline.list().await;
        if let Some(error) = listing.unreachable.pop() {
            return Err(error.into());
        }
        let mut survey = Survey::new(listing, self.ledger.as_ref()).await?;
        let selection = Selection { selectors, findings: None, force: false };
        let planned = pipeline.plan(&mut survey, selection).await?;
        Ok(pipeline.release(planned.uncapped(), &()).await)
    }

    /// Releases objects that were created at least `age` ago, in any state.
    ///
    /// # Errors
    ///
    /// See [`Cleanup::release_matching`].
    pub async fn release_old(&self, kind: Kind, age: Duration) -> Result<Report, CleanupError> {
        let old = Selector {
            rule: format!("older than {}", duration::show(age)),
            kinds: vec![kind],
            older_than: Some(age),
            ..Selector::default()
        };
        self.release_matching(&[old]).await
    }

    /// Releases stopped objects: the preset `stopped`.
    ///
    /// # Errors
    ///
    /// See [`Cleanup::release_matching`].
    pub async fn release_stopped(&self) -> Result<Report, CleanupError> {
        let rules = self.provider.preset_rules().iter();
        let rules = rules.map(|rule| (self.provider.name(), rule));
        self.release_matching(&preset_selectors(Preset::Stopped, rules)).await
    }

    fn pipeline(&self) -> Pipeline {
        let providers = Providers::new(vec![Arc::clone(&self.provider)]);
        Pipeline::new(providers, self.ledger.clone()).with_options(self.options.clone())
    }
}
