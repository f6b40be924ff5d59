//! Objects as a provider reports them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::labels::Labels;

use super::{Identity, ProviderName, Retention};

/// An unknown name of a fixed list, with the nearest known name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{given}`; {}", suggestion(.nearest, .known))]
pub struct UnknownName {
    what: &'static str,
    given: String,
    nearest: Option<&'static str>,
    known: Vec<&'static str>,
}

fn suggestion(nearest: &Option<&'static str>, known: &[&'static str]) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("known are {}", known.join(", ")),
    }
}

impl UnknownName {
    /// Picks the member of a fixed list that has the given name.
    ///
    /// # Errors
    ///
    /// Fails with a suggestion when none has.
    pub fn pick<T: Copy>(
        given: &str,
        what: &'static str,
        all: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Result<T, Self> {
        if let Some(found) = all.iter().copied().find(|member| name(*member) == given) {
            return Ok(found);
        }
        let known: Vec<&'static str> = all.iter().copied().map(name).collect();
        let nearest = known
            .iter()
            .copied()
            .map(|candidate| (strsim::jaro_winkler(given, candidate), candidate))
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, candidate)| candidate);
        Err(Self { what, given: given.to_owned(), nearest, known })
    }
}

crate::named_enum! {
    /// The kind of an object; variants are in release order.
    pub enum Kind: "kind" {
        /// A cloud sandbox.
        Sandbox = "sandbox",
        /// A process tree on this machine.
        Process = "process",
        /// A container.
        Container = "container",
        /// A container network.
        Network = "network",
        /// A container volume.
        Volume = "volume",
        /// A container image.
        Image = "image",
        /// A directory on this machine.
        Directory = "directory",
    }
}

impl Kind {
    /// Returns whether an object of this kind runs once it is created.
    pub const fn runs(self) -> bool {
        matches!(self, Self::Container | Self::Process | Self::Sandbox)
    }

    /// Returns whether the id of an object of this kind is never reused.
    pub const fn has_lasting_ids(self) -> bool {
        match self {
            Self::Sandbox | Self::Process | Self::Container | Self::Network => true,
            Self::Volume | Self::Image | Self::Directory => false,
        }
    }
}

/// Whether an object runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// It runs: a release would interrupt it.
    Running,
    /// It does not run, or its kind never does.
    Idle,
    /// Its provider does not report it.
    #[default]
    Unknown,
}

impl Activity {
    /// Returns the activity of an object that runs or does not.
    pub const fn of(is_running: bool) -> Self {
        if is_running { Self::Running } else { Self::Idle }
    }

    fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}

/// One object, as observed at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// The provider that holds it.
    pub provider: ProviderName,
    /// The kind of the object.
    pub kind: Kind,
    /// The provider's id for it.
    pub id: String,
    /// Its display name; the id where it has none.
    pub name: String,
    /// Its state as the provider's own lower-case name; an open set.
    pub state: String,
    /// Whether it runs, as far as its provider knows.
    #[serde(default, skip_serializing_if = "Activity::is_unknown")]
    pub activity: Activity,
    /// When it was created, where the provider reports it.
    pub created_at: Option<Timestamp>,
    /// When it was last active, where the provider reports it; no proof of life. For a container
    /// only an inspect reports it: when it last started or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_active_at: Option<Timestamp>,
    /// When an image last got a name on this engine. Only an inspect reports it, and not for every
    /// image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tagged_at: Option<Timestamp>,
    /// Its labels.
    pub labels: Labels,
    /// The Compose project it belongs to.
    pub project: Option<String>,
    /// Bytes it takes, where that is cheap to determine.
    pub size: Option<u64>,
    /// The names that others gave to it, where it has several: the tags of an image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Other names under which the `uses` of objects may list it.
    ///
    /// For a network this is its name, because Podman and containers that never started report no
    /// more. For an image that was requested by a reference it is the image id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The objects it uses; they cannot be released before it.
    pub uses: Vec<(Kind, String)>,
    /// The objects that use it, by provider id; complete only after `examine`.
    #[serde(default)]
    pub users: Vec<String>,
    /// Whether it belongs to the provider itself and can never be released.
    pub predefined: bool,
    /// The state that was requested of the provider, as its own name, where it differs from
    /// `state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<String>,
    /// Set where its delete was accepted and the provider still keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained: Option<Retention>,
    /// Changes whenever the object changed in a manner that matters to a plan.
    pub generation: String,
    /// What distinguishes it from a replacement under its name, where its id alone does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

impl Observed {
    /// Creates an object of which only the id is known; its name is the id.
    pub fn known_by_id(provider: ProviderName, kind: Kind, id: impl Into<String>) -> Self {
        let id = id.into();
        Self {
            provider,
            kind,
            name: id.clone(),
            id,
            state: String::new(),
            activity: Activity::Unknown,
            created_at: None,
            last_active_at: None,
            tagged_at: None,
            labels: Labels::new(),
            project: None,
            size: None,
            tags: Vec::new(),
            aliases: Vec::new(),
            uses: Vec::new(),
            users: Vec::new(),
            predefined: false,
            desired: None,
            retained: None,
            generation: String::new(),
            identity: None,
        }
    }

    /// Returns what distinguishes it from a replacement, where that was observed.
    ///
    /// For a kind whose ids are never reused, this defaults to the id.
    pub fn identity(&self) -> Option<Identity> {
        match &self.identity {
            Some(identity) => Some(identity.clone()),
            None if self.kind.has_lasting_ids() => Some(Identity::id(self.id.clone())),
            None => None,
        }
    }

    /// Returns whether a release would interrupt it.
    pub fn is_running(&self) -> bool {
        self.activity == Activity::Running
    }

    /// Returns the instant from which its age counts, where that is reliable.
    ///
    /// A build takes an image's creation time from its base or from the cache, so an image that is
    /// seconds old may seem to be years old. Only the time of its last tag counts.
    pub fn known_since(&self) -> Option<Timestamp> {
        match self.kind {
            Kind::Image => self.tagged_at,
            _ => self.created_at,
        }
    }

    /// Returns its display names; an image may have several.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let others = self.tags.iter().filter(|tag| **tag != self.name);
        std::iter::once(self.name.as_str()).chain(others.map(String::as_str))
    }

    /// Returns the names under which the `uses` of other objects may list it.
    pub fn references(&self) -> impl Iterator<Item = &str> {
        let others = self.aliases.iter().filter(|alias| **alias != self.id);
        std::iter::once(self.id.as_str()).chain(others.map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_suggests_the_nearest_name() {
        let error = "contaner".parse::<Kind>().expect_err("there is no such kind");
        assert_eq!(error.to_string(), "unknown kind `contaner`; did you mean `container`?");
        let error = "zzz".parse::<Kind>().expect_err("there is no such kind");
        assert!(error.to_string().starts_with("unknown kind `zzz`; known are sandbox, process, "));
    }

    #[test]
    fn an_object_of_an_older_plan_has_no_activity_tags_and_aliases() {
        let text = r#"{"provider":"docker","kind":"image","id":"sha256:1","name":"a:1",
            "state":"tagged","created_at":null,"labels":{},"project":null,"size":null,"uses":[],
            "predefined":false,"generation":"sha256:1 a:1"}"#;
        let seen: Observed = serde_json::from_str(text).unwrap();
        assert_eq!((seen.activity, seen.is_running()), (Activity::Unknown, false));
        assert_eq!(seen.references().collect::<Vec<_>>(), ["sha256:1"]);
        assert_eq!(seen.names().collect::<Vec<_>>(), ["a:1"]);
    }
}
