//! What a backend may know about this process: variables, settings and places.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::provider::ProviderName;

/// The program that runs as holder and as init of a process tree.
///
/// It is started with these arguments and then the resource id. Its environment holds nothing but
/// the marker, and its request is on the standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderProgram {
    /// The program; `/proc/self/exe` is this one, even after its file was replaced.
    pub program: PathBuf,
    /// The arguments before the resource id.
    pub args: Vec<String>,
}

/// Reads one environment variable.
type ReadVariable = dyn Fn(&str) -> Option<OsString> + Send + Sync;

/// A source of environment variables; an empty variable counts as absent.
#[derive(Clone)]
pub struct Variables(Arc<ReadVariable>);

impl Variables {
    /// Reads variables with a function.
    pub fn new(read: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Returns a variable as a path.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        (self.0)(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// Returns a variable as text; a value that is not UTF-8 counts as absent.
    pub fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty())
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Variables")
    }
}

/// A section of the settings that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct InvalidSettings {
    /// What is wrong, in one line.
    pub detail: String,
}

/// The providers' sections of the settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sections(BTreeMap<String, Value>);

impl Sections {
    /// Adds the section of a provider.
    pub fn insert(&mut self, provider: ProviderName, section: Value) {
        self.0.insert(provider.to_string(), section);
    }

    /// Reads the section of a provider.
    ///
    /// # Errors
    ///
    /// Fails when a value is missing or invalid, or a key unknown.
    pub fn read<T: DeserializeOwned>(&self, provider: ProviderName) -> Result<T, InvalidSettings> {
        let section = self.0.get(provider.name());
        let section = section.cloned().unwrap_or_else(|| Value::Object(Default::default()));
        serde_json::from_value(section)
            .map_err(|error| InvalidSettings { detail: format!("[{provider}]: {error}") })
    }
}

/// What a backend may know about this process.
#[derive(Debug, Clone)]
pub struct BackendContext {
    /// The environment variables.
    pub variables: Variables,
    /// The working directory, where it can be determined.
    pub working_directory: Option<PathBuf>,
    /// The providers' sections of the settings.
    pub settings: Sections,
    /// The directory for the objects of providers on this machine.
    pub sandboxes: PathBuf,
    /// The program that holds process trees.
    pub holder: HolderProgram,
}
