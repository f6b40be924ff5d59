//! Creates of containers, networks and volumes: intent, labels, request, outcome.
//!
//! The outcome is recorded after the client has its answer: a crash in between
//! leaves an open intent, which a search by label settles.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracing::warn;

use crate::guard::claims::Claim;
use crate::labels;
use crate::provider::docker::advice;
use crate::provider::{ErrorClass, Kind, Observed, Provider, ProviderName};

use super::chunked::Dechunker;
use super::container::{ContainerBody, NamedVolume, add_labels, device_of};
use super::gate::{DockerGate, Request, unreachable};
use super::head::{Framing, Head, find};
use super::json::Object;
use super::route;

/// The longest answer to a create that is read.
const ANSWER_LIMIT: u64 = 4 << 20;

/// The answer to a create, complete.
struct Answer {
    /// As it came.
    bytes: Vec<u8>,
    status: u16,
    body: Object,
}

/// What came of a request that was passed on.
enum Outcome {
    /// The engine answered.
    Answered(Answer),
    /// It did not, or not to the end: whatever was asked for may exist.
    Unknown(io::Error),
}

impl Outcome {
    /// Returns the id of what was made, if something was.
    fn made(&self, key: &str) -> Option<String> {
        match self {
            Self::Answered(answer) if answer.status / 100 == 2 => answer.body.text(key),
            Self::Answered(_) | Self::Unknown(_) => None,
        }
    }

    /// Returns a refusal with what to do about it, where there is something to add.
    fn advised(&self) -> Option<(u16, String)> {
        let Self::Answered(answer) = self else { return None };
        let said = answer.body.text("message").filter(|_| answer.status / 100 != 2)?;
        let advice = advice(&said)?;
        Some((answer.status, format!("{said} ({advice}; creel sweep --kind network lists them)")))
    }
}

impl DockerGate {
    pub(super) async fn create_network(&self, mut request: Request) -> io::Result<()> {
        let Some(mut body) = request.read_object().await? else {
            return request.refuse(400, "the body of the request is no JSON object").await;
        };
        let name = body.text("Name");
        let Some(claim) = self.claim(Kind::Network, name).await else {
            return request.refuse(500, NOT_RECORDED).await;
        };
        add_labels(&mut body, &claim.labels);
        request.set_body(body.to_bytes());
        let outcome = self.send(&mut request).await;
        let answered = match outcome.advised() {
            // The one refusal whose words lead nobody to what to do.
            Some((status, words)) => request.refuse(status, &words).await,
            None => request.forward(&outcome).await,
        };
        self.settle(&claim, &outcome, "Id").await;
        answered
    }

    pub(super) async fn create_volume(&self, mut request: Request) -> io::Result<()> {
        let Some(mut body) = request.read_object().await? else {
            return request.refuse(400, "the body of the request is no JSON object").await;
        };
        let name = body.text("Name").filter(|name| !name.is_empty());
        if self.policy.deny_host_mounts
            && let Some(device) = device_of(&body, "DriverOpts")
        {
            let reason = format!("mounting {device} of the host is denied (--deny-host-mounts)");
            let shown = name.as_deref().unwrap_or_default();
            self.claims.refused(ProviderName::Docker, Kind::Volume, shown, &reason);
            return request.refuse(403, &reason).await;
        }
        let Some(claim) = self.claim(Kind::Volume, name).await else {
            return request.refuse(500, NOT_RECORDED).await;
        };
        add_labels(&mut body, &claim.labels);
        request.set_body(body.to_bytes());
        let outcome = self.send(&mut request).await;
        let answered = request.forward(&outcome).await;
        self.settle_volume(&claim, &outcome).await;
        answered
    }

