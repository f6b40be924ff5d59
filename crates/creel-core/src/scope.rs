//! Scopes: acquire a resource, use it, and release it on every path.
//!
//! A [`Supervisor`] records the intent, creates or adopts, and releases with retries and
//! verification. [`Supervisor::scope`] does so around a piece of work, whether it returns, fails,
//! panics, times out or is cancelled.
//!
//! Dropping a [`Held`] early only starts a best-effort release in the background. The guarantee
//! comes from the ledger: the watchdog or the next reconcile releases what a killed process held.
//!
//! The example uses directories, which need no engine. [`Spec::Container`] works the same for a
//! container.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use creel_ledger::{Ledger, RecordFilter};
//! use creel_process::{HolderProgram, ProcessProvider, ProcessSettings};
//! use creel_model::provider::{Kind, Provider, ProviderName, Providers, Spec};
//! use creel_core::scope::{Request, ScopeError, Supervisor};
//! use futures::FutureExt;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! let processes = ProcessProvider::new(ProcessSettings {
//!     root: home.path().join("sandboxes"),
//!     // Directories need no holder; process trees do.
//!     holder: HolderProgram { program: "/bin/false".into(), args: vec![] },
//!     containment: None,
//! });
//! let ledger = Ledger::open(home.path()).await?;
//! let providers = Providers::new(vec![Arc::new(processes.clone())]);
//! let supervisor = Supervisor::new(ledger.clone(), providers, "example")?;
//! let directory = || Request::new(creel_process::NAME, Spec::Directory);
//!
//! // Created for the work, and gone when it has ended.
//! let place = processes.clone();
//! let path = supervisor
//!     .scope(directory(), |held| {
//!         async move {
//!             let path = place.directory(&held.id).expect("it was just made");
//!             std::fs::write(path.join("notes"), "…").expect("it is ours");
//!             path
//!         }
//!         .boxed()
//!     })
//!     .await?;
//! assert!(!path.exists());
//!
//! // An error of the work is the result of the work; the directory is gone all the same.
//! let result: Result<(), &str> =
//!     supervisor.scope(directory(), |_| async { Err("no luck") }.boxed()).await?;
//! assert_eq!(result, Err("no luck"));
//!
//! // So it is when the work takes too long,
//! let limit = Duration::from_millis(10);
//! let ended = supervisor
//!     .scope_with_limit(directory(), limit, |_| std::future::pending::<()>().boxed())
//!     .await;
//! assert!(matches!(ended, Err(ScopeError::TimedOut { .. })));
//!
//! // when it panics,
//! # std::panic::set_hook(Box::new(|_| {}));
//! let broken = supervisor.scope::<(), _>(directory(), |_| async { panic!("oops") }.boxed());
//! assert!(std::panic::AssertUnwindSafe(broken).catch_unwind().await.is_err());
//!
//! // and, a moment later, when the caller is cancelled.
//! let endless = supervisor.scope(directory(), |_| std::future::pending::<()>().boxed());
//! assert!(tokio::time::timeout(Duration::from_millis(50), endless).await.is_err());
//! while !ledger.records(&RecordFilter::open()).await?.is_empty() {
//!     tokio::time::sleep(Duration::from_millis(10)).await;
//! }
//!
//! // Something that exists already is adopted by its id.
//! # let resource = creel_model::id::ResourceId::new();
//! # let id = processes.create(&creel_model::provider::CreateRequest {
//! #     resource,
//! #     name: resource.object_name(),
//! #     labels: Default::default(),
//! #     lease: Duration::from_secs(60),
//! #     spec: Spec::Directory,
//! # }).await?;
//! let (provider, kind) = (creel_process::NAME, Kind::Directory);
//! supervisor.scope_adopted(provider, kind, &id, |_| async {}.boxed()).await?;
//! assert!(processes.list(&[Kind::Directory]).await?.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! A cloud sandbox is managed the same, whether it is new or adopted by its id. This example runs
//! against a local server; without `api_url` it runs against Daytona itself.
//!
//! ```
//! use std::sync::Arc;
//!
//! use creel_ledger::{Ledger, RecordFilter};
//! use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
//! use creel_model::provider::{Kind, Provider, ProviderName, Providers, SandboxSpec, Spec};
//! use creel_core::scope::{Request, Supervisor};
//! use futures::FutureExt;
//! # use creel_daytona_server::{Scenario, Server, Settings};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! # let scenario: Scenario = toml::from_str("[[seeds]]\ncount = 1")?;
//! # let server = Server::start(Settings { scenario, ..Settings::hollow() }).await?;
//! # let (key, url) = (server.api_key().to_owned(), server.url());
//! let environment = DaytonaEnvironment {
//!     api_key: Some(key.into()),
//!     api_url: Some(url),
//!     ..DaytonaEnvironment::default()
//! };
//! let cloud = DaytonaProvider::connect(&environment, DaytonaSettings::default())?;
//! let cloud: Arc<dyn Provider> = Arc::new(cloud);
//! let ledger = Ledger::open(home.path()).await?;
//! let providers = Providers::new(vec![Arc::clone(&cloud)]);
//! let supervisor = Supervisor::new(ledger.clone(), providers, "example")?;
//!
//! // Something that exists already: adopted by its id, and deleted when the work has ended.
//! # let sandbox_id = cloud.list(&[Kind::Sandbox]).await?.remove(0).id;
//! let (provider, kind) = (creel_daytona::NAME, Kind::Sandbox);
//! let result: Result<(), &str> = supervisor
//!     .scope_adopted(provider, kind, &sandbox_id, |held| {
//!         async move {
//!             assert!(!held.id.is_empty());
//!             Err("the work failed")
//!         }
//!         .boxed()
//!     })
//!     .await?;
//! assert_eq!(result, Err("the work failed"));
//!
//! // Something new: on record before it is created, so that it is never lost.
//! let spec = Spec::Sandbox(SandboxSpec::default());
//! let seen = Arc::clone(&cloud);
//! let state = supervisor
//!     .scope(Request::new(provider, spec), |held| {
//!         async move { seen.inspect(kind, &held.id).await.map(|seen| seen.map(|it| it.state)) }
//!             .boxed()
//!     })
//!     .await??;
//! assert_eq!(state.as_deref(), Some("started"));
//! assert!(cloud.list(&[Kind::Sandbox]).await?.is_empty());
//! assert!(ledger.records(&RecordFilter::open()).await?.is_empty());
//! # server.stop().await;
//! # Ok(())
//! # }
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use creel_ledger::{
    Event, Intent, Ledger, LedgerError, OnOwnerDeath, OwnerRecord, Record, RecordFilter,
    ResourceState, Try,
};
use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::id::{ResourceId, RunId};
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{
    CreateRequest, ErrorClass, Identity, Kind, Observed, ProviderError, ProviderName, Providers,
    Spec,
};
use creel_model::task;
use creel_sanitise::Masked;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::pipeline::Pipeline;
use crate::reap::{ItemReport, Outcome, ReapOptions};
use crate::reconcile::{Reconciler, Status};

