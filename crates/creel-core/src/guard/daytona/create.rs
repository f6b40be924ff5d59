//! Creates: intent, labels, request, outcome.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use serde_json::Value;
use tracing::warn;

use crate::guard::claims::Claim;
use crate::guard::json::Object;
use crate::ledger::{Record, StateName};
use crate::provider::daytona::{Sandbox, id_in, knows_no_time_to_live};
use crate::provider::{ErrorClass, Kind, Provider, ProviderName};

use super::body::{self, Armed};
use super::forward::{self, Answer, Body, Order};
use super::gate::{Cut, DaytonaGate};
use super::refusal::{NOT_RECORDED, refuse};

/// A create that is not answered in this time has lost its answer.
const LONGEST: Duration = Duration::from_secs(900);
/// How long a create may go on after the command has ended: the service blocks half a minute.
const GRACE: Duration = Duration::from_secs(35);
/// How long a client waits for the record of what came of its create.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);
/// The pauses before each search for a create whose answer was lost; it may land late.
const SEARCHES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// What a request makes a sandbox of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A snapshot or an image; it carries our labels.
    Order,
    /// Another sandbox; `named` says whether its name is of our making.
    Fork {
        /// Whether nothing else can have its name.
        named: bool,
    },
}

/// What came of a request that was passed on, as far as the ledger is concerned.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was made, and has this id.
    Made(String),
    /// Nothing was made.
    Nothing(String),
    /// It was refused, which does not prove that nothing was made.
    Refused(String),
    /// Whatever was asked for may exist, now or later.
    Unknown,
}

impl DaytonaGate {
    pub(super) async fn create(
        self: &Arc<Self>,
        order: Order,
        body: Incoming,
    ) -> Result<Response<Body>, Cut> {
        let gate = Arc::clone(self);
        let work = move |body| async move { gate.create_to_the_end(order, body).await };
        self.finish(body, work).await
    }

    /// Reads a body, and carries out in a task of its own what it asks for: a client that hangs
    /// up must not stop it half-way.
    pub(super) async fn finish<F, W>(&self, body: Incoming, work: F) -> Result<Response<Body>, Cut>
    where
        F: FnOnce(Bytes) -> W,
        W: Future<Output = Result<Response<Body>, Cut>> + Send + 'static,
    {
        let body = forward::read(body).await.ok_or(Cut::CLOSED)?;
        // A panic has been reported by the panic hook.
        self.tasks.spawn(work(body)).await.unwrap_or(Err(Cut::CLOSED))
    }

    /// Reads what is to be made, and records the intent; or says why it must not be made.
    pub(super) async fn read_claimed(
        self: &Arc<Self>,
        order: &Order,
        body: &[u8],
    ) -> Result<(Object, Claim), Response<Body>> {
        let Ok(body) = Object::parse(body) else {
            let reason = "the body of the request is no JSON object";
            return Err(refuse(StatusCode::BAD_REQUEST, &order.path, reason));
        };
        let claim = self.admit(order, body.text("name")).await?;
        Ok((body, claim))
    }

    async fn create_to_the_end(
        self: &Arc<Self>,
        order: Order,
        body: Bytes,
    ) -> Result<Response<Body>, Cut> {
        let (mut body, claim) = match self.read_claimed(&order, &body).await {
            Ok(claimed) => claimed,
            Err(refused) => return Ok(refused),
        };
        if body::is_absent(&body, "name") {
            body.set("name", &claim.name());
        }
        body::add_labels(&mut body, &claim.labels);
        let (sent, armed) = self.send(&order, body).await;
        self.settle_soon(claim, Outcome::of(&sent), Origin::Order, armed, body_of(&sent)).await;
        sent.map(Answer::into_response)
    }

    /// Sends a create, once; only one that is refused for the time to live we added, which the
    /// service does not know, is sent again without it.
    async fn send(&self, order: &Order, plain: Object) -> (Result<Answer, Cut>, Armed) {
        loop {
            let mut body = plain.clone();
            let armed = self.switches().map_or(Armed::NOT, |all| body::arm(&mut body, all));
            let sent = self.exchange_in_time(order, body.to_bytes().into()).await;
            let is_unknown = armed.renewal.minutes.is_some()
                && sent.as_ref().is_ok_and(|answer| {
                    knows_no_time_to_live(Some(answer.status.as_u16()), &answer.message())
                });
            if !is_unknown {
                return (sent, armed);
            }
            // From now on none is added, so this happens once.
            self.note_no_time_to_live();
        }
    }

    /// Sends a request that makes something, and does not wait for ever.
    pub(super) async fn exchange_in_time(&self, order: &Order, body: Bytes) -> Result<Answer, Cut> {
        let closed = async {
            self.stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            answer = self.exchange(order, body) => answer,
            () = closed => Err(Cut::CLOSED),
            () = tokio::time::sleep(LONGEST) => Err(Cut::CLOSED),
        }
    }

