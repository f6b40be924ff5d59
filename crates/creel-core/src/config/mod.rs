//! Typed settings; `defaults.toml` is their documentation.
//!
//! Layers: the embedded defaults, then the file, then what the caller sets on
//! top (environment and flags). Unknown keys are errors, because a setting
//! that is silently ignored is a protect rule that does not protect.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::duration;
use crate::retry::RetryPolicy;
use crate::select::ProtectRule;
use crate::size;

/// The embedded defaults, which document every key.
pub const DEFAULTS: &str = include_str!("defaults.toml");

/// All settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How failed calls are tried again.
    pub retry: RetryPolicy,
    /// How things are released.
    pub release: ReleaseConfig,
    /// How long resources live without a sign of their owner.
    pub lease: LeaseConfig,
    /// How the ledger behaves.
    pub ledger: LedgerConfig,
    /// Which Docker Engine.
    pub docker: DockerConfig,
    /// Which Daytona organisation.
    pub daytona: DaytonaConfig,
    /// What must never be released.
    #[serde(default)]
    pub protect: Vec<ProtectRule>,
}

/// How things are released.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseConfig {
    /// Requests at once; 0 adapts.
    pub concurrency: usize,
    /// Refuse plans of more items; 0 means no cap.
    pub max: usize,
    /// Refuse plans of more than this part of what was listed.
    pub max_percent: u8,
}

/// How long resources live without a sign of their owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseConfig {
    /// From one renewal to the end.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub duration: Duration,
}

/// How the ledger behaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerConfig {
    /// How long an unanswered create is searched for.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub intent_window: Duration,
    /// How many bytes of the agent's output the log of one run takes.
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    pub run_output_limit: u64,
}

/// Which Docker Engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DockerConfig {
    /// Its address; empty means what the environment says.
    pub host: String,
    /// How long a list or a look may take before it counts as unreachable.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub timeout: Duration,
}

/// Which Daytona organisation; its keys come from the environment alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DaytonaConfig {
    /// The API's address; empty means what the environment says.
    pub api_url: String,
    /// The region of new sandboxes; empty means what the environment says.
    pub target: String,
    /// No state of a sandbox is waited for longer than this.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub longest_wait: Duration,
}

/// Where a setting's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The embedded defaults.
    Default,
    /// A file.
    File(PathBuf),
    /// An environment variable or a flag, by its name.
    Given(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Given(name) => f.write_str(name),
        }
    }
}

/// What is wrong with the settings.
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
    /// The file or a value is not right.
    #[error("the settings in {origin} are not right: {detail}")]
    Invalid {
        /// Where.
        origin: Origin,
        /// What.
        detail: String,
    },
}

/// Settings on their way from layers to values.
#[derive(Debug, Clone)]
pub struct Layers {
    merged: Table,
    origins: BTreeMap<String, Origin>,
}

impl Layers {
    /// Starts with the defaults.
    pub fn defaults() -> Self {
        let merged: Table = DEFAULTS.parse().expect("the embedded defaults are valid TOML");
        let mut layers = Self { merged: Table::new(), origins: BTreeMap::new() };
        layers.lay(merged, &Origin::Default);
        layers
    }

    /// Lays a file on top, if it exists.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read, is not TOML, or has unknown keys.
    pub fn with_file(mut self, path: &Path) -> Result<Self, ConfigError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // Where the directory itself is wrong, the ledger says so; there is no file to judge.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(self);
            }
            Err(source) => {
                return Err(ConfigError::Unreadable { path: path.to_owned(), source });
            }
        };
        let origin = Origin::File(path.to_owned());
        let table: Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Invalid {
            origin: origin.clone(),
            detail: one_line(&error.to_string()),
        })?;
        self.lay(table, &origin);
        // Checked layer by layer, so that a mistake is named with the file it is in.
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
        self.lay(table, &Origin::Given(name.to_owned()));
    }

    /// Returns the values.
    ///
    /// # Errors
    ///
    /// Fails when a value does not fit its key.
    pub fn config(&self) -> Result<Config, ConfigError> {
        self.read(&Origin::Given("flags or environment".to_owned()))
    }

    /// Returns every key with its value and where that came from.
    pub fn origins(&self) -> Vec<(String, String, Origin)> {
        let lookup = |key: &str| {
            let mut parts = key.split('.');
            let first = self.merged.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.as_table()?.get(part))
        };
        let shown = |(key, origin): (&String, &Origin)| {
            Some((key.clone(), lookup(key)?.to_string(), origin.clone()))
        };
        self.origins.iter().filter_map(shown).collect()
    }

    fn read(&self, origin: &Origin) -> Result<Config, ConfigError> {
        Value::Table(self.merged.clone()).try_into().map_err(|error: toml::de::Error| {
            ConfigError::Invalid { origin: origin.clone(), detail: one_line(&error.to_string()) }
        })
    }

    fn lay(&mut self, layer: Table, origin: &Origin) {
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
    fn each_value_tells_where_it_came_from() {
        let mut layers = Layers::defaults();
        layers.set("retry.retries", 7, "--retries");
        let origins = layers.origins();
        let find = |key: &str| origins.iter().find(|(name, ..)| name == key).unwrap().2.clone();
        assert_eq!(find("retry.retries"), Origin::Given("--retries".to_owned()));
        assert_eq!(find("retry.factor"), Origin::Default);
        assert_eq!(layers.config().unwrap().retry.retries, 7);
    }
}
