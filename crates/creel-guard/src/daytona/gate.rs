//! Handles one request: decides, and forwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use creel_daytona::{
    DaytonaEnvironment, DaytonaProvider, InvalidAccess, PassthroughClient, minutes_of,
};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::{Claims, Policy};

use super::body::Switches;
use super::forward::{self, ForwardRequest, ProxyBody};
use super::refusal::refuse;
use super::route::{self, DaytonaRoute};

/// The parts of a gate.
#[derive(Debug)]
pub struct GateConfig<'a> {
    /// The address of the service, and our credentials.
    pub environment: &'a DaytonaEnvironment,
    /// Finds what creates made. The same provider renews it.
    pub provider: Arc<DaytonaProvider>,
    /// Records resources on the ledger.
    pub claims: Claims,
    /// What the command may create.
    pub policy: Policy,
    /// How long a sandbox may live without a renewal. Without it, no sandbox ends by itself unless
    /// the command says so.
    pub lease: Option<Duration>,
}

/// A proxy between a command and Daytona.
#[derive(Debug)]
pub struct DaytonaGate {
    pub(super) passthrough: PassthroughClient,
    pub(super) provider: Arc<DaytonaProvider>,
    pub(super) claims: Claims,
    pub(super) policy: Policy,
    /// Scheme, host and port of the service.
    pub(super) origin: String,
    /// How many minutes a sandbox may live without a renewal.
    minutes: Option<u64>,
    /// Set once the service is known to support no time to live.
    no_time_to_live: AtomicBool,
    /// Held while counting and recording, so that two creates cannot both take the last place.
    pub(super) admission: tokio::sync::Mutex<()>,
    /// Cuts streams when cancelled. Creates are finished.
    pub(super) stop: CancellationToken,
    /// Connections, tunnels, and creates that continue after their client disconnects.
    pub(super) tasks: TaskTracker,
}

/// The connection to the client ends without a response, as the one to the service did.
#[derive(Debug, thiserror::Error)]
#[error("Daytona gave no answer")]
pub(super) struct NoResponse {
    /// The cause, if there is one.
    #[source]
    source: Option<reqwest::Error>,
}

impl From<reqwest::Error> for NoResponse {
    fn from(error: reqwest::Error) -> Self {
        // The URL may contain confidential values.
        Self { source: Some(error.without_url()) }
    }
}

impl NoResponse {
    /// The gate closed before a response arrived.
    pub(super) const CLOSED: Self = Self { source: None };

    /// Returns whether nothing was sent at all.
    pub(super) fn is_unsent(&self) -> bool {
        self.source.as_ref().is_some_and(reqwest::Error::is_connect)
    }

    /// Returns the error with its whole chain of causes.
    fn why(&self) -> String {
        let first = self as &dyn std::error::Error;
        let chain = std::iter::successors(Some(first), |error| error.source());
        chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    /// Converts it into a response if the service could not be reached, so that the client learns
    /// why.
    pub(super) fn into_response(
        self,
        path: &str,
        origin: &str,
    ) -> Result<Response<ProxyBody>, Self> {
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
    /// Creates a gate in front of the service.
    ///
    /// # Errors
    ///
    /// Fails when there is no key, or when the address is invalid.
    pub fn new(config: GateConfig<'_>) -> Result<Self, InvalidAccess> {
        let passthrough = PassthroughClient::of(config.environment)?;
        Ok(Self {
            origin: passthrough.url().origin().ascii_serialization(),
            passthrough,
            provider: config.provider,
            claims: config.claims,
            policy: config.policy,
            minutes: config.lease.map(minutes_of),
            no_time_to_live: AtomicBool::new(false),
            admission: tokio::sync::Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Returns the token that stops the gate. Streams are cut, and creates that were begun are
    /// finished.
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
        self.passthrough.url().path()
    }

    /// Handles one request.
    pub(super) async fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<ProxyBody>, NoResponse> {
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
        let request = ForwardRequest { head, url, path: path.clone() };
        let response = match (upgrade, &route) {
            (Some(client), DaytonaRoute::Other) => self.tunnel(request, client).await,
            _ => self.dispatch(route, request, body).await,
        };
        response.or_else(|error| error.into_response(&path, &self.origin))
    }

    async fn dispatch(
        self: &Arc<Self>,
        route: DaytonaRoute,
        request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        match route {
            DaytonaRoute::Create | DaytonaRoute::Fork if !self.is_tracked(&request) => {
                self.forward(request, body).await
            }
            DaytonaRoute::Create => self.create(request, body).await,
            DaytonaRoute::Fork => self.fork(request, body).await,
            DaytonaRoute::Delete(key) => self.delete(&key, request, body).await,
            DaytonaRoute::Labels(key) => self.replace_labels(&key, request, body).await,
            DaytonaRoute::AutoStop(key, minutes) => {
                self.set_auto_stop(&key, minutes, request, body).await
            }
            DaytonaRoute::TimeToLive(key, minutes) => {
                self.set_time_to_live(&key, minutes, request, body).await
            }
            DaytonaRoute::Untracked(what) if !self.policy.allow_untracked => {
                let reason = format!(
                    "{what} cannot be tracked and released; --allow-untracked lets it through"
                );
                warn!(what, "refused");
                Ok(refuse(StatusCode::FORBIDDEN, &request.path, &reason))
            }
            DaytonaRoute::Untracked(_) | DaytonaRoute::Other => self.forward(request, body).await,
        }
    }

    /// Returns whether a create is tracked. One with another login is not, where the policy allows
    /// that.
    fn is_tracked(&self, request: &ForwardRequest) -> bool {
        !self.policy.allow_untracked || self.passthrough.is_our_login(&request.head.headers)
    }
}
