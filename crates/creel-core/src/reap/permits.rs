//! Permits: before an item starts, its provider must grant a permit.
//!
//! At most one permit per provider is pending at a time, concurrently with the running releases. A
//! provider that has reached its limit therefore delays no other, and waiting items can still be
//! left alone when the work is interrupted.

use std::collections::{HashMap, HashSet};

use creel_model::provider::{Permit, ProviderName, Providers};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

/// The permits that are available, and those that are pending.
pub(super) struct Permits<'a> {
    providers: &'a Providers,
    ready: HashMap<ProviderName, Permit>,
    requested: HashSet<ProviderName>,
    waiting: FuturesUnordered<BoxFuture<'a, (ProviderName, Permit)>>,
}

impl<'a> Permits<'a> {
    pub(super) fn new(providers: &'a Providers) -> Self {
        let (ready, requested, waiting) = Default::default();
        Self { providers, ready, requested, waiting }
    }

    /// Returns whether an item of this provider may start.
    pub(super) fn is_ready(&self, provider: ProviderName) -> bool {
        self.ready.contains_key(&provider)
    }

    /// Requests a permit, unless one is available or pending.
    pub(super) fn request(&mut self, name: ProviderName) {
        if self.is_ready(name) || !self.requested.insert(name) {
            return;
        }
        let providers = self.providers;
        let permit = async move {
            match providers.get(name) {
                Ok(provider) => (name, provider.permit().await),
                // The item itself reports that its provider is not available.
                Err(_) => (name, Permit::FREE),
            }
        };
        self.waiting.push(permit.boxed());
    }

    /// Returns whether a requested permit is still pending.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the available permit.
    pub(super) fn take(&mut self, provider: ProviderName) -> Permit {
        self.ready.remove(&provider).unwrap_or_default()
    }

    /// Waits for the next requested permit. Never returns if none was requested.
    pub(super) async fn arrival(&mut self) {
        match self.waiting.next().await {
            Some((name, permit)) => {
                self.requested.remove(&name);
                self.ready.insert(name, permit);
            }
            None => std::future::pending().await,
        }
    }
}
