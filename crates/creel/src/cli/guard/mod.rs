//! `creel guard`: runs a command, and releases whatever it created.

mod command;
mod events;
mod pre_sweep;
mod release;
mod unexplained;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use creel_core::pipeline::Listing;
use creel_core::scope::{AcquireError, Held, Request, Supervisor};
use creel_core::teardown::TeardownScope;
use creel_daytona::{DaytonaBackend, DaytonaProvider};
use creel_docker::{DockerBackend, DockerProvider};
use creel_guard::daytona::{DaytonaGate, GateConfig, GateListener};
use creel_guard::docker::{DockerGate, GateSocket, serve};
use creel_guard::{ClaimDefaults, Claims, Policy, SocketPlace};
use creel_ledger::{Ledger, OnOwnerDeath};
use creel_model::backend::BackendError;
use creel_model::id::RunId;
use creel_model::provider::Spec;
use creel_model::task;
use creel_process::{CommandEnvironment, SocketCover};
use events::EventFile;
use pre_sweep::{PreSweepArgs, SweepContext};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::app::{App, command_name, providers_of, refusal};
use crate::environment;
use crate::output::{Exit, Failure};
use crate::shutdown::Shutdown;

use super::orphans::release_orphans_first;
use super::watchdog;

/// How long a resource may live when it is kept without a time limit.
const KEPT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Run a command and release everything it created in Docker and Daytona
///
/// The command gets a private Docker socket through DOCKER_HOST and, if Daytona
/// is configured, a private Daytona endpoint through DAYTONA_API_URL. Everything
/// it creates there is recorded first. When the command ends, for whatever
/// reason, creel releases its containers, networks, volumes, images, sandboxes,
/// leftover processes and temporary files, and verifies that they are gone. If
/// creel itself is killed, its watchdog does this. A sandbox without a time limit
/// gets one, which creel renews while the command runs. The exit code is that of
/// the command; 125 means that creel failed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel guard -- harbor run -p tasks/hello -a oracle
  creel guard -- docker compose up --abort-on-container-exit
  creel guard --max-containers 20 --max-memory 4g --deny-privileged -- ./run-benchmark.sh
  creel guard --max-sandboxes 50 -- harbor run -d terminal-bench -e daytona
  creel guard --pre-sweep --older-than 1d -- harbor run -d terminal-bench
  creel guard --keep --ttl 2h -- pytest tests/         inspect what is left, for two hours")]
pub(crate) struct Guard {
    /// Keep everything when the command ends
    #[arg(long)]
    keep: bool,
    /// Release what was kept after this time
    #[arg(long, value_name = "TIME", requires = "keep", value_parser = creel_model::duration::parse)]
    ttl: Option<Duration>,
    /// Also guard programs that open /var/run/docker.sock and ignore DOCKER_HOST
    ///
    /// The command runs in its own mount namespace, in which the guard's socket
    /// replaces /var/run/docker.sock. Without root it also runs in a user
    /// namespace, in which sudo does not work.
    #[arg(long)]
    cover_socket: bool,
    /// Keep the images that the command built, pulled or loaded
    #[arg(long)]
    keep_images: bool,
    /// Allow at most this many containers at once
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_containers: Option<usize>,
    /// Limit the memory of each container: 512m, 4g
    #[arg(long, value_name = "SIZE", value_parser = creel_model::size::parse, help_heading = "Limits")]
    max_memory: Option<u64>,
    /// Allow at most this many sandboxes at once
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_sandboxes: Option<usize>,
    /// Refuse privileged containers
    #[arg(long, help_heading = "Limits")]
    deny_privileged: bool,
    /// Refuse host directories mounted into containers
    #[arg(long, help_heading = "Limits")]
    deny_host_mounts: bool,
    /// Allow creating what creel cannot release: swarm objects, plugins, snapshots
    #[arg(long, help_heading = "Limits")]
    allow_untracked: bool,
    /// Write creates and releases to a file, as lines of JSON
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Write a leak certificate: the inventory before, the actions, what is left
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    #[command(flatten)]
    before: PreSweepArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A guard that is set up: everything the command needs is in place.
struct GuardSetup {
    supervisor: Supervisor,
    claims: Claims,
    /// Holds the sockets and the temporary files.
    directory: PathBuf,
    /// The path through which the sockets in it are reached.
    place: SocketPlace,
    held: Vec<Held>,
    gates: Vec<(CancellationToken, JoinHandle<()>)>,
    environment: CommandEnvironment,
    /// Covers the engine's socket with the guard's, if requested.
    cover: Option<SocketCover>,
}

/// The socket path used by programs that ignore the environment.
const USUAL_SOCKET: &str = "/var/run/docker.sock";

impl Guard {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        self.guard(app).await.map_err(|failure| failure.exiting(Exit::Guard))
    }

