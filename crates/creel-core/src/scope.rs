//! Scopes: take something, use it, give it back on every path.
//!
//! A [`Supervisor`] records the intent, creates or adopts, and releases with
//! retries and verification. [`Supervisor::scope`] does so around a piece of
//! work, whether it returns, fails, panics, runs out of time or is cancelled.
//!
//! Dropping a [`Held`] early only starts a release in the background, as a
//! courtesy. The promise is the ledger's: what a killed process held is given
//! back by its watchdog or by the next reconcile.
//!
//! The example takes directories, which need no engine; a container is taken in
//! the same way with [`Spec::Container`].
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use creel_core::ledger::{Ledger, RecordFilter};
//! use creel_core::provider::process::{HolderProgram, ProcessProvider, ProcessSettings};
//! use creel_core::provider::{Kind, Provider, ProviderName, Providers, Spec};
//! use creel_core::scope::{Request, ScopeError, Supervisor};
//! use futures::FutureExt;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! let world = ProcessProvider::new(ProcessSettings {
//!     root: home.path().join("sandboxes"),
//!     // Directories need no holder; process trees do.
//!     holder: HolderProgram { program: "/bin/false".into(), args: vec![] },
//!     containment: None,
//! });
//! let ledger = Ledger::open(home.path()).await?;
//! let providers = Providers::new(vec![Arc::new(world.clone())]);
//! let supervisor = Supervisor::new(ledger.clone(), providers, "example")?;
//! let directory = || Request::new(ProviderName::Process, Spec::Directory);
//!
//! // Created for the work, and gone when it has ended.
//! let place = world.clone();
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
//! // An error of the work is the work's answer; the directory is gone all the same.
//! let answer: Result<(), &str> =
//!     supervisor.scope(directory(), |_| async { Err("no luck") }.boxed()).await?;
//! assert_eq!(answer, Err("no luck"));
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
//! # let resource = creel_core::id::ResourceId::new();
//! # let id = world.create(&creel_core::provider::CreateOrder {
//! #     resource,
//! #     name: resource.object_name(),
//! #     labels: Default::default(),
//! #     lease: Duration::from_secs(60),
//! #     spec: Spec::Directory,
//! # }).await?;
//! let (provider, kind) = (ProviderName::Process, Kind::Directory);
//! supervisor.scope_adopted(provider, kind, &id, |_| async {}.boxed()).await?;
//! assert!(world.list(&[Kind::Directory]).await?.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! A cloud sandbox is managed in the same way, new or by its id. This example
//! runs against a local server; without `api_url` it is Daytona itself.
//!
//! ```
//! use std::sync::Arc;
//!
//! use creel_core::ledger::{Ledger, RecordFilter};
//! use creel_core::provider::daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
//! use creel_core::provider::{Kind, Provider, ProviderName, Providers, SandboxSpec, Spec};
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
//! let (provider, kind) = (ProviderName::Daytona, Kind::Sandbox);
//! let answer: Result<(), &str> = supervisor
//!     .scope_adopted(provider, kind, &sandbox_id, |held| {
//!         async move {
//!             assert!(!held.id.is_empty());
//!             Err("the work failed")
//!         }
//!         .boxed()
//!     })
//!     .await?;
//! assert_eq!(answer, Err("the work failed"));
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

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::crashpoint::{self, Crashpoint};
use crate::id::{ResourceId, RunId};
use crate::labels::{self, Labels};
use crate::ledger::{
    Event, Intent, Ledger, LedgerError, OnOwnerDeath, OwnerRecord, Record, RecordFilter, State, Try,
};
use crate::provider::{
    CreateOrder, ErrorClass, Identity, Kind, Observed, ProviderError, ProviderName, Providers, Spec,
};
use crate::reap::{ItemReport, Outcome, ReapOptions, Reaper};
use crate::reconcile::{Reconciler, Status};
use crate::sanitise::Masked;
use crate::task;

/// How long a resource may live without a renewal, unless a request says otherwise.
const DEFAULT_LEASE: Duration = Duration::from_secs(3600);

/// The rule named in reports of releases by their own supervisor.
const RULE: &str = "released by its owner";

/// What to take.
#[derive(Debug, Clone)]
pub struct Request {
    /// In which world.
    pub provider: ProviderName,
    /// What.
    pub spec: Spec,
    /// Labels of the user's own.
    pub labels: Labels,
    /// The run it is for.
    pub run: Option<RunId>,
    /// What becomes of it when this process dies.
    pub on_owner_death: OnOwnerDeath,
    /// How long it may live without a renewal.
    pub lease: Duration,
}

