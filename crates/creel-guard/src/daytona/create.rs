//! Creates: intent, labels, request, outcome.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use creel_daytona::{DaytonaSandbox, id_in, knows_no_time_to_live};
use creel_ledger::{Record, StateName};
use creel_model::provider::{ErrorClass, Kind, Provider};
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use serde_json::Value;
use tracing::warn;

use crate::claims::Claim;
use crate::json::JsonObject;

use super::body::{self, AddedSwitches};
use super::forward::{self, ForwardRequest, ForwardResponse, ProxyBody};
use super::gate::{DaytonaGate, NoResponse};
use super::refusal::{NOT_RECORDED, refuse};

/// Maximum time for the response to a create. After it the response counts as lost.
const LONGEST: Duration = Duration::from_secs(900);
/// How long a create may continue after the command has ended. The service blocks half a minute.
const GRACE: Duration = Duration::from_secs(35);
/// How long a client waits until the outcome of its create is recorded.
const FINALIZE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses before each search for a create whose response was lost. It may land late.
const SEARCHES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// What a sandbox is created from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxOrigin {
    /// A snapshot or an image. The sandbox carries our labels.
    Template,
    /// Another sandbox.
    Fork {
        /// Whether the guard generated its name, so that nothing else can have it.
        generated_name: bool,
    },
}

/// The outcome of a forwarded request, as the ledger sees it.
#[derive(Debug)]
pub(super) enum ForwardOutcome {
    /// A sandbox was created, with this id.
    Created(String),
    /// Nothing was created.
    Nothing(String),
    /// The request was refused, which does not prove that nothing was created.
    Refused(String),
    /// The requested sandbox may exist, now or later.
    Unknown,
}

impl DaytonaGate {
    pub(super) async fn create(
        self: &Arc<Self>,
        request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let gate = Arc::clone(self);
        let work = move |body| async move { gate.create_to_the_end(request, body).await };
        self.finish(body, work).await
    }

    /// Reads a body, and runs the request in a task of its own. A client that disconnects must not
    /// stop it halfway.
    pub(super) async fn finish<F, W>(
        &self,
        body: Incoming,
        work: F,
    ) -> Result<Response<ProxyBody>, NoResponse>
    where
        F: FnOnce(Bytes) -> W,
        W: Future<Output = Result<Response<ProxyBody>, NoResponse>> + Send + 'static,
    {
        let body = forward::read(body).await.ok_or(NoResponse::CLOSED)?;
        // The panic hook has reported the panic.
        self.tasks.spawn(work(body)).await.unwrap_or(Err(NoResponse::CLOSED))
    }

    /// Parses what is to be created and records the intent, or returns why it must not be created.
    pub(super) async fn read_claimed(
        self: &Arc<Self>,
        request: &ForwardRequest,
        body: &[u8],
    ) -> Result<(JsonObject, Claim), Response<ProxyBody>> {
        let Ok(body) = JsonObject::parse(body) else {
            let reason = "the body of the request is no JSON object";
            return Err(refuse(StatusCode::BAD_REQUEST, &request.path, reason));
        };
        let claim = self.admit(request, body.text("name")).await?;
        Ok((body, claim))
    }

    async fn create_to_the_end(
        self: &Arc<Self>,
        request: ForwardRequest,
        body: Bytes,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let (mut body, claim) = match self.read_claimed(&request, &body).await {
            Ok(claimed) => claimed,
            Err(refused) => return Ok(refused),
        };
        if body::is_absent(&body, "name") {
            body.set("name", &claim.name());
        }
        body::add_labels(&mut body, &claim.labels);
        let (sent, added) = self.send(&request, body).await;
        self.finalize_soon(
            claim,
            ForwardOutcome::of(&sent),
            SandboxOrigin::Template,
            added,
            body_of(&sent),
        )
        .await;
        sent.map(ForwardResponse::into_response)
    }

    /// Sends a create once.
    ///
    /// If the service refuses the time to live that we added because it does not support one, the
    /// create is sent again without it.
    async fn send(
        &self,
        request: &ForwardRequest,
        plain: JsonObject,
    ) -> (Result<ForwardResponse, NoResponse>, AddedSwitches) {
        loop {
            let mut body = plain.clone();
            let added = self
                .switches()
                .map_or(AddedSwitches::NOT, |all| body::add_switches(&mut body, all));
            let sent = self.exchange_in_time(request, body.to_bytes().into()).await;
            let is_unknown = added.renewal.minutes.is_some()
                && sent.as_ref().is_ok_and(|response| {
                    knows_no_time_to_live(Some(response.status.as_u16()), &response.message())
                });
            if !is_unknown {
                return (sent, added);
            }
            // From now on no time to live is added, so this happens once.
            self.note_no_time_to_live();
        }
    }

