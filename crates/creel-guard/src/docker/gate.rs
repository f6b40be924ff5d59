//! Handles one connection: reads the head, decides, and forwards.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use creel_docker::{DockerProvider, RawStream};
use creel_model::provider::Kind;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{Claims, Policy};

use super::borrowed::Borrowers;
use super::chunked::Dechunker;
use super::head::{self, Framing, HttpHead};
use super::references::UnprovenReferences;
use super::route::{self, DockerRoute, Pruned};
use super::stream::{self, ChunkHook, Cutoff};
use super::tag_times::TagTimes;

/// The longest body of a create that is read. Engines refuse longer ones too.
const BODY_LIMIT: usize = 16 << 20;

/// How many times the ledger is checked for a container that seems to be foreign.
const CHECKS: usize = 5;
/// The pause between two such checks.
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// A proxy between a command and an engine.
#[derive(Debug)]
pub struct DockerGate {
    pub(super) engine: Arc<DockerProvider>,
    pub(super) claims: Claims,
    pub(super) policy: Policy,
    /// The socket that clients are given.
    pub(super) socket: PathBuf,
    /// Cuts streams when cancelled. Creates are finished.
    pub(super) stop: CancellationToken,
    /// The containers that use volumes of other owners.
    pub(super) borrowed: Borrowers,
    /// When the command put names on images.
    pub(super) tag_times: TagTimes,
    /// The number of requests in progress that make images.
    pub(super) making: AtomicUsize,
    /// References whose requests ended without proof that they made them.
    pub(super) unproven: UnprovenReferences,
}

/// A request whose head is read.
pub(super) struct ClientRequest {
    pub(super) head: HttpHead,
    /// The bytes already received after the head.
    pub(super) rest: Vec<u8>,
    pub(super) client: UnixStream,
}

impl DockerGate {
    /// Creates a gate in front of an engine. `socket` is the path at which clients find it.
    pub fn new(engine: DockerProvider, claims: Claims, policy: Policy, socket: PathBuf) -> Self {
        let (stop, borrowed) = (CancellationToken::new(), Borrowers::default());
        let (engine, tag_times) = (Arc::new(engine), TagTimes::default());
        let unproven = UnprovenReferences::default();
        let making = AtomicUsize::new(0);
        Self { engine, claims, policy, socket, stop, borrowed, tag_times, making, unproven }
    }