impl Request {
    /// Asks for something that goes when this process dies, with a lease of an hour.
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

/// Why something could not be taken. Nothing untracked is left behind by any of these.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The intent could not be recorded, so nothing was created.
    #[error("nothing was created, because the ledger could not record it")]
    Ledger(#[from] LedgerError),
    /// The provider refused or did not answer.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// There is nothing of that id to adopt.
    #[error("there is no {kind} {id} to adopt")]
    Absent {
        /// What it should be.
        kind: Kind,
        /// Its id.
        id: String,
    },
}

impl TakeError {
    /// Returns whether the disk of this machine has no room left for it.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Ledger(error) => matches!(error, LedgerError::DiskFull { .. }),
            // The only limit of this provider is the space on the disk.
            Self::Provider(error) => {
                error.provider == ProviderName::Process && error.class == ErrorClass::Quota
            }
            Self::Absent { .. } => false,
        }
    }
}

/// Why a scope did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// It could not be taken; the work was not started.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The work ran out of time; what it used is released.
    #[error("the work did not end within its {} limit", crate::duration::show(*limit))]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The work ended, but what it used could not be released yet; the ledger keeps it.
    #[error("{kind} {id} is not released: {reason}")]
    NotReleased {
        /// What it is.
        kind: Kind,
        /// The provider's id.
        id: String,
        /// Why.
        reason: String,
    },
}

/// Something that this process holds.
#[derive(Debug)]
pub struct Held {
    /// The resource on the ledger.
    pub resource: ResourceId,
    /// The world it lives in.
    pub provider: ProviderName,
    /// What it is.
    pub kind: Kind,
    /// The provider's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Releases it when it is dropped early.
    courtesy: Option<Supervisor>,
}

impl Held {
    /// Leaves the release to somebody else: [`Supervisor::release_all`], or a reconcile.
    pub fn forget(mut self) {
        self.courtesy = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(supervisor), Ok(_)) =
            (self.courtesy.take(), tokio::runtime::Handle::try_current())
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

/// Takes resources in the name of this process, and gives them back. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Supervisor {
    ledger: Ledger,
    providers: Providers,
    /// This process.
    me: OwnerRecord,
    /// How things are released.
    options: ReapOptions,
}

