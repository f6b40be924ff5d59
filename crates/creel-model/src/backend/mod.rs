//! Backends: everything that differs between one provider and the next.
//!
//! ```text
//!   command line ── list of backends ──▶ Backend ─ connect ─▶ Provider, SandboxProvider
//!        │                                 │
//!        └─ environment, settings ─────────┴─ names of states, presets, checks of
//!                                             workflows, doctor checks, hints
//! ```
//!
//! A backend is known before anything is configured or reachable. It reads its own variables and
//! its own section of the settings, and connects. A new provider is one crate that implements
//! [`Backend`], and one line in the list of backends. `docs/providers.md` is the guide.

mod context;
mod diagnosis;
mod error;
mod list;
mod sandbox_draft;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use crate::provider::{Kind, PresetRule, Provider, ProviderName};
use crate::sandbox::SandboxProvider;

pub use context::{BackendContext, HolderProgram, InvalidSettings, Sections, Variables};
pub use diagnosis::{Diagnosis, Verdict};
pub use error::BackendError;
pub use list::Backends;
pub use sandbox_draft::SandboxDraft;

/// A provider that is configured: nothing is sent before the first call.
#[derive(Debug, Clone)]
pub struct Connected {
    /// The access to its objects.
    pub provider: Arc<dyn Provider>,
    /// The access to its sandboxes, over the same connection.
    pub sandboxes: Arc<dyn SandboxProvider>,
}

/// The section of a provider without settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoSettings {}

/// One provider, before anything is known about its configuration.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// Returns the name of the provider.
    fn name(&self) -> ProviderName;

    /// Returns every state that an object of this provider can have.
    fn states(&self) -> Vec<&'static str>;

    /// Returns what the presets of a sweep select among its objects.
    fn preset_rules(&self) -> &'static [PresetRule] {
        &[]
    }

    /// Returns its section of the settings, as TOML with comments and all defaults.
    ///
    /// The section has the name of the provider. An empty text means that there are no settings.
    fn default_settings(&self) -> &'static str {
        ""
    }

    /// Checks its section of the settings, without connecting.
    ///
    /// # Errors
    ///
    /// Fails when a value is invalid or a key unknown.
    fn check_settings(&self, sections: &Sections) -> Result<(), InvalidSettings> {
        sections.read::<NoSettings>(self.name()).map(drop)
    }

    /// Prepares the connection. `None` means that the provider is not configured here.
    ///
    /// # Errors
    ///
    /// Fails when what configures it is invalid.
    fn connect(&self, context: &BackendContext) -> Result<Option<Connected>, BackendError>;

    /// Returns the error for a command that needs this provider where it is not configured.
    fn not_configured(&self) -> BackendError;

    /// Checks whether the provider works here.
    async fn diagnose(&self, context: &BackendContext) -> Diagnosis;

    /// Returns how well a sandbox is isolated from this machine, for the plan of a run.
    fn isolation(&self) -> &'static str;

    /// Returns the kinds of objects that a sandbox consists of, in the order of their release.
    fn sandbox_kinds(&self) -> &'static [Kind];

    /// Returns whether a sandbox has a root file system of its own.
    fn has_own_file_system(&self) -> bool {
        true
    }

    /// Checks the sandbox settings of a workflow against what this provider supports.
    fn check_sandbox(&self, draft: &mut SandboxDraft);
}
