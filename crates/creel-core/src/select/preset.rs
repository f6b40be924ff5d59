//! Presets: selectors from the rules of the providers.

use creel_model::provider::{Preset, PresetRule, ProviderName};

use super::Selector;

/// Returns the selectors of a preset.
pub fn preset_selectors<'a>(
    preset: Preset,
    rules: impl IntoIterator<Item = (ProviderName, &'a PresetRule)>,
) -> Vec<Selector> {
    let selector = |(provider, rule): (ProviderName, &PresetRule)| Selector {
        rule: format!("preset:{preset}/{}", rule.name),
        providers: vec![provider],
        kinds: vec![rule.kind],
        states: rule.states.iter().map(|&state| state.to_owned()).collect(),
        older_than: rule.older_than(preset),
        ..Selector::default()
    };
    rules.into_iter().filter(|(_, rule)| rule.is_in(preset)).map(selector).collect()
}

#[cfg(test)]
mod tests {
    use creel_model::backend::Backends;
    use creel_model::provider::{Kind, Observed};
    use jiff::Timestamp;

    use super::*;
    use crate::select::Ownership;
    use crate::select::selector::tests::container;

    fn selectors(preset: Preset) -> Vec<Selector> {
        const BACKENDS: Backends = Backends::new(
            &[&creel_docker::DockerBackend, &creel_daytona::DaytonaBackend],
            creel_docker::NAME,
        );
        preset_selectors(preset, BACKENDS.preset_rules(preset))
    }

    fn selects(preset: Preset, state: &str, age_hours: i64) -> bool {
        let seen = container("a", state);
        let now = Timestamp::from_second(1_000_000 + age_hours * 3_600).unwrap();
        selectors(preset).iter().any(|rule| rule.matches(&seen, &Ownership::Foreign, now))
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
            let seen = Observed {
                provider: creel_daytona::NAME,
                kind: Kind::Sandbox,
                ..container("a", state)
            };
            let now = Timestamp::from_second(1_000_000 + age_hours * 3_600).unwrap();
            selectors(preset).iter().any(|rule| rule.matches(&seen, &Ownership::Foreign, now))
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
            assert!(selectors(preset).iter().all(Selector::is_narrowing), "{preset}");
        }
    }
}
