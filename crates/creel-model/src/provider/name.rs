//! The name of a provider.
//!
//! The set of names is open: each provider's crate has its own, and a ledger may mention a provider
//! that this program does not have. Such a provider counts as not configured.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum length of a name that is read.
const LONGEST: usize = 32;
/// Maximum number of different names that one process reads; a file cannot fill the memory.
const MOST: usize = 64;

/// The names that were read. They stay for the life of the process, so that a name can be copied.
static READ: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The name of a provider, as on the command line, in JSON and in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProviderName(&'static str);

impl ProviderName {
    /// Stands for a provider that is not on record.
    pub const UNKNOWN: Self = Self::new("unknown");

    /// Creates the name of a provider: lower-case letters, digits and dashes.
    pub const fn new(name: &'static str) -> Self {
        assert!(is_valid(name.as_bytes()), "a provider's name has lower-case letters and dashes");
        Self(name)
    }

    /// Returns the name as text.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

const fn is_valid(name: &[u8]) -> bool {
    if name.is_empty() || name.len() > LONGEST {
        return false;
    }
    let mut index = 0;
    while index < name.len() {
        if !matches!(name[index], b'a'..=b'z' | b'0'..=b'9' | b'-') {
            return false;
        }
        index += 1;
    }
    true
}

/// A text that is not the name of a provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the name of a provider")]
pub struct InvalidProviderName {
    text: String,
}

impl FromStr for ProviderName {
    type Err = InvalidProviderName;

    fn from_str(text: &str) -> Result<Self, InvalidProviderName> {
        let invalid = || InvalidProviderName { text: text.chars().take(LONGEST).collect() };
        if !is_valid(text.as_bytes()) {
            return Err(invalid());
        }
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read.get(text) {
            return Ok(Self(known));
        }
        if read.len() >= MOST {
            return Err(invalid());
        }
        let name: &'static str = Box::leak(text.to_owned().into_boxed_str());
        read.insert(name);
        Ok(Self(name))
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for ProviderName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for ProviderName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_read_equals_the_constant() {
        const DOCKER: ProviderName = ProviderName::new("docker");
        assert_eq!("docker".parse(), Ok(DOCKER));
        assert_eq!(serde_json::from_str::<ProviderName>("\"docker\"").unwrap(), DOCKER);
        assert_eq!(serde_json::to_string(&DOCKER).unwrap(), "\"docker\"");
    }

    #[test]
    fn a_text_that_names_nothing_is_refused() {
        for text in ["", "Docker", "a b", "a\nb", &"x".repeat(LONGEST + 1)] {
            assert!(text.parse::<ProviderName>().is_err(), "{text:?}");
        }
    }
}
