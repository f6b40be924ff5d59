//! The context that commands share: settings, ledger, providers, and inventory.

use std::path::PathBuf;
use std::sync::Arc;

use creel_core::config::{Config, Layers};
use creel_core::plan::{Caps, ProviderIdentity};
use creel_core::reap::{ReapOptions, UnreadInventory};
use creel_core::reconcile::Reconciler;
use creel_core::select::{Dating, RecordIndex, Selector, date_images};
use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_docker::{DockerProvider, Endpoint};
use creel_ledger::{Ledger, OwnerRecord};
use creel_model::failure::Code;
use creel_model::provider::{Kind, Observed, Provider, ProviderError, ProviderName, Providers};
use creel_process::{HolderProgram, ProcessProvider, ProcessSettings};
use creel_run::recovery::RunRecovery;
use futures::future::join_all;
use jiff::Timestamp;
use serde::Serialize;

use crate::environment::Environment;
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

/// The resources that were listed in all requested providers.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Everything that was listed.
    pub(crate) inventory: Vec<Observed>,
    /// The errors of the providers that could not be listed.
    pub(crate) unreachable: Vec<ProviderError>,
}

/// A provider that could not be listed, for JSON.
#[derive(Debug, Serialize)]
pub(crate) struct UnreachableJson {
    provider: ProviderName,
    error: String,
}

impl Listing {
    /// Returns the providers that could not be listed, for JSON.
    pub(crate) fn unreachable_json(&self) -> Vec<UnreachableJson> {
        let shown = |error: &ProviderError| UnreachableJson {
            provider: error.provider,
            error: error.message.clone(),
        };
        self.unreachable.iter().map(shown).collect()
    }

    /// Returns the providers that could not be read, for a certificate.
    pub(crate) fn unread(&self) -> Vec<UnreadInventory> {
        self.unreachable.iter().map(UnreadInventory::from).collect()
    }

    /// Returns whether a provider could be listed.
    pub(crate) fn is_reachable(&self, provider: ProviderName) -> bool {
        self.unreachable.iter().all(|error| error.provider != provider)
    }

    /// Determines the age of those images for which it makes a difference.
    pub(crate) async fn date_images(
        &mut self,
        app: &App,
        selectors: &[Selector],
        record_index: &RecordIndex,
        providers: &Providers,
    ) -> Result<(), Failure> {
        let (protect, now) = (&app.config.protect, Timestamp::now());
        let dating = Dating { selectors, protect, record_index, providers, now };
        self.inventory = date_images(std::mem::take(&mut self.inventory), dating).await?;
        Ok(())
    }

    /// Returns the first provider that could not be listed as a failure of the whole command.
    pub(crate) fn refusal(&self) -> Option<Failure> {
        // Whatever the error is, the provider returned no list.
        self.unreachable.first().cloned().map(|error| Failure::from(error).exiting(Exit::Provider))
    }

    /// Returns the first provider that could not be listed, as a failure after the output.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.refusal().map(Failure::after_output)
    }
}

