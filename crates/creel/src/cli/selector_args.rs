//! The selector flags that `ls` and `sweep` share.

use std::time::Duration;

use clap::Args;
use creel_core::select::{LabelMatch, LedgerChoice, NamePattern, Selector, preset_selectors};
use creel_model::provider::{Kind, Preset, ProviderName};

use crate::backends::{BACKENDS, parse_name, provider_help};
use crate::output::Failure;

/// Selectors: a resource must match every flag, and any value of a repeated flag
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selectors")]
pub(crate) struct SelectorArgs {
    #[arg(long, value_name = "NAME", value_parser = parse_name, help = provider_help())]
    pub(crate) provider: Vec<ProviderName>,
    /// Only resources of this kind: sandbox, process, container, network, volume, image, directory
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<Kind>,
    /// Only resources in this state, as in `creel ls`: running, exited, stopped, error, dangling …
    #[arg(long, value_name = "STATE")]
    state: Vec<String>,
    /// Only resources at least this old: 90s, 2h, 1d
    #[arg(long, value_name = "AGE", value_parser = creel_model::duration::parse)]
    pub(crate) older_than: Option<Duration>,
    /// Only resources idle for at least this long, if the provider reports it: 30m, 1d
    #[arg(long, value_name = "AGE", value_parser = creel_model::duration::parse)]
    pub(crate) idle_for: Option<Duration>,
    /// Only resources with this label; repeat to require several
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Vec<LabelMatch>,
    /// Only resources whose name matches this pattern (*, ?, [a-z])
    #[arg(long, value_name = "GLOB")]
    name: Vec<NamePattern>,
    /// Only resources of this Compose project
    #[arg(long, value_name = "NAME")]
    pub(crate) project: Vec<String>,
    /// Only resources tracked by this ledger
    #[arg(long)]
    owned: bool,
    /// Only resources of another ledger: its id, or `lost` for any with a dead owner
    #[arg(long, value_name = "ID|lost")]
    ledger: Option<LedgerChoice>,
}

impl SelectorArgs {
    /// Returns flags that select only by age and project.
    pub(crate) fn of_age_and_project(older_than: Option<Duration>, project: &[String]) -> Self {
        Self { older_than, project: project.to_vec(), ..Self::default() }
    }

    /// Returns the one selector the flags describe.
    pub(crate) fn selector(&self) -> Result<Selector, Failure> {
        let mut selector = Selector {
            rule: String::new(),
            providers: self.provider.clone(),
            kinds: self.kind.clone(),
            states: self.state.clone(),
            older_than: self.older_than,
            idle_for: self.idle_for,
            labels: self.label.clone(),
            names: self.name.clone(),
            projects: self.project.clone(),
            owned: self.owned,
            ledger: self.ledger,
            all: false,
            spares_kept: false,
        };
        selector.check_states(&BACKENDS.states())?;
        selector.rule = selector.describe();
        Ok(selector)
    }

    /// Returns a preset's selectors, each narrowed by the flags.
    pub(crate) fn narrow(&self, preset: Preset) -> Result<Vec<Selector>, Failure> {
        let flags = self.selector()?;
        let narrowed = preset_selectors(preset, BACKENDS.preset_rules(preset));
        let narrowed = narrowed.into_iter().filter_map(|rule| {
            Some(Selector {
                rule: rule.rule.clone(),
                providers: common(rule.providers, &flags.providers)?,
                kinds: common(rule.kinds, &flags.kinds)?,
                states: common(rule.states, &flags.states)?,
                older_than: rule.older_than.max(flags.older_than),
                ..flags.clone()
            })
        });
        let narrowed: Vec<Selector> = narrowed.collect();
        if narrowed.is_empty() {
            let message =
                format!("the preset {preset} means nothing of that --provider, --kind and --state");
            return Err(Failure::usage(&message)
                .hint("leave the preset out, or see what it means: creel sweep --help"));
        }
        Ok(narrowed)
    }
}

/// Returns the intersection of two lists; an empty list means everything. `None` means nothing.
fn common<T: Clone + PartialEq>(rule: Vec<T>, flags: &[T]) -> Option<Vec<T>> {
    if rule.is_empty() || flags.is_empty() {
        return Some(if rule.is_empty() { flags.to_vec() } else { rule });
    }
    let both: Vec<T> = rule.into_iter().filter(|one| flags.contains(one)).collect();
    (!both.is_empty()).then_some(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_narrow_a_preset_and_never_widen_it() {
        let hour = Duration::from_secs(3_600);
        let flags = SelectorArgs {
            kind: vec![Kind::Container],
            older_than: Some(hour),
            ..SelectorArgs::default()
        };
        let narrowed = flags.narrow(Preset::Default).unwrap();
        let ages: Vec<_> = narrowed.iter().map(|rule| rule.older_than.unwrap() / 3_600).collect();
        assert_eq!(ages, [Duration::from_secs(1), Duration::from_secs(24)]);
        assert!(narrowed.iter().all(|rule| rule.kinds == [Kind::Container]));
        let state = SelectorArgs { state: vec!["dead".to_owned()], ..SelectorArgs::default() };
        let narrowed = state.narrow(Preset::Stopped).unwrap();
        assert_eq!(narrowed.len(), 1);
        assert_eq!(narrowed[0].states, ["dead"]);
        let nothing = SelectorArgs { kind: vec![Kind::Volume], ..SelectorArgs::default() };
        assert!(nothing.narrow(Preset::Stopped).is_err());
    }
}
