//! Classifies requests: which ones create or change what the guard owns.
//!
//! The service ignores the case of paths and slashes at their end, and decodes them. The guard does
//! the same. In doubt it takes a request for a create.

use hyper::Method;
use percent_encoding::percent_decode_str;

/// What a request means to the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DaytonaRoute {
    /// Creates a sandbox.
    Create,
    /// Creates a sandbox from another one.
    Fork,
    /// Deletes this sandbox.
    Delete(String),
    /// Replaces the labels of this sandbox.
    Labels(String),
    /// Sets after how many idle minutes this sandbox stops.
    AutoStop(String, i64),
    /// Sets when this sandbox is destroyed.
    TimeToLive(String, i64),
    /// Creates something that is not tracked.
    Untracked(&'static str),
    /// Everything else, which streams through.
    Other,
}

/// What a POST to each of these collections creates.
const COLLECTIONS: [(&str, &str); 5] = [
    ("snapshots", "a snapshot"),
    ("volumes", "a volume"),
    ("secret", "a secret"),
    ("warm-pools", "a warm pool"),
    ("docker-registry", "a registry"),
];

/// Classifies a request. `prefix` is the path of the API itself.
pub(super) fn route(method: &Method, path: &str, prefix: &str) -> DaytonaRoute {
    let (segments, prefix) = (segments(path), segments(prefix));
    let is_ours = segments.len() >= prefix.len()
        && segments.iter().zip(&prefix).all(|(segment, part)| segment.eq_ignore_ascii_case(part));
    if !is_ours {
        return DaytonaRoute::Other;
    }
    let segments: Vec<&str> = segments[prefix.len()..].iter().map(String::as_str).collect();
    // Names are case-sensitive; the API's own path segments are not.
    let is = |segment: &str, name: &str| segment.eq_ignore_ascii_case(name);
    match (method, segments.as_slice()) {
        (&Method::POST, [all]) if is(all, "sandbox") => DaytonaRoute::Create,
        (&Method::POST, [all]) => {
            let collection = COLLECTIONS.iter().find(|(name, _)| is(all, name));
            collection.map_or(DaytonaRoute::Other, |(_, what)| DaytonaRoute::Untracked(what))
        }
        (&Method::DELETE, [all, id]) if is(all, "sandbox") => {
            DaytonaRoute::Delete((*id).to_owned())
        }
        (_, [all, id, action]) if is(all, "sandbox") => of_sandbox(method, id, action),
        (&Method::POST, [all, id, action, minutes]) if is(all, "sandbox") => {
            let (id, minutes) = ((*id).to_owned(), minutes.parse().ok());
            match minutes {
                Some(minutes) if is(action, "autostop") => DaytonaRoute::AutoStop(id, minutes),
                Some(minutes) if is(action, "ttl") => DaytonaRoute::TimeToLive(id, minutes),
                _ => DaytonaRoute::Other,
            }
        }
        _ => DaytonaRoute::Other,
    }
}

fn of_sandbox(method: &Method, id: &str, action: &str) -> DaytonaRoute {
    match (method, action.to_ascii_lowercase().as_str()) {
        (&Method::POST, "fork") => DaytonaRoute::Fork,
        (&Method::POST, "snapshot") => DaytonaRoute::Untracked("a snapshot"),
        (&Method::PUT, "labels") => DaytonaRoute::Labels(id.to_owned()),
        _ => DaytonaRoute::Other,
    }
}

fn segments(path: &str) -> Vec<String> {
    let segments = path.split('/').filter(|segment| !segment.is_empty());
    segments.map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str) -> DaytonaRoute {
        route(&method.parse().unwrap(), path, "/api")
    }

    #[test]
    fn creates_are_recognised_however_they_are_written() {
        for path in ["/api/sandbox", "/api/sandbox/", "/API/Sandbox", "//api/%73andbox"] {
            assert_eq!(of("POST", path), DaytonaRoute::Create, "{path}");
            assert_eq!(of("GET", path), DaytonaRoute::Other, "{path}");
        }
        assert_eq!(of("POST", "/other/sandbox"), DaytonaRoute::Other);
        assert_eq!(of("POST", "/api/sandbox/x/fork"), DaytonaRoute::Fork);
        assert_eq!(route(&Method::POST, "/sandbox", "/"), DaytonaRoute::Create);
    }

    #[test]
    fn untracked_creates_are_recognised() {
        for path in ["snapshots", "volumes", "secret", "warm-pools", "docker-registry"] {
            let route = of("POST", &format!("/api/{path}"));
            assert!(matches!(route, DaytonaRoute::Untracked(_)), "{path}: {route:?}");
            assert_eq!(of("GET", &format!("/api/{path}")), DaytonaRoute::Other);
        }
        assert_eq!(of("POST", "/api/sandbox/x/snapshot"), DaytonaRoute::Untracked("a snapshot"));
    }

    #[test]
    fn acts_on_a_sandbox_carry_its_id() {
        let id = || "My Box".to_owned();
        assert_eq!(of("DELETE", "/api/sandbox/My%20Box"), DaytonaRoute::Delete(id()));
        assert_eq!(of("PUT", "/api/sandbox/My%20Box/labels"), DaytonaRoute::Labels(id()));
        assert_eq!(of("POST", "/api/sandbox/My%20Box/autostop/0"), DaytonaRoute::AutoStop(id(), 0));
        assert_eq!(of("POST", "/api/sandbox/My%20Box/ttl/30"), DaytonaRoute::TimeToLive(id(), 30));
        assert_eq!(of("POST", "/api/sandbox/My%20Box/autostop/x"), DaytonaRoute::Other);
        assert_eq!(of("POST", "/api/sandbox/x/start"), DaytonaRoute::Other);
    }
}