impl App {
    /// Reads the environment and the settings.
    pub(crate) fn start(printer: &Printer) -> Result<Self, Failure> {
        let environment = Environment::read()?;
        let layers = Layers::defaults().with_file(&environment.home.join("config.toml"))?;
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

    /// Returns an index of the ledger's records, to look up the owners of these objects.
    pub(crate) async fn record_index(
        ledger: Option<&Ledger>,
        inventory: &[Observed],
    ) -> Result<RecordIndex, Failure> {
        Ok(match ledger {
            Some(ledger) => RecordIndex::read(ledger, inventory).await?,
            None => RecordIndex::default(),
        })
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

    /// Connects to the requested providers, or to all that are configured.
    pub(crate) fn providers(&self, wanted: &[ProviderName]) -> Result<Providers, Failure> {
        let wants_daytona = wanted.is_empty() || wanted.contains(&ProviderName::Daytona);
        let daytona = if wants_daytona { self.daytona()?.map(Arc::new) } else { None };
        self.providers_with(wanted, daytona)
    }

    /// As [`App::providers`], with a connection to Daytona that the caller shares.
    pub(crate) fn providers_with(
        &self,
        wanted: &[ProviderName],
        daytona: Option<Arc<DaytonaProvider>>,
    ) -> Result<Providers, Failure> {
        let is_wanted = |name| wanted.is_empty() || wanted.contains(&name);
        let mut providers: Vec<Arc<dyn Provider>> = Vec::new();
        if is_wanted(ProviderName::Docker) {
            match self.docker()? {
                Some(docker) => providers.push(Arc::new(docker)),
                None if wanted.contains(&ProviderName::Docker) => return Err(no_docker()),
                None => tracing::info!("no Docker Engine is configured here; going on without"),
            }
        }
        if is_wanted(ProviderName::Daytona) {
            match daytona {
                Some(daytona) => providers.push(daytona),
                None if wanted.contains(&ProviderName::Daytona) => return Err(no_daytona()),
                None => tracing::debug!("no Daytona key is configured here; going on without"),
            }
        }
        if is_wanted(ProviderName::Process) {
            providers.push(Arc::new(self.process()));
        }
        Ok(Providers::new(providers))
    }

    /// Resolves the Docker Engine to use, if there is one.
    pub(crate) fn docker_endpoint(&self) -> Result<Option<Endpoint>, Failure> {
        let environment = &self.environment.docker;
        let host = &self.config.docker.host;
        let is_explicit = environment.docker_host.is_some() || environment.docker_context.is_some();
        if !host.is_empty() && !is_explicit {
            return Ok(Some(Endpoint::explicit(host)?));
        }
        Ok(environment.resolve()?)
    }

    /// Prepares the connection to the Docker Engine to use, if there is one.
    pub(crate) fn docker(&self) -> Result<Option<DockerProvider>, Failure> {
        let Some(endpoint) = self.docker_endpoint()? else { return Ok(None) };
        let provider = DockerProvider::connect(endpoint)?;
        Ok(Some(provider.with_read_timeout(self.config.docker.timeout)))
    }

    /// Returns the address of Daytona and the credentials for it.
    pub(crate) fn daytona_environment(&self) -> DaytonaEnvironment {
        let mut environment = self.environment.daytona.clone();
        let config = &self.config.daytona;
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        environment.api_url = environment.api_url.or_else(|| given(&config.api_url));
        environment.target = environment.target.or_else(|| given(&config.target));
        environment
    }

    /// Prepares the connection to Daytona, if there is a key.
    pub(crate) fn daytona(&self) -> Result<Option<DaytonaProvider>, Failure> {
        let environment = self.daytona_environment();
        if !environment.is_configured() {
            return Ok(None);
        }
        let settings = DaytonaSettings { longest_wait: self.config.daytona.longest_wait };
        Ok(Some(DaytonaProvider::connect(&environment, settings)?))
    }

    /// Returns the provider of processes and directories, which needs nothing installed.
    pub(crate) fn process(&self) -> ProcessProvider {
        ProcessProvider::new(ProcessSettings {
            root: Ledger::sandboxes(&self.environment.home),
            holder: HolderProgram {
                program: PathBuf::from("/proc/self/exe"),
                args: vec![HOLDER_COMMAND.to_owned()],
            },
            containment: None,
        })
    }

    /// Lists these kinds in all providers concurrently; an empty slice means all kinds.
    pub(crate) async fn list(&self, providers: &Providers, kinds: &[Kind]) -> Listing {
        let lists = providers.iter().map(|provider| async move {
            let all = provider.kinds();
            let wanted: Vec<Kind> =
                all.iter().copied().filter(|k| kinds.is_empty() || kinds.contains(k)).collect();
            if wanted.is_empty() { Ok(Vec::new()) } else { provider.list(&wanted).await }
        });
        let mut listing = Listing::default();
        for listed in join_all(lists).await {
            match listed {
                Ok(mut seen) => listing.inventory.append(&mut seen),
                Err(error) => listing.unreachable.push(error),
            }
        }
        listing
    }

    /// Requests the identities of these providers.
    pub(crate) async fn identities(
        &self,
        providers: &Providers,
        wanted: impl Fn(ProviderName) -> bool,
    ) -> Result<Vec<ProviderIdentity>, Failure> {
        let wanted = providers.iter().filter(|provider| wanted(provider.name()));
        let requests = wanted.map(|provider| async move {
            let identity = provider.identity().await?;
            Ok(ProviderIdentity {
                provider: provider.name(),
                identity,
                address: provider.address(),
            })
        });
        join_all(requests)
            .await
            .into_iter()
            .collect::<Result<_, ProviderError>>()
            .map_err(Into::into)
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

    /// Creates a reconciler that acts as this process.
    pub(crate) fn reconciler(
        &self,
        ledger: &Ledger,
        providers: &Providers,
    ) -> Result<Reconciler, Failure> {
        let me = this_process()?;
        let recovery = RunRecovery::new(ledger.clone(), me.clone());
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

fn no_daytona() -> Failure {
    let message = "no Daytona key is configured here: DAYTONA_API_KEY is not set";
    Failure::new(Code::NotConfigured, Exit::Provider, message).hint(
        "set DAYTONA_API_KEY (or DAYTONA_JWT_TOKEN and DAYTONA_ORGANIZATION_ID); \
         creel dev daytona gives you a local one",
    )
}

/// Returns the failure for a missing engine, with a hint.
pub(crate) fn no_docker() -> Failure {
    Failure::new(Code::NotConfigured, Exit::Provider, "no Docker Engine is configured here").hint(
        "set DOCKER_HOST, choose a context, or start an engine; creel doctor shows what was tried",
    )
}

/// Returns every state that some provider reports.
pub(crate) fn known_states() -> Vec<&'static str> {
    let daytona = creel_daytona::STATES.iter().map(|(name, _)| *name);
    creel_docker::STATES.iter().chain(creel_process::STATES).copied().chain(daytona).collect()
}