    /// Sends a request that creates something, with a timeout.
    pub(super) async fn exchange_in_time(
        &self,
        request: &ForwardRequest,
        body: Bytes,
    ) -> Result<ForwardResponse, NoResponse> {
        let closed = async {
            self.stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            response = self.exchange(request, body) => response,
            () = closed => Err(NoResponse::CLOSED),
            () = tokio::time::sleep(LONGEST) => Err(NoResponse::CLOSED),
        }
    }

    /// Admits a create and records it, or responds in place of the service.
    pub(super) async fn admit(
        self: &Arc<Self>,
        request: &ForwardRequest,
        name: Option<String>,
    ) -> Result<Claim, Response<ProxyBody>> {
        let shown = name.clone().unwrap_or_default();
        let refused = |reason: &str| {
            self.claims.refused(creel_daytona::NAME, Kind::Sandbox, &shown, reason);
            refuse(StatusCode::FORBIDDEN, &request.path, reason)
        };
        if !self.passthrough.is_our_login(&request.head.headers) {
            return Err(refused(
                "the command uses another login than creel, which could not release what it \
                 creates; set DAYTONA_API_KEY for both, or let it through with --allow-untracked",
            ));
        }
        match self.provider.check_rights("create a sandbox").await {
            Err(error) if error.class == ErrorClass::Denied => {
                return Err(refused(&error.message));
            }
            Err(error) => warn!(%error, "what the key may do is not known"),
            Ok(()) => {}
        }
        if let Some(reason) = self.no_room().await {
            return Err(refused(&reason));
        }
        match self.claim_within_limit(name).await {
            Ok(Some(claim)) => Ok(claim),
            Ok(None) => Err(refused(&full(self.policy.max_sandboxes))),
            Err(error) => {
                warn!(%error, "an intent could not be recorded");
                Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, &request.path, NOT_RECORDED))
            }
        }
    }

    /// Returns why there is no room for one more sandbox, if so. When the ledger says that the
    /// limit is reached, it inspects the sandboxes, because they also end by themselves.
    async fn no_room(self: &Arc<Self>) -> Option<String> {
        let most = self.policy.max_sandboxes?;
        let held = self.held().await.unwrap_or_default();
        if held.len() < most {
            return None;
        }
        let mut there = 0;
        for record in held {
            if self.is_leaving(&record).await { self.watch_end(record) } else { there += 1 }
        }
        (there >= most).then(|| full(Some(most)))
    }

    async fn claim_within_limit(
        &self,
        name: Option<String>,
    ) -> Result<Option<Claim>, creel_ledger::LedgerError> {
        let _one_at_a_time = self.admission.lock().await;
        if let Some(most) = self.policy.max_sandboxes
            && self.held().await?.len() >= most
        {
            return Ok(None);
        }
        self.claims.intend(creel_daytona::NAME, Kind::Sandbox, name).await.map(Some)
    }

    /// Returns the records of sandboxes that exist or may exist.
    async fn held(&self) -> Result<Vec<Record>, creel_ledger::LedgerError> {
        let mut records = self.claims.open(Kind::Sandbox).await?;
        records.retain(|record| {
            record.provider == creel_daytona::NAME
                && matches!(record.state.name(), StateName::Intended | StateName::Created)
        });
        Ok(records)
    }

    /// Records the outcome of a create. If that takes long, the client has its response before.
    pub(super) async fn finalize_soon(
        self: &Arc<Self>,
        claim: Claim,
        outcome: ForwardOutcome,
        origin: SandboxOrigin,
        added: AddedSwitches,
        response: Option<Bytes>,
    ) {
        let gate = Arc::clone(self);
        let finalized = self.tasks.spawn(async move {
            let Some(id) = gate.finalize(&claim, outcome, origin).await else { return };
            match origin {
                SandboxOrigin::Template => {
                    gate.check_switches(&id, added, response.as_deref()).await
                }
                SandboxOrigin::Fork { .. } => gate.mark_fork(&id, &claim).await,
            }
        });
        // A late record is still finished: the gate waits for it when it closes.
        let _ = tokio::time::timeout(FINALIZE_TIMEOUT, finalized).await;
    }

    /// Records the outcome of a create, and returns the id of the created sandbox.
    async fn finalize(
        &self,
        claim: &Claim,
        outcome: ForwardOutcome,
        origin: SandboxOrigin,
    ) -> Option<String> {
        let found = match outcome {
            ForwardOutcome::Created(id) => Some(id),
            ForwardOutcome::Nothing(evidence) => {
                self.claims.refute(claim, evidence).await;
                return None;
            }
            ForwardOutcome::Refused(evidence) => match self.find(claim, origin).await {
                Ok(Some(id)) => Some(id),
                Ok(None) => {
                    self.claims.refute(claim, evidence).await;
                    return None;
                }
                Err(()) => None,
            },
            ForwardOutcome::Unknown => self.search(claim, origin).await,
        };
        let Some(id) = found else {
            warn!(resource = %claim.resource, "nothing came of a create yet; it may land late");
            return None;
        };
        self.claims.confirm(claim, &id).await;
        Some(id)
    }

    async fn search(&self, claim: &Claim, origin: SandboxOrigin) -> Option<String> {
        for pause in SEARCHES {
            tokio::time::sleep(pause).await;
            if let Ok(Some(id)) = self.find(claim, origin).await {
                return Some(id);
            }
        }
        None
    }

    /// Searches for what a create made.
    async fn find(&self, claim: &Claim, origin: SandboxOrigin) -> Result<Option<String>, ()> {
        let found = match origin {
            SandboxOrigin::Template => match self.provider.find(&claim.marks()).await {
                // At most one of them belongs to this create, and nothing shows which.
                Ok(all) if all.len() > 1 => {
                    warn!(resource = %claim.resource, "several sandboxes carry the marks of a create");
                    return Err(());
                }
                found => found.map(|mut all| all.pop().map(|seen| seen.id)),
            },
            // It has no label yet, but a name that nothing else can have.
            SandboxOrigin::Fork { generated_name: true } => {
                let found = self.provider.inspect(Kind::Sandbox, claim.name()).await;
                found.map(|seen| seen.map(|seen| seen.id))
            }
            SandboxOrigin::Fork { generated_name: false } => Ok(None),
        };
        found.map_err(|error| warn!(resource = %claim.resource, %error, "a search failed"))
    }

    /// Makes sure that a sandbox ends by itself if the service ignored the time to live, and
    /// registers how it is renewed.
    async fn check_switches(&self, id: &str, added: AddedSwitches, response: Option<&[u8]>) {
        let AddedSwitches { mut renewal, rests_for_ever } = added;
        let sandbox =
            response.and_then(|body| DaytonaSandbox::read(&serde_json::from_slice(body).ok()?));
        if let (Some(minutes), Some(sandbox)) = (renewal.minutes, sandbox)
            && sandbox.auto_destroy_at.is_none()
        {
            self.note_no_time_to_live();
            renewal.minutes = None;
            let minutes = i64::try_from(minutes).unwrap_or(i64::MAX);
            if rests_for_ever
                && let Err(error) = self.provider.api().set_auto_delete(id, minutes).await
            {
                warn!(id, %error, "a sandbox that stops would stay for ever");
            }
        }
        self.provider.renew_as(id, renewal);
    }
}

fn full(most: Option<usize>) -> String {
    format!("{} sandboxes exist already (--max-sandboxes)", most.unwrap_or_default())
}

fn body_of(sent: &Result<ForwardResponse, NoResponse>) -> Option<Bytes> {
    sent.as_ref().ok().map(|response| response.body.clone())
}

impl ForwardOutcome {
    pub(super) fn of(sent: &Result<ForwardResponse, NoResponse>) -> Self {
        let response = match sent {
            Ok(response) => response,
            Err(error) if error.is_unsent() => return Self::Nothing("it was not sent".to_owned()),
            Err(_) => return Self::Unknown,
        };
        let status = response.status.as_u16();
        let evidence = || format!("refused with {status}: {}", response.message());
        match (status, id_in(&response.body)) {
            (200..300, Some(id)) => Self::Created(id),
            // Refused before anything was created.
            (401 | 403 | 429, _) => Self::Nothing(evidence()),
            (400..500, _) => Self::Refused(evidence()),
            _ => Self::Unknown,
        }
    }
}

impl ForwardResponse {
    /// Returns the message of the service.
    pub(super) fn message(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        match &body["message"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }
}
