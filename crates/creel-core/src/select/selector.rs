//! Selectors: properties that a resource must have.

use std::str::FromStr;
use std::time::Duration;

use creel_model::id::LedgerId;
use creel_model::labels::Labels;
use creel_model::provider::{Kind, Observed, ProviderName, UnknownName};
use globset::{Glob, GlobMatcher};
use jiff::Timestamp;

use super::Ownership;

/// An invalid selector.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSelector {
    /// A state that no provider has.
    #[error(transparent)]
    State(#[from] UnknownName),
    /// A pattern that is not a glob.
    #[error("`{pattern}` is not a name pattern")]
    Name {
        /// The given pattern.
        pattern: String,
        /// Why it is invalid.
        source: globset::Error,
    },
    /// A label without a key.
    #[error("`{text}` is not a label of the form key or key=value")]
    Label {
        /// The given text.
        text: String,
    },
}

/// A label that must be present, with a value if one is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelMatch {
    key: String,
    value: Option<String>,
}

impl LabelMatch {
    /// Returns the label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns whether the labels contain it.
    pub fn matches(&self, labels: &Labels) -> bool {
        match (labels.get(&self.key), &self.value) {
            (Some(actual), Some(wanted)) => actual == wanted,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

impl std::fmt::Display for LabelMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.key),
            None => f.write_str(&self.key),
        }
    }
}

impl FromStr for LabelMatch {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        if key.trim().is_empty() {
            return Err(InvalidSelector::Label { text: text.to_owned() });
        }
        Ok(Self { key: key.to_owned(), value })
    }
}

/// A glob that matches whole names.
#[derive(Debug, Clone)]
pub struct NamePattern(GlobMatcher);

impl NamePattern {
    /// Returns whether the whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl std::fmt::Display for NamePattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.glob().glob())
    }
}

impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.glob() == other.0.glob()
    }
}

impl FromStr for NamePattern {
    type Err = InvalidSelector;

    fn from_str(pattern: &str) -> Result<Self, InvalidSelector> {
        let glob = Glob::new(pattern)
            .map_err(|source| InvalidSelector::Name { pattern: pattern.to_owned(), source })?;
        Ok(Self(glob.compile_matcher()))
    }
}

/// Selects resources of another ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerChoice {
    /// The ledger with this id.
    Id(LedgerId),
    /// Any ledger other than ours, if the owner is provably dead.
    Lost,
}

impl FromStr for LedgerChoice {
    type Err = creel_model::id::InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "lost" { Ok(Self::Lost) } else { text.parse().map(Self::Id) }
    }
}

/// Properties that a resource must have.
///
/// Several values of one property mean any of them. Several labels and several properties mean all
/// of them.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    /// The name of the rule in plans.
    pub rule: String,
    /// Only in these providers.
    pub providers: Vec<ProviderName>,
    /// Only of these kinds.
    pub kinds: Vec<Kind>,
    /// Only in these states.
    pub states: Vec<String>,
    /// Only made (an image: last tagged) at least this long ago; an unknown age does not match.
    pub older_than: Option<Duration>,
    /// Only without activity for at least this long; unknown activity does not match.
    pub idle_for: Option<Duration>,
    /// Only with all of these labels.
    pub labels: Vec<LabelMatch>,
    /// Only with one of these names.
    pub names: Vec<NamePattern>,
    /// Only of one of these Compose projects.
    pub projects: Vec<String>,
    /// Only what this ledger tracks.
    pub owned: bool,
    /// Only what another ledger tracked.
    pub ledger: Option<LedgerChoice>,
    /// Everything that matches the rest, foreign or not.
    pub all: bool,
    /// Not what its owner asked to keep; a sweep without selectors sets it.
    pub spares_kept: bool,
}

impl Selector {
    /// Returns whether the resource has all properties.
    pub fn matches(&self, seen: &Observed, ownership: &Ownership, now: Timestamp) -> bool {
        self.fits(seen, now)
            && (!self.owned || ownership.is_ours())
            && self.ledger.is_none_or(|choice| ownership.is_of(choice))
    }

    /// Returns whether the resource has all properties, regardless of its owner.
    pub fn fits(&self, seen: &Observed, now: Timestamp) -> bool {
        self.fits_at_any_age(seen, now)
            && self.older_than.is_none_or(|age| is_past(seen.known_since(), age, now))
    }

    /// Returns whether the resource has all properties, regardless of its age.
    pub(super) fn fits_at_any_age(&self, seen: &Observed, now: Timestamp) -> bool {
        fn any_or_none<T>(wanted: &[T], fits: impl Fn(&T) -> bool) -> bool {
            wanted.is_empty() || wanted.iter().any(fits)
        }
        any_or_none(&self.providers, |provider| *provider == seen.provider)
            && any_or_none(&self.kinds, |kind| *kind == seen.kind)
            && any_or_none(&self.states, |state| *state == seen.state)
            && any_or_none(&self.names, |name| seen.names().any(|one| name.matches(one)))
            && any_or_none(&self.projects, |wanted| seen.project.as_ref() == Some(wanted))
            && self.labels.iter().all(|label| label.matches(&seen.labels))
            && self.idle_for.is_none_or(|age| is_past(seen.last_active_at, age, now))
    }

