//! `creel dev hold`: creates resources under supervision and holds them.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use creel_core::scope::{AcquireError, Held, Request, Supervisor};
use creel_ledger::OnOwnerDeath;
use creel_model::failure::Code;
use creel_model::id::{ResourceId, RunId};
use creel_model::provider::{
    ContainerSpec, Kind, Limits, NetworkSpec, ProcessSpec, ProviderName, SandboxSpec, Spec,
    VolumeMount, VolumeSpec,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::app::{App, command_name};
use crate::cli::orphans::release_orphans_first;
use crate::cli::watchdog;
use crate::output::{Exit, Failure};
use crate::shutdown::{Shutdown, exit_at_once};

/// Create supervised resources and hold them until stopped
///
/// Prints one line of JSON when all requested resources exist. Releases them
/// after the time given by --for, or on Ctrl-C. If this process is killed, its
/// watchdog releases them.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  creel dev hold --process --directory --for 10s
  creel dev hold --container debian:12 --network --volume
  creel dev hold --sandbox --lease 10m
  kill -9 PID; creel ls --owned          with the printed pid")]
pub(crate) struct Hold {
    /// Create a container of this image, attached to the network and volume if requested
    #[arg(long, value_name = "IMAGE")]
    pub(crate) container: Option<String>,
    /// Create a network
    #[arg(long)]
    pub(crate) network: bool,
    /// Create a volume
    #[arg(long)]
    pub(crate) volume: bool,
    /// Create a directory
    #[arg(long)]
    pub(crate) directory: bool,
    /// Start a process tree, in the directory if requested
    #[arg(long)]
    pub(crate) process: bool,
    /// Create a Daytona sandbox from the default snapshot
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// Create this many of each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) count: u32,
    /// Release everything after this time
    #[arg(long = "for", value_name = "TIME", value_parser = creel_model::duration::parse)]
    pub(crate) time: Option<Duration>,
    /// Set the lease of the resources
    #[arg(long, value_name = "TIME", value_parser = creel_model::duration::parse)]
    lease: Option<Duration>,
    /// If this process dies, keep the resources until their lease expires
    #[arg(long)]
    hold_on_death: bool,
    /// Do not start a watchdog
    #[arg(long)]
    no_watchdog: bool,
    /// The command for containers and process trees (default: sleep)
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// What is held, printed to stdout when all of it exists.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldJson {
    pub(crate) version: u32,
    pub(crate) pid: u32,
    pub(crate) watchdog: Option<u32>,
    pub(crate) run: RunId,
    pub(crate) held: Vec<HeldItemJson>,
}

/// One held resource.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldItemJson {
    pub(crate) resource: ResourceId,
    pub(crate) provider: ProviderName,
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) name: String,
}

/// The context in which resources are created.
struct HoldContext<'a> {
    app: &'a App,
    supervisor: &'a Supervisor,
    run: RunId,
    lease: Duration,
    /// Stops further creates when it is cancelled.
    stop: CancellationToken,
}

fn interrupted() -> Failure {
    Failure::new(Code::Interrupted, Exit::Interrupted, "interrupted before everything was created")
}

