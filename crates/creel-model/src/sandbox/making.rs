//! How a provider makes sandboxes, and connects to them again.
//!
//! A provider decides which objects a sandbox consists of. It does not create them itself: each
//! goes through a [`PartMaker`], which puts it on record before it exists. What a crash in the
//! middle leaves is therefore on record.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;

use crate::provider::{ErrorClass, Limits, ProviderError, ProviderName, Spec};

use super::{BridgeProgram, Sandbox};

/// What a sandbox to create is like.
#[derive(Debug, Clone)]
pub struct SandboxOptions {
    /// The image it starts from, if the provider has images.
    pub image: Option<String>,
    /// The snapshot it starts from, if the provider has snapshots.
    pub snapshot: Option<String>,
    /// Variables of every command in it. They are never part of the sandbox itself.
    pub env: BTreeMap<String, SecretString>,
    /// The limits of its resources.
    pub limits: Limits,
    /// The maximum size of its disk in bytes, if the provider can limit that.
    pub disk: Option<u64>,
    /// The network it joins; `None` means the provider's default.
    pub network: Option<String>,
    /// How long it may live without a renewal.
    pub lease: Duration,
}

impl SandboxOptions {
    /// Rejects options that a provider does not have, rather than ignore them silently.
    ///
    /// # Errors
    ///
    /// Fails when one of these keys is set.
    pub fn refuse(&self, provider: ProviderName, keys: &[&str]) -> Result<(), ProviderError> {
        let all =
            [("image", &self.image), ("network", &self.network), ("snapshot", &self.snapshot)];
        match all.iter().find(|(key, value)| keys.contains(key) && value.is_some()) {
            Some((key, _)) => {
                let message = format!("a sandbox of {provider} has no {key} to choose");
                Err(no_sandbox(provider, &message))
            }
            None => Ok(()),
        }
    }
}

/// One object that a sandbox consists of.
#[derive(Debug, Clone)]
pub struct SandboxPart {
    /// The object.
    pub spec: Spec,
    /// The file in the sandbox whose change renews its lease, where it has one.
    pub lease_file: Option<String>,
}

impl SandboxPart {
    /// Returns a part without a lease file.
    pub fn new(spec: Spec) -> Self {
        Self { spec, lease_file: None }
    }
}

/// A part could not be made; its maker knows why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartNotMade;

/// Creates the parts of a sandbox, each on record before it exists.
#[async_trait]
pub trait PartMaker: Send {
    /// Creates a part and returns the provider's id. The parts are released in reverse order.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be made or recorded.
    async fn make(&mut self, part: SandboxPart) -> Result<String, PartNotMade>;
}

/// Why a sandbox could not be created.
#[derive(Debug)]
pub enum SandboxError {
    /// A part could not be made.
    Part(PartNotMade),
    /// The provider refused or failed.
    Provider(ProviderError),
}

impl From<PartNotMade> for SandboxError {
    fn from(part: PartNotMade) -> Self {
        Self::Part(part)
    }
}

impl From<ProviderError> for SandboxError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

/// The parts of an existing sandbox, as they are on record.
#[derive(Debug, Clone)]
pub struct SandboxParts {
    /// The provider.
    pub provider: ProviderName,
    /// The id of the object that runs.
    pub object: String,
    /// The id of its directory, where it has one of its own.
    pub directory: Option<String>,
    /// The name of the bridge program in it.
    pub program: String,
}

/// A provider that has sandboxes.
#[async_trait]
pub trait SandboxProvider: Send + Sync + fmt::Debug {
    /// Returns the name of the provider.
    fn name(&self) -> ProviderName;

    /// Returns the image that a sandbox needs, if the provider does not have it yet.
    ///
    /// # Errors
    ///
    /// Fails when the provider does not answer.
    async fn missing_image(
        &self,
        _options: &SandboxOptions,
    ) -> Result<Option<String>, ProviderError> {
        Ok(None)
    }

    /// Pulls an image from its registry. It stays for the next sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the provider or the registry refuses, or does not answer.
    async fn fetch_image(&self, _image: &str) -> Result<(), ProviderError> {
        Err(no_sandbox(self.name(), "it has no images to pull"))
    }

    /// Creates a sandbox with the bridge program in it.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be created. The caller releases the parts that were made.
    async fn create(
        &self,
        options: &SandboxOptions,
        program: &BridgeProgram,
        parts: &mut dyn PartMaker,
    ) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Connects to an existing sandbox.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be reached. The error is `Gone` when it no longer exists.
    async fn open(
        &self,
        parts: SandboxParts,
        program: &BridgeProgram,
        env: BTreeMap<String, SecretString>,
    ) -> Result<Arc<dyn Sandbox>, ProviderError>;
}

/// Returns the error of a sandbox that cannot be made as requested.
pub fn no_sandbox(provider: ProviderName, message: &str) -> ProviderError {
    ProviderError {
        provider,
        operation: "make a sandbox".to_owned(),
        message: message.to_owned(),
        class: ErrorClass::Invalid,
        retry_after: None,
    }
}
