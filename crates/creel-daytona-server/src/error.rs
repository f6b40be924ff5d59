//! Errors in the format of the API.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::moment::Moment;

/// The result of a request.
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

/// An error response, before its path is known.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    /// The status.
    pub(crate) status: StatusCode,
    /// The message for people.
    pub(crate) message: String,
    /// The daemon's own code, for toolbox errors.
    pub(crate) code: Option<&'static str>,
    /// Headers to add.
    pub(crate) headers: Box<HeaderMap>,
    /// Whether the body could not be parsed. Such responses name neither path nor time.
    pub(crate) unparsed: bool,
    /// Whether this is a proxy's answer: plain text instead of JSON.
    pub(crate) bare: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Moment>,
    status_code: u16,
    error: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
}

impl ApiError {
    /// Creates an error.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let (message, headers) = (message.into(), Box::default());
        Self { status, message, code: None, headers, unparsed: false, bare: false }
    }

    /// Returns the error for an invalid request.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns the error for a body that cannot be parsed.
    pub(crate) fn unparsed(message: impl Into<String>) -> Self {
        Self { unparsed: true, ..Self::invalid(message) }
    }

    /// Returns the error for an unknown sandbox.
    pub(crate) fn no_sandbox(key: &str) -> Self {
        let message = format!("Sandbox with ID or name {key} not found");
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// Returns the error for another operation in progress.
    pub(crate) fn in_progress() -> Self {
        Self::new(StatusCode::CONFLICT, "Sandbox state change in progress")
    }

    /// Returns the bare response of the proxy for a daemon that does not run.
    pub(crate) fn no_daemon() -> Self {
        Self { bare: true, ..Self::new(StatusCode::BAD_GATEWAY, "Bad Gateway") }
    }

    /// Marks the error as the toolbox daemon's.
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Renders the error for a path.
    pub(crate) fn render(&self, path: &str) -> Response {
        if self.bare {
            return (self.status, self.message.clone()).into_response();
        }
        let body = ErrorBody {
            path: (!self.unparsed).then_some(path),
            timestamp: (!self.unparsed).then(Moment::now),
            status_code: self.status.as_u16(),
            error: self.status.canonical_reason().unwrap_or("Error"),
            message: &self.message,
            code: self.code,
            source: self.code.map(|_| "DAYTONA_DAEMON"),
        };
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (self.status, Body::from(text)).into_response();
        let json = axum::http::HeaderValue::from_static("application/json; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response.headers_mut().extend(self.headers.as_ref().clone());
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // The gate knows the path, so it renders the body.
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
