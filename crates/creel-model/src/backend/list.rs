//! The list of backends.

use crate::provider::{Preset, PresetRule, ProviderName, UnknownName};

use super::Backend;

/// The backends of a program.
#[derive(Debug, Clone, Copy)]
pub struct Backends {
    all: &'static [&'static dyn Backend],
    default: ProviderName,
}

impl Backends {
    /// Lists backends. `default` is the provider of a workflow that names none.
    pub const fn new(all: &'static [&'static dyn Backend], default: ProviderName) -> Self {
        Self { all, default }
    }

    /// Returns the provider of a workflow that names none.
    pub fn default_provider(self) -> ProviderName {
        self.default
    }

    /// Returns all backends.
    pub fn iter(self) -> impl Iterator<Item = &'static dyn Backend> {
        self.all.iter().copied()
    }

    /// Returns the names of all providers, in alphabetical order.
    pub fn names(self) -> Vec<ProviderName> {
        let mut names: Vec<ProviderName> = self.iter().map(|backend| backend.name()).collect();
        names.sort();
        names
    }

    /// Returns the provider that a user named.
    ///
    /// # Errors
    ///
    /// Fails with a suggestion when there is no provider of that name.
    pub fn named(self, name: &str) -> Result<ProviderName, UnknownName> {
        UnknownName::pick(name, "provider", &self.names(), ProviderName::name)
    }

    /// Returns the backend of a provider.
    pub fn get(self, name: ProviderName) -> Option<&'static dyn Backend> {
        self.iter().find(|backend| backend.name() == name)
    }

    /// Returns every state that some provider reports.
    pub fn states(self) -> Vec<&'static str> {
        self.iter().flat_map(|backend| backend.states()).collect()
    }

    /// Returns the rules of a preset for all providers.
    pub fn preset_rules(
        self,
        preset: Preset,
    ) -> impl Iterator<Item = (ProviderName, &'static PresetRule)> {
        self.iter().flat_map(move |backend| {
            let rules = backend.preset_rules().iter().filter(move |rule| rule.is_in(preset));
            rules.map(|rule| (backend.name(), rule))
        })
    }
}
