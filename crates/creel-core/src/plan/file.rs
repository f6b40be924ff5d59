//! Plans on disk.

use std::io;
use std::path::{Path, PathBuf};

use creel_model::os;

use super::Plan;

/// The version of the file format.
pub const VERSION: u32 = 1;

/// A plan file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// It cannot be read or written.
    #[error("cannot use the plan file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a plan.
    #[error("{} is not a plan: {detail}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// It was written by a newer creel.
    #[error("the plan {} has version {found}, this creel knows {VERSION}", path.display())]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
}

impl Plan {
    /// Writes the plan atomically.
    ///
    /// # Errors
    ///
    /// Fails when the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PlanFileError> {
        let text = serde_json::to_string(self).expect("a plan is plain data");
        os::write_atomically(path, &format!("{text}\n"))
            .map_err(|source| PlanFileError::Io { path: path.to_owned(), source })
    }

    /// Reads a plan.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read, is not a plan, or is too new.
    pub fn read(path: &Path) -> Result<Self, PlanFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PlanFileError::Io { path: path.to_owned(), source })?;
        let invalid = |error: serde_json::Error| PlanFileError::Invalid {
            path: path.to_owned(),
            detail: error.to_string(),
        };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(invalid)?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(found) if found > u64::from(VERSION) => {
                Err(PlanFileError::NewerVersion { path: path.to_owned(), found })
            }
            _ => serde_json::from_value(value).map_err(invalid),
        }
    }
}
