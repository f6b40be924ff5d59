//! Presets of a sweep: which finished objects they select, as each provider defines it.

use std::time::Duration;

use super::Kind;

crate::named_enum! {
    /// A named set of rules; a resource is selected when one of them matches.
    pub enum Preset: "preset" {
        /// What has stopped or failed, at any age.
        ///
        /// These are containers that are exited or dead, and sandboxes that are stopped, in error
        /// or whose build failed.
        Stopped = "stopped",
        /// [`Preset::Stopped`], and a day after their creation containers that were never started
        /// and archived sandboxes.
        Default = "default",
        /// [`Preset::Default`] at any age, and more resources that are a day old.
        ///
        /// These are containers and sandboxes in every state, unused networks, unused anonymous
        /// volumes, and dangling images.
        Aggressive = "aggressive",
    }
}

/// Objects of one kind and in certain states, and the presets that select them.
#[derive(Debug, Clone, Copy)]
pub struct PresetRule {
    /// The name of the rule in plans and reports.
    pub name: &'static str,
    /// The kind of the objects.
    pub kind: Kind,
    /// Their states; empty means any.
    pub states: &'static [&'static str],
    /// The presets that select them, each with the minimum age.
    pub presets: &'static [(Preset, Option<Duration>)],
}

impl PresetRule {
    /// Objects at any age, in every preset.
    pub const ALWAYS: &'static [(Preset, Option<Duration>)] =
        &[(Preset::Stopped, None), (Preset::Default, None), (Preset::Aggressive, None)];
    /// Objects that are a day old by default, and at any age in the aggressive preset.
    pub const AFTER_A_DAY: &'static [(Preset, Option<Duration>)] =
        &[(Preset::Default, Some(DAY)), (Preset::Aggressive, None)];
    /// Objects that are a day old, in the aggressive preset only.
    pub const AGGRESSIVE: &'static [(Preset, Option<Duration>)] =
        &[(Preset::Aggressive, Some(DAY))];

    /// Returns whether a preset has this rule.
    pub fn is_in(&self, preset: Preset) -> bool {
        self.presets.iter().any(|(one, _)| *one == preset)
    }

    /// Returns the minimum age that a preset requires.
    pub fn older_than(&self, preset: Preset) -> Option<Duration> {
        self.presets.iter().find(|(one, _)| *one == preset).and_then(|(_, age)| *age)
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
