//! Capabilities: what an agent may do in its sandbox, found out by trying.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sanitise::Diagnostic;

/// Something an agent may want to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Act as root.
    Elevated,
    /// Use a browser.
    Browser,
    /// Write files in the workspace.
    File,
    /// Start programs.
    Process,
    /// Reach the network.
    Network,
}

impl Capability {
    /// Returns the word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Elevated => "elevated",
            Self::Browser => "browser",
            Self::File => "file",
            Self::Process => "process",
            Self::Network => "network",
        }
    }
}

/// What is known of a capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// Whether it is there.
    pub available: bool,
    /// How that is known.
    pub evidence: Diagnostic,
}

/// What is known of all of them.
pub type Capabilities = BTreeMap<Capability, Ability>;
