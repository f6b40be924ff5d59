//! The Docker provider: the edge where every error gets its class.

use std::time::Duration;

use async_trait::async_trait;
use bollard::errors::Error;

use crate::provider::{
    CreateOrder, ErrorClass, InUse, Kind, LocalServer, Marks, Observed, Provider, ProviderError,
    ProviderName, ReleaseMode, Released, Result, Spec,
};

use super::classify::{Act, Attempt, classify};
use super::connection::Connection;
use super::encode::is_reference;
use super::endpoint::Endpoint;
use super::engine::Engine;
use super::model::Machine;
use super::roll_call::RollCall;
use super::{create, furnish, in_use, place, read, release, untag};

/// The kinds of object an engine has.
const KINDS: &[Kind] = &[Kind::Container, Kind::Network, Kind::Volume, Kind::Image];

/// One Docker Engine, or Podman behind its API.
#[derive(Debug)]
pub struct DockerProvider {
    connection: Connection,
    roll_call: RollCall,
}

impl DockerProvider {
    /// Prepares the connection to an engine; nothing is sent before the first call.
    ///
    /// # Errors
    ///
    /// Fails when the certificates of a connection with TLS cannot be read.
    pub fn connect(endpoint: Endpoint) -> Result<Self> {
        let attempt = Attempt {
            act: Act::Ask,
            words: "prepare the connection".to_owned(),
            address: endpoint.address.to_string(),
        };
        let connection =
            Connection::new(endpoint.address).map_err(|error| classify(&error, &attempt))?;
        Ok(Self { connection, roll_call: RollCall::default() })
    }

    /// Sets how long a list or a look may take before the engine counts as unreachable.
    #[must_use]
    pub fn with_answer_timeout(mut self, timeout: Duration) -> Self {
        self.connection = self.connection.with_answer_timeout(timeout);
        self
    }

    /// Asks the engine what it is.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be reached.
    pub async fn engine(&self) -> Result<Engine> {
        let answer = self.connection.engine().await.cloned();
        answer.map_err(|error| self.classified(error, Act::Ask, "ask for its version"))
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn classified(
        &self,
        error: Error,
        act: Act,
        words: impl Into<String>,
    ) -> ProviderError {
        let address = self.connection.address().to_string();
        classify(&error, &Attempt { act, words: words.into(), address })
    }

    fn refused(words: String, class: ErrorClass, message: impl Into<String>) -> ProviderError {
        ProviderError {
            provider: ProviderName::Docker,
            operation: words,
            message: message.into(),
            class,
            retry_after: None,
        }
    }

    /// Refuses a kind of object that lives in another world.
    fn foreign(words: String, kind: Kind) -> ProviderError {
        let message = format!("an engine has no objects of the kind {kind}");
        Self::refused(words, ErrorClass::Invalid, message)
    }

    /// Refuses what cannot be an id of an object here, before it gets into a path.
    pub(super) fn check(verb: &str, kind: Kind, id: &str) -> Result<String> {
        let words = format!("{verb} {kind} {id}");
        if !KINDS.contains(&kind) {
            return Err(Self::foreign(words, kind));
        }
        if !is_reference(kind, id) {
            let message = format!("`{id}` is not the id or name of one");
            return Err(Self::refused(words, ErrorClass::Invalid, message));
        }
        Ok(words)
    }
}

#[async_trait]
impl Provider for DockerProvider {
    fn name(&self) -> ProviderName {
        ProviderName::Docker
    }

    fn address(&self) -> String {
        self.connection.address().to_string()
    }

    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn refuses_if_changed(&self, seen: &Observed) -> bool {
        match seen.kind {
            // Labels are fixed, ids never come back, and one that runs again needs force.
            Kind::Container => !seen.is_running(),
            // It is looked at in the release itself, for Podman's sake.
            Kind::Network => true,
            // The name of a volume may be another volume's by now, and tags move.
            _ => false,
        }
    }

    async fn local_server(&self) -> Option<LocalServer> {
        let socket = self.socket()?;
        let pid = place::listener(socket).await?;
        Some(LocalServer { pid, socket: socket.to_owned() })
    }

    async fn in_use(&self, kind: Kind, id: &str) -> Result<InUse> {
        let words = Self::check("inspect", kind, id)?;
        if kind != Kind::Container {
            return Ok(InUse::default());
        }
        let answer = in_use::container(&self.connection, id).await;
        answer.map_err(|error| self.classified(error, Act::Look, words))
    }

