//! Taking sandboxes, and finding the way into one that was taken before.
//!
//! What a sandbox is made of goes through the [`Supervisor`], so it is on the
//! ledger before it exists. A create that fails half-way gives back what it
//! took before it answers; a crash in the middle leaves what the ledger
//! records. The way back in is found by the records alone: the name of the
//! program is among their labels, so a creel of another version finds the one
//! that is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tracing::warn;

use crate::id::RunId;
use crate::labels::{self, Labels};
use crate::ledger::{OnOwnerDeath, Record};
use crate::provider::daytona::DaytonaProvider;
use crate::provider::docker::DockerProvider;
use crate::provider::process::{ProcessProvider, io_failure};
use crate::provider::{
    ErrorClass, Kind, Limits, Provider, ProviderError, ProviderName, SandboxSource, SandboxSpec,
    Spec,
};
use crate::scope::{Held, Request, Supervisor, TakeError};
use crate::task;

use super::daytona::DaytonaWay;
use super::docker::{self, DockerWay};
use super::entered::{Entered, Way};
use super::place::{Place, program_name};
use super::process::{self, Home, ProcessWay};
use super::{BridgeProgram, Sandbox};

/// How many bytes a GiB has.
const GIB: u64 = 1 << 30;

/// A sandbox to be taken.
#[derive(Debug, Clone)]
pub struct SandboxPlan {
    /// The run it is for.
    pub run: RunId,
    /// In which world.
    pub provider: ProviderName,
    /// The image it starts from, where the world has images.
    pub image: Option<String>,
    /// The snapshot it starts from, where the world has snapshots.
    pub snapshot: Option<String>,
    /// Variables of every command in it. They are never part of the sandbox itself.
    pub env: BTreeMap<String, SecretString>,
    /// What it may use.
    pub limits: Limits,
    /// How large its disk may get, in bytes, where the world can limit that.
    pub disk: Option<u64>,
    /// The network it joins; `None` means the world's default.
    pub network: Option<String>,
    /// How long it may live without a renewal.
    pub lease: Duration,
    /// What becomes of it when this process dies.
    pub on_owner_death: OnOwnerDeath,
}

/// A sandbox that was taken.
#[derive(Debug)]
#[must_use]
pub struct Taken {
    /// The way into it.
    pub sandbox: Arc<dyn Sandbox>,
    /// What it is made of, in the order in which it is to be released.
    pub held: Vec<Held>,
}

/// The worlds in which sandboxes can be had.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    program: BridgeProgram,
    process: ProcessProvider,
    docker: Option<Arc<DockerProvider>>,
    daytona: Option<Arc<DaytonaProvider>>,
}

impl Sandboxes {
    /// Makes sandboxes of processes; the providers must be those of the supervisor.
    pub fn new(program: BridgeProgram, process: ProcessProvider) -> Self {
        Self { program, process, docker: None, daytona: None }
    }

    /// Adds containers.
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

    /// Returns the image of a sandbox that is to be, if the engine does not have it.
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

    /// Fetches an image from its registry; it stays there for the next sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the engine or the registry refuses, or does not answer.
    pub async fn fetch_image(&self, image: &str) -> Result<(), ProviderError> {
        self.docker()?.pull(image).await
    }

    /// Takes a sandbox, and proves that it is alive.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be had; what was taken for it is given back, or is on record where
    /// that failed too.
    pub async fn create(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
    ) -> Result<Taken, TakeError> {
        let mut held = Vec::new();
        let made = match plan.provider {
            ProviderName::Process => self.create_process(supervisor, plan, &mut held).await,
            ProviderName::Docker => self.create_container(supervisor, plan, &mut held).await,
            ProviderName::Daytona => self.create_cloud(supervisor, plan, &mut held).await,
        };
        let proven = match made {
            Ok(sandbox) => sandbox.probe().await.map(|()| sandbox).map_err(TakeError::from),
            Err(error) => Err(error),
        };
        match proven {
            Ok(sandbox) => Ok(Taken { sandbox, held }),
            Err(error) => {
                give_back(supervisor, held).await;
                Err(error)
            }
        }
    }

    /// Finds the way into a sandbox that was taken before, by the records of what it is made of.
    ///
    /// # Errors
    ///
    /// Fails when there is no sandbox among the records, or when it cannot be reached; one that
    /// does not exist any more is `Gone`.
    pub async fn open(
        &self,
        records: &[Record],
        env: BTreeMap<String, SecretString>,
    ) -> Result<Arc<dyn Sandbox>, ProviderError> {
        let parts = Parts::of(records)?;
        match parts.provider {
            ProviderName::Process => {
                let home = self.home(parts.directory.as_deref().unwrap_or_default())?;
                let place = home.place(&parts.program, env);
                let (provider, tree) = (self.process.clone(), parts.object);
                Ok(entered(ProcessWay { provider, tree, home }, place))
            }
            ProviderName::Docker => {
                let provider = Arc::clone(self.docker()?);
                let place = docker::place(&parts.program, env);
                Ok(entered(DockerWay { provider, id: parts.object }, place))
            }
            ProviderName::Daytona => {
                let provider = Arc::clone(self.daytona()?);
                let way = DaytonaWay::new(provider, parts.object, self.program);
                let place = way.place(&parts.program, env).await?;
                Ok(entered(way, place))
            }
        }
    }

