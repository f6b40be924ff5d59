//! Providers: the systems that hold resources.
//!
//! A provider lists, inspects, finds, creates, stops and releases the objects of one system. It
//! makes no promises of its own. It reports what it observes, and classifies every error once, at
//! this edge. Ordering, retries and records belong to [`creel_core::reap`], [`creel_core::scope`] and
//! [`creel_ledger`].
//!
//! Every operation may happen twice. Releasing an absent object succeeds, and a create carries a
//! deterministic name, so that [`Provider::find`] finds the object again after a lost response.

mod deadline;
mod error;
mod identity;
mod name;
mod named_enum;
mod observed;
mod permit;
mod preset;
mod retention;
pub mod retry;
mod spec;
mod usage;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use deadline::Deadline;
pub use error::{ErrorClass, ProviderError};
pub use identity::{Identity, IdentityCheck};
pub use name::{InvalidProviderName, ProviderName};
pub use observed::{Activity, Kind, Observed, UnknownName};
pub use permit::Permit;
pub use preset::{Preset, PresetRule};
pub use retention::{Retention, show_date};
pub use spec::{
    ContainerSpec, CreateRequest, Init, Limits, NetworkSpec, Placed, ProcessSpec, SandboxSource,
    SandboxSpec, Spec, VolumeMount, VolumeSpec,
};
pub use usage::Usage;

/// The result of a provider call.
pub type Result<T> = std::result::Result<T, ProviderError>;

/// How to release an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseMode {
    /// Stop gracefully first and wait this long; `None` kills at once.
    pub stop_timeout: Option<Duration>,
    /// Release running objects too. Without it a running object yields a conflict, so that an
    /// object restarted since it was observed is not killed by mistake.
    pub kill_running: bool,
    /// The expected object, where the name may belong to another object by now. A provider that can
    /// compare and delete in one step returns [`Released::Kept`] for any other object.
    pub expected: Option<Identity>,
}

impl ReleaseMode {
    /// Releases the object at once, whatever its state.
    pub const AT_ONCE: Self = Self { stop_timeout: None, kill_running: true, expected: None };

    /// Returns the evidence that an object with a lasting id is not the expected one, if it is not.
    pub fn other_id(&self, id: &str) -> Option<IdentityCheck> {
        let check = Identity::compare(self.expected.as_ref()?, &Identity::id(id));
        matches!(check, IdentityCheck::Replaced { .. }).then_some(check)
    }
}

/// The provider's response to a release.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// The provider reports success; the absence is still to be verified.
    Done,
    /// The object was already absent.
    AlreadyGone,
    /// The provider accepted the request and is working on it.
    Accepted,
    /// The object was kept, because it is not the expected one or nothing proves that it is.
    Kept(IdentityCheck),
}

/// What to expect of an object that was released and still exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// It is being deleted. After this long, or the operation's time if that is shorter, it is
    /// stuck. Without a limit of its own it is left to finish when the operation's time is over.
    Leaving(Option<Duration>),
    /// It is changing into another state and cannot be deleted before; it has this long.
    Changing(Duration),
    /// Its delete was accepted, and the provider keeps it until a date. After this long no other
    /// change is expected.
    Retained(Duration),
    /// It is not changing; another request can help.
    Stable,
}

/// A process of this machine that serves a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalServer {
    /// Its id.
    pub pid: i32,
    /// Where it listens.
    pub socket: PathBuf,
}

/// The users of a running object, as far as the provider can see them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// Its first process, with the pid on the engine's machine.
    pub first_process: Option<i32>,
    /// The directories and files of the engine's machine that are mounted into it.
    pub directories: Vec<PathBuf>,
    /// The number of commands that were started in it from outside and still run.
    pub sessions: usize,
}

