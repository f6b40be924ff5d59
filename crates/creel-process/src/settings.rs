//! Settings of the process provider.

use std::path::PathBuf;

use creel_model::backend::HolderProgram;

use super::tree_record::Containment;

/// Settings of the process provider.
#[derive(Debug, Clone)]
pub struct ProcessSettings {
    /// The directory that holds records and directories; it is created when needed.
    pub root: PathBuf,
    /// The program that runs as holder and as init. It must do nothing but call
    /// [`holder::run`](crate::holder::run), before it opens a file or starts a thread.
    pub holder: HolderProgram,
    /// The only containment to use; `None` takes the best that works.
    pub containment: Option<Containment>,
}
