//! What an engine reports about itself.

use hyper::HeaderMap;
use serde::Deserialize;

/// The newest version of the API that we know. A newer engine is asked for this one.
const NEWEST_KNOWN: EngineApiVersion = EngineApiVersion(1, 47);

/// An engine, as it describes itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct EngineVersion {
    /// The version of the engine.
    #[serde(rename = "Version", default)]
    pub version: String,
    /// The newest version of the API it supports.
    #[serde(rename = "ApiVersion", default)]
    pub api_version: String,
    /// The oldest version of the API it supports.
    #[serde(rename = "MinAPIVersion", default)]
    pub oldest_api_version: String,
    /// Its operating system.
    #[serde(rename = "Os", default)]
    pub os: String,
    /// Its processor architecture.
    #[serde(rename = "Arch", default)]
    pub architecture: String,
    /// The components it consists of.
    #[serde(rename = "Components", default)]
    pub components: Vec<Component>,
}

/// A component of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Component {
    /// Its name.
    #[serde(rename = "Name", default)]
    pub name: String,
    /// Its version.
    #[serde(rename = "Version", default)]
    pub version: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EngineApiVersion(u32, u32);

impl EngineApiVersion {
    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }
}

impl EngineVersion {
    /// Returns the kind of engine: `Docker Engine` or `Podman`.
    pub fn name(&self) -> &'static str {
        if self.is_podman() { "Podman" } else { "Docker Engine" }
    }

    /// Returns whether it is Podman behind Docker's API.
    pub fn is_podman(&self) -> bool {
        self.components.iter().any(|component| component.name.starts_with("Podman"))
    }

    /// Returns the version of the API to use with it, as a path prefix. An empty prefix leaves the
    /// choice to the engine.
    pub(super) fn path_prefix(&self) -> String {
        let Some(newest) = EngineApiVersion::parse(&self.api_version) else { return String::new() };
        let oldest = EngineApiVersion::parse(&self.oldest_api_version).unwrap_or(newest);
        let EngineApiVersion(major, minor) = newest.min(NEWEST_KNOWN).max(oldest);
        format!("/v{major}.{minor}")
    }
}

/// What must be known about an engine before the first request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The version of the API, as a path prefix.
    pub path_prefix: String,
    /// Whether it is Podman behind Docker's API.
    pub is_podman: bool,
    /// Whether the creation time of a volume never changes. Before API 1.42, Docker reported when
    /// its directory last changed.
    pub has_stable_volume_times: bool,
}

impl Agreed {
    /// Negotiates with an engine that has described itself in full.
    pub(super) fn with(engine: &EngineVersion) -> Self {
        let is_podman = engine.is_podman();
        let newest = EngineApiVersion::parse(&engine.api_version);
        Self {
            path_prefix: engine.path_prefix(),
            is_podman,
            has_stable_volume_times: has_stable_volume_times(newest, is_podman),
        }
    }

    /// Negotiates by the headers of a ping response. Returns `None` when they are not sufficient:
    /// an engine newer than we know may no longer support our version.
    pub(super) fn by_ping(head: &HeaderMap) -> Option<Self> {
        let text = |name: &str| head.get(name)?.to_str().ok();
        let newest = EngineApiVersion::parse(text("api-version")?)?;
        let server = text("server")?;
        let EngineApiVersion(major, minor) = newest;
        let is_podman = server.starts_with("Libpod");
        (newest <= NEWEST_KNOWN).then(|| Self {
            path_prefix: format!("/v{major}.{minor}"),
            is_podman,
            has_stable_volume_times: has_stable_volume_times(Some(newest), is_podman),
        })
    }
}

fn has_stable_volume_times(newest: Option<EngineApiVersion>, is_podman: bool) -> bool {
    // Podman keeps the time in its database, whatever version of the API it supports.
    is_podman || newest.is_some_and(|version| version >= EngineApiVersion(1, 42))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(oldest: &str, newest: &str) -> EngineVersion {
        EngineVersion {
            api_version: newest.to_owned(),
            oldest_api_version: oldest.to_owned(),
            ..EngineVersion::default()
        }
    }

    fn ping(lines: &[(&'static str, &str)]) -> Option<Agreed> {
        let lines =
            lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        Agreed::by_ping(&lines.collect())
    }

    #[test]
    fn a_ping_settles_the_version_unless_the_engine_is_newer_than_we_are() {
        let docker = ping(&[("api-version", "1.41"), ("server", "Docker/20.10.24 (linux)")]);
        let agreed = Agreed {
            path_prefix: "/v1.41".to_owned(),
            is_podman: false,
            has_stable_volume_times: false,
        };
        assert_eq!(docker, Some(agreed.clone()));
        let podman = ping(&[("api-version", "1.41"), ("server", "Libpod/4.3.1 (linux)")]);
        let agreed = Agreed { is_podman: true, has_stable_volume_times: true, ..agreed };
        assert_eq!(podman, Some(agreed));
        let newer = ping(&[("api-version", "1.42"), ("server", "Docker/23.0.0 (linux)")]);
        assert!(newer.is_some_and(|agreed| agreed.has_stable_volume_times));
        assert_eq!(ping(&[("api-version", "1.48"), ("server", "Docker/28.0.0 (linux)")]), None);
        assert_eq!(ping(&[("server", "Docker/20.10.24 (linux)")]), None);
        assert_eq!(ping(&[("api-version", "new"), ("server", "Docker")]), None);
    }

    #[test]
    fn the_newest_version_both_sides_know_is_spoken() {
        assert_eq!(engine("1.12", "1.41").path_prefix(), "/v1.41");
        assert_eq!(engine("1.44", "1.53").path_prefix(), "/v1.47");
        assert_eq!(engine("1.60", "1.70").path_prefix(), "/v1.60");
        assert_eq!(engine("", "").path_prefix(), "");
    }
}
