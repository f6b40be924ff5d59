//! The objects in a leak certificate.

use creel_sanitise::Masked;
use serde::{Deserialize, Serialize};

use crate::provider::{Kind, Observed, ProviderName};

/// One object in an inventory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CertificateEntry {
    /// The provider.
    pub provider: ProviderName,
    /// The kind of the object.
    pub kind: Kind,
    /// The provider's id.
    pub id: String,
    /// Its name.
    pub name: Masked,
}

impl CertificateEntry {
    /// Describes an observed object.
    pub fn of(seen: &Observed) -> Self {
        Self {
            provider: seen.provider,
            kind: seen.kind,
            id: seen.id.clone(),
            name: seen.name.as_str().into(),
        }
    }
}
