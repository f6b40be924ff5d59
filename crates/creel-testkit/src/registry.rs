//! An image registry with one image, for an engine that can reach nothing else.
//!
//! ```text
//!   engine ──▶ Registry: manifest ─▶ settings, one layer (the test image)
//! ```

use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::engine::Engine;
use crate::image;
use crate::web::{Web, WebRequest, respond};

/// The only repository.
const REPOSITORY: &str = "creel-test-pulled";
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const SETTINGS: &str = "application/vnd.docker.container.image.v1+json";
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// A running registry. It ends on drop.
#[derive(Debug)]
pub struct Registry {
    web: Web,
    shared: Arc<RegistryState>,
}

#[derive(Debug)]
struct RegistryState {
    manifest: Blob,
    blobs: [Blob; 2],
    /// The number of times the layer was fetched.
    fetched: AtomicUsize,
    /// The status and the number of failures for the next manifest requests.
    failures: Mutex<Option<(u16, usize)>>,
}

/// Bytes with their digest.
#[derive(Debug)]
struct Blob {
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        let hex: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { digest: format!("sha256:{hex}"), bytes }
    }

    fn described(&self, media_type: &str) -> serde_json::Value {
        json!({ "mediaType": media_type, "size": self.bytes.len(), "digest": self.digest })
    }
}

impl Registry {
    /// Starts a registry that an engine can reach.
    ///
    /// # Errors
    ///
    /// Fails when the image cannot be created or the port cannot be bound.
    pub fn start_beside(engine: &Engine) -> Result<Self> {
        let layer = Blob::new(image::archive()?);
        let settings = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": { "Cmd": ["sh"] },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        });
        let settings = Blob::new(settings.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": settings.described(SETTINGS),
            "layers": [layer.described(LAYER)],
        });
        let shared = Arc::new(RegistryState {
            manifest: Blob::new(manifest.to_string().into_bytes()),
            blobs: [settings, layer],
            fetched: AtomicUsize::new(0),
            failures: Mutex::default(),
        });
        let served = Arc::clone(&shared);
        let serve =
            move |request: &WebRequest, client: &mut TcpStream| served.serve(request, client);
        let web = Web::start(Some(engine.namespace()), serve).context("no registry")?;
        Ok(Self { web, shared })
    }

    /// Returns the reference of the image. Every tag works.
    pub fn reference(&self, tag: &str) -> String {
        let host = self.web.url();
        let host = host.trim_start_matches("http://");
        format!("{host}/{REPOSITORY}:{tag}")
    }

    /// Returns how often the image was fetched.
    pub fn fetched(&self) -> usize {
        self.shared.fetched.load(Ordering::SeqCst)
    }

    /// Responds to the next requests for a manifest with an error.
    pub fn fail_next(&self, status: u16, times: usize) {
        *self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((status, times));
    }
}

impl RegistryState {
    fn serve(&self, request: &WebRequest, client: &mut TcpStream) -> io::Result<()> {
        let manifests = format!("/v2/{REPOSITORY}/manifests/");
        let blobs = format!("/v2/{REPOSITORY}/blobs/");
        if request.path == "/v2/" {
            return respond(client, 200, "", b"{}");
        }
        if request.path.starts_with(&manifests) {
            return match self.next_failure() {
                Some(status) => respond(client, status, "", b"{\"errors\":[]}"),
                None => self.send(request, client, &self.manifest, MANIFEST),
            };
        }
        let wanted = request.path.strip_prefix(&blobs);
        match self.blobs.iter().find(|blob| Some(blob.digest.as_str()) == wanted) {
            Some(blob) => {
                let is_layer = blob.digest == self.blobs[1].digest && request.method == "GET";
                self.fetched.fetch_add(usize::from(is_layer), Ordering::SeqCst);
                self.send(request, client, blob, "application/octet-stream")
            }
            None => respond(client, 404, "", b"{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}"),
        }
    }

    fn next_failure(&self) -> Option<u16> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, left) = failures.as_mut().filter(|(_, left)| *left > 0)?;
        *left -= 1;
        Some(*status)
    }

    fn send(
        &self,
        request: &WebRequest,
        client: &mut TcpStream,
        blob: &Blob,
        media_type: &str,
    ) -> io::Result<()> {
        let (digest, length) = (&blob.digest, blob.bytes.len());
        let headers = format!("Content-Type: {media_type}\r\nDocker-Content-Digest: {digest}\r\n");
        if request.method == "HEAD" {
            return io::Write::write_all(
                client,
                format!(
                    "HTTP/1.1 200 OK\r\n{headers}Content-Length: {length}\r\n\
                     Connection: close\r\n\r\n"
                )
                .as_bytes(),
            );
        }
        respond(client, 200, &headers, &blob.bytes)
    }
}
