//! `creel dev hold`: take resources under supervision and hold them.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use creel_core::failure::Code;
use creel_core::id::{ResourceId, RunId};
use creel_core::ledger::OnOwnerDeath;
use creel_core::provider::{
    ContainerSpec, Kind, Limits, NetworkSpec, ProcessSpec, ProviderName, SandboxSpec, Spec,
    VolumeMount, VolumeSpec,
};
use creel_core::scope::{Held, Request, Supervisor, TakeError};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::app::{App, command_name};
use crate::cli::settle::settle_first;
use crate::cli::watchdog;
use crate::output::{Exit, Failure};
use crate::shutdown::{Shutdown, exit_at_once};

/// Take resources under supervision and hold them until told to stop
///
/// Makes what the flags say, prints one line of JSON when all of it is there,
/// and gives everything back when the time is over, on Ctrl-C, or, if this
/// process is killed, through its watchdog.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  creel dev hold --process --directory --for 10s
  creel dev hold --container debian:12 --network --volume
  creel dev hold --sandbox --lease 10m
  kill -9 the printed pid, and watch `creel ls --owned`")]
pub(crate) struct Hold {
    /// A container of this image, in the network and with the volume if these are asked for
    #[arg(long, value_name = "IMAGE")]
    pub(crate) container: Option<String>,
    /// A network
    #[arg(long)]
    pub(crate) network: bool,
    /// A volume
    #[arg(long)]
    pub(crate) volume: bool,
    /// A directory
    #[arg(long)]
    pub(crate) directory: bool,
    /// A process tree, in the directory if one is asked for
    #[arg(long)]
    pub(crate) process: bool,
    /// A Daytona sandbox of the default snapshot
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// So many of each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) count: u32,
    /// Give everything back after this time
    #[arg(long = "for", value_name = "TIME", value_parser = creel_core::duration::parse)]
    pub(crate) time: Option<Duration>,
    /// How long the resources may live without a renewal
    #[arg(long, value_name = "TIME", value_parser = creel_core::duration::parse)]
    lease: Option<Duration>,
    /// Keep the resources until their lease ends when this process dies
    #[arg(long)]
    hold_on_death: bool,
    /// Start no watchdog
    #[arg(long)]
    no_watchdog: bool,
    /// What containers and process trees run; sleeps by default
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// What is held, on stdout when all of it is there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldJson {
    pub(crate) version: u32,
    pub(crate) pid: u32,
    pub(crate) watchdog: Option<u32>,
    pub(crate) run: RunId,
    pub(crate) held: Vec<HeldItemJson>,
}

/// One thing that is held.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldItemJson {
    pub(crate) resource: ResourceId,
    pub(crate) provider: ProviderName,
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) name: String,
}

/// On whose behalf and for how long things are taken.
struct Terms<'a> {
    app: &'a App,
    supervisor: &'a Supervisor,
    run: RunId,
    lease: Duration,
    /// Take nothing more once this is cancelled.
    stop: CancellationToken,
}

fn interrupted() -> Failure {
    Failure::new(Code::Interrupted, Exit::Interrupted, "interrupted before everything was taken")
}

