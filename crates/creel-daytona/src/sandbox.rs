//! Cloud sandboxes.
//!
//! ```text
//!   <home>/.creel/creel-bridge-<digest>  the program
//!   <home>/.creel/orders/                pending requests, and heartbeat files
//!   <home>/workspace/                    where a relative workspace path begins
//! ```
//!
//! There is no bidirectional stream. A request is a file, which the program
//! removes as soon as it has read it. The command runs in its own session, whose
//! log is followed. A second file, the heartbeat, shows that the requester is
//! still there. It changes every few seconds while the requester waits, and is
//! removed when it stops waiting. When the file no longer changes, or is gone,
//! the command is killed. The program enforces the command's limits itself, so
//! they hold without any connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::exec::ExecRequest;
use creel_model::provider::{
    ErrorClass, Kind, Limits, Observed, Provider, ProviderError, ProviderName, SandboxSource,
    SandboxSpec, Spec, Usage,
};
use creel_model::sandbox::{
    BridgeProgram, ExecResponse, PartMaker, Sandbox, SandboxError, SandboxLayout, SandboxOptions,
    SandboxPart, SandboxParts, SandboxProvider, SandboxStatus, Transport, no_sandbox, program_name,
    with_transport,
};
use creel_model::task;
use secrecy::SecretString;
use tokio::sync::{Notify, OnceCell};
use tracing::debug;
use uuid::Uuid;

use super::provider::DaytonaProvider;
use super::toolbox::{Exec, Executed, SessionCommand, Stream, Toolbox};

/// The interval between two heartbeats.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(8);
/// How long a command may run without a heartbeat before it is killed.
const HEARTBEAT_TIMEOUT_MS: u64 = 30_000;
/// How long one setup step may take.
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// How long an abandoned command may take to end before its session is deleted.
const HANG_UP_PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two checks whether it has ended.
const HANG_UP_PAUSE: Duration = Duration::from_secs(1);

/// The number of bytes in a GiB.
const GIB: u64 = 1 << 30;

/// The sandboxes of an organisation.
#[derive(Debug, Clone)]
pub struct DaytonaSandboxes(Arc<DaytonaProvider>);

impl DaytonaSandboxes {
    /// Makes sandboxes with a provider.
    pub fn new(provider: Arc<DaytonaProvider>) -> Self {
        Self(provider)
    }
}

#[async_trait]
impl SandboxProvider for DaytonaSandboxes {
    fn name(&self) -> ProviderName {
        crate::NAME
    }

    async fn create(
        &self,
        options: &SandboxOptions,
        program: &BridgeProgram,
        parts: &mut dyn PartMaker,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        options.refuse(crate::NAME, &["network"])?;
        let spec = SandboxSpec { source: source(options)?, ..SandboxSpec::default() };
        let id = parts.make(SandboxPart::new(Spec::Sandbox(spec))).await?;
        let transport = DaytonaTransport::new(Arc::clone(&self.0), id, *program);
        let layout = transport.layout(&program_name(program), options.env.clone()).await?;
        transport.install(&layout).await?;
        Ok(with_transport(transport, layout))
    }

    async fn open(
        &self,
        parts: SandboxParts,
        program: &BridgeProgram,
        env: BTreeMap<String, SecretString>,
    ) -> Result<Arc<dyn Sandbox>, ProviderError> {
        let transport = DaytonaTransport::new(Arc::clone(&self.0), parts.object, *program);
        let layout = transport.layout(&parts.program, env).await?;
        Ok(with_transport(transport, layout))
    }
}

/// Returns the source of a sandbox. A snapshot has its own size; an image needs one.
///
/// A limit that would not hold is refused.
fn source(options: &SandboxOptions) -> Result<SandboxSource, ProviderError> {
    let refused = |message: &str| Err(no_sandbox(crate::NAME, message));
    if let Some(mistake) = options.limits.mistake() {
        return refused(&mistake);
    }
    if options.limits.processes.is_some() {
        return refused("the service has no limit on processes");
    }
    let is_sized = options.limits != Limits::default() || options.disk.is_some();
    match (&options.snapshot, &options.image) {
        (Some(_), _) | (None, None) if is_sized => {
            refused("a snapshot brings its own resources; only an image can be limited")
        }
        (Some(snapshot), _) => Ok(SandboxSource::Snapshot(snapshot.clone())),
        (None, Some(image)) => Ok(SandboxSource::Image {
            reference: image.clone(),
            cpus: options.limits.cpus.map(|cpus| cpus.ceil() as u64),
            memory_gib: options.limits.memory.map(|bytes| bytes.div_ceil(GIB)),
            disk_gib: options.disk.map(|bytes| bytes.div_ceil(GIB)),
        }),
        (None, None) => Ok(SandboxSource::Default),
    }
}

/// The transport to a cloud sandbox.
#[derive(Debug)]
struct DaytonaTransport {
    provider: Arc<DaytonaProvider>,
    /// The sandbox's id.
    id: String,
    /// The program that is uploaded into it.
    program: BridgeProgram,
    toolbox: OnceCell<Toolbox>,
}

