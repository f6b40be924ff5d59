//! Lists, inspects and searches objects.

use std::collections::BTreeMap;

use bollard::errors::Error;
use creel_model::labels;
use creel_model::provider::{Kind, Marks, Observed};
use futures::future::try_join_all;
use futures::try_join;

use super::connection::EngineConnection;
use super::encode::encoded;
use super::model::{ContainerRow, ImageDetails, ImageRow, Network, Volume};
use super::observe;

/// Lists all objects of the given kinds, concurrently.
pub(super) async fn list(
    connection: &EngineConnection,
    kinds: &[Kind],
) -> Result<Vec<Observed>, Error> {
    let wanted = |kind| kinds.contains(&kind).then_some("{}");
    let (mut containers, networks, volumes, images) = try_join!(
        containers(connection, wanted(Kind::Container)),
        networks(connection, wanted(Kind::Network)),
        volumes(connection, wanted(Kind::Volume)),
        images(connection, wanted(Kind::Image)),
    )?;
    name_networks_by_id(&mut containers, &networks);
    let mut all = containers;
    all.extend(networks);
    all.extend(volumes);
    all.extend(images);
    Ok(all)
}

/// Replaces the names of networks in use by ids, where the engine sent only the names.
fn name_networks_by_id(containers: &mut [Observed], networks: &[Observed]) {
    let ids: BTreeMap<&str, &str> =
        networks.iter().map(|network| (network.name.as_str(), network.id.as_str())).collect();
    for (kind, used) in containers.iter_mut().flat_map(|container| &mut container.uses) {
        if let (Kind::Network, Some(id)) = (*kind, ids.get(used.as_str())) {
            *used = (*id).to_owned();
        }
    }
}

async fn containers(
    connection: &EngineConnection,
    filters: Option<&str>,
) -> Result<Vec<Observed>, Error> {
    let mut seen = Vec::new();
    if let Some(filters) = filters {
        let query = [("all", "1"), ("filters", filters)];
        let each = |row: ContainerRow| seen.push(observe::container_row(row));
        connection.rows("/containers/json", &query, each).await?;
    }
    Ok(seen)
}

async fn networks(
    connection: &EngineConnection,
    filters: Option<&str>,
) -> Result<Vec<Observed>, Error> {
    let mut seen = Vec::new();
    if let Some(filters) = filters {
        let podman = connection.is_podman().await?;
        let each = |row: Network| seen.push(observe::network(row, podman));
        connection.rows("/networks", &[("filters", filters)], each).await?;
    }
    Ok(seen)
}

async fn volumes(
    connection: &EngineConnection,
    filters: Option<&str>,
) -> Result<Vec<Observed>, Error> {
    let Some(filters) = filters else { return Ok(Vec::new()) };
    let stable = connection.has_stable_volume_times().await?;
    let mut seen = Vec::new();
    let each = |row: Volume| seen.push(observe::volume(row, stable));
    // The rows are nested in an object, beside the engine's warnings.
    connection.rows_in(2, ("/volumes", &[("filters", filters)]), each).await?;
    Ok(seen)
}

async fn images(
    connection: &EngineConnection,
    filters: Option<&str>,
) -> Result<Vec<Observed>, Error> {
    let mut seen = Vec::new();
    if let Some(filters) = filters {
        let each = |row: ImageRow| seen.push(observe::image_row(row));
        connection.rows("/images/json", &[("filters", filters)], each).await?;
    }
    Ok(seen)
}

/// Inspects one object. `None` means that the engine has none with that id.
pub(super) async fn inspect(
    connection: &EngineConnection,
    kind: Kind,
    id: &str,
) -> Result<Option<Observed>, Error> {
    let name = encoded(id);
    Ok(match kind {
        Kind::Container => {
            let found = connection.get_if_any(&format!("/containers/{name}/json")).await?;
            found.map(observe::container)
        }
        Kind::Network => {
            let podman = connection.is_podman().await?;
            let found = connection.get_if_any(&format!("/networks/{name}")).await?;
            found.map(|network| observe::network(network, podman))
        }
        Kind::Volume => {
            let found = connection.get_if_any(&format!("/volumes/{name}")).await?;
            let stable = connection.has_stable_volume_times().await?;
            found.map(|volume| observe::volume(volume, stable))
        }
        Kind::Image => {
            let found = connection.get_if_any(&format!("/images/{name}/json")).await?;
            found.map(|details| observe::image_by(id, details))
        }
        Kind::Sandbox | Kind::Process | Kind::Directory => None,
    })
}

/// Inspects one object and finds its users. An engine does not report the users of a volume itself.
pub(super) async fn examine(
    connection: &EngineConnection,
    kind: Kind,
    id: &str,
) -> Result<Option<Observed>, Error> {
    let mut found = inspect(connection, kind, id).await?;
    if let Some(volume) = found.as_mut().filter(|_| kind == Kind::Volume) {
        volume.users = users_of_volume(connection, id).await?;
    }
    Ok(found)
}