/// How long a resource may live without a renewal, unless a request sets it.
const DEFAULT_LEASE: Duration = Duration::from_secs(3600);

/// The rule that reports show for releases by the resource's own supervisor.
const RULE: &str = "released by its owner";

/// The resource to acquire.
#[derive(Debug, Clone)]
pub struct Request {
    /// The provider that creates it.
    pub provider: ProviderName,
    /// The specification of the resource.
    pub spec: Spec,
    /// Additional labels from the user.
    pub labels: Labels,
    /// The run it is for.
    pub run: Option<RunId>,
    /// What happens to it when this process dies.
    pub on_owner_death: OnOwnerDeath,
    /// How long it may live without a renewal.
    pub lease: Duration,
}

impl Request {
    /// Requests a resource that is released when this process dies, with a lease of one hour.
    pub fn new(provider: ProviderName, spec: Spec) -> Self {
        Self {
            provider,
            spec,
            labels: Labels::new(),
            run: None,
            on_owner_death: OnOwnerDeath::Release,
            lease: DEFAULT_LEASE,
        }
    }
}

/// Why a resource could not be acquired. None of these errors leaves anything untracked.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// The intent could not be recorded, so nothing was created.
    #[error("nothing was created, because the ledger could not record it")]
    Ledger(#[from] LedgerError),
    /// The provider refused or did not respond.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// There is no object with that id to adopt.
    #[error("there is no {kind} {id} to adopt")]
    Absent {
        /// The expected kind.
        kind: Kind,
        /// Its id.
        id: String,
    },
}

