//! Forks: a create that takes no labels.
//!
//! The service decides what a fork inherits from its source sandbox, such as labels. So the fork
//! gets labels and switches of its own at once.

use std::sync::Arc;

use bytes::Bytes;
use creel_daytona::{DaytonaResult, Renewal};
use hyper::Response;
use hyper::body::Incoming;
use tracing::warn;

use crate::claims::Claim;

use super::body::{self, AddedSwitches, Switches};
use super::create::{ForwardOutcome, SandboxOrigin};
use super::forward::{ForwardRequest, ForwardResponse, ProxyBody};
use super::gate::{DaytonaGate, NoResponse};

impl DaytonaGate {
    pub(super) async fn fork(
        self: &Arc<Self>,
        request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let gate = Arc::clone(self);
        let work = move |body| async move { gate.fork_to_the_end(request, body).await };
        self.finish(body, work).await
    }

    async fn fork_to_the_end(
        self: &Arc<Self>,
        request: ForwardRequest,
        body: Bytes,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let (mut body, claim) = match self.read_claimed(&request, &body).await {
            Ok(claimed) => claimed,
            Err(refused) => return Ok(refused),
        };
        let generated_name = body::is_absent(&body, "name");
        if generated_name {
            body.set("name", &claim.name());
        }
        let sent = self.exchange_in_time(&request, body.to_bytes().into()).await;
        let origin = SandboxOrigin::Fork { generated_name };
        self.finalize_soon(claim, ForwardOutcome::of(&sent), origin, AddedSwitches::NOT, None)
            .await;
        sent.map(ForwardResponse::into_response)
    }

    /// Sets the labels of a fork's claim on it, and switches of its own.
    pub(super) async fn mark_fork(&self, id: &str, claim: &Claim) {
        if let Err(error) = self.label_fork(id, claim).await {
            warn!(id, %error, "a fork could not be labelled; only its record leads to it");
        }
        let Some(switches) = self.switches() else { return };
        if let Err(error) = self.arm_fork(id, switches).await {
            warn!(id, %error, "a fork has no switch of its own by which it ends");
        }
    }

    async fn label_fork(&self, id: &str, claim: &Claim) -> DaytonaResult<()> {
        let mut labels = self.provider.api().get(id).await?.labels;
        labels.extend(claim.labels.iter());
        self.provider.api().set_labels(id, &labels).await
    }

    async fn arm_fork(&self, id: &str, switches: Switches) -> DaytonaResult<()> {
        let (api, minutes) = (self.provider.api(), switches.minutes);
        let stops_after = api.get(id).await?.auto_stop_minutes.unwrap_or(0);
        let never_stops = stops_after == 0;
        if never_stops {
            api.set_auto_stop(id, minutes).await?;
        }
        let lives = match api.set_time_to_live(id, minutes).await {
            Err(refusal) if refusal.is_absence() => {
                self.note_no_time_to_live();
                None
            }
            set => set.map(|()| Some(minutes))?,
        };
        // The switch of the source sandbox is ours too.
        let activity = never_stops || u64::try_from(stops_after) == Ok(minutes);
        self.provider.renew_as(id, Renewal { activity, minutes: lives });
        Ok(())
    }
}
