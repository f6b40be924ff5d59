//! The library face of the cleanup commands: list, stop, release.
//!
//! For harnesses that clean up after themselves without the command line. Each
//! release is tried again as the policy says, verified, and reported; nothing
//! fails silently. The example works on directories, which need no engine; with
//! a [`DockerProvider`](crate::provider::docker::DockerProvider) the same calls
//! work on containers, networks, volumes and images.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use creel_core::cleanup::Cleanup;
//! use creel_core::provider::process::{HolderProgram, ProcessProvider, ProcessSettings};
//! use creel_core::provider::{Kind, Provider};
//! use creel_core::reap::Outcome;
//! use creel_core::select::Selector;
//! # use creel_core::id::ResourceId;
//! # use creel_core::labels::Labels;
//! # use creel_core::provider::{CreateOrder, Spec};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! let world: Arc<dyn Provider> = Arc::new(ProcessProvider::new(ProcessSettings {
//!     root: home.path().join("sandboxes"),
//!     // Directories need no holder; process trees do.
//!     holder: HolderProgram { program: "/bin/false".into(), args: vec![] },
//!     containment: None,
//! }));
//! # let leave = async |job: &str| {
//! #     let resource = ResourceId::new();
//! #     let labels = Labels::from([("job".to_owned(), job.to_owned())]);
//! #     let (name, lease) = (resource.object_name(), Duration::from_secs(60));
//! #     world.create(&CreateOrder { resource, name, labels, lease, spec: Spec::Directory }).await
//! # };
//! # let first = leave("nightly").await?;
//! # leave("nightly").await?;
//! # leave("nightly-2").await?;
//!
//! // Earlier jobs left three directories behind.
//! let cleanup = Cleanup::new(Arc::clone(&world));
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
//! Cloud sandboxes are cleaned up by the same four calls. This example runs
//! against a local server; without `api_url` it is Daytona itself.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use creel_core::cleanup::Cleanup;
//! use creel_core::provider::Kind;
//! use creel_core::provider::daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
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
//! // One, by its id: ordered once, tried again where that can help, and verified.
//! let young = cleanup.list().await?.remove(0);
//! let report = cleanup.release(Kind::Sandbox, &young.id).await?;
//! assert_eq!(report.result, Outcome::Gone);
//! assert_eq!(cleanup.list().await?.len(), 1);
//! # server.stop().await;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::duration;
use crate::ledger::{Ledger, LedgerError, RecordFilter};
use crate::plan::{self, Binding, Plan, PlanInput, PlanItem};
use crate::provider::{ErrorClass, Kind, Observed, Provider, ProviderError, Providers};
use crate::reap::{ItemReport, ReapOptions, Reaper, Report};
use crate::select::{Preset, Roll, Selector};

/// Why a cleanup could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The provider could not be asked.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The ledger could not be read, so it is not known what must be spared.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Cleans up in one world.
#[derive(Debug, Clone)]
pub struct Cleanup {
    provider: Arc<dyn Provider>,
    ledger: Option<Ledger>,
    options: ReapOptions,
}

impl Cleanup {
    /// Cleans up in this world, with three retries and without a ledger.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self { provider, ledger: None, options: ReapOptions::default() }
    }

    /// Spares what live owners on this ledger hold, and records releases on it.
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

    /// Lists everything, in every state.
    ///
    /// # Errors
    ///
    /// Fails when the provider cannot be asked.
    pub async fn list(&self) -> Result<Vec<Observed>, ProviderError> {
        self.provider.list(self.provider.kinds()).await
    }

    /// Stops one object, with retries; it stays in existence.
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
        let no_answer = || ProviderError {
            provider: self.provider.name(),
            operation: format!("stop {kind} {id}"),
            message: format!("no answer within {}", duration::show(policy.deadline)),
            class: ErrorClass::Unreachable,
            retry_after: None,
        };
        let stop = || self.provider.stop(kind, id, timeout);
        policy.run(stop, note, no_answer).await.result
    }

    /// Releases one object by its id, with retries and verification.
    ///
    /// # Errors
    ///
    /// Fails when the provider cannot be asked; what came of the release is in the report.
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
        let resource = self.roll().await?.ownership(&seen).record().map(|record| record.id);
        let rule = "released by id".to_owned();
        let item = PlanItem { seen, rule, resource, binding: Binding::Identity, evidence: None };
        let plan = Plan::of_ours(vec![item]);
        let mut report = self.reaper().run(&plan, &self.options, &()).await;
        Ok(report.items.remove(0))
    }

    /// Releases everything that a selector means and nothing forbids.
    ///
    /// # Errors
    ///
    /// Fails when the provider or the ledger cannot be read; nothing is released then.
    pub async fn release_matching(&self, selectors: &[Selector]) -> Result<Report, CleanupError> {
        let seen_at = Some(Instant::now());
        let inventory = self.list().await?;
        let plan = plan::build(PlanInput {
            worlds: Vec::new(),
            inventory: &inventory,
            roll: &self.roll().await?,
            selectors,
            findings: None,
            protect: &self.options.protect,
            force: false,
            now: Timestamp::now(),
        });
        let options =
            ReapOptions { selectors: selectors.to_vec(), seen_at, ..self.options.clone() };
        Ok(self.reaper().run(&plan, &options, &()).await)
    }

    /// Releases what was made at least this long ago, in whatever state.
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

    /// Releases what has stopped: the preset `stopped`.
    ///
    /// # Errors
    ///
    /// See [`Cleanup::release_matching`].
    pub async fn release_stopped(&self) -> Result<Report, CleanupError> {
        self.release_matching(&Preset::Stopped.selectors()).await
    }

    fn reaper(&self) -> Reaper {
        let providers = Providers::new(vec![Arc::clone(&self.provider)]);
        Reaper::new(providers, self.ledger.clone())
    }

    async fn roll(&self) -> Result<Roll, LedgerError> {
        Ok(match &self.ledger {
            Some(ledger) => Roll::new(ledger.id(), ledger.records(&RecordFilter::open()).await?),
            None => Roll::default(),
        })
    }
}
