//! `creel dev daytona`: serves a Daytona API on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use creel_core::scope::{AcquireError, Supervisor};
use creel_daytona_server::{
    ApiVersion, Delays, RateLimits, SandboxHost, Scenario, Server, Settings, StartError,
};
use creel_docker::DockerBackend;
use creel_model::backend::Backend as _;
use serde::Serialize;

use crate::app::{App, command_name};
use crate::cli::orphans::release_orphans_first;
use crate::cli::watchdog;
use crate::output::{Exit, Failure};
use crate::shutdown::{Shutdown, exit_at_once};

/// Serve the Daytona API on this machine
///
/// Sandboxes are process trees on this machine, or containers with --docker.
/// Prints one line of JSON when it is ready, and serves until it receives a
/// signal. Then it releases all sandboxes; if it is killed, its watchdog releases
/// them. Process sandboxes are not a security boundary. Paths in them are relative
/// to the sandbox's own directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel dev daytona
  creel dev daytona --docker --image debian:12 --listen 127.0.0.1:3986
  creel dev daytona --fast --scenario faults.toml
  creel dev daytona --api 0.190 --snapshot my-image:1.2
  creel dev daytona --rate-limit sandbox-lifecycle=2500 --rate-limit authenticated=10000
  export DAYTONA_API_URL=… DAYTONA_API_KEY=… with what it prints")]
pub(crate) struct Daytona {
    /// Listen on this loopback address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Create containers instead of process trees
    #[arg(long)]
    docker: bool,
    /// Use this image for every container (default: the name of the snapshot)
    #[arg(long, value_name = "IMAGE", requires = "docker")]
    image: Option<String>,
    /// Only record sandboxes: start nothing, execute nothing
    #[arg(long, conflicts_with = "docker")]
    hollow: bool,
    /// Read faults, limits and initial sandboxes from a TOML file
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Limit requests per minute: `documented`, authenticated=N, sandbox-create=N,
    /// sandbox-lifecycle=N or failed-auth=N
    #[arg(long, value_name = "LIMIT")]
    rate_limit: Vec<String>,
    /// Change states immediately, without realistic delays
    #[arg(long)]
    fast: bool,
    /// Emulate this API version: `0.190` is the last open release, `compatible` adds the fields
    /// that newer SDKs require, `0.226` also adds times to live
    #[arg(long, value_name = "VERSION", default_value = "compatible")]
    api: ApiVersion,
    /// Add a snapshot, besides the default one
    #[arg(long, value_name = "NAME")]
    snapshot: Vec<String>,
    /// Add a region, besides us and eu
    #[arg(long, value_name = "NAME")]
    region: Vec<String>,
}

/// The connection details for a client, printed to stdout when the server is ready.
#[derive(Debug, Serialize)]
struct ReadyJson<'a> {
    version: u32,
    url: String,
    api_key: &'a str,
    admin_url: String,
    pid: u32,
}

impl Daytona {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let mut shutdown = Shutdown::listen()
            .map_err(|error| Failure::internal("cannot listen for signals", &error))?;
        if !self.listen.ip().is_loopback() {
            let error = StartError::NotLoopback(self.listen);
            return Err(Failure::usage(&error.to_string()).hint("listen on 127.0.0.1:0"));
        }
        let limits = self.limits()?;
        let scenario = self.scenario()?;
        let mut settings = Settings::new(self.backend(app).await?);
        settings.listen = self.listen;
        settings.rate_limits = limits;
        settings.scenario = scenario;
        settings.api = self.api;
        settings.snapshots.extend(self.snapshot.iter().cloned());
        settings.regions.extend(self.region.iter().cloned());
        if self.fast {
            settings.delays = Delays::fast();
        }
        let refused = |error: StartError| Failure::usage("cannot serve").because(&error);
        let running = Server::start(settings).await.map_err(refused)?;
        app.printer.json(&ReadyJson {
            version: 1,
            url: running.url(),
            api_key: running.api_key(),
            admin_url: running.admin_url(),
            pid: std::process::id(),
        });
        shutdown.requested().await;
        app.printer.say("releasing all sandboxes; press Ctrl-C again to stop at once");
        tokio::select! {
            () = running.stop() => {}
            () = shutdown.requested() => exit_at_once(),
        }
        Ok(Exit::Done)
    }

    async fn backend(&self, app: &App) -> Result<SandboxHost, Failure> {
        if self.hollow {
            return Ok(SandboxHost::Hollow);
        }
        let kind = if self.docker { creel_docker::NAME } else { creel_process::NAME };
        let providers = app.providers(&[kind])?;
        // Otherwise an engine that does not respond would fail only with the first sandbox.
        providers.get(kind)?.identity().await?;
        let ledger = app.ledger().await?;
        release_orphans_first(app, &ledger, &providers).await.map_err(AcquireError::Ledger)?;
        watchdog::start(app)?;
        let supervisor = Supervisor::new(ledger, providers, &command_name())
            .map_err(|error| Failure::internal("cannot read /proc", &error))?
            .with_options(app.reap_options());
        if !self.docker {
            return Ok(SandboxHost::Process { supervisor, provider: app.process() });
        }
        let endpoint = DockerBackend.endpoint(&app.backend_context())?;
        let endpoint = endpoint.ok_or_else(|| DockerBackend.not_configured())?;
        let host = endpoint.address.to_string();
        Ok(SandboxHost::Docker { supervisor, host, image: self.image.clone() })
    }

    fn scenario(&self) -> Result<Scenario, Failure> {
        let Some(path) = &self.scenario else { return Ok(Scenario::default()) };
        Scenario::read(path).map_err(|error| Failure::file("cannot use the scenario", &error))
    }

    fn limits(&self) -> Result<RateLimits, Failure> {
        let mut limits = RateLimits::default();
        for text in &self.rate_limit {
            if text == "documented" {
                limits = RateLimits::documented();
                continue;
            }
            let wrong = || {
                Failure::usage(&format!("`{text}` is not a rate limit"))
                    .hint("write documented, or a throttler and a number: sandbox-create=300")
            };
            let (throttler, number) = text.split_once('=').ok_or_else(wrong)?;
            let number = Some(number.parse().map_err(|_| wrong())?);
            match throttler {
                "authenticated" => limits.authenticated = number,
                "sandbox-create" => limits.sandbox_create = number,
                "sandbox-lifecycle" => limits.sandbox_lifecycle = number,
                "failed-auth" => limits.failed_auth = number,
                _ => return Err(wrong()),
            }
        }
        Ok(limits)
    }
}
