//! The context that commands share: settings, ledger, providers, and inventory.

use std::path::PathBuf;
use std::sync::Arc;

use creel_core::config::{Config, Layers};
use creel_core::plan::Caps;
use creel_core::reap::ReapOptions;
use creel_core::reconcile::Reconciler;
use creel_core::select::RecordIndex;
use creel_ledger::{Ledger, OwnerRecord};
use creel_model::backend::{BackendContext, Connected, HolderProgram};
use creel_model::provider::{ProviderError, ProviderName, Providers};
use creel_process::{ProcessBackend, ProcessProvider};
use creel_run::recovery::RunRecovery;
use creel_run::sandbox::Sandboxes;
use serde::Serialize;

use crate::backends::BACKENDS;
use crate::bridge;
use crate::environment::{self, Environment};
use crate::output::{Exit, Failure, Printer};

/// The hidden subcommand that starts this program as the root of a process tree.
pub(crate) const HOLDER_COMMAND: &str = "holder";

/// The context that commands share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) printer: Printer,
    pub(crate) environment: Environment,
    pub(crate) layers: Layers,
    pub(crate) config: Config,
}

/// A provider that could not be listed, for JSON.
#[derive(Debug, Serialize)]
pub(crate) struct UnreachableJson {
    provider: ProviderName,
    error: String,
}

/// Returns the providers that could not be listed, for JSON.
pub(crate) fn unreachable_json(unreachable: &[ProviderError]) -> Vec<UnreachableJson> {
    let shown = |error: &ProviderError| UnreachableJson {
        provider: error.provider,
        error: error.message.clone(),
    };
    unreachable.iter().map(shown).collect()
}

/// Returns the first provider that could not be listed as a failure of the whole command.
pub(crate) fn refusal(unreachable: &[ProviderError]) -> Option<Failure> {
    // Whatever the error is, the provider returned no list.
    unreachable.first().cloned().map(|error| Failure::from(error).exiting(Exit::Provider))
}

/// Returns the first provider that could not be listed, as a failure after the output.
pub(crate) fn unlisted(unreachable: &[ProviderError]) -> Option<Failure> {
    refusal(unreachable).map(Failure::after_output)
}

impl App {
    /// Reads the environment and the settings.
    pub(crate) fn start(printer: &Printer) -> Result<Self, Failure> {
        let environment = Environment::read()?;
        let layers = Layers::defaults(BACKENDS).with_file(&environment.home.join("config.toml"))?;
        let config = layers.config()?;
        Ok(Self { printer: printer.clone(), environment, layers, config })
    }

    /// Opens the ledger for writing, and creates it if it is missing.
    pub(crate) async fn ledger(&self) -> Result<Ledger, Failure> {
        let ledger = Ledger::open(&self.environment.home).await?;
        Ok(ledger.with_text_limit(self.config.ledger.run_output_limit))
    }

    /// Opens the ledger for a command that only reads; warns if it cannot be opened.
    pub(crate) async fn ledger_if_any(&self) -> Option<Ledger> {
        if !Ledger::is_begun(&self.environment.home) {
            return None;
        }
        match Ledger::open(&self.environment.home).await {
            Ok(ledger) => Some(ledger),
            Err(error) => {
                self.printer.warn(&format!("warning: owners are read from labels alone: {error}"));
                None
            }
        }
    }

    /// Returns an index based on labels alone, for a ledger that cannot be opened.
    ///
    /// Whatever carries the id of the ledger counts as its own.
    pub(crate) fn record_index_of_labels(&self) -> RecordIndex {
        match Ledger::recorded_id(&self.environment.home) {
            Some(ledger) => RecordIndex::new(ledger, Vec::new()),
            None => RecordIndex::default(),
        }
    }

    /// Returns what backends may know about this process.
    pub(crate) fn backend_context(&self) -> BackendContext {
        BackendContext {
            variables: environment::variables(),
            working_directory: self.environment.working_directory.clone(),
            settings: self.config.providers.clone(),
            sandboxes: Ledger::sandboxes(&self.environment.home),
            holder: HolderProgram {
                program: PathBuf::from("/proc/self/exe"),
                args: vec![HOLDER_COMMAND.to_owned()],
            },
        }
    }

