//! Daytona as a backend: its variables, settings, checks and hints.

use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use creel_model::backend::{
    Backend, BackendContext, BackendError, Connected, Diagnosis, InvalidSettings, SandboxDraft,
    Sections, Verdict,
};
use creel_model::duration;
use creel_model::failure::{Code, chain};
use creel_model::provider::{Kind, PresetRule, Provider, ProviderError, ProviderName};
use serde::Deserialize;

use super::NAME;
use super::access::{DaytonaEnvironment, DaytonaSettings, InvalidAccess};
use super::dotenv::DotEnv;
use super::provider::DaytonaProvider;
use super::sandbox::DaytonaSandboxes;
use super::state::{PRESET_RULES, STATES};

/// Daytona, before its key is read.
#[derive(Debug, Clone, Copy)]
pub struct DaytonaBackend;

/// The section `[daytona]` of the settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DaytonaSection {
    /// The address of the API; empty means the one from the environment.
    api_url: String,
    /// The region of new sandboxes; empty means the one from the environment.
    target: String,
    /// Maximum wait for a state of a sandbox.
    #[serde(deserialize_with = "duration::deserialize")]
    longest_wait: Duration,
}

impl From<InvalidAccess> for BackendError {
    fn from(error: InvalidAccess) -> Self {
        let code = match error {
            InvalidAccess::NoKey => Code::NotConfigured,
            _ => Code::Endpoint,
        };
        let hint = "check DAYTONA_API_KEY, DAYTONA_API_URL and: creel doctor";
        Self::Invalid { code, error: Box::new(error), hint }
    }
}

impl DaytonaBackend {
    /// Returns the address and the credentials, from the same sources as the official SDKs.
    ///
    /// # Errors
    ///
    /// Fails when the section of the settings is invalid.
    pub fn environment(
        self,
        context: &BackendContext,
    ) -> Result<DaytonaEnvironment, InvalidSettings> {
        let section: DaytonaSection = context.settings.read(NAME)?;
        let variables = &context.variables;
        let file = context.working_directory.as_deref().map(DotEnv::of).unwrap_or_default();
        let given = |name: &str| variables.text(name).or_else(|| file.get(name));
        let setting = |text: String| Some(text).filter(|text| !text.is_empty());
        let api_url =
            variables.text("DAYTONA_API_URL").or_else(|| variables.text("DAYTONA_SERVER_URL"));
        if file.get("DAYTONA_API_URL").is_some_and(|url| api_url.as_ref() != Some(&url)) {
            warn_about_ignored_address();
        }
        let proxy = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
        Ok(DaytonaEnvironment {
            api_key: given("DAYTONA_API_KEY").map(Into::into),
            api_url: api_url.or_else(|| setting(section.api_url)),
            target: given("DAYTONA_TARGET").or_else(|| setting(section.target)),
            jwt_token: given("DAYTONA_JWT_TOKEN").map(Into::into),
            organization_id: given("DAYTONA_ORGANIZATION_ID"),
            proxy: proxy.into_iter().find_map(|name| variables.text(name)),
            no_proxy: variables.text("NO_PROXY").or_else(|| variables.text("no_proxy")),
        })
    }

    /// Prepares the connection, if there is a key.
    ///
    /// # Errors
    ///
    /// Fails when the address or the key is invalid.
    pub fn open(self, context: &BackendContext) -> Result<Option<DaytonaProvider>, BackendError> {
        let environment = self.environment(context)?;
        if !environment.is_configured() {
            return Ok(None);
        }
        let section: DaytonaSection = context.settings.read(NAME)?;
        let settings = DaytonaSettings { longest_wait: section.longest_wait };
        Ok(Some(DaytonaProvider::connect(&environment, settings)?))
    }

    /// Returns a connection for callers that also use the provider itself.
    pub fn connected(self, provider: Arc<DaytonaProvider>) -> Connected {
        let sandboxes = Arc::new(DaytonaSandboxes::new(Arc::clone(&provider)));
        Connected { provider, sandboxes }
    }
}

/// Warns once per process.
fn warn_about_ignored_address() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "DAYTONA_API_URL in a .env file is ignored: a file in the working directory must not \
             decide where the key is sent"
        );
    });
}

#[async_trait]
impl Backend for DaytonaBackend {
    fn name(&self) -> ProviderName {
        NAME
    }

