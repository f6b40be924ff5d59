//! What to create.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::id::ResourceId;
use crate::labels::Labels;

use super::{Kind, Marks};

/// A create, complete: what, under which name, with which labels.
#[derive(Debug, Clone)]
pub struct CreateOrder {
    /// The resource it is made for.
    pub resource: ResourceId,
    /// The deterministic name it gets.
    pub name: String,
    /// All labels it gets, those of the user and ours.
    pub labels: Labels,
    /// How long it may live without a renewal of its lease.
    pub lease: Duration,
    /// What is to be made.
    pub spec: Spec,
}

impl CreateOrder {
    /// Returns what the object is found again by.
    pub fn marks(&self) -> Marks {
        Marks { kind: self.spec.kind(), resource: self.resource, name: self.name.clone() }
    }
}

/// What is to be made.
#[derive(Debug, Clone)]
pub enum Spec {
    /// A running container.
    Container(ContainerSpec),
    /// A container network.
    Network(NetworkSpec),
    /// A container volume.
    Volume(VolumeSpec),
    /// A running process tree.
    Process(ProcessSpec),
    /// An empty directory.
    Directory,
}

impl Spec {
    /// Returns what kind of object it describes.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Container(_) => Kind::Container,
            Self::Network(_) => Kind::Network,
            Self::Volume(_) => Kind::Volume,
            Self::Process(_) => Kind::Process,
            Self::Directory => Kind::Directory,
        }
    }
}

/// A container: made with an init, started at once.
#[derive(Debug, Clone, Default)]
pub struct ContainerSpec {
    /// The image to run.
    pub image: String,
    /// The command; empty means the image's own.
    pub command: Vec<String>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The network to join, by name; `None` means the engine's default.
    pub network: Option<String>,
    /// The volumes to mount.
    pub mounts: Vec<VolumeMount>,
    /// What it may use.
    pub limits: Limits,
}

/// A named volume at a path in a container.
#[derive(Debug, Clone)]
pub struct VolumeMount {
    /// The volume's name.
    pub volume: String,
    /// Where it appears.
    pub target: String,
}

/// A container network.
#[derive(Debug, Clone, Default)]
pub struct NetworkSpec {
    /// Whether it has no way out.
    pub internal: bool,
}

/// A container volume of the engine's default driver.
#[derive(Debug, Clone, Default)]
pub struct VolumeSpec {}

/// A process tree. It inherits no environment but what is named here.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The environment, on top of a bare `PATH`, `HOME`, `LANG`.
    pub env: BTreeMap<String, String>,
    /// Where it starts; `None` means the root directory.
    pub directory: Option<PathBuf>,
    /// What it may use.
    pub limits: Limits,
}

/// What a container or process tree may use; `None` is unlimited.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Processors, in parts.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}
