//! Classifies the errors and responses of an engine, in one place.
//!
//! A status alone is not enough. Docker responds with 404 to a network create whose address pools
//! are used up, and with 403 to the removal of a network in use. Podman responds with 500 to much
//! of what Docker calls a conflict. So the message decides where the status does not.

use std::error::Error as StdError;
use std::io;

use bollard::errors::Error;
use creel_model::provider::{ErrorClass, ProviderError};

/// Maximum length of the kept part of an engine's message.
const MESSAGE_LIMIT: usize = 400;

/// The kind of request, which decides what 404 and 409 mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineAction {
    /// Requests a list, or the engine's own data. Neither can be absent.
    Query,
    /// Reads one object. If it is absent, it is gone.
    Inspect,
    /// Creates or starts an object. If something is absent, we named it wrongly.
    Make,
    /// Removes or stops an object. If it is absent, it is gone.
    End,
}

/// A description of the attempted request.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub action: EngineAction,
    /// What was attempted, as a verb phrase.
    pub operation: String,
    /// The address of the engine.
    pub address: String,
}

/// Classifies an error of an attempted request.
pub(super) fn classify(error: &Error, attempt: &Attempt) -> ProviderError {
    let (class, message) = match error {
        Error::DockerResponseServerError { status_code, message } => {
            let message = one_line(message);
            let class = class_of_response(attempt.action, *status_code, &message);
            let message = explained(class, *status_code, message);
            (class, message)
        }
        error => failure(error, &attempt.address),
    };
    ProviderError {
        provider: crate::NAME,
        operation: attempt.operation.clone(),
        message: one_line(&message),
        class,
        retry_after: None,
    }
}

fn class_of_response(action: EngineAction, status: u16, message: &str) -> ErrorClass {
    let message = message.to_ascii_lowercase();
    let mentions = |phrases: &[&str]| phrases.iter().any(|phrase| message.contains(phrase));
    if mentions(&ADDRESS_POOL_USED_UP) || status == 507 || mentions(&["no space left on device"]) {
        return ErrorClass::Quota;
    }
    match status {
        404 => match action {
            EngineAction::Inspect | EngineAction::End if is_about_object(&message) => {
                ErrorClass::Gone
            }
            _ => ErrorClass::Invalid,
        },
        409 if mentions(&["already in progress", "is being removed"]) => ErrorClass::InProgress,
        409 => ErrorClass::InUse,
        403 if mentions(&["active endpoints"]) => ErrorClass::InUse,
        401 | 403 => ErrorClass::Denied,
        429 => ErrorClass::Throttled,
        408 | 425 => ErrorClass::Transient,
        500.. if mentions(&IN_USE) => ErrorClass::InUse,
        500.. if action == EngineAction::Make && mentions(&UNKNOWN_REFERENCE) => {
            ErrorClass::Invalid
        }
        500.. if action == EngineAction::Make && mentions(&["toomanyrequests"]) => {
            ErrorClass::Throttled
        }
        500.. if action == EngineAction::Make && mentions(&REGISTRY_DENIES) => ErrorClass::Denied,
        500.. => ErrorClass::Transient,
        _ => ErrorClass::Invalid,
    }
}

/// Returns whether the engine says that an object does not exist.
pub(super) fn is_absence(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError { status_code: 404, message } if is_about_object(message)
    )
}

/// Returns whether a 404 is about the object. One without a message, about a page or in HTML comes
/// from a proxy, or from an engine that does not know the endpoint. It proves nothing.
fn is_about_object(message: &str) -> bool {
    let message = message.trim();
    !message.is_empty() && !message.starts_with('<') && !message.contains("page not found")
}

/// How old and new engines report that no network can be created any more.
const ADDRESS_POOL_USED_UP: [&str; 3] = [
    "non-overlapping ipv4 address pool",
    "predefined address pools have been fully subnetted",
    "could not find free subnet",
];

/// How Podman reports with status 500 that something is in use.
const IN_USE: [&str; 4] =
    ["container state improper", "is being used", "has active endpoints", "network is being used"];

/// How Podman reports with status 500 that a create names something that does not exist.
const UNKNOWN_REFERENCE: [&str; 6] = [
    "network not found",
    "command that was not found",
    "executable file not found",
    "manifest unknown",
    "name unknown",
    "no matching manifest",
];

/// What an engine passes on from a registry that requires another login.
const REGISTRY_DENIES: [&str; 2] = ["unauthorized", "requested access to the resource is denied"];

/// Returns what to do when no network can be created any more, if the engine reports that.
pub fn advice(message: &str) -> Option<&'static str> {
    let lower = message.to_ascii_lowercase();
    let is_used_up = ADDRESS_POOL_USED_UP.iter().any(|phrase| lower.contains(phrase));
    is_used_up.then_some("remove unused networks, or give the engine more address pools")
}