impl DaytonaTransport {
    /// Returns the transport to a sandbox.
    fn new(provider: Arc<DaytonaProvider>, id: String, program: BridgeProgram) -> Self {
        Self { provider, id, program, toolbox: OnceCell::new() }
    }

    async fn toolbox(&self) -> Result<&Toolbox, ProviderError> {
        self.toolbox.get_or_try_init(|| self.provider.toolbox(&self.id)).await
    }

    /// Determines the layout of the sandbox.
    async fn layout(
        &self,
        program: &str,
        env: BTreeMap<String, SecretString>,
    ) -> Result<SandboxLayout, ProviderError> {
        let home = self.toolbox().await?.home().await?;
        Ok(SandboxLayout::below(&home, program, env))
    }

    /// Creates the directories, and uploads the program unless it is there already.
    async fn install(&self, layout: &SandboxLayout) -> Result<(), ProviderError> {
        let (creel, program) = (quoted(&layout.creel_directory), quoted(&layout.bridge_path));
        let workspace = quoted(&layout.workspace_root);
        let make = format!(
            "mkdir -p {creel}/orders {workspace} && chmod 700 {creel} && \
             if test -x {program}; then echo there; else echo missing; fi"
        );
        if self.step("make its directories", make).await?.trim() == "there" {
            return Ok(());
        }
        let draft = format!("{}.{}", layout.bridge_path, Uuid::new_v4().simple());
        let content = Bytes::from_static(self.program.bytes);
        self.toolbox().await?.upload(&draft, content).await?;
        let draft = quoted(&draft);
        // Renamed as a whole, so that a partial file is never started. Run once, so that a sandbox
        // of another architecture fails here and not at the first command.
        let install = format!("chmod 755 {draft} && {draft} alive && mv {draft} {program}");
        self.step("place creel-bridge", install).await.map(drop)
    }

    /// Runs a shell line that contains only our own paths. Returns its output.
    async fn step(&self, what: &str, command: String) -> Result<String, ProviderError> {
        let exec = Exec { command, limit: STEP_LIMIT, ..Exec::default() };
        match self.toolbox().await?.exec(&exec).await? {
            Executed::Ended { code: 0, output } => Ok(output),
            Executed::Ended { code, output } => {
                let message = format!("code {code}: {}", shortened(&output));
                Err(self.failure(what, ErrorClass::Invalid, message))
            }
            Executed::TimedOut => {
                Err(self.failure(what, ErrorClass::Transient, "it took too long".to_owned()))
            }
        }
    }

    fn failure(&self, what: &str, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: crate::NAME,
            operation: format!("{what} in sandbox {}", self.id),
            message,
            class,
            retry_after: None,
        }
    }
}

/// One command in a sandbox. Dropping it removes its files, and kills the command if it runs.
#[derive(Debug)]
struct PendingCommand {
    toolbox: Toolbox,
    /// Also the name of the session.
    name: String,
    request_file: String,
    heartbeat_file: String,
    /// The command, once it has started.
    command: Option<SessionCommand>,
    is_finished: bool,
}

impl PendingCommand {
    fn new(toolbox: &Toolbox, layout: &SandboxLayout) -> Self {
        let name = format!("creel-{}", Uuid::new_v4().simple());
        let file = |ending: &str| format!("{}/orders/{name}.{ending}", layout.creel_directory);
        Self {
            toolbox: toolbox.clone(),
            request_file: file("json"),
            heartbeat_file: file("sign"),
            name,
            command: None,
            is_finished: false,
        }
    }

    /// Sends the request and starts its command.
    async fn begin(
        &mut self,
        layout: &SandboxLayout,
        request: &ExecRequest,
    ) -> Result<(), ProviderError> {
        let request = Bytes::from(serde_json::to_vec(request).unwrap_or_default());
        let files =
            vec![(self.heartbeat_file.clone(), heartbeat()), (self.request_file.clone(), request)];
        self.toolbox.upload_all(files).await?;
        self.toolbox.create_session(&self.name).await?;
        let line = format!(
            "{} exec --order {} --while-file {} --while-ms {HEARTBEAT_TIMEOUT_MS} </dev/null",
            quoted(&layout.bridge_path),
            quoted(&self.request_file),
            quoted(&self.heartbeat_file),
        );
        self.command = Some(self.toolbox.start_command(&self.name, &line).await?);
        Ok(())
    }

    /// Writes heartbeats for as long as it is polled.
    async fn send_heartbeats(&self) {
        loop {
            tokio::time::sleep(HEARTBEAT_PERIOD).await;
            if let Err(error) = self.toolbox.upload(&self.heartbeat_file, heartbeat()).await {
                debug!(%error, "a sign of life did not get through");
            }
        }
    }

