//! Creates of containers, networks and volumes: intent, labels, request, outcome.
//!
//! The outcome is recorded after the client has its response. A crash in between leaves an open
//! intent, which a search by label resolves.

use std::io;
use std::sync::Arc;

use creel_docker::advice;
use creel_model::labels;
use creel_model::provider::{ErrorClass, Kind, Marks, Observed, Provider};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracing::warn;

use crate::claims::Claim;

use super::chunked::Dechunker;
use super::container::{ContainerBody, NamedVolume, add_labels, device_of};
use super::gate::{ClientRequest, DockerGate, unreachable};
use super::head::{Framing, HttpHead};
use super::json::JsonObject;
use super::route;

/// The longest response to a create that is read.
const RESPONSE_LIMIT: u64 = 4 << 20;

/// A complete response to a create.
struct CreateResponse {
    /// The response as received.
    bytes: Vec<u8>,
    status: u16,
    body: JsonObject,
}

/// The outcome of a request that was forwarded.
enum CreateOutcome {
    /// The engine responded.
    Responded(CreateResponse),
    /// The response is missing or incomplete, so the requested object may exist.
    Unknown(io::Error),
}

impl CreateOutcome {
    /// Returns the id of the created object, if there is one.
    fn created_id(&self, key: &str) -> Option<String> {
        match self {
            Self::Responded(response) if response.status / 100 == 2 => response.body.text(key),
            Self::Responded(_) | Self::Unknown(_) => None,
        }
    }

    /// Returns a refusal with advice on what to do about it, if there is any.
    fn advised(&self) -> Option<(u16, String)> {
        let Self::Responded(response) = self else { return None };
        let message = response.body.text("message").filter(|_| response.status / 100 != 2)?;
        let advice = advice(&message)?;
        Some((
            response.status,
            format!("{message} ({advice}; creel sweep --kind network lists them)"),
        ))
    }
}

impl DockerGate {
    pub(super) async fn create_network(&self, mut request: ClientRequest) -> io::Result<()> {
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
        let forwarded = match outcome.advised() {
            // The engine's message for this refusal does not say what to do.
            Some((status, text)) => request.refuse(status, &text).await,
            None => request.forward(&outcome).await,
        };
        self.finalize(&claim, &outcome, "Id").await;
        forwarded
    }

    pub(super) async fn create_volume(&self, mut request: ClientRequest) -> io::Result<()> {
        let Some(mut body) = request.read_object().await? else {
            return request.refuse(400, "the body of the request is no JSON object").await;
        };
        let name = body.text("Name").filter(|name| !name.is_empty());
        if self.policy.deny_host_mounts
            && let Some(device) = device_of(&body, "DriverOpts")
        {
            let reason = format!("mounting {device} of the host is denied (--deny-host-mounts)");
            let shown = name.as_deref().unwrap_or_default();
            self.claims.refused(creel_docker::NAME, Kind::Volume, shown, &reason);
            return request.refuse(403, &reason).await;
        }
        let Some(claim) = self.claim(Kind::Volume, name).await else {
            return request.refuse(500, NOT_RECORDED).await;
        };
        add_labels(&mut body, &claim.labels);
        request.set_body(body.to_bytes());
        let outcome = self.send(&mut request).await;
        let forwarded = request.forward(&outcome).await;
        self.finalize_volume(&claim, &outcome).await;
        forwarded
    }

