//! Container sandboxes.
//!
//! ```text
//!   /.creel/creel-bridge-<digest>  the program; `hold` is the first process
//!   /.creel/lease                  changes with every renewal
//!   /workspace/                    where a relative workspace path begins
//! ```
//!
//! The program is copied in before the container starts, so the image may contain
//! anything or nothing. The variables of the plan are not in the container's
//! configuration, where every client of the engine could read them. They come
//! with each request, on the standard input.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::exec::ExecRequest;
use creel_model::provider::{
    ContainerSpec, ErrorClass, Init, Kind, Placed, Provider, ProviderError, ProviderName, Spec,
    Usage,
};
use creel_model::sandbox::{
    BridgeProgram, ExecResponse, PartMaker, Sandbox, SandboxError, SandboxLayout, SandboxOptions,
    SandboxPart, SandboxParts, SandboxProvider, SandboxStatus, Transport, no_sandbox, program_name,
    with_transport,
};
use secrecy::SecretString;

use super::inside::ExecOutput;
use super::provider::DockerProvider;

/// The maximum number of error output bytes to keep when there is no response.
const STDERR_LIMIT: usize = 400;
/// The maximum number of bytes that may precede a response. Messages of the engine are far shorter.
const NOISE_LIMIT: usize = 4 << 20;

/// The sandboxes of an engine.
#[derive(Debug, Clone)]
pub struct DockerSandboxes(Arc<DockerProvider>);

impl DockerSandboxes {
    /// Makes sandboxes on the engine of a provider.
    pub fn new(provider: Arc<DockerProvider>) -> Self {
        Self(provider)
    }
}

#[async_trait]
impl SandboxProvider for DockerSandboxes {
    fn name(&self) -> ProviderName {
        crate::NAME
    }

    async fn missing_image(
        &self,
        options: &SandboxOptions,
    ) -> Result<Option<String>, ProviderError> {
        let Some(image) = &options.image else { return Ok(None) };
        let known = self.0.inspect(Kind::Image, image).await?;
        Ok(known.is_none().then(|| image.clone()))
    }

    async fn fetch_image(&self, image: &str) -> Result<(), ProviderError> {
        self.0.pull(image).await
    }

    async fn create(
        &self,
        options: &SandboxOptions,
        program: &BridgeProgram,
        parts: &mut dyn PartMaker,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        options.refuse(crate::NAME, &["snapshot"])?;
        let refused = |message: &str| no_sandbox(crate::NAME, message);
        let image = options.image.as_deref();
        let image = image.ok_or_else(|| refused("a container needs an image"))?;
        if self.missing_image(options).await?.is_some() {
            let message = format!("the engine has no image {image}; `docker pull {image}` gets it");
            return Err(refused(&message).into());
        }
        let layout = layout(&program_name(program), options.env.clone());
        let spec = Spec::Container(container(options, image, &layout, program));
        let part = SandboxPart { spec, lease_file: Some(lease_file(&layout)) };
        let id = parts.make(part).await?;
        Ok(with_transport(DockerTransport { provider: Arc::clone(&self.0), id }, layout))
    }

    async fn open(
        &self,
        parts: SandboxParts,
        _: &BridgeProgram,
        env: BTreeMap<String, SecretString>,
    ) -> Result<Arc<dyn Sandbox>, ProviderError> {
        let layout = layout(&parts.program, env);
        let provider = Arc::clone(&self.0);
        Ok(with_transport(DockerTransport { provider, id: parts.object }, layout))
    }
}

/// The transport to a container.
#[derive(Debug)]
struct DockerTransport {
    provider: Arc<DockerProvider>,
    /// The container's id.
    id: String,
}

/// Returns the layout of a container.
fn layout(program: &str, env: BTreeMap<String, SecretString>) -> SandboxLayout {
    SandboxLayout::below("/", program, env)
}

/// Returns the file whose change shows the holder in a container that its owner is alive.
fn lease_file(layout: &SandboxLayout) -> String {
    format!("{}/lease", layout.creel_directory)
}

/// Returns the spec of a sandbox's container.
fn container(
    options: &SandboxOptions,
    image: &str,
    layout: &SandboxLayout,
    program: &BridgeProgram,
) -> ContainerSpec {
    let lease = options.lease.as_millis().to_string();
    let lease_file = lease_file(layout);
    let holder = [&layout.bridge_path, "hold", "--lease-file", &lease_file, "--lease-ms", &lease];
    let directory = |path: &str, mode| Placed { path: path.to_owned(), mode, content: None };
    let file = |path: &str, mode, content| Placed { path: path.to_owned(), mode, content };
    ContainerSpec {
        image: image.to_owned(),
        entry_point: holder.map(str::to_owned).to_vec(),
        init: Init::FirstProcess,
        files: vec![
            directory(&layout.creel_directory, 0o700),
            file(&layout.bridge_path, 0o755, Some(Bytes::from_static(program.bytes))),
            file(&lease_file, 0o644, Some(Bytes::new())),
            directory(&layout.workspace_root, 0o755),
        ],
        network: options.network.clone(),
        limits: options.limits.clone(),
        disk_gib: options.disk.map(|bytes| bytes.div_ceil(1 << 30)),
        ..ContainerSpec::default()
    }
}