impl Hold {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let mut shutdown = Shutdown::listen()
            .map_err(|error| Failure::internal("cannot listen for signals", &error))?;
        let ledger = app.ledger().await?;
        let providers = app.providers(&[])?;
        settle_first(app, &ledger, &providers).await.map_err(TakeError::Ledger)?;
        let watchdog = if self.no_watchdog { None } else { Some(watchdog::start(app)?) };
        let supervisor = Supervisor::new(ledger, providers, &command_name())
            .map_err(|error| Failure::internal("cannot read /proc", &error))?
            .with_options(app.reap_options());
        let lease = self.lease.unwrap_or(app.config.lease.duration);
        let keep_alive = supervisor.keep_alive(lease / 3);
        let terms = Terms {
            app,
            supervisor: &supervisor,
            run: RunId::new(),
            lease,
            stop: CancellationToken::new(),
        };
        let mut held = Vec::new();
        let taken = self.take_or_stop(&terms, &mut held, &mut shutdown).await;
        if taken.is_ok() {
            print_held(app, watchdog, terms.run, &held);
        }
        let interrupted = taken.is_ok() && self.wait(&mut shutdown).await;
        // Given back below, all at once.
        held.into_iter().for_each(Held::forget);
        keep_alive.abort();
        tokio::select! {
            given = give_back(app, &supervisor) => given?,
            () = shutdown.asked() => exit_at_once(),
        }
        taken?;
        Ok(if interrupted { Exit::Interrupted } else { Exit::Done })
    }

    /// Takes everything; after a signal nothing more, but what is under way is waited for: a
    /// create that lands after the others are given back would bring back what it uses.
    async fn take_or_stop(
        &self,
        terms: &Terms<'_>,
        held: &mut Vec<Held>,
        shutdown: &mut Shutdown,
    ) -> Result<(), Failure> {
        let mut taking = pin!(self.take_all(terms, held));
        tokio::select! {
            taken = &mut taking => return taken,
            () = shutdown.asked() => terms.stop.cancel(),
        }
        tokio::select! {
            taken = taking => taken.and_then(|()| Err(interrupted())),
            () = shutdown.asked() => exit_at_once(),
        }
    }

    async fn take_all(&self, terms: &Terms<'_>, held: &mut Vec<Held>) -> Result<(), Failure> {
        for _ in 0..self.count {
            let mut take = async |provider, spec| {
                if terms.stop.is_cancelled() {
                    return Err(interrupted());
                }
                let mut request = Request::new(provider, spec);
                request.run = Some(terms.run);
                request.lease = terms.lease;
                if self.hold_on_death {
                    request.on_owner_death = OnOwnerDeath::Hold;
                }
                let taken = terms.supervisor.create(request).await.map_err(Failure::from)?;
                let (id, name) = (taken.id.clone(), taken.name.clone());
                held.push(taken);
                Ok::<_, Failure>((id, name))
            };
            let mut directory = None;
            if self.directory {
                let (id, _) = take(ProviderName::Process, Spec::Directory).await?;
                directory = terms.app.process().directory(&id);
            }
            if self.process {
                let spec = ProcessSpec {
                    command: self.command_or(&["sleep", "100000"]),
                    env: BTreeMap::new(),
                    directory,
                    limits: Limits::default(),
                };
                take(ProviderName::Process, Spec::Process(spec)).await?;
            }
            if self.sandbox {
                let spec = Spec::Sandbox(SandboxSpec::default());
                take(ProviderName::Daytona, spec).await?;
            }
            let mut network = None;
            if self.network {
                let spec = Spec::Network(NetworkSpec::default());
                network = Some(take(ProviderName::Docker, spec).await?.1);
            }
            let mut mounts = Vec::new();
            if self.volume {
                let spec = Spec::Volume(VolumeSpec::default());
                let volume = take(ProviderName::Docker, spec).await?.1;
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
                take(ProviderName::Docker, Spec::Container(spec)).await?;
            }
        }
        Ok(())
    }

    fn command_or(&self, default: &[&str]) -> Vec<String> {
        if self.command.is_empty() {
            default.iter().map(|&word| word.to_owned()).collect()
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
            () = shutdown.asked() => true,
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

async fn give_back(app: &App, supervisor: &Supervisor) -> Result<(), Failure> {
    let status = supervisor.release_all().await?;
    if status.released() > 0 {
        app.printer.say(&format!("gave back {}", status.released()));
    }
    if status.is_settled() {
        return Ok(());
    }
    let failure = Failure::new(Code::NotGone, Exit::Unverified, "something is not verified gone");
    Err(failure.hint("creel ledger lists it; creel reconcile tries again").after_answer())
}
