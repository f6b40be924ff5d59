//! The selector flags that listing and sweeping share.

use std::time::Duration;

use clap::Args;
use creel_core::provider::{Kind, ProviderName};
use creel_core::select::{LabelMatch, LedgerChoice, NamePattern, Preset, Selector};

use crate::output::Failure;

/// Select by properties; several values of one flag mean any, several flags mean all
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selectors")]
pub(crate) struct SelectorArgs {
    /// Only in this provider: daytona, docker, process
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Vec<ProviderName>,
    /// Only of this kind: sandbox, process, container, network, volume, image, directory
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<Kind>,
    /// Only in this state, as `creel ls` shows it: running, exited, stopped, error, dangling …
    #[arg(long, value_name = "STATE")]
    state: Vec<String>,
    /// Only made at least this long ago: 90s, 2h, 1d
    #[arg(long, value_name = "AGE", value_parser = creel_core::duration::parse)]
    pub(crate) older_than: Option<Duration>,
    /// Only without activity for at least this long, where the provider tells: 30m, 1d
    #[arg(long, value_name = "AGE", value_parser = creel_core::duration::parse)]
    pub(crate) idle_for: Option<Duration>,
    /// Only with this label; all of them when given several times
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Vec<LabelMatch>,
    /// Only with a name that fits this pattern (*, ?, [a-z])
    #[arg(long, value_name = "GLOB")]
    name: Vec<NamePattern>,
    /// Only of this Compose project
    #[arg(long, value_name = "NAME")]
    project: Vec<String>,
    /// Only what this ledger tracks
    #[arg(long)]
    owned: bool,
    /// Only what another ledger made: its id, or `lost` for any whose owner is dead
    #[arg(long, value_name = "ID|lost")]
    ledger: Option<LedgerChoice>,
}

impl SelectorArgs {
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
        };
        selector.check_states()?;
        selector.rule = selector.describe();
        Ok(selector)
    }

    /// Returns a preset's selectors, each narrowed by the flags.
    pub(crate) fn narrow(&self, preset: Preset) -> Result<Vec<Selector>, Failure> {
        let flags = self.selector()?;
        if !flags.kinds.is_empty() || !flags.states.is_empty() || flags.older_than.is_some() {
            return Err(Failure::usage("a preset brings its own --kind, --state and --older-than")
                .hint("leave these out, or leave the preset out and say what you mean"));
        }
        let narrowed = preset.selectors().into_iter().map(|rule| Selector {
            rule: rule.rule.clone(),
            kinds: rule.kinds,
            states: rule.states,
            older_than: rule.older_than,
            ..flags.clone()
        });
        Ok(narrowed.collect())
    }
}