impl AcquireError {
    /// Returns whether the disk of this machine is full.
    pub fn is_disk_full(&self, providers: &Providers) -> bool {
        match self {
            Self::Ledger(error) => matches!(error, LedgerError::DiskFull { .. }),
            // The only limit of a local provider is disk space.
            Self::Provider(error) => {
                error.class == ErrorClass::Quota && providers.is_local(error.provider)
            }
            Self::Absent { .. } => false,
        }
    }
}

/// Why a scope failed.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// The resource could not be acquired; the work was not started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The work timed out; the resource is released.
    #[error("the work did not end within its {} limit", creel_model::duration::show(*limit))]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The work ended, but the resource could not be released yet. The ledger keeps it.
    #[error("{kind} {id} is not released: {reason}")]
    NotReleased {
        /// The kind of the resource.
        kind: Kind,
        /// The provider's id.
        id: String,
        /// The reason.
        reason: String,
    },
}

/// A resource that this process holds.
#[derive(Debug)]
pub struct Held {
    /// The resource on the ledger.
    pub resource: ResourceId,
    /// The provider it lives in.
    pub provider: ProviderName,
    /// The kind of the resource.
    pub kind: Kind,
    /// The provider's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Releases the resource when it is dropped early.
    release_on_drop: Option<Supervisor>,
}

impl Held {
    /// Leaves the release to [`Supervisor::release_all`] or to a reconcile.
    pub fn forget(mut self) {
        self.release_on_drop = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(supervisor), Ok(_)) =
            (self.release_on_drop.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let resource = self.resource;
        task::background(async move {
            if let Err(error) = supervisor.release_record(resource).await {
                warn!(%resource, %error, "a dropped resource is left to the next reconcile");
            }
        });
    }
}

/// Acquires resources on behalf of this process, and releases them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Supervisor {
    ledger: Ledger,
    providers: Providers,
    /// This process.
    me: OwnerRecord,
    /// How resources are released.
    options: ReapOptions,
}

