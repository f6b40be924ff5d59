//! What a provider's tests bring: the system, and how to act on it from outside.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use creel_model::backend::Backend;
use creel_model::labels::Labels;
use creel_model::provider::{CreateRequest, Kind, Limits, Provider, Result, Spec};
use creel_model::sandbox::{SandboxOptions, SandboxProvider};

/// What a subject is started for. Some systems are cheaper without real sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Objects are created, listed and released.
    Objects,
    /// Commands run in sandboxes.
    Sandboxes,
}

/// How every answer of a system fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No server listens.
    NoServer,
    /// Connections are closed before an answer.
    Reset,
    /// Answers are server errors.
    ServerError,
    /// Answers break off in the middle. Only reads fail: a change needs no whole answer.
    HalfAnswer,
    /// A proxy answers every request with a page of its own and status 404.
    ForeignPage,
    /// The files that hold the state cannot be read.
    UnreadableStore,
}

/// What a provider does with limits on a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitSupport {
    /// It enforces a limit on processes.
    Enforced,
    /// It refuses all limits.
    Refused,
}

/// What a provider can do, where providers differ. The suite runs only the cases that apply.
#[derive(Debug, Clone)]
pub struct Abilities {
    /// The backend, whose name is the first part of every test's name.
    pub backend: &'static dyn Backend,
    /// The kinds that can be created.
    pub kinds: &'static [Kind],
    /// The kinds of which [`Subject::plant`] can make an object.
    pub planted: &'static [Kind],
    /// The kinds of which [`Subject::plant`] can make an object with the name of a later create.
    pub namesakes: &'static [Kind],
    /// The kinds whose release compares the identity of the object.
    pub compares: &'static [Kind],
    /// The kinds whose release spares a running object.
    pub spares_running: &'static [Kind],
    /// The kinds whose spec has limits.
    pub limited: &'static [Kind],
    /// How its answers can fail.
    pub failures: &'static [Failure],
    /// What its sandboxes can do, if it has them.
    pub sandboxes: Option<SandboxAbilities>,
}

/// What the sandboxes of a provider can do.
#[derive(Debug, Clone)]
pub struct SandboxAbilities {
    /// The keys among `image`, `network` and `snapshot` that it refuses.
    pub refused_keys: &'static [&'static str],
    /// What it does with limits.
    pub limits: LimitSupport,
    /// A lease that a test can wait for; `None` where leases are counted in minutes.
    pub short_lease: Option<Duration>,
}

/// A provider under test, and the system behind it as another client would use it.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Returns what this provider can do.
    fn abilities() -> Abilities
    where
        Self: Sized;

    /// Starts the system, or connects to it. Every case has a subject of its own.
    async fn start(purpose: Purpose) -> Self
    where
        Self: Sized;

    /// Returns the provider under test.
    fn provider(&self) -> Arc<dyn Provider>;

    /// Returns another provider for the same system, as another process would have it.
    fn another(&self) -> Arc<dyn Provider>;

    /// Returns the spec of a small object of a kind; one that runs keeps running.
    fn spec(&self, kind: Kind, limits: Limits) -> Spec;

    /// Creates an object from outside, as another client would, and returns its provider id.
    async fn plant(&self, kind: Kind, name: &str, labels: &Labels) -> String;

    /// Returns whether an object exists, without the provider under test.
    async fn exists(&self, kind: Kind, id: &str) -> bool;

    /// Removes an object from outside. A missing object is not an error.
    async fn remove(&self, kind: Kind, id: &str);

    /// Creates an object and loses the answer. Returns the provider's result; `None` where the
    /// caller itself died.
    async fn lose_answer(&self, request: &CreateRequest) -> Option<Result<String>>;

    /// Returns a provider all of whose requests fail from now on.
    async fn failing(&self, failure: Failure) -> Arc<dyn Provider>;

    /// Ends all failures, where they concern the whole system.
    async fn mend(&self) {}

    /// Returns the provider of sandboxes, and the options of an ordinary one.
    fn sandboxes(&self) -> Option<(Arc<dyn SandboxProvider>, SandboxOptions)>;

    /// Prepares to cut the next stream, where that has to be arranged before it begins.
    async fn prepare_cut(&self) {}

    /// Cuts the streams of all running commands of a sandbox, and returns how many were cut.
    async fn cut_streams(&self, sandbox: &str) -> usize;

    /// Ends the system, as far as it is this subject's own.
    async fn end(&self);
}
