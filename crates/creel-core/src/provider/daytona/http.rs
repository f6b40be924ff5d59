//! HTTP to Daytona: one request, one classified answer.
//!
//! Requests wait for the limiter, and none is sent after the key was refused
//! once: a refused login counts against the whole address, and locks out good
//! keys. Those that are answered at once share a bounded number of connections,
//! however many sandboxes are released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::provider::{ErrorClass, Turn};
use crate::retry;

use super::access::{Access, DaytonaEnvironment, InvalidAccess};
use super::bounds::{self, Unread};
use super::classify::{self, Answer, Peer, Refusal};
use super::limiter::{self, Limiter, Permit, Throttler, TooLong};
use super::wire::Answered;

/// A create blocks up to half a minute at the server before it answers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A wait for the limiter that is longer than this is handed to the caller: a window and a bit.
const PATIENCE: Duration = Duration::from_secs(75);
/// Creates wait longer: a lost turn would be a failed create.
const CREATE_PATIENCE: Duration = Duration::from_secs(300);
/// How many requests that are answered at once are under way: enough for thousands a second, and
/// few enough for the descriptors of a process.
const CONNECTIONS: usize = 128;
/// As much of a body is shown that is no JSON.
const SHOWN: usize = 200;

/// Whose login a 401 speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Login {
    /// Our key.
    Ours,
    /// One that was passed on, such as that of a repository.
    Others,
}

/// How an answer is taken.
#[derive(Debug)]
struct Taking {
    peer: Peer,
    login: Login,
    /// The largest answer that is taken.
    most_bytes: usize,
}

/// One request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Option<Value>,
    /// What it counts for; toolboxes are not limited.
    pub(super) counts_for: Option<Throttler>,
    pub(super) timeout: Duration,
    pub(super) login: Login,
    /// The largest answer that is taken.
    pub(super) most_bytes: usize,
}

impl Request {
    /// A request to the API.
    pub(super) fn to_api(method: Method, url: Url) -> Self {
        let counts_for = Some(Throttler::Authenticated);
        Self { counts_for, most_bytes: bounds::OBJECT, ..Self::to_toolbox(method, url) }
    }

    /// A request to the toolbox of a sandbox.
    pub(super) fn to_toolbox(method: Method, url: Url) -> Self {
        let (body, counts_for, timeout, login) = (None, None, REQUEST_TIMEOUT, Login::Ours);
        let most_bytes = bounds::TOOLBOX;
        Self { method, url, body, counts_for, timeout, login, most_bytes }
    }

    /// Returns whom it is sent to, as errors name it.
    fn peer(&self, api: &Url) -> Peer {
        match self.counts_for {
            Some(_) => Peer::Api(api.to_string()),
            None => Peer::Toolbox(self.url.origin().ascii_serialization()),
        }
    }

    /// Returns whether the server answers without doing anything that takes long.
    fn is_brief(&self) -> bool {
        self.counts_for.is_some() && matches!(self.method, Method::GET | Method::DELETE)
    }

    pub(super) fn counting_for(mut self, throttler: Throttler) -> Self {
        self.counts_for = Some(throttler);
        self
    }

    pub(super) fn with_body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }
}

/// A connection to one API with one key; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Http {
    client: reqwest::Client,
    access: Access,
    tls: Arc<ClientConfig>,
    limiter: Arc<Limiter>,
    /// The connections for requests that are answered at once.
    connections: Arc<Semaphore>,
    /// Set once the key was refused: nothing is sent any more.
    refused: Arc<AtomicBool>,
}

