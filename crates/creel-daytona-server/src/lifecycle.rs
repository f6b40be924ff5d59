//! The life of a sandbox: creation, state changes and deletion.
//!
//! An action changes the state at once, and starts a task that finishes the transition later. The
//! task waits, lets the backend act, and enters the final state, unless another action came in
//! between. A stop or a delete is pending first: the state stays until the runner takes it up. A
//! delete in error is accepted, but not sent to the runner; the row is purged days later. The task
//! belongs to the server, not to the request, so a client that hangs up changes nothing.

use std::sync::Arc;
use std::time::Duration;

use creel_model::task;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::backend::{self, SandboxBody};
use crate::error::{ApiError, Result};
use crate::fault::{FaultKind, InjectedFaults};
use crate::moment::Moment;
use crate::sandbox::{SandboxRecord, Shadow};
use crate::shared::ServerState;
use crate::state::{Action, ActionRefusal, Desired, State};

/// The error reason of a sandbox whose start was made to fail.
const START_FAILURE: &str = "runner could not start the container";

/// How a transition proceeds.
#[derive(Debug, Clone, Default)]
struct TransitionPlan {
    /// How long it lasts instead of the usual time. `Some(None)` means for ever.
    stuck: Option<Option<Duration>>,
    /// It ends in an error with this reason.
    fails: Option<TransitionFailure>,
}

/// How a transition fails.
#[derive(Debug, Clone)]
struct TransitionFailure {
    reason: String,
    /// Whether the sandbox can be recovered.
    recoverable: bool,
}

/// An accepted action.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The sandbox.
    pub(crate) id: Uuid,
    /// Completes when the transition has ended, if there is one.
    pub(crate) finished: Option<JoinHandle<()>>,
}

impl ServerState {
    /// Adds a sandbox, and starts it.
    pub(crate) fn create(
        self: &Arc<Self>,
        sandbox: SandboxRecord,
        faults: &InjectedFaults,
    ) -> Result<Accepted> {
        let (id, name) = (sandbox.id, sandbox.name.clone());
        let (state, generation) = (sandbox.state, sandbox.generation);
        if !self.registry().add(sandbox) {
            let message = format!("Sandbox with name {name} already exists");
            return Err(ApiError::new(axum::http::StatusCode::CONFLICT, message));
        }
        let plan = self.start_plan(faults);
        Ok(Accepted { id, finished: Some(self.finish_later(id, generation, state, plan)) })
    }

    fn start_plan(&self, faults: &InjectedFaults) -> TransitionPlan {
        let failing = faults.get(FaultKind::CreateFailsAfterAlloc);
        TransitionPlan {
            stuck: faults.get(FaultKind::StuckStarting).map(|strike| strike.lasting()),
            fails: failing.map(|strike| TransitionFailure {
                reason: strike.spec.message.clone().unwrap_or_else(|| START_FAILURE.to_owned()),
                recoverable: strike.spec.recoverable.unwrap_or(true),
            }),
        }
    }

