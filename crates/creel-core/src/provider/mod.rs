//! Providers: the worlds that resources live in.
//!
//! A provider lists, inspects, finds, creates, stops and releases objects of
//! one world. It keeps no promise of its own: it reports honestly what it saw,
//! with every error classified once, at this edge, and leaves order, retries
//! and records to [`crate::reap`], [`crate::scope`] and [`crate::ledger`].
//!
//! Every act may happen twice: releasing something absent is success, and a
//! create carries a deterministic name, so that a lost answer can be found
//! again by [`Provider::find`].

pub mod daytona;
pub mod docker;
mod error;
mod identity;
mod observed;
pub mod process;
mod retention;
mod spec;
mod turn;
mod usage;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use error::{ErrorClass, ProviderError};
pub use identity::{Identity, IdentityCheck};
pub use observed::{Kind, Observed, ProviderName, UnknownName};
pub use retention::{Retention, show_date};
pub use spec::{
    ContainerSpec, CreateOrder, Init, Limits, NetworkSpec, Placed, ProcessSpec, SandboxSource,
    SandboxSpec, Spec, VolumeMount, VolumeSpec,
};
pub use turn::Turn;
pub use usage::Usage;

/// The result of a provider call.
pub type Result<T> = std::result::Result<T, ProviderError>;

/// How an object should be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseMode {
    /// Ask politely first and wait this long; `None` kills at once.
    pub stop_timeout: Option<Duration>,
    /// Release also what runs. Without it a running object answers with a conflict,
    /// so that something restarted since it was seen is not killed by mistake.
    pub kill_running: bool,
    /// Which object is meant, where its name can be another's by now: a provider that can compare
    /// and delete in one step answers [`Released::Kept`] for any other.
    pub expected: Option<Identity>,
    /// Release nothing that the object was made from. Without it an engine also deletes the
    /// untagged parents of an image, which another user may have built.
    pub keep_parents: bool,
}

impl ReleaseMode {
    /// Ends the object at once, whatever its state.
    pub const AT_ONCE: Self =
        Self { stop_timeout: None, kill_running: true, expected: None, keep_parents: true };
}

/// What a provider said to a release.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// The provider says it is done; the absence is still to be verified.
    Done,
    /// It was absent already.
    AlreadyGone,
    /// The provider took the order and works on it.
    Accepted,
    /// It was left alone, because it is not the expected object, or nothing proves that it is.
    Kept(IdentityCheck),
}

/// What to expect of an object that was asked to go and is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// It is on its way out. After this long, or the operation's time if that is shorter, it is
    /// stuck; without a limit of its own it is left to finish when the operation's time is over.
    Leaving(Option<Duration>),
    /// It changes into another state, and cannot go before; it has this long.
    Changing(Duration),
    /// Its delete was accepted, and the provider keeps it until a date; after this long nothing
    /// else is expected of it.
    Retained(Duration),
    /// It is at rest: asking again can help.
    Settled,
}

/// A process of this machine that serves a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalServer {
    /// Its id.
    pub pid: i32,
    /// Where it listens.
    pub socket: PathBuf,
}

/// What a running object shows of those who use it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// Its first process, as the engine's machine knows it.
    pub first_process: Option<i32>,
    /// The directories and files of the engine's machine that are mounted into it.
    pub directories: Vec<PathBuf>,
    /// How many commands were started in it from outside and still run.
    pub sessions: usize,
}

