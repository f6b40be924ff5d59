//! Classifies requests: which ones create or destroy.
//!
//! The engine accepts any version in front of a path, and percent-encoded letters in it. So the
//! path is decoded before it is compared.

use percent_encoding::percent_decode_str;

/// What a request means to the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DockerRoute {
    CreateContainer,
    CreateNetwork,
    CreateVolume,
    /// Removes a container. Its volumes are inspected first.
    RemoveContainer(String),
    /// A build by the engine itself.
    Build,
    /// A BuildKit session, in which images may be built.
    BuildSession,
    /// A pull, or an import.
    CreateImage,
    LoadImages,
    Commit,
    Tag(String),
    /// A command in a container.
    Exec,
    /// A prune of this kind of object.
    Prune(Pruned),
    /// Creates something that is not tracked.
    Untracked(&'static str),
    /// Everything else, which streams through.
    Other,
}

/// The objects of a prune.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pruned {
    /// Containers. A filter narrows the prune, but labels may be inherited.
    Containers,
    /// Networks, volumes or images. A filter narrows the prune.
    Labelled,
    /// The build cache, which has no owner.
    BuildCache,
}

/// Classifies a request by its method and target.
pub(super) fn route(method: &str, target: &str) -> DockerRoute {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let path = percent_decode_str(path).decode_utf8_lossy();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let segments = match segments.split_first() {
        Some((version, rest)) if is_version(version) => rest,
        _ => &segments[..],
    };
    match (method, segments) {
        ("POST", ["containers", "create"]) => DockerRoute::CreateContainer,
        ("POST", ["networks", "create"]) => DockerRoute::CreateNetwork,
        ("POST", ["volumes", "create"]) => DockerRoute::CreateVolume,
        ("DELETE", ["containers", id]) => DockerRoute::RemoveContainer((*id).to_owned()),
        ("POST", ["containers", _, "exec"]) => DockerRoute::Exec,
        ("POST", ["build"]) => DockerRoute::Build,
        ("POST", ["grpc"]) => DockerRoute::BuildSession,
        ("POST", ["images", "create"]) => DockerRoute::CreateImage,
        ("POST", ["images", "load"]) => DockerRoute::LoadImages,
        ("POST", ["commit"]) => DockerRoute::Commit,
        // The name of an image may contain slashes.
        ("POST", ["images", name @ .., "tag"]) => DockerRoute::Tag(name.join("/")),
        ("POST", ["containers", "prune"]) => DockerRoute::Prune(Pruned::Containers),
        ("POST", ["networks" | "volumes" | "images", "prune"]) => {
            DockerRoute::Prune(Pruned::Labelled)
        }
        ("POST", ["build", "prune"]) => DockerRoute::Prune(Pruned::BuildCache),
        ("POST", ["swarm", "init" | "join"]) => DockerRoute::Untracked("a swarm"),
        ("POST", ["services", "create"]) => DockerRoute::Untracked("a service"),
        ("POST", ["secrets", "create"]) => DockerRoute::Untracked("a secret"),
        ("POST", ["configs", "create"]) => DockerRoute::Untracked("a config"),
        ("POST", ["plugins", "create" | "pull"]) => DockerRoute::Untracked("a plugin"),
        _ => DockerRoute::Other,
    }
}

fn is_version(segment: &str) -> bool {
    segment.strip_prefix('v').is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// Returns all values of a parameter.
pub(super) fn parameters(target: &str, name: &str) -> Vec<String> {
    pairs(target).into_iter().filter(|(key, _)| key == name).map(|(_, value)| value).collect()
}

/// Returns the effective value of a parameter: the first one, unless it is empty.
pub(super) fn parameter(target: &str, name: &str) -> Option<String> {
    parameters(target, name).into_iter().next().filter(|value| !value.is_empty())
}

/// Returns the target with a parameter set, in place of all with that name.
pub(super) fn with_parameter(target: &str, name: &str, value: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let kept = query.split('&').filter(|pair| {
        let key = pair.split_once('=').map_or(*pair, |(key, _)| key);
        !pair.is_empty() && form_urlencoded::parse(key.as_bytes()).all(|(key, _)| key != name)
    });
    let added = form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish();
    let pairs: Vec<&str> = kept.chain([added.as_str()]).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Returns the target with one more value of a parameter.
pub(super) fn with_one_more(target: &str, name: &str, value: &str) -> String {
    let added = form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish();
    let joint = if target.contains('?') { '&' } else { '?' };
    format!("{target}{joint}{added}")
}

fn pairs(target: &str) -> Vec<(String, String)> {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_encoded_letters_do_not_hide_a_create() {
        for target in [
            "/containers/create",
            "/v1.41/containers/create?name=x",
            "/v1.51.0/containers/%63reate",
            "/%76%31.41/containers/create",
        ] {
            assert_eq!(route("POST", target), DockerRoute::CreateContainer, "{target}");
        }
        assert_eq!(route("GET", "/containers/create"), DockerRoute::Other);
        assert_eq!(route("POST", "/vx/containers/create"), DockerRoute::Other);
        assert_eq!(
            route("POST", "/v1.41/images/localhost:5000/a/b/tag?repo=c"),
            DockerRoute::Tag("localhost:5000/a/b".to_owned())
        );
        assert_eq!(
            route("DELETE", "/v1/containers/ab"),
            DockerRoute::RemoveContainer("ab".to_owned())
        );
        assert_eq!(route("POST", "/volumes/prune"), DockerRoute::Prune(Pruned::Labelled));
    }

    #[test]
    fn parameters_are_read_set_and_added() {
        let target = "/build?t=a%3A1&t=b&q=%7B%22x%22%7D&rm=1";
        assert_eq!(parameters(target, "t"), ["a:1", "b"]);
        assert_eq!(parameter(target, "q").as_deref(), Some("{\"x\"}"));
        assert_eq!(
            with_parameter(target, "rm", "0 1"),
            "/build?t=a%3A1&t=b&q=%7B%22x%22%7D&rm=0+1"
        );
        assert_eq!(with_parameter("/build", "rm", "1"), "/build?rm=1");
        assert_eq!(
            with_one_more("/commit?a=b", "changes", "LABEL x="),
            "/commit?a=b&changes=LABEL+x%3D"
        );
    }
}
