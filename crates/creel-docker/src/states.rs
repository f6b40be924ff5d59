//! The states that objects of an engine have.

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