    /// Applies an action to a sandbox. Returns `None` if the sandbox already is in that state.
    pub(crate) fn apply_action(
        self: &Arc<Self>,
        key: &str,
        action: Action,
        faults: &InjectedFaults,
    ) -> Result<Option<Accepted>> {
        let mut registry = self.registry();
        let id = registry.id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
        let sandbox = registry.get_mut(&id).ok_or_else(|| ApiError::no_sandbox(key))?;
        if sandbox.pending.is_some() {
            return Err(ApiError::in_progress());
        }
        let next = match sandbox.state.apply(action) {
            Ok(next) => next,
            Err(ActionRefusal::AlreadySo) => return Ok(None),
            Err(ActionRefusal::InProgress) => return Err(ApiError::in_progress()),
            Err(ActionRefusal::Absent) => return Err(ApiError::no_sandbox(key)),
            Err(ActionRefusal::NotNow(message)) => return Err(ApiError::invalid(message)),
        };
        if action == Action::Recover && !sandbox.recoverable {
            return Err(ApiError::invalid("Sandbox is not recoverable"));
        }
        // The stop of an ephemeral sandbox deletes it.
        let next = match next {
            State::Stopping if sandbox.intervals.delete == 0 => State::Destroying,
            other => other,
        };
        let before = sandbox.state;
        if next == before {
            sandbox.desired = Desired::Destroyed;
            sandbox.updated_at = Moment::now();
            let name = sandbox.name.clone();
            registry.rename(&id, deleted_name(&name));
            return Ok(Some(Accepted { id, finished: None }));
        }
        sandbox.error_reason = None;
        sandbox.desired = next.desired();
        if matches!(next, State::Stopping | State::Destroying) {
            sandbox.pending = Some(next);
            sandbox.generation += 1;
            sandbox.updated_at = Moment::now();
        } else {
            sandbox.enter(next);
        }
        let (generation, mut plan) = (sandbox.generation, self.start_plan(faults));
        if next == State::Destroying {
            plan = self.destroy_plan(faults);
            let name = sandbox.name.clone();
            let flap = faults.get(FaultKind::Flap).map(|strike| strike.flap());
            sandbox.shadow = flap.map(|flap| Shadow {
                name: name.clone(),
                state: before,
                hidden_until: Moment::now().plus(flap / 2),
                shown_until: Moment::now().plus(flap / 2 + flap),
            });
            registry.rename(&id, deleted_name(&name));
        }
        drop(registry);
        let finished = Some(self.finish_later(id, generation, next, plan));
        Ok(Some(Accepted { id, finished }))
    }

    fn destroy_plan(&self, faults: &InjectedFaults) -> TransitionPlan {
        let reason = "runner could not destroy the container";
        TransitionPlan {
            stuck: faults.get(FaultKind::StuckDestroying).map(|strike| strike.lasting()),
            fails: faults
                .get(FaultKind::ErroredDeleted)
                .map(|_| TransitionFailure { reason: reason.to_owned(), recoverable: false }),
        }
    }

    fn finish_later(
        self: &Arc<Self>,
        id: Uuid,
        generation: u64,
        state: State,
        plan: TransitionPlan,
    ) -> JoinHandle<()> {
        let shared = Arc::clone(self);
        let cancel = self.cancel.clone();
        let work = async move {
            tokio::time::sleep(shared.delays.pending).await;
            let Some(generation) = shared.begin(id, generation) else { return };
            let delay = match plan.stuck {
                Some(Some(seconds)) => seconds,
                Some(None) => std::future::pending().await,
                None => shared.delay_of(state),
            };
            tokio::time::sleep(delay).await;
            shared.finish(id, generation, plan.fails).await;
        };
        let work = async move {
            tokio::select! {
                () = work => {}
                () = cancel.cancelled() => {}
            }
        };
        task::background(self.tasks.track_future(work))
    }

    /// Lets the runner take up a pending state. Returns `None` if another action came in between.
    fn begin(&self, id: Uuid, generation: u64) -> Option<u64> {
        let mut registry = self.registry();
        let sandbox = registry.get_mut(&id).filter(|sandbox| sandbox.generation == generation)?;
        if let Some(next) = sandbox.pending.take() {
            sandbox.enter(next);
        }
        Some(sandbox.generation)
    }

    fn delay_of(&self, state: State) -> Duration {
        match state {
            State::Starting | State::Resuming => self.delays.start,
            State::Stopping | State::Pausing => self.delays.stop,
            State::Archiving | State::Restoring => self.delays.archive,
            State::Destroying => self.delays.destroy,
            _ => self.delays.create,
        }
    }

