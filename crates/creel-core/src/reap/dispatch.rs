//! The dispatcher: decides which item starts next, and when no more items start.

use creel_model::provider::{ErrorClass, Permit, ProviderName, Providers};

use crate::plan::PlanItem;

use super::pace::Paces;
use super::permits::Permits;
use super::queue::ReleaseQueue;

/// Decides which item starts. The releases themselves run elsewhere.
pub(super) struct Dispatcher<'a> {
    items: &'a [PlanItem],
    providers: &'a Providers,
    queue: ReleaseQueue,
    paces: Paces,
    permits: Permits<'a>,
    /// Why no more items start.
    stopped: Option<&'static str>,
}

impl<'a> Dispatcher<'a> {
    pub(super) fn new(
        items: &'a [PlanItem],
        providers: &'a Providers,
        concurrency: Option<usize>,
    ) -> Self {
        let (queue, permits) = (ReleaseQueue::of(items), Permits::new(providers));
        Self { items, providers, queue, paces: Paces::new(concurrency), permits, stopped: None }
    }

    /// Returns an item that may start now, with its permit. If there is none, requests the
    /// missing permits.
    pub(super) fn next(&mut self) -> Option<(usize, Permit)> {
        if self.stopped.is_some() {
            return None;
        }
        // Read on every call: a provider learns its limits over time.
        for provider in self.providers.iter() {
            if let Some(concurrency) = provider.concurrency() {
                self.paces.set_reported(provider.name(), concurrency);
            }
        }
        let (paces, permits) = (&self.paces, &self.permits);
        let index = self.queue.take(|name| paces.has_room(name) && permits.is_ready(name));
        if let Some(index) = index {
            let name = self.provider_of(index);
            self.paces.start(name);
            return Some((index, self.permits.take(name)));
        }
        for name in self.queue.ready().filter(|name| self.paces.has_room(*name)) {
            self.permits.request(name);
        }
        None
    }

    /// Waits for a requested permit. Never returns if there is none to wait for.
    pub(super) async fn permit(&mut self) {
        self.permits.arrival().await;
    }

    /// Returns whether an item may still start once its permit arrives.
    pub(super) fn awaits_permit(&self) -> bool {
        self.stopped.is_none() && self.permits.is_awaited()
    }

    /// Marks an item as finished, so that items that waited for it or for capacity may start.
    pub(super) fn finish(&mut self, index: usize, error: Option<ErrorClass>) {
        self.paces.finish(self.provider_of(index), error);
        self.queue.done(index);
    }

    /// Prevents further items from starting.
    pub(super) fn stop(&mut self, why: &'static str) {
        self.stopped.get_or_insert(why);
    }

    /// Returns why no more items start.
    pub(super) fn stopped(&self) -> Option<&'static str> {
        self.stopped
    }

    fn provider_of(&self, index: usize) -> ProviderName {
        self.items[index].seen.provider
    }
}
