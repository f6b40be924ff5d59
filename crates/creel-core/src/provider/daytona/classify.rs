//! From answers to classes of error: decided here and nowhere else.

use std::error::Error;
use std::time::Duration;

use crate::provider::{ErrorClass, ProviderError, ProviderName};

/// What an answer that is no success means, before it is known what was tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The class, which decides about another try.
    pub class: ErrorClass,
    /// What was said, in one line.
    pub message: String,
    /// How long to stay away, where that was said.
    pub retry_after: Option<Duration>,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
}

impl Refusal {
    pub(super) fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), retry_after: None, status: None }
    }

    /// Says what was tried.
    pub(super) fn during(self, operation: impl Into<String>) -> ProviderError {
        ProviderError {
            provider: ProviderName::Daytona,
            operation: operation.into(),
            message: self.message,
            class: self.class,
            retry_after: self.retry_after,
        }
    }

    /// Names the toolbox where it was not the API that answered.
    pub(super) fn answered_by(self, peer: &Peer) -> Self {
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

    /// Returns whether this is the plain word that there is no such sandbox.
    pub(crate) fn is_absence(&self) -> bool {
        self.class == ErrorClass::Gone
    }
}

/// Who was asked, as errors name it.
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

    /// Says what to check when it cannot be reached.
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

/// An answer, as far as its class depends on it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    /// The server's words, or the start of the body where it has none.
    pub(super) message: &'a str,
    /// Whether it is a web page.
    pub(super) html: bool,
    /// How long to stay away, where that was said.
    pub(super) retry_after: Option<Duration>,
}

/// What the server says, in lower case, when an object is busy.
const BUSY: [&str; 4] =
    ["state change in progress", "is not in a valid state", "being deleted", "in transition"];

/// What the server says of a token together with an organisation that is not its user's.
const OTHER_ORGANIZATION: &str = "Invalid authentication context";

/// What the server says when the organisation has no room left.
const FULL: [&str; 5] =
    ["limit exceeded", "quota", "limit reached", "over the limit", "too many sandboxes"];

/// Returns the class of an answer that is no success.
pub(super) fn class_of(answer: &Answer<'_>) -> ErrorClass {
    let says = |words: &[&str]| {
        let message = answer.message.to_ascii_lowercase();
        words.iter().any(|word| message.contains(word))
    };
    match answer.status {
        401 | 403 | 407 => ErrorClass::Denied,
        // A page for people where an API should be: its status means nothing.
        _ if answer.html && answer.status < 500 => ErrorClass::Unreachable,
        404 | 410 => ErrorClass::Gone,
        409 => ErrorClass::InProgress,
        429 => ErrorClass::Throttled,
        400 | 422 if says(&BUSY) => ErrorClass::InProgress,
        400 | 402 | 422 if says(&FULL) => ErrorClass::Quota,
        402 => ErrorClass::Quota,
        408 | 425 => ErrorClass::Transient,
        500.. => ErrorClass::Transient,
        _ => ErrorClass::Invalid,
    }
}

/// Makes a refusal of an answer that is no success.
pub(super) fn refusal(answer: &Answer<'_>) -> Refusal {
    Refusal {
        class: class_of(answer),
        message: words(answer),
        retry_after: answer.retry_after,
        status: Some(answer.status),
    }
}

fn words(answer: &Answer<'_>) -> String {
    match answer.status {
        401 => format!(
            "the key is refused (401: {}); nothing more is sent, because refused logins lock \
             out this address: check DAYTONA_API_KEY",
            answer.message
        ),
        403 if answer.message.contains(OTHER_ORGANIZATION) => format!(
            "the login is not valid for this organisation (403: {}): a token works only for the \
             organisations of its user; check DAYTONA_ORGANIZATION_ID",
            answer.message
        ),
        _ if answer.html => web_page(answer.status),
        429 => match answer.retry_after {
            Some(wait) => {
                format!("too many requests; come back in {}", crate::duration::show(wait))
            }
            None => "too many requests".to_owned(),
        },
        status if answer.message.is_empty() => format!("it answered with status {status}"),
        status => format!("{} ({status})", answer.message),
    }
}

/// Says that a page for people came where the API should be.
pub(super) fn web_page(status: u16) -> String {
    format!(
        "answered with a web page (status {status}): is DAYTONA_API_URL right, or is a captive \
         portal in the way?"
    )
}

/// Makes a refusal of a request that got no answer.
pub(super) fn unanswered(error: &reqwest::Error, peer: &Peer) -> Refusal {
    let (causes, address, advice) = (chain(error), peer.address(), peer.advice());
    let said = |words: &[&str]| words.iter().any(|word| causes.contains(word));
    let message = if said(&["certificate", "TLS", "tls", "andshake", "corrupt message"]) {
        format!(
            "no secure connection to {address} (TLS): {causes}; {advice} and the certificates this machine trusts"
        )
    } else if said(&["dns error", "failed to lookup", "Name or service not known"]) {
        format!("the host of {address} is not known: {advice} and the network")
    } else if error.is_timeout() {
        format!("{address} did not answer in time")
    } else if error.is_connect() {
        format!("cannot connect to {address}: {causes}; {advice}")
    } else {
        format!("the connection to {address} broke: {causes}")
    };
    // A connection that broke after the request was sent may have carried it out.
    let class = if error.is_connect() || error.is_timeout() {
        ErrorClass::Unreachable
    } else {
        ErrorClass::Transient
    };
    Refusal::new(class, message)
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
    fn every_answer_has_its_class() {
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
            let answer = Answer { status, message, ..Answer::default() };
            assert_eq!(class_of(&answer), class, "{status} {message}");
        }
        for (status, class) in
            [(200, Unreachable), (404, Unreachable), (502, Transient), (403, Denied)]
        {
            let answer = Answer { status, html: true, ..Answer::default() };
            assert_eq!(class_of(&answer), class, "page with {status}");
        }
    }

    #[test]
    fn a_refused_key_and_a_web_page_name_the_variable() {
        let key = refusal(&Answer { status: 401, message: "Unauthorized", ..Answer::default() });
        assert!(key.message.contains("DAYTONA_API_KEY"), "{}", key.message);
        let page = refusal(&Answer { status: 200, html: true, ..Answer::default() });
        assert!(page.message.contains("DAYTONA_API_URL"), "{}", page.message);
        assert!(page.message.contains("captive portal"), "{}", page.message);
    }
}