    /// Lets the backend act, then enters the final state.
    async fn finish(self: &Arc<Self>, id: Uuid, generation: u64, fails: Option<TransitionFailure>) {
        let is_current = |sandbox: &&SandboxRecord| sandbox.generation == generation;
        let Some(sandbox) = self.registry().get(&id).filter(is_current).cloned() else { return };
        let acted = match fails {
            Some(failure) => Err(failure),
            None if sandbox.hollow => Ok(()),
            None => self.act(&sandbox).await.map_err(|reason| TransitionFailure {
                reason,
                recoverable: sandbox.desired != Desired::Destroyed,
            }),
        };
        let mut registry = self.registry();
        let current = registry.get_mut(&id).filter(|sandbox| sandbox.generation == generation);
        let Some(sandbox) = current else { return };
        match acted {
            Ok(()) => sandbox.enter(sandbox.state.final_state()),
            Err(failure) => {
                sandbox.error_reason = Some(failure.reason);
                sandbox.recoverable = failure.recoverable;
                sandbox.enter(State::Error);
            }
        }
        let shadow_ends = sandbox.shadow.as_ref().map(|shadow| shadow.shown_until);
        registry.forget(&id);
        drop(registry);
        if let Some(until) = shadow_ends {
            self.forget_at(id, until);
        }
    }

    /// Performs the action of the sandbox's state in transition.
    async fn act(&self, sandbox: &SandboxRecord) -> std::result::Result<(), String> {
        let known = self.bodies().get(&sandbox.id).cloned();
        match (sandbox.state, known) {
            (State::Stopping | State::Archiving, Some(body)) => {
                self.forget_sessions(&sandbox.id);
                body.stop().await
            }
            (State::Destroying, Some(body)) => {
                self.forget_sessions(&sandbox.id);
                body.destroy().await?;
                self.bodies().remove(&sandbox.id);
                Ok(())
            }
            (State::Stopping | State::Archiving | State::Destroying, None) => Ok(()),
            (State::Pausing | State::Resuming, _) => Ok(()),
            (_, Some(body)) => body.start().await,
            (_, None) => {
                let made = SandboxBody::make(&self.backend, sandbox).await?;
                let Some(body) = made.map(Arc::new) else { return Ok(()) };
                // Registered before it runs, so that the end of the server also ends it.
                self.bodies().insert(sandbox.id, Arc::clone(&body));
                body.start().await
            }
        }
    }

    /// Ends the backends of all sandboxes, and verifies it.
    pub(crate) async fn end_backends(&self) {
        let bodies = self.bodies().drain().map(|(_, body)| body).collect();
        backend::end_all(&self.backend, bodies).await;
    }

    /// Records that a sandbox is in use.
    pub(crate) fn touch(&self, key: &str) -> Result<()> {
        let mut registry = self.registry();
        let id = registry.id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
        if let Some(sandbox) = registry.get_mut(&id) {
            sandbox.active_at = Moment::now();
        }
        Ok(())
    }

    /// Removes the row of a sandbox that was deleted in error, and its backend.
    pub(crate) fn purge(self: &Arc<Self>, id: Uuid) {
        let mut registry = self.registry();
        let Some(sandbox) = registry.get_mut(&id).filter(|one| one.is_errored_deleted()) else {
            return;
        };
        sandbox.enter(State::Destroying);
        let leaving = sandbox.clone();
        sandbox.enter(State::Destroyed);
        registry.forget(&id);
        drop(registry);
        let shared = Arc::clone(self);
        task::background(self.tasks.track_future(async move {
            if let Err(error) = shared.act(&leaving).await {
                tracing::warn!(%id, %error, "what stood behind a purged sandbox is still there");
            }
        }));
    }

    fn forget_at(self: &Arc<Self>, id: Uuid, until: Moment) {
        let left = u64::try_from(until.0 - Moment::now().0).unwrap_or(0);
        let (shared, cancel) = (Arc::clone(self), self.cancel.clone());
        task::background(self.tasks.track_future(async move {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(left + 1)) => {
                    shared.registry().forget(&id);
                }
                () = cancel.cancelled() => {}
            }
        }));
    }
}

/// Returns the name of a sandbox after its delete was accepted.
fn deleted_name(name: &str) -> String {
    format!("DESTROYED_{name}_{}", Moment::now().0)
}
