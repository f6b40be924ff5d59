//! How sandboxes come, move and go.
//!
//! An order changes the state at once and starts a task that settles it later:
//! it waits, lets the backend act, and enters the final state, unless another
//! order came in between. A stop or a delete is pending first: the state stays
//! until the runner takes it up. A delete in error is accepted and sent to nobody;
//! the row is purged days later. The task belongs to the server, not to the request,
//! so a client that hangs up changes nothing.

use std::sync::Arc;
use std::time::Duration;

use creel_core::task;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::backend;
use crate::error::{ApiError, Result};
use crate::fault::{Kind, Mischief};
use crate::moment::Moment;
use crate::sandbox::{Sandbox, Shadow};
use crate::shared::Shared;
use crate::state::{Desired, Order, Refusal, State};

/// Why a sandbox whose start was made to fail is in error.
const START_FAILURE: &str = "runner could not start the container";

/// How a transition goes.
#[derive(Debug, Clone, Default)]
struct Course {
    /// It lasts so long instead of the usual time; `None` inside means for ever.
    stuck: Option<Option<Duration>>,
    /// It ends in an error with this reason.
    fails: Option<Failure>,
}

/// How a transition fails.
#[derive(Debug, Clone)]
struct Failure {
    reason: String,
    /// Whether a recover helps.
    recoverable: bool,
}

/// An order that was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The sandbox.
    pub(crate) id: Uuid,
    /// Ends when the transition has, if there is one.
    pub(crate) settled: Option<JoinHandle<()>>,
}

impl Shared {
    /// Adds a sandbox and lets it start.
    pub(crate) fn create(
        self: &Arc<Self>,
        sandbox: Sandbox,
        mischief: &Mischief,
    ) -> Result<Accepted> {
        let (id, name) = (sandbox.id, sandbox.name.clone());
        let (state, generation) = (sandbox.state, sandbox.generation);
        if !self.registry().add(sandbox) {
            let message = format!("Sandbox with name {name} already exists");
            return Err(ApiError::new(axum::http::StatusCode::CONFLICT, message));
        }
        let course = self.course_of_start(mischief);
        Ok(Accepted { id, settled: Some(self.settle_later(id, generation, state, course)) })
    }

    fn course_of_start(&self, mischief: &Mischief) -> Course {
        let failing = mischief.get(Kind::CreateFailsAfterAlloc);
        Course {
            stuck: mischief.get(Kind::StuckStarting).map(|strike| strike.lasting()),
            fails: failing.map(|strike| Failure {
                reason: strike.order.message.clone().unwrap_or_else(|| START_FAILURE.to_owned()),
                recoverable: strike.order.recoverable.unwrap_or(true),
            }),
        }
    }

    /// Gives a sandbox an order; `None` means that it is so already.
    pub(crate) fn order(
        self: &Arc<Self>,
        key: &str,
        order: Order,
        mischief: &Mischief,
    ) -> Result<Option<Accepted>> {
        let mut registry = self.registry();
        let id = registry.id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
        let sandbox = registry.get_mut(&id).ok_or_else(|| ApiError::no_sandbox(key))?;
        if sandbox.pending.is_some() {
            return Err(ApiError::in_progress());
        }
        let next = match sandbox.state.obey(order) {
            Ok(next) => next,
            Err(Refusal::AlreadySo) => return Ok(None),
            Err(Refusal::InProgress) => return Err(ApiError::in_progress()),
            Err(Refusal::Absent) => return Err(ApiError::no_sandbox(key)),
            Err(Refusal::NotNow(message)) => return Err(ApiError::invalid(message)),
        };
        if order == Order::Recover && !sandbox.recoverable {
            return Err(ApiError::invalid("Sandbox is not recoverable"));
        }
        // An ephemeral sandbox is deleted by its stop.
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
            return Ok(Some(Accepted { id, settled: None }));
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
        let (generation, mut course) = (sandbox.generation, self.course_of_start(mischief));
        if next == State::Destroying {
            course = self.course_of_destroy(mischief);
            let name = sandbox.name.clone();
            let flap = mischief.get(Kind::Flap).map(|strike| strike.flap());
            sandbox.shadow = flap.map(|flap| Shadow {
                name: name.clone(),
                state: before,
                hidden_until: Moment::now().plus(flap / 2),
                shown_until: Moment::now().plus(flap / 2 + flap),
            });
            registry.rename(&id, deleted_name(&name));
        }
        drop(registry);
        let settled = Some(self.settle_later(id, generation, next, course));
        Ok(Some(Accepted { id, settled }))
    }

    fn course_of_destroy(&self, mischief: &Mischief) -> Course {
        let reason = "runner could not destroy the container";
        Course {
            stuck: mischief.get(Kind::StuckDestroying).map(|strike| strike.lasting()),
            fails: mischief
                .get(Kind::ErroredDeleted)
                .map(|_| Failure { reason: reason.to_owned(), recoverable: false }),
        }
    }

    fn settle_later(
        self: &Arc<Self>,
        id: Uuid,
        generation: u64,
        state: State,
        course: Course,
    ) -> JoinHandle<()> {
        let shared = Arc::clone(self);
        let cancel = self.cancel.clone();
        let work = async move {
            tokio::time::sleep(shared.delays.pending).await;
            let Some(generation) = shared.take_up(id, generation) else { return };
            let delay = match course.stuck {
                Some(Some(seconds)) => seconds,
                Some(None) => std::future::pending().await,
                None => shared.delay_of(state),
            };
            tokio::time::sleep(delay).await;
            shared.settle(id, generation, course.fails).await;
        };
        let work = async move {
            tokio::select! {
                () = work => {}
                () = cancel.cancelled() => {}
            }
        };
        task::background(self.tasks.track_future(work))
    }

    /// Lets the runner take up what is pending; `None` when another order came in between.
    fn take_up(&self, id: Uuid, generation: u64) -> Option<u64> {
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
    async fn settle(self: &Arc<Self>, id: Uuid, generation: u64, fails: Option<Failure>) {
        let is_current = |sandbox: &&Sandbox| sandbox.generation == generation;
        let Some(sandbox) = self.registry().get(&id).filter(is_current).cloned() else { return };
        let acted = match fails {
            Some(failure) => Err(failure),
            None if sandbox.hollow => Ok(()),
            None => backend::act(self, &sandbox).await.map_err(|reason| Failure {
                reason,
                recoverable: sandbox.desired != Desired::Destroyed,
            }),
        };
        let mut registry = self.registry();
        let current = registry.get_mut(&id).filter(|sandbox| sandbox.generation == generation);
        let Some(sandbox) = current else { return };
        match acted {
            Ok(()) => sandbox.enter(sandbox.state.settled()),
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

    /// Removes the row of a sandbox that was deleted in error, and what stands behind it.
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
            if let Err(error) = backend::act(&shared, &leaving).await {
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
