//! Typed settings; `defaults.toml` here and in each provider's crate documents them.
//!
//! The layers are the embedded defaults, then the file, then what the caller sets on top
//! (environment and flags). Unknown keys are errors: a silently ignored setting could be a protect
//! rule that does not protect.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use creel_model::backend::{Backends, Sections};
use creel_model::duration;
use creel_model::provider::retry::RetryPolicy;
use creel_model::size;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::select::ProtectRule;

/// The embedded defaults of everything but the providers.
const DEFAULTS: &str = include_str!("defaults.toml");

/// Returns the defaults as TOML that documents every key, with the sections of all providers.
pub fn documented_defaults(backends: Backends) -> String {
    let sections = backends.iter().map(|backend| backend.default_settings());
    let sections = sections.filter(|section| !section.is_empty());
    std::iter::once(DEFAULTS).chain(sections).map(str::trim_end).collect::<Vec<_>>().join("\n\n")
}

/// All settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How failed calls are retried.
    pub retry: RetryPolicy,
    /// How resources are released.
    pub release: ReleaseConfig,
    /// How long resources live without a renewal by their owner.
    pub lease: LeaseConfig,
    /// How the ledger behaves.
    pub ledger: LedgerConfig,
    /// What must never be released.
    #[serde(default)]
    pub protect: Vec<ProtectRule>,
    /// The sections of the providers, which their backends read.
    #[serde(skip)]
    pub providers: Sections,
}

/// How resources are released.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseConfig {
    /// Number of concurrent requests; 0 adapts.
    pub concurrency: usize,
    /// Refuse plans with more items; 0 means no cap.
    pub max: usize,
    /// Refuse plans that release more than this percentage of what was listed.
    pub max_percent: u8,
}

/// How long resources live without a renewal by their owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseConfig {
    /// Time from a renewal to the end of the lease.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub duration: Duration,
}

/// How the ledger behaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerConfig {
    /// How long creel searches for the result of an unanswered create.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub intent_window: Duration,
    /// Maximum number of bytes of agent output in the log of one run.
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    pub run_output_limit: u64,
}

/// Where a setting's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The embedded defaults.
    Default,
    /// A file.
    File(PathBuf),
    /// An environment variable or a flag, by name.
    Given(String),
}

impl std::fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Given(name) => f.write_str(name),
        }
    }
}

/// An error in the settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file or a value is invalid.
    #[error("the settings in {origin} are not right: {detail}")]
    Invalid {
        /// Where the invalid value comes from.
        origin: SettingOrigin,
        /// What is wrong.
        detail: String,
    },
}

/// Settings while their layers are merged.
#[derive(Debug, Clone)]
pub struct Layers {
    backends: Backends,
    merged: Table,
    origins: BTreeMap<String, SettingOrigin>,
}

impl Layers {
    /// Starts with the defaults.
    pub fn defaults(backends: Backends) -> Self {
        let text = documented_defaults(backends);
        let merged: Table = text.parse().expect("the embedded defaults are valid TOML");
        let mut layers = Self { backends, merged: Table::new(), origins: BTreeMap::new() };
        layers.merge_layer(merged, &SettingOrigin::Default);
        layers
    }

    /// Adds a file as the next layer, if it exists.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read, is not TOML, or has unknown keys.
    pub fn with_file(mut self, path: &Path) -> Result<Self, ConfigError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // If the directory itself is wrong, the ledger reports it; there is no file to read.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(self);
            }
            Err(source) => {
                return Err(ConfigError::Unreadable { path: path.to_owned(), source });
            }
        };
        let origin = SettingOrigin::File(path.to_owned());
        let table: Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Invalid {
            origin: origin.clone(),
            detail: one_line(&error.to_string()),
        })?;
        self.merge_layer(table, &origin);
        // Checked layer by layer, so that an error names the file it is in.
        self.read(&origin)?;
        Ok(self)
    }

    /// Sets one value by its dotted key.
    pub fn set(&mut self, key: &str, value: impl Into<Value>, name: &str) {
        let mut table = Table::new();
        let mut value = value.into();
        let mut parts: Vec<&str> = key.split('.').collect();
        let first = parts.remove(0);
        for part in parts.into_iter().rev() {
            value = Value::Table(Table::from_iter([(part.to_owned(), value)]));
        }
        table.insert(first.to_owned(), value);
        self.merge_layer(table, &SettingOrigin::Given(name.to_owned()));
    }

    /// Returns the merged values.
    ///
    /// # Errors
    ///
    /// Fails when a value is invalid for its key.
    pub fn config(&self) -> Result<Config, ConfigError> {
        self.read(&SettingOrigin::Given("flags or environment".to_owned()))
    }

    /// Returns every key with its value and its origin.
    pub fn origins(&self) -> Vec<(String, String, SettingOrigin)> {
        let lookup = |key: &str| {
            let mut parts = key.split('.');
            let first = self.merged.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.as_table()?.get(part))
        };
        let shown = |(key, origin): (&String, &SettingOrigin)| {
            Some((key.clone(), lookup(key)?.to_string(), origin.clone()))
        };
        self.origins.iter().filter_map(shown).collect()
    }

    fn read(&self, origin: &SettingOrigin) -> Result<Config, ConfigError> {
        let invalid = |detail: String| ConfigError::Invalid {
            origin: origin.clone(),
            detail: one_line(&detail),
        };
        let mut merged = self.merged.clone();
        let providers = self.take_sections(&mut merged).map_err(invalid)?;
        let config = Value::Table(merged).try_into();
        let config: Config = config.map_err(|error: toml::de::Error| invalid(error.to_string()))?;
        // A rule for a provider that does not exist would protect nothing.
        for provider in config.protect.iter().filter_map(|rule| rule.provider) {
            self.backends.named(provider.name()).map_err(|error| invalid(error.to_string()))?;
        }
        Ok(Config { providers, ..config })
    }

    /// Takes the providers' sections out of a table, and lets their backends check them.
    fn take_sections(&self, merged: &mut Table) -> Result<Sections, String> {
        let mut sections = Sections::default();
        for backend in self.backends.iter() {
            let name = backend.name();
            let Some(section) = merged.remove(name.name()) else { continue };
            let section = serde_json::to_value(section).map_err(|error| error.to_string())?;
            sections.insert(name, section);
            backend.check_settings(&sections).map_err(|error| error.to_string())?;
        }
        Ok(sections)
    }

    fn merge_layer(&mut self, layer: Table, origin: &SettingOrigin) {
        merge(&mut self.merged, layer, "", &mut |key| {
            self.origins.insert(key, origin.clone());
        });
    }
}

