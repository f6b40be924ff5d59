//! Capabilities: what an agent may do in its sandbox, determined by trying.

use std::collections::BTreeMap;

use creel_sanitise::Diagnostic;
use serde::{Deserialize, Serialize};

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
    /// Returns the name of the capability.
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

/// What is known about a capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// Whether it is available.
    pub available: bool,
    /// The evidence for that.
    pub evidence: Diagnostic,
}

/// What is known about all capabilities.
pub type Capabilities = BTreeMap<Capability, Ability>;