impl DockerTransport {
    fn failure(&self, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: crate::NAME,
            operation: format!("run a command in container {}", self.id),
            message,
            class,
            retry_after: None,
        }
    }

    /// Explains why there was no response, as far as that is known.
    async fn explain(&self, exec: &str, stderr: &[u8]) -> ProviderError {
        let code = self.provider.exit_code(exec).await.ok().flatten();
        let text = String::from_utf8_lossy(stderr).trim().to_owned();
        let message = match (code, text.is_empty()) {
            (Some(code), false) => format!("it ended with code {code}: {text}"),
            (Some(code), true) => format!("it ended with code {code} and without an answer"),
            (None, false) => text,
            (None, true) => "the answer broke off".to_owned(),
        };
        self.failure(ErrorClass::Transient, message)
    }
}

#[async_trait]
impl Transport for DockerTransport {
    fn provider(&self) -> ProviderName {
        crate::NAME
    }

    fn id(&self) -> &str {
        &self.id
    }

    async fn carry(
        &self,
        layout: &SandboxLayout,
        request: ExecRequest,
        response: &mut ExecResponse<'_>,
    ) -> Result<(), ProviderError> {
        let command = [&layout.bridge_path, "exec", "--while-connected"].map(str::to_owned);
        let (mut attached, exec) = self.provider.attach(&self.id, &command).await?;
        let broken = |error: &dyn std::fmt::Display| {
            self.failure(ErrorClass::Unreachable, format!("the connection broke: {error}"))
        };
        let mut line = serde_json::to_vec(&request).map_err(|error| broken(&error))?;
        line.push(b'\n');
        match attached.write(&line).await {
            // It ended before it had read everything. Its output says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.map_err(|error| broken(&error))?,
        }
        let mut stderr = Vec::new();
        let mut keep = |bytes: &[u8]| {
            let room = STDERR_LIMIT.saturating_sub(stderr.len());
            stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
        };
        let mut noise = 0;
        while !response.is_finished() {
            let (bytes, is_error) = match attached.read().await.map_err(|error| broken(&error))? {
                Some(ExecOutput::Output(bytes)) => {
                    response.feed(bytes);
                    (bytes, false)
                }
                Some(ExecOutput::Error(bytes)) => (bytes, true),
                None => break,
            };
            // Messages of the engine itself arrive as output.
            if is_error || !response.has_begun() {
                keep(bytes);
            }
            if response.has_begun() {
                continue;
            }
            noise += bytes.len();
            if noise > NOISE_LIMIT {
                let message =
                    format!("the engine sent more than {NOISE_LIMIT} bytes for no answer");
                return Err(self.failure(ErrorClass::Invalid, message));
            }
        }
        if response.is_finished() {
            return Ok(());
        }
        Err(self.explain(&exec, &stderr).await)
    }

    async fn status(&self) -> Result<SandboxStatus, ProviderError> {
        let seen = self.provider.inspect(Kind::Container, &self.id).await?;
        Ok(match seen {
            None => SandboxStatus::Absent,
            // It cannot be recovered.
            Some(seen) if matches!(seen.state.as_str(), "removing" | "dead") => {
                SandboxStatus::Absent
            }
            Some(seen) if seen.state == "running" => SandboxStatus::Running,
            Some(seen) => SandboxStatus::Resting(seen.state),
        })
    }

    async fn start(&self, _: &SandboxLayout) -> Result<(), ProviderError> {
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

    #[test]
    fn nothing_of_the_environment_is_in_the_container() {
        let options = SandboxOptions {
            image: Some("image".to_owned()),
            snapshot: None,
            env: BTreeMap::from([("TOKEN".to_owned(), "hush".into())]),
            limits: Default::default(),
            disk: None,
            network: None,
            lease: Duration::from_secs(60),
        };
        let program = BridgeProgram { bytes: b"program", digest: "00" };
        let layout = layout("creel-bridge-00", options.env.clone());
        let spec = container(&options, "image", &layout, &program);
        assert!(spec.env.is_empty() && !format!("{spec:?}").contains("hush"));
        assert_eq!(spec.entry_point[..2], ["/.creel/creel-bridge-00", "hold"]);
        assert_eq!(spec.entry_point.last().map(String::as_str), Some("60000"));
    }
}