    pub(super) async fn create_container(&self, mut request: ClientRequest) -> io::Result<()> {
        let body = request.read_body().await?;
        let Ok(mut body) = ContainerBody::parse(&body) else {
            return request.refuse(400, "the body of the request is no JSON object").await;
        };
        let name = route::parameter(request.head.target(), "name");
        if let Some(reason) = self.refusal(&body).await {
            let shown = name.as_deref().unwrap_or_default();
            self.claims.refused(creel_docker::NAME, Kind::Container, shown, &reason);
            return request.refuse(403, &reason).await;
        }
        self.adapt(&mut body);
        let mut volumes = Vec::new();
        for volume in body.named_volumes() {
            match self.make_volume_first(&volume).await {
                Ok(created) => volumes.extend(created),
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
        if let Some(id) = outcome.created_id("Id") {
            // Recorded before the client knows of the container and can remove it.
            self.borrowed.note(id, borrowed);
        }
        let forwarded = request.forward(&outcome).await;
        let id = self.finalize(&claim, &outcome, "Id").await;
        match id {
            Some(id) => {
                self.finalize_mounts(&mounts).await;
                self.note_volumes(&id).await;
            }
            None => {
                for mount in &mounts {
                    self.finalize(mount, &outcome, "Id").await;
                }
                self.release_unused(volumes).await;
            }
        }
        forwarded
    }

    /// Returns why a container must not be created, if so.
    async fn refusal(&self, body: &ContainerBody) -> Option<String> {
        let limit = self.policy.max_containers;
        if let Some(most) = limit
            && self.container_count().await >= most
        {
            return Some(format!("{most} containers exist already (--max-containers)"));
        }
        body.refusal(&self.policy)
    }

    /// Counts the existing containers of this guard. Those that removed themselves do not count.
    async fn container_count(&self) -> usize {
        match self.engine.containers_labelled(&self.claims.run_label()).await {
            Ok(ids) => ids.len(),
            Err(error) => {
                warn!(%error, "the containers of this guard cannot be counted");
                usize::MAX
            }
        }
    }

    /// Applies the changes to a body other than labels.
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

    /// Creates a volume that a container create would otherwise create without a label. A volume
    /// that exists already belongs to another client. If the engine refuses the volume, the
    /// container create reports why.
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
        let created = self.engine.make_volume(&volume.name, driver, &claim.labels).await;
        match created {
            Ok(labels) if labels.get(labels::RESOURCE) == claim.labels.get(labels::RESOURCE) => {
                self.confirm_volume(&claim, &volume.name).await;
                Ok(Some(claim))
            }
            // Another client was faster, and owns the volume.
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

    /// Releases volumes that were created for a container which was not created.
    async fn release_unused(&self, volumes: Vec<Claim>) {
        for volume in volumes {
            let engine = Arc::clone(&self.engine);
            if let Err(error) = self.claims.release(engine, &volume).await {
                warn!(resource = %volume.resource, %error, "an unused volume stays until the end");
            }
        }
    }

    /// Records an intent. A request whose intent is not on disk is not forwarded.
    async fn claim(&self, kind: Kind, name: Option<String>) -> Option<Claim> {
        match self.claims.intend(creel_docker::NAME, kind, name).await {
            Ok(claim) => Some(claim),
            Err(error) => {
                warn!(%kind, %error, "an intent could not be recorded");
                None
            }
        }
    }

    /// Sends a request whose body is complete, and reads the whole response.
    async fn send(&self, request: &mut ClientRequest) -> CreateOutcome {
        let exchange = async {
            let mut engine = self.open().await?;
            let bytes = [request.head.to_bytes(), std::mem::take(&mut request.rest)].concat();
            engine.write_all(&bytes).await?;
            let mut response = Vec::new();
            engine.take(RESPONSE_LIMIT + 1).read_to_end(&mut response).await?;
            if response.len() as u64 > RESPONSE_LIMIT {
                let why = format!("the engine sent more than {RESPONSE_LIMIT} bytes for an answer");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            CreateResponse::parse(response)
        };
        match exchange.await {
            Ok(response) => CreateOutcome::Responded(response),
            Err(error) => CreateOutcome::Unknown(error),
        }
    }

    /// Records the outcome of a create, and returns the id of the created object.
    async fn finalize(&self, claim: &Claim, outcome: &CreateOutcome, key: &str) -> Option<String> {
        match outcome {
            CreateOutcome::Responded(response) if response.status / 100 == 2 => {
                let id = response.body.text(key)?;
                self.claims.confirm(claim, &id).await;
                Some(id)
            }
            CreateOutcome::Responded(response) if response.status <= 500 => {
                self.finalize_refusal(claim, response).await;
                None
            }
            // The object may exist nevertheless, so the intent stays open.
            CreateOutcome::Responded(_) | CreateOutcome::Unknown(_) => None,
        }
    }

    /// Records that the engine refused. After an internal error, only a search proves that nothing
    /// was left behind.
    async fn finalize_refusal(&self, claim: &Claim, response: &CreateResponse) {
        if response.status == 500 {
            match self.engine.find(&claim.marks()).await.as_deref() {
                Ok([]) => {}
                // The intent stays open, and is searched for at the end.
                Ok([..]) | Err(_) => return,
            }
        }
        let message = response.body.text("message").unwrap_or_default();
        self.claims.refute(claim, format!("refused with {}: {message}", response.status)).await;
    }

    /// Records a volume as ours only if it carries the label of this claim. The response is the
    /// same for a volume that existed already.
    async fn finalize_volume(&self, claim: &Claim, outcome: &CreateOutcome) {
        let CreateOutcome::Responded(response) = outcome else { return };
        let nonce = response.body.object("Labels").text(labels::RESOURCE);
        let is_ours = nonce.as_deref() == claim.labels.get(labels::RESOURCE);
        match response.body.text("Name") {
            _ if response.status / 100 != 2 => drop(self.finalize(claim, outcome, "Name").await),
            Some(name) if is_ours => self.confirm_volume(claim, &name).await,
            _ => self.claims.refute(claim, "it existed already".to_owned()).await,
        }
    }

    /// Records a volume of this claim with what distinguishes it from a replacement. A volume that
    /// was already replaced, or that cannot be inspected, is identified by the label of the claim
    /// alone.
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

    /// Records the volumes that the mounts of a container created.
    async fn finalize_mounts(&self, mounts: &[Claim]) {
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

    /// Returns whether a container is one of this guard: by its id, or while none is on record by
    /// the name and the label of its create. A label alone may be inherited from an image.
    async fn is_on_record(&self, seen: &Observed) -> bool {
        let records = self.claims.open(Kind::Container).await.unwrap_or_default();
        records.iter().any(|record| match record.state.object() {
            Some(id) => id == seen.id,
            None => {
                let marks =
                    Marks { kind: Kind::Container, resource: record.id, name: record.name.clone() };
                marks.fit(seen)
            }
        })
    }

    /// Records the anonymous volumes of a container. They stay behind when it is removed without
    /// them.
    pub(super) async fn note_volumes(&self, container: &str) {
        let seen = match self.engine.inspect(Kind::Container, container).await {
            Ok(Some(seen)) => seen,
            Ok(None) => return,
            Err(error) => return warn!(%error, "the volumes of a container are not known"),
        };
        let own = |name: &str| is_anonymous(name) && !self.borrowed.has(&seen.id, name);
        let anonymous = seen
            .uses
            .iter()
            .filter_map(|(kind, name)| (*kind == Kind::Volume && own(name)).then_some(name));
        let anonymous: Vec<&String> = anonymous.collect();
        if anonymous.is_empty() || !self.is_on_record(&seen).await {
            return;
        }
        let known = self.claims.open(Kind::Volume).await.unwrap_or_default();
        for name in anonymous {
            if known.iter().any(|record| record.state.object() == Some(name)) {
                continue;
            }
            let seen = self.engine.inspect(Kind::Volume, name).await.ok().flatten();
            let identity = seen.and_then(|seen| seen.identity());
            let adopted = self.claims.adopt(creel_docker::NAME, Kind::Volume, name, identity);
            if let Err(error) = adopted.await {
                warn!(name, %error, "a volume goes only with its container");
            }
        }
    }
}

/// The message that clients receive when an intent could not be recorded.
const NOT_RECORDED: &str = "nothing was created, because the ledger could not record it";

impl ClientRequest {
    async fn read_object(&mut self) -> io::Result<Option<JsonObject>> {
        Ok(JsonObject::parse(&self.read_body().await?).ok())
    }

    /// Forwards the response to the client, which may have disconnected.
    async fn forward(self, outcome: &CreateOutcome) -> io::Result<()> {
        match outcome {
            CreateOutcome::Responded(response) => {
                let mut client = self.client;
                client.write_all(&response.bytes).await?;
                client.shutdown().await
            }
            CreateOutcome::Unknown(error) => self.refuse(502, &unreachable(error)).await,
        }
    }
}

impl CreateResponse {
    /// Parses a response. One that is incomplete is an error.
    fn parse(bytes: Vec<u8>) -> io::Result<Self> {
        let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = memmem::find(&bytes, b"\r\n\r\n").ok_or_else(broken)?;
        let (head, rest) = (HttpHead::parse(&bytes[..end]), &bytes[end + 4..]);
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
        // A response that is not an object names nothing.
        let body = JsonObject::parse(&body).unwrap_or_default();
        Ok(Self { status: head.status(), body, bytes })
    }
}

/// Returns whether an error of this class proves that the engine made nothing and will not.
fn is_refusal(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Invalid | ErrorClass::Gone | ErrorClass::Denied)
}

/// Returns whether a volume has a generated name.
fn is_anonymous(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