/// Adds advice to the engine's message where it does not say what to do.
fn explained(class: ErrorClass, status: u16, message: String) -> String {
    let lower = message.to_ascii_lowercase();
    if message.is_empty() {
        return format!("the engine answered with status {status} and no words");
    }
    if let Some(advice) = advice(&message) {
        return format!("{message} ({advice})");
    }
    let runs =
        ["cannot remove a running container", "cannot remove a paused container", "without force"];
    if class == ErrorClass::InUse && runs.iter().any(|phrase| lower.contains(phrase)) {
        return format!("it is running now ({message})");
    }
    message
}

/// Classifies a missing or unreadable response.
fn failure(error: &Error, address: &str) -> (ErrorClass, String) {
    use io::ErrorKind;

    if let Some(broken) = json_error(error) {
        let message = format!("{address} sent an answer we cannot read: {broken}");
        // It says nothing about the object: neither that the request is wrong nor that it is
        // absent.
        return (ErrorClass::Transient, message);
    }
    let Some(cause) = io_error(error) else {
        return match error {
            Error::RequestTimeoutError => unreachable(address, "did not answer in time", None),
            error => unreachable(address, "broke off", Some(error.to_string())),
        };
    };
    // An error of the operating system has a number. One of ours, of TLS or of ssh has a message.
    let detail = cause.raw_os_error().is_none().then(|| cause.to_string());
    match cause.kind() {
        ErrorKind::PermissionDenied => {
            (ErrorClass::Denied, with_detail(format!("no permission to use {address}"), detail))
        }
        ErrorKind::InvalidData => {
            (ErrorClass::Denied, with_detail(format!("no trust in {address}"), detail))
        }
        ErrorKind::InvalidInput => {
            (ErrorClass::Invalid, with_detail(format!("no way to use {address}"), detail))
        }
        ErrorKind::NotFound => no_listener(address, "no such socket"),
        ErrorKind::ConnectionRefused => no_listener(address, "connection refused"),
        ErrorKind::TimedOut => unreachable(address, "did not answer in time", None),
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => unreachable(address, "broke off", Some(cause.to_string())),
        _ => unreachable(address, "cannot be reached", Some(cause.to_string())),
    }
}

fn no_listener(address: &str, why: &str) -> (ErrorClass, String) {
    (ErrorClass::Unreachable, format!("no Docker Engine listens on {address} ({why})"))
}

fn unreachable(address: &str, what: &str, detail: Option<String>) -> (ErrorClass, String) {
    (ErrorClass::Unreachable, with_detail(format!("{address} {what}"), detail))
}

fn with_detail(sentence: String, detail: Option<String>) -> String {
    match detail {
        Some(detail) => format!("{sentence} ({})", detail.trim_end_matches('.')),
        None => sentence,
    }
}

