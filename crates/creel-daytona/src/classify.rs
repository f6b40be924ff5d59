//! Classification of responses into error classes; no other module decides this.

use std::error::Error;
use std::time::Duration;

use creel_model::provider::{ErrorClass, ProviderError};

/// The meaning of an unsuccessful response, before the operation is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DaytonaError {
    /// The class, which decides about a retry.
    pub class: ErrorClass,
    /// The message of the server, in one line.
    pub message: String,
    /// How long to wait, if the server said so.
    pub retry_after: Option<Duration>,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
}

impl DaytonaError {
    pub(super) fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), retry_after: None, status: None }
    }

    /// Adds the operation that was attempted.
    pub(super) fn during(self, operation: impl Into<String>) -> ProviderError {
        ProviderError {
            provider: crate::NAME,
            operation: operation.into(),
            message: self.message,
            class: self.class,
            retry_after: self.retry_after,
        }
    }

    /// Names the toolbox if it sent the response instead of the API.
    pub(super) fn sent_by(self, peer: &Peer) -> Self {
        match peer {
            Peer::Api(_) => self,
            Peer::Toolbox(address) => {
                Self { message: format!("toolbox at {address}: {}", self.message), ..self }
            }
        }
    }

    /// Returns whether the request may have been carried out although it failed.
    pub(super) fn is_ambiguous(&self) -> bool {
        matches!(self.class, ErrorClass::Transient | ErrorClass::Unreachable)
    }

    /// Returns whether the server says that there is no such sandbox.
    pub fn is_absence(&self) -> bool {
        self.class == ErrorClass::Gone
    }
}

/// The peer of a request, as errors name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    /// The API, at its address.
    Api(String),
    /// The toolbox of a sandbox, at its address.
    Toolbox(String),
}

impl Peer {
    fn address(&self) -> &str {
        match self {
            Self::Api(address) | Self::Toolbox(address) => address,
        }
    }

    /// Returns what the user should check when the peer cannot be reached.
    fn advice(&self) -> &'static str {
        match self {
            Self::Api(_) => "check DAYTONA_API_URL",
            Self::Toolbox(_) => {
                "this address of the toolbox comes from the service, not from DAYTONA_API_URL: \
                 check that this machine can reach it"
            }
        }
    }
}

/// The parts of a response that decide its class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ApiResponse<'a> {
    pub(super) status: u16,
    /// The server's message, or the start of the body where it has none.
    pub(super) message: &'a str,
    /// Whether it is a web page.
    pub(super) html: bool,
    /// How long to wait, if the server said so.
    pub(super) retry_after: Option<Duration>,
}

/// Parts of the server's message, in lower case, when an object is busy.
const BUSY: [&str; 4] =
    ["state change in progress", "is not in a valid state", "being deleted", "in transition"];

/// The server's message for a token with an organisation that its user is not in.
const OTHER_ORGANIZATION: &str = "Invalid authentication context";

/// Parts of the server's message when the organisation has reached a limit.
const FULL: [&str; 5] =
    ["limit exceeded", "quota", "limit reached", "over the limit", "too many sandboxes"];

/// Returns the class of an unsuccessful response.
pub(super) fn class_of(response: &ApiResponse<'_>) -> ErrorClass {
    let mentions = |phrases: &[&str]| {
        let message = response.message.to_ascii_lowercase();
        phrases.iter().any(|phrase| message.contains(phrase))
    };
    match response.status {
        401 | 403 | 407 => ErrorClass::Denied,
        // A web page where an API should be: its status means nothing.
        _ if response.html && response.status < 500 => ErrorClass::Unreachable,
        404 | 410 => ErrorClass::Gone,
        409 => ErrorClass::InProgress,
        429 => ErrorClass::Throttled,
        400 | 422 if mentions(&BUSY) => ErrorClass::InProgress,
        400 | 402 | 422 if mentions(&FULL) => ErrorClass::Quota,
        402 => ErrorClass::Quota,
        408 | 425 => ErrorClass::Transient,
        500.. => ErrorClass::Transient,
        _ => ErrorClass::Invalid,
    }
}

/// Creates a refusal from an unsuccessful response.
pub(super) fn refusal(response: &ApiResponse<'_>) -> DaytonaError {
    DaytonaError {
        class: class_of(response),
        message: message_for(response),
        retry_after: response.retry_after,
        status: Some(response.status),
    }
}

