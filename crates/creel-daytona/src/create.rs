//! Creates sandboxes.
//!
//! A create is sent once. When its response is lost or unreadable, the sandbox is searched for by
//! name: it is ours if it carries the label of this very create. A create that the server refuses
//! may still have left a sandbox in `error`; the caller finds it by name and label, and releases
//! it.
//!
//! Every sandbox carries its own dead-man switch. It stops when its lease is not renewed, and is
//! deleted after being stopped for the same time. Where the server supports a time to live, it is
//! destroyed in any state.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::duration;
use creel_model::provider::{CreateRequest, ErrorClass, SandboxSource, SandboxSpec};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::api::{BuildInfo, DaytonaResult, NewSandbox};
use super::classify::DaytonaError;
use super::model::DaytonaSandbox;
use super::read;
use super::read_retry::steadily;
use super::rest::DaytonaApi;
use super::state::{self, SandboxState};

/// How much longer than its lease a sandbox lives by itself.
const MARGIN: Duration = Duration::from_secs(300);
/// The first and the longest pause between polls while a sandbox starts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How often to search for a sandbox before the create counts as lost.
const SEARCHES: u32 = 4;

/// Creates sandboxes.
#[derive(Debug)]
pub(super) struct Maker<'a> {
    pub(super) api: &'a DaytonaApi,
    /// The region, where the request names none.
    pub(super) target: Option<&'a str>,
    /// Maximum wait for any state.
    pub(super) longest_wait: Duration,
    /// Set once the server has rejected a time to live.
    pub(super) no_time_to_live: &'a AtomicBool,
}

