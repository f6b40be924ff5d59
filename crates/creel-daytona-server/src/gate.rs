//! The gate: the processing of every request before and after its handler.
//!
//! A request is counted first. Then its host, its key, the limits, the faults and the scope are
//! checked. The handler follows, then the rest of the faults and the headers. A request whose
//! connection must be cut carries a [`Cut`] in its response, which the connection turns into a
//! closed socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use serde::Deserialize;

use crate::error::{ApiError, Result};
use crate::fault::{FaultKind, InjectedFaults, Strike, Subject};
use crate::limit::RemainingQuota;
use crate::route::{Operation, RequestLine, RequestRoute, Scope};
use crate::shared::ServerState;

/// The header that names the organisation if a token is used instead of a key.
const ORGANIZATION: &str = "x-daytona-organization-id";
/// The largest body that is read to find the sandbox a fault applies to.
const LARGEST_CREATE: usize = 1 << 20;
/// How long half a response gets to leave before its connection breaks.
const FLUSH: Duration = Duration::from_millis(20);

/// Marks a response that must never arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut;

/// Passes a request through the gate.
pub(crate) async fn pass(
    State(shared): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    // Errors name the address with its query.
    let address = request.uri().path_and_query().map_or_else(|| path.clone(), ToString::to_string);
    let method = request.method().clone();
    request.extensions_mut().insert(RequestLine { method, address: address.clone() });
    if let Err(error) = check_host(&shared, request.headers()) {
        return error.render(&address);
    }
    if path.trim_start_matches('/').starts_with(&shared.access.admin) {
        return rendered(next.run(request).await, &address);
    }
    let route = RequestRoute::of(request.method(), &path, request.uri().query());
    count_request(&shared, &route);
    let response = match enter(&shared, &route, request.headers()) {
        Ok(left) => {
            let mut response = rendered(within(&shared, &route, request, next).await, &address);
            if let Some(left) = left
                && response.status() != StatusCode::TOO_MANY_REQUESTS
            {
                left.write(response.headers_mut());
            }
            response
        }
        Err(error) => error.render(&address),
    };
    count_response(&shared, &response);
    response
}

/// Applies the faults and the scope, and calls the handler.
async fn within(
    shared: &Arc<ServerState>,
    route: &RequestRoute,
    request: Request,
    next: Next,
) -> Response {
    let (mut request, faults) = match strike(shared, route, request).await {
        Ok(struck) => struck,
        Err(error) => return error.into_response(),
    };
    for delay in faults.0.iter().filter(|strike| strike.kind == FaultKind::Latency) {
        tokio::time::sleep(delay.lasting().unwrap_or(Duration::from_secs(1))).await;
    }
    if let Some(response) = instead(&faults) {
        return response;
    }
    if let Err(error) = check_scope(shared, route.scope) {
        return error.into_response();
    }
    request.extensions_mut().insert(faults.clone());
    let response = next.run(request).await;
    if faults.get(FaultKind::CutAfter).is_some() {
        return cut();
    }
    if faults.get(FaultKind::HalfBody).is_some() {
        return half(rendered(response, "")).await;
    }
    response
}

fn check_host(shared: &ServerState, headers: &HeaderMap) -> Result<()> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if shared.access.authorities.iter().any(|known| known.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    Err(ApiError::new(StatusCode::FORBIDDEN, "the Host header names another server"))
}

/// Checks the key, and takes one request from the limit.
fn enter(
    shared: &ServerState,
    route: &RequestRoute,
    headers: &HeaderMap,
) -> Result<Option<RemainingQuota>> {
    if route.public {
        return Ok(None);
    }
    let mut limiter = shared.limiter();
    limiter.check_lockout()?;
    match login_of(shared, headers) {
        ApiLogin::Known => {}
        ApiLogin::OtherOrganization => {
            return Err(ApiError::new(StatusCode::FORBIDDEN, "Invalid authentication context"));
        }
        ApiLogin::Unknown => {
            limiter.note_failed_auth();
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "Invalid credentials"));
        }
    }
    let Some(throttler) = route.throttler else { return Ok(None) };
    let permit = limiter.take(throttler);
    drop(limiter);
    if permit.is_err() {
        *shared.counts().throttled.entry(throttler.name().to_owned()).or_default() += 1;
    }
    permit
}

/// The credentials that a request presents.
enum ApiLogin {
    Known,
    /// A valid token with the name of an organisation that is not its own.
    OtherOrganization,
    Unknown,
}

