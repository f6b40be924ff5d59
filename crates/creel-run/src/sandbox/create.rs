//! Creating sandboxes, and connecting to existing ones.
//!
//! The parts of a sandbox are created through the [`Supervisor`], so they are in
//! the ledger before they exist. A create that fails midway releases what it
//! created before it returns. A crash in the middle leaves what the ledger
//! records. An existing sandbox is reached by its records alone. Their labels
//! contain the name of the program, so another version of creel finds the program
//! that is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use creel_core::scope::{AcquireError, Held, Request, Supervisor};
use creel_daytona::DaytonaProvider;
use creel_docker::DockerProvider;
use creel_ledger::{OnOwnerDeath, Record};
use creel_model::id::RunId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{
    ErrorClass, Kind, Limits, Provider, ProviderError, ProviderName, SandboxSource, SandboxSpec,
    Spec,
};
use creel_model::task;
use creel_process::{ProcessProvider, io_failure};
use secrecy::SecretString;
use tracing::warn;

use super::daytona::DaytonaTransport;
use super::docker::{self, DockerTransport};
use super::layout::{SandboxLayout, program_name};
use super::process::{self, ProcessTransport, SandboxHome};
use super::transport::{Transport, TransportSandbox};
use super::{BridgeProgram, Sandbox};

/// The number of bytes in a GiB.
const GIB: u64 = 1 << 30;

/// The plan of a sandbox to create.
#[derive(Debug, Clone)]
pub struct SandboxPlan {
    /// The run it is for.
    pub run: RunId,
    /// The provider that creates it.
    pub provider: ProviderName,
    /// The image it starts from, if the provider has images.
    pub image: Option<String>,
    /// The snapshot it starts from, if the provider has snapshots.
    pub snapshot: Option<String>,
    /// Variables of every command in it. They are never part of the sandbox itself.
    pub env: BTreeMap<String, SecretString>,
    /// The limits of its resources.
    pub limits: Limits,
    /// The maximum size of its disk in bytes, if the provider can limit that.
    pub disk: Option<u64>,
    /// The network it joins; `None` means the provider's default.
    pub network: Option<String>,
    /// How long it may live without a renewal.
    pub lease: Duration,
    /// What happens to it when this process dies.
    pub on_owner_death: OnOwnerDeath,
}

/// A sandbox that was created.
#[derive(Debug)]
#[must_use]
pub struct CreatedSandbox {
    /// The access to it.
    pub sandbox: Arc<dyn Sandbox>,
    /// Its parts, in the order in which they must be released.
    pub held: Vec<Held>,
}

/// Creates sandboxes on the available providers, and connects to them.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    program: BridgeProgram,
    process: ProcessProvider,
    docker: Option<Arc<DockerProvider>>,
    daytona: Option<Arc<DaytonaProvider>>,
}

impl Sandboxes {
    /// Creates a value for process sandboxes. The providers must be those of the supervisor.
    pub fn new(program: BridgeProgram, process: ProcessProvider) -> Self {
        Self { program, process, docker: None, daytona: None }
    }

    /// Adds container sandboxes.
    #[must_use]
    pub fn with_docker(mut self, docker: Option<Arc<DockerProvider>>) -> Self {
        self.docker = docker;
        self
    }

    /// Adds cloud sandboxes.
    #[must_use]
    pub fn with_daytona(mut self, daytona: Option<Arc<DaytonaProvider>>) -> Self {
        self.daytona = daytona;
        self
    }

    /// Returns the image of a planned sandbox if the engine does not have it.
    ///
    /// # Errors
    ///
    /// Fails when the engine does not answer.
    pub async fn missing_image(&self, plan: &SandboxPlan) -> Result<Option<String>, ProviderError> {
        match (&self.docker, &plan.image) {
            (Some(docker), Some(image)) if plan.provider == ProviderName::Docker => {
                let known = docker.inspect(Kind::Image, image).await?;
                Ok(known.is_none().then(|| image.clone()))
            }
            _ => Ok(None),
        }
    }

    /// Pulls an image from its registry. It stays for the next sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the engine or the registry refuses, or does not answer.
    pub async fn fetch_image(&self, image: &str) -> Result<(), ProviderError> {
        self.docker()?.pull(image).await
    }

    /// Creates a sandbox, and verifies that it is alive.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be created. Its parts are then released; those whose release fails stay
    /// in the ledger.
    pub async fn create(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
    ) -> Result<CreatedSandbox, AcquireError> {
        let mut held = Vec::new();
        let created = match plan.provider {
            ProviderName::Process => self.create_process(supervisor, plan, &mut held).await,
            ProviderName::Docker => self.create_container(supervisor, plan, &mut held).await,
            ProviderName::Daytona => self.create_cloud(supervisor, plan, &mut held).await,
        };
        let proven = match created {
            Ok(sandbox) => sandbox.probe().await.map(|()| sandbox).map_err(AcquireError::from),
            Err(error) => Err(error),
        };
        match proven {
            Ok(sandbox) => Ok(CreatedSandbox { sandbox, held }),
            Err(error) => {
                release_all(supervisor, held).await;
                Err(error)
            }
        }
    }