    /// Returns the token that stops the gate. Streams are cut, and creates that were begun are
    /// finished.
    pub fn stopper(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Handles one connection to its end.
    pub(super) async fn handle(&self, mut client: UnixStream) -> io::Result<()> {
        let Some((mut head, rest)) = head::read(&mut client).await? else { return Ok(()) };
        if !head.is_upgrade() {
            head.set("Connection", "close");
        }
        let route = route::route(head.method(), head.target());
        debug!(method = head.method(), target = head.target(), ?route, "request");
        let request = ClientRequest { head, rest, client };
        match route {
            DockerRoute::CreateContainer => self.create_container(request).await,
            DockerRoute::CreateNetwork => self.create_network(request).await,
            DockerRoute::CreateVolume => self.create_volume(request).await,
            DockerRoute::Exec if self.policy.deny_privileged => self.exec(request).await,
            DockerRoute::RemoveContainer(id) => {
                self.note_volumes(&id).await;
                self.pass(request).await
            }
            DockerRoute::Prune(Pruned::Containers) => self.prune_containers(request).await,
            DockerRoute::Prune(Pruned::Labelled) => self.pass(self.scoped(request)).await,
            DockerRoute::Prune(Pruned::BuildCache) => {
                let nothing = r#"{"CachesDeleted":null,"SpaceReclaimed":0}"#;
                request.respond(200, nothing.as_bytes()).await
            }
            DockerRoute::Untracked(what) if !self.policy.allow_untracked => {
                let reason = format!(
                    "{what} cannot be tracked and released; --allow-untracked lets it through"
                );
                request.refuse(403, &reason).await
            }
            DockerRoute::Build
            | DockerRoute::BuildSession
            | DockerRoute::CreateImage
            | DockerRoute::LoadImages
            | DockerRoute::Commit
            | DockerRoute::Tag(_) => self.make_images(route, request).await,
            DockerRoute::Exec | DockerRoute::Untracked(_) | DockerRoute::Other => {
                self.pass(request).await
            }
        }
    }

    /// Forwards a request, and everything that follows in both directions.
    pub(super) async fn pass(&self, request: ClientRequest) -> io::Result<()> {
        self.pass_watched(request, (), (), Duration::ZERO).await
    }

    /// Forwards like [`DockerGate::pass`], and shows each chunk to its hook before it is forwarded.
    ///
    /// When the client no longer reads the response, its hook still receives it for `drain_for`.
    pub(super) async fn pass_watched(
        &self,
        request: ClientRequest,
        mut requests: impl ChunkHook,
        responses: impl ChunkHook,
        drain_for: Duration,
    ) -> io::Result<()> {
        let ClientRequest { head, rest, client } = request;
        requests.before_chunk(&rest).await;
        let mut engine = match self.open().await {
            Ok(engine) => engine,
            Err(error) => return refuse(client, 502, &unreachable(&error)).await,
        };
        engine.write_all(&[head.to_bytes(), rest].concat()).await?;
        let cutoff = Cutoff { stop: &self.stop, drain_for };
        stream::pass(client, engine, requests, responses, cutoff).await
    }

    pub(super) async fn open(&self) -> io::Result<Box<dyn RawStream>> {
        self.engine.open_raw().await
    }

    /// Prunes containers only while no foreign container carries this guard's label. An image that
    /// another client committed from one of ours passes the label on.
    async fn prune_containers(&self, request: ClientRequest) -> io::Result<()> {
        for _ in 0..CHECKS {
            match self.stranger().await {
                Ok(None) => return self.pass(self.scoped(request)).await,
                // A container that was created just now is on record in a moment.
                Ok(Some(_)) => tokio::time::sleep(CHECK_PAUSE).await,
                Err(reason) => return request.refuse(500, &reason).await,
            }
        }
        let reason = "nothing was pruned: a container inherited this guard's label, and \
                      belongs to another client";
        request.refuse(409, reason).await
    }

    /// Returns a container that carries this guard's label but is not its own.
    async fn stranger(&self) -> Result<Option<String>, String> {
        let labelled = self.engine.containers_labelled(&self.claims.run_label()).await;
        let labelled = labelled.map_err(|error| error.to_string())?;
        let recorded = self.claims.open(Kind::Container).await;
        let recorded = recorded.map_err(|error| error.to_string())?;
        let is_ours = |id: &String| recorded.iter().any(|one| one.state.object() == Some(id));
        Ok(labelled.into_iter().find(|id| !is_ours(id)))
    }

    /// Narrows a prune to what this guard made.
    fn scoped(&self, mut request: ClientRequest) -> ClientRequest {
        let target = request.head.target();
        let filters = route::parameter(target, "filters").unwrap_or_default();
        let filters = narrowed(&filters, &self.claims.run_label());
        let target = route::with_parameter(target, "filters", &filters);
        request.head.set_target(&target);
        request
    }

    /// Refuses privileged commands where the policy denies them.
    async fn exec(&self, mut request: ClientRequest) -> io::Result<()> {
        let body = request.read_body().await?;
        let privileged =
            super::json::JsonObject::parse(&body).ok().and_then(|body| body.get("Privileged"));
        if privileged != Some(false.into())
            && privileged.is_some_and(|privileged| !privileged.is_null())
        {
            let reason = "privileged commands are denied (--deny-privileged)";
            self.claims.refused(creel_docker::NAME, Kind::Container, "exec", reason);
            return request.refuse(403, reason).await;
        }
        request.set_body(body);
        self.pass(request).await
    }
}

impl ClientRequest {
    /// Reads the body of a create, which is short.
    pub(super) async fn read_body(&mut self) -> io::Result<Vec<u8>> {
        if self.head.header("expect").is_some() {
            self.head.remove("Expect");
            self.client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let mut bytes = std::mem::take(&mut self.rest);
        match self.head.framing() {
            Framing::Empty => Ok(Vec::new()),
            Framing::Length(length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                while bytes.len() < length {
                    self.more(&mut bytes).await?;
                }
                bytes.truncate(length);
                Ok(bytes)
            }
            Framing::Chunked => {
                let (mut chunks, mut body) = (Dechunker::default(), Vec::new());
                loop {
                    chunks.feed(&bytes, |data| body.extend_from_slice(data));
                    if chunks.is_done() {
                        return Ok(body);
                    }
                    bytes.clear();
                    self.more(&mut bytes).await?;
                    if body.len() > BODY_LIMIT {
                        return Err(io::Error::other("the body is too long"));
                    }
                }
            }
        }
    }

    async fn more(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        if bytes.len() > BODY_LIMIT {
            return Err(io::Error::other("the body is too long"));
        }
        match self.client.read_buf(bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Replaces the body of the request.
    pub(super) fn set_body(&mut self, body: Vec<u8>) {
        self.head.remove("Transfer-Encoding");
        self.head.set("Content-Length", &body.len().to_string());
        self.rest = body;
    }

    /// Responds in the engine's own format for errors.
    pub(super) async fn refuse(self, status: u16, reason: &str) -> io::Result<()> {
        refuse(self.client, status, reason).await
    }

    pub(super) async fn respond(self, status: u16, body: &[u8]) -> io::Result<()> {
        respond(self.client, status, body).await
    }
}

/// Returns filters with one more label.
///
/// Clients use two formats: lists, and maps whose values carry no meaning. An engine accepts
/// either, but not both at once.
fn narrowed(filters: &str, label: &str) -> String {
    let mut filters = match serde_json::from_str(filters) {
        Ok(Value::Object(filters)) => filters,
        _ => serde_json::Map::new(),
    };
    let are_lists = filters.values().any(Value::is_array);
    let labels = filters.entry("label").or_insert_with(|| match are_lists {
        true => serde_json::json!([]),
        false => serde_json::json!({}),
    });
    match labels {
        Value::Array(labels) => labels.push(label.into()),
        Value::Object(labels) => drop(labels.insert(label.to_owned(), true.into())),
        // No engine would understand the original value; it does understand this one.
        other => *other = serde_json::json!({ label: true }),
    }
    Value::Object(filters).to_string()
}

/// Returns the message for an engine that cannot be reached.
pub(super) fn unreachable(error: &io::Error) -> String {
    format!("cannot reach the Docker Engine: {error}")
}

async fn refuse(client: UnixStream, status: u16, reason: &str) -> io::Result<()> {
    let body = serde_json::json!({ "message": format!("creel guard: {reason}") }).to_string();
    respond(client, status, body.as_bytes()).await
}

async fn respond(mut client: UnixStream, status: u16, body: &[u8]) -> io::Result<()> {
    let phrase = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        502 => "Bad Gateway",
        _ => "Internal Server Error",
    };
    let head = format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await?;
    client.write_all(body).await?;
    client.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prune_is_narrowed_in_the_form_it_came_in() {
        assert_eq!(narrowed("", "a=b"), r#"{"label":{"a=b":true}}"#);
        assert_eq!(
            narrowed(r#"{"dangling":{"false":true}}"#, "a=b"),
            r#"{"dangling":{"false":true},"label":{"a=b":true}}"#
        );
        assert_eq!(
            narrowed(r#"{"label":["x"],"until":["1h"]}"#, "a=b"),
            r#"{"label":["x","a=b"],"until":["1h"]}"#
        );
        assert_eq!(narrowed(r#"{"until":["1h"]}"#, "a"), r#"{"label":["a"],"until":["1h"]}"#);
        assert_eq!(narrowed(r#"{"label":{"x":true}}"#, "a"), r#"{"label":{"a":true,"x":true}}"#);
    }
}
