//! Image references: the form in which an engine lists them, and the request that makes one.

use bollard::query_parameters::TagImageOptions;

/// Returns a reference as the engine lists it: without the default registry, with a tag.
pub fn familiar(reference: &str) -> String {
    let name = reference.strip_prefix("docker.io/").unwrap_or(reference);
    let name = name.strip_prefix("library/").unwrap_or(name);
    // A port may precede the first slash, a tag only follows the last one.
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains([':', '@']) { name.to_owned() } else { format!("{name}:latest") }
}

/// Returns the reference made of a name and a tag or digest.
pub fn joined(name: &str, tag: Option<&str>) -> String {
    match tag {
        Some(digest) if digest.contains(':') => familiar(&format!("{name}@{digest}")),
        Some(tag) => familiar(&format!("{name}:{tag}")),
        None => familiar(name),
    }
}

/// Returns the options of the tag request that makes a reference. `None` for a digest, which no
/// request can make.
pub(super) fn tag_options(reference: &str) -> Option<TagImageOptions> {
    let (repository, tag) = reference.rsplit_once(':').filter(|_| !reference.contains('@'))?;
    Some(TagImageOptions { repo: Some(repository.to_owned()), tag: Some(tag.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_one_form() {
        assert_eq!(familiar("alpine"), "alpine:latest");
        assert_eq!(familiar("docker.io/library/alpine:3"), "alpine:3");
        assert_eq!(familiar("localhost:5000/a/b"), "localhost:5000/a/b:latest");
        assert_eq!(joined("a/b", Some("1")), "a/b:1");
        assert_eq!(joined("a", Some("sha256:0")), "a@sha256:0");
        assert_eq!(joined("a", None), "a:latest");
    }
}