impl Maker<'_> {
    /// Creates a sandbox and waits until it runs.
    pub(super) async fn make(
        &self,
        request: &CreateRequest,
        spec: &SandboxSpec,
    ) -> DaytonaResult<String> {
        let result = self.send(request, spec).await;
        let sandbox = match result {
            Ok(sandbox) => sandbox,
            Err(refusal) if refusal.status == Some(409) => {
                self.ours_of_name(request, refusal).await?
            }
            Err(refusal) if refusal.is_ambiguous() => self.search(request, refusal).await?,
            Err(refusal) => return Err(refusal),
        };
        self.until_started(sandbox).await
    }

    async fn send(
        &self,
        request: &CreateRequest,
        spec: &SandboxSpec,
    ) -> DaytonaResult<DaytonaSandbox> {
        let mut new = body(request, spec, self.target);
        if self.no_time_to_live.load(Ordering::Relaxed) {
            new.ttl_minutes = None;
        }
        let mut result = self.api.create(&new).await;
        if new.ttl_minutes.is_some()
            && let Err(refusal) = &result
            && knows_no_time_to_live(refusal.status, &refusal.message)
        {
            // The server rejected the form, so nothing was created: this is not a blind retry.
            debug!(sandbox = request.name, "the server knows no time to live");
            self.no_time_to_live.store(true, Ordering::Relaxed);
            new.ttl_minutes = None;
            result = self.api.create(&new).await;
        }
        // Reached for every response: a lost response and a refusal can both leave a sandbox.
        crashpoint::reach(Crashpoint::CreateSent);
        result
    }

    /// Returns the sandbox that already has our name, if an earlier attempt of this create made it.
    async fn ours_of_name(
        &self,
        request: &CreateRequest,
        refusal: DaytonaError,
    ) -> DaytonaResult<DaytonaSandbox> {
        match steadily(|| self.api.get(&request.name)).await {
            Ok(there) if read::is_of(&there, &request.marks()) => Ok(there),
            Ok(_) => {
                let message = format!("`{}` exists already and is not ours", request.name);
                Err(DaytonaError::new(ErrorClass::Invalid, message))
            }
            Err(_) => Err(refusal),
        }
    }

    /// Searches for the sandbox of a create whose response was lost; it may appear late.
    async fn search(
        &self,
        request: &CreateRequest,
        lost: DaytonaError,
    ) -> DaytonaResult<DaytonaSandbox> {
        let mut pause = PAUSES.0;
        for _ in 0..SEARCHES {
            match self.api.get(&request.name).await {
                Ok(there) if read::is_of(&there, &request.marks()) => {
                    warn!(
                        sandbox = request.name,
                        id = there.id,
                        "the answer was lost, the sandbox is there"
                    );
                    return Ok(there);
                }
                Ok(_) => break,
                Err(refusal) if refusal.is_absence() || refusal.is_ambiguous() => {}
                Err(_) => break,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(lost)
    }

    /// Waits until it runs; each intermediate state has its own limit.
    pub(super) async fn until_started(&self, mut sandbox: DaytonaSandbox) -> DaytonaResult<String> {
        let (mut since, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            match &sandbox.state {
                SandboxState::Started => return Ok(sandbox.id),
                state if state.has_failed() => return Err(failed(&sandbox)),
                SandboxState::Stopped | SandboxState::Destroying | SandboxState::Destroyed => {
                    let message = format!("it is {} instead of started", sandbox.state);
                    return Err(DaytonaError::new(ErrorClass::Invalid, message));
                }
                state => self.check_patience(state, since)?,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
            let now = steadily(|| self.api.get(&sandbox.id)).await?;
            if now.state != sandbox.state {
                since = Instant::now();
            }
            sandbox = now;
        }
    }

    fn check_patience(&self, state: &SandboxState, since: Instant) -> DaytonaResult<()> {
        let limit = state::patience(state.name()).unwrap_or(self.longest_wait);
        let limit = limit.min(self.longest_wait);
        if since.elapsed() < limit {
            return Ok(());
        }
        let message = format!("it is stuck in {state} for {}", duration::show(limit));
        Err(DaytonaError::new(ErrorClass::Transient, message))
    }
}

fn failed(sandbox: &DaytonaSandbox) -> DaytonaError {
    let reason = sandbox.error_reason.as_deref().unwrap_or("no reason was given");
    DaytonaError::new(
        ErrorClass::Invalid,
        format!("it failed to start ({}): {reason}", sandbox.state),
    )
}

/// Returns whether a create was refused only because of the time to live.
pub fn knows_no_time_to_live(status: Option<u16>, message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    status == Some(400) && (message.contains("ttl") || message.contains("time to live"))
}

/// Returns the minutes that a sandbox may live without a renewal, rounded up.
pub fn minutes_of(lease: Duration) -> u64 {
    (lease + MARGIN).as_secs().div_ceil(60).max(1)
}

fn body(request: &CreateRequest, spec: &SandboxSpec, target: Option<&str>) -> NewSandbox {
    let minutes = minutes_of(request.lease);
    let mut new = NewSandbox {
        name: request.name.clone(),
        labels: request.labels.clone(),
        env: spec.env.clone(),
        user: spec.user.clone(),
        target: spec.target.clone().or_else(|| target.map(str::to_owned)),
        auto_stop_interval: minutes,
        // Not 0: a stop would then delete the sandbox.
        auto_delete_interval: minutes,
        ttl_minutes: Some(minutes),
        ..NewSandbox::default()
    };
    match &spec.source {
        SandboxSource::Default => {}
        SandboxSource::Snapshot(name) => new.snapshot = Some(name.clone()),
        SandboxSource::Image { reference, cpus, memory_gib, disk_gib } => {
            new.build_info = Some(BuildInfo { dockerfile_content: format!("FROM {reference}\n") });
            (new.cpu, new.memory, new.disk) = (*cpus, *memory_gib, *disk_gib);
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use creel_model::id::ResourceId;
    use creel_model::provider::Spec;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_sandbox_ends_by_itself_after_its_lease_and_a_margin() {
        assert_eq!(minutes_of(Duration::from_secs(3600)), 65);
        assert_eq!(minutes_of(Duration::from_secs(1)), 6);
        let spec = SandboxSpec::default();
        let request = CreateRequest {
            resource: ResourceId::new(),
            name: "n".to_owned(),
            labels: Default::default(),
            lease: Duration::from_secs(600),
            spec: Spec::Sandbox(spec.clone()),
        };
        let sent = json!(body(&request, &spec, Some("eu")));
        let expected = json!({"name": "n", "labels": {}, "env": {}, "target": "eu",
            "autoStopInterval": 15, "autoDeleteInterval": 15, "ttlMinutes": 15});
        assert_eq!(sent, expected);
    }

    #[test]
    fn only_a_refusal_of_the_time_to_live_is_sent_again_without_it() {
        let refused = |status, message| knows_no_time_to_live(Some(status), message);
        assert!(refused(400, "property ttlMinutes should not exist"));
        assert!(!refused(400, "Sandbox failed to start: x"));
        assert!(!refused(500, "ttl"));
    }
}