    async fn create_process(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
        held: &mut Vec<Held>,
    ) -> Result<Arc<dyn Sandbox>, TakeError> {
        refuse(plan, &[("image", &plan.image), ("network", &plan.network)])?;
        refuse(plan, &[("snapshot", &plan.snapshot)])?;
        let name = program_name(&self.program);
        let directory = plan.disk.map_or(Spec::Directory, |bytes| Spec::Disk { bytes });
        held.push(supervisor.create(request(plan, directory, &name, None)).await?);
        let home = self.home(&held[0].id)?;
        let furnished = {
            let (home, name, bytes) = (home.clone(), name.clone(), self.program.bytes);
            task::blocking(move || process::furnish(&home, &name, bytes)).await
        };
        furnished.map_err(|error| io_failure("furnish a directory", &error))?;
        let place = home.place(&name, plan.env.clone());
        let spec = process::tree_spec(&home, &place.bridge_path, plan.limits.clone());
        let tree = supervisor.create(request(plan, Spec::Process(spec), &name, None)).await?;
        let way = ProcessWay { provider: self.process.clone(), tree: tree.id.clone(), home };
        held.insert(0, tree);
        way.until_ready().await?;
        Ok(entered(way, place))
    }

    /// Returns where the parts of a process sandbox are.
    fn home(&self, directory: &str) -> Result<Home, ProviderError> {
        let wrong = || no_sandbox(ProviderName::Process, "its directory is not on record");
        let root = self.process.directory(directory).ok_or_else(wrong)?;
        let work = self.process.work_directory(directory).ok_or_else(wrong)?;
        Ok(Home { root, work })
    }

    async fn create_container(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
        held: &mut Vec<Held>,
    ) -> Result<Arc<dyn Sandbox>, TakeError> {
        refuse(plan, &[("snapshot", &plan.snapshot)])?;
        let provider = Arc::clone(self.docker()?);
        let image = plan.image.as_deref();
        let image = image.ok_or_else(|| no_sandbox(plan.provider, "a container needs an image"))?;
        if provider.inspect(Kind::Image, image).await?.is_none() {
            let message = format!("the engine has no image {image}; `docker pull {image}` gets it");
            return Err(no_sandbox(plan.provider, &message).into());
        }
        let name = program_name(&self.program);
        let place = docker::place(&name, plan.env.clone());
        let spec = Spec::Container(docker::container(plan, image, &place, &self.program));
        let lease_file = docker::lease_file(&place);
        held.push(supervisor.create(request(plan, spec, &name, Some(&lease_file))).await?);
        Ok(entered(DockerWay { provider, id: held[0].id.clone() }, place))
    }

    async fn create_cloud(
        &self,
        supervisor: &Supervisor,
        plan: &SandboxPlan,
        held: &mut Vec<Held>,
    ) -> Result<Arc<dyn Sandbox>, TakeError> {
        refuse(plan, &[("network", &plan.network)])?;
        let provider = Arc::clone(self.daytona()?);
        let name = program_name(&self.program);
        let spec = SandboxSpec { source: source(plan), ..SandboxSpec::default() };
        held.push(supervisor.create(request(plan, Spec::Sandbox(spec), &name, None)).await?);
        let way = DaytonaWay::new(provider, held[0].id.clone(), self.program);
        let place = way.place(&name, plan.env.clone()).await?;
        way.furnish(&place).await?;
        Ok(entered(way, place))
    }

    fn docker(&self) -> Result<&Arc<DockerProvider>, ProviderError> {
        self.docker.as_ref().ok_or_else(|| not_configured(ProviderName::Docker))
    }

    fn daytona(&self) -> Result<&Arc<DaytonaProvider>, ProviderError> {
        self.daytona.as_ref().ok_or_else(|| not_configured(ProviderName::Daytona))
    }
}

/// What a sandbox is made of, as the ledger knows it.
#[derive(Debug)]
struct Parts {
    provider: ProviderName,
    /// What runs.
    object: String,
    /// The directory beside it.
    directory: Option<String>,
    /// The name of the program in it.
    program: String,
}

impl Parts {
    /// Finds the sandbox among records: the newest, where there are several.
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

fn entered<W: Way + 'static>(way: W, place: Place) -> Arc<dyn Sandbox> {
    Arc::new(Entered { way, place })
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

/// Returns what a cloud sandbox starts from: a snapshot brings its own size, an image is given one.
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

/// Refuses what a world does not have, rather than leave it out unsaid.
fn refuse(plan: &SandboxPlan, keys: &[(&str, &Option<String>)]) -> Result<(), ProviderError> {
    match keys.iter().find(|(_, value)| value.is_some()) {
        Some((key, _)) => {
            let message = format!("a sandbox of {} has no {key} to choose", plan.provider);
            Err(no_sandbox(plan.provider, &message))
        }
        None => Ok(()),
    }
}

/// Gives back what a failed create took.
async fn give_back(supervisor: &Supervisor, held: Vec<Held>) {
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