    pub(super) async fn create_container(&self, mut request: Request) -> io::Result<()> {
        let body = request.read_body().await?;
        let Ok(mut body) = ContainerBody::parse(&body) else {
            return request.refuse(400, "the body of the request is no JSON object").await;
        };
        let name = route::parameter(request.head.target(), "name");
        if let Some(reason) = self.refusal(&body).await {
            let shown = name.as_deref().unwrap_or_default();
            self.claims.refused(ProviderName::Docker, Kind::Container, shown, &reason);
            return request.refuse(403, &reason).await;
        }
        self.adapt(&mut body);
        let mut volumes = Vec::new();
        for volume in body.named_volumes() {
            match self.make_volume_first(&volume).await {
                Ok(made) => volumes.extend(made),
                Err(reason) => return request.refuse(500, &reason).await,
            }
        }
        let Some((claim, mounts)) = self.claim_container(&mut body, name).await else {
            return request.refuse(500, NOT_RECORDED).await;
        };
        // A lost response is found again by name and label, so an unnamed container gets our name.
        let target = route::with_parameter(request.head.target(), "name", claim.name());
        request.head.set_target(&target);
        let borrowed = self.borrowed_by(&body).await;
        request.set_body(body.into_bytes());
        let outcome = self.send(&mut request).await;
        if let Some(id) = outcome.made("Id") {
            // Before the client knows of the container, and may end it.
            self.borrowed.note(id, borrowed);
        }
        let answered = request.forward(&outcome).await;
        let id = self.settle(&claim, &outcome, "Id").await;
        match id {
            Some(id) => {
                self.settle_mounts(&mounts).await;
                self.note_volumes(&id).await;
            }
            None => {
                for mount in &mounts {
                    self.settle(mount, &outcome, "Id").await;
                }
                self.give_back_unused(volumes).await;
            }
        }
        answered
    }

    /// Returns why a container must not be made, if so.
    async fn refusal(&self, body: &ContainerBody) -> Option<String> {
        let limit = self.policy.max_containers;
        if let Some(most) = limit
            && self.container_count().await >= most
        {
            return Some(format!("{most} containers exist already (--max-containers)"));
        }
        body.refusal(&self.policy)
    }

    /// Counts the containers of this guard that exist; those that left by themselves do not.
    async fn container_count(&self) -> usize {
        match self.engine.containers_labelled(&self.claims.run_label()).await {
            Ok(ids) => ids.len(),
            Err(error) => {
                warn!(%error, "the containers of this guard cannot be counted");
                usize::MAX
            }
        }
    }

    /// Changes what must be changed besides labels.
    fn adapt(&self, body: &mut ContainerBody) {
        if let Some(most) = self.policy.max_memory {
            body.limit_memory(most);
        }
        let ours = self.socket.to_string_lossy();
        for theirs in self.engine.socket_paths() {
            body.replace_socket(&theirs, &ours);
            if let Some(mounted) = body.mount_around(&theirs) {
                warn!(
                    "a container mounts {mounted}, with the engine's own socket in it: \
                     what it creates through that is not covered"
                );
            }
        }
    }

    async fn claim_container(
        &self,
        body: &mut ContainerBody,
        name: Option<String>,
    ) -> Option<(Claim, Vec<Claim>)> {
        let claim = self.claim(Kind::Container, name).await?;
        body.add_labels(&claim.labels);
        let mut mounts = Vec::new();
        for (place, name) in body.mounted_volumes() {
            let mount = self.claim(Kind::Volume, name).await?;
            body.label_mount(place, &mount.labels);
            mounts.push(mount);
        }
        Some((claim, mounts))
    }