impl Supervisor {
    /// Creates a supervisor. `command` is the name of this process in listings.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn new(ledger: Ledger, providers: Providers, command: &str) -> std::io::Result<Self> {
        let me = OwnerRecord::this_process(command)?;
        Ok(Self { ledger, providers, me, options: ReapOptions::default() })
    }

    /// Sets how resources are released.
    #[must_use]
    pub fn with_options(mut self, options: ReapOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the ledger on which everything is recorded.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns this process as recorded on the ledger.
    pub fn owner(&self) -> &OwnerRecord {
        &self.me
    }

    /// Creates a resource: records the intent, creates the object, then records its id.
    ///
    /// # Errors
    ///
    /// Fails without leaving anything untracked. Whatever may exist is on record.
    pub async fn create(&self, request: Request) -> Result<Held, AcquireError> {
        let provider = Arc::clone(self.providers.get(request.provider)?);
        self.create_with(
            request,
            |create_request| async move { provider.create(&create_request).await },
        )
        .await
    }

    /// Creates a resource like [`Supervisor::create`], with a custom create function.
    ///
    /// Use it for creates that the provider trait does not support. `make` must create exactly what
    /// the request specifies, and return its id.
    ///
    /// # Errors
    ///
    /// See [`Supervisor::create`].
    pub async fn create_with<F, M>(&self, request: Request, make: F) -> Result<Held, AcquireError>
    where
        F: FnOnce(CreateRequest) -> M + Send + 'static,
        M: Future<Output = Result<String, ProviderError>> + Send,
    {
        let supervisor = self.clone();
        // A caller that is cancelled here drops the result, which releases it.
        task::finish(async move { supervisor.create_uncancelled(request, make).await }).await
    }

    async fn create_uncancelled<F, M>(
        &self,
        request: Request,
        make: F,
    ) -> Result<Held, AcquireError>
    where
        F: FnOnce(CreateRequest) -> M + Send,
        M: Future<Output = Result<String, ProviderError>> + Send,
    {
        crashpoint::reach(Crashpoint::BeforeIntent);
        let resource = ResourceId::new();
        let record = self.record_intent(resource, &request, resource.object_name()).await?;
        crashpoint::reach(Crashpoint::AfterIntent);
        let provider = self.providers.get(request.provider)?;
        let create_request = CreateRequest {
            resource,
            name: record.name.clone(),
            labels: record.labels.clone(),
            lease: request.lease,
            spec: request.spec,
        };
        let limit = provider.create_deadline();
        let created = tokio::time::timeout(limit, make(create_request)).await;
        let created = created.unwrap_or_else(|_| Err(no_response(&record, limit)));
        crashpoint::reach(Crashpoint::CreatedNotRecorded);
        self.note_create(&record, created.as_ref().err()).await;
        match created {
            Ok(id) => {
                let identity = self.identity_of(&record, &id).await;
                let event = Event::Created { object: id.clone(), identity };
                self.ledger.append(&[(resource, event)]).await?;
                info!(%resource, kind = %record.kind, object = %id, "created");
                Ok(self.hold(&record, id))
            }
            Err(error) => self.after_failed_create(record, error).await,
        }
    }

    /// Takes responsibility for an existing object.
    ///
    /// # Errors
    ///
    /// Fails when the object does not exist, or when it cannot be recorded.
    pub async fn adopt(
        &self,
        provider: ProviderName,
        kind: Kind,
        id: &str,
    ) -> Result<Held, AcquireError> {
        let seen = self.providers.get(provider)?.inspect(kind, id).await?;
        let Some(seen) = seen else {
            return Err(AcquireError::Absent { kind, id: id.to_owned() });
        };
        let resource = ResourceId::new();
        let record = self.record_adoption(resource, &seen).await?;
        let event = Event::Found { object: seen.id.clone(), identity: seen.identity() };
        self.ledger.append(&[(resource, event)]).await?;
        Ok(self.hold(&record, seen.id))
    }

    /// Creates a resource, runs `work` with it, and releases it on every path.
    ///
    /// # Errors
    ///
    /// Fails when the resource could not be acquired, or is not verified gone afterwards.
    pub async fn scope<T, W>(&self, request: Request, work: W) -> Result<T, ScopeError>
    where
        W: for<'a> FnOnce(&'a Held) -> BoxFuture<'a, T> + Send,
    {
        let held = self.create(request).await?;
        self.within(held, None, work).await
    }

    /// Like [`Supervisor::scope`], for an object that exists already.
    ///
    /// # Errors
    ///
    /// See [`Supervisor::scope`].
    pub async fn scope_adopted<T, W>(
        &self,
        provider: ProviderName,
        kind: Kind,
        id: &str,
        work: W,
    ) -> Result<T, ScopeError>
    where
        W: for<'a> FnOnce(&'a Held) -> BoxFuture<'a, T> + Send,
    {
        let held = self.adopt(provider, kind, id).await?;
        self.within(held, None, work).await
    }

    /// Like [`Supervisor::scope`], with a time limit for the work.
    ///
    /// # Errors
    ///
    /// Fails with [`ScopeError::TimedOut`] when the work did not end in time.
    pub async fn scope_with_limit<T, W>(
        &self,
        request: Request,
        limit: Duration,
        work: W,
    ) -> Result<T, ScopeError>
    where
        W: for<'a> FnOnce(&'a Held) -> BoxFuture<'a, T> + Send,
    {
        let held = self.create(request).await?;
        self.within(held, Some(limit), work).await
    }

    async fn within<T, W>(
        &self,
        held: Held,
        limit: Option<Duration>,
        work: W,
    ) -> Result<T, ScopeError>
    where
        W: for<'a> FnOnce(&'a Held) -> BoxFuture<'a, T> + Send,
    {
        let ended = {
            let work = AssertUnwindSafe(work(&held)).catch_unwind();
            match limit {
                Some(limit) => tokio::time::timeout(limit, work)
                    .await
                    .map_err(|_| ScopeError::TimedOut { limit }),
                None => Ok(work.await),
            }
        };
        let released = self.release(held).await;
        match ended? {
            Ok(value) => released.map(|_| value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Releases a resource and verifies that it is gone.
    ///
    /// # Errors
    ///
    /// Fails when its absence could not be verified; the ledger keeps it.
    pub async fn release(&self, mut held: Held) -> Result<ItemReport, ScopeError> {
        held.release_on_drop = None;
        let not_released = |reason: String| ScopeError::NotReleased {
            kind: held.kind,
            id: held.id.clone(),
            reason,
        };
        let (supervisor, resource) = (self.clone(), held.resource);
        // A caller that is cancelled here does not stop the release.
        let report = task::finish(async move { supervisor.release_record(resource).await }).await;
        let report = report.map_err(|error| not_released(error.to_string()))?;
        match report.result {
            Outcome::Gone => Ok(report),
            _ => Err(not_released(report.reason.unwrap_or_default())),
        }
    }

    /// Releases everything this process still holds, including creates without a response.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn release_all(&self) -> Result<Status, LedgerError> {
        self.reconciler().resume().await
    }

    /// Releases everything this process still holds for a run, including creates without a
    /// response.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn release_run(&self, run: RunId) -> Result<Status, LedgerError> {
        self.reconciler().resume_run(run).await
    }

    /// Returns a handle to a resource that is recorded for this process.
    ///
    /// Returns `None` if another process owns it, or if its object is unknown.
    pub fn hold_again(&self, record: &Record) -> Option<Held> {
        let is_mine = record.owner.owner == self.me.owner;
        let object = record.state.object().filter(|_| is_mine)?;
        Some(self.hold(record, object.to_owned()))
    }

    /// Renews the leases of this process's resources until the handle is aborted.
    pub fn keep_alive(&self, period: Duration) -> JoinHandle<()> {
        let supervisor = self.clone();
        task::background(async move {
            loop {
                tokio::time::sleep(period).await;
                if let Err(error) = supervisor.renew().await {
                    warn!(%error, "leases could not be renewed");
                }
            }
        })
    }

    /// Renews the leases of this process's resources, on the ledger and with the providers.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used. A provider that refuses is only logged.
    pub async fn renew(&self) -> Result<(), LedgerError> {
        self.ledger.renew_leases(&self.me.owner).await?;
        for record in self.ledger.records(&RecordFilter::open().of(&self.me.owner)).await? {
            // A resource that is being released needs no renewal.
            if let (ResourceState::Created { object }, Ok(provider)) =
                (&record.state, self.providers.get(record.provider))
                && let Err(error) = provider.renew(record.kind, object).await
            {
                warn!(resource = %record.id, %error, "its dead-man switch could not be renewed");
            }
        }
        Ok(())
    }

    fn reconciler(&self) -> Reconciler {
        Reconciler::new(self.ledger.clone(), self.providers.clone(), self.me.clone())
            .with_options(self.options.clone())
    }

    fn hold(&self, record: &Record, id: String) -> Held {
        Held {
            resource: record.id,
            provider: record.provider,
            kind: record.kind,
            id,
            name: record.name.clone(),
            release_on_drop: Some(self.clone()),
        }
    }

    async fn record_intent(
        &self,
        id: ResourceId,
        request: &Request,
        name: String,
    ) -> Result<Record, LedgerError> {
        let mut labels = request.labels.clone();
        let run = request.run.as_ref();
        labels.extend(labels::of_resource(&id, &self.ledger.id(), &self.me.owner, run).iter());
        let intent = Intent {
            id,
            run: request.run,
            provider: request.provider,
            kind: request.spec.kind(),
            name,
            labels,
            owner: self.me.clone(),
            on_owner_death: request.on_owner_death,
            lease: request.lease,
        };
        self.ledger.record_intent(&intent).await
    }

    async fn record_adoption(
        &self,
        id: ResourceId,
        seen: &Observed,
    ) -> Result<Record, LedgerError> {
        let intent = Intent {
            id,
            run: None,
            provider: seen.provider,
            kind: seen.kind,
            name: seen.name.clone(),
            labels: seen.labels.clone(),
            owner: self.me.clone(),
            on_owner_death: OnOwnerDeath::Release,
            lease: DEFAULT_LEASE,
        };
        self.ledger.record_existing(&intent).await
    }

    async fn note_create(&self, record: &Record, error: Option<&ProviderError>) {
        let one = Try {
            at_ms: Timestamp::now().as_millisecond(),
            resource: Some(record.id),
            provider: record.provider,
            kind: record.kind,
            object: record.name.clone(),
            name: Some(record.name.as_str().into()),
            operation: Masked::ours("create"),
            attempt: 1,
            outcome: Masked::ours(error.map_or("ok", |error| error.class.name())),
            detail: error.map(|error| error.message.as_str().into()).unwrap_or_default(),
            evidence: None,
        };
        if let Err(error) = self.ledger.append_tries(&[one]).await {
            warn!(%error, "the audit could not be written");
        }
    }

    /// Returns the identity that distinguishes a newly created object from a replacement.
    ///
    /// If it cannot be read, the record has no identity. Its object is then kept unless other
    /// evidence proves it ours.
    async fn identity_of(&self, record: &Record, id: &str) -> Option<Identity> {
        if record.kind.has_lasting_ids() {
            return Some(Identity::id(id));
        }
        let provider = self.providers.get(record.provider).ok()?;
        let seen = match provider.inspect(record.kind, id).await {
            Ok(seen) => seen?,
            Err(error) => {
                warn!(resource = %record.id, %error, "its identity could not be read");
                return None;
            }
        };
        identity_after_create(record.id, &seen)
    }

    /// Determines what a failed create left behind, and releases it.
    ///
    /// After a refusal, an empty search proves that nothing was created. After a lost response it
    /// proves nothing yet: the intent stays open, and a later search repeats.
    async fn after_failed_create(
        &self,
        record: Record,
        error: ProviderError,
    ) -> Result<Held, AcquireError> {
        let provider = self.providers.get(record.provider)?;
        let found = provider.find(&record.marks()).await;
        match found {
            // A copy may be among them, so none can be proven ours. Reconcile reports them.
            Ok(objects) if objects.len() > 1 => {
                warn!(resource = %record.id, "several objects fit a failed create: none is released");
            }
            Ok(objects) if !objects.is_empty() => {
                let object = objects[0].id.clone();
                let identity = objects[0].identity();
                let event = Event::Found { object: object.clone(), identity };
                self.ledger.append(&[(record.id, event)]).await?;
                let complete = objects[0].is_running() || !record.kind.runs();
                if error.class.is_retryable() && complete {
                    warn!(resource = %record.id, %object, "the answer was lost, the object was found");
                    return Ok(self.hold(&record, object));
                }
                let released = self.release_record(record.id).await;
                if let Err(error) = released {
                    warn!(resource = %record.id, %error, "a failed create is left to reconcile");
                }
            }
            Ok(_) if !error.class.is_retryable() => {
                let evidence = format!("refused, and nothing is there: {}", error.message);
                self.ledger
                    .append(&[(record.id, Event::NeverCreated { evidence: evidence.into() })])
                    .await?;
            }
            Ok(_) | Err(_) => {
                warn!(resource = %record.id, "nothing came of the create yet; it may land late");
            }
        }
        Err(error.into())
    }

    /// Releases one record of this process.
    async fn release_record(&self, resource: ResourceId) -> Result<ItemReport, LedgerError> {
        let pipeline = Pipeline::new(self.providers.clone(), Some(self.ledger.clone()));
        pipeline.with_options(self.options.clone()).release_record(resource, RULE).await
    }
}

/// Returns the identity of an object that was inspected right after its create.
///
/// Returns `None` when the object lacks the label of the create: another object has taken its name.
pub(crate) fn identity_after_create(resource: ResourceId, seen: &Observed) -> Option<Identity> {
    let is_ours = labels::claimed_resource(&seen.labels) == Some(resource);
    seen.identity().filter(|_| is_ours)
}

fn no_response(record: &Record, limit: Duration) -> ProviderError {
    ProviderError {
        provider: record.provider,
        operation: format!("create {} {}", record.kind, record.name),
        message: format!("no answer within {}", creel_model::duration::show(limit)),
        class: creel_model::provider::ErrorClass::Unreachable,
        retry_after: None,
    }
}
