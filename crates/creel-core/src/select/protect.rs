//! Protection: what is never released. If in doubt, a rule protects.

use std::time::Duration;

use creel_model::duration;
use creel_model::labels;
use creel_model::provider::{Kind, Observed, ProviderName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{LabelMatch, NamePattern};

/// Properties that together protect a resource.
///
/// An unknown property counts as a match: a rule that cannot be evaluated protects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtectRule {
    /// Only in this provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderName>,
    /// Only of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// Only with this name.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text")]
    pub name: Option<NamePattern>,
    /// Only with this label.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text")]
    pub label: Option<LabelMatch>,
    /// Only of this Compose project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Only made less than this long ago.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "duration::optional")]
    pub younger_than: Option<Duration>,
}

/// Reads and writes patterns as text in settings.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn deserialize<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: Display>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }

    pub(super) fn serialize<S: Serializer, T: Display>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }
}

impl ProtectRule {
    fn protects(&self, seen: &Observed, now: Timestamp) -> bool {
        // The record with its name and labels is damaged: both may match.
        let untold = seen.state == "unreadable";
        self.provider.is_none_or(|provider| provider == seen.provider)
            && self.kind.is_none_or(|kind| kind == seen.kind)
            && self
                .name
                .as_ref()
                .is_none_or(|name| untold || seen.names().any(|one| name.matches(one)))
            && self.label.as_ref().is_none_or(|label| untold || label.matches(&seen.labels))
            && self.project.as_ref().is_none_or(|project| seen.project.as_ref() == Some(project))
            && self.younger_than.is_none_or(|age| is_younger(seen, age, now))
    }

    fn describe(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.provider.map(|provider| format!("provider={provider}")));
        parts.extend(self.kind.map(|kind| format!("kind={kind}")));
        parts.extend(self.name.as_ref().map(|name| format!("name={name}")));
        parts.extend(self.label.as_ref().map(|label| format!("label={label}")));
        parts.extend(self.project.as_ref().map(|project| format!("project={project}")));
        parts.extend(self.younger_than.map(|age| format!("younger-than={}", duration::show(age))));
        parts.join(" ")
    }
}

fn is_younger(seen: &Observed, age: Duration, now: Timestamp) -> bool {
    // An unknown age and a creation time in the future both protect.
    let Some(since) = seen.known_since() else { return true };
    let lived = now.duration_since(since);
    lived.is_negative() || lived.unsigned_abs() < age
}

/// Returns why a resource is protected, if it is.
pub fn protection(rules: &[ProtectRule], seen: &Observed, now: Timestamp) -> Option<String> {
    if seen.predefined {
        return Some("belongs to the engine itself".to_owned());
    }
    if labels::protects(&seen.labels) {
        return Some(format!("protected by its label {}", labels::PROTECT));
    }
    let rule = rules.iter().find(|rule| rule.protects(seen, now))?;
    Some(format!("protected by the rule {}", rule.describe()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::selector::tests::container;

    fn now() -> Timestamp {
        Timestamp::from_second(1_003_600).unwrap()
    }

    fn rule(text: &str) -> ProtectRule {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_rule_protects_what_fits_all_of_it() {
        let rules = [rule("kind = \"container\"\nname = \"prod-*\"")];
        assert!(protection(&rules, &container("prod-1", "running"), now()).is_some());
        assert!(protection(&rules, &container("my-prod-1", "running"), now()).is_none());
    }

    #[test]
    fn an_unknown_property_protects() {
        let rules = [rule("younger_than = \"10m\"")];
        let mut seen = container("a", "exited");
        assert_eq!(protection(&rules, &seen, now()), None);
        seen.created_at = None;
        assert!(protection(&rules, &seen, now()).is_some());
        let rules = [rule("label = \"keep\"")];
        assert_eq!(protection(&rules, &seen, now()), None);
        seen.state = "unreadable".to_owned();
        assert!(protection(&rules, &seen, now()).is_some());
    }

    #[test]
    fn any_value_of_the_label_but_false_protects() {
        let mut seen = container("a", "exited");
        for (value, protected) in [("", true), ("true", true), ("no", true), ("false", false)] {
            seen.labels.insert(labels::PROTECT, value);
            assert_eq!(protection(&[], &seen, now()).is_some(), protected, "{value}");
        }
    }

    #[test]
    fn what_the_engine_owns_is_always_protected() {
        let mut seen = container("bridge", "present");
        seen.predefined = true;
        assert!(protection(&[], &seen, now()).is_some());
    }
}
