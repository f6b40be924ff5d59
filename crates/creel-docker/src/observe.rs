//! Converts the engine's objects to [`Observed`].
//!
//! States: a container has the engine's own state. A network is `present`. A volume is `named` or
//! `anonymous`. An image is `tagged`, `digested` (pulled by digest, so still wanted by that name)
//! or `dangling`.

use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{Activity, Identity, Kind, Observed};
use jiff::Timestamp;

use super::model::{
    ContainerDetails, ContainerRow, ImageDetails, ImageMetadata, ImageRow, Mount, Network,
    NetworkSettings, Volume,
};

/// The label that newer engines put on anonymous volumes.
const ANONYMOUS: &str = "com.docker.volume.anonymous";
/// The networks that belong to the engine.
const PREDEFINED: [&str; 5] = ["bridge", "host", "none", "ingress", "docker_gwbridge"];
/// The network that belongs to Podman. Under Docker the name is free.
const PREDEFINED_BY_PODMAN: &str = "podman";

/// Returns the part that is common to all kinds. The rest has its default.
fn observed(kind: Kind, id: String, labels: Labels) -> Observed {
    Observed {
        project: labels.get(labels::COMPOSE_PROJECT).map(str::to_owned),
        labels,
        ..Observed::known_by_id(crate::NAME, kind, id)
    }
}

pub(super) fn container_row(row: ContainerRow) -> Observed {
    let name = row.names.first().map_or("", |name| name.trim_start_matches('/'));
    let state = row.state.to_ascii_lowercase();
    Observed {
        name: if name.is_empty() { short(&row.id) } else { name.to_owned() },
        created_at: Timestamp::from_second(row.created).ok().filter(|_| row.created > 0),
        uses: uses(&row.network_settings, &row.mounts, &row.image_id),
        generation: generation(&row.id, &[&state]),
        activity: activity(&state),
        state,
        ..observed(Kind::Container, row.id, row.labels)
    }
}

pub(super) fn container(details: ContainerDetails) -> Observed {
    let name = details.name.trim_start_matches('/');
    let state = details.state.status.to_ascii_lowercase();
    let (started, finished) = (details.state.started_at, details.state.finished_at);
    Observed {
        name: if name.is_empty() { short(&details.id) } else { name.to_owned() },
        created_at: instant(&details.created),
        last_active_at: instant(&started).max(instant(&finished)),
        uses: uses(&details.network_settings, &details.mounts, &details.image),
        generation: generation(&details.id, &[&state, &started, &finished]),
        activity: activity(&state),
        state,
        ..observed(Kind::Container, details.id, details.config.labels)
    }
}

/// Returns whether a container in a state runs.
fn activity(state: &str) -> Activity {
    Activity::of(matches!(state, "running" | "restarting" | "paused"))
}

/// Returns what a container uses. A network is identified by its name if the engine does not report
/// its id, as for a container that never started.
fn uses(settings: &NetworkSettings, mounts: &[Mount], image: &str) -> Vec<(Kind, String)> {
    let networks = settings.networks.iter().map(|(name, joined)| {
        let id = if joined.network_id.is_empty() { name } else { &joined.network_id };
        (Kind::Network, id.clone())
    });
    let volumes = mounts
        .iter()
        .filter(|mount| mount.sort == "volume" && !mount.name.is_empty())
        .map(|mount| (Kind::Volume, mount.name.clone()));
    let image = Some(image).filter(|id| !id.is_empty()).map(|id| (Kind::Image, image_id(id)));
    networks.chain(volumes).chain(image).collect()
}

/// Returns the anonymous volumes of a container, which the engine removes together with it.
pub(super) fn anonymous_volumes(seen: &Observed) -> Vec<(Kind, String)> {
    let is_anonymous = |(kind, name): &&(Kind, String)| *kind == Kind::Volume && is_digest(name);
    match seen.kind {
        Kind::Container => seen.uses.iter().filter(is_anonymous).cloned().collect(),
        _ => Vec::new(),
    }
}

pub(super) fn network(network: Network, podman: bool) -> Observed {
    let predefined = is_predefined(&network.name, podman);
    Observed {
        generation: network.id.clone(),
        aliases: vec![network.name.clone()],
        users: network.containers.into_keys().collect(),
        state: "present".to_owned(),
        created_at: instant(&network.created),
        predefined,
        name: network.name,
        ..observed(Kind::Network, network.id, network.labels)
    }
}

/// Returns whether a network of this name belongs to the engine itself.
pub(super) fn is_predefined(name: &str, podman: bool) -> bool {
    PREDEFINED.contains(&name) || (podman && name == PREDEFINED_BY_PODMAN)
}

