//! `creel guard`: run a command, and give back whatever it created.

mod command;
mod events;
mod give_back;
mod pre_sweep;
mod unexplained;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use creel_core::guard::daytona::{DaytonaGate, GateListener, GateOrder};
use creel_core::guard::docker::{DockerGate, GateSocket, serve};
use creel_core::guard::{Claims, Policy, SocketPlace, Terms};
use creel_core::id::RunId;
use creel_core::ledger::{Ledger, OnOwnerDeath};
use creel_core::provider::daytona::DaytonaProvider;
use creel_core::provider::docker::DockerProvider;
use creel_core::provider::process::{CommandEnvironment, Cover};
use creel_core::provider::{ProviderName, Spec};
use creel_core::scope::{Held, Request, Supervisor, TakeError};
use creel_core::task;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::app::{App, command_name};
use crate::environment;
use crate::output::{Exit, Failure};
use crate::shutdown::Shutdown;

use super::settle::settle_first;
use super::watchdog;
use events::Events;
use pre_sweep::{Means, PreSweepArgs};

/// How long a thing may live when it is kept and nobody said how long.
const KEPT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Run a command; whatever it creates through Docker and Daytona is given back when it ends
///
/// The command gets a private Docker socket through DOCKER_HOST and, where
/// Daytona is configured, a private Daytona endpoint through DAYTONA_API_URL.
/// What it creates there is recorded before it exists, and released and
/// verified gone when the command ends, however it ends: containers, networks,
/// volumes, images, sandboxes, processes it left running, and its temporary
/// files. Sandboxes that would never stop or end do so when nobody is left to
/// renew them. If creel itself is killed its watchdog does it. The exit code
/// is the command's own; 125 means that creel failed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel guard -- harbor run -p tasks/hello -a oracle
  creel guard -- docker compose up --abort-on-container-exit
  creel guard --max-containers 20 --max-memory 4g --deny-privileged -- ./run-benchmark.sh
  creel guard --max-sandboxes 50 -- harbor run -d terminal-bench -e daytona
  creel guard --pre-sweep --older-than 1d -- harbor run -d terminal-bench
  creel guard --keep --ttl 2h -- pytest tests/         look at what is left, for two hours")]
pub(crate) struct Guard {
    /// Leave everything there when the command ends
    #[arg(long)]
    keep: bool,
    /// Give back what was kept when this time has passed
    #[arg(long, value_name = "TIME", requires = "keep", value_parser = creel_core::duration::parse)]
    ttl: Option<Duration>,
    /// Cover programs too that open /var/run/docker.sock whatever DOCKER_HOST says
    ///
    /// The command gets a mount namespace of its own, in which the guard's
    /// socket is in that place. Without root it also gets a user namespace, in
    /// which sudo does not work.
    #[arg(long)]
    cover_socket: bool,
    /// Leave the images there that the command built, pulled or loaded
    #[arg(long)]
    keep_images: bool,
    /// Refuse more containers than this at once
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_containers: Option<usize>,
    /// Give no container more memory than this: 512m, 4g
    #[arg(long, value_name = "SIZE", value_parser = creel_core::size::parse, help_heading = "Limits")]
    max_memory: Option<u64>,
    /// Refuse more sandboxes than this at once
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_sandboxes: Option<usize>,
    /// Refuse containers with the rights of the host
    #[arg(long, help_heading = "Limits")]
    deny_privileged: bool,
    /// Refuse directories of the host in containers
    #[arg(long, help_heading = "Limits")]
    deny_host_mounts: bool,
    /// Let the command create what cannot be given back: swarm objects, plugins, snapshots
    #[arg(long, help_heading = "Limits")]
    allow_untracked: bool,
    /// Write what is created and released as lines of JSON
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Keep the proof: what was there before, what was done, what is left
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    #[command(flatten)]
    before: PreSweepArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A guard that stands: everything the command will meet is in place.
struct Post {
    supervisor: Supervisor,
    claims: Claims,
    /// Holds the sockets and the temporary files.
    directory: PathBuf,
    /// Where in it the sockets are reached.
    place: SocketPlace,
    held: Vec<Held>,
    gates: Vec<(CancellationToken, JoinHandle<()>)>,
    environment: CommandEnvironment,
    /// The guard's socket in the engine's place, where that is wanted.
    cover: Option<Cover>,
}

/// Where programs look for the engine that do not ask the environment.
const USUAL_SOCKET: &str = "/var/run/docker.sock";

impl Guard {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        self.guard(app).await.map_err(|failure| failure.exiting(Exit::Guard))
    }