/// Returns the sorted ids of the containers that use a volume, in any state.
async fn users_of_volume(connection: &EngineConnection, name: &str) -> Result<Vec<String>, Error> {
    let found = containers(connection, Some(&filters("volume", name))).await?;
    Ok(users_among(found, (Kind::Volume, name)))
}

/// Returns the sorted ids of the containers made from an image, in any state.
///
/// It lists all containers. Engines do not agree on the format of an image id in a filter, and an
/// empty result would be taken for an unused image.
pub(super) async fn users_of_image(
    connection: &EngineConnection,
    id: &str,
) -> Result<Vec<String>, Error> {
    Ok(users_among(containers(connection, Some("{}")).await?, (Kind::Image, id)))
}

fn users_among(containers: Vec<Observed>, used: (Kind, &str)) -> Vec<String> {
    let mut ids: Vec<String> = containers
        .into_iter()
        .filter(|seen| seen.uses.iter().any(|(kind, id)| (*kind, id.as_str()) == used))
        .map(|seen| seen.id)
        .collect();
    ids.sort_unstable();
    ids
}

fn filters(name: &str, value: &str) -> String {
    serde_json::json!({ name: [value] }).to_string()
}

/// Finds what a create left behind: an object that has its name, carries its label, and did not
/// inherit the label from its image.
///
/// A label alone proves nothing, because any client can copy it. Neither does a name alone. Images
/// carry no label of ours, so a reference is never found: another client that builds the image
/// again has the same reference.
pub(super) async fn find(
    connection: &EngineConnection,
    marks: &Marks,
) -> Result<Vec<Observed>, Error> {
    if let (Kind::Image, Some(step)) = (marks.kind, marks.name.strip_prefix(STEP)) {
        let container = step.split_once(UPON).map_or(step, |(container, _)| container);
        return step_of(connection, container).await;
    }
    let resource = marks.resource.to_string();
    // The filter also matches parts of names.
    let candidates = matching(connection, marks.kind, &filters("name", &marks.name)).await?;
    let checked = candidates.into_iter().filter(|seen| marks.fit(seen)).map(|seen| async {
        let inherited = inherits(connection, &seen, &resource).await?;
        Ok::<_, Error>((!inherited).then_some(seen))
    });
    Ok(try_join_all(checked).await?.into_iter().flatten().collect())
}

/// The prefix of the names of images that build steps make. The container in which the step runs
/// follows. No image reference has this format.
const STEP: &str = "step of container ";

/// The separator between the container and the image that the step is built upon.
const UPON: &str = " upon ";

/// Returns the name under which the image of a step is recorded before it exists.
pub fn step_name(container: &str, upon: Option<&str>) -> String {
    match upon {
        Some(image) => format!("{STEP}{container}{UPON}{image}"),
        None => format!("{STEP}{container}"),
    }
}

/// Parses the recorded name of a step: its container, and the image that it is built upon.
pub(super) fn parse_step(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(STEP)?.split_once(UPON)
}

/// Finds the image that a build step made. Only the builder knows its container.
pub(super) async fn step_of(
    connection: &EngineConnection,
    container: &str,
) -> Result<Vec<Observed>, Error> {
    let mut nameless = Vec::new();
    let each = |row: ImageRow| {
        if observe::real_references(&row.repo_tags).is_empty() {
            nameless.push(row.id);
        }
    };
    connection.rows("/images/json", &[("all", "1")], each).await?;
    for id in nameless {
        let details: Option<ImageDetails> =
            connection.get_if_any(&format!("/images/{}/json", encoded(&id))).await?;
        if let Some(details) = details.filter(|one| one.container.starts_with(container)) {
            return Ok(vec![observe::image_by(&id, details)]);
        }
    }
    Ok(Vec::new())
}

async fn matching(
    connection: &EngineConnection,
    kind: Kind,
    filters: &str,
) -> Result<Vec<Observed>, Error> {
    match kind {
        Kind::Container => containers(connection, Some(filters)).await,
        Kind::Network => networks(connection, Some(filters)).await,
        Kind::Volume => volumes(connection, Some(filters)).await,
        // We never label images.
        Kind::Image | Kind::Sandbox | Kind::Process | Kind::Directory => Ok(Vec::new()),
    }
}

/// Returns whether a container may have inherited the label from its image. If the image is gone
/// this cannot be determined, and what may belong to another owner is kept.
async fn inherits(
    connection: &EngineConnection,
    seen: &Observed,
    resource: &str,
) -> Result<bool, Error> {
    if seen.kind != Kind::Container {
        return Ok(false);
    }
    let Some((_, image)) = seen.uses.iter().find(|(kind, _)| *kind == Kind::Image) else {
        return Ok(true);
    };
    let image = inspect(connection, Kind::Image, image).await?;
    Ok(image.is_none_or(|image| image.labels.get(labels::RESOURCE) == Some(resource)))
}
