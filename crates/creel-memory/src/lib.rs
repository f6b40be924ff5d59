//! A provider in memory: the example for authors of a provider, see `docs/providers.md`.
//!
//! ```text
//!   MemoryProvider  ── call ──▶ Cloud: containers and volumes in a list
//!   MemorySandboxes ── make ──▶ PartMaker ──▶ MemoryProvider::create
//!   MemoryTransport ── exec ──▶ creel-bridge in the container's directory
//! ```
//!
//! [`Cloud`] stands for the remote system. Everything else is what an author writes. Containers show
//! a kind whose ids are never reused, volumes one whose names are.

mod cloud;

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use creel_bridge::exec::ExecRequest;
use creel_bridge::file;
use creel_model::backend::{
    Backend, BackendContext, BackendError, Connected, Diagnosis, SandboxDraft, Verdict,
};
use creel_model::labels;
use creel_model::provider::{
    Activity, ContainerSpec, CreateRequest, Deadline, ErrorClass, Identity, IdentityCheck, Kind,
    Limits, Marks, Observed, Permit, Provider, ProviderError, ProviderName, ReleaseMode, Released,
    Result, Spec, Usage,
};
use creel_model::sandbox::{
    BridgeProgram, ExecResponse, PartMaker, Sandbox, SandboxError, SandboxLayout, SandboxOptions,
    SandboxPart, SandboxParts, SandboxProvider, SandboxStatus, Transport, no_sandbox, program_name,
    with_transport,
};
use secrecy::SecretString;

use cloud::find;
pub use cloud::{Cloud, CloudObject, Connection, Outage};

/// The name of this provider.
const NAME: ProviderName = ProviderName::new("memory");
/// The kinds of object that it has.
const KINDS: &[Kind] = &[Kind::Container, Kind::Volume];
/// The variable with the name of the cloud, and a hint for users who need it.
const VARIABLE: &str = "CREEL_MEMORY_CLOUD";
const HINT: &str = "set CREEL_MEMORY_CLOUD to the name of a cloud";

/// This backend: one line in the list of backends brings it into the command line.
#[derive(Debug, Clone, Copy)]
pub struct MemoryBackend;

#[async_trait]
impl Backend for MemoryBackend {
    fn name(&self) -> ProviderName {
        NAME
    }

    fn states(&self) -> Vec<&'static str> {
        vec!["running", "exited", "present"]
    }

    fn connect(
        &self,
        context: &BackendContext,
    ) -> std::result::Result<Option<Connected>, BackendError> {
        let cloud = context.variables.text(VARIABLE).map(|name| Cloud::named(&name));
        Ok(cloud.map(|cloud| {
            let provider = Arc::new(MemoryProvider(cloud.connect()));
            Connected { sandboxes: Arc::new(MemorySandboxes(Arc::clone(&provider))), provider }
        }))
    }

    fn not_configured(&self) -> BackendError {
        BackendError::NotConfigured { message: "no cloud is configured", hint: HINT }
    }

    async fn diagnose(&self, context: &BackendContext) -> Diagnosis {
        match context.variables.text(VARIABLE) {
            Some(name) => Diagnosis::works(format!("the cloud is {name}")),
            None => Diagnosis::of(Verdict::Unavailable, "no cloud is configured", HINT),
        }
    }

    fn isolation(&self) -> &'static str {
        "none"
    }

    fn sandbox_kinds(&self) -> &'static [Kind] {
        &[Kind::Container]
    }

    fn check_sandbox(&self, draft: &mut SandboxDraft) {
        draft.ignore_image("a sandbox in memory");
        draft.ignore_snapshot("a sandbox in memory");
        draft.refuse_if(draft.network.is_some(), "network", "a cloud has no networks");
        let has_limits = draft.limits != Limits::default() || draft.disk.is_some();
        draft.refuse_if(has_limits, "memory", "a cloud enforces no limits");
    }
}

/// The containers and volumes of a cloud.
#[derive(Debug)]
pub struct MemoryProvider(pub Connection);

impl MemoryProvider {
    /// Sends a request. A lost answer says nothing about any object: it is never "absent".
    fn call<T>(&self, operation: &str, act: impl FnOnce(&mut Vec<CloudObject>) -> T) -> Result<T> {
        self.0.call(act).ok_or_else(|| failure(operation, ErrorClass::Unreachable, "no answer"))
    }

    /// Does something with one object. It is `Gone` if the cloud does not have it.
    fn object<T>(
        &self,
        (operation, kind, id): (&str, Kind, &str),
        act: impl FnOnce(&mut CloudObject) -> T,
    ) -> Result<T> {
        let done = self.call(operation, |objects| find(objects, kind, id).map(act))?;
        done.ok_or_else(|| failure(operation, ErrorClass::Gone, "there is no such object"))
    }
}