    async fn identity(&self) -> Result<String> {
        let ask = async {
            let podman = self.connection.is_podman().await?;
            let machine: Machine = self.connection.get("/info", &[]).await?;
            Ok(identity(machine, podman))
        };
        ask.await.map_err(|error| self.classified(error, Act::Ask, "ask for its identity"))
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        let answer = read::list(&self.connection, kinds).await;
        answer.map_err(|error| self.classified(error, Act::Ask, "list its objects"))
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let words = Self::check("inspect", kind, id)?;
        let answer = read::inspect(&self.connection, kind, id).await;
        answer.map_err(|error| self.classified(error, Act::Look, words))
    }

    async fn examine(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let words = Self::check("examine", kind, id)?;
        let answer = read::examine(&self.connection, kind, id).await;
        answer.map_err(|error| self.classified(error, Act::Look, words))
    }

    async fn verify(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        if kind == Kind::Container && self.roll_call.is_absent(&self.connection, id).await {
            return Ok(None);
        }
        self.inspect(kind, id).await
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        let answer = read::find(&self.connection, marks).await;
        answer.map_err(|error| {
            self.classified(error, Act::Ask, format!("find {} {}", marks.kind, marks.name))
        })
    }

    async fn unrecorded_steps(
        &self,
        images: &[String],
        recorded: &[String],
    ) -> Result<Vec<Observed>> {
        if images.is_empty() { Ok(Vec::new()) } else { self.steps_upon(images, recorded).await }
    }

    async fn create(&self, order: &CreateOrder) -> Result<String> {
        let words = Self::check("create", order.spec.kind(), &order.name)?;
        let answer = match &order.spec {
            Spec::Container(spec) => create::container(&self.connection, order, spec).await,
            Spec::Network(spec) => create::network(&self.connection, order, spec).await,
            Spec::Volume(_) => create::volume(&self.connection, order).await,
            Spec::Sandbox(_) | Spec::Process(_) | Spec::Directory | Spec::Disk { .. } => {
                return Err(Self::foreign(words, order.spec.kind()));
            }
        };
        answer.map_err(|refusal| match refusal {
            create::Refusal::Engine(error) => self.classified(error, Act::Make, words),
            create::Refusal::NameTaken => {
                let message = format!("`{}` exists already and is not ours", order.name);
                Self::refused(words, ErrorClass::Invalid, message)
            }
        })
    }

    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()> {
        let words = Self::check("stop", kind, id)?;
        if kind != Kind::Container {
            let message = format!("a {kind} does not run");
            return Err(Self::refused(words, ErrorClass::Invalid, message));
        }
        let answer = release::stop(&self.connection, id, timeout).await;
        answer.map_err(|error| self.classified(error, Act::End, words))
    }

    async fn renew(&self, kind: Kind, id: &str) -> Result<()> {
        let words = Self::check("renew", kind, id)?;
        if kind != Kind::Container {
            return Ok(());
        }
        let answer = furnish::renew(&self.connection, id).await;
        answer.map_err(|error| self.classified(error, Act::Look, words))
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let words = Self::check("remove", kind, id)?;
        let answer = match kind {
            Kind::Container => release::container(&self.connection, id, &mode).await,
            Kind::Network => release::network(&self.connection, id).await,
            Kind::Volume => release::volume(&self.connection, id).await,
            Kind::Image => untag::image(&self.connection, id, &mode).await,
            Kind::Sandbox | Kind::Process | Kind::Directory => {
                return Err(Self::foreign(words, kind));
            }
        };
        answer.map_err(|refusal| match refusal {
            release::Refusal::Engine(error) => self.classified(error, Act::End, words),
            release::Refusal::Predefined => {
                let message = "it is a network of the engine itself";
                Self::refused(words, ErrorClass::Denied, message)
            }
            release::Refusal::UsedBy(users) => {
                let message = format!("it is used by container {}", users.join(", "));
                Self::refused(words, ErrorClass::InUse, message)
            }
            release::Refusal::DeletedMore(names) => {
                let message = format!("the engine deleted more with it: {}", names.join(", "));
                Self::refused(words, ErrorClass::Invalid, message)
            }
        })
    }
}

/// Returns what stays the same about an engine. Engines on one machine share its id, so the
/// place of their files tells them apart. Podman makes up a new id for every question, so there
/// the name of the machine must do.
fn identity(machine: Machine, podman: bool) -> String {
    let id = if podman || machine.id.is_empty() { machine.name } else { machine.id };
    format!("{id}:{}", machine.docker_root_dir)
}
