//! The address of a request and its operation.
//!
//! The operation determines the faults, limits and counts of the request.

use axum::http::Method;
use serde::{Deserialize, Serialize};

/// An operation that a fault can apply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the operation of its name")]
pub enum Operation {
    Create,
    Get,
    List,
    Delete,
    Stop,
    Start,
    Exec,
    Follow,
    Other,
}

/// The rate limit that a request counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThrottlerName {
    Authenticated,
    SandboxCreate,
    SandboxLifecycle,
}

impl ThrottlerName {
    /// Returns the suffix of the header names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::SandboxCreate => "sandbox-create",
            Self::SandboxLifecycle => "sandbox-lifecycle",
        }
    }
}

/// A scope that a key needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    None,
    Write,
    Delete,
}

/// The method and address of a request, as errors name them.
#[derive(Debug, Clone)]
pub(crate) struct RequestLine {
    pub(crate) method: Method,
    /// The path and the query.
    pub(crate) address: String,
}

/// The classification of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestRoute {
    /// The operation.
    pub(crate) operation: Operation,
    /// The rate limit it counts against; toolbox calls have none.
    pub(crate) throttler: Option<ThrottlerName>,
    /// The scope it needs.
    pub(crate) scope: Scope,
    /// Whether it needs no key.
    pub(crate) public: bool,
    /// The sandbox it names, by id or name.
    pub(crate) subject: Option<String>,
    /// The pattern under which it is counted.
    pub(crate) pattern: String,
}

impl RequestRoute {
    /// Classifies a request by its method, path and query.
    pub(crate) fn of(method: &Method, path: &str, query: Option<&str>) -> Self {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        match segments.as_slice() {
            ["api", "sandbox"] => Self::of_collection(method),
            ["api", "sandbox", subject, rest @ ..] => Self::of_sandbox(method, subject, rest),
            ["toolbox", subject, rest @ ..] => Self::of_toolbox(method, subject, rest, query),
            ["api", "config"] => Self { public: true, ..Self::other(method, "/config") },
            ["api", "socket.io", ..] => Self {
                public: true,
                throttler: None,
                pattern: format!("{method} /socket.io"),
                ..Self::other(method, "")
            },
            ["api", rest @ ..] => Self::other(method, &format!("/{}", rest.join("/"))),
            _ => Self { public: true, throttler: None, ..Self::other(method, path) },
        }
    }

    fn other(method: &Method, pattern: &str) -> Self {
        Self {
            operation: Operation::Other,
            throttler: Some(ThrottlerName::Authenticated),
            scope: Scope::None,
            public: false,
            subject: None,
            pattern: format!("{method} {pattern}"),
        }
    }

    fn of_collection(method: &Method) -> Self {
        let other = Self::other(method, "/sandbox");
        match *method {
            Method::POST => Self {
                operation: Operation::Create,
                throttler: Some(ThrottlerName::SandboxCreate),
                scope: Scope::Write,
                ..other
            },
            _ => Self { operation: Operation::List, ..other },
        }
    }

    fn of_sandbox(method: &Method, subject: &str, rest: &[&str]) -> Self {
        let tail: Vec<&str> = rest.iter().map(|segment| placeholder(segment)).collect();
        let pattern = ["/sandbox/{s}"].into_iter().chain(tail).collect::<Vec<_>>().join("/");
        let other = Self {
            subject: Some(crate::percent::decode(subject)),
            scope: if *method == Method::GET { Scope::None } else { Scope::Write },
            ..Self::other(method, &pattern)
        };
        let lifecycle = Some(ThrottlerName::SandboxLifecycle);
        match (method, rest) {
            (&Method::GET, []) => Self { operation: Operation::Get, ..other },
            (&Method::DELETE, []) => Self {
                operation: Operation::Delete,
                throttler: lifecycle,
                scope: Scope::Delete,
                ..other
            },
            (_, ["stop"]) => Self { operation: Operation::Stop, throttler: lifecycle, ..other },
            (_, ["start"]) => Self { operation: Operation::Start, throttler: lifecycle, ..other },
            (_, ["archive" | "pause" | "recover"]) => Self { throttler: lifecycle, ..other },
            _ => other,
        }
    }

    fn of_toolbox(method: &Method, subject: &str, rest: &[&str], query: Option<&str>) -> Self {
        let follows = query.is_some_and(|query| query.split('&').any(|pair| pair == "follow=true"));
        let operation = match (method, rest) {
            (&Method::POST, ["process", "execute"] | ["process", "session", _, "exec"]) => {
                Operation::Exec
            }
            (&Method::GET, ["process", "session", _, "command", _, "logs"]) if follows => {
                Operation::Follow
            }
            _ => Operation::Other,
        };
        let mut tail = rest.to_vec();
        if let ["process", "session", session, after @ ..] = tail.as_mut_slice() {
            *session = "{session}";
            if let ["command", command, ..] = after {
                *command = "{command}";
            }
        }
        if let ["process", "pty", pty, ..] = tail.as_mut_slice()
            && *pty != "create-connect"
        {
            *pty = "{pty}";
        }
        Self {
            operation,
            throttler: None,
            subject: Some(crate::percent::decode(subject)),
            pattern: format!("{method} /toolbox/{{s}}/{}", tail.join("/")),
            ..Self::other(method, "")
        }
    }
}

/// Replaces numbers in a path with a placeholder.
fn placeholder(segment: &str) -> &str {
    if segment.parse::<i64>().is_ok() { "{n}" } else { segment }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_by_method_and_path() {
        let route = RequestRoute::of(&Method::DELETE, "/api/sandbox/my%20box", None);
        assert_eq!(route.operation, Operation::Delete);
        assert_eq!(route.throttler, Some(ThrottlerName::SandboxLifecycle));
        assert_eq!(route.scope, Scope::Delete);
        assert_eq!(route.subject.as_deref(), Some("my box"));
        let route = RequestRoute::of(&Method::POST, "/api/sandbox/x/autostop/15", None);
        assert_eq!(route.pattern, "POST /sandbox/{s}/autostop/{n}");
        let logs = "/toolbox/x/process/session/s/command/c/logs";
        let follow = RequestRoute::of(&Method::GET, logs, Some("follow=true"));
        assert_eq!(follow.operation, Operation::Follow);
        let route = RequestRoute::of(&Method::GET, logs, None);
        assert_eq!(route.operation, Operation::Other);
        assert_eq!(
            route.pattern,
            "GET /toolbox/{s}/process/session/{session}/command/{command}/logs"
        );
    }
}
