//! Capabilities: what an agent may do in its sandbox, determined by trying.

use std::collections::BTreeMap;

use creel_sanitise::Diagnostic;
use serde::{Deserialize, Serialize};

crate::named_enum! {
    /// Something an agent may want to do.
    pub enum Capability: "capability" {
        /// Act as root.
        Elevated = "elevated",
        /// Use a browser.
        Browser = "browser",
        /// Write files in the workspace.
        File = "file",
        /// Start programs.
        Process = "process",
        /// Reach the network.
        Network = "network",
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