impl Http {
    pub(super) fn new(environment: &DaytonaEnvironment) -> Result<Self, InvalidAccess> {
        let access = Access::of(environment)?;
        let detail =
            |error: &dyn std::fmt::Display| InvalidAccess::Connection { detail: error.to_string() };
        let tls = Arc::new(tls().map_err(|error| detail(&error))?);
        let builder = client(environment, &tls)?
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("creel/", env!("CARGO_PKG_VERSION")));
        let client = builder.build().map_err(|error| detail(&error))?;
        let (limiter, refused) = Default::default();
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        Ok(Self { client, access, tls, limiter, connections, refused })
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Waits until a delete and the look before it may be sent; neither need wait again.
    pub(super) async fn turn(&self) -> Turn {
        let delete = self.limiter.turn(Throttler::Lifecycle).await;
        // In one queue with the looks at what goes already, so that no more is started than can
        // be looked at.
        let look = self.limiter.turn(Throttler::Authenticated).await;
        Turn::FREE.with(delete).with(look)
    }

    pub(super) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.tls)
    }

    /// Returns the API's address with these parts of a path behind it, each encoded.
    pub(super) fn url(&self, parts: &[&str]) -> Url {
        extended(&self.access.url, parts)
    }

    /// Sends a request; an answer that is no success is an error.
    pub(super) async fn send(&self, request: Request) -> Answered<Bytes> {
        let (permit, _connection) = self.prepare(&request).await?;
        let taking = Taking {
            peer: request.peer(&self.access.url),
            login: request.login,
            most_bytes: request.most_bytes,
        };
        let mut outgoing = self
            .client
            .request(request.method, request.url)
            .headers(self.identification()?)
            .timeout(request.timeout);
        if let Some(body) = request.body {
            outgoing = outgoing.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        self.carry(outgoing, permit, taking).await
    }

    /// Waits until a request may be sent, and for a connection where it needs one.
    async fn prepare(
        &self,
        request: &Request,
    ) -> Answered<(Option<Permit>, Option<SemaphorePermit<'_>>)> {
        loop {
            let permit = match request.counts_for {
                Some(throttler) => Some(self.wait_for_turn(throttler).await?),
                None => None,
            };
            let connection = if request.is_brief() {
                retry::excused(self.connections.acquire()).await.ok()
            } else {
                None
            };
            // The key or the limit may have been refused while this request waited.
            self.check_key()?;
            if !permit.as_ref().is_some_and(Permit::is_void) {
                return Ok((permit, connection));
            }
        }
    }

    /// Sends a form to a toolbox.
    pub(super) async fn send_form(
        &self,
        url: Url,
        form: reqwest::multipart::Form,
        timeout: Duration,
    ) -> Answered<Bytes> {
        self.check_key()?;
        let taking = Taking {
            peer: Peer::Toolbox(url.origin().ascii_serialization()),
            login: Login::Ours,
            most_bytes: bounds::TOOLBOX,
        };
        let request = self.client.post(url).headers(self.identification()?).timeout(timeout);
        self.carry(request.multipart(form), None, taking).await
    }

    async fn carry(
        &self,
        request: reqwest::RequestBuilder,
        mut permit: Option<Permit>,
        taking: Taking,
    ) -> Answered<Bytes> {
        let peer = &taking.peer;
        if let Some(permit) = &mut permit {
            permit.sent();
        }
        let answer = request.send().await;
        let answer = answer.map_err(|error| classify::unanswered(&error, peer))?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        if let Some(permit) = permit {
            permit.learn(status, &headers);
        }
        if status == 401 && taking.login == Login::Ours {
            self.refused.store(true, Ordering::SeqCst);
        }
        if (200..300).contains(&status) && !is_page(&headers) {
            return bounds::read(answer, taking.most_bytes).await.map_err(|unread| match unread {
                Unread::Broken(error) => classify::unanswered(&error, peer),
                Unread::TooLarge(error) => error.into(),
            });
        }
        let body = bounds::read_start(answer, bounds::ERROR).await;
        let refusal = classify::refusal(&Answer {
            status,
            message: &message(&body),
            html: is_page(&headers),
            retry_after: limiter::retry_after(&headers).filter(|_| status == 429),
        });
        Err(refusal.answered_by(peer))
    }

    /// Returns the headers that say who we are.
    pub(super) fn identification(&self) -> Answered<HeaderMap> {
        let unusable = |_| Refusal::new(ErrorClass::Invalid, "the key cannot be put into a header");
        let mut headers = HeaderMap::new();
        let mut bearer =
            HeaderValue::from_str(self.access.bearer.expose_secret()).map_err(unusable)?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        headers.insert("X-Daytona-Source", HeaderValue::from_static("creel"));
        if let Some(organization) = &self.access.organization {
            let value = HeaderValue::from_str(organization).map_err(unusable)?;
            headers.insert("X-Daytona-Organization-ID", value);
        }
        Ok(headers)
    }

    /// Refuses at once after a refused key, else waits until a request may be sent.
    async fn wait_for_turn(&self, throttler: Throttler) -> Answered<Permit> {
        self.check_key()?;
        let held = Turn::take(|permit: &Permit| permit.is_for(throttler));
        if let Some(permit) = held.filter(|permit| !permit.is_void()) {
            return Ok(permit);
        }
        let patience = if throttler == Throttler::Create { CREATE_PATIENCE } else { PATIENCE };
        let admitted = self.limiter.admit(throttler, patience).await;
        admitted.map_err(|TooLong(wait)| Refusal {
            retry_after: Some(wait),
            ..Refusal::new(
                ErrorClass::Throttled,
                format!("its limit allows nothing for {}", crate::duration::show(wait)),
            )
        })
    }

    pub(super) fn check_key(&self) -> Answered<()> {
        if self.refused.load(Ordering::SeqCst) {
            let message = "the key was refused before; nothing more is sent: check DAYTONA_API_KEY";
            return Err(Refusal::new(ErrorClass::Denied, message));
        }
        Ok(())
    }
}

