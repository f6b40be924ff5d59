//! Handles what a command does to sandboxes of its guard.
//!
//! The guard's labels stay, a setting of "never" is replaced, and what the command deletes is
//! verified gone.

use std::sync::Arc;
use std::time::Duration;

use creel_daytona::SandboxState;
use creel_ledger::Record;
use creel_model::provider::{Kind, Provider};
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Incoming;
use tracing::{debug, warn};

use crate::json::JsonObject;

use super::body;
use super::forward::{self, ForwardRequest, ForwardResponse, ProxyBody};
use super::gate::{DaytonaGate, NoResponse};

/// The pauses before each check whether a deleted sandbox is gone. After them, the guard checks
/// again at its end.
const CHECK_PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

impl DaytonaGate {
    /// Replaces the labels of a sandbox, and keeps ours.
    pub(super) async fn replace_labels(
        &self,
        key: &str,
        request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let mut bytes = forward::read(body).await.ok_or(NoResponse::CLOSED)?;
        if let (Some(record), Ok(mut body)) = (self.record_of(key).await, JsonObject::parse(&bytes))
            && body.get("labels").is_some_and(|labels| labels.is_object())
        {
            body::add_labels(&mut body, &record.labels);
            bytes = body.to_bytes().into();
        }
        self.exchange(&request, bytes).await.map(ForwardResponse::into_response)
    }

    /// Sets after how many idle minutes a sandbox stops. "Never" becomes: when it is not renewed.
    pub(super) async fn set_auto_stop(
        &self,
        key: &str,
        minutes: i64,
        mut request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let object = self.object_of(key).await;
        if let (Some(_), 0, Some(switches)) = (&object, minutes, self.switches()) {
            replace_last(&mut request, switches.minutes);
        }
        let response = self.forward(request, body).await?;
        if let Some(id) = object.filter(|_| response.status().is_success()) {
            self.provider.change_renewal(&id, |renewal| renewal.activity = minutes == 0);
        }
        Ok(response)
    }

    /// Sets when a sandbox is destroyed. "Never" becomes: when it is not renewed.
    pub(super) async fn set_time_to_live(
        &self,
        key: &str,
        minutes: i64,
        mut request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let object = self.object_of(key).await;
        let mut renewed = None;
        if let (Some(_), 0, Some(switches)) = (&object, minutes, self.switches()) {
            replace_last(&mut request, switches.minutes);
            renewed = Some(switches.minutes);
        }
        let response = self.forward(request, body).await?;
        if let Some(id) = object.filter(|_| response.status().is_success()) {
            self.provider.change_renewal(&id, |renewal| renewal.minutes = renewed);
        }
        Ok(response)
    }

    /// Forwards a delete, and verifies in the background that the sandbox is gone.
    pub(super) async fn delete(
        self: &Arc<Self>,
        key: &str,
        request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        // Read before the delete is sent, which frees the name.
        let record = self.record_of(key).await;
        let response = self.forward(request, body).await?;
        let is_accepted =
            response.status().is_success() || response.status() == StatusCode::NOT_FOUND;
        if let Some(record) = record.filter(|_| is_accepted) {
            self.watch_end(record);
        }
        Ok(response)
    }

    /// Returns whether a sandbox has ended, or is about to.
    pub(super) async fn is_leaving(&self, record: &Record) -> bool {
        let Some(id) = record.state.object() else { return false };
        match self.provider.api().get(id).await {
            Ok(seen) => {
                matches!(seen.state, SandboxState::Destroying | SandboxState::Destroyed)
            }
            Err(refusal) => refusal.is_absence(),
        }
    }

    /// Closes the record of a deleted sandbox once it is verified gone. Until the end of the guard
    /// there may be thousands.
    pub(super) fn watch_end(self: &Arc<Self>, record: Record) {
        let gate = Arc::clone(self);
        self.tasks.spawn(async move {
            let Some(id) = record.state.object().map(str::to_owned) else { return };
            gate.claims.leaving(&record).await;
            for pause in CHECK_PAUSES {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = gate.stop.cancelled() => {}
                }
                match gate.provider.inspect(Kind::Sandbox, &id).await {
                    Ok(None) => return gate.claims.gone(&record, &id).await,
                    Ok(Some(seen)) => debug!(id, state = seen.state, "it is still there"),
                    Err(error) => debug!(id, %error, "it cannot be looked at"),
                }
                // This was the last check. The guard releases what is not gone now at its end.
                if gate.stop.is_cancelled() {
                    return;
                }
            }
            warn!(id, "a deleted sandbox is still there; the end of the guard looks again");
        });
    }

    /// Returns the record of a sandbox of this guard, by its id or name.
    async fn record_of(&self, key: &str) -> Option<Record> {
        let records = match self.claims.open(Kind::Sandbox).await {
            Ok(records) => records,
            Err(error) => {
                warn!(%error, "whose a sandbox is cannot be told");
                return None;
            }
        };
        records.into_iter().find(|record| {
            record.provider == creel_daytona::NAME
                && record.state.object().is_some_and(|id| id == key || record.name == key)
        })
    }

    async fn object_of(&self, key: &str) -> Option<String> {
        self.record_of(key).await?.state.object().map(str::to_owned)
    }
}

/// Replaces the number at the end of a path.
fn replace_last(request: &mut ForwardRequest, minutes: u64) {
    if let Ok(mut parts) = request.url.path_segments_mut() {
        parts.pop_if_empty().pop().push(&minutes.to_string());
    }
}