fn message_for(response: &ApiResponse<'_>) -> String {
    match response.status {
        401 => format!(
            "the key is refused (401: {}); nothing more is sent, because refused logins lock \
             out this address: check DAYTONA_API_KEY",
            response.message
        ),
        403 if response.message.contains(OTHER_ORGANIZATION) => format!(
            "the login is not valid for this organisation (403: {}): a token works only for the \
             organisations of its user; check DAYTONA_ORGANIZATION_ID",
            response.message
        ),
        _ if response.html => web_page(response.status),
        429 => match response.retry_after {
            Some(wait) => {
                format!("too many requests; come back in {}", creel_model::duration::show(wait))
            }
            None => "too many requests".to_owned(),
        },
        status if response.message.is_empty() => format!("it answered with status {status}"),
        status => format!("{} ({status})", response.message),
    }
}

/// Returns the message for a web page where the API should be.
pub(super) fn web_page(status: u16) -> String {
    format!(
        "answered with a web page (status {status}): is DAYTONA_API_URL right, or is a captive \
         portal in the way?"
    )
}

/// Creates a refusal from a request that got no response.
pub(super) fn no_response(error: &reqwest::Error, peer: &Peer) -> DaytonaError {
    let (causes, address, advice) = (chain(error), peer.address(), peer.advice());
    let mentions = |phrases: &[&str]| phrases.iter().any(|phrase| causes.contains(phrase));
    let message = if mentions(&["certificate", "TLS", "tls", "andshake", "corrupt message"]) {
        format!(
            "no secure connection to {address} (TLS): {causes}; {advice} and the certificates this machine trusts"
        )
    } else if mentions(&["dns error", "failed to lookup", "Name or service not known"]) {
        format!("the host of {address} is not known: {advice} and the network")
    } else if error.is_timeout() {
        format!("{address} did not answer in time")
    } else if error.is_connect() {
        format!("cannot connect to {address}: {causes}; {advice}")
    } else {
        format!("the connection to {address} broke: {causes}")
    };
    // A request whose connection broke after it was sent may have been carried out.
    let class = if error.is_connect() || error.is_timeout() {
        ErrorClass::Unreachable
    } else {
        ErrorClass::Transient
    };
    DaytonaError::new(class, message)
}

/// Returns the innermost causes in one line; the outer ones only repeat the address.
fn chain(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    match causes.as_slice() {
        [] => "no reason given".to_owned(),
        [.., last] if last.len() > 10 => last.clone(),
        all => all.join(": "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_response_has_its_class() {
        use ErrorClass::{
            Denied, Gone, InProgress, Invalid, Quota, Throttled, Transient, Unreachable,
        };
        let table: &[(u16, &str, ErrorClass)] = &[
            (400, "Sandbox state change in progress", InProgress),
            (409, "Sandbox state change in progress", InProgress),
            (409, "Sandbox with name x already exists", InProgress),
            (400, "Sandbox failed to start: no such image", Invalid),
            (400, "Total CPU limit exceeded. Maximum allowed: 10", Quota),
            (400, "Total memory limit exceeded. Maximum allowed: 10GiB", Quota),
            (400, "Total disk limit exceeded", Quota),
            (400, "Sandbox is not started", Invalid),
            (400, "", Invalid),
            (401, "Unauthorized", Denied),
            (402, "pay first", Quota),
            (403, "Insufficient permissions", Denied),
            (404, "Sandbox with ID or name x not found", Gone),
            (408, "command execution timeout", Transient),
            (410, "", Gone),
            (418, "", Invalid),
            (422, "name must be shorter", Invalid),
            (429, "ThrottlerException: Too Many Requests", Throttled),
            (500, "Internal server error", Transient),
            (502, "", Transient),
            (503, "quota service is down", Transient),
            (504, "", Transient),
        ];
        for &(status, message, class) in table {
            let response = ApiResponse { status, message, ..ApiResponse::default() };
            assert_eq!(class_of(&response), class, "{status} {message}");
        }
        for (status, class) in
            [(200, Unreachable), (404, Unreachable), (502, Transient), (403, Denied)]
        {
            let response = ApiResponse { status, html: true, ..ApiResponse::default() };
            assert_eq!(class_of(&response), class, "page with {status}");
        }
    }

    #[test]
    fn a_refused_key_and_a_web_page_name_the_variable() {
        let key = refusal(&ApiResponse {
            status: 401,
            message: "Unauthorized",
            ..ApiResponse::default()
        });
        assert!(key.message.contains("DAYTONA_API_KEY"), "{}", key.message);
        let page = refusal(&ApiResponse { status: 200, html: true, ..ApiResponse::default() });
        assert!(page.message.contains("DAYTONA_API_URL"), "{}", page.message);
        assert!(page.message.contains("captive portal"), "{}", page.message);
    }
}