/// Returns an address with these parts of a path behind it, each encoded.
pub(super) fn extended(base: &Url, parts: &[&str]) -> Url {
    let mut url = base.clone();
    url.path_segments_mut().expect("an http address has a path").pop_if_empty().extend(parts);
    url
}

/// Begins a client that trusts what this machine trusts and goes through its proxy.
pub(super) fn client(
    environment: &DaytonaEnvironment,
    tls: &ClientConfig,
) -> Result<reqwest::ClientBuilder, InvalidAccess> {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    let Some(address) = &environment.proxy else { return Ok(builder) };
    let proxy = reqwest::Proxy::all(address)
        .map_err(|error| InvalidAccess::Connection { detail: error.to_string() })?;
    let except = environment.no_proxy.as_deref().unwrap_or("localhost,127.0.0.1,::1");
    Ok(builder.proxy(proxy.no_proxy(reqwest::NoProxy::from_string(except))))
}

/// Trusts what this machine trusts.
pub(crate) fn tls() -> Result<ClientConfig, tokio_rustls::rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.trim_start().to_ascii_lowercase().starts_with("text/html")
}

/// Returns the server's words, in one line.
fn message(body: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let field = |name: &str| match parsed.as_ref()?.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(texts) => {
            let texts: Vec<&str> = texts.iter().filter_map(Value::as_str).collect();
            Some(texts.join("; "))
        }
        _ => None,
    };
    let words = field("message")
        .or_else(|| field("error"))
        .unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(SHOWN).collect());
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    bounds::shortened(&line, bounds::REASON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_are_found_in_every_shape_of_body() {
        assert_eq!(message(br#"{"statusCode":404,"message":"no such"}"#), "no such");
        assert_eq!(message(br#"{"message":["a","b"],"error":"Bad Request"}"#), "a; b");
        assert_eq!(message(br#"{"error":"Bad Request"}"#), "Bad Request");
        assert_eq!(message(b"bad\n gateway"), "bad gateway");
        assert_eq!(message(b""), "");
    }

    #[test]
    fn parts_of_a_path_cannot_leave_their_place() {
        let base: Url = "http://h/api".parse().unwrap();
        let url = extended(&base, &["sandbox", "a/../b?x=1#y"]);
        assert_eq!(url.as_str(), "http://h/api/sandbox/a%2F..%2Fb%3Fx=1%23y");
    }
}
