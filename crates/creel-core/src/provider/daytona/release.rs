//! Stops and releases.
//!
//! A delete is ordered once. Whether it was taken is asked, not tried again:
//! when the answer is lost, and when the sandbox is busy, a look at its state
//! tells whether it is on its way out.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::crashpoint::{self, Crashpoint};
use crate::provider::{ErrorClass, ReleaseMode, Released};

use super::absence::Absences;
use super::classify::Refusal;
use super::model::Sandbox;
use super::read;
use super::state::{self, SandboxState};
use super::wire::{Answered, StopMode, Wire};

/// The pauses while a sandbox stops.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How long a failed sandbox may take to come back before it is deleted.
const RECOVERY: Duration = Duration::from_secs(60);
/// How long a sandbox that is killed may take to stop.
const AFTER_KILL: Duration = Duration::from_secs(30);

/// Orders the end of a sandbox.
///
/// Daytona has no delete that spares what runs: the look just before is the only guard.
pub(super) async fn sandbox(
    wire: &dyn Wire,
    absences: &Absences,
    id: &str,
    mode: ReleaseMode,
) -> Answered<Released> {
    if let Some(patience) = mode.stop_timeout {
        match stop(wire, id, patience).await {
            Ok(()) => {}
            Err(refusal) if refusal.class == ErrorClass::Denied => return Err(refusal),
            // A delete follows, which needs no stop.
            Err(_) if mode.kill_running => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let answer = wire.delete(id).await;
    // Whatever was answered: the order may have been taken all the same.
    crashpoint::reach(Crashpoint::ReleaseSent);
    let Err(refusal) = answer else { return Ok(Released::Accepted) };
    match refusal.class {
        ErrorClass::Gone => match absences.hidden(id).await? {
            Some(_) => Ok(Released::Accepted),
            None => Ok(Released::AlreadyGone),
        },
        ErrorClass::InProgress | ErrorClass::Transient | ErrorClass::Unreachable => {
            after_doubt(wire, id, refusal).await
        }
        ErrorClass::Denied if refusal.status == Some(403) => {
            Err(stopped_instead(wire, id, refusal).await)
        }
        _ => Err(refusal),
    }
}

/// Brings back a sandbox that failed, so that the delete that follows reaches its machine: of one
/// in error the service accepts a delete and sends nothing. What cannot be brought back is deleted
/// as it is.
pub(super) async fn recover(wire: &dyn Wire, id: &str) {
    if let Err(refusal) = wire.recover(id).await {
        debug!(id, %refusal, "a failed sandbox cannot be recovered before its delete");
        return;
    }
    let end = Instant::now() + RECOVERY;
    let mut pause = PAUSES.0;
    while Instant::now() < end {
        let is_changing = match read::steadily(|| wire.get(id)).await {
            Ok(there) => state::patience(there.state.name()).is_some(),
            Err(_) => false,
        };
        if !is_changing {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(PAUSES.1);
    }
}

/// Looks whether a delete was taken that was refused as untimely, or whose answer was lost.
async fn after_doubt(wire: &dyn Wire, id: &str, refusal: Refusal) -> Answered<Released> {
    match wire.get(id).await {
        Ok(there) if is_leaving(&there) => Ok(Released::Accepted),
        Err(absent) if absent.is_absence() => Ok(Released::Accepted),
        Ok(there) if refusal.class == ErrorClass::InProgress => Err(Refusal {
            message: format!("it is {} and cannot be deleted: {}", there.state, refusal.message),
            ..refusal
        }),
        _ => Err(refusal),
    }
}

fn is_leaving(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state, SandboxState::Destroying | SandboxState::Destroyed)
        || sandbox.desired_state == Some(SandboxState::Destroyed)
}

/// Stops what may not be deleted, so that it costs less, and says so.
async fn stopped_instead(wire: &dyn Wire, id: &str, refusal: Refusal) -> Refusal {
    let outcome = match wire.stop(id, StopMode::Polite).await {
        Ok(()) => "delete is denied; stopped instead".to_owned(),
        // A sandbox at rest cannot be stopped again.
        Err(stop) if stop.status == Some(400) => "delete is denied; it is stopped".to_owned(),
        Err(stop) => format!("delete is denied, and so is a stop instead: {}", stop.message),
    };
    Refusal { message: format!("{outcome} ({})", refusal.message), ..refusal }
}

/// Stops a sandbox and waits until it is; one that is at rest already is fine.
pub(super) async fn stop(wire: &dyn Wire, id: &str, patience: Duration) -> Answered<()> {
    order_stop(wire, id, StopMode::Polite).await?;
    if until_stopped(wire, id, patience).await? {
        return Ok(());
    }
    order_stop(wire, id, StopMode::Forced).await?;
    if until_stopped(wire, id, AFTER_KILL).await? {
        return Ok(());
    }
    Err(Refusal::new(ErrorClass::Transient, "it does not stop"))
}

async fn order_stop(wire: &dyn Wire, id: &str, mode: StopMode) -> Answered<()> {
    match wire.stop(id, mode).await {
        Ok(()) => Ok(()),
        Err(refusal) if refusal.is_absence() => Ok(()),
        Err(refusal) => match read::steadily(|| wire.get(id)).await {
            // Untimely or lost: what counts is that it stops.
            Ok(there) if is_at_rest(&there) || is_stopping(&there) => Ok(()),
            _ => Err(refusal),
        },
    }
}

async fn until_stopped(wire: &dyn Wire, id: &str, patience: Duration) -> Answered<bool> {
    let end = Instant::now() + patience;
    let mut pause = PAUSES.0;
    loop {
        match read::steadily(|| wire.get(id)).await {
            Ok(there) if is_at_rest(&there) => return Ok(true),
            // An ephemeral sandbox is deleted when it stops.
            Err(refusal) if refusal.is_absence() => return Ok(true),
            Ok(_) => {}
            Err(refusal) => return Err(refusal),
        }
        let now = Instant::now();
        if now >= end {
            return Ok(false);
        }
        tokio::time::sleep(pause.min(end - now)).await;
        pause = (pause * 3 / 2).min(PAUSES.1);
    }
}

/// Returns whether it stops, or is to stop: an accepted stop leaves its state alone at first.
fn is_stopping(sandbox: &Sandbox) -> bool {
    sandbox.state.name() == "stopping" || sandbox.desired_state == Some(SandboxState::Stopped)
}

fn is_at_rest(sandbox: &Sandbox) -> bool {
    sandbox.state.has_failed()
        || is_leaving(sandbox)
        || matches!(sandbox.state.name(), "stopped" | "archived" | "archiving")
}
