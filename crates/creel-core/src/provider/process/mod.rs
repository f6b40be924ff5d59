//! Processes: directories and process trees on this machine, with nothing to install.
//!
//! There is no daemon that remembers what was made, so a record on disk (the
//! *sidecar*) plays that part: it is written before the object exists and
//! removed after the object is gone. A tree is held by two processes of ours:
//!
//! ```text
//!   supervisor ──order──▶ holder ──order──▶ init ──exec──▶ workload ─▶ …
//!       ▲                 │    ▲             │                 (CREEL_RESOURCE
//!       └─────started─────┘    └───ended─────┘                  in every environ)
//!                         │
//!                watches the lease file; writes the ending
//! ```
//!
//! The *holder* has a session of its own and outlives the supervisor. It ends
//! the tree when the workload ends, when the lease is not renewed, or when the
//! init dies. The *init* reaps, and ends the tree when the holder dies. How
//! much the kernel helps is the [`Containment`]; the best that works is used
//! and recorded:
//!
//! | containment | what ends the tree |
//! |---|---|
//! | `pid_namespace` | the kernel, when the init (its pid 1) dies |
//! | `cgroup` | `cgroup.kill`, or the freezer and SIGKILL |
//! | `subreaper` | stopping, then killing, every descendant and every process that carries the marker |
//!
//! All three look at the marker, the cgroup and the descent, and are done only
//! after two clean looks in a row. None of them is a security boundary.
//!
//! What a crash in the middle leaves behind is always found again: a sidecar
//! without a tree (`lost`), one that was not even finished (`lost` too), or a
//! tree whose sidecar does not know its pids yet, which the marker in its
//! environment gives away.
//!
//! # Files below the root
//!
//! | name | what it is |
//! |---|---|
//! | `<digits>.json` | the sidecar |
//! | `<digits>.json.new` | the same while it is being written |
//! | `<digits>.log` | what the workload wrote; it grows without a bound |
//! | `<digits>.lease` | changes with every renewal |
//! | `<digits>.exit` | how the workload ended |
//! | `creel-<digits>/` | a directory resource |
//! | `creel-<digits>/disk.img`, `creel-<digits>/disk/` | its disk, where it has one of a fixed size |
//! | `.creel-<digits>.making/` | the same, empty, until it is on record |
//! | `.creel-<digits>.removing/` | the same while it is being removed |
//!
//! A name alone proves nothing: what is released has the identity that was
//! recorded when it was made (see `inode` and `group`). What has the name and
//! another identity was made by somebody else, and stays.

mod attendant;
mod attended;
mod beneath;
mod capability;
mod cgroup;
mod channel;
mod cover;
mod create;
mod directory;
mod disk;
mod group;
pub mod holder;
mod inode;
mod lease;
mod mounts;
mod namespace;
mod observe;
mod provider;
mod release;
mod sidecar;
mod terminal;
mod tree;
mod usage;
mod world;

pub use attendant::{Attendance, attend};
pub use attended::{Attended, AttendedCommand, Attention, CommandEnvironment};
pub use capability::Capabilities;
pub use cgroup::CgroupVersion;
pub use channel::{Containment, Ending};
pub use cover::Cover;
pub use disk::{SMALLEST_DISK, disk_refusal};
pub use provider::ProcessProvider;
pub(crate) use world::io_failure;
pub use world::{HolderProgram, ProcessSettings};

/// The environment variable by which every process of a tree is found again.
pub const RESOURCE_VARIABLE: &str = "CREEL_RESOURCE";
