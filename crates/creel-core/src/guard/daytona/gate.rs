//! One request: decide, and pass on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::guard::{Claims, Policy};
use crate::provider::daytona::{
    DaytonaEnvironment, DaytonaProvider, InvalidAccess, Passage, minutes_of,
};

use super::body::Switches;
use super::forward::{self, Body, Order};
use super::refusal::refuse;
use super::route::{self, Route};

/// What a gate is made of.
#[derive(Debug)]
pub struct GateOrder<'a> {
    /// Where the service is, and who we are to it.
    pub environment: &'a DaytonaEnvironment,
    /// Finds what creates made; the one that renews it too.
    pub provider: Arc<DaytonaProvider>,
    /// Puts things on the ledger.
    pub claims: Claims,
    /// What the command may create.
    pub policy: Policy,
    /// How long a sandbox may live without a renewal; without it none ends by itself unless the
    /// command says so.
    pub lease: Option<Duration>,
}

/// Stands between a command and Daytona.
#[derive(Debug)]
pub struct DaytonaGate {
    pub(super) passage: Passage,
    pub(super) provider: Arc<DaytonaProvider>,
    pub(super) claims: Claims,
    pub(super) policy: Policy,
    /// Scheme, name and port of the service.
    pub(super) origin: String,
    /// The minutes a sandbox may live without a renewal.
    minutes: Option<u64>,
    /// Set once the service was seen to know no time to live.
    no_time_to_live: AtomicBool,
    /// Counting and recording belong together: two creates must not both be the last one.
    pub(super) admission: tokio::sync::Mutex<()>,
    /// Cuts what streams; creates are finished.
    pub(super) stop: CancellationToken,
    /// Connections, tunnels, and creates that go on when their client is gone.
    pub(super) tasks: TaskTracker,
}

/// Ends the connection without an answer, as it ended for us.
#[derive(Debug, thiserror::Error)]
#[error("Daytona gave no answer")]
pub(super) struct Cut {
    /// Why.
    #[source]
    source: Option<reqwest::Error>,
}

impl From<reqwest::Error> for Cut {
    fn from(error: reqwest::Error) -> Self {
        // The address may hold what is nobody's business.
        Self { source: Some(error.without_url()) }
    }
}

impl Cut {
    /// The gate closed before an answer came.
    pub(super) const CLOSED: Self = Self { source: None };

    /// Returns whether nothing was sent at all.
    pub(super) fn is_unsent(&self) -> bool {
        self.source.as_ref().is_some_and(reqwest::Error::is_connect)
    }

    /// Returns what went wrong, down to the first cause.
    fn why(&self) -> String {
        let first = self as &dyn std::error::Error;
        let chain = std::iter::successors(Some(first), |error| error.source());
        chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    /// Makes an answer of it where nobody could be reached: whoever reads it should know.
    pub(super) fn into_response(self, path: &str, origin: &str) -> Result<Response<Body>, Self> {
        let why = self.why();
        warn!(why, "a request was not answered");
        if !self.is_unsent() {
            return Err(self);
        }
        let reason = format!("cannot reach {origin}: {why}");
        Ok(refuse(StatusCode::BAD_GATEWAY, path, &reason))
    }
}

impl DaytonaGate {
    /// Makes a gate in front of the service.
    ///
    /// # Errors
    ///
    /// Fails when there is no key, or an address that is none.
    pub fn new(order: GateOrder<'_>) -> Result<Self, InvalidAccess> {
        let passage = Passage::of(order.environment)?;
        Ok(Self {
            origin: passage.url().origin().ascii_serialization(),
            passage,
            provider: order.provider,
            claims: order.claims,
            policy: order.policy,
            minutes: order.lease.map(minutes_of),
            no_time_to_live: AtomicBool::new(false),
            admission: tokio::sync::Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Returns what stops it: streams are cut, creates that were begun are finished.
    pub fn stopper(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Returns the switches that sandboxes get, if any.
    pub(super) fn switches(&self) -> Option<Switches> {
        let has_time_to_live = !self.no_time_to_live.load(Ordering::Relaxed);
        self.minutes.map(|minutes| Switches { minutes, has_time_to_live })
    }

    pub(super) fn note_no_time_to_live(&self) {
        debug!("the service knows no time to live");
        self.no_time_to_live.store(true, Ordering::Relaxed);
    }

    /// Returns the path of the API itself.
    pub(super) fn prefix(&self) -> &str {
        self.passage.url().path()
    }

    /// Answers one request.
    pub(super) async fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Cut> {
        let upgrade =
            forward::is_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        if !forward::is_for_us(&head) {
            let reason = "the Host header names another server";
            return Ok(refuse(StatusCode::FORBIDDEN, &path, reason));
        }
        let Some(url) = self.place(&head.uri) else {
            return Ok(refuse(StatusCode::BAD_REQUEST, &path, "the address cannot be read"));
        };
        let route = route::route(&head.method, url.path(), self.prefix());
        debug!(method = %head.method, path, ?route, "request");
        let order = Order { head, url, path: path.clone() };
        let answered = match (upgrade, &route) {
            (Some(client), Route::Other) => self.tunnel(order, client).await,
            _ => self.dispatch(route, order, body).await,
        };
        answered.or_else(|cut| cut.into_response(&path, &self.origin))
    }

    async fn dispatch(
        self: &Arc<Self>,
        route: Route,
        order: Order,
        body: Incoming,
    ) -> Result<Response<Body>, Cut> {
        match route {
            Route::Create | Route::Fork if !self.is_tracked(&order) => {
                self.forward(order, body).await
            }
            Route::Create => self.create(order, body).await,
            Route::Fork => self.fork(order, body).await,
            Route::Delete(key) => self.delete(&key, order, body).await,
            Route::Labels(key) => self.replace_labels(&key, order, body).await,
            Route::AutoStop(key, minutes) => self.set_auto_stop(&key, minutes, order, body).await,
            Route::TimeToLive(key, minutes) => {
                self.set_time_to_live(&key, minutes, order, body).await
            }
            Route::Untracked(what) if !self.policy.allow_untracked => {
                let reason = format!(
                    "{what} cannot be tracked and given back; --allow-untracked lets it through"
                );
                warn!(what, "refused");
                Ok(refuse(StatusCode::FORBIDDEN, &order.path, &reason))
            }
            Route::Untracked(_) | Route::Other => self.forward(order, body).await,
        }
    }

    /// Returns whether a create is to be tracked: one with another login is not, where that is
    /// allowed.
    fn is_tracked(&self, order: &Order) -> bool {
        !self.policy.allow_untracked || self.passage.is_our_login(&order.head.headers)
    }
}
