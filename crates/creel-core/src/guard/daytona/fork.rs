//! Forks: a create that takes no labels.
//!
//! What a fork inherits of the sandbox it is made from, its labels for one, is
//! the service's business; so it gets labels and switches of its own at once.

use std::sync::Arc;

use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use tracing::warn;

use crate::guard::claims::Claim;
use crate::provider::daytona::{Answered, Renewal};

use super::body::{self, Armed, Switches};
use super::create::{Origin, Outcome};
use super::forward::{Answer, Body, Order};
use super::gate::{Cut, DaytonaGate};

impl DaytonaGate {
    pub(super) async fn fork(
        self: &Arc<Self>,
        order: Order,
        body: Incoming,
    ) -> Result<Response<Body>, Cut> {
        let gate = Arc::clone(self);
        let work = move |body| async move { gate.fork_to_the_end(order, body).await };
        self.finish(body, work).await
    }

    async fn fork_to_the_end(
        self: &Arc<Self>,
        order: Order,
        body: Bytes,
    ) -> Result<Response<Body>, Cut> {
        let (mut body, claim) = match self.read_claimed(&order, &body).await {
            Ok(claimed) => claimed,
            Err(refused) => return Ok(refused),
        };
        let named = body::is_absent(&body, "name");
        if named {
            body.set("name", &claim.name());
        }
        let sent = self.exchange_in_time(&order, body.to_bytes().into()).await;
        let origin = Origin::Fork { named };
        self.settle_soon(claim, Outcome::of(&sent), origin, Armed::NOT, None).await;
        sent.map(Answer::into_response)
    }

    /// Gives a fork the labels of its claim, and switches of its own.
    pub(super) async fn mark_fork(&self, id: &str, claim: &Claim) {
        if let Err(error) = self.label_fork(id, claim).await {
            warn!(id, %error, "a fork could not be labelled; only its record leads to it");
        }
        let Some(switches) = self.switches() else { return };
        if let Err(error) = self.arm_fork(id, switches).await {
            warn!(id, %error, "a fork has no switch of its own by which it ends");
        }
    }

    async fn label_fork(&self, id: &str, claim: &Claim) -> Answered<()> {
        let mut labels = self.provider.wire().get(id).await?.labels;
        labels.extend(claim.labels.iter());
        self.provider.wire().set_labels(id, &labels).await
    }

    async fn arm_fork(&self, id: &str, switches: Switches) -> Answered<()> {
        let (wire, minutes) = (self.provider.wire(), switches.minutes);
        let stops_after = wire.get(id).await?.auto_stop_minutes.unwrap_or(0);
        let never_stops = stops_after == 0;
        if never_stops {
            wire.set_auto_stop(id, minutes).await?;
        }
        let lives = match wire.set_time_to_live(id, minutes).await {
            Err(refusal) if refusal.is_absence() => {
                self.note_no_time_to_live();
                None
            }
            set => set.map(|()| Some(minutes))?,
        };
        // The switch of the sandbox it was made from is ours too.
        let activity = never_stops || u64::try_from(stops_after) == Ok(minutes);
        self.provider.renew_as(id, Renewal { activity, minutes: lives });
        Ok(())
    }
}