    /// Connects to the requested providers, or to all that are configured.
    pub(crate) fn providers(&self, wanted: &[ProviderName]) -> Result<Providers, Failure> {
        Ok(providers_of(&self.connect(wanted, None)?))
    }

    /// As [`App::providers`], also for access to sandboxes.
    ///
    /// `shared` is a connection that the caller uses for itself too.
    pub(crate) fn connect(
        &self,
        wanted: &[ProviderName],
        shared: Option<Connected>,
    ) -> Result<Vec<Connected>, Failure> {
        let context = self.backend_context();
        let mut connections = Vec::new();
        for backend in BACKENDS.iter() {
            let name = backend.name();
            if !wanted.is_empty() && !wanted.contains(&name) {
                continue;
            }
            let shared = shared.as_ref().filter(|shared| shared.provider.name() == name);
            let connected = match shared {
                Some(shared) => Some(shared.clone()),
                None => backend.connect(&context)?,
            };
            match connected {
                Some(connected) => connections.push(connected),
                None if wanted.contains(&name) => return Err(backend.not_configured().into()),
                None => tracing::info!(provider = %name, "not configured here; going on without"),
            }
        }
        Ok(connections)
    }

    /// Returns the provider of processes and directories, which needs nothing installed.
    pub(crate) fn process(&self) -> ProcessProvider {
        ProcessBackend.open(&self.backend_context())
    }

    /// Returns the caps of one plan: as given, or from the settings.
    pub(crate) fn caps(&self, max: Option<usize>, max_percent: Option<u8>) -> Caps {
        let config = &self.config.release;
        Caps {
            max: max.or(Some(config.max).filter(|&max| max > 0)),
            max_percent: max_percent.or(Some(config.max_percent).filter(|&part| part < 100)),
        }
    }

    /// Returns the options of releases from the settings.
    pub(crate) fn reap_options(&self) -> ReapOptions {
        ReapOptions {
            retry: self.config.retry.clone(),
            protect: self.config.protect.clone(),
            concurrency: Some(self.config.release.concurrency).filter(|&number| number > 0),
            ..ReapOptions::default()
        }
    }

    /// Returns the access to the sandboxes of these providers, as far as they are configured.
    fn sandboxes(&self, providers: &Providers) -> Sandboxes {
        let context = self.backend_context();
        let is_used = |name| providers.iter().any(|provider| provider.name() == name);
        let used = BACKENDS.iter().filter(|backend| is_used(backend.name()));
        let connected = used.filter_map(|backend| backend.connect(&context).ok().flatten());
        let sandboxes = connected.map(|connected| connected.sandboxes).collect();
        Sandboxes::new(bridge::PROGRAM, sandboxes)
    }

    /// Creates a reconciler that acts as this process.
    pub(crate) fn reconciler(
        &self,
        ledger: &Ledger,
        providers: &Providers,
    ) -> Result<Reconciler, Failure> {
        let me = this_process()?;
        let recovery =
            RunRecovery::new(ledger.clone(), me.clone()).with_sandboxes(self.sandboxes(providers));
        Ok(Reconciler::new(ledger.clone(), providers.clone(), me)
            .with_run_closer(Arc::new(recovery))
            .with_intent_window(self.config.ledger.intent_window)
            .with_options(self.reap_options()))
    }
}

/// Describes this process as an owner, by its subcommand.
pub(crate) fn this_process() -> Result<OwnerRecord, Failure> {
    OwnerRecord::this_process(&command_name())
        .map_err(|error| Failure::internal("cannot read /proc", &error))
}

/// Returns the subcommand without its arguments, which may be private.
pub(crate) fn command_name() -> String {
    let args = std::env::args().skip(1).take_while(|arg| !arg.starts_with('-'));
    let args: Vec<String> = args.take(2).collect();
    match args.first().map(String::as_str) {
        Some("dev") => format!("creel {}", args.join(" ")),
        Some(first) => format!("creel {first}"),
        None => "creel".to_owned(),
    }
}

/// Returns the providers of some connections.
pub(crate) fn providers_of(connections: &[Connected]) -> Providers {
    Providers::new(connections.iter().map(|connected| Arc::clone(&connected.provider)).collect())
}