    /// Connects to an existing sandbox by the records of its parts.
    ///
    /// # Errors
    ///
    /// Fails when there is no sandbox among the records, or when it cannot be reached. The error is
    /// `Gone` when the sandbox no longer exists.
    pub async fn open(
        &self,
        records: &[Record],
        env: BTreeMap<String, SecretString>,
    ) -> Result<Arc<dyn Sandbox>, ProviderError> {
        let parts = SandboxParts::of(records)?;
        match parts.provider {
            ProviderName::Process => {
                let home = self.home(parts.directory.as_deref().unwrap_or_default())?;
                let layout = home.layout(&parts.program, env);
                let (provider, tree) = (self.process.clone(), parts.object);
                Ok(with_transport(ProcessTransport { provider, tree, home }, layout))
            }
            ProviderName::Docker => {
                let provider = Arc::clone(self.docker()?);
                let layout = docker::layout(&parts.program, env);
                Ok(with_transport(DockerTransport { provider, id: parts.object }, layout))
            }
            ProviderName::Daytona => {
                let provider = Arc::clone(self.daytona()?);
                let transport = DaytonaTransport::new(provider, parts.object, self.program);
                let layout = transport.layout(&parts.program, env).await?;
                Ok(with_transport(transport, layout))
            }
        }
    }

    async fn create_process(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
        held: &mut Vec<Held>,
    ) -> Result<Arc<dyn Sandbox>, AcquireError> {
        refuse(plan, &[("image", &plan.image), ("network", &plan.network)])?;
        refuse(plan, &[("snapshot", &plan.snapshot)])?;
        let name = program_name(&self.program);
        let directory = plan.disk.map_or(Spec::Directory, |bytes| Spec::Disk { bytes });
        held.push(supervisor.create(request(plan, directory, &name, None)).await?);
        let home = self.home(&held[0].id)?;
        let installed = {
            let (home, name, bytes) = (home.clone(), name.clone(), self.program.bytes);
            task::blocking(move || process::install(&home, &name, bytes)).await
        };
        installed.map_err(|error| io_failure("furnish a directory", &error))?;
        let layout = home.layout(&name, plan.env.clone());
        let spec = process::tree_spec(&home, &layout.bridge_path, plan.limits.clone());
        let tree = supervisor.create(request(plan, Spec::Process(spec), &name, None)).await?;
        let transport =
            ProcessTransport { provider: self.process.clone(), tree: tree.id.clone(), home };
        held.insert(0, tree);
        transport.until_ready().await?;
        Ok(with_transport(transport, layout))
    }

    /// Returns the directories of a process sandbox.
    fn home(&self, directory: &str) -> Result<SandboxHome, ProviderError> {
        let wrong = || no_sandbox(ProviderName::Process, "its directory is not on record");
        let root = self.process.directory(directory).ok_or_else(wrong)?;
        let work = self.process.work_directory(directory).ok_or_else(wrong)?;
        Ok(SandboxHome { root, work })
    }

    async fn create_container(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
        held: &mut Vec<Held>,
    ) -> Result<Arc<dyn Sandbox>, AcquireError> {
        refuse(plan, &[("snapshot", &plan.snapshot)])?;
        let provider = Arc::clone(self.docker()?);
        let image = plan.image.as_deref();
        let image = image.ok_or_else(|| no_sandbox(plan.provider, "a container needs an image"))?;
        if provider.inspect(Kind::Image, image).await?.is_none() {
            let message = format!("the engine has no image {image}; `docker pull {image}` gets it");
            return Err(no_sandbox(plan.provider, &message).into());
        }
        let name = program_name(&self.program);
        let layout = docker::layout(&name, plan.env.clone());
        let spec = Spec::Container(docker::container(plan, image, &layout, &self.program));
        let lease_file = docker::lease_file(&layout);
        held.push(supervisor.create(request(plan, spec, &name, Some(&lease_file))).await?);
        Ok(with_transport(DockerTransport { provider, id: held[0].id.clone() }, layout))
    }

