//! The owner of a resource or a run, as recorded.

use creel_model::os;
use creel_model::owner::Owner;
use creel_sanitise::Masked;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

creel_model::named_enum! {
    /// What happens to a resource when its owner dies.
    pub enum OnOwnerDeath: "policy" {
        /// The watchdog or the next reconcile releases it immediately.
        Release = "release",
        /// It is kept until its lease expires.
        Hold = "hold",
    }
}

/// An owner with details for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// The identity.
    pub owner: Owner,
    /// The command it runs, without arguments that could hold a secret.
    pub command: Masked,
    /// When the process started, in milliseconds since the epoch.
    pub started_at_ms: i64,
}

impl OwnerRecord {
    /// Returns the record of this process.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn this_process(command: &str) -> std::io::Result<Self> {
        let owner = Owner::this_process()?;
        let started_at_ms = os::started_at_ms(&owner.process);
        let command = Masked::from(command);
        Ok(Self { owner, command, started_at_ms })
    }

    /// Returns when the process started.
    pub fn started_at(&self) -> Timestamp {
        Timestamp::from_millisecond(self.started_at_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}
