//! HTTP to Daytona: one request, one classified response.
//!
//! Requests wait for the limiter. None is sent after the key was refused once, because a refused
//! login counts against the whole IP address and locks out good keys. Requests with an immediate
//! response share a bounded number of connections, however many sandboxes are released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use creel_model::provider::{Deadline, ErrorClass, Permit};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::access::{DaytonaAccess, DaytonaEnvironment, InvalidAccess};
use super::api::DaytonaResult;
use super::bounds::{self, BodyError};
use super::classify::{self, ApiResponse, DaytonaError, Peer};
use super::limiter::{self, RequestLimiter, RequestPermit, Throttler, TooLong};

/// A create blocks up to half a minute at the server before it answers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for the limiter before the caller gets an error: one window and a margin.
const PATIENCE: Duration = Duration::from_secs(75);
/// Creates wait longer, because giving up here fails the create.
const CREATE_PATIENCE: Duration = Duration::from_secs(300);
/// Maximum number of concurrent requests with an immediate response. It allows thousands a second,
/// and is low enough for the file descriptors of a process.
const CONNECTIONS: usize = 128;
/// How much of a body that is not JSON is shown.
const SHOWN: usize = 200;

/// The owner of the login that a 401 refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginOwner {
    /// Our key.
    Ours,
    /// Another login that was passed on, such as that of a repository.
    Others,
}

/// How to receive a response.
#[derive(Debug)]
struct ReceiveOptions {
    peer: Peer,
    login: LoginOwner,
    /// The maximum size of the response.
    most_bytes: usize,
}

/// One request.
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Option<Value>,
    /// The throttler that counts it; toolboxes are not limited.
    pub(super) counts_for: Option<Throttler>,
    pub(super) timeout: Duration,
    pub(super) login: LoginOwner,
    /// The maximum size of the response.
    pub(super) most_bytes: usize,
}

impl ApiRequest {
    /// Creates a request to the API.
    pub(super) fn to_api(method: Method, url: Url) -> Self {
        let counts_for = Some(Throttler::Authenticated);
        Self { counts_for, most_bytes: bounds::OBJECT, ..Self::to_toolbox(method, url) }
    }

    /// Creates a request to the toolbox of a sandbox.
    pub(super) fn to_toolbox(method: Method, url: Url) -> Self {
        let (body, counts_for, timeout, login) = (None, None, REQUEST_TIMEOUT, LoginOwner::Ours);
        let most_bytes = bounds::TOOLBOX;
        Self { method, url, body, counts_for, timeout, login, most_bytes }
    }

    /// Returns the peer, as errors name it.
    fn peer(&self, api: &Url) -> Peer {
        match self.counts_for {
            Some(_) => Peer::Api(api.to_string()),
            None => Peer::Toolbox(self.url.origin().ascii_serialization()),
        }
    }

    /// Returns whether the server responds without doing slow work.
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
    access: DaytonaAccess,
    tls: Arc<ClientConfig>,
    limiter: Arc<RequestLimiter>,
    /// The connections for requests with an immediate response.
    connections: Arc<Semaphore>,
    /// Set once the key was refused; nothing is sent any more.
    refused: Arc<AtomicBool>,
    /// Admissions that the current operation has already obtained.
    permit: Permit,
    /// The deadline of the current operation, paused while a request waits for its admission.
    deadline: Deadline,
}