    async fn create_cloud(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
        held: &mut Vec<Held>,
    ) -> Result<Arc<dyn Sandbox>, AcquireError> {
        refuse(plan, &[("network", &plan.network)])?;
        let provider = Arc::clone(self.daytona()?);
        let name = program_name(&self.program);
        let spec = SandboxSpec { source: source(plan), ..SandboxSpec::default() };
        held.push(supervisor.create(request(plan, Spec::Sandbox(spec), &name, None)).await?);
        let transport = DaytonaTransport::new(provider, held[0].id.clone(), self.program);
        let layout = transport.layout(&name, plan.env.clone()).await?;
        transport.install(&layout).await?;
        Ok(with_transport(transport, layout))
    }

    fn docker(&self) -> Result<&Arc<DockerProvider>, ProviderError> {
        self.docker.as_ref().ok_or_else(|| not_configured(ProviderName::Docker))
    }

    fn daytona(&self) -> Result<&Arc<DaytonaProvider>, ProviderError> {
        self.daytona.as_ref().ok_or_else(|| not_configured(ProviderName::Daytona))
    }
}

/// The parts of a sandbox, as the ledger records them.
#[derive(Debug)]
struct SandboxParts {
    provider: ProviderName,
    /// The id of the object that runs.
    object: String,
    /// The id of its directory.
    directory: Option<String>,
    /// The name of the bridge program in it.
    program: String,
}

impl SandboxParts {
    /// Finds the sandbox among records: the newest one if there are several.
    fn of(records: &[Record]) -> Result<Self, ProviderError> {
        let is_body = |kind| matches!(kind, Kind::Process | Kind::Container | Kind::Sandbox);
        let newest = |wanted: &dyn Fn(Kind) -> bool| {
            let found = records.iter().filter(|record| wanted(record.kind));
            found
                .filter(|record| record.labels.contains_key(labels::BRIDGE))
                .filter_map(|record| Some((record, record.state.object()?.to_owned())))
                .max_by_key(|(record, _)| record.id)
        };
        let missing = || no_sandbox(ProviderName::Process, "there is no sandbox on record");
        let (body, object) = newest(&is_body).ok_or_else(missing)?;
        Ok(Self {
            provider: body.provider,
            object,
            directory: newest(&|kind| kind == Kind::Directory).map(|(_, object)| object),
            program: body.labels.get(labels::BRIDGE).unwrap_or_default().to_owned(),
        })
    }
}

fn with_transport<W: Transport + 'static>(transport: W, layout: SandboxLayout) -> Arc<dyn Sandbox> {
    Arc::new(TransportSandbox { transport, layout })
}

fn request(plan: &SandboxPlan, spec: Spec, program: &str, lease_file: Option<&str>) -> Request {
    let mut labels = Labels::from([(labels::BRIDGE, program)]);
    if let Some(lease_file) = lease_file {
        labels.insert(labels::LEASE_FILE, lease_file);
    }
    Request {
        labels,
        run: Some(plan.run),
        on_owner_death: plan.on_owner_death,
        lease: plan.lease,
        ..Request::new(plan.provider, spec)
    }
}

/// Returns the source of a cloud sandbox. A snapshot has its own size; an image needs one.
fn source(plan: &SandboxPlan) -> SandboxSource {
    match (&plan.snapshot, &plan.image) {
        (Some(snapshot), _) => SandboxSource::Snapshot(snapshot.clone()),
        (None, Some(image)) => SandboxSource::Image {
            reference: image.clone(),
            cpus: plan.limits.cpus.map(|cpus| cpus.ceil() as u64),
            memory_gib: plan.limits.memory.map(|bytes| bytes.div_ceil(GIB)),
            disk_gib: plan.disk.map(|bytes| bytes.div_ceil(GIB)),
        },
        (None, None) => SandboxSource::Default,
    }
}

/// Rejects options that a provider does not have, rather than ignore them silently.
fn refuse(plan: &SandboxPlan, keys: &[(&str, &Option<String>)]) -> Result<(), ProviderError> {
    match keys.iter().find(|(_, value)| value.is_some()) {
        Some((key, _)) => {
            let message = format!("a sandbox of {} has no {key} to choose", plan.provider);
            Err(no_sandbox(plan.provider, &message))
        }
        None => Ok(()),
    }
}

/// Releases what a failed create took.
async fn release_all(supervisor: &Supervisor, held: Vec<Held>) {
    for one in held {
        if let Err(error) = supervisor.release(one).await {
            warn!(%error, "a part of a failed sandbox is left to the next reconcile");
        }
    }
}

fn no_sandbox(provider: ProviderName, message: &str) -> ProviderError {
    ProviderError {
        provider,
        operation: "make a sandbox".to_owned(),
        message: message.to_owned(),
        class: ErrorClass::Invalid,
        retry_after: None,
    }
}

fn not_configured(provider: ProviderName) -> ProviderError {
    ProviderError {
        class: ErrorClass::Unreachable,
        ..no_sandbox(provider, "it is not configured here")
    }
}