    /// Makes a volume that a container create would make by itself, without a label; one that
    /// is there already is somebody else's. What the engine would not make is left to the
    /// container create, whose refusal says why.
    async fn make_volume_first(&self, volume: &NamedVolume) -> Result<Option<Claim>, String> {
        match self.engine.inspect(Kind::Volume, &volume.name).await {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(None),
            Err(error) if error.class == ErrorClass::Invalid => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
        let claim = self.claim(Kind::Volume, Some(volume.name.clone())).await;
        let claim = claim.ok_or_else(|| NOT_RECORDED.to_owned())?;
        let driver = volume.driver.as_deref();
        let made = self.engine.make_volume(&volume.name, driver, &claim.labels).await;
        match made {
            Ok(labels) if labels.get(labels::RESOURCE) == claim.labels.get(labels::RESOURCE) => {
                self.confirm_volume(&claim, &volume.name).await;
                Ok(Some(claim))
            }
            // Somebody was quicker, and it is theirs.
            Ok(_) => {
                self.claims.refute(&claim, "it existed already".to_owned()).await;
                Ok(None)
            }
            Err(error) if is_refusal(error.class) => {
                self.claims.refute(&claim, error.to_string()).await;
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes back volumes that were made for a container which came to nothing.
    async fn give_back_unused(&self, volumes: Vec<Claim>) {
        for volume in volumes {
            let engine = Arc::clone(&self.engine);
            if let Err(error) = self.claims.give_back(engine, &volume).await {
                warn!(resource = %volume.resource, %error, "an unused volume stays until the end");
            }
        }
    }

    /// Records an intent; a request whose intent is not on disk is not passed on.
    async fn claim(&self, kind: Kind, name: Option<String>) -> Option<Claim> {
        match self.claims.intend(ProviderName::Docker, kind, name).await {
            Ok(claim) => Some(claim),
            Err(error) => {
                warn!(%kind, %error, "an intent could not be recorded");
                None
            }
        }
    }

    /// Sends a request whose body is complete, and reads the answer to its end.
    async fn send(&self, request: &mut Request) -> Outcome {
        let exchange = async {
            let mut engine = self.open().await?;
            let bytes = [request.head.to_bytes(), std::mem::take(&mut request.rest)].concat();
            engine.write_all(&bytes).await?;
            let mut answer = Vec::new();
            engine.take(ANSWER_LIMIT + 1).read_to_end(&mut answer).await?;
            if answer.len() as u64 > ANSWER_LIMIT {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is too long"));
            }
            Answer::parse(answer)
        };
        match exchange.await {
            Ok(answer) => Outcome::Answered(answer),
            Err(error) => Outcome::Unknown(error),
        }
    }

    /// Records what came of a create, and returns the id of what was made.
    async fn settle(&self, claim: &Claim, outcome: &Outcome, key: &str) -> Option<String> {
        match outcome {
            Outcome::Answered(answer) if answer.status / 100 == 2 => {
                let id = answer.body.text(key)?;
                self.claims.confirm(claim, &id).await;
                Some(id)
            }
            Outcome::Answered(answer) if answer.status <= 500 => {
                self.settle_refusal(claim, answer).await;
                None
            }
            // It may exist all the same: the intent stays open.
            Outcome::Answered(_) | Outcome::Unknown(_) => None,
        }
    }

    /// Records that the engine refused. One that failed inside has answered too, but only a look
    /// proves that it left nothing.
    async fn settle_refusal(&self, claim: &Claim, answer: &Answer) {
        if answer.status == 500 {
            match self.engine.find(&claim.marks()).await.as_deref() {
                Ok([]) => {}
                // The intent stays open, and is searched for at the end.
                Ok([..]) | Err(_) => return,
            }
        }
        let said = answer.body.text("message").unwrap_or_default();
        self.claims.refute(claim, format!("refused with {}: {said}", answer.status)).await;
    }

    /// Records a volume as ours only if it carries this very claim's label: one that existed
    /// already answers in the same way.
    async fn settle_volume(&self, claim: &Claim, outcome: &Outcome) {
        let Outcome::Answered(answer) = outcome else { return };
        let nonce = answer.body.object("Labels").text(labels::RESOURCE);
        let is_ours = nonce.as_deref() == claim.labels.get(labels::RESOURCE);
        match answer.body.text("Name") {
            _ if answer.status / 100 != 2 => drop(self.settle(claim, outcome, "Name").await),
            Some(name) if is_ours => self.confirm_volume(claim, &name).await,
            _ => self.claims.refute(claim, "it existed already".to_owned()).await,
        }
    }

    /// Records a volume of this claim with what tells it from a replacement. One that was replaced
    /// already, or cannot be looked at, is known by the label of the claim alone.
    async fn confirm_volume(&self, claim: &Claim, name: &str) {
        let is_ours = |seen: &Observed| {
            seen.labels.get(labels::RESOURCE) == claim.labels.get(labels::RESOURCE)
        };
        let seen = match self.engine.inspect(Kind::Volume, name).await {
            Ok(seen) => seen.filter(is_ours),
            Err(error) => {
                warn!(name, %error, "the identity of a volume could not be read");
                None
            }
        };
        self.claims.confirm_as(claim, name, seen.and_then(|seen| seen.identity())).await;
    }

    /// Records the volumes that the mounts of a container made.
    async fn settle_mounts(&self, mounts: &[Claim]) {
        for mount in mounts {
            match self.engine.find(&mount.marks()).await.as_deref() {
                Ok([volume]) => {
                    self.claims.confirm_as(mount, &volume.id, volume.identity()).await;
                }
                Ok([]) => self.claims.refute(mount, "it existed already".to_owned()).await,
                Ok([..]) => warn!(name = mount.name(), "several volumes carry the label of one"),
                Err(error) => warn!(%error, "a mounted volume is left to the end"),
            }
        }
    }

    /// Records the volumes of a container that nobody named: they stay behind when it is
    /// removed without them.
    pub(super) async fn note_volumes(&self, container: &str) {
        let seen = match self.engine.inspect(Kind::Container, container).await {
            Ok(Some(seen)) => seen,
            Ok(None) => return,
            Err(error) => return warn!(%error, "the volumes of a container are not known"),
        };
        let is_ours = seen
            .labels
            .iter()
            .any(|(key, value)| format!("{key}={value}") == self.claims.run_label());
        let own = |name: &str| is_anonymous(name) && !self.borrowed.has(&seen.id, name);
        let anonymous = seen
            .uses
            .iter()
            .filter_map(|(kind, name)| (*kind == Kind::Volume && own(name)).then_some(name));
        let anonymous: Vec<&String> = anonymous.collect();
        if !is_ours || anonymous.is_empty() {
            return;
        }
        let known = self.claims.open(Kind::Volume).await.unwrap_or_default();
        for name in anonymous {
            if known.iter().any(|record| record.state.object() == Some(name)) {
                continue;
            }
            let seen = self.engine.inspect(Kind::Volume, name).await.ok().flatten();
            let identity = seen.and_then(|seen| seen.identity());
            let adopted = self.claims.adopt(ProviderName::Docker, Kind::Volume, name, identity);
            if let Err(error) = adopted.await {
                warn!(name, %error, "a volume goes only with its container");
            }
        }
    }
}

/// What clients are told when an intent could not be recorded.
const NOT_RECORDED: &str = "nothing was created, because the ledger could not record it";

impl Request {
    async fn read_object(&mut self) -> io::Result<Option<Object>> {
        Ok(Object::parse(&self.read_body().await?).ok())
    }

    /// Passes the answer on to the client, who may be gone.
    async fn forward(self, outcome: &Outcome) -> io::Result<()> {
        match outcome {
            Outcome::Answered(answer) => {
                let mut client = self.client;
                client.write_all(&answer.bytes).await?;
                client.shutdown().await
            }
            Outcome::Unknown(error) => self.refuse(502, &unreachable(error)).await,
        }
    }
}

impl Answer {
    /// Takes an answer apart; one that broke off is an error.
    fn parse(bytes: Vec<u8>) -> io::Result<Self> {
        let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = find(&bytes, b"\r\n\r\n").ok_or_else(broken)?;
        let (head, rest) = (Head::parse(&bytes[..end]), &bytes[end + 4..]);
        let body = match head.framing() {
            Framing::Empty => Vec::new(),
            Framing::Length(length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                rest.get(..length).ok_or_else(broken)?.to_vec()
            }
            Framing::Chunked => {
                let (mut chunks, mut body) = (Dechunker::default(), Vec::new());
                chunks.feed(rest, |data| body.extend_from_slice(data));
                if !chunks.is_done() {
                    return Err(broken());
                }
                body
            }
        };
        // An engine's answer that is no object names nothing.
        let body = Object::parse(&body).unwrap_or_default();
        Ok(Self { status: head.status(), body, bytes })
    }
}

/// Returns whether an engine that answered so has made nothing, and would not.
fn is_refusal(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Invalid | ErrorClass::Gone | ErrorClass::Denied)
}

/// Returns whether nobody gave a volume its name.
fn is_anonymous(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
