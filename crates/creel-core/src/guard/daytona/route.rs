//! Which requests create or change what the guard answers for.
//!
//! The service reads paths without regard to case and to slashes at their end,
//! and decodes them. So does this, and rather takes one request too many for
//! a create.

use hyper::Method;
use percent_encoding::percent_decode_str;

/// What a request is to the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// Makes a sandbox.
    Create,
    /// Makes a sandbox of another one.
    Fork,
    /// Ends this sandbox.
    Delete(String),
    /// Replaces the labels of this sandbox.
    Labels(String),
    /// Sets after how many idle minutes this sandbox stops.
    AutoStop(String, i64),
    /// Sets when this sandbox is destroyed.
    TimeToLive(String, i64),
    /// It makes something that is not tracked.
    Untracked(&'static str),
    /// Everything else streams through.
    Other,
}

/// What is made by a POST to a collection of this name.
const COLLECTIONS: [(&str, &str); 5] = [
    ("snapshots", "a snapshot"),
    ("volumes", "a volume"),
    ("secret", "a secret"),
    ("warm-pools", "a warm pool"),
    ("docker-registry", "a registry"),
];

/// Sorts a request; `prefix` is the path of the API itself.
pub(super) fn route(method: &Method, path: &str, prefix: &str) -> Route {
    let (words, prefix) = (words(path), words(prefix));
    let is_ours = words.len() >= prefix.len()
        && words.iter().zip(&prefix).all(|(word, part)| word.eq_ignore_ascii_case(part));
    if !is_ours {
        return Route::Other;
    }
    let words: Vec<&str> = words[prefix.len()..].iter().map(String::as_str).collect();
    // Names keep their case; the words of the API have none.
    let is = |word: &str, name: &str| word.eq_ignore_ascii_case(name);
    match (method, words.as_slice()) {
        (&Method::POST, [all]) if is(all, "sandbox") => Route::Create,
        (&Method::POST, [all]) => {
            let made = COLLECTIONS.iter().find(|(name, _)| is(all, name));
            made.map_or(Route::Other, |(_, what)| Route::Untracked(what))
        }
        (&Method::DELETE, [all, id]) if is(all, "sandbox") => Route::Delete((*id).to_owned()),
        (_, [all, id, act]) if is(all, "sandbox") => of_sandbox(method, id, act),
        (&Method::POST, [all, id, act, minutes]) if is(all, "sandbox") => {
            let (id, minutes) = ((*id).to_owned(), minutes.parse().ok());
            match minutes {
                Some(minutes) if is(act, "autostop") => Route::AutoStop(id, minutes),
                Some(minutes) if is(act, "ttl") => Route::TimeToLive(id, minutes),
                _ => Route::Other,
            }
        }
        _ => Route::Other,
    }
}

fn of_sandbox(method: &Method, id: &str, act: &str) -> Route {
    match (method, act.to_ascii_lowercase().as_str()) {
        (&Method::POST, "fork") => Route::Fork,
        (&Method::POST, "snapshot") => Route::Untracked("a snapshot"),
        (&Method::PUT, "labels") => Route::Labels(id.to_owned()),
        _ => Route::Other,
    }
}

fn words(path: &str) -> Vec<String> {
    let words = path.split('/').filter(|word| !word.is_empty());
    words.map(|word| percent_decode_str(word).decode_utf8_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str) -> Route {
        route(&method.parse().unwrap(), path, "/api")
    }

    #[test]
    fn creates_are_known_however_they_are_written() {
        for path in ["/api/sandbox", "/api/sandbox/", "/API/Sandbox", "//api/%73andbox"] {
            assert_eq!(of("POST", path), Route::Create, "{path}");
            assert_eq!(of("GET", path), Route::Other, "{path}");
        }
        assert_eq!(of("POST", "/other/sandbox"), Route::Other);
        assert_eq!(of("POST", "/api/sandbox/x/fork"), Route::Fork);
        assert_eq!(route(&Method::POST, "/sandbox", "/"), Route::Create);
    }

    #[test]
    fn what_is_not_tracked_is_named() {
        for path in ["snapshots", "volumes", "secret", "warm-pools", "docker-registry"] {
            let made = of("POST", &format!("/api/{path}"));
            assert!(matches!(made, Route::Untracked(_)), "{path}: {made:?}");
            assert_eq!(of("GET", &format!("/api/{path}")), Route::Other);
        }
        assert_eq!(of("POST", "/api/sandbox/x/snapshot"), Route::Untracked("a snapshot"));
    }

    #[test]
    fn acts_on_a_sandbox_carry_its_id() {
        let id = || "My Box".to_owned();
        assert_eq!(of("DELETE", "/api/sandbox/My%20Box"), Route::Delete(id()));
        assert_eq!(of("PUT", "/api/sandbox/My%20Box/labels"), Route::Labels(id()));
        assert_eq!(of("POST", "/api/sandbox/My%20Box/autostop/0"), Route::AutoStop(id(), 0));
        assert_eq!(of("POST", "/api/sandbox/My%20Box/ttl/30"), Route::TimeToLive(id(), 30));
        assert_eq!(of("POST", "/api/sandbox/My%20Box/autostop/x"), Route::Other);
        assert_eq!(of("POST", "/api/sandbox/x/start"), Route::Other);
    }
}
