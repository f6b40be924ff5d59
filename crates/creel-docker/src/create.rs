//! Creates containers, networks and volumes.
//!
//! Every create carries the deterministic name and the labels of its request. When the name is
//! taken, the existing object is ours if it carries the label of this very create: the response to
//! an earlier attempt was lost. Otherwise it belongs to another owner. A crash in the middle leaves
//! an object that both the name and the label find again.

use std::collections::HashMap;

use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptions, RemoveContainerOptions, StartContainerOptions,
};
use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{ContainerSpec, CreateRequest, Init, NetworkSpec, Observed};

use super::connection::EngineConnection;
use super::files;
use super::model::{CreatedId, Volume};
use super::read;

/// How Podman reports that it was installed without an init for containers.
const NO_INIT: &str = "container-init binary not found";

/// Why a create did not succeed.
pub(super) enum CreateRefusal {
    /// The engine refused, or did not respond.
    Engine(Error),
    /// The name belongs to another owner's object.
    NameInUse,
}

impl From<Error> for CreateRefusal {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// Marks the crash point at which the engine has executed the create and we have not processed the
/// response.
fn mark_sent<T>(result: Result<T, Error>) -> Result<T, Error> {
    if result.is_ok() {
        crashpoint::reach(Crashpoint::CreateSent);
    }
    result
}

/// Creates and starts a container.
pub(super) async fn container(
    connection: &EngineConnection,
    request: &CreateRequest,
    spec: &ContainerSpec,
) -> Result<String, CreateRefusal> {
    let library = connection.library().await?;
    let options =
        CreateContainerOptions { name: Some(request.name.clone()), platform: String::new() };
    let mut body = container_body(request, spec);
    let mut result = library.create_container(Some(options.clone()), body.clone()).await;
    if let Err(error) = &result
        && message_contains(error, NO_INIT)
    {
        // Without an init, only the stop is slower.
        tracing::warn!(container = request.name, "the engine has no init, creating without");
        body.host_config.get_or_insert_default().init = None;
        result = library.create_container(Some(options), body).await;
    }
    let id = match mark_sent(result) {
        Ok(created) => created.id,
        Err(error) => {
            let there = ours_after_conflict(connection, request, error).await?;
            // A container that has run did its work. Starting it again would repeat it.
            if there.state != "created" {
                return Ok(there.id);
            }
            there.id
        }
    };
    if let Err(error) = place_and_start(connection, &id, spec).await {
        let options = RemoveContainerOptions { v: true, force: true, link: false };
        // If this fails too, the caller finds the container again by its marks.
        let _ = library.remove_container(&id, Some(options)).await;
        return Err(error.into());
    }
    Ok(id)
}

async fn place_and_start(
    connection: &EngineConnection,
    id: &str,
    spec: &ContainerSpec,
) -> Result<(), Error> {
    if !spec.files.is_empty() {
        files::place(connection, id, &spec.files).await?;
    }
    let library = connection.library().await?;
    library.start_container(id, None::<StartContainerOptions>).await
}

fn container_body(request: &CreateRequest, spec: &ContainerSpec) -> ContainerCreateBody {
    let mounts = spec.mounts.iter().map(|mount| Mount {
        typ: Some(MountType::VOLUME),
        source: Some(mount.volume.clone()),
        target: Some(mount.target.clone()),
        volume_options: volume_options(request, &mount.volume),
        ..Mount::default()
    });
    let limits = &spec.limits;
    let host = HostConfig {
        init: (spec.init == Init::Engine).then_some(true),
        memory: limits.memory.map(saturated),
        nano_cpus: limits.cpus.map(nano_cpus),
        pids_limit: limits.processes.map(saturated),
        network_mode: spec.network.clone(),
        mounts: Some(mounts.collect()),
        storage_opt: spec
            .disk_gib
            .map(|size| HashMap::from([("size".to_owned(), format!("{size}G"))])),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        entrypoint: (!spec.entry_point.is_empty()).then(|| spec.entry_point.clone()),
        // Our own first process handles this signal, whatever the image's own one expects.
        stop_signal: (spec.init == Init::FirstProcess).then(|| "SIGTERM".to_owned()),
        cmd: (!spec.command.is_empty()).then(|| spec.command.clone()),
        env: Some(spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(labels_of(request)),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

/// Returns the labels of a volume of ours, in case this create makes it anew.
///
/// An engine creates a missing volume by itself. If the volume was released while a create that
/// uses it was in flight, that create makes it again. Without labels, nothing would identify it as
/// ours.
fn volume_options(request: &CreateRequest, volume: &str) -> Option<MountVolumeOptions> {
    let resource = ResourceId::of_object(volume)?;
    let mut labels = labels_of(request);
    labels.insert(labels::RESOURCE.to_owned(), resource.to_string());
    Some(MountVolumeOptions { labels: Some(labels), ..MountVolumeOptions::default() })
}

fn labels_of(request: &CreateRequest) -> HashMap<String, String> {
    request.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn saturated(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_possible_truncation, reason = "a float that is too large saturates")]
fn nano_cpus(cpus: f64) -> i64 {
    (cpus * 1e9).round() as i64
}

/// Creates a network.
pub(super) async fn network(
    connection: &EngineConnection,
    request: &CreateRequest,
    spec: &NetworkSpec,
) -> Result<String, CreateRefusal> {
    // The client library cannot request this check. Without it, engines up to 24 create a second
    // network with the same name.
    let body = serde_json::json!({
        "Name": request.name,
        "CheckDuplicate": true,
        "Internal": spec.internal,
        "Labels": request.labels,
    });
    match mark_sent(connection.post::<CreatedId>("/networks/create", &body).await) {
        Ok(created) => Ok(created.id),
        Err(error) => Ok(ours_after_conflict(connection, request, error).await?.id),
    }
}

/// Creates a volume.
pub(super) async fn volume(
    connection: &EngineConnection,
    request: &CreateRequest,
) -> Result<String, CreateRefusal> {
    let body = VolumeCreateRequest {
        name: Some(request.name.clone()),
        labels: Some(labels_of(request)),
        ..VolumeCreateRequest::default()
    };
    match mark_sent(connection.post::<Volume>("/volumes/create", &body).await) {
        // An engine returns an existing volume as if it had created it.
        Ok(created) if is_ours(request, &created.name, &created.labels) => Ok(request.name.clone()),
        Ok(_) => Err(CreateRefusal::NameInUse),
        Err(error) => Ok(ours_after_conflict(connection, request, error).await?.id),
    }
}

/// Returns the object that has our name already, if an earlier attempt of this create made it.
async fn ours_after_conflict(
    connection: &EngineConnection,
    request: &CreateRequest,
    error: Error,
) -> Result<Observed, CreateRefusal> {
    // Podman responds with status 500 where Docker responds with 409.
    let conflict = matches!(error, Error::DockerResponseServerError { status_code: 409, .. })
        || message_contains(&error, "already exists")
        || message_contains(&error, "already in use");
    if !conflict {
        return Err(error.into());
    }
    match read::inspect(connection, request.spec.kind(), &request.name).await? {
        Some(there) if is_ours(request, &there.name, &there.labels) => Ok(there),
        Some(there) if there.name == request.name => Err(CreateRefusal::NameInUse),
        _ => Err(error.into()),
    }
}

/// Returns whether the engine's message contains a text.
fn message_contains(error: &Error, text: &str) -> bool {
    matches!(error, Error::DockerResponseServerError { message, .. } if message.contains(text))
}

fn is_ours(request: &CreateRequest, name: &str, labels: &Labels) -> bool {
    name == request.name && labels::claimed_resource(labels) == Some(request.resource)
}
