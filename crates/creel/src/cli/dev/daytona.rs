//! `creel dev daytona`: a Daytona API on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use creel_core::provider::ProviderName;
use creel_core::scope::{Supervisor, TakeError};
use creel_daytona_server::{
    ApiVersion, Backend, Delays, RateLimits, Scenario, Server, Settings, StartError,
};
use serde::Serialize;

use crate::app::{App, command_name};
use crate::cli::settle::settle_first;
use crate::cli::watchdog;
use crate::output::{Exit, Failure};
use crate::shutdown::{Shutdown, exit_at_once};

/// Serve the Daytona API on this machine
///
/// Sandboxes are process trees of this machine, or containers with --docker.
/// Prints one line of JSON when it is ready, serves until it is asked to end,
/// and gives every sandbox back; if it is killed, its watchdog does. Process
/// sandboxes are no security boundary, and paths in them begin at their own
/// directory.
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
    /// Where to listen; only this machine's own addresses
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Make containers instead of process trees
    #[arg(long)]
    docker: bool,
    /// The image of every container; the name of the snapshot without it
    #[arg(long, value_name = "IMAGE", requires = "docker")]
    image: Option<String>,
    /// Make records only: nothing runs, and nothing can be executed
    #[arg(long, conflicts_with = "docker")]
    hollow: bool,
    /// Faults, limits and sandboxes to start with, as TOML
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Requests a minute by throttler: `documented`, or authenticated=N, sandbox-create=N,
    /// sandbox-lifecycle=N, failed-auth=N
    #[arg(long, value_name = "LIMIT")]
    rate_limit: Vec<String>,
    /// Change states at once instead of after realistic delays
    #[arg(long)]
    fast: bool,
    /// Whose answers to give: `0.190` exactly as the last open release; `compatible` adds the
    /// fields that newer SDKs require; `0.226` adds times to live too
    #[arg(long, value_name = "VERSION", default_value = "compatible")]
    api: ApiVersion,
    /// A snapshot that creates may name, besides the default one
    #[arg(long, value_name = "NAME")]
    snapshot: Vec<String>,
    /// A region that creates may name, besides us and eu
    #[arg(long, value_name = "NAME")]
    region: Vec<String>,
}

/// What a client needs, on stdout when the server is ready.
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
        shutdown.asked().await;
        app.printer.say("giving back all sandboxes; press Ctrl-C again to stop at once");
        tokio::select! {
            () = running.stop() => {}
            () = shutdown.asked() => exit_at_once(),
        }
        Ok(Exit::Done)
    }

    async fn backend(&self, app: &App) -> Result<Backend, Failure> {
        if self.hollow {
            return Ok(Backend::Hollow);
        }
        let kind = if self.docker { ProviderName::Docker } else { ProviderName::Process };
        let providers = app.providers(&[kind])?;
        // An engine that does not answer would show only with the first sandbox.
        providers.get(kind)?.identity().await?;
        let ledger = app.ledger().await?;
        settle_first(app, &ledger, &providers).await.map_err(TakeError::Ledger)?;
        watchdog::start(app)?;
        let supervisor = Supervisor::new(ledger, providers, &command_name())
            .map_err(|error| Failure::internal("cannot read /proc", &error))?
            .with_options(app.reap_options());
        if !self.docker {
            return Ok(Backend::Process { supervisor, provider: app.process() });
        }
        let host = app.docker_endpoint()?.ok_or_else(crate::app::no_docker)?.address.to_string();
        Ok(Backend::Docker { supervisor, host, image: self.image.clone() })
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
