//! Specifications of objects to create.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::ResourceId;
use crate::labels::Labels;

use super::{Kind, Marks};

/// A complete create request: spec, name and labels.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// The resource it is created for.
    pub resource: ResourceId,
    /// Its deterministic name.
    pub name: String,
    /// All labels it gets: the user's and ours.
    pub labels: Labels,
    /// How long it may live without a renewal of its lease.
    pub lease: Duration,
    /// The object to create.
    pub spec: Spec,
}

impl CreateRequest {
    /// Returns the marks by which the object is found again.
    pub fn marks(&self) -> Marks {
        Marks { kind: self.spec.kind(), resource: self.resource, name: self.name.clone() }
    }
}

/// The object to create.
#[derive(Debug, Clone)]
pub enum Spec {
    /// A running container.
    Container(ContainerSpec),
    /// A container network.
    Network(NetworkSpec),
    /// A container volume.
    Volume(VolumeSpec),
    /// A running cloud sandbox.
    Sandbox(SandboxSpec),
    /// A running process tree.
    Process(ProcessSpec),
    /// An empty directory.
    Directory,
    /// A directory with an empty disk of a fixed size; requires root.
    Disk {
        /// Its size.
        bytes: u64,
    },
}

impl Spec {
    /// Returns the kind of object it describes.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Container(_) => Kind::Container,
            Self::Network(_) => Kind::Network,
            Self::Volume(_) => Kind::Volume,
            Self::Sandbox(_) => Kind::Sandbox,
            Self::Process(_) => Kind::Process,
            Self::Directory | Self::Disk { .. } => Kind::Directory,
        }
    }
}

/// A container, started at once.
#[derive(Debug, Clone, Default)]
pub struct ContainerSpec {
    /// The image to run.
    pub image: String,
    /// The first process, instead of the image's entry point; empty means the image's own.
    pub entry_point: Vec<String>,
    /// The command; empty means the image's own.
    pub command: Vec<String>,
    /// Which process reaps orphans in it.
    pub init: Init,
    /// Files to put into it before it starts; they belong to its user.
    pub files: Vec<Placed>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The network to join, by name; `None` means the engine's default.
    pub network: Option<String>,
    /// The volumes to mount.
    pub mounts: Vec<VolumeMount>,
    /// Its resource limits.
    pub limits: Limits,
    /// The maximum size of its writable layer, in GiB; not every engine can limit that.
    pub disk_gib: Option<u64>,
}

/// The process that reaps orphans in a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Init {
    /// The engine's own init, which runs the command.
    #[default]
    Engine,
    /// The first process itself; it also receives the stop signal.
    FirstProcess,
}

/// A file or directory that is put into a container before it starts.
#[derive(Clone)]
pub struct Placed {
    /// Its absolute path. Parent directories must exist or be placed before it.
    pub path: String,
    /// Its mode.
    pub mode: u32,
    /// Its content; `None` is a directory.
    pub content: Option<Bytes>,
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.content.as_ref().map(Bytes::len);
        f.debug_struct("Placed").field("path", &self.path).field("size", &size).finish()
    }
}

/// A named volume at a path in a container.
#[derive(Debug, Clone)]
pub struct VolumeMount {
    /// The volume's name.
    pub volume: String,
    /// The path where it is mounted.
    pub target: String,
}

/// A container network.
#[derive(Debug, Clone, Default)]
pub struct NetworkSpec {
    /// Whether it has no route to outside networks.
    pub internal: bool,
}

/// A container volume of the engine's default driver.
#[derive(Debug, Clone, Default)]
pub struct VolumeSpec {}

/// A cloud sandbox, started at once.
#[derive(Debug, Clone, Default)]
pub struct SandboxSpec {
    /// What it starts from.
    pub source: SandboxSource,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The user in it; `None` means the provider's default.
    pub user: Option<String>,
    /// The region; `None` means the configured one.
    pub target: Option<String>,
}

/// What a cloud sandbox starts from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SandboxSource {
    /// The provider's default.
    #[default]
    Default,
    /// A snapshot, which brings its own resources.
    Snapshot(String),
    /// An image with its resources; `None` means the provider's default.
    Image {
        /// The image.
        reference: String,
        /// Processors.
        cpus: Option<u64>,
        /// Memory in GiB.
        memory_gib: Option<u64>,
        /// Disk in GiB.
        disk_gib: Option<u64>,
    },
}

/// A process tree. It inherits no environment except what is named here.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The environment, on top of a bare `PATH`, `HOME`, `LANG`.
    pub env: BTreeMap<String, String>,
    /// Its working directory; `None` means the root directory.
    pub directory: Option<PathBuf>,
    /// Its resource limits.
    pub limits: Limits,
}

/// Resource limits of a container or process tree; `None` is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Processors, possibly fractional.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

impl Limits {
    /// The least part of a processor that kernels can limit.
    const LEAST_CPUS: f64 = 0.01;

    /// Returns why these limits cannot be enforced, if they cannot.
    ///
    /// A limit that rounds to zero would mean "unlimited" to an engine.
    pub fn mistake(&self) -> Option<String> {
        if self.cpus.is_some_and(|cpus| !cpus.is_finite() || cpus < Self::LEAST_CPUS) {
            return Some(format!("a limit on processors must be at least {}", Self::LEAST_CPUS));
        }
        let zero = [("memory", self.memory), ("processes", self.processes)];
        let zero = zero.into_iter().find(|(_, limit)| *limit == Some(0));
        zero.map(|(name, _)| format!("a limit on {name} must be more than zero"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_rounds_to_zero_is_a_mistake() {
        let with = |cpus| Limits { cpus: Some(cpus), ..Limits::default() }.mistake();
        for cpus in [0.0, -1.0, 1e-10, 0.009, f64::NAN, f64::INFINITY] {
            assert!(with(cpus).is_some(), "{cpus}");
        }
        assert_eq!((with(0.01), with(1.5)), (None, None));
        assert!(Limits { memory: Some(0), ..Limits::default() }.mistake().is_some());
        assert!(Limits { processes: Some(0), ..Limits::default() }.mistake().is_some());
        assert_eq!(Limits::default().mistake(), None);
    }
}
