//! Objects as a provider shows them.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::labels::Labels;

use super::{Identity, Retention};

/// A name that is not in a fixed list, with the nearest one that is.
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

macro_rules! named_enum {
    (
        $(#[$doc:meta])*
        $name:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name used on the command line and in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                UnknownName::pick(text, $what, Self::ALL, Self::name)
            }
        }
    };
}

named_enum!(
    /// The worlds creel knows.
    ProviderName, "provider" {
        /// Cloud sandboxes of one Daytona organisation.
        Daytona = "daytona",
        /// A Docker Engine, or Podman behind its API.
        Docker = "docker",
        /// Directories and process trees on this machine.
        Process = "process",
    }
);

named_enum!(
    /// What an object is; the order is the order of release.
    Kind, "kind" {
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
);

impl Kind {
    /// Returns whether an object of this kind runs once it is made.
    pub const fn runs(self) -> bool {
        matches!(self, Self::Container | Self::Process | Self::Sandbox)
    }

    /// Returns whether the id of an object of this kind is never given to another one.
    pub const fn has_lasting_ids(self) -> bool {
        match self {
            Self::Sandbox | Self::Process | Self::Container | Self::Network => true,
            Self::Volume | Self::Image | Self::Directory => false,
        }
    }
}

/// One object, as seen at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// The world it lives in.
    pub provider: ProviderName,
    /// What it is.
    pub kind: Kind,
    /// The provider's id for it.
    pub id: String,
    /// The name people know it by; the id where it has none.
    pub name: String,
    /// Its state in the provider's own lower-case word: an open set.
    pub state: String,
    /// When it was made, where the provider tells.
    pub created_at: Option<Timestamp>,
    /// When it last did something, where the provider tells; no proof of life. Of a container
    /// only a close look tells it: when it last started or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_active_at: Option<Timestamp>,
    /// When an image last got a name on this engine. Only an inspection tells it, and not of
    /// every image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tagged_at: Option<Timestamp>,
    /// Its labels.
    pub labels: Labels,
    /// The Compose project it belongs to.
    pub project: Option<String>,
    /// Bytes it takes, where that is cheap to know.
    pub size: Option<u64>,
    /// What it keeps in use: those cannot go before it.
    pub uses: Vec<(Kind, String)>,
    /// Who uses it, by provider id; complete only after an examination.
    #[serde(default)]
    pub users: Vec<String>,
    /// Whether it belongs to the provider itself and can never be released.
    pub predefined: bool,
    /// What the provider was asked to make of it, in its own word, where that is not its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<String>,
    /// Set where its delete was accepted and the provider keeps it all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained: Option<Retention>,
    /// Changes whenever the object changed in a way that matters to a plan.
    pub generation: String,
    /// What tells it from a replacement under its name, where its id alone does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

impl Observed {
    /// Makes an object of which only the id is known; its name is the id.
    pub fn known_by_id(provider: ProviderName, kind: Kind, id: impl Into<String>) -> Self {
        let id = id.into();
        Self {
            provider,
            kind,
            name: id.clone(),
            id,
            state: String::new(),
            created_at: None,
            last_active_at: None,
            tagged_at: None,
            labels: Labels::new(),
            project: None,
            size: None,
            uses: Vec::new(),
            users: Vec::new(),
            predefined: false,
            desired: None,
            retained: None,
            generation: String::new(),
            identity: None,
        }
    }

    /// Returns what tells it from a replacement, where that was seen: its id, where ids never come
    /// back.
    pub fn identity(&self) -> Option<Identity> {
        match &self.identity {
            Some(identity) => Some(identity.clone()),
            None if self.kind.has_lasting_ids() => Some(Identity::id(self.id.clone())),
            None => None,
        }
    }

    /// Returns whether it is doing something that a release would cut short.
    pub fn is_running(&self) -> bool {
        match self.kind {
            Kind::Sandbox => matches!(self.state.as_str(), "started" | "paused"),
            _ => matches!(self.state.as_str(), "running" | "restarting" | "paused"),
        }
    }

    /// Returns the instant from which its age counts, where that can be trusted.
    ///
    /// A build takes an image's time of creation from its base or from the cache, so an image
    /// that is seconds old may seem to be years old: only the time of its last tag counts.
    pub fn known_since(&self) -> Option<Timestamp> {
        match self.kind {
            Kind::Image => self.tagged_at,
            _ => self.created_at,
        }
    }

    /// Returns all names of an image, which its generation lists after its id.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        let is_image = self.kind == Kind::Image;
        self.generation.split(' ').skip(1).filter(move |_| is_image)
    }

    /// Returns the names that people know it by; an image may have several.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let others = self.tags().filter(|tag| *tag != self.name);
        std::iter::once(self.name.as_str()).chain(others)
    }

    /// Returns what the `uses` of others may call it: its id; a network also its name, because
    /// Podman and containers that never started tell no more; and an image that is meant by a
    /// reference also the id it leads to, with which its generation begins.
    pub fn references(&self) -> impl Iterator<Item = &str> {
        let other = match self.kind {
            Kind::Network => Some(self.name.as_str()),
            Kind::Image => self.generation.split(' ').next(),
            _ => None,
        };
        std::iter::once(self.id.as_str()).chain(other.filter(|other| *other != self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_answered_with_the_nearest_name() {
        let error = "contaner".parse::<Kind>().expect_err("there is no such kind");
        assert_eq!(error.to_string(), "unknown kind `contaner`; did you mean `container`?");
        let error = "zzz".parse::<ProviderName>().expect_err("there is no such provider");
        assert_eq!(error.to_string(), "unknown provider `zzz`; known are daytona, docker, process");
    }
}