    /// Lets a create through and puts it on record, or answers in the place of the service.
    pub(super) async fn admit(
        self: &Arc<Self>,
        order: &Order,
        name: Option<String>,
    ) -> Result<Claim, Response<Body>> {
        let shown = name.clone().unwrap_or_default();
        let refused = |reason: &str| {
            self.claims.refused(ProviderName::Daytona, Kind::Sandbox, &shown, reason);
            refuse(StatusCode::FORBIDDEN, &order.path, reason)
        };
        if !self.passage.is_our_login(&order.head.headers) {
            return Err(refused(
                "the command uses another login than creel, which could not give back what it \
                 makes; set DAYTONA_API_KEY for both, or let it through with --allow-untracked",
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
                Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, &order.path, NOT_RECORDED))
            }
        }
    }

    /// Returns why there is no room for one more, if so; looks at what is there when the ledger
    /// says that it is full, because sandboxes also end by themselves.
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
    ) -> Result<Option<Claim>, crate::ledger::LedgerError> {
        let _one_at_a_time = self.admission.lock().await;
        if let Some(most) = self.policy.max_sandboxes
            && self.held().await?.len() >= most
        {
            return Ok(None);
        }
        self.claims.intend(ProviderName::Daytona, Kind::Sandbox, name).await.map(Some)
    }

    /// Returns the records of sandboxes that exist or may exist.
    async fn held(&self) -> Result<Vec<Record>, crate::ledger::LedgerError> {
        let mut records = self.claims.open(Kind::Sandbox).await?;
        records.retain(|record| {
            record.provider == ProviderName::Daytona
                && matches!(record.state.name(), StateName::Intended | StateName::Created)
        });
        Ok(records)
    }

    /// Records what came of a create; when that takes long the client has its answer before.
    pub(super) async fn settle_soon(
        self: &Arc<Self>,
        claim: Claim,
        outcome: Outcome,
        origin: Origin,
        armed: Armed,
        answer: Option<Bytes>,
    ) {
        let gate = Arc::clone(self);
        let settled = self.tasks.spawn(async move {
            let Some(id) = gate.settle(&claim, outcome, origin).await else { return };
            match origin {
                Origin::Order => gate.check_switches(&id, armed, answer.as_deref()).await,
                Origin::Fork { .. } => gate.mark_fork(&id, &claim).await,
            }
        });
        // What is late goes on, and is waited for when the gate closes.
        let _ = tokio::time::timeout(SETTLE_PATIENCE, settled).await;
    }

    /// Records what came of a create, and returns the id of what was made.
    async fn settle(&self, claim: &Claim, outcome: Outcome, origin: Origin) -> Option<String> {
        let found = match outcome {
            Outcome::Made(id) => Some(id),
            Outcome::Nothing(evidence) => {
                self.claims.refute(claim, evidence).await;
                return None;
            }
            Outcome::Refused(evidence) => match self.find(claim, origin).await {
                Ok(Some(id)) => Some(id),
                Ok(None) => {
                    self.claims.refute(claim, evidence).await;
                    return None;
                }
                Err(()) => None,
            },
            Outcome::Unknown => self.search(claim, origin).await,
        };
        let Some(id) = found else {
            warn!(resource = %claim.resource, "nothing came of a create yet; it may land late");
            return None;
        };
        self.claims.confirm(claim, &id).await;
        Some(id)
    }

    async fn search(&self, claim: &Claim, origin: Origin) -> Option<String> {
        for pause in SEARCHES {
            tokio::time::sleep(pause).await;
            if let Ok(Some(id)) = self.find(claim, origin).await {
                return Some(id);
            }
        }
        None
    }

    /// Looks for what a create made.
    async fn find(&self, claim: &Claim, origin: Origin) -> Result<Option<String>, ()> {
        let found = match origin {
            Origin::Order => match self.provider.find(&claim.marks()).await {
                // At most one of them came of this create, and nothing tells which.
                Ok(all) if all.len() > 1 => {
                    warn!(resource = %claim.resource, "several sandboxes carry the marks of a create");
                    return Err(());
                }
                found => found.map(|mut all| all.pop().map(|seen| seen.id)),
            },
            // It has no label yet, but a name that nothing else can have.
            Origin::Fork { named: true } => {
                let found = self.provider.inspect(Kind::Sandbox, claim.name()).await;
                found.map(|seen| seen.map(|seen| seen.id))
            }
            Origin::Fork { named: false } => Ok(None),
        };
        found.map_err(|error| warn!(resource = %claim.resource, %error, "a search failed"))
    }

    /// Makes sure that a sandbox ends by itself where the service passed the time to live over,
    /// and says how it is renewed.
    async fn check_switches(&self, id: &str, armed: Armed, answer: Option<&[u8]>) {
        let Armed { mut renewal, rests_for_ever } = armed;
        let told = answer.and_then(|body| Sandbox::read(&serde_json::from_slice(body).ok()?));
        if let (Some(minutes), Some(told)) = (renewal.minutes, told)
            && told.auto_destroy_at.is_none()
        {
            self.note_no_time_to_live();
            renewal.minutes = None;
            let minutes = i64::try_from(minutes).unwrap_or(i64::MAX);
            if rests_for_ever
                && let Err(error) = self.provider.wire().set_auto_delete(id, minutes).await
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

fn body_of(sent: &Result<Answer, Cut>) -> Option<Bytes> {
    sent.as_ref().ok().map(|answer| answer.body.clone())
}

impl Outcome {
    pub(super) fn of(sent: &Result<Answer, Cut>) -> Self {
        let answer = match sent {
            Ok(answer) => answer,
            Err(cut) if cut.is_unsent() => return Self::Nothing("it was not sent".to_owned()),
            Err(_) => return Self::Unknown,
        };
        let status = answer.status.as_u16();
        let evidence = || format!("refused with {status}: {}", answer.message());
        match (status, id_in(&answer.body)) {
            (200..300, Some(id)) => Self::Made(id),
            // Refused at the door, before anything was made.
            (401 | 403 | 429, _) => Self::Nothing(evidence()),
            (400..500, _) => Self::Refused(evidence()),
            _ => Self::Unknown,
        }
    }
}

impl Answer {
    /// Returns the service's words.
    pub(super) fn message(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        match &body["message"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }
}
