//! The dispatcher: which item starts next, and when nothing more does.

use crate::plan::PlanItem;
use crate::provider::{ErrorClass, ProviderName, Providers, Turn};

use super::order::Order;
use super::pace::Paces;
use super::turns::Turns;

/// Decides what starts; the releases themselves run elsewhere.
pub(super) struct Dispatcher<'a> {
    items: &'a [PlanItem],
    providers: &'a Providers,
    order: Order,
    paces: Paces,
    turns: Turns<'a>,
    /// Why nothing more starts.
    stopped: Option<&'static str>,
}

impl<'a> Dispatcher<'a> {
    pub(super) fn new(
        items: &'a [PlanItem],
        providers: &'a Providers,
        concurrency: Option<usize>,
    ) -> Self {
        let (order, turns) = (Order::of(items), Turns::new(providers));
        Self { items, providers, order, paces: Paces::new(concurrency), turns, stopped: None }
    }

    /// Returns an item that may start now, with its turn; where none may, asks for the turns
    /// that are missing.
    pub(super) fn next(&mut self) -> Option<(usize, Turn)> {
        if self.stopped.is_some() {
            return None;
        }
        // Asked each time: a provider learns its limits as it goes.
        for provider in self.providers.iter() {
            if let Some(concurrency) = provider.concurrency() {
                self.paces.believe(provider.name(), concurrency);
            }
        }
        let (paces, turns) = (&self.paces, &self.turns);
        let index = self.order.take(|name| paces.has_room(name) && turns.is_ready(name));
        if let Some(index) = index {
            let name = self.provider_of(index);
            self.paces.start(name);
            return Some((index, self.turns.take(name)));
        }
        for name in self.order.ready().filter(|name| self.paces.has_room(*name)) {
            self.turns.ask(name);
        }
        None
    }

    /// Waits for a turn that was asked for; never ends where there is none to wait for.
    pub(super) async fn turn(&mut self) {
        self.turns.arrival().await;
    }

    /// Returns whether something may still start once its turn comes.
    pub(super) fn awaits_turn(&self) -> bool {
        self.stopped.is_none() && self.turns.is_awaited()
    }

    /// Lets those start that waited for this one, and for its room.
    pub(super) fn finish(&mut self, index: usize, error: Option<ErrorClass>) {
        self.paces.finish(self.provider_of(index), error);
        self.order.done(index);
    }

    /// Starts nothing more.
    pub(super) fn stop(&mut self, why: &'static str) {
        self.stopped.get_or_insert(why);
    }

    /// Returns why nothing more starts.
    pub(super) fn stopped(&self) -> Option<&'static str> {
        self.stopped
    }

    fn provider_of(&self, index: usize) -> ProviderName {
        self.items[index].seen.provider
    }
}
