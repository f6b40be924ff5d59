//! What a guarded command may create.

/// Limits for a guarded command. The default allows everything that can be tracked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The maximum number of containers at once.
    pub max_containers: Option<usize>,
    /// The memory limit of one container, in bytes. A container that sets no limit gets this one.
    pub max_memory: Option<u64>,
    /// The maximum number of sandboxes at once.
    pub max_sandboxes: Option<usize>,
    /// Refuses privileged containers and commands.
    pub deny_privileged: bool,
    /// Refuses mounts of host directories in containers.
    pub deny_host_mounts: bool,
    /// Allows requests that create what cannot be tracked, such as swarm objects and plugins.
    pub allow_untracked: bool,
    /// Keeps all images, including those that the command made.
    pub keep_images: bool,
}