/// Refuses other kinds and malformed ids: "absent" would count as proof. Returns the operation.
fn checked(verb: &str, kind: Kind, id: &str) -> Result<String> {
    let operation = format!("{verb} {kind} {id}");
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_id = id.starts_with(|first: char| first.is_ascii_alphanumeric());
    let message = match KINDS.contains(&kind) {
        false => format!("a cloud has no objects of the kind {kind}"),
        true if is_id && id.bytes().all(allowed) => return Ok(operation),
        true => format!("`{id}` is not the id of one"),
    };
    Err(failure(&operation, ErrorClass::Invalid, message))
}

/// Every error gets its class here, once.
fn failure(operation: &str, class: ErrorClass, message: impl Into<String>) -> ProviderError {
    let (operation, message) = (operation.to_owned(), message.into());
    ProviderError { provider: NAME, operation, message, class, retry_after: None }
}

/// Returns an object as creel sees it.
fn observed(object: &CloudObject) -> Observed {
    // A container's id is its identity. The name of a volume can be reused, so it needs more.
    let identity = (object.kind == Kind::Volume).then(|| Identity::Volume {
        name: object.name.clone(),
        resource: labels::claimed_resource(&object.labels),
        engine_made: false,
        created_at: Some(object.created_at),
        created_at_is_stable: true,
    });
    Observed {
        name: object.name.clone(),
        state: object.state.to_owned(),
        activity: Activity::of(object.state == "running"),
        created_at: Some(object.created_at),
        labels: object.labels.clone(),
        generation: format!("{} {}", object.state, object.created_at),
        identity,
        ..Observed::known_by_id(NAME, object.kind, &object.id)
    }
}

#[async_trait]
impl Provider for MemoryProvider {
    fn name(&self) -> ProviderName {
        NAME
    }

    fn address(&self) -> String {
        "memory".to_owned()
    }

    fn other_account_hint(&self) -> &'static str {
        "connect to the cloud that the plan was made with"
    }

    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn within(self: Arc<Self>, _: Permit, _: Deadline) -> Arc<dyn Provider> {
        self
    }

    async fn identity(&self) -> Result<String> {
        self.call("identify the cloud", |_| self.0.cloud().name().to_owned())
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        self.call("list its objects", |objects| {
            objects.iter().filter(|object| kinds.contains(&object.kind)).map(observed).collect()
        })
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let operation = checked("inspect", kind, id)?;
        self.call(&operation, |objects| find(objects, kind, id).map(|object| observed(object)))
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        checked("find", marks.kind, &marks.name)?;
        // Neither the name nor the label alone proves that this create made it.
        let listed = self.list(&[marks.kind]).await?;
        Ok(listed.into_iter().filter(|seen| marks.fit(seen)).collect())
    }

    async fn create(&self, request: &CreateRequest) -> Result<String> {
        let kind = request.spec.kind();
        let operation = checked("create", kind, &request.name)?;
        if let Spec::Container(ContainerSpec { limits, .. }) = &request.spec
            && *limits != Limits::default()
        {
            // A limit that does not hold is refused, not ignored.
            return Err(failure(&operation, ErrorClass::Invalid, "a cloud enforces no limits"));
        }
        let created = self.call(&operation, |objects| {
            match objects.iter().find(|object| object.kind == kind && object.name == request.name) {
                // An earlier attempt of this very create made it, and its answer was lost.
                Some(there) if request.marks().fit(&observed(there)) => Ok(there.id.clone()),
                Some(_) => Err(()),
                None => {
                    objects.push(CloudObject::new(kind, &request.name, request.labels.clone()));
                    Ok(objects[objects.len() - 1].id.clone())
                }
            }
        })?;
        created.map_err(|()| failure(&operation, ErrorClass::Invalid, "the name is not ours"))
    }

    async fn stop(&self, kind: Kind, id: &str, _: Duration) -> Result<()> {
        let operation = checked("stop", kind, id)?;
        if !kind.runs() {
            return Err(failure(&operation, ErrorClass::Invalid, format!("a {kind} does not run")));
        }
        self.object((&operation, kind, id), CloudObject::stop)
    }

    async fn renew(&self, kind: Kind, id: &str) -> Result<()> {
        let operation = checked("renew", kind, id)?;
        // A cloud has no dead-man switch, so there is nothing to renew.
        self.object((&operation, kind, id), |_| ())
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let operation = checked("release", kind, id)?;
        // One request compares and deletes, so nothing can come between.
        self.call(&operation, |objects| {
            let Some(object) = find(objects, kind, id) else {
                return Ok(Released::AlreadyGone);
            };
            let seen = observed(object);
            if let (Some(expected), Some(found)) = (&mode.expected, seen.identity()) {
                match Identity::compare(expected, &found) {
                    IdentityCheck::Same { .. } => {}
                    other => return Ok(Released::Kept(other)),
                }
            }
            if seen.is_running() && !mode.kill_running {
                return Err(failure(&operation, ErrorClass::InUse, "it is running now"));
            }
            objects.retain(|object| (object.kind, object.id.as_str()) != (kind, id));
            Ok(Released::Done)
        })?
    }
}