/// Converts a volume. Its users must be requested separately.
pub(super) fn volume(volume: Volume, has_stable_times: bool) -> Observed {
    let anonymous = volume.labels.contains_key(ANONYMOUS) || is_digest(&volume.name);
    let identity = Identity::Volume {
        name: volume.name.clone(),
        resource: labels::claimed_resource(&volume.labels),
        engine_made: is_digest(&volume.name),
        created_at: instant(&volume.created_at),
        created_at_is_stable: has_stable_times,
    };
    Observed {
        identity: Some(identity),
        name: volume.name.clone(),
        state: if anonymous { "anonymous" } else { "named" }.to_owned(),
        created_at: instant(&volume.created_at),
        generation: generation(&volume.name, &[&volume.created_at]),
        ..observed(Kind::Volume, volume.name, volume.labels)
    }
}

pub(super) fn image_row(row: ImageRow) -> Observed {
    let created_at = Timestamp::from_second(row.created).ok().filter(|_| row.created > 0);
    let seen = ImageDetails {
        id: row.id,
        repo_tags: row.repo_tags,
        repo_digests: row.repo_digests,
        created: String::new(),
        size: row.size,
        config: super::model::ContainerConfig { labels: row.labels, ..Default::default() },
        // Sweeps do not need it: the engine removes the untagged parents of an image with it.
        parent: String::new(),
        container: String::new(),
        metadata: ImageMetadata::default(),
    };
    Observed { created_at, ..image(seen) }
}

/// Describes an image as it was requested: by its id, or by one of its references. In the second
/// case only that reference is meant.
pub(super) fn image_by(requested: &str, details: ImageDetails) -> Observed {
    let tagged_at = instant(&details.metadata.last_tag_time);
    let seen = image(details);
    if is_image_id(requested) {
        return seen;
    }
    let identity = Identity::Tag {
        reference: requested.to_owned(),
        image: seen.id.clone(),
        tagged_at,
        // Only the client that made the image knows.
        image_is_ours: false,
        tags: seen.tags.iter().cloned().collect(),
        replaces: None,
    };
    Observed {
        aliases: vec![seen.id.clone()],
        id: requested.to_owned(),
        name: requested.to_owned(),
        identity: Some(identity),
        ..seen
    }
}

