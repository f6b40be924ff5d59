//! Turns: before an item starts, its provider must grant a turn.
//!
//! At most one turn per provider is pending at a time, concurrently with the running releases. A
//! provider that has reached its limit therefore delays no other, and waiting items can still be
//! left alone when the work is interrupted.

use std::collections::{HashMap, HashSet};

use creel_model::provider::{ProviderName, Providers, ReleaseTurn};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

/// The turns that are available, and those that are pending.
pub(super) struct Turns<'a> {
    providers: &'a Providers,
    ready: HashMap<ProviderName, ReleaseTurn>,
    requested: HashSet<ProviderName>,
    waiting: FuturesUnordered<BoxFuture<'a, (ProviderName, ReleaseTurn)>>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(providers: &'a Providers) -> Self {
        let (ready, requested, waiting) = Default::default();
        Self { providers, ready, requested, waiting }
    }

    /// Returns whether an item of this provider may start.
    pub(super) fn is_ready(&self, provider: ProviderName) -> bool {
        self.ready.contains_key(&provider)
    }

    /// Requests a turn, unless one is available or pending.
    pub(super) fn request(&mut self, name: ProviderName) {
        if self.is_ready(name) || !self.requested.insert(name) {
            return;
        }
        let providers = self.providers;
        let turn = async move {
            match providers.get(name) {
                Ok(provider) => (name, provider.turn().await),
                // The item itself reports that its provider is not available.
                Err(_) => (name, ReleaseTurn::FREE),
            }
        };
        self.waiting.push(turn.boxed());
    }

    /// Returns whether a requested turn is still pending.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the available turn.
    pub(super) fn take(&mut self, provider: ProviderName) -> ReleaseTurn {
        self.ready.remove(&provider).unwrap_or_default()
    }

    /// Waits for the next requested turn. Never returns if none was requested.
    pub(super) async fn arrival(&mut self) {
        match self.waiting.next().await {
            Some((name, turn)) => {
                self.requested.remove(&name);
                self.ready.insert(name, turn);
            }
            None => std::future::pending().await,
        }
    }
}