/// Finds the I/O error in the chain of an error, if there is one.
fn io_error(error: &Error) -> Option<&io::Error> {
    if let Error::IOError { err } = error {
        return Some(err);
    }
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Returns what is wrong with a response that is not the expected JSON.
fn json_error(error: &Error) -> Option<String> {
    match error {
        Error::JsonDataError { message, .. } => Some(message.clone()),
        Error::JsonSerdeError { err } => Some(err.to_string()),
        _ => None,
    }
}

/// Folds a message into one line without a full stop, and limits its length.
fn one_line(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = uncapitalised(line.trim_end_matches('.'));
    match line.char_indices().nth(MESSAGE_LIMIT) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Starts a sentence in lower case, but leaves names such as `OCI` unchanged.
fn uncapitalised(line: &str) -> String {
    let mut letters = line.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            let rest = &line[first.len_utf8()..];
            first.to_lowercase().chain(rest.chars()).collect()
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(action: EngineAction) -> Attempt {
        Attempt { action, operation: "try".to_owned(), address: "unix:///x".to_owned() }
    }

    fn response(action: EngineAction, status_code: u16, message: &str) -> ProviderError {
        let message = message.to_owned();
        classify(&Error::DockerResponseServerError { status_code, message }, &attempt(action))
    }

    fn broken(error: io::Error) -> ProviderError {
        classify(&Error::from(error), &attempt(EngineAction::Inspect))
    }

    #[test]
    fn every_response_has_its_class() {
        use EngineAction::{End, Inspect, Make, Query};
        use ErrorClass::*;

        for (action, status, message, class) in [
            (Query, 404, "page not found", Invalid),
            (Inspect, 404, "No such container: x", Gone),
            (End, 404, "network x not found", Gone),
            (End, 404, "page not found", Invalid),
            (Inspect, 404, "<html>404 Not Found</html>", Invalid),
            (Inspect, 404, "", Invalid),
            (Make, 404, "No such image: nope:latest", Invalid),
            (Make, 404, "network x not found", Invalid),
            (
                Make,
                404,
                "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network",
                Quota,
            ),
            (Make, 500, "all predefined address pools have been fully subnetted", Quota),
            (Make, 500, "write /x: no space left on device", Quota),
            (End, 507, "", Quota),
            (End, 409, "removal of container x is already in progress", InProgress),
            (
                End,
                409,
                "You cannot remove a running container x. Stop the container before attempting removal or force remove",
                InUse,
            ),
            (End, 409, "remove v: volume is in use - [x]", InUse),
            (
                End,
                409,
                "conflict: unable to delete x (cannot be forced) - image is being used by running container y",
                InUse,
            ),
            (End, 403, "error while removing network: network x id y has active endpoints", InUse),
            (End, 409, "network x has active endpoints", InUse),
            (End, 403, "bridge is a pre-defined network and cannot be removed", Denied),
            (Inspect, 401, "unauthorized", Denied),
            (Make, 400, "Minimum memory limit allowed is 6MB", Invalid),
            (Make, 422, "odd", Invalid),
            (Inspect, 429, "slow down", Throttled),
            (Inspect, 408, "late", Transient),
            (
                End,
                500,
                "driver \"overlay2\" failed to remove root filesystem: device or resource busy",
                Transient,
            ),
            (
                End,
                500,
                "cannot remove container x as it is running - running or paused containers cannot be removed without force: container state improper",
                InUse,
            ),
            (Make, 500, "unable to find network with name or ID x: network not found", Invalid),
            (End, 503, "starting", Transient),
        ] {
            assert_eq!(response(action, status, message).class, class, "{status} {message}");
        }
    }

    #[test]
    fn messages_are_one_line_and_say_what_to_do() {
        let used_up = response(
            EngineAction::Make,
            404,
            "could not find an available, non-overlapping IPv4 address pool.\n",
        );
        assert_eq!(
            used_up.message,
            "could not find an available, non-overlapping IPv4 address pool (remove unused \
             networks, or give the engine more address pools)"
        );
        let running = response(EngineAction::End, 409, "You cannot remove a running container x");
        assert!(running.message.starts_with("it is running now ("), "{}", running.message);
        assert_eq!(
            response(EngineAction::End, 502, "").message,
            "the engine answered with status 502 and no words"
        );
        assert_eq!(
            response(EngineAction::Make, 404, "No such image: x").message,
            "no such image: x"
        );
        assert_eq!(
            response(EngineAction::Make, 400, "OCI runtime failed").message,
            "OCI runtime failed"
        );
        assert_eq!(response(EngineAction::End, 500, &"é".repeat(999)).message.chars().count(), 401);
    }

    #[test]
    fn no_response_is_unreachable_or_denied() {
        use io::ErrorKind::*;

        for (kind, class, message) in [
            (
                ConnectionRefused,
                ErrorClass::Unreachable,
                "no Docker Engine listens on unix:///x (connection refused)",
            ),
            (
                NotFound,
                ErrorClass::Unreachable,
                "no Docker Engine listens on unix:///x (no such socket)",
            ),
            (TimedOut, ErrorClass::Unreachable, "unix:///x did not answer in time"),
            (ConnectionReset, ErrorClass::Unreachable, "unix:///x broke off (connection reset)"),
            (
                UnexpectedEof,
                ErrorClass::Unreachable,
                "unix:///x broke off (unexpected end of file)",
            ),
            (
                HostUnreachable,
                ErrorClass::Unreachable,
                "unix:///x cannot be reached (host unreachable)",
            ),
        ] {
            let error = broken(io::Error::from(kind));
            assert_eq!((error.class, error.message.as_str()), (class, message));
        }
        let denied = broken(io::Error::from_raw_os_error(13));
        assert_eq!(denied.class, ErrorClass::Denied);
        assert_eq!(denied.message, "no permission to use unix:///x");
        let denied = broken(io::Error::new(PermissionDenied, "Permission denied (publickey)."));
        assert_eq!(
            denied.message,
            "no permission to use unix:///x (Permission denied (publickey))"
        );
        let late = classify(&Error::RequestTimeoutError, &attempt(EngineAction::End));
        assert_eq!(late.class, ErrorClass::Unreachable);
    }

    #[test]
    fn an_unreadable_response_says_nothing_about_the_object() {
        let error = serde_json::from_str::<u8>("x").unwrap_err();
        let error = classify(&Error::from(error), &attempt(EngineAction::Inspect));
        assert_eq!(error.class, ErrorClass::Transient);
    }
}