    /// Returns a name of the resource that is not selected although another one is.
    ///
    /// An image is released with all its names.
    pub fn other_name<'a>(&self, seen: &'a Observed) -> Option<&'a str> {
        let is_selected = |one: &str| self.names.iter().any(|name| name.matches(one));
        seen.names().find(|one| !self.names.is_empty() && !is_selected(one))
    }

    /// Returns whether it is narrow enough to select foreign resources on purpose.
    pub fn is_narrowing(&self) -> bool {
        self.owned
            || self.ledger.is_some()
            || self.older_than.is_some()
            || self.idle_for.is_some()
            || !self.states.is_empty()
            || !self.labels.is_empty()
            || !self.names.is_empty()
            || !self.projects.is_empty()
    }

    /// Checks that every state is one that some provider reports.
    ///
    /// # Errors
    ///
    /// Fails with a suggestion of the nearest known state.
    pub fn check_states(&self, known: &[&'static str]) -> Result<(), InvalidSelector> {
        for state in &self.states {
            UnknownName::pick(state, "state", known, |state| state)?;
        }
        Ok(())
    }

    /// Describes the selector in command-line syntax.
    pub fn describe(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.providers.iter().map(|provider| format!("provider={provider}")));
        parts.extend(self.kinds.iter().map(|kind| format!("kind={kind}")));
        parts.extend(self.states.iter().map(|state| format!("state={state}")));
        parts.extend(
            self.older_than.map(|age| format!("older-than={}", creel_model::duration::show(age))),
        );
        parts.extend(
            self.idle_for.map(|age| format!("idle-for={}", creel_model::duration::show(age))),
        );
        parts.extend(self.labels.iter().map(|label| format!("label={label}")));
        parts.extend(self.names.iter().map(|name| format!("name={name}")));
        parts.extend(self.projects.iter().map(|project| format!("project={project}")));
        parts.extend(self.owned.then(|| "owned".to_owned()));
        parts.extend(self.all.then(|| "all".to_owned()));
        match self.ledger {
            Some(LedgerChoice::Id(id)) => parts.push(format!("ledger={id}")),
            Some(LedgerChoice::Lost) => parts.push("ledger=lost".to_owned()),
            None => {}
        }
        parts.join(" ")
    }
}

/// Returns whether a time is at least this long ago; an unknown one is not.
fn is_past(instant: Option<Timestamp>, age: Duration, now: Timestamp) -> bool {
    let Some(instant) = instant else { return false };
    let passed = now.duration_since(instant);
    !passed.is_negative() && passed.unsigned_abs() >= age
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn container(name: &str, state: &str) -> Observed {
        Observed {
            name: name.to_owned(),
            state: state.to_owned(),
            created_at: Some(Timestamp::from_second(1_000_000).unwrap()),
            generation: format!("id-{name}:{state}"),
            ..Observed::known_by_id(creel_docker::NAME, Kind::Container, format!("id-{name}"))
        }
    }

    fn matches(selector: &Selector, seen: &Observed) -> bool {
        let now = Timestamp::from_second(1_003_600).unwrap();
        selector.matches(seen, &Ownership::Foreign, now)
    }

    #[test]
    fn several_values_match_any_and_several_properties_must_all_match() {
        let selector = Selector {
            states: vec!["exited".to_owned(), "dead".to_owned()],
            names: vec!["web-*".parse().unwrap()],
            ..Selector::default()
        };
        assert!(matches(&selector, &container("web-1", "exited")));
        assert!(matches(&selector, &container("web-1", "dead")));
        assert!(!matches(&selector, &container("web-1", "running")));
        assert!(!matches(&selector, &container("my-web-1", "exited")));
    }

    #[test]
    fn labels_are_compared_whole() {
        let mut seen = container("a", "exited");
        seen.labels.insert("team", "blue");
        let with =
            |label: &str| Selector { labels: vec![label.parse().unwrap()], ..Selector::default() };
        assert!(matches(&with("team"), &seen));
        assert!(matches(&with("team=blue"), &seen));
        for other in ["tea", "team=blu", "team=", "Team", "team=blue2"] {
            assert!(!matches(&with(other), &seen), "{other}");
        }
    }

    #[test]
    fn age_counts_from_creation_and_unknown_age_is_young() {
        let older =
            |age| Selector { older_than: Some(Duration::from_secs(age)), ..Selector::default() };
        let mut seen = container("a", "exited");
        assert!(matches(&older(3_600), &seen));
        assert!(!matches(&older(3_601), &seen));
        seen.created_at = None;
        assert!(!matches(&older(1), &seen));
    }

    #[test]
    fn idleness_counts_from_the_last_activity() {
        let idle =
            |age| Selector { idle_for: Some(Duration::from_secs(age)), ..Selector::default() };
        let mut seen = container("a", "started");
        assert!(!matches(&idle(1), &seen));
        seen.last_active_at = Some(Timestamp::from_second(1_003_000).unwrap());
        assert!(matches(&idle(600), &seen) && !matches(&idle(601), &seen));
    }

    #[test]
    fn an_unknown_state_is_a_typo() {
        let selector = Selector { states: vec!["exitd".to_owned()], ..Selector::default() };
        let error = selector.check_states(&["exited", "running"]).unwrap_err().to_string();
        assert_eq!(error, "unknown state `exitd`; did you mean `exited`?");
    }
}
