//! Processes: directories and process trees on this machine, with nothing to install.
//!
//! No daemon remembers what was created, so a record on disk (the *sidecar*) does. It is written
//! before the object exists and removed after the object is gone. Two of our processes hold a tree:
//!
//! ```text
//!   supervisor ─request─▶ holder ─request─▶ init ──exec──▶ workload ─▶ …
//!       ▲                 │    ▲             │                 (CREEL_RESOURCE
//!       └─────started─────┘    └───ended─────┘                  in every environ)
//!                         │
//!                watches the lease file; writes the ending
//! ```
//!
//! The *holder* has a session of its own and outlives the supervisor. It ends the tree when the
//! workload ends, when the lease is not renewed, or when the init dies. The *init* reaps, and ends
//! the tree when the holder dies. The [`Containment`] says how much the kernel helps; the best that
//! works is used and recorded:
//!
//! | containment | what ends the tree |
//! |---|---|
//! | `pid_namespace` | the kernel, when the init (its pid 1) dies |
//! | `cgroup` | `cgroup.kill`, or the freezer and SIGKILL |
//! | `subreaper` | stopping, then killing, every descendant and every process that carries the marker |
//!
//! All three check the marker, the cgroup and the descent, and finish only after two clean checks
//! in a row. None of them is a security boundary.
//!
//! What a crash in the middle leaves behind is always found again. It is a sidecar without a tree
//! (`lost`), an unfinished sidecar (`lost` too), or a tree whose sidecar does not contain its pids
//! yet. The marker in its environment identifies such a tree.
//!
//! # Files below the root
//!
//! | name | what it is |
//! |---|---|
//! | `<digits>.json` | the sidecar |
//! | `<digits>.json.new` | the same while it is being written |
//! | `<digits>.log` | the output of the workload; it grows without a bound |
//! | `<digits>.lease` | changes with every renewal |
//! | `<digits>.exit` | how the workload ended |
//! | `creel-<digits>/` | a directory resource |
//! | `creel-<digits>/disk.img`, `creel-<digits>/disk/` | its disk, where it has one of a fixed size |
//! | `.creel-<digits>.making/` | the same, empty, until it is on record |
//! | `.creel-<digits>.removing/` | the same while it is being removed |
//!
//! A name alone proves nothing: a released object must have the identity that was recorded when it
//! was created (see `inode` and `cgroup`). An object with the name but another identity is not ours,
//! and is kept.

mod attendant;
mod attended;
mod backend;
mod beneath;
mod capability;
mod cgroup;
mod channel;
mod cover;
mod create;
mod directory;
mod disk;
pub mod holder;
mod holder_watch;
mod inode;
mod lease;
mod mounts;
mod namespace;
mod observe;
mod provider;
mod release;
mod sandbox;
mod settings;
mod sidecar;
mod state;
mod terminal;
mod tree;
mod tree_record;
mod usage;

use creel_model::provider::ProviderName;

pub use attendant::{Attendance, attend};
pub use attended::{Attended, AttendedCommand, CommandEnvironment, CommandEvent};
pub use backend::ProcessBackend;
pub use capability::ProcessCapabilities;
pub use cgroup::CgroupVersion;
pub use cover::SocketCover;
pub use creel_model::backend::HolderProgram;
pub use disk::{SMALLEST_DISK, disk_refusal};
pub use provider::ProcessProvider;
pub use sandbox::ProcessSandboxes;
pub use settings::ProcessSettings;
pub use tree_record::{Containment, ProcessEnding};

/// Every state that this provider reports.
pub const STATES: &[&str] =
    &["running", "exited", "present", "lost", "unreadable", "unrecorded", "replaced", "unknown"];

/// The environment variable by which every process of a tree is found again.
pub const RESOURCE_VARIABLE: &str = "CREEL_RESOURCE";

/// The name of this provider.
pub const NAME: ProviderName = ProviderName::new("process");
