//! Encodes and validates texts for the target of a request.

use creel_model::provider::Kind;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything except what RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a text for a path or a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Returns whether a text can be the id or name of an object, and no other part of a path.
///
/// The client library puts it into the path unchanged. An empty one would name the whole
/// collection, and a question mark would add options.
pub(super) fn is_reference(kind: Kind, text: &str) -> bool {
    let allowed = |byte: u8| match byte {
        b'-' | b'.' | b'_' => true,
        // An image name may include a registry, a tag and a digest.
        b'/' | b':' | b'@' | b'+' => kind == Kind::Image,
        _ => byte.is_ascii_alphanumeric(),
    };
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
        && !text.split('/').any(|part| part.is_empty() || part == "." || part == "..")
}

/// Returns whether this is the full id of a container. A shorter text may be a name, or match
/// several containers.
pub(super) fn is_whole_id(id: &str) -> bool {
    const LENGTH: usize = 64;
    id.len() == LENGTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_survive_as_part_of_a_query() {
        assert_eq!(encoded(r#"{"a":["b=c"]}"#), "%7B%22a%22%3A%5B%22b%3Dc%22%5D%7D");
    }

    #[test]
    fn only_ids_and_names_are_references() {
        assert!(is_reference(Kind::Container, "web-1_a.b"));
        assert!(is_reference(Kind::Image, "far:5000/me/app:1.2@sha256:aa"));
        for text in ["", "-x", "..", "a/b", "a?force=1", "a b", "ä"] {
            assert!(!is_reference(Kind::Container, text), "{text}");
        }
        for text in ["a/../b", "a//b", "a?x"] {
            assert!(!is_reference(Kind::Image, text), "{text}");
        }
    }
}