fn merge(base: &mut Table, layer: Table, prefix: &str, changed: &mut impl FnMut(String)) {
    for (key, value) in layer {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match (base.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from, &path, changed),
            (None, Value::Table(from)) => {
                let mut into = Table::new();
                merge(&mut into, from, &path, changed);
                base.insert(key, Value::Table(into));
            }
            (_, value) => {
                changed(path);
                base.insert(key, value);
            }
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKENDS: Backends = Backends::new(
        &[&creel_docker::DockerBackend, &creel_process::ProcessBackend],
        creel_docker::NAME,
    );

    fn with_text(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Layers::defaults(BACKENDS).with_file(file.path())?.config()
    }

    #[test]
    fn the_documented_defaults_are_the_defaults_of_the_types() {
        let config = Layers::defaults(BACKENDS).config().unwrap();
        assert_eq!(config.retry, RetryPolicy::default());
        assert!(config.protect.is_empty());
    }

    #[test]
    fn a_file_changes_only_what_it_names() {
        let config = with_text("[retry]\nretries = 5\n[retry.class]\nthrottled = 9").unwrap();
        assert_eq!((config.retry.retries, config.retry.initial.as_secs()), (5, 2));
        assert_eq!(config.retry.class.len(), 1);
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_known_ones() {
        let error = with_text("[retry]\nretrys = 5").unwrap_err().to_string();
        assert!(error.contains("retrys") && error.contains("`retries`"), "{error}");
        assert!(with_text("[[protect]]\nnane = \"x\"").is_err());
    }

    #[test]
    fn a_provider_checks_its_own_section() {
        let config = with_text("[docker]\ntimeout = \"5s\"").unwrap();
        assert_eq!(config.providers, {
            let mut sections = Sections::default();
            let section = serde_json::json!({ "host": "", "timeout": "5s" });
            sections.insert(creel_docker::NAME, section);
            sections
        });
        let error = with_text("[docker]\nhots = \"x\"").unwrap_err().to_string();
        assert!(error.contains("[docker]") && error.contains("`hots`"), "{error}");
        assert!(with_text("[podman]\nhost = \"x\"").is_err());
        for text in ["[process]\nfoo = 1", "process = 5"] {
            let error = with_text(text).unwrap_err().to_string();
            assert!(error.contains("[process]"), "{error}");
        }
    }

    #[test]
    fn a_rule_for_an_unknown_provider_protects_nothing_and_is_refused() {
        let error = with_text("[[protect]]\nprovider = \"dokcer\"").unwrap_err().to_string();
        assert!(error.contains("did you mean `docker`?"), "{error}");
        with_text("[[protect]]\nprovider = \"docker\"").unwrap();
    }

    #[test]
    fn each_value_has_its_origin() {
        let mut layers = Layers::defaults(BACKENDS);
        layers.set("retry.retries", 7, "--retries");
        let origins = layers.origins();
        let find = |key: &str| origins.iter().find(|(name, ..)| name == key).unwrap().2.clone();
        assert_eq!(find("retry.retries"), SettingOrigin::Given("--retries".to_owned()));
        assert_eq!(find("retry.factor"), SettingOrigin::Default);
        assert_eq!(layers.config().unwrap().retry.retries, 7);
    }
}
