//! Presets: selectors with a name. What is written here is what they do.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::provider::{Kind, UnknownName};

use super::Selector;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A named set of selectors; a resource is meant when one of them fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// What has stopped or failed, whatever its age: containers that are exited or dead,
    /// sandboxes that are stopped, in error or whose build failed.
    Stopped,
    /// [`Preset::Stopped`], and what a day ago was left before or after its work: containers
    /// created and never started, sandboxes archived.
    Default,
    /// [`Preset::Default`] at any age, and everything a day old: containers and sandboxes in
    /// every state, unused networks, unused anonymous volumes, dangling images.
    Aggressive,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 3] = [Self::Stopped, Self::Default, Self::Aggressive];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Default => "default",
            Self::Aggressive => "aggressive",
        }
    }

    /// Returns the selectors it stands for.
    pub fn selectors(self) -> Vec<Selector> {
        let rule = |name: &str, kind, states: &[&str], older_than| Selector {
            rule: format!("preset:{}/{name}", self.name()),
            kinds: vec![kind],
            states: states.iter().map(|&state| state.to_owned()).collect(),
            older_than,
            ..Selector::default()
        };
        // Podman calls an exited container `stopped` for a while.
        let stopped = rule("stopped", Kind::Container, &["exited", "dead", "stopped"], None);
        let failed = ["stopped", "error", "build_failed"];
        let stopped_sandbox = rule("stopped-sandbox", Kind::Sandbox, &failed, None);
        match self {
            Self::Stopped => vec![stopped, stopped_sandbox],
            Self::Default => vec![
                stopped,
                stopped_sandbox,
                rule("never-started", Kind::Container, &["created"], Some(DAY)),
                rule("archived-sandbox", Kind::Sandbox, &["archived"], Some(DAY)),
            ],
            Self::Aggressive => vec![
                stopped,
                stopped_sandbox,
                rule("never-started", Kind::Container, &["created"], None),
                rule("archived-sandbox", Kind::Sandbox, &["archived"], None),
                rule("old", Kind::Container, &[], Some(DAY)),
                rule("old-sandbox", Kind::Sandbox, &[], Some(DAY)),
                rule("old-network", Kind::Network, &[], Some(DAY)),
                rule("old-anonymous-volume", Kind::Volume, &["anonymous"], Some(DAY)),
                rule("old-dangling-image", Kind::Image, &["dangling"], Some(DAY)),
            ],
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        UnknownName::pick(text, "preset", &Self::ALL, Self::name)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::provider::Observed;
    use crate::select::Ownership;
    use crate::select::selector::tests::container;

    fn meant(preset: Preset, state: &str, age_hours: i64) -> bool {
        let seen = container("a", state);
        let now = Timestamp::from_second(1_000_000 + age_hours * 3_600).unwrap();
        preset.selectors().iter().any(|rule| rule.matches(&seen, &Ownership::Foreign, now))
    }

    #[test]
    fn presets_mean_what_their_documentation_says() {
        for preset in Preset::ALL {
            assert!(meant(preset, "exited", 0) && meant(preset, "dead", 0), "{preset}");
        }
        assert!(!meant(Preset::Stopped, "created", 48));
        assert!(meant(Preset::Default, "created", 24) && !meant(Preset::Default, "created", 23));
        assert!(!meant(Preset::Default, "running", 1_000));
        assert!(meant(Preset::Aggressive, "created", 0));
        assert!(meant(Preset::Aggressive, "running", 24));
        assert!(!meant(Preset::Aggressive, "running", 23));
    }

    #[test]
    fn presets_mean_sandboxes_that_stopped_or_failed() {
        let meant = |preset: Preset, state: &str, age_hours: i64| {
            let seen = Observed { kind: Kind::Sandbox, ..container("a", state) };
            let now = Timestamp::from_second(1_000_000 + age_hours * 3_600).unwrap();
            preset.selectors().iter().any(|rule| rule.matches(&seen, &Ownership::Foreign, now))
        };
        for preset in Preset::ALL {
            for state in ["stopped", "error", "build_failed"] {
                assert!(meant(preset, state, 0), "{preset} {state}");
            }
            assert!(!meant(preset, "started", 23), "{preset}");
        }
        assert!(!meant(Preset::Stopped, "archived", 48));
        assert!(meant(Preset::Default, "archived", 24) && !meant(Preset::Default, "archived", 23));
        assert!(!meant(Preset::Default, "started", 1_000));
        assert!(meant(Preset::Aggressive, "started", 24));
        assert!(meant(Preset::Aggressive, "archived", 0));
    }

    #[test]
    fn no_preset_means_what_is_not_narrowed() {
        for preset in Preset::ALL {
            assert!(preset.selectors().iter().all(Selector::is_narrowing), "{preset}");
        }
    }
}