/// One world of resources.
#[async_trait]
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns which world this is.
    fn name(&self) -> ProviderName;

    /// Returns the address people know this world by, for messages.
    fn address(&self) -> String;

    /// Returns the kinds of object this world has.
    fn kinds(&self) -> &'static [Kind];

    /// Returns how long after an order that was accepted the first look is worth it.
    fn first_look(&self) -> Duration {
        *self.look_pause().start()
    }

    /// Returns the first and the longest pause between two looks at what is on its way out.
    fn look_pause(&self) -> RangeInclusive<Duration> {
        Duration::from_millis(25)..=Duration::from_secs(1)
    }

    /// Returns how many releases may be under way now, where the provider paces requests itself;
    /// `None` leaves it to whoever sends them to find out.
    fn concurrency(&self) -> Option<usize> {
        None
    }

    /// Waits until a release may be ordered, where the provider limits how often it is asked.
    async fn turn(&self) -> Turn {
        Turn::FREE
    }

    /// Returns how long a create may take before its answer counts as lost.
    fn create_deadline(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Returns whether nothing can appear any more of a create whose caller has died: true where
    /// the calling process makes the object itself, rather than asking another one for it.
    fn creates_end_with_caller(&self) -> bool {
        false
    }

    /// Says what to expect of an object that was asked to go and is still there.
    fn outlook(&self, _seen: &Observed) -> Outlook {
        Outlook::Leaving(None)
    }

    /// Returns whether what it holds is on this machine's own disks and processors, with its
    /// identity on record: such a thing may be released on a full disk before that is recorded.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns whether this world itself refuses to release what was seen so and has changed
    /// since. Then a look that is a moment old is as good as one right before the release.
    fn refuses_if_changed(&self, _seen: &Observed) -> bool {
        false
    }

    /// Returns the process of this machine that serves this provider, if one does: then those
    /// who use it are processes of this machine too. In doubt there is none.
    async fn local_server(&self) -> Option<LocalServer> {
        None
    }

    /// Asks what a running object shows of those who use it.
    async fn in_use(&self, _kind: Kind, _id: &str) -> Result<InUse> {
        Ok(InUse::default())
    }

    /// Asks the world for its own lasting identity, so that a plan made for one engine is
    /// never applied to another.
    async fn identity(&self) -> Result<String>;

    /// Lists all objects of the given kinds, in every state.
    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>>;

    /// Looks at one object by its provider id; `None` means its absence is verified.
    ///
    /// The generation of the answer is complete, unlike the one in a list.
    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>>;

    /// Looks at one object and also at who uses it, where that takes more than an inspect.
    async fn examine(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        self.inspect(kind, id).await
    }

    /// Looks whether an object that was released is still there; `None` means its absence is
    /// verified. Where many can be asked for at once, looks at the same time share one question.
    async fn verify(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        self.inspect(kind, id).await
    }

    /// Finds the objects that a create order left behind, by its name and by its resource
    /// label. An object that only inherited the label is not among them.
    async fn find(&self, order: &Marks) -> Result<Vec<Observed>>;

    /// Finds steps of builds that were made upon images of ours after the client was gone, so that
    /// no answer told of them. They keep those images from going. `recorded` are the names that the
    /// same runs have on record.
    async fn unrecorded_steps(
        &self,
        _images: &[String],
        _recorded: &[String],
    ) -> Result<Vec<Observed>> {
        Ok(Vec::new())
    }

    /// Creates and, where the kind runs, starts an object; returns its provider id.
    ///
    /// A create that failed half-way removes what it made before it answers, where it can.
    async fn create(&self, order: &CreateOrder) -> Result<String>;

    /// Stops a running object without releasing it.
    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()>;

    /// Tells the object's own dead-man switch, where it has one, that its owner lives.
    async fn renew(&self, _kind: Kind, _id: &str) -> Result<()> {
        Ok(())
    }

    /// Ends an object.
    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released>;
}

/// The worlds at hand.
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
    /// Fails when that provider is not at hand.
    pub fn get(&self, name: ProviderName) -> Result<&Arc<dyn Provider>> {
        self.0.iter().find(|provider| provider.name() == name).ok_or_else(|| ProviderError {
            provider: name,
            operation: "be asked".to_owned(),
            message: "it is not configured here".to_owned(),
            class: ErrorClass::Unreachable,
            retry_after: None,
        })
    }

    /// Returns whether a provider is at hand whose objects are on this machine.
    pub fn is_local(&self, name: ProviderName) -> bool {
        self.0.iter().any(|provider| provider.name() == name && provider.is_local())
    }

    /// Returns all of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.0.iter()
    }
}

/// What an object is found again by when the answer to its create was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// What it is.
    pub kind: Kind,
    /// The resource it was made for, as its label says.
    pub resource: crate::id::ResourceId,
    /// The deterministic name it was given.
    pub name: String,
}

impl Marks {
    /// Returns whether an object has the name and carries the label of the create. It may have
    /// inherited the label all the same, where its kind can.
    pub fn fit(&self, seen: &Observed) -> bool {
        seen.kind == self.kind
            && seen.name == self.name
            && crate::labels::claimed_resource(&seen.labels) == Some(self.resource)
    }
}