impl Supervisor {
    /// Makes a supervisor; `command` is how this process is called in listings.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn new(ledger: Ledger, providers: Providers, command: &str) -> std::io::Result<Self> {
        let me = OwnerRecord::this_process(command)?;
        Ok(Self { ledger, providers, me, options: ReapOptions::default() })
    }

    /// Sets how things are released.
    #[must_use]
    pub fn with_options(mut self, options: ReapOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns this process as the ledger knows it.
    pub fn owner(&self) -> &OwnerRecord {
        &self.me
    }

    /// Creates something: intent first, then the object, then its id on record.
    ///
    /// # Errors
    ///
    /// Fails without leaving anything untracked: what may exist is on record.
    pub async fn create(&self, request: Request) -> Result<Held, TakeError> {
        let provider = Arc::clone(self.providers.get(request.provider)?);
        self.create_with(request, |order| async move { provider.create(&order).await }).await
    }

    /// As [`Supervisor::create`], with a way of making it that the provider's trait does not
    /// have; it must make exactly what the order says, and return its id.
    ///
    /// # Errors
    ///
    /// See [`Supervisor::create`].
    pub async fn create_with<F, M>(&self, request: Request, make: F) -> Result<Held, TakeError>
    where
        F: FnOnce(CreateOrder) -> M + Send + 'static,
        M: Future<Output = Result<String, ProviderError>> + Send,
    {
        let supervisor = self.clone();
        // A caller that is cancelled here drops what comes back, which releases it.
        task::finish(async move { supervisor.create_to_the_end(request, make).await }).await
    }

    async fn create_to_the_end<F, M>(&self, request: Request, make: F) -> Result<Held, TakeError>
    where
        F: FnOnce(CreateOrder) -> M + Send,
        M: Future<Output = Result<String, ProviderError>> + Send,
    {
        crashpoint::reach(Crashpoint::BeforeIntent);
        let resource = ResourceId::new();
        let record = self.record_intent(resource, &request, resource.object_name()).await?;
        crashpoint::reach(Crashpoint::AfterIntent);
        let provider = self.providers.get(request.provider)?;
        let order = CreateOrder {
            resource,
            name: record.name.clone(),
            labels: record.labels.clone(),
            lease: request.lease,
            spec: request.spec,
        };
        let limit = provider.create_deadline();
        let created = tokio::time::timeout(limit, make(order)).await;
        let created = created.unwrap_or_else(|_| Err(no_answer(&record, limit)));
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

    /// Takes responsibility for something that exists already.
    ///
    /// # Errors
    ///
    /// Fails when it is not there, or when it cannot be recorded.
    pub async fn adopt(
        &self,
        provider: ProviderName,
        kind: Kind,
        id: &str,
    ) -> Result<Held, TakeError> {
        let seen = self.providers.get(provider)?.inspect(kind, id).await?;
        let Some(seen) = seen else {
            return Err(TakeError::Absent { kind, id: id.to_owned() });
        };
        let resource = ResourceId::new();
        let record = self.record_adoption(resource, &seen).await?;
        let event = Event::Found { object: seen.id.clone(), identity: seen.identity() };
        self.ledger.append(&[(resource, event)]).await?;
        Ok(self.hold(&record, seen.id))
    }

    /// Creates something, lets `work` use it, and gives it back on every path.
    ///
    /// # Errors
    ///
    /// Fails when it could not be taken, or is not verified gone afterwards.
    pub async fn scope<T, W>(&self, request: Request, work: W) -> Result<T, ScopeError>
    where
        W: for<'a> FnOnce(&'a Held) -> BoxFuture<'a, T> + Send,
    {
        let held = self.create(request).await?;
        self.within(held, None, work).await
    }

    /// As [`Supervisor::scope`], for something that exists already.
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

    /// As [`Supervisor::scope`], with a limit for the work.
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

    /// Gives something back and verifies that it is gone.
    ///
    /// # Errors
    ///
    /// Fails when its absence could not be verified; the ledger keeps it.
    pub async fn release(&self, mut held: Held) -> Result<ItemReport, ScopeError> {
        held.courtesy = None;
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

    /// Gives back everything this process still holds, unanswered creates included.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn release_all(&self) -> Result<Status, LedgerError> {
        self.reconciler().resume().await
    }

    /// Gives back everything this process still holds for a run, unanswered creates included.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn release_run(&self, run: RunId) -> Result<Status, LedgerError> {
        self.reconciler().resume_run(run).await
    }

    /// Holds something that is on record in this process's name; `None` if its object is not known.
    pub fn hold_again(&self, record: &Record) -> Option<Held> {
        let is_mine = record.owner.owner == self.me.owner;
        let object = record.state.object().filter(|_| is_mine)?;
        Some(self.hold(record, object.to_owned()))
    }

    /// Renews the leases of what this process holds, until the handle is aborted.
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

    /// Renews the leases of what this process holds, on record and in the worlds.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used; what a provider refuses is only noted.
    pub async fn renew(&self) -> Result<(), LedgerError> {
        self.ledger.renew_leases(&self.me.owner).await?;
        for record in self.ledger.records(&RecordFilter::open().of(&self.me.owner)).await? {
            // What is on its way out needs no renewal.
            if let (State::Created { object }, Ok(provider)) =
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
            courtesy: Some(self.clone()),
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

    /// Reads what tells an object that was just created from a replacement. Without an answer
    /// the record has no identity, and its object stays where nothing else proves it ours.
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

    /// Finds out what a failed create left, and gives it back.
    ///
    /// After a refusal an empty search proves that nothing was made. After a lost answer it
    /// proves nothing yet: the intent stays open, and is searched for again later.
    async fn after_failed_create(
        &self,
        record: Record,
        error: ProviderError,
    ) -> Result<Held, TakeError> {
        let provider = self.providers.get(record.provider)?;
        let found = provider.find(&record.marks()).await;
        match found {
            // A copy may be among them: none can be proven ours. Reconcile reports them.
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

    /// Releases one record of this process's.
    async fn release_record(&self, resource: ResourceId) -> Result<ItemReport, LedgerError> {
        let reaper = Reaper::new(self.providers.clone(), Some(self.ledger.clone()));
        reaper.release_record(resource, RULE, &self.options).await
    }
}

/// Returns what tells the object of a create from a replacement, as it was seen right after. One
/// without the label of the create has taken its name meanwhile.
pub(crate) fn identity_after_create(resource: ResourceId, seen: &Observed) -> Option<Identity> {
    let is_ours = labels::claimed_resource(&seen.labels) == Some(resource);
    seen.identity().filter(|_| is_ours)
}

fn no_answer(record: &Record, limit: Duration) -> ProviderError {
    ProviderError {
        provider: record.provider,
        operation: format!("create {} {}", record.kind, record.name),
        message: format!("no answer within {}", crate::duration::show(limit)),
        class: crate::provider::ErrorClass::Unreachable,
        retry_after: None,
    }
}