    async fn guard(self, app: &App) -> Result<Exit, Failure> {
        let mut shutdown = Shutdown::listen()
            .map_err(|error| Failure::internal("cannot listen for signals", &error))?;
        let events = Arc::new(Events::open(self.events.as_deref())?);
        let daytona = app.daytona()?.map(Arc::new);
        let providers = app.providers_with(&[], daytona.clone())?;
        let ledger = app.ledger().await?;
        settle_first(app, &ledger, &providers).await.map_err(TakeError::Ledger)?;
        let means = Means { app, ledger: &ledger, providers: &providers };
        self.before.sweep(means, &mut shutdown).await?;
        let baseline = app.list(&providers, &[]).await;
        if let Some(failure) = baseline.refusal() {
            return Err(failure.hint("creel guard needs every provider that is configured here"));
        }
        watchdog::start(app)?;
        let supervisor = Supervisor::new(ledger.clone(), providers.clone(), &command_name())
            .map_err(|error| Failure::internal("cannot read /proc", &error))?
            .with_options(app.reap_options());
        let lease = app.config.lease.duration;
        let keep_alive = supervisor.keep_alive(lease / 3);
        let mut post = self.stand(app, &ledger, supervisor, Arc::clone(&events)).await?;
        if let Some(provider) = daytona {
            self.open_daytona(app, &mut post, provider).await?;
        }
        let ended = command::run(&self.command, app, &mut post, &mut shutdown).await;
        post.close().await;
        keep_alive.abort();
        let kept = self.keep;
        let given = give_back::give_back(give_back::End {
            app,
            post,
            kept,
            images_stay: self.keep_images,
            events: &events,
            certificate: self.certificate.as_deref(),
            baseline,
            providers: &providers,
            ledger: &ledger,
        });
        let given = given.await;
        let code = ended?;
        given?;
        Ok(Exit::Command(code))
    }

    fn policy(&self) -> Policy {
        Policy {
            max_containers: self.max_containers,
            max_memory: self.max_memory,
            max_sandboxes: self.max_sandboxes,
            deny_privileged: self.deny_privileged,
            deny_host_mounts: self.deny_host_mounts,
            allow_untracked: self.allow_untracked,
            keep_images: self.keep_images,
        }
    }

    /// Takes the directory, and opens the gates.
    async fn stand(
        &self,
        app: &App,
        ledger: &Ledger,
        supervisor: Supervisor,
        events: Arc<Events>,
    ) -> Result<Post, Failure> {
        let run = RunId::new();
        let mut request = Request::new(ProviderName::Process, Spec::Directory);
        request.run = Some(run);
        let held = supervisor.create(request).await?;
        let directory = app.process().directory(&held.id).ok_or_else(no_directory)?;
        let temporary = directory.join("tmp");
        std::fs::create_dir(&temporary)
            .map_err(|error| Failure::file("cannot make a temporary directory", &error))?;
        let (on_owner_death, lease) = match (self.keep, self.ttl) {
            (true, ttl) => (OnOwnerDeath::Hold, ttl.unwrap_or(KEPT)),
            (false, _) => (OnOwnerDeath::Release, app.config.lease.duration),
        };
        let owner = supervisor.owner().clone();
        let terms = Terms { owner, run, lease, on_owner_death };
        let claims = Claims::new(ledger.clone(), terms, events);
        let place = SocketPlace::of(&directory)
            .map_err(|error| Failure::file("cannot open the guard's directory", &error))?;
        let mut environment = CommandEnvironment::default();
        environment.set.push(("TMPDIR".into(), temporary.into()));
        let mut post = Post {
            supervisor,
            claims,
            directory,
            place,
            held: vec![held],
            gates: Vec::new(),
            environment,
            cover: None,
        };
        if let Some(engine) = app.docker()? {
            post.open_docker(engine, self.policy()).await?;
            post.cover = self.cover(app, &post.directory);
        }
        Ok(post)
    }

