//! The Docker provider, where every error gets its class.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::errors::Error;
use creel_model::provider::{
    ContainerSpec, CreateRequest, Deadline, ErrorClass, InUse, Kind, LocalServer, Marks, Observed,
    Permit, PresetRule, Provider, ProviderError, ProviderName, ReleaseMode, Released, Result, Spec,
};

use super::absence_checks::AbsenceChecks;
use super::classify::{Attempt, EngineAction, classify};
use super::connection::EngineConnection;
use super::encode::{is_reference, is_whole_id};
use super::endpoint::Endpoint;
use super::engine::EngineVersion;
use super::model::EngineInfo;
use super::states::PRESET_RULES;
use super::{create, files, in_use, observe, place, read, release, untag};

/// The kinds of objects an engine has.
const KINDS: &[Kind] = &[Kind::Container, Kind::Network, Kind::Volume, Kind::Image];

/// One Docker Engine, or Podman behind its API.
#[derive(Debug)]
pub struct DockerProvider {
    connection: EngineConnection,
    absence_checks: AbsenceChecks,
}

impl DockerProvider {
    /// Prepares the connection to an engine; nothing is sent before the first call.
    ///
    /// # Errors
    ///
    /// Fails when the certificates of a TLS connection cannot be read.
    pub fn connect(endpoint: Endpoint) -> Result<Self> {
        let attempt = Attempt {
            action: EngineAction::Query,
            operation: "prepare the connection".to_owned(),
            address: endpoint.address.to_string(),
        };
        let connection =
            EngineConnection::new(endpoint.address).map_err(|error| classify(&error, &attempt))?;
        Ok(Self { connection, absence_checks: AbsenceChecks::default() })
    }

    /// Sets how long a list or an inspection may take before the engine counts as unreachable.
    #[must_use]
    pub fn with_read_timeout(mut self, timeout: Duration) -> Self {
        self.connection = self.connection.with_read_timeout(timeout);
        self
    }

    /// Requests the engine's version and components.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be reached.
    pub async fn engine(&self) -> Result<EngineVersion> {
        let result = self.connection.engine().await.cloned();
        result.map_err(|error| self.classified(error, EngineAction::Query, "ask for its version"))
    }

    pub(super) fn connection(&self) -> &EngineConnection {
        &self.connection
    }

    pub(super) fn classified(
        &self,
        error: Error,
        action: EngineAction,
        operation: impl Into<String>,
    ) -> ProviderError {
        let address = self.connection.address().to_string();
        classify(&error, &Attempt { action, operation: operation.into(), address })
    }

    fn refused(operation: String, class: ErrorClass, message: impl Into<String>) -> ProviderError {
        ProviderError {
            provider: crate::NAME,
            operation,
            message: message.into(),
            class,
            retry_after: None,
        }
    }

    /// Returns the error for a kind of object that belongs to another provider.
    fn foreign(operation: String, kind: Kind) -> ProviderError {
        let message = format!("an engine has no objects of the kind {kind}");
        Self::refused(operation, ErrorClass::Invalid, message)
    }

    /// Refuses an invalid object id before it gets into a path.
    pub(super) fn check(verb: &str, kind: Kind, id: &str) -> Result<String> {
        let operation = format!("{verb} {kind} {id}");
        if !KINDS.contains(&kind) {
            return Err(Self::foreign(operation, kind));
        }
        if !is_reference(kind, id) {
            let message = format!("`{id}` is not the id or name of one");
            return Err(Self::refused(operation, ErrorClass::Invalid, message));
        }
        Ok(operation)
    }
}

#[async_trait]
impl Provider for DockerProvider {
    fn name(&self) -> ProviderName {
        crate::NAME
    }

    fn address(&self) -> String {
        self.connection.address().to_string()
    }

