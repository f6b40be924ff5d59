//! What a guarded command may create.

/// Limits for a guarded command; the default allows everything that can be tracked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// How many containers may exist at once.
    pub max_containers: Option<usize>,
    /// How much memory one container may have, in bytes; one that asks for none gets this.
    pub max_memory: Option<u64>,
    /// How many sandboxes may exist at once.
    pub max_sandboxes: Option<usize>,
    /// Refuse containers and commands with the rights of the host.
    pub deny_privileged: bool,
    /// Refuse directories of the host in containers.
    pub deny_host_mounts: bool,
    /// Let requests through that create what cannot be tracked: swarm objects and plugins.
    pub allow_untracked: bool,
    /// Leave images alone, whoever made them.
    pub keep_images: bool,
}
