//! One subject during one case: requests, waits, and a list of what to remove.

#![expect(clippy::disallowed_methods, reason = "the suite tests the release of a provider itself")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use creel_model::id::ResourceId;
use creel_model::labels::{self, Labels};
use creel_model::provider::{
    CreateRequest, Deadline, ErrorClass, Kind, Limits, Observed, Provider, ReleaseMode, Released,
    Result,
};

use super::subject::{Abilities, Subject};

/// How long an accepted change may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The lease of objects that are not about leases.
const LEASE: Duration = Duration::from_secs(600);

/// One subject during one case.
pub(super) struct CaseContext {
    subject: Box<dyn Subject>,
    pub(super) abilities: Abilities,
    /// The kind of object that the case is about.
    pub(super) kind: Kind,
    /// What was created or planted, to be removed at the end.
    made: Mutex<Vec<(Kind, String)>>,
}

impl CaseContext {
    pub(super) fn new(subject: Box<dyn Subject>, abilities: Abilities, kind: Kind) -> Self {
        Self { subject, abilities, kind, made: Mutex::default() }
    }

    pub(super) fn subject(&self) -> &dyn Subject {
        &*self.subject
    }

    pub(super) fn provider(&self) -> Arc<dyn Provider> {
        self.subject.provider()
    }

    /// Returns a request for an object of the case's kind.
    pub(super) fn request(&self) -> CreateRequest {
        self.request_with(Limits::default())
    }

    pub(super) fn request_with(&self, limits: Limits) -> CreateRequest {
        let resource = ResourceId::new();
        CreateRequest {
            resource,
            name: resource.object_name(),
            labels: labels_of(&resource),
            lease: LEASE,
            spec: self.subject.spec(self.kind, limits),
        }
    }

    /// Creates an object of the case's kind.
    pub(super) async fn create(&self) -> (CreateRequest, String) {
        let request = self.request();
        let id = self.provider().create(&request).await.unwrap();
        self.note(self.kind, &id);
        (request, id)
    }

    /// Plants an object of the case's kind from outside.
    pub(super) async fn plant(&self, name: &str, labels: &Labels) -> String {
        let id = self.subject.plant(self.kind, name, labels).await;
        self.note(self.kind, &id);
        id
    }

    /// Plants objects that resemble the one of a request, and that no search for it may find.
    pub(super) async fn decoys(&self, request: &CreateRequest) -> Vec<String> {
        let name = &request.name;
        let (shorter, last) = name.split_at(name.len() - 1);
        let near = if last == "0" { "1" } else { "0" };
        let copies = [format!("{name}0"), format!("{shorter}{near}"), format!("x{name}")];
        let mut decoys = Vec::new();
        for copy in copies {
            decoys.push(self.plant(&copy, &request.labels).await);
        }
        let other = ResourceId::new();
        decoys.push(self.plant(&other.object_name(), &request.labels).await);
        decoys.push(self.plant(&format!("{name}.1"), &labels_of(&other)).await);
        decoys
    }

    /// Asserts that planted objects exist.
    pub(super) async fn assert_exist(&self, ids: &[String]) {
        for id in ids {
            assert!(self.subject.exists(self.kind, id).await, "{id} was released with another");
        }
    }

    /// Remembers an object, to remove it at the end.
    pub(super) fn note(&self, kind: Kind, id: &str) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((kind, id.to_owned()));
    }

    /// Removes everything that the case created or planted.
    pub(super) async fn clear(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for (kind, id) in made.into_iter().rev() {
            self.subject.remove(kind, &id).await;
        }
    }

    pub(super) async fn inspect(&self, id: &str) -> Option<Observed> {
        self.provider().inspect(self.kind, id).await.unwrap()
    }

    /// Requests a release.
    pub(super) async fn release(&self, id: &str, mode: ReleaseMode) -> Result<Released> {
        release(self.provider(), self.kind, id, mode).await
    }

    /// Releases an object, and waits until its absence is verified.
    pub(super) async fn release_to_the_end(&self, id: &str) {
        let released = self.release(id, ReleaseMode::AT_ONCE).await.unwrap();
        assert!(matches!(released, Released::Done | Released::Accepted), "{released:?}");
        self.until_gone(id).await;
    }

    /// Waits until the absence of an object is verified.
    pub(super) async fn until_gone(&self, id: &str) {
        let provider = self.provider();
        let deadline = Instant::now() + PATIENCE;
        while let Some(seen) = provider.verify(self.kind, id).await.unwrap() {
            assert!(Instant::now() < deadline, "it does not go: {seen:?}");
            tokio::time::sleep(*provider.check_interval().start()).await;
        }
    }

    /// Returns the ids that a search by the marks of a request finds, sorted.
    pub(super) async fn found(&self, request: &CreateRequest) -> Vec<String> {
        let found = self.subject.another().find(&request.marks()).await.unwrap();
        let mut ids: Vec<String> = found.into_iter().map(|seen| seen.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Asserts that the backend documents a state.
    pub(super) fn assert_documented(&self, state: &str) {
        let states = self.abilities.backend.states();
        assert!(states.contains(&state), "the state {state} is not among {states:?}");
    }

    /// Returns the ids that a list shows.
    pub(super) async fn listed(&self) -> Vec<String> {
        let listed = self.provider().list(&[self.kind]).await.unwrap();
        listed.into_iter().map(|seen| seen.id).collect()
    }
}

/// Requests a release as the reaper does: with a permit and a deadline.
pub(super) async fn release(
    provider: Arc<dyn Provider>,
    kind: Kind,
    id: &str,
    mode: ReleaseMode,
) -> Result<Released> {
    let permit = provider.permit().await;
    provider.within(permit, Deadline::after(PATIENCE)).release(kind, id, mode).await
}

/// Returns the labels that the supervisor puts on the object of a resource.
fn labels_of(resource: &ResourceId) -> Labels {
    Labels::from([(labels::RESOURCE, resource.to_string()), ("conformance", "yes".to_owned())])
}

/// Returns the class of the error of a call that must fail.
#[track_caller]
pub(super) fn class_of<T: std::fmt::Debug>(result: Result<T>, call: &str) -> ErrorClass {
    match result {
        Ok(value) => panic!("{call} succeeded: {value:?}"),
        Err(error) => {
            assert!(!error.message.is_empty() && !error.operation.is_empty(), "{error:?}");
            error.class
        }
    }
}