    fn other_account_hint(&self) -> &'static str {
        "point DOCKER_HOST or the context there"
    }

    fn preset_rules(&self) -> &'static [PresetRule] {
        PRESET_RULES
    }

    fn access_hint(&self, kind: Kind, id: &str) -> Option<String> {
        (kind == Kind::Container).then(|| format!("enter it: docker exec -it {id} sh"))
    }

    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn dependents(&self, seen: &Observed) -> Vec<(Kind, String)> {
        observe::anonymous_volumes(seen)
    }

    fn refuses_if_changed(&self, seen: &Observed) -> bool {
        match seen.kind {
            // Labels are fixed, ids are never reused, and a container that runs again needs force.
            Kind::Container => !seen.is_running(),
            // The release itself inspects it, because Podman requires that.
            Kind::Network => true,
            // The name of a volume may belong to another volume by now, and tags move.
            _ => false,
        }
    }

    async fn local_server(&self) -> Option<LocalServer> {
        let socket = self.socket()?;
        let pid = place::listener(socket).await?;
        Some(LocalServer { pid, socket: socket.to_owned() })
    }

    async fn in_use(&self, kind: Kind, id: &str) -> Result<InUse> {
        let operation = Self::check("inspect", kind, id)?;
        if kind != Kind::Container {
            return Ok(InUse::default());
        }
        let result = in_use::container(&self.connection, id).await;
        result.map_err(|error| self.classified(error, EngineAction::Inspect, operation))
    }

    fn within(self: Arc<Self>, _permit: Permit, _deadline: Deadline) -> Arc<dyn Provider> {
        self
    }

    async fn identity(&self) -> Result<String> {
        let fetch = async {
            let podman = self.connection.is_podman().await?;
            let machine: EngineInfo = self.connection.get("/info", &[]).await?;
            Ok(identity(machine, podman))
        };
        fetch
            .await
            .map_err(|error| self.classified(error, EngineAction::Query, "ask for its identity"))
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        let result = read::list(&self.connection, kinds).await;
        result.map_err(|error| self.classified(error, EngineAction::Query, "list its objects"))
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let operation = Self::check("inspect", kind, id)?;
        let result = read::inspect(&self.connection, kind, id).await;
        result.map_err(|error| self.classified(error, EngineAction::Inspect, operation))
    }

    async fn examine(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let operation = Self::check("examine", kind, id)?;
        let result = read::examine(&self.connection, kind, id).await;
        result.map_err(|error| self.classified(error, EngineAction::Inspect, operation))
    }

    async fn verify(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        Self::check("verify", kind, id)?;
        if kind == Kind::Container && self.absence_checks.is_absent(&self.connection, id).await {
            return Ok(None);
        }
        self.inspect(kind, id).await
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        let operation = format!("find {} {}", marks.kind, marks.name);
        if !KINDS.contains(&marks.kind) {
            return Err(Self::foreign(operation, marks.kind));
        }
        let result = read::find(&self.connection, marks).await;
        result.map_err(|error| self.classified(error, EngineAction::Query, operation))
    }

    async fn unrecorded_steps(
        &self,
        images: &[String],
        recorded: &[String],
    ) -> Result<Vec<Observed>> {
        if images.is_empty() { Ok(Vec::new()) } else { self.steps_upon(images, recorded).await }
    }

    async fn create(&self, request: &CreateRequest) -> Result<String> {
        let operation = Self::check("create", request.spec.kind(), &request.name)?;
        if let Spec::Container(ContainerSpec { limits, .. }) = &request.spec
            && let Some(mistake) = limits.mistake()
        {
            return Err(Self::refused(operation, ErrorClass::Invalid, mistake));
        }
        let result = match &request.spec {
            Spec::Container(spec) => create::container(&self.connection, request, spec).await,
            Spec::Network(spec) => create::network(&self.connection, request, spec).await,
            Spec::Volume(_) => create::volume(&self.connection, request).await,
            Spec::Sandbox(_) | Spec::Process(_) | Spec::Directory | Spec::Disk { .. } => {
                return Err(Self::foreign(operation, request.spec.kind()));
            }
        };
        result.map_err(|refusal| match refusal {
            create::CreateRefusal::Engine(error) => {
                self.classified(error, EngineAction::Make, operation)
            }
            create::CreateRefusal::NameInUse => {
                let message = format!("`{}` exists already and is not ours", request.name);
                Self::refused(operation, ErrorClass::Invalid, message)
            }
        })
    }

    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()> {
        let operation = Self::check("stop", kind, id)?;
        if kind != Kind::Container {
            let message = format!("a {kind} does not run");
            return Err(Self::refused(operation, ErrorClass::Invalid, message));
        }
        let result = release::stop(&self.connection, id, timeout).await;
        result.map_err(|error| self.classified(error, EngineAction::End, operation))
    }

    async fn renew(&self, kind: Kind, id: &str) -> Result<()> {
        let operation = Self::check("renew", kind, id)?;
        if kind != Kind::Container {
            return Ok(());
        }
        let result = files::renew(&self.connection, id).await;
        result.map_err(|error| self.classified(error, EngineAction::Inspect, operation))
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let operation = Self::check("remove", kind, id)?;
        if is_whole_id(id)
            && kind.has_lasting_ids()
            && let Some(other) = mode.other_id(id)
        {
            return Ok(Released::Kept(other));
        }
        let result = match kind {
            Kind::Container => release::container(&self.connection, id, &mode).await,
            Kind::Network => release::network(&self.connection, id).await,
            Kind::Volume => release::volume(&self.connection, id).await,
            Kind::Image => untag::image(&self.connection, id, &mode).await,
            Kind::Sandbox | Kind::Process | Kind::Directory => {
                return Err(Self::foreign(operation, kind));
            }
        };
        result.map_err(|refusal| match refusal {
            release::ReleaseRefusal::Engine(error) => {
                self.classified(error, EngineAction::End, operation)
            }
            release::ReleaseRefusal::Predefined => {
                let message = "it is a network of the engine itself";
                Self::refused(operation, ErrorClass::Denied, message)
            }
            release::ReleaseRefusal::UsedBy(users) => {
                let message = format!("it is used by container {}", users.join(", "));
                Self::refused(operation, ErrorClass::InUse, message)
            }
            release::ReleaseRefusal::DeletedMore(names) => {
                let message = format!("the engine deleted more with it: {}", names.join(", "));
                Self::refused(operation, ErrorClass::Invalid, message)
            }
        })
    }
}

/// Returns a stable identity of an engine. Engines on one machine share its id, so the directory of
/// their files distinguishes them. Podman generates a new id for every request, so the name of the
/// machine is used instead.
fn identity(machine: EngineInfo, podman: bool) -> String {
    let id = if podman || machine.id.is_empty() { machine.name } else { machine.id };
    format!("{id}:{}", machine.docker_root_dir)
}
