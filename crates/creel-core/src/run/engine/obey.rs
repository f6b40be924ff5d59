//! What others ask of a run while it goes on: messages, and to go on after a pause.
//!
//! An order stays open until it was carried out, so the driver after this one gets it again. A
//! message is told to the bridge under the order's key, which the bridge takes once; what was
//! passed on last is part of the run's state.

use creel_bridge::serve;
use secrecy::ExposeSecret;
use tracing::warn;

use crate::ledger::PlacedOrder;
use crate::run::orders::Order;
use crate::run::{Phase, RunEvent, messages};

use super::course::{Course, Prompt};
use super::turns::Next;
use super::{Drive, Stopped};

impl Drive {
    /// Does what somebody asked for, and notes that it was done.
    pub(super) async fn obey(
        &mut self,
        course: &mut Course,
        placed: PlacedOrder,
    ) -> Result<Next, Stopped> {
        let PlacedOrder { key, order, .. } = placed;
        let next = match order {
            Order::Message { .. } => return self.take_message(course, key).await,
            Order::Resume if self.journal.state().phase == Phase::Paused => {
                course.waiting_since = None;
                self.enter(Phase::Running).await?;
                self.go_on_or_end(course).await?
            }
            Order::Resume => Next::Listen,
            Order::Cancel => {
                self.orders.cancel.cancel();
                Next::Listen
            }
        };
        self.close_order(&key).await;
        Ok(next)
    }

    /// Gives a message to a question that waits, or keeps it for a turn of its own.
    async fn take_message(&mut self, course: &mut Course, key: String) -> Result<Next, Stopped> {
        let was_told = self.was_passed_on(&key) || course.taken.contains(&key);
        let text = messages::read(self.means.ledger.home(), self.journal.run(), &key);
        if let Ok(text) = &text {
            self.hide_text(text.expose_secret());
        }
        if was_told {
            // The driver before this one died before it could say so.
            self.note_passed_on(&key).await?;
            return Ok(Next::Listen);
        }
        let text = match text {
            Ok(text) => text.expose_secret().to_owned(),
            Err(error) => {
                warn!(%error, key, "the text of a message is not there; it is left out");
                self.close_order(&key).await;
                return Ok(Next::Listen);
            }
        };
        if let Some(open) = self.journal.state().request.clone() {
            let request = open.request.to_string();
            let answer = serve::Command::Answer { request, text };
            self.tell(course, &key, &answer).await?;
            self.note_passed_on(&key).await?;
            return Ok(Next::Listen);
        }
        course.prompts.push_back(Prompt { text, message: Some(key) });
        let is_idle = !course.is_busy && self.journal.state().phase == Phase::Running;
        if is_idle { self.go_on_or_end(course).await } else { Ok(Next::Listen) }
    }

    fn was_passed_on(&self, key: &str) -> bool {
        self.journal.state().passed_on.as_ref().is_some_and(|last| last.as_str() == key)
    }

    /// Records that a message reached the agent, and closes its order.
    pub(super) async fn note_passed_on(&mut self, key: &str) -> Result<(), Stopped> {
        if !self.was_passed_on(key) {
            self.record(RunEvent::MessageTaken { key: key.into() }).await?;
        }
        messages::remove(self.means.ledger.home(), self.journal.run(), key);
        self.close_order(key).await;
        Ok(())
    }

    async fn close_order(&self, key: &str) {
        if let Err(error) = self.means.ledger.take_order(key).await {
            // Whoever drives the run next gets it again, and knows by its key that it was done.
            warn!(%error, "an order could not be marked as done");
        }
    }

    /// Returns whether somebody left a message that was not passed on yet.
    pub(super) async fn is_message_on_its_way(&self) -> bool {
        match self.means.ledger.open_orders(self.journal.run()).await {
            Ok(open) => open.iter().any(|placed| {
                matches!(placed.order, Order::Message { .. }) && !self.was_passed_on(&placed.key)
            }),
            Err(error) => {
                warn!(%error, "whether there are messages could not be looked up");
                false
            }
        }
    }
}
