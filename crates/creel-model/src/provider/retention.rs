//! Objects that a provider keeps although their delete was accepted.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How long a provider keeps an object whose delete it accepted, and why.
///
/// No request ends such an object sooner: the provider drops its record by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// When the provider drops it.
    pub until: Timestamp,
    /// The provider's own reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Retention {
    /// Returns the description that reports show.
    pub fn describe(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or("no reason was given");
        format!("accepted, kept by the service until {}: {reason}", show_date(self.until))
    }
}

/// Formats an instant to the minute.
pub fn show_date(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_names_its_end_and_the_providers_reason() {
        let until = "2026-11-23T09:05:59.5Z".parse().unwrap();
        let retention = Retention { until, reason: Some("runner lost".to_owned()) };
        let expected = "accepted, kept by the service until 2026-11-23 09:05 UTC: runner lost";
        assert_eq!(retention.describe(), expected);
    }
}
