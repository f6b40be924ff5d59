//! The states that objects of an engine have, and which of them the presets of a sweep select.

use creel_model::provider::{Kind, PresetRule};

/// Every state that this provider reports.
pub const STATES: &[&str] = &[
    // Containers.
    "created",
    "running",
    "paused",
    "restarting",
    "removing",
    "exited",
    "dead",
    // Containers of Podman only.
    "configured",
    "initialized",
    "stopping",
    "stopped",
    // Networks.
    "present",
    // Volumes.
    "named",
    "anonymous",
    // Images.
    "tagged",
    "digested",
    "dangling",
];

/// What the presets of a sweep select on an engine.
pub(super) const PRESET_RULES: &[PresetRule] = &[
    PresetRule {
        name: "stopped",
        kind: Kind::Container,
        // Podman reports an exited container as `stopped` for a while.
        states: &["exited", "dead", "stopped"],
        presets: PresetRule::ALWAYS,
    },
    PresetRule {
        name: "never-started",
        kind: Kind::Container,
        states: &["created"],
        presets: PresetRule::AFTER_A_DAY,
    },
    PresetRule { name: "old", kind: Kind::Container, states: &[], presets: PresetRule::AGGRESSIVE },
    PresetRule {
        name: "old-network",
        kind: Kind::Network,
        states: &[],
        presets: PresetRule::AGGRESSIVE,
    },
    PresetRule {
        name: "old-anonymous-volume",
        kind: Kind::Volume,
        states: &["anonymous"],
        presets: PresetRule::AGGRESSIVE,
    },
    PresetRule {
        name: "old-dangling-image",
        kind: Kind::Image,
        states: &["dangling"],
        presets: PresetRule::AGGRESSIVE,
    },
];