    async fn guard(self, app: &App) -> Result<Exit, Failure> {
        let mut shutdown = Shutdown::listen()
            .map_err(|error| Failure::internal("cannot listen for signals", &error))?;
        let events = Arc::new(EventFile::open(self.events.as_deref())?);
        let daytona = DaytonaBackend.open(&app.backend_context())?.map(Arc::new);
        let shared = daytona.clone().map(|daytona| DaytonaBackend.connected(daytona));
        let providers = providers_of(&app.connect(&[], shared)?);
        let ledger = app.ledger().await?;
        release_orphans_first(app, &ledger, &providers).await.map_err(AcquireError::Ledger)?;
        let context = SweepContext { app, ledger: &ledger, providers: &providers };
        self.before.sweep(context, &mut shutdown).await?;
        let baseline = Listing::read(&providers, &[]).await;
        if let Some(failure) = refusal(&baseline.unreachable) {
            return Err(failure.hint("creel guard needs every provider that is configured here"));
        }
        watchdog::start(app)?;
        let supervisor = Supervisor::new(ledger.clone(), providers.clone(), &command_name())
            .map_err(|error| Failure::internal("cannot read /proc", &error))?
            .with_options(app.reap_options());
        let lease = app.config.lease.duration;
        let keep_alive = supervisor.keep_alive(lease / 3);
        let mut setup = self.set_up(app, &ledger, supervisor, Arc::clone(&events)).await?;
        if let Some(provider) = daytona {
            self.open_daytona(app, &mut setup, provider).await?;
        }
        let ended = command::run(&self.command, app, &mut setup, &mut shutdown).await;
        setup.close().await;
        keep_alive.abort();
        let released = release::release(release::ReleaseContext {
            app,
            setup,
            scope: if self.keep { TeardownScope::OwnOnly } else { TeardownScope::All },
            images_stay: self.keep_images,
            events: &events,
            certificate: self.certificate.as_deref(),
            baseline,
            providers: &providers,
            ledger: &ledger,
        });
        let released = released.await;
        let code = ended?;
        released?;
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

    /// Creates the directory, and opens the gates.
    async fn set_up(
        &self,
        app: &App,
        ledger: &Ledger,
        supervisor: Supervisor,
        events: Arc<EventFile>,
    ) -> Result<GuardSetup, Failure> {
        let run = RunId::new();
        let mut request = Request::new(creel_process::NAME, Spec::Directory);
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
        let terms = ClaimDefaults { owner, run, lease, on_owner_death };
        let claims = Claims::new(ledger.clone(), terms, events);
        let place = SocketPlace::of(&directory)
            .map_err(|error| Failure::file("cannot open the guard's directory", &error))?;
        let mut environment = CommandEnvironment::default();
        environment.set.push(("TMPDIR".into(), temporary.into()));
        let mut setup = GuardSetup {
            supervisor,
            claims,
            directory,
            place,
            held: vec![held],
            gates: Vec::new(),
            environment,
            cover: None,
        };
        if let Some(engine) = DockerBackend.open(&app.backend_context())? {
            setup.open_docker(engine, self.policy()).await?;
            setup.cover = self.cover(app, &setup.directory);
        }
        Ok(setup)
    }

    /// Returns the cover of the engine's usual socket, if requested. Without a socket there, there
    /// is nothing to cover.
    fn cover(&self, app: &App, directory: &Path) -> Option<SocketCover> {
        if !self.cover_socket {
            return None;
        }
        let place = PathBuf::from(USUAL_SOCKET);
        if !place.exists() {
            app.printer.say(&format!("there is no {USUAL_SOCKET} to cover"));
            return None;
        }
        Some(SocketCover { socket: directory.join("docker.sock"), place })
    }

    /// Opens the private endpoint in front of Daytona. `provider` also renews the sandboxes.
    async fn open_daytona(
        &self,
        app: &App,
        setup: &mut GuardSetup,
        provider: Arc<DaytonaProvider>,
    ) -> Result<(), Failure> {
        // What is kept without a limit must not end by itself.
        let lease = if self.keep { self.ttl } else { Some(app.config.lease.duration) };
        let environment = DaytonaBackend.environment(&app.backend_context());
        let gate = DaytonaGate::new(GateConfig {
            environment: &environment.map_err(BackendError::from)?,
            provider,
            claims: setup.claims.clone(),
            policy: self.policy(),
            lease,
        });
        let gate = gate.map_err(BackendError::from)?;
        let listener = GateListener::bind()
            .await
            .map_err(|error| Failure::internal("cannot open the guard's port", &error))?;
        let (stop, url) = (gate.stopper(), gate.url(&listener));
        setup.gates.push((stop, task::background(Arc::new(gate).serve(listener))));
        let addresses =
            environment::daytona_addresses().into_iter().map(|name| (name, url.clone()));
        let direct = environment::reached_directly(&["127.0.0.1", "localhost"]);
        let set = addresses.chain(direct).map(|(name, value)| (name.into(), value.into()));
        setup.environment.set.extend(set);
        Ok(())
    }
}

impl GuardSetup {
    /// Opens the private socket in front of an engine.
    async fn open_docker(&mut self, engine: DockerProvider, policy: Policy) -> Result<(), Failure> {
        raise_descriptor_limit();
        let path = self.place.path().join("docker.sock");
        let like = engine.socket().map(Path::to_owned);
        let socket = GateSocket::bind(&path, like.as_deref())
            .map_err(|error| Failure::file("cannot open the guard's socket", &error))?;
        // An engine that mounts the socket into a container uses its real path.
        let real = self.directory.join("docker.sock");
        let gate = Arc::new(DockerGate::new(engine, self.claims.clone(), policy, real));
        let stop = gate.stopper();
        self.gates.push((stop, task::background(serve(gate, socket))));
        let host = format!("unix://{}", path.display());
        self.environment.set.push(("DOCKER_HOST".into(), host.into()));
        // With a socket, the TLS variables only make clients search for missing certificates. A
        // context would bypass the guard.
        let misleading = ["DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT"];
        self.environment.removed.extend(misleading.map(OsString::from));
        Ok(())
    }

    /// Closes the gates. Creates that were begun are recorded afterwards.
    async fn close(&mut self) {
        for (stop, _) in &self.gates {
            stop.cancel();
        }
        for (_, served) in self.gates.drain(..) {
            // The panic hook has reported a panic of the gate.
            let _ = served.await;
        }
    }
}

/// Raises the descriptor limit of this process to its maximum. Every attached container takes six.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it the gate accepts fewer connections at once, and reports so.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn no_directory() -> Failure {
    Failure::internal("the guard's directory has vanished", &std::io::Error::other("not found"))
}