    /// Says what is put over the engine's usual socket; without one there, nothing opens it.
    fn cover(&self, app: &App, directory: &Path) -> Option<Cover> {
        if !self.cover_socket {
            return None;
        }
        let place = PathBuf::from(USUAL_SOCKET);
        if !place.exists() {
            app.printer.say(&format!("there is no {USUAL_SOCKET} to cover"));
            return None;
        }
        Some(Cover { socket: directory.join("docker.sock"), place })
    }

    /// Opens the private endpoint in front of Daytona; the provider is the one that renews.
    async fn open_daytona(
        &self,
        app: &App,
        post: &mut Post,
        provider: Arc<DaytonaProvider>,
    ) -> Result<(), Failure> {
        // What is kept without a limit must not end by itself.
        let lease = if self.keep { self.ttl } else { Some(app.config.lease.duration) };
        let gate = DaytonaGate::new(GateOrder {
            environment: &app.daytona_environment(),
            provider,
            claims: post.claims.clone(),
            policy: self.policy(),
            lease,
        })?;
        let listener = GateListener::bind()
            .await
            .map_err(|error| Failure::internal("cannot open the guard's port", &error))?;
        let (stop, url) = (gate.stopper(), gate.url(&listener));
        post.gates.push((stop, task::background(Arc::new(gate).serve(listener))));
        let addresses =
            environment::daytona_addresses().into_iter().map(|name| (name, url.clone()));
        let direct = environment::reached_directly(&["127.0.0.1", "localhost"]);
        let set = addresses.chain(direct).map(|(name, value)| (name.into(), value.into()));
        post.environment.set.extend(set);
        Ok(())
    }
}

impl Post {
    /// Opens the private socket in front of an engine.
    async fn open_docker(&mut self, engine: DockerProvider, policy: Policy) -> Result<(), Failure> {
        raise_descriptor_limit();
        let path = self.place.path().join("docker.sock");
        let like = engine.socket().map(Path::to_owned);
        let socket = GateSocket::bind(&path, like.as_deref())
            .map_err(|error| Failure::file("cannot open the guard's socket", &error))?;
        // An engine that mounts it into a container looks for it from the outside.
        let real = self.directory.join("docker.sock");
        let gate = Arc::new(DockerGate::new(engine, self.claims.clone(), policy, real));
        let stop = gate.stopper();
        self.gates.push((stop, task::background(serve(gate, socket))));
        let host = format!("unix://{}", path.display());
        self.environment.set.push(("DOCKER_HOST".into(), host.into()));
        // With a socket these only make clients look for certificates that are not there; and a
        // context would lead around the guard.
        let misleading = ["DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT"];
        self.environment.removed.extend(misleading.map(OsString::from));
        Ok(())
    }

    /// Closes the gates; creates that were begun are on record afterwards.
    async fn close(&mut self) {
        for (stop, _) in &self.gates {
            stop.cancel();
        }
        for (_, served) in self.gates.drain(..) {
            // A panic of the gate has been reported by the panic hook.
            let _ = served.await;
        }
    }
}

/// Lets this process have as many descriptors as it may: every attached container takes six.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it the gate takes fewer connections at once, and says so.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn no_directory() -> Failure {
    Failure::internal("the guard's directory has vanished", &std::io::Error::other("not found"))
}
