//! Presets: named selectors, defined here.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use creel_model::provider::{Kind, UnknownName};

use super::Selector;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A named set of selectors; a resource is selected when one of them matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// What has stopped or failed, at any age.
    ///
    /// These are containers that are exited or dead, and sandboxes that are stopped, in error or
    /// whose build failed.
    Stopped,
    /// [`Preset::Stopped`], and a day after their creation containers that were never started and
    /// archived sandboxes.
    Default,
    /// [`Preset::Default`] at any age, and more resources that are a day old.
    ///
    /// These are containers and sandboxes in every state, unused networks, unused anonymous
    /// volumes, and dangling images.
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

    /// Returns the selectors of the preset.
    pub fn selectors(self) -> Vec<Selector> {
        let rule = |name: &str, kind, states: &[&str], older_than| Selector {
            rule: format!("preset:{}/{name}", self.name()),
            kinds: vec![kind],
            states: states.iter().map(|&state| state.to_owned()).collect(),
            older_than,
            ..Selector::default()
        };
        // Podman reports an exited container as `stopped` for a while.
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
    use creel_model::provider::Observed;
    use jiff::Timestamp;

    use super::*;
    use crate::select::Ownership;
    use crate::select::selector::tests::container;

    fn selects(preset: Preset, state: &str, age_hours: i64) -> bool {
        let seen = container("a", state);
        let now = Timestamp::from_second(1_000_000 + age_hours * 3_600).unwrap();
        preset.selectors().iter().any(|rule| rule.matches(&seen, &Ownership::Foreign, now))
    }

    #[test]
    fn presets_select_what_their_documentation_says() {
        for preset in Preset::ALL {
            assert!(selects(preset, "exited", 0) && selects(preset, "dead", 0), "{preset}");
        }
        assert!(!selects(Preset::Stopped, "created", 48));
        assert!(
            selects(Preset::Default, "created", 24) && !selects(Preset::Default, "created", 23)
        );
        assert!(!selects(Preset::Default, "running", 1_000));
        assert!(selects(Preset::Aggressive, "created", 0));
        assert!(selects(Preset::Aggressive, "running", 24));
        assert!(!selects(Preset::Aggressive, "running", 23));
    }

    #[test]
    fn presets_select_sandboxes_that_stopped_or_failed() {
        let selects = |preset: Preset, state: &str, age_hours: i64| {
            let seen = Observed { kind: Kind::Sandbox, ..container("a", state) };
            let now = Timestamp::from_second(1_000_000 + age_hours * 3_600).unwrap();
            preset.selectors().iter().any(|rule| rule.matches(&seen, &Ownership::Foreign, now))
        };
        for preset in Preset::ALL {
            for state in ["stopped", "error", "build_failed"] {
                assert!(selects(preset, state, 0), "{preset} {state}");
            }
            assert!(!selects(preset, "started", 23), "{preset}");
        }
        assert!(!selects(Preset::Stopped, "archived", 48));
        assert!(
            selects(Preset::Default, "archived", 24) && !selects(Preset::Default, "archived", 23)
        );
        assert!(!selects(Preset::Default, "started", 1_000));
        assert!(selects(Preset::Aggressive, "started", 24));
        assert!(selects(Preset::Aggressive, "archived", 0));
    }

    #[test]
    fn every_preset_is_narrowing() {
        for preset in Preset::ALL {
            assert!(preset.selectors().iter().all(Selector::is_narrowing), "{preset}");
        }
    }
}