impl Hold {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let mut shutdown = Shutdown::listen()
            .map_err(|error| Failure::internal("cannot listen for signals", &error))?;
        let ledger = app.ledger().await?;
        let providers = app.providers(&[])?;
        release_orphans_first(app, &ledger, &providers).await.map_err(AcquireError::Ledger)?;
        let watchdog = if self.no_watchdog { None } else { Some(watchdog::start(app)?) };
        let supervisor = Supervisor::new(ledger, providers, &command_name())
            .map_err(|error| Failure::internal("cannot read /proc", &error))?
            .with_options(app.reap_options());
        let lease = self.lease.unwrap_or(app.config.lease.duration);
        let keep_alive = supervisor.keep_alive(lease / 3);
        let context = HoldContext {
            app,
            supervisor: &supervisor,
            run: RunId::new(),
            lease,
            stop: CancellationToken::new(),
        };
        let mut held = Vec::new();
        let created = self.create_or_stop(&context, &mut held, &mut shutdown).await;
        if created.is_ok() {
            print_held(app, watchdog, context.run, &held);
        }
        let interrupted = created.is_ok() && self.wait(&mut shutdown).await;
        // They are released below, all at once.
        held.into_iter().for_each(Held::forget);
        keep_alive.abort();
        let released = tokio::select! {
            released = release_all(app, &supervisor) => released,
            () = shutdown.requested() => exit_at_once(),
        };
        match (created, released) {
            (Ok(()), Ok(())) if interrupted => Ok(Exit::Interrupted),
            (Ok(()), Ok(())) => Ok(Exit::Done),
            (Ok(()), Err(released)) => Err(released.after_output()),
            (Err(created), Ok(())) => Err(created),
            (Err(created), Err(released)) => Err(created.and(&released)),
        }
    }

    /// Creates everything; after a signal it starts no more creates.
    ///
    /// Creates under way are still awaited: one that completes after the others are released would
    /// bring back what it uses.
    async fn create_or_stop(
        &self,
        context: &HoldContext<'_>,
        held: &mut Vec<Held>,
        shutdown: &mut Shutdown,
    ) -> Result<(), Failure> {
        let mut creating = pin!(self.create_all(context, held));
        tokio::select! {
            created = &mut creating => return created,
            () = shutdown.requested() => context.stop.cancel(),
        }
        tokio::select! {
            created = creating => created.and_then(|()| Err(interrupted())),
            () = shutdown.requested() => exit_at_once(),
        }
    }

    async fn create_all(
        &self,
        context: &HoldContext<'_>,
        held: &mut Vec<Held>,
    ) -> Result<(), Failure> {
        for _ in 0..self.count {
            let mut create = async |provider, spec| {
                if context.stop.is_cancelled() {
                    return Err(interrupted());
                }
                let mut request = Request::new(provider, spec);
                request.run = Some(context.run);
                request.lease = context.lease;
                if self.hold_on_death {
                    request.on_owner_death = OnOwnerDeath::Hold;
                }
                let created = context.supervisor.create(request).await.map_err(Failure::from)?;
                let (id, name) = (created.id.clone(), created.name.clone());
                held.push(created);
                Ok::<_, Failure>((id, name))
            };
            let mut directory = None;
            if self.directory {
                let (id, _) = create(creel_process::NAME, Spec::Directory).await?;
                directory = context.app.process().directory(&id);
            }
            if self.process {
                let spec = ProcessSpec {
                    command: self.command_or(&["sleep", "100000"]),
                    env: BTreeMap::new(),
                    directory,
                    limits: Limits::default(),
                };
                create(creel_process::NAME, Spec::Process(spec)).await?;
            }
            if self.sandbox {
                let spec = Spec::Sandbox(SandboxSpec::default());
                create(creel_daytona::NAME, spec).await?;
            }
            let mut network = None;
            if self.network {
                let spec = Spec::Network(NetworkSpec::default());
                network = Some(create(creel_docker::NAME, spec).await?.1);
            }
            let mut mounts = Vec::new();
            if self.volume {
                let spec = Spec::Volume(VolumeSpec::default());
                let volume = create(creel_docker::NAME, spec).await?.1;
                mounts.push(VolumeMount { volume, target: "/data".to_owned() });
            }
            if let Some(image) = &self.container {
                let spec = ContainerSpec {
                    image: image.clone(),
                    command: self.command_or(&["sleep", "100000"]),
                    network,
                    mounts,
                    ..ContainerSpec::default()
                };
                create(creel_docker::NAME, Spec::Container(spec)).await?;
            }
        }
        Ok(())
    }

    fn command_or(&self, default: &[&str]) -> Vec<String> {
        if self.command.is_empty() {
            default.iter().map(|&arg| arg.to_owned()).collect()
        } else {
            self.command.clone()
        }
    }

    /// Waits for the end of the time or for a signal; returns whether it was a signal.
    async fn wait(&self, shutdown: &mut Shutdown) -> bool {
        let time = async {
            match self.time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time => false,
            () = shutdown.requested() => true,
        }
    }
}

fn print_held(app: &App, watchdog: Option<u32>, run: RunId, held: &[Held]) {
    let held = held
        .iter()
        .map(|held| HeldItemJson {
            resource: held.resource,
            provider: held.provider,
            kind: held.kind,
            id: held.id.clone(),
            name: held.name.clone(),
        })
        .collect();
    let pid = std::process::id();
    app.printer.json(&HeldJson { version: 1, pid, watchdog, run, held });
}

async fn release_all(app: &App, supervisor: &Supervisor) -> Result<(), Failure> {
    let status = supervisor.release_all().await?;
    if status.released() > 0 {
        app.printer.say(&format!("released {}", status.released()));
    }
    // What a failed create left and cannot be released is quarantined before this begins.
    if status.is_settled() && status.quarantined == 0 {
        return Ok(());
    }
    let failure = Failure::new(Code::NotGone, Exit::Unverified, "something is not verified gone");
    Err(failure.hint("creel ledger lists it; creel reconcile tries again"))
}