/// The sandboxes of a cloud: one container each.
#[derive(Debug, Clone)]
pub struct MemorySandboxes(pub Arc<MemoryProvider>);

impl MemorySandboxes {
    /// Connects to a container. Its files are in a directory of its own.
    fn enter(
        &self,
        id: String,
        program: &str,
        env: BTreeMap<String, SecretString>,
    ) -> Result<(MemoryTransport, SandboxLayout)> {
        let transport = MemoryTransport { provider: Arc::clone(&self.0), id };
        let directory = transport.container(|object| object.directory().to_owned())?;
        Ok((transport, SandboxLayout::below(&directory, program, env)))
    }
}

#[async_trait]
impl SandboxProvider for MemorySandboxes {
    fn name(&self) -> ProviderName {
        NAME
    }

    async fn create(
        &self,
        options: &SandboxOptions,
        program: &BridgeProgram,
        parts: &mut dyn PartMaker,
    ) -> std::result::Result<Arc<dyn Sandbox>, SandboxError> {
        options.refuse(NAME, &["image", "network", "snapshot"])?;
        if options.disk.is_some() {
            return Err(no_sandbox(NAME, "a cloud enforces no limit on disks").into());
        }
        let spec = ContainerSpec { limits: options.limits.clone(), ..ContainerSpec::default() };
        // The maker puts the container on record, and then calls `Provider::create`.
        let id = parts.make(SandboxPart::new(Spec::Container(spec))).await?;
        let (transport, layout) = self.enter(id, &program_name(program), options.env.clone())?;
        let wrong = |error| failure("lay out a sandbox", ErrorClass::Transient, format!("{error}"));
        for directory in [&layout.creel_directory, &layout.workspace_root] {
            DirBuilder::new().mode(0o700).create(directory).map_err(wrong)?;
        }
        file::put(layout.bridge_path.as_ref(), 0o700, program.bytes).map_err(wrong)?;
        Ok(with_transport(transport, layout))
    }

    async fn open(
        &self,
        parts: SandboxParts,
        _: &BridgeProgram,
        env: BTreeMap<String, SecretString>,
    ) -> Result<Arc<dyn Sandbox>> {
        let (transport, layout) = self.enter(parts.object, &parts.program, env)?;
        Ok(with_transport(transport, layout))
    }
}

/// The transport to one container. Everything else about a sandbox is the same for all providers.
#[derive(Debug)]
struct MemoryTransport {
    provider: Arc<MemoryProvider>,
    id: String,
}

impl MemoryTransport {
    /// Does something with the container.
    fn container<T>(&self, act: impl FnOnce(&mut CloudObject) -> T) -> Result<T> {
        self.provider.object(("reach the container", Kind::Container, &self.id), act)
    }
}

#[async_trait]
impl Transport for MemoryTransport {
    fn provider(&self) -> ProviderName {
        NAME
    }

    fn id(&self) -> &str {
        &self.id
    }

    async fn carry(
        &self,
        layout: &SandboxLayout,
        request: ExecRequest,
        response: &mut ExecResponse<'_>,
    ) -> Result<()> {
        // The program reads the request from its input and answers on its output. When its input
        // closes, it kills the command: so dropping this future does.
        let program = [layout.bridge_path.as_str(), "exec", "--while-connected"];
        let wrong = |error| failure("run a command", ErrorClass::Unreachable, format!("{error}"));
        let mut stream = self.container(|container| container.exec(&program))?.map_err(wrong)?;
        let line = serde_json::to_string(&request).map_err(|error| wrong(error.into()))?;
        stream.write(format!("{line}\n").as_bytes()).await.map_err(wrong)?;
        let mut buffer = vec![0; 64 * 1024];
        // A stream that ends without the last frame is an error. The caller sees to that.
        while !response.is_finished() {
            match stream.read(&mut buffer).await.map_err(wrong)? {
                0 => break,
                count => response.feed(&buffer[..count]),
            }
        }
        Ok(())
    }

    async fn status(&self) -> Result<SandboxStatus> {
        Ok(match self.provider.inspect(Kind::Container, &self.id).await? {
            None => SandboxStatus::Absent,
            Some(seen) if seen.is_running() => SandboxStatus::Running,
            Some(seen) => SandboxStatus::Resting(seen.state),
        })
    }

    async fn start(&self, _: &SandboxLayout) -> Result<()> {
        self.container(CloudObject::start)
    }

    async fn stop(&self, patience: Duration) -> Result<()> {
        self.provider.stop(Kind::Container, &self.id, patience).await
    }

    async fn usage(&self) -> Result<Usage> {
        self.container(|_| Usage::default())
    }

    async fn renew(&self) -> Result<()> {
        self.provider.renew(Kind::Container, &self.id).await
    }
}