impl Http {
    pub(super) fn new(environment: &DaytonaEnvironment) -> Result<Self, InvalidAccess> {
        let access = DaytonaAccess::of(environment)?;
        let detail =
            |error: &dyn std::fmt::Display| InvalidAccess::Connection { detail: error.to_string() };
        let tls = Arc::new(tls().map_err(|error| detail(&error))?);
        let builder = client(environment, &tls)?
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("creel/", env!("CARGO_PKG_VERSION")));
        let client = builder.build().map_err(|error| detail(&error))?;
        let (limiter, refused) = Default::default();
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let (permit, deadline) = (Permit::FREE, Deadline::NONE);
        Ok(Self { client, access, tls, limiter, connections, refused, permit, deadline })
    }

    /// Returns the same connection for the requests of one operation.
    pub(super) fn within(&self, permit: Permit, deadline: Deadline) -> Self {
        Self { permit, deadline, ..self.clone() }
    }

    pub(super) fn access(&self) -> &DaytonaAccess {
        &self.access
    }

    /// Waits until a delete and the inspect before it may be sent; neither has to wait again.
    pub(super) async fn permit(&self) -> Permit {
        let delete = self.limiter.admit_in_any_time(Throttler::Lifecycle).await;
        // In one queue with the checks of running deletes, so that no more deletes start than can
        // be checked.
        let check = self.limiter.admit_in_any_time(Throttler::Authenticated).await;
        Permit::of([delete, check])
    }

    pub(super) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.tls)
    }

    /// Returns the API's address with these path segments appended, each encoded.
    pub(super) fn url(&self, parts: &[&str]) -> Url {
        extended(&self.access.url, parts)
    }

    /// Sends a request; an unsuccessful response is an error.
    pub(super) async fn send(&self, request: ApiRequest) -> DaytonaResult<Bytes> {
        let (permit, _connection) = self.prepare(&request).await?;
        let options = ReceiveOptions {
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
        self.carry(outgoing, permit, options).await
    }

    /// Waits until a request may be sent, and for a connection where it needs one.
    async fn prepare(
        &self,
        request: &ApiRequest,
    ) -> DaytonaResult<(Option<RequestPermit>, Option<SemaphorePermit<'_>>)> {
        loop {
            let permit = match request.counts_for {
                Some(throttler) => Some(self.admit(throttler).await?),
                None => None,
            };
            let connection = if request.is_brief() {
                self.deadline.pause_during(self.connections.acquire()).await.ok()
            } else {
                None
            };
            // The key or the permit may have become invalid while this request waited.
            self.check_key()?;
            if !permit.as_ref().is_some_and(RequestPermit::is_void) {
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
    ) -> DaytonaResult<Bytes> {
        self.check_key()?;
        let options = ReceiveOptions {
            peer: Peer::Toolbox(url.origin().ascii_serialization()),
            login: LoginOwner::Ours,
            most_bytes: bounds::TOOLBOX,
        };
        let request = self.client.post(url).headers(self.identification()?).timeout(timeout);
        self.carry(request.multipart(form), None, options).await
    }

    async fn carry(
        &self,
        request: reqwest::RequestBuilder,
        mut permit: Option<RequestPermit>,
        options: ReceiveOptions,
    ) -> DaytonaResult<Bytes> {
        let peer = &options.peer;
        if let Some(permit) = &mut permit {
            permit.sent();
        }
        let response = request.send().await;
        let response = response.map_err(|error| classify::no_response(&error, peer))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        if let Some(permit) = permit {
            permit.learn(status, &headers);
        }
        if status == 401 && options.login == LoginOwner::Ours {
            self.refused.store(true, Ordering::SeqCst);
        }
        if (200..300).contains(&status) && !is_page(&headers) {
            return bounds::read(response, options.most_bytes).await.map_err(|error| match error {
                BodyError::Broken(error) => classify::no_response(&error, peer),
                BodyError::TooLarge(error) => error.into(),
            });
        }
        let body = bounds::read_start(response, bounds::ERROR).await;
        let refusal = classify::refusal(&ApiResponse {
            status,
            message: &message(&body),
            html: is_page(&headers),
            retry_after: limiter::retry_after(&headers).filter(|_| status == 429),
        });
        Err(refusal.sent_by(peer))
    }

    /// Returns the headers that identify us.
    pub(super) fn identification(&self) -> DaytonaResult<HeaderMap> {
        let unusable =
            |_| DaytonaError::new(ErrorClass::Invalid, "the key cannot be put into a header");
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

    /// Fails at once after a refused key, otherwise waits until a request may be sent.
    async fn admit(&self, throttler: Throttler) -> DaytonaResult<RequestPermit> {
        self.check_key()?;
        let held = self.permit.take(|permit: &RequestPermit| permit.is_for(throttler));
        if let Some(permit) = held.filter(|permit| !permit.is_void()) {
            return Ok(permit);
        }
        let patience = if throttler == Throttler::Create { CREATE_PATIENCE } else { PATIENCE };
        let admitted = self.deadline.pause_during(self.limiter.admit(throttler, patience)).await;
        admitted.map_err(|TooLong(wait)| DaytonaError {
            retry_after: Some(wait),
            ..DaytonaError::new(
                ErrorClass::Throttled,
                format!("its limit allows nothing for {}", creel_model::duration::show(wait)),
            )
        })
    }

    pub(super) fn check_key(&self) -> DaytonaResult<()> {
        if self.refused.load(Ordering::SeqCst) {
            let message = "the key was refused before; nothing more is sent: check DAYTONA_API_KEY";
            return Err(DaytonaError::new(ErrorClass::Denied, message));
        }
        Ok(())
    }
}

/// Returns an address with these path segments appended, each encoded.
pub(super) fn extended(base: &Url, parts: &[&str]) -> Url {
    let mut url = base.clone();
    url.path_segments_mut().expect("an http address has a path").pop_if_empty().extend(parts);
    url
}

/// Starts building a client that trusts this machine's certificates and uses its proxy.
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

/// Returns a TLS configuration that trusts this machine's certificates.
pub fn tls() -> Result<ClientConfig, tokio_rustls::rustls::Error> {
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

/// Returns the server's message, in one line.
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
    let text = field("message")
        .or_else(|| field("error"))
        .unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(SHOWN).collect());
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    bounds::shortened(&line, bounds::REASON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_message_is_found_in_every_shape_of_body() {
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