    fn states(&self) -> Vec<&'static str> {
        STATES.iter().map(|(name, _)| *name).collect()
    }

    fn preset_rules(&self) -> &'static [PresetRule] {
        PRESET_RULES
    }

    fn default_settings(&self) -> &'static str {
        include_str!("defaults.toml")
    }

    fn check_settings(&self, sections: &Sections) -> Result<(), InvalidSettings> {
        sections.read::<DaytonaSection>(NAME).map(|_| ())
    }

    fn connect(&self, context: &BackendContext) -> Result<Option<Connected>, BackendError> {
        Ok(self.open(context)?.map(|provider| self.connected(Arc::new(provider))))
    }

    fn not_configured(&self) -> BackendError {
        BackendError::NotConfigured {
            message: "no Daytona key is configured here: DAYTONA_API_KEY is not set",
            hint: "set DAYTONA_API_KEY (or DAYTONA_JWT_TOKEN and DAYTONA_ORGANIZATION_ID); creel \
                   dev daytona gives you a local one",
        }
    }

    async fn diagnose(&self, context: &BackendContext) -> Diagnosis {
        match self.open(context) {
            Ok(Some(provider)) => diagnose(&provider).await,
            Ok(None) => Diagnosis::works("not configured: DAYTONA_API_KEY is not set"),
            Err(error) => {
                let detail = match &error {
                    BackendError::Invalid { error, .. } => chain(&**error),
                    error => chain(error),
                };
                let hint = "check DAYTONA_API_KEY and DAYTONA_API_URL";
                Diagnosis::of(Verdict::Misconfigured, detail, hint)
            }
        }
    }

    fn isolation(&self) -> &'static str {
        "cloud sandbox"
    }

    fn sandbox_kinds(&self) -> &'static [Kind] {
        &[Kind::Sandbox]
    }

    fn check_sandbox(&self, draft: &mut SandboxDraft) {
        draft.refuse_if(draft.network.is_some(), "network", "Daytona sandboxes have their own");
        if draft.snapshot.is_some() {
            draft.ignore_image("a sandbox with a snapshot");
        }
        let limits = draft.limits.clone();
        if draft.image.is_none() {
            let sizes = [
                ("cpus", limits.cpus.is_some()),
                ("memory", limits.memory.is_some()),
                ("disk", draft.disk.is_some()),
            ];
            for (key, is_set) in sizes {
                let why = "a snapshot brings its own resources; only with `image` can it be chosen";
                draft.refuse_if(is_set, key, why);
            }
            return;
        }
        let is_fraction = limits.cpus.is_some_and(|cpus| cpus.fract() != 0.0);
        draft.refuse_if(is_fraction, "cpus", "Daytona counts whole processors");
        for (key, bytes) in [("memory", limits.memory), ("disk", draft.disk)] {
            let is_fraction = bytes.is_some_and(|bytes| !bytes.is_multiple_of(1 << 30));
            draft.refuse_if(is_fraction, key, "it must be whole GiB, such as 20g");
        }
    }
}

/// Checks the key, the API, and the address for commands and files.
async fn diagnose(provider: &DaytonaProvider) -> Diagnosis {
    let response = async {
        let missing = provider.key_rights().await?.missing();
        provider.probe().await?;
        Ok::<_, ProviderError>(missing)
    };
    match response.await {
        Ok(missing) if missing.is_empty() => {
            let address = provider.address();
            let found = format!("{address} answers, and the key may make and delete sandboxes");
            diagnose_toolbox(provider, &found).await
        }
        Ok(missing) => Diagnosis::of(
            Verdict::Broken,
            format!("the key lacks {}", missing.join(" and ")),
            "make a key with the scopes write:sandboxes and delete:sandboxes: without the second, \
             sandboxes cannot be deleted",
        ),
        Err(error) => {
            let check = "check DAYTONA_API_KEY and DAYTONA_API_URL";
            let hint = format!("{check}; creel explain {}", error.code());
            Diagnosis::of(Verdict::Broken, error.to_string(), hint)
        }
    }
}

/// Checks the address for commands and files, which the service itself reports.
async fn diagnose_toolbox(provider: &DaytonaProvider, found: &str) -> Diagnosis {
    match provider.probe_toolbox().await {
        Ok(Some(address)) => {
            Diagnosis::works(format!("{found}; its toolboxes answer at {address}"))
        }
        Ok(None) => Diagnosis::works(format!(
            "{found}; it does not say where its toolboxes are, and there is no sandbox to ask"
        )),
        Err(error) => Diagnosis::of(
            Verdict::Broken,
            format!("{found}, but its toolboxes cannot be reached: {}", error.message),
            "sandboxes can be made and deleted, but no command runs in them: let this machine \
             reach that address",
        ),
    }
}
