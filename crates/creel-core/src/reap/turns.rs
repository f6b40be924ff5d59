//! Turns: before an item starts, its provider gives leave.
//!
//! One turn is waited for at a time and provider, beside the releases under
//! way, so that a provider whose limit is reached holds up no other, and what
//! waits can still be left alone when the work is interrupted.

use std::collections::{HashMap, HashSet};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use crate::provider::{ProviderName, Providers, Turn};

/// The turns that are there, and those that are waited for.
pub(super) struct Turns<'a> {
    providers: &'a Providers,
    ready: HashMap<ProviderName, Turn>,
    asked: HashSet<ProviderName>,
    waiting: FuturesUnordered<BoxFuture<'a, (ProviderName, Turn)>>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(providers: &'a Providers) -> Self {
        let (ready, asked, waiting) = Default::default();
        Self { providers, ready, asked, waiting }
    }

    /// Returns whether an item of this provider may start.
    pub(super) fn is_ready(&self, provider: ProviderName) -> bool {
        self.ready.contains_key(&provider)
    }

    /// Asks for a turn, unless one is there or asked for.
    pub(super) fn ask(&mut self, name: ProviderName) {
        if self.is_ready(name) || !self.asked.insert(name) {
            return;
        }
        let providers = self.providers;
        let turn = async move {
            match providers.get(name) {
                Ok(provider) => (name, provider.turn().await),
                // The item itself says that its provider is not at hand.
                Err(_) => (name, Turn::FREE),
            }
        };
        self.waiting.push(turn.boxed());
    }

    /// Returns whether a turn was asked for that is not there yet.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the turn that is there.
    pub(super) fn take(&mut self, provider: ProviderName) -> Turn {
        self.ready.remove(&provider).unwrap_or_default()
    }

    /// Waits for the next turn that was asked for; never ends where none was.
    pub(super) async fn arrival(&mut self) {
        match self.waiting.next().await {
            Some((name, turn)) => {
                self.asked.remove(&name);
                self.ready.insert(name, turn);
            }
            None => std::future::pending().await,
        }
    }
}