/// Returns whether a text is a full or abbreviated image id.
pub(super) fn is_image_id(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    text.len() > digits.len()
        || (digits.len() >= 12 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

pub(super) fn image(details: ImageDetails) -> Observed {
    let id = image_id(&details.id);
    let tags = real_references(&details.repo_tags);
    let state = if !tags.is_empty() {
        "tagged"
    } else if !real_references(&details.repo_digests).is_empty() {
        "digested"
    } else {
        "dangling"
    };
    let marks: Vec<&str> = tags.iter().map(String::as_str).collect();
    let tagged_at = instant(&details.metadata.last_tag_time);
    let names = tags.iter().cloned().collect();
    Observed {
        identity: Some(Identity::Image { id: id.clone(), tags: names, tagged_at }),
        generation: generation(&id, &marks),
        tags: tags.clone(),
        name: details
            .repo_tags
            .into_iter()
            .find(|tag| is_real_reference(tag))
            .unwrap_or_else(|| short(&id)),
        state: state.to_owned(),
        created_at: instant(&details.created),
        tagged_at: instant(&details.metadata.last_tag_time),
        size: u64::try_from(details.size).ok(),
        uses: Some(details.parent)
            .filter(|parent| !parent.is_empty())
            .map(|parent| (Kind::Image, image_id(&parent)))
            .into_iter()
            .collect(),
        ..observed(Kind::Image, id, details.config.labels)
    }
}

/// Returns the sorted references that name something. Engines write `<none>` for the rest.
pub(super) fn real_references(references: &[String]) -> Vec<String> {
    let mut real: Vec<String> =
        references.iter().filter(|reference| is_real_reference(reference)).cloned().collect();
    real.sort_unstable();
    real
}

fn is_real_reference(reference: &str) -> bool {
    !reference.contains("<none>")
}

/// Returns an image id in its canonical form. Podman omits the algorithm in places.
pub(super) fn image_id(id: &str) -> String {
    if is_digest(id) { format!("sha256:{id}") } else { id.to_owned() }
}

pub(super) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn short(id: &str) -> String {
    id.trim_start_matches("sha256:").chars().take(12).collect()
}

/// Joins an identity with its mutable properties.
fn generation(id: &str, marks: &[&str]) -> String {
    let length = marks.iter().fold(id.len(), |sum, mark| sum + 1 + mark.len());
    let mut text = String::with_capacity(length);
    text.push_str(id);
    for mark in marks {
        text.push(' ');
        text.push_str(mark);
    }
    text
}

/// Parses an instant. The year 1, which engines send for "never", is `None`.
pub(super) fn instant(text: &str) -> Option<Timestamp> {
    text.parse::<Timestamp>().ok().filter(|instant| *instant > Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn row(json: serde_json::Value) -> Observed {
        container_row(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn a_container_row_needs_nothing_but_its_id() {
        let seen = row(serde_json::json!({ "Id": ID, "Labels": null, "Mounts": null }));
        assert_eq!((seen.name.as_str(), seen.state.as_str()), ("aaaaaaaaaaaa", ""));
        assert_eq!(seen.created_at, None);
        assert!(seen.uses.is_empty());
    }

    #[test]
    fn an_unknown_state_is_passed_on() {
        let seen = row(serde_json::json!({ "Id": ID, "State": "Initialized" }));
        assert_eq!(seen.state, "initialized");
    }

    #[test]
    fn a_container_uses_its_networks_volumes_and_image() {
        let seen = row(serde_json::json!({
            "Id": ID,
            "Names": ["/web-1"],
            "ImageID": ID,
            "Created": 1_794_740_121,
            "State": "running",
            "Labels": { "com.docker.compose.project": "web" },
            "Mounts": [
                { "Type": "volume", "Name": "data", "Destination": "/data" },
                { "Type": "bind", "Source": "/etc" },
            ],
            "NetworkSettings": {
                "Networks": { "front": { "NetworkID": "n1" }, "late": { "NetworkID": "" } },
            },
        }));
        assert_eq!(seen.name, "web-1");
        assert_eq!(seen.project.as_deref(), Some("web"));
        assert_eq!(seen.created_at.unwrap().as_second(), 1_794_740_121);
        assert_eq!(
            seen.uses,
            [
                (Kind::Network, "n1".to_owned()),
                (Kind::Network, "late".to_owned()),
                (Kind::Volume, "data".to_owned()),
                (Kind::Image, format!("sha256:{ID}")),
            ]
        );
    }

    #[test]
    fn a_restart_changes_the_generation_of_an_inspected_container() {
        let inspect = |started: &str| {
            let json = serde_json::json!({
                "Id": ID, "Name": "/web",
                "State": { "Status": "running", "StartedAt": started, "FinishedAt": "f" },
            });
            container(serde_json::from_value(json).unwrap())
        };
        assert_eq!(inspect("s").generation, format!("{ID} running s f"));
        assert_ne!(inspect("s").generation, inspect("t").generation);
    }

    #[test]
    fn the_networks_of_the_engine_are_predefined() {
        assert!(is_predefined("bridge", false) && is_predefined("ingress", true));
        assert!(is_predefined("podman", true) && !is_predefined("podman", false));
        assert!(!is_predefined("bridge2", false));
    }

    #[test]
    fn a_volume_without_a_given_name_is_anonymous() {
        let state = |name: &str, labels: Labels| {
            let seen = Volume { name: name.to_owned(), created_at: String::new(), labels };
            volume(seen, true).state
        };
        assert_eq!(state("data", Labels::new()), "named");
        assert_eq!(state(ID, Labels::new()), "anonymous");
        let marked = Labels::from([(ANONYMOUS, "")]);
        assert_eq!(state("data", marked), "anonymous");
    }

    #[test]
    fn an_image_is_tagged_digested_or_dangling() {
        let seen = |tags: &[&str], digests: &[&str]| {
            let json = serde_json::json!({
                "Id": format!("sha256:{ID}"), "RepoTags": tags, "RepoDigests": digests, "Size": 7,
            });
            image_row(serde_json::from_value(json).unwrap())
        };
        let tagged = seen(&["b:1", "a:1"], &["b@sha256:x"]);
        assert_eq!((tagged.name.as_str(), tagged.state.as_str()), ("b:1", "tagged"));
        assert_eq!(tagged.generation, format!("sha256:{ID} a:1 b:1"));
        assert_eq!(tagged.size, Some(7));
        assert_eq!(seen(&[], &["b@sha256:x"]).state, "digested");
        let dangling = seen(&["<none>:<none>"], &["<none>@<none>"]);
        assert_eq!((dangling.name.as_str(), dangling.state.as_str()), ("aaaaaaaaaaaa", "dangling"));
    }

    #[test]
    fn never_is_not_an_instant() {
        assert_eq!(instant("0001-01-01T00:00:00Z"), None);
        assert_eq!(instant(""), None);
        assert!(instant("2026-11-15T12:56:15.5+02:00").is_some());
    }
}
