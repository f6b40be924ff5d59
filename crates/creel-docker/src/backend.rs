//! Docker as a backend: its variables, settings, checks and hints.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use creel_model::backend::{
    Backend, BackendContext, BackendError, Connected, Diagnosis, InvalidSettings, SandboxDraft,
    Sections, Variables, Verdict,
};
use creel_model::duration;
use creel_model::failure::{Code, chain};
use creel_model::provider::{Kind, PresetRule, Provider, ProviderError, ProviderName};
use serde::Deserialize;

use super::NAME;
use super::endpoint::{DockerEnvironment, Endpoint, EndpointError};
use super::provider::DockerProvider;
use super::sandbox::DockerSandboxes;
use super::states::{PRESET_RULES, STATES};

/// Docker, before an engine is chosen.
#[derive(Debug, Clone, Copy)]
pub struct DockerBackend;

/// The section `[docker]` of the settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DockerSection {
    /// The address of the engine; empty means the one from the environment.
    host: String,
    /// How long a list or an inspect may take before the engine counts as unreachable.
    #[serde(deserialize_with = "duration::deserialize")]
    timeout: Duration,
}

impl From<EndpointError> for BackendError {
    fn from(error: EndpointError) -> Self {
        Self::Invalid {
            code: Code::Endpoint,
            error: Box::new(error),
            hint: "check DOCKER_HOST, DOCKER_CONTEXT and: docker context ls",
        }
    }
}

impl DockerEnvironment {
    /// Reads the variables that select an engine.
    pub fn read(variables: &Variables) -> Self {
        Self {
            docker_host: variables.text("DOCKER_HOST"),
            docker_context: variables.text("DOCKER_CONTEXT"),
            docker_tls_verify: variables.text("DOCKER_TLS_VERIFY"),
            docker_cert_path: variables.path("DOCKER_CERT_PATH"),
            docker_config: variables.path("DOCKER_CONFIG"),
            home: variables.path("HOME"),
            xdg_runtime_dir: variables.path("XDG_RUNTIME_DIR"),
        }
    }
}

impl DockerBackend {
    /// Resolves the engine to use, if there is one.
    ///
    /// # Errors
    ///
    /// Fails when the environment or the settings select an engine in an invalid way.
    pub fn endpoint(self, context: &BackendContext) -> Result<Option<Endpoint>, BackendError> {
        let environment = DockerEnvironment::read(&context.variables);
        let section: DockerSection = context.settings.read(NAME)?;
        let is_explicit = environment.docker_host.is_some() || environment.docker_context.is_some();
        if !section.host.is_empty() && !is_explicit {
            return Ok(Some(Endpoint::explicit(&section.host)?));
        }
        Ok(environment.resolve()?)
    }

    /// Prepares the connection to the engine to use, if there is one.
    ///
    /// # Errors
    ///
    /// Fails as [`DockerBackend::endpoint`] does, or when certificates cannot be read.
    pub fn open(self, context: &BackendContext) -> Result<Option<DockerProvider>, BackendError> {
        let Some(endpoint) = self.endpoint(context)? else { return Ok(None) };
        let section: DockerSection = context.settings.read(NAME)?;
        Ok(Some(DockerProvider::connect(endpoint)?.with_read_timeout(section.timeout)))
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> ProviderName {
        NAME
    }

    fn states(&self) -> Vec<&'static str> {
        STATES.to_vec()
    }

    fn preset_rules(&self) -> &'static [PresetRule] {
        PRESET_RULES
    }

    fn default_settings(&self) -> &'static str {
        include_str!("defaults.toml")
    }

    fn check_settings(&self, sections: &Sections) -> Result<(), InvalidSettings> {
        sections.read::<DockerSection>(NAME).map(|_| ())
    }

    fn connect(&self, context: &BackendContext) -> Result<Option<Connected>, BackendError> {
        let Some(provider) = self.open(context)?.map(Arc::new) else { return Ok(None) };
        let sandboxes = Arc::new(DockerSandboxes::new(Arc::clone(&provider)));
        Ok(Some(Connected { provider, sandboxes }))
    }

    fn not_configured(&self) -> BackendError {
        BackendError::NotConfigured {
            message: "no Docker Engine is configured here",
            hint: "set DOCKER_HOST, choose a context, or start an engine; creel doctor shows what \
                   was tried",
        }
    }

    async fn diagnose(&self, context: &BackendContext) -> Diagnosis {
        match self.open(context) {
            Ok(Some(provider)) => match provider.engine().await {
                Ok(engine) => Diagnosis::works(format!(
                    "{} {} (API {}) at {}",
                    engine.name(),
                    engine.version,
                    engine.api_version,
                    provider.address(),
                )),
                Err(error) => broken(&error),
            },
            Ok(None) => Diagnosis::of(
                Verdict::Unavailable,
                "not configured: no DOCKER_HOST, no context, no socket at the usual places",
                "start an engine or set DOCKER_HOST to use containers",
            ),
            Err(BackendError::Provider(error)) => broken(&error),
            Err(BackendError::Invalid { code, error, .. }) => {
                let hint = format!("creel explain {code}");
                Diagnosis::of(Verdict::Misconfigured, chain(&*error), hint)
            }
            Err(error) => {
                let hint = format!("creel explain {}", Code::Settings);
                Diagnosis::of(Verdict::Misconfigured, chain(&error), hint)
            }
        }
    }

    fn isolation(&self) -> &'static str {
        "container"
    }

    fn sandbox_kinds(&self) -> &'static [Kind] {
        &[Kind::Container]
    }

    fn check_sandbox(&self, draft: &mut SandboxDraft) {
        draft.ignore_snapshot("a Docker sandbox");
        draft.refuse_if(draft.disk.is_some(), "disk", "Docker sandboxes have no limit on it");
        let needs_image = "a Docker sandbox needs one, such as \"debian:12\"";
        draft.refuse_if(draft.image.is_none(), "image", needs_image);
    }
}

fn broken(error: &ProviderError) -> Diagnosis {
    let hint = format!("creel explain {}", error.code());
    Diagnosis::of(Verdict::Broken, error.to_string(), hint)
}
