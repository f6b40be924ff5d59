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

use async_trait::async_trait;
use creel_core::scope::{AcquireError, Held, Request, Supervisor};
use creel_ledger::{OnOwnerDeath, Record};
use creel_model::id::RunId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{ErrorClass, Kind, ProviderError, ProviderName};
pub use creel_model::sandbox::{
    BridgeProgram, CREEL_DIRECTORY, Command, Finished, OutputListener, Sandbox, SandboxOptions,
    SandboxStatus,
};
use creel_model::sandbox::{
    PartMaker, PartNotMade, SandboxError, SandboxPart, SandboxParts, SandboxProvider, no_sandbox,
    program_name,
};
use secrecy::SecretString;
use tracing::warn;

/// The plan of a sandbox to create.
#[derive(Debug, Clone)]
pub struct SandboxPlan {
    /// The run it is for.
    pub run: RunId,
    /// The provider that creates it.
    pub provider: ProviderName,
    /// What it is like.
    pub options: SandboxOptions,
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
    providers: Vec<Arc<dyn SandboxProvider>>,
}

impl Sandboxes {
    /// Makes sandboxes with these providers, which must be those of the supervisor.
    pub fn new(program: BridgeProgram, providers: Vec<Arc<dyn SandboxProvider>>) -> Self {
        Self { program, providers }
    }

    /// Returns the image of a planned sandbox if its provider does not have it yet.
    ///
    /// # Errors
    ///
    /// Fails when the provider does not answer.
    pub async fn missing_image(&self, plan: &SandboxPlan) -> Result<Option<String>, ProviderError> {
        self.provider(plan.provider)?.missing_image(&plan.options).await
    }

    /// Pulls the image of a planned sandbox from its registry. It stays for the next sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the provider or the registry refuses, or does not answer.
    pub async fn fetch_image(&self, plan: &SandboxPlan, image: &str) -> Result<(), ProviderError> {
        self.provider(plan.provider)?.fetch_image(image).await
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
        let provider = self.provider(plan.provider)?;
        let program = program_name(&self.program);
        let mut parts = RecordedParts { supervisor, plan, program, held: Vec::new(), error: None };
        let created = provider.create(&plan.options, &self.program, &mut parts).await;
        let proven = match created {
            Ok(sandbox) => sandbox.probe().await.map(|()| sandbox).map_err(SandboxError::from),
            Err(error) => Err(error),
        };
        match proven {
            Ok(sandbox) => Ok(CreatedSandbox { sandbox, held: parts.held }),
            Err(error) => {
                let error = parts.error.take().unwrap_or_else(|| cause_of(plan.provider, error));
                release_all(supervisor, parts.held).await;
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
        let parts = parts_of(records)?;
        self.provider(parts.provider)?.open(parts, &self.program, env).await
    }

    fn provider(&self, name: ProviderName) -> Result<&dyn SandboxProvider, ProviderError> {
        let found = self.providers.iter().find(|provider| provider.name() == name);
        found.map(AsRef::as_ref).ok_or_else(|| ProviderError {
            class: ErrorClass::Unreachable,
            ..no_sandbox(name, "it is not configured here")
        })
    }
}

/// Creates the parts of one sandbox through the supervisor.
struct RecordedParts<'a> {
    supervisor: &'a Supervisor,
    plan: &'a SandboxPlan,
    /// The name of the bridge program.
    program: String,
    /// The parts, in the order in which they must be released.
    held: Vec<Held>,
    /// Why the last part could not be made.
    error: Option<AcquireError>,
}

#[async_trait]
impl PartMaker for RecordedParts<'_> {
    async fn make(&mut self, part: SandboxPart) -> Result<String, PartNotMade> {
        let mut labels = Labels::from([(labels::BRIDGE, self.program.as_str())]);
        if let Some(lease_file) = &part.lease_file {
            labels.insert(labels::LEASE_FILE, lease_file);
        }
        let request = Request {
            labels,
            run: Some(self.plan.run),
            on_owner_death: self.plan.on_owner_death,
            lease: self.plan.options.lease,
            ..Request::new(self.plan.provider, part.spec)
        };
        match self.supervisor.create(request).await {
            Ok(held) => {
                let id = held.id.clone();
                self.held.insert(0, held);
                Ok(id)
            }
            Err(error) => {
                self.error = Some(error);
                Err(PartNotMade)
            }
        }
    }
}

fn cause_of(provider: ProviderName, error: SandboxError) -> AcquireError {
    match error {
        SandboxError::Provider(error) => error.into(),
        SandboxError::Part(PartNotMade) => no_sandbox(provider, "a part was not made").into(),
    }
}

/// Finds the sandbox among records: the newest one if there are several.
fn parts_of(records: &[Record]) -> Result<SandboxParts, ProviderError> {
    let is_body = |kind| matches!(kind, Kind::Process | Kind::Container | Kind::Sandbox);
    let newest = |wanted: &dyn Fn(Kind) -> bool| {
        let found = records.iter().filter(|record| wanted(record.kind));
        found
            .filter(|record| record.labels.contains_key(labels::BRIDGE))
            .filter_map(|record| Some((record, record.state.object()?.to_owned())))
            .max_by_key(|(record, _)| record.id)
    };
    let provider = records.last().map_or(ProviderName::UNKNOWN, |record| record.provider);
    let missing = || no_sandbox(provider, "there is no sandbox on record");
    let (body, object) = newest(&is_body).ok_or_else(missing)?;
    Ok(SandboxParts {
        provider: body.provider,
        object,
        directory: newest(&|kind| kind == Kind::Directory).map(|(_, object)| object),
        program: body.labels.get(labels::BRIDGE).unwrap_or_default().to_owned(),
    })
}

/// Releases what a failed create took.
async fn release_all(supervisor: &Supervisor, held: Vec<Held>) {
    for one in held {
        if let Err(error) = supervisor.release(one).await {
            warn!(%error, "a part of a failed sandbox is left to the next reconcile");
        }
    }
}
