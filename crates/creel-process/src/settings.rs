//! Settings of the process provider.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::tree_record::Containment;

/// The program that runs as holder and as init.
///
/// It is started with these arguments and then the resource id. Its environment holds nothing but
/// the marker, and its request is on the standard input. It must do nothing but call
/// [`holder::run`](crate::holder::run), before it opens a file or starts a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderProgram {
    /// The program; `/proc/self/exe` is this one, even after its file was replaced.
    pub program: PathBuf,
    /// The arguments before the resource id.
    pub args: Vec<String>,
}

/// Settings of the process provider.
#[derive(Debug, Clone)]
pub struct ProcessSettings {
    /// The directory that holds records and directories; it is created when needed.
    pub root: PathBuf,
    /// The program that runs as holder and as init.
    pub holder: HolderProgram,
    /// The only containment to use; `None` takes the best that works.
    pub containment: Option<Containment>,
}
