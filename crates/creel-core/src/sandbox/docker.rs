//! Container sandboxes.
//!
//! ```text
//!   /.creel/creel-bridge-<digest>  the program; `hold` is the first process
//!   /.creel/lease                  changes with every renewal
//!   /workspace/                    where a relative workspace path begins
//! ```
//!
//! The program goes in before the container starts, so the image may hold
//! anything, or nothing. No variable of the plan is in the container's
//! configuration, where everybody who may ask the engine could read it: they
//! come with each order, on the standard input.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::exec::Order;
use secrecy::SecretString;

use crate::provider::docker::{DockerProvider, Piece};
use crate::provider::{
    ContainerSpec, ErrorClass, Init, Kind, Placed, Provider, ProviderError, ProviderName, Usage,
};

use super::BridgeProgram;
use super::Sight;
use super::answer::Answer;
use super::entered::Way;
use super::place::Place;
use super::take::SandboxPlan;

/// As much is kept of what comes instead of an answer.
const COMPLAINT: usize = 400;

/// The way into a container.
#[derive(Debug)]
pub(super) struct DockerWay {
    pub provider: Arc<DockerProvider>,
    /// The container's id.
    pub id: String,
}

/// Returns what is where in every container.
pub(super) fn place(program: &str, env: BTreeMap<String, SecretString>) -> Place {
    Place::below("/", program, env)
}

/// Returns the file whose change tells the holder in a container that its owner lives.
pub(super) fn lease_file(place: &Place) -> String {
    format!("{}/lease", place.creel_directory)
}

/// Describes the container of a sandbox.
pub(super) fn container(
    plan: &SandboxPlan,
    image: &str,
    place: &Place,
    program: &BridgeProgram,
) -> ContainerSpec {
    let lease = plan.lease.as_millis().to_string();
    let lease_file = lease_file(place);
    let holder = [&place.bridge_path, "hold", "--lease-file", &lease_file, "--lease-ms", &lease];
    let directory = |path: &str, mode| Placed { path: path.to_owned(), mode, content: None };
    let file = |path: &str, mode, content| Placed { path: path.to_owned(), mode, content };
    ContainerSpec {
        image: image.to_owned(),
        entry_point: holder.map(str::to_owned).to_vec(),
        init: Init::FirstProcess,
        files: vec![
            directory(&place.creel_directory, 0o700),
            file(&place.bridge_path, 0o755, Some(Bytes::from_static(program.bytes))),
            file(&lease_file, 0o644, Some(Bytes::new())),
            directory(&place.workspace_root, 0o755),
        ],
        network: plan.network.clone(),
        limits: plan.limits.clone(),
        disk_gib: plan.disk.map(|bytes| bytes.div_ceil(1 << 30)),
        ..ContainerSpec::default()
    }
}

impl DockerWay {
    fn failure(&self, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: ProviderName::Docker,
            operation: format!("run a command in container {}", self.id),
            message,
            class,
            retry_after: None,
        }
    }

    /// Says why there was no answer, as far as that can be known.
    async fn explain(&self, exec: &str, complaint: &[u8]) -> ProviderError {
        let code = self.provider.exit_code(exec).await.ok().flatten();
        let words = String::from_utf8_lossy(complaint).trim().to_owned();
        let message = match (code, words.is_empty()) {
            (Some(code), false) => format!("it ended with code {code}: {words}"),
            (Some(code), true) => format!("it ended with code {code} and without an answer"),
            (None, false) => words,
            (None, true) => "the answer broke off".to_owned(),
        };
        self.failure(ErrorClass::Transient, message)
    }
}

#[async_trait]
impl Way for DockerWay {
    fn provider(&self) -> ProviderName {
        ProviderName::Docker
    }

    fn id(&self) -> &str {
        &self.id
    }

    async fn carry(
        &self,
        place: &Place,
        order: Order,
        answer: &mut Answer<'_>,
    ) -> Result<(), ProviderError> {
        let command = [&place.bridge_path, "exec", "--while-connected"].map(str::to_owned);
        let (mut attached, exec) = self.provider.attach(&self.id, &command).await?;
        let broken = |error: &dyn std::fmt::Display| {
            self.failure(ErrorClass::Unreachable, format!("the connection broke: {error}"))
        };
        let mut line = serde_json::to_vec(&order).map_err(|error| broken(&error))?;
        line.push(b'\n');
        match attached.write(&line).await {
            // It ended before it had read everything; what it wrote says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.map_err(|error| broken(&error))?,
        }
        let mut complaint = Vec::new();
        let mut keep = |bytes: &[u8]| {
            let room = COMPLAINT.saturating_sub(complaint.len());
            complaint.extend_from_slice(&bytes[..bytes.len().min(room)]);
        };
        while !answer.is_finished() {
            match attached.read().await.map_err(|error| broken(&error))? {
                Some(Piece::Output(bytes)) => {
                    answer.feed(bytes);
                    // What the engine itself has to say comes this way too.
                    if !answer.has_begun() {
                        keep(bytes);
                    }
                }
                Some(Piece::Error(bytes)) => keep(bytes),
                None => break,
            }
        }
        if answer.is_finished() {
            return Ok(());
        }
        Err(self.explain(&exec, &complaint).await)
    }

    async fn look(&self) -> Result<Sight, ProviderError> {
        let seen = self.provider.inspect(Kind::Container, &self.id).await?;
        Ok(match seen {
            None => Sight::Absent,
            // Nothing brings it back.
            Some(seen) if matches!(seen.state.as_str(), "removing" | "dead") => Sight::Absent,
            Some(seen) if seen.state == "running" => Sight::Running,
            Some(seen) => Sight::Resting(seen.state),
        })
    }

    async fn start(&self, _: &Place) -> Result<(), ProviderError> {
        self.provider.start(&self.id).await
    }

    async fn stop(&self, patience: Duration) -> Result<(), ProviderError> {
        self.provider.stop(Kind::Container, &self.id, patience).await
    }

    async fn usage(&self) -> Result<Usage, ProviderError> {
        self.provider.usage(&self.id).await
    }

    async fn renew(&self) -> Result<(), ProviderError> {
        self.provider.renew(Kind::Container, &self.id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;
    use crate::ledger::OnOwnerDeath;

    #[test]
    fn nothing_of_the_environment_is_in_the_container() {
        let plan = SandboxPlan {
            run: RunId::new(),
            provider: ProviderName::Docker,
            image: Some("image".to_owned()),
            snapshot: None,
            env: BTreeMap::from([("TOKEN".to_owned(), "hush".into())]),
            limits: Default::default(),
            disk: None,
            network: None,
            lease: Duration::from_secs(60),
            on_owner_death: OnOwnerDeath::Release,
        };
        let program = BridgeProgram { bytes: b"program", digest: "00" };
        let place = place("creel-bridge-00", plan.env.clone());
        let spec = container(&plan, "image", &place, &program);
        assert!(spec.env.is_empty() && !format!("{spec:?}").contains("hush"));
        assert_eq!(spec.entry_point[..2], ["/.creel/creel-bridge-00", "hold"]);
        assert_eq!(spec.entry_point.last().map(String::as_str), Some("60000"));
    }
}
