//! Stops and releases.
//!
//! A delete is sent once and never retried blindly. When the response is lost or the sandbox is
//! busy, the state of the sandbox shows whether the delete was accepted.

use std::time::Duration;

use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::provider::{ErrorClass, ReleaseMode, Released};
use tokio::time::Instant;
use tracing::debug;

use super::absence::Absences;
use super::api::{DaytonaResult, StopMode};
use super::classify::DaytonaError;
use super::model::DaytonaSandbox;
use super::read_retry::steadily;
use super::rest::DaytonaApi;
use super::state::{self, SandboxState};

/// The first and the longest pause between polls while a sandbox stops.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How long the recovery of a failed sandbox may take before it is deleted.
const RECOVERY: Duration = Duration::from_secs(60);
/// How long a killed sandbox may take to stop.
const AFTER_KILL: Duration = Duration::from_secs(30);

/// Requests the delete of a sandbox.
///
/// Daytona has no delete that spares a running sandbox: the inspect just before is the only guard.
pub(super) async fn sandbox(
    api: &DaytonaApi,
    absences: &Absences,
    id: &str,
    mode: ReleaseMode,
) -> DaytonaResult<Released> {
    if let Some(patience) = mode.stop_timeout {
        match stop(api, id, patience).await {
            Ok(()) => {}
            Err(refusal) if refusal.class == ErrorClass::Denied => return Err(refusal),
            // The delete that follows needs no stop.
            Err(_) if mode.kill_running => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let result = api.delete(id).await;
    // Reached for every response: the request may have been accepted even if it failed.
    crashpoint::reach(Crashpoint::ReleaseSent);
    let Err(refusal) = result else { return Ok(Released::Accepted) };
    match refusal.class {
        ErrorClass::Gone => match absences.hidden(id).await? {
            Some(_) => Ok(Released::Accepted),
            None => Ok(Released::AlreadyGone),
        },
        ErrorClass::InProgress | ErrorClass::Transient | ErrorClass::Unreachable => {
            after_doubt(api, id, refusal).await
        }
        ErrorClass::Denied if refusal.status == Some(403) => {
            Err(stopped_instead(api, id, refusal).await)
        }
        _ => Err(refusal),
    }
}

/// Recovers a failed sandbox, so that the delete that follows reaches its machine.
///
/// For a sandbox in `error` the service accepts a delete but sends nothing to the machine. A
/// sandbox that cannot be recovered is deleted as it is.
pub(super) async fn recover(api: &DaytonaApi, id: &str) {
    if let Err(refusal) = api.recover(id).await {
        debug!(id, %refusal, "a failed sandbox cannot be recovered before its delete");
        return;
    }
    let end = Instant::now() + RECOVERY;
    let mut pause = PAUSES.0;
    while Instant::now() < end {
        let is_changing = match steadily(|| api.get(id)).await {
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

/// Checks whether a delete was accepted after it was refused as busy or its response was lost.
async fn after_doubt(api: &DaytonaApi, id: &str, refusal: DaytonaError) -> DaytonaResult<Released> {
    match api.get(id).await {
        Ok(there) if is_leaving(&there) => Ok(Released::Accepted),
        Err(absent) if absent.is_absence() => Ok(Released::Accepted),
        Ok(there) if refusal.class == ErrorClass::InProgress => Err(DaytonaError {
            message: format!("it is {} and cannot be deleted: {}", there.state, refusal.message),
            ..refusal
        }),
        _ => Err(refusal),
    }
}

fn is_leaving(sandbox: &DaytonaSandbox) -> bool {
    matches!(sandbox.state, SandboxState::Destroying | SandboxState::Destroyed)
        || sandbox.desired_state == Some(SandboxState::Destroyed)
}

/// Stops a sandbox that may not be deleted, so that it costs less; returns the error to report.
async fn stopped_instead(api: &DaytonaApi, id: &str, refusal: DaytonaError) -> DaytonaError {
    let outcome = match api.stop(id, StopMode::Polite).await {
        Ok(()) => "delete is denied; stopped instead".to_owned(),
        // A stopped sandbox cannot be stopped again.
        Err(stop) if stop.status == Some(400) => "delete is denied; it is stopped".to_owned(),
        Err(stop) => format!("delete is denied, and so is a stop instead: {}", stop.message),
    };
    DaytonaError { message: format!("{outcome} ({})", refusal.message), ..refusal }
}

/// Stops a sandbox and waits until it has stopped; one that is already at rest succeeds.
pub(super) async fn stop(api: &DaytonaApi, id: &str, patience: Duration) -> DaytonaResult<()> {
    request_stop(api, id, StopMode::Polite).await?;
    if until_stopped(api, id, patience).await? {
        return Ok(());
    }
    request_stop(api, id, StopMode::Forced).await?;
    if until_stopped(api, id, AFTER_KILL).await? {
        return Ok(());
    }
    Err(DaytonaError::new(ErrorClass::Transient, "it does not stop"))
}

async fn request_stop(api: &DaytonaApi, id: &str, mode: StopMode) -> DaytonaResult<()> {
    match api.stop(id, mode).await {
        Ok(()) => Ok(()),
        Err(refusal) if refusal.is_absence() => Ok(()),
        Err(refusal) => match steadily(|| api.get(id)).await {
            // Refused as busy, or lost: all that matters is that it stops.
            Ok(there) if is_at_rest(&there) || is_stopping(&there) => Ok(()),
            _ => Err(refusal),
        },
    }
}

async fn until_stopped(api: &DaytonaApi, id: &str, patience: Duration) -> DaytonaResult<bool> {
    let end = Instant::now() + patience;
    let mut pause = PAUSES.0;
    loop {
        match steadily(|| api.get(id)).await {
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

/// Returns whether it is stopping, or about to: an accepted stop leaves its state alone at first.
fn is_stopping(sandbox: &DaytonaSandbox) -> bool {
    sandbox.state.name() == "stopping" || sandbox.desired_state == Some(SandboxState::Stopped)
}

fn is_at_rest(sandbox: &DaytonaSandbox) -> bool {
    sandbox.state.has_failed()
        || is_leaving(sandbox)
        || matches!(sandbox.state.name(), "stopped" | "archived" | "archiving")
}