/// A system that holds resources, such as a Docker Engine.
#[async_trait]
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns the name of this provider.
    fn name(&self) -> ProviderName;

    /// Returns the address of this provider, for messages.
    fn address(&self) -> String;

    /// Returns how to use another account or server of this provider, as a hint for users.
    fn other_account_hint(&self) -> &'static str;

    /// Returns the kinds of object that this provider has.
    fn kinds(&self) -> &'static [Kind];

    /// Returns what the presets of a sweep select among its objects.
    fn preset_rules(&self) -> &'static [PresetRule] {
        &[]
    }

    /// Returns how a user enters an object that was kept, where that is possible.
    fn access_hint(&self, _kind: Kind, _id: &str) -> Option<String> {
        None
    }

    /// Returns how long to wait after an accepted release before the first check.
    fn first_check_delay(&self) -> Duration {
        *self.check_interval().start()
    }

    /// Returns the first and the longest pause between two checks of an object that is being
    /// deleted.
    fn check_interval(&self) -> RangeInclusive<Duration> {
        Duration::from_millis(25)..=Duration::from_secs(1)
    }

    /// Returns how many releases may run at once, where the provider paces its requests itself.
    ///
    /// `None` leaves it to the caller to find the right number.
    fn concurrency(&self) -> Option<usize> {
        None
    }

    /// Waits until a release may be requested, where the provider limits the rate of requests.
    async fn permit(&self) -> Permit {
        Permit::FREE
    }

    /// Returns this provider for the calls of one operation.
    ///
    /// A provider whose requests wait for admission spends the permit on them, and pauses the
    /// deadline while they wait. Any other provider returns itself.
    fn within(self: Arc<Self>, permit: Permit, deadline: Deadline) -> Arc<dyn Provider>;

    /// Returns how long a create may take before its response counts as lost.
    fn create_deadline(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Returns how much extra time a release of this kind may take: for objects that the provider
    /// removes piece by piece within one call.
    fn release_allowance(&self, _kind: Kind) -> Duration {
        Duration::ZERO
    }

    /// Returns whether a create whose caller has died can no longer produce an object.
    ///
    /// This is true where the calling process makes the object itself instead of requesting it.
    fn creates_end_with_caller(&self) -> bool {
        false
    }

    /// Returns what to expect of an object that was released and still exists.
    fn outlook(&self, _seen: &Observed) -> Outlook {
        Outlook::Leaving(None)
    }

    /// Returns whether the objects live on this machine's own disks and processors, with their
    /// identity on record.
    ///
    /// On a full disk such an object may be released before the release is recorded.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns whether the provider itself refuses to release an object that changed since `_seen`.
    ///
    /// An observation that is a moment old is then as good as one right before the release.
    fn refuses_if_changed(&self, _seen: &Observed) -> bool {
        false
    }

    /// Returns the objects that are removed together with this object, unless something else uses
    /// them as well.
    fn dependents(&self, _seen: &Observed) -> Vec<(Kind, String)> {
        Vec::new()
    }

    /// Returns the process of this machine that serves this provider, if there is one.
    ///
    /// If so, the provider's users are processes of this machine too. In doubt it returns `None`.
    async fn local_server(&self) -> Option<LocalServer> {
        None
    }

    /// Returns the visible users of a running object.
    async fn in_use(&self, _kind: Kind, _id: &str) -> Result<InUse> {
        Ok(InUse::default())
    }

    /// Returns the provider's own lasting identity, so that a plan made for one engine is never
    /// applied to another.
    async fn identity(&self) -> Result<String>;

    /// Lists all objects of the given kinds, in every state.
    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>>;

    /// Returns one object by its provider id; `None` means its absence is verified.
    ///
    /// The generation of the result is complete, unlike the one in a list.
    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>>;

    /// Inspects one object together with its users, where that takes more than an inspect.
    async fn examine(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        self.inspect(kind, id).await
    }

    /// Checks whether a released object still exists; `None` means its absence is verified.
    ///
    /// Where one request can cover many objects, concurrent checks share it.
    async fn verify(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        self.inspect(kind, id).await
    }

    /// Finds the objects that a create left behind, by its name and by its resource label.
    ///
    /// An object that only inherited the label is not among them.
    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>>;

    /// Finds build steps that were made on top of our images after the client was gone.
    ///
    /// No response reported these steps, and they keep those images from being deleted. `recorded`
    /// are the names that the same runs have on record.
    async fn unrecorded_steps(
        &self,
        _images: &[String],
        _recorded: &[String],
    ) -> Result<Vec<Observed>> {
        Ok(Vec::new())
    }

    /// Creates an object, starts it if its kind runs, and returns its provider id.
    ///
    /// A create that fails halfway removes what it made before it returns, where it can.
    async fn create(&self, request: &CreateRequest) -> Result<String>;

    /// Stops a running object without releasing it.
    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()>;

    /// Renews the object's own dead-man switch, where it has one, because its owner is alive.
    async fn renew(&self, _kind: Kind, _id: &str) -> Result<()> {
        Ok(())
    }

    /// Releases an object.
    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released>;
}

/// The configured providers.
#[derive(Debug, Clone, Default)]
pub struct Providers(Vec<Arc<dyn Provider>>);

impl Providers {
    /// Collects providers, one of each name.
    pub fn new(providers: Vec<Arc<dyn Provider>>) -> Self {
        Self(providers)
    }

    /// Returns the provider of a name.
    ///
    /// # Errors
    ///
    /// Fails when that provider is not configured.
    pub fn get(&self, name: ProviderName) -> Result<&Arc<dyn Provider>> {
        self.0.iter().find(|provider| provider.name() == name).ok_or_else(|| ProviderError {
            provider: name,
            operation: "be asked".to_owned(),
            message: "it is not configured here".to_owned(),
            class: ErrorClass::Unreachable,
            retry_after: None,
        })
    }

    /// Returns whether this provider is configured and its objects are on this machine.
    pub fn is_local(&self, name: ProviderName) -> bool {
        self.0.iter().any(|provider| provider.name() == name && provider.is_local())
    }

    /// Returns all providers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.0.iter()
    }
}

/// What identifies an object when the response to its create was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// The kind of the object.
    pub kind: Kind,
    /// The resource it was made for, as its label says.
    pub resource: crate::id::ResourceId,
    /// Its deterministic name.
    pub name: String,
}

impl Marks {
    /// Returns whether an object has the name and the label of the create.
    ///
    /// It may still have inherited the label, where its kind can.
    pub fn fit(&self, seen: &Observed) -> bool {
        seen.kind == self.kind
            && seen.name == self.name
            && crate::labels::claimed_resource(&seen.labels) == Some(self.resource)
    }
}
