//! Typed settings; `defaults.toml` documents them.
//!
//! The layers are the embedded defaults, then the file, then what the caller sets on top
//! (environment and flags). Unknown keys are errors: a silently ignored setting could be a protect
//! rule that does not protect.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use creel_model::duration;
use creel_model::provider::retry::RetryPolicy;
use creel_model::size;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::select::ProtectRule;

/// The embedded defaults, which document every key.
pub const DEFAULTS: &str = include_str!("defaults.toml");

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
    /// The Docker Engine to use.
    pub docker: DockerConfig,
    /// The Daytona organisation to use.
    pub daytona: DaytonaConfig,
    /// What must never be released.
    #[serde(default)]
    pub protect: Vec<ProtectRule>,
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

/// The Docker Engine to use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DockerConfig {
    /// Its address; empty means the one from the environment.
    pub host: String,
    /// How long a list or an inspect may take before the engine counts as unreachable.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub timeout: Duration,
}

/// The Daytona organisation to use; its keys come from the environment alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DaytonaConfig {
    /// The address of the API; empty means the one from the environment.
    pub api_url: String,
    /// The region of new sandboxes; empty means the one from the environment.
    pub target: String,
    /// Maximum wait for a state of a sandbox.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub longest_wait: Duration,
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
    merged: Table,
    origins: BTreeMap<String, SettingOrigin>,
}

impl Layers {
    /// Starts with the defaults.
    pub fn defaults() -> Self {
        let merged: Table = DEFAULTS.parse().expect("the embedded defaults are valid TOML");
        let mut layers = Self { merged: Table::new(), origins: BTreeMap::new() };
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
        Value::Table(self.merged.clone()).try_into().map_err(|error: toml::de::Error| {
            ConfigError::Invalid { origin: origin.clone(), detail: one_line(&error.to_string()) }
        })
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

    fn with_text(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Layers::defaults().with_file(file.path())?.config()
    }

    #[test]
    fn the_documented_defaults_are_the_defaults_of_the_types() {
        let config = Layers::defaults().config().unwrap();
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
    fn each_value_has_its_origin() {
        let mut layers = Layers::defaults();
        layers.set("retry.retries", 7, "--retries");
        let origins = layers.origins();
        let find = |key: &str| origins.iter().find(|(name, ..)| name == key).unwrap().2.clone();
        assert_eq!(find("retry.retries"), SettingOrigin::Given("--retries".to_owned()));
        assert_eq!(find("retry.factor"), SettingOrigin::Default);
        assert_eq!(layers.config().unwrap().retry.retries, 7);
    }
}
