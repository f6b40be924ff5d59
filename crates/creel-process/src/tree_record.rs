//! The record of a tree: what keeps it together, which processes hold it, and how it ended.

use creel_model::os::ProcessKey;
use serde::{Deserialize, Serialize};

creel_model::named_enum! {
    /// What keeps a process tree together.
    pub enum Containment: "containment" {
        /// A pid namespace: the kernel ends the tree with its first process.
        PidNamespace = "pid_namespace",
        /// A control group: all its processes are ended together.
        Cgroup = "cgroup",
        /// Descent and a marker in the environment.
        Subreaper = "subreaper",
    }
}

/// Our processes that hold a tree, as the supervisor sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TreeRecord {
    /// What keeps the tree together.
    pub containment: Containment,
    /// The holder.
    pub holder: ProcessKey,
    /// The init.
    pub init: ProcessKey,
}

/// How a process tree ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessEnding {
    /// The workload exited with this code.
    Code(i32),
    /// The workload was ended by this signal.
    Signal(i32),
    /// The lease was not renewed, so the holder ended the tree.
    LeaseExpired,
    /// The init was killed, for example by the kernel's memory limit, and the tree with it.
    InitDied,
}
