//! Creates.
//!
//! A create is sent once. When its answer is lost or makes no sense, the
//! sandbox is looked for by its name: it is ours if it carries the label of
//! this very create. A create that the server refuses may still have made a
//! sandbox in `error`; the caller finds it by name and label, and releases it.
//!
//! Every sandbox carries its own dead-man switch: it stops when nobody renewed
//! its lease, is deleted after as long at rest, and is destroyed in any state
//! where the server knows a time to live.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use crate::crashpoint::{self, Crashpoint};
use crate::duration;
use crate::provider::{CreateOrder, ErrorClass, SandboxSource, SandboxSpec};

use super::classify::Refusal;
use super::model::Sandbox;
use super::read;
use super::state::{self, SandboxState};
use super::wire::{Answered, BuildInfo, NewSandbox, Wire};

/// How much longer than its lease a sandbox lives by itself.
const MARGIN: Duration = Duration::from_secs(300);
/// The pauses while a sandbox starts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How often a lost create is looked for before its answer counts as lost.
const SEARCHES: u32 = 4;

/// Makes sandboxes.
#[derive(Debug)]
pub(super) struct Maker<'a> {
    pub(super) wire: &'a dyn Wire,
    /// The region, where the order names none.
    pub(super) target: Option<&'a str>,
    /// No state is waited for longer than this.
    pub(super) longest_wait: Duration,
    /// Set once the server said that it knows no time to live.
    pub(super) no_time_to_live: &'a AtomicBool,
}

impl Maker<'_> {
    /// Makes a sandbox and waits until it runs.
    pub(super) async fn make(&self, order: &CreateOrder, spec: &SandboxSpec) -> Answered<String> {
        let answer = self.send(order, spec).await;
        let sandbox = match answer {
            Ok(sandbox) => sandbox,
            Err(refusal) if refusal.status == Some(409) => {
                self.ours_of_name(order, refusal).await?
            }
            Err(refusal) if refusal.is_ambiguous() => self.search(order, refusal).await?,
            Err(refusal) => return Err(refusal),
        };
        self.until_started(sandbox).await
    }

    async fn send(&self, order: &CreateOrder, spec: &SandboxSpec) -> Answered<Sandbox> {
        let mut new = body(order, spec, self.target);
        if self.no_time_to_live.load(Ordering::Relaxed) {
            new.ttl_minutes = None;
        }
        let mut answer = self.wire.create(&new).await;
        if new.ttl_minutes.is_some()
            && let Err(refusal) = &answer
            && knows_no_time_to_live(refusal.status, &refusal.message)
        {
            // Refused for its form, so nothing was made: this is no blind retry.
            debug!(sandbox = order.name, "the server knows no time to live");
            self.no_time_to_live.store(true, Ordering::Relaxed);
            new.ttl_minutes = None;
            answer = self.wire.create(&new).await;
        }
        // Whatever was answered: a lost answer and a refusal can both leave a sandbox.
        crashpoint::reach(Crashpoint::CreateSent);
        answer
    }

    /// Returns the sandbox that has our name already, if an earlier try of this create made it.
    async fn ours_of_name(&self, order: &CreateOrder, refusal: Refusal) -> Answered<Sandbox> {
        match read::steadily(|| self.wire.get(&order.name)).await {
            Ok(there) if read::is_of(&there, &order.marks()) => Ok(there),
            Ok(_) => {
                let message = format!("`{}` exists already and is not ours", order.name);
                Err(Refusal::new(ErrorClass::Invalid, message))
            }
            Err(_) => Err(refusal),
        }
    }

    /// Looks for the sandbox of a create whose answer was lost; it may land late.
    async fn search(&self, order: &CreateOrder, lost: Refusal) -> Answered<Sandbox> {
        let mut pause = PAUSES.0;
        for _ in 0..SEARCHES {
            match self.wire.get(&order.name).await {
                Ok(there) if read::is_of(&there, &order.marks()) => {
                    warn!(
                        sandbox = order.name,
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

    /// Waits until it runs; each state on the way has its own limit.
    pub(super) async fn until_started(&self, mut sandbox: Sandbox) -> Answered<String> {
        let (mut since, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            match &sandbox.state {
                SandboxState::Started => return Ok(sandbox.id),
                state if state.has_failed() => return Err(failed(&sandbox)),
                SandboxState::Stopped | SandboxState::Destroying | SandboxState::Destroyed => {
                    let message = format!("it is {} instead of started", sandbox.state);
                    return Err(Refusal::new(ErrorClass::Invalid, message));
                }
                state => self.check_patience(state, since)?,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
            let now = read::steadily(|| self.wire.get(&sandbox.id)).await?;
            if now.state != sandbox.state {
                since = Instant::now();
            }
            sandbox = now;
        }
    }

    fn check_patience(&self, state: &SandboxState, since: Instant) -> Answered<()> {
        let limit = state::patience(state.name()).unwrap_or(self.longest_wait);
        let limit = limit.min(self.longest_wait);
        if since.elapsed() < limit {
            return Ok(());
        }
        let message = format!("it is stuck in {state} for {}", duration::show(limit));
        Err(Refusal::new(ErrorClass::Transient, message))
    }
}

fn failed(sandbox: &Sandbox) -> Refusal {
    let reason = sandbox.error_reason.as_deref().unwrap_or("no reason was given");
    Refusal::new(ErrorClass::Invalid, format!("it failed to start ({}): {reason}", sandbox.state))
}

/// Returns whether a create was refused only because of the time to live.
pub(crate) fn knows_no_time_to_live(status: Option<u16>, message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    status == Some(400) && (message.contains("ttl") || message.contains("time to live"))
}

/// Returns the minutes that a sandbox may live without a renewal, rounded up.
pub(crate) fn minutes_of(lease: Duration) -> u64 {
    (lease + MARGIN).as_secs().div_ceil(60).max(1)
}

fn body(order: &CreateOrder, spec: &SandboxSpec, target: Option<&str>) -> NewSandbox {
    let minutes = minutes_of(order.lease);
    let mut new = NewSandbox {
        name: order.name.clone(),
        labels: order.labels.clone(),
        env: spec.env.clone(),
        user: spec.user.clone(),
        target: spec.target.clone().or_else(|| target.map(str::to_owned)),
        auto_stop_interval: minutes,
        // Not 0: then a stop would delete.
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
    use serde_json::json;

    use super::*;
    use crate::id::ResourceId;
    use crate::provider::Spec;

    #[test]
    fn every_sandbox_ends_by_itself_after_its_lease_and_a_margin() {
        assert_eq!(minutes_of(Duration::from_secs(3600)), 65);
        assert_eq!(minutes_of(Duration::from_secs(1)), 6);
        let spec = SandboxSpec::default();
        let order = CreateOrder {
            resource: ResourceId::new(),
            name: "n".to_owned(),
            labels: Default::default(),
            lease: Duration::from_secs(600),
            spec: Spec::Sandbox(spec.clone()),
        };
        let sent = json!(body(&order, &spec, Some("eu")));
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
