//! Why a provider cannot be used as it is configured.

use std::error::Error;

use crate::failure::Code;
use crate::provider::ProviderError;

use super::InvalidSettings;

/// Why a provider cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Its variables or its settings are invalid.
    #[error("{error}")]
    Invalid {
        /// The code of the error page.
        code: Code,
        /// What is wrong.
        error: Box<dyn Error + Send + Sync>,
        /// What to check.
        hint: &'static str,
    },
    /// A command needs it, and it is not configured.
    #[error("{message}")]
    NotConfigured {
        /// What is missing.
        message: &'static str,
        /// How to configure it.
        hint: &'static str,
    },
    /// Its section of the settings is invalid.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
    /// The connection cannot be prepared.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}