fn login_of(shared: &ServerState, headers: &HeaderMap) -> ApiLogin {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let token = text(AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
    let access = &shared.access;
    let organization = text(ORGANIZATION);
    let own = shared.origin.organization.as_str();
    if token == Some(&access.api_key) || (token == Some(&access.jwt) && organization == Some(own)) {
        ApiLogin::Known
    } else if token == Some(&access.jwt) && organization.is_some() {
        ApiLogin::OtherOrganization
    } else {
        ApiLogin::Unknown
    }
}

fn check_scope(shared: &ServerState, scope: Scope) -> Result<()> {
    let needed = match scope {
        Scope::None => return Ok(()),
        Scope::Write => "write:sandboxes",
        Scope::Delete => "delete:sandboxes",
    };
    if shared.may(needed) {
        return Ok(());
    }
    Err(ApiError::new(StatusCode::FORBIDDEN, "Forbidden resource"))
}

/// Fires the faults. Reads the body of a create first, to find the sandbox it is for.
async fn strike(
    shared: &ServerState,
    route: &RequestRoute,
    request: Request,
) -> Result<(Request, InjectedFaults)> {
    if route.public || !shared.faults().concern(route.operation) {
        return Ok((request, InjectedFaults::default()));
    }
    let (request, subject) = if route.operation == Operation::Create {
        let (parts, body) = request.into_parts();
        let read = axum::body::to_bytes(body, LARGEST_CREATE).await;
        let bytes = read.map_err(|_| ApiError::unparsed("request entity too large"))?;
        let subject = requested(&bytes);
        (Request::from_parts(parts, Body::from(bytes)), subject)
    } else {
        (request, existing(shared, route))
    };
    let faults = shared.faults().strike(route.operation, &subject);
    Ok((request, faults))
}

fn requested(body: &Bytes) -> Subject {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Requested {
        name: Option<String>,
        labels: BTreeMap<String, String>,
    }
    let requested: Requested = serde_json::from_slice(body).unwrap_or_default();
    Subject { id: None, name: requested.name, labels: requested.labels }
}

fn existing(shared: &ServerState, route: &RequestRoute) -> Subject {
    let Some(key) = &route.subject else { return Subject::default() };
    match shared.registry().find(key) {
        Some(sandbox) => Subject {
            id: Some(sandbox.id.to_string()),
            name: Some(sandbox.name.clone()),
            labels: sandbox.labels.as_ref().clone(),
        },
        None => Subject { id: Some(key.clone()), name: Some(key.clone()), ..Subject::default() },
    }
}

/// Returns the response of a fault that prevents the operation.
fn instead(faults: &InjectedFaults) -> Option<Response> {
    let strike = faults.0.iter().find(|strike| strike.kind != FaultKind::Latency)?;
    match strike.kind {
        FaultKind::CutBefore => Some(cut()),
        FaultKind::Status => Some(refusal(strike).into_response()),
        FaultKind::ExpiredKey => {
            Some(ApiError::new(StatusCode::UNAUTHORIZED, "API key has expired").into_response())
        }
        FaultKind::Html => Some(portal(strike)),
        FaultKind::Latency
        | FaultKind::CutAfter
        | FaultKind::HalfBody
        | FaultKind::StuckStarting
        | FaultKind::StuckDestroying
        | FaultKind::ErroredDeleted
        | FaultKind::Flap
        | FaultKind::BreakOff
        | FaultKind::CutStream
        | FaultKind::CreateFailsAfterAlloc => None,
    }
}

fn refusal(strike: &Strike) -> ApiError {
    let status = strike.spec.status.and_then(|status| StatusCode::from_u16(status).ok());
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let message = strike.spec.message.clone();
    let message =
        message.unwrap_or_else(|| status.canonical_reason().unwrap_or("Error").to_owned());
    let mut error = ApiError::new(status, message);
    for (name, value) in &strike.spec.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            error.headers.insert(name, value);
        }
    }
    error
}

fn portal(strike: &Strike) -> Response {
    let status = strike.spec.status.and_then(|status| StatusCode::from_u16(status).ok());
    let page = "<!DOCTYPE html><html><head><title>Sign in to the network</title></head>\
                <body><h1>Welcome</h1></body></html>";
    let html = [(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))];
    (status.unwrap_or(StatusCode::OK), html, page).into_response()
}

fn cut() -> Response {
    let mut response = StatusCode::OK.into_response();
    response.extensions_mut().insert(Cut);
    response
}

/// Sends half of a body with the length of the whole, then breaks the connection.
async fn half(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len().max(2)));
    let first = bytes.slice(..bytes.len() / 2);
    let broken = stream::once(async {
        // The part already written must leave before the connection breaks.
        tokio::time::sleep(FLUSH).await;
        Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe))
    });
    let body = stream::once(async { Ok(first) }).chain(broken);
    Response::from_parts(parts, Body::from_stream(body))
}

/// Renders the body of an error, which needs the path.
fn rendered(mut response: Response, path: &str) -> Response {
    match response.extensions_mut().remove::<ApiError>() {
        Some(error) => error.render(path),
        None => response,
    }
}

fn count_request(shared: &ServerState, route: &RequestRoute) {
    let mut counts = shared.counts();
    counts.total += 1;
    *counts.by_route.entry(route.pattern.clone()).or_default() += 1;
}

fn count_response(shared: &ServerState, response: &Response) {
    let mut counts = shared.counts();
    if response.extensions().get::<Cut>().is_some() {
        counts.cut += 1;
    } else {
        *counts.by_status.entry(response.status().as_u16()).or_default() += 1;
    }
}