    /// Follows the output of the command until the final frame.
    async fn receive(&self, response: &mut ExecResponse<'_>) -> Result<(), ProviderError> {
        let Some(command) = &self.command else { return Ok(()) };
        let final_frame = Notify::new();
        let followed = {
            let mut forward = |stream: Stream, bytes: &[u8]| {
                if stream == Stream::Output {
                    response.feed(bytes);
                }
                if response.is_finished() {
                    final_frame.notify_one();
                }
            };
            tokio::select! {
                followed = self.toolbox.follow(command, &mut forward) => followed.map(drop),
                () = final_frame.notified() => Ok(()),
                () = self.send_heartbeats() => Ok(()),
            }
        };
        if response.is_finished() {
            return Ok(());
        }
        followed?;
        // Something was lost in transit, but the log still has it.
        response.read_again();
        response.feed(self.toolbox.logs(command).await?.output.as_bytes());
        Ok(())
    }
}

impl Drop for PendingCommand {
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let pending = FinishedCommand {
            toolbox: self.toolbox.clone(),
            name: std::mem::take(&mut self.name),
            files: [
                std::mem::take(&mut self.heartbeat_file),
                std::mem::take(&mut self.request_file),
            ],
            running: self.command.take().filter(|_| !self.is_finished),
        };
        task::background(pending.clear());
    }
}

/// A command that is over, successfully or not.
struct FinishedCommand {
    toolbox: Toolbox,
    name: String,
    files: [String; 2],
    /// The command, if it may still run.
    running: Option<SessionCommand>,
}

impl FinishedCommand {
    /// Removes the files and the session of the command. What remains is deleted with the sandbox.
    async fn clear(self) {
        for file in &self.files {
            // The heartbeat file goes first: without it the command is killed.
            let _ = self.toolbox.remove(file).await;
        }
        if let Some(command) = &self.running {
            // The program owns the session and must clean up before the session is deleted.
            let ended = async {
                while let Ok(None) = self.toolbox.exit_code(command).await {
                    tokio::time::sleep(HANG_UP_PAUSE).await;
                }
            };
            let _ = tokio::time::timeout(HANG_UP_PATIENCE, ended).await;
        }
        let _ = self.toolbox.delete_session(&self.name).await;
    }
}

#[async_trait]
impl Transport for DaytonaTransport {
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
        let mut pending = PendingCommand::new(self.toolbox().await?, layout);
        pending.begin(layout, &request).await?;
        let received = pending.receive(response).await;
        pending.is_finished = response.is_finished();
        received
    }

    async fn status(&self) -> Result<SandboxStatus, ProviderError> {
        let seen = self.provider.inspect(Kind::Sandbox, &self.id).await?;
        Ok(match seen {
            None => SandboxStatus::Absent,
            // It cannot be recovered.
            Some(seen) if is_leaving(&seen) => SandboxStatus::Absent,
            Some(seen) if seen.state == "started" => SandboxStatus::Running,
            Some(seen) => SandboxStatus::Resting(seen.state),
        })
    }

    async fn start(&self, layout: &SandboxLayout) -> Result<(), ProviderError> {
        self.provider.start(&self.id).await?;
        self.install(layout).await
    }

    async fn stop(&self, patience: Duration) -> Result<(), ProviderError> {
        self.provider.stop(Kind::Sandbox, &self.id, patience).await
    }

    async fn usage(&self) -> Result<Usage, ProviderError> {
        self.toolbox().await?.usage().await
    }

    async fn renew(&self) -> Result<(), ProviderError> {
        self.provider.renew(Kind::Sandbox, &self.id).await
    }
}

/// Returns whether its delete was accepted, whatever the result.
fn is_leaving(seen: &Observed) -> bool {
    matches!(seen.state.as_str(), "destroying" | "destroyed")
        || seen.desired.as_deref() == Some("destroyed")
        || seen.retained.is_some()
}

/// Returns the content of a heartbeat file, which is unique.
fn heartbeat() -> Bytes {
    Bytes::from(Uuid::new_v4().to_string())
}

/// Quotes a path for a shell.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}

/// Returns the beginning of a step's output, in one line.
fn shortened(output: &str) -> String {
    let line = output.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_or_are_refused() {
        let options = |image: Option<&str>, limits| SandboxOptions {
            image: image.map(str::to_owned),
            snapshot: None,
            env: BTreeMap::new(),
            limits,
            disk: None,
            network: None,
            lease: Duration::from_secs(60),
        };
        let cpus = |cpus| Limits { cpus: Some(cpus), ..Limits::default() };
        let sized = source(&options(Some("image"), cpus(2.0))).unwrap();
        assert!(matches!(sized, SandboxSource::Image { cpus: Some(2), .. }), "{sized:?}");
        assert_eq!(source(&options(None, Limits::default())).unwrap(), SandboxSource::Default);
        let processes = Limits { processes: Some(8), ..Limits::default() };
        for (image, limits) in
            [(Some("image"), cpus(f64::NAN)), (Some("image"), processes), (None, cpus(2.0))]
        {
            let error = source(&options(image, limits)).unwrap_err();
            assert_eq!(error.class, ErrorClass::Invalid, "{error}");
        }
    }

    #[test]
    fn a_path_is_quoted_as_one_argument() {
        assert_eq!(quoted("/home/o'b r"), r"'/home/o'\''b r'");
    }
}
