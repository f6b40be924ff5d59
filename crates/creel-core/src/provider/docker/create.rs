//! Creates.
//!
//! Every create carries the order's deterministic name and labels. When the
//! name is taken, the object that has it is ours if it carries the label of
//! this very create (the answer to an earlier try was lost), and someone
//! else's if not. A crash in the middle leaves an object that both the name
//! and the label find again.

use std::collections::HashMap;

use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptions, RemoveContainerOptions, StartContainerOptions,
};

use crate::crashpoint::{self, Crashpoint};
use crate::id::ResourceId;
use crate::labels::{self, Labels};
use crate::provider::{ContainerSpec, CreateOrder, Init, NetworkSpec, Observed};

use super::connection::Connection;
use super::furnish;
use super::model::{Made, Volume};
use super::read;

/// How Podman says that it was installed without an init for containers.
const NO_INIT: &str = "container-init binary not found";

/// Why a create did not succeed.
pub(super) enum Refusal {
    /// The engine said no, or nothing.
    Engine(Error),
    /// The name belongs to someone else's object.
    NameTaken,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// Marks the moment when the engine has the create and we do not know it yet.
fn answered<T>(answer: Result<T, Error>) -> Result<T, Error> {
    if answer.is_ok() {
        crashpoint::reach(Crashpoint::CreateSent);
    }
    answer
}

/// Creates and starts a container.
pub(super) async fn container(
    connection: &Connection,
    order: &CreateOrder,
    spec: &ContainerSpec,
) -> Result<String, Refusal> {
    let library = connection.library().await?;
    let options =
        CreateContainerOptions { name: Some(order.name.clone()), platform: String::new() };
    let mut body = container_body(order, spec);
    let mut answer = library.create_container(Some(options.clone()), body.clone()).await;
    if let Err(error) = &answer
        && says(error, NO_INIT)
    {
        // Only its stop is slower without.
        tracing::warn!(container = order.name, "the engine has no init, creating without");
        body.host_config.get_or_insert_default().init = None;
        answer = library.create_container(Some(options), body).await;
    }
    let id = match answered(answer) {
        Ok(made) => made.id,
        Err(error) => {
            let there = ours_after_conflict(connection, order, error).await?;
            // One that ran already did what it was made for; starting it again would do it twice.
            if there.state != "created" {
                return Ok(there.id);
            }
            there.id
        }
    };
    if let Err(error) = furnish_and_start(connection, &id, spec).await {
        let options = RemoveContainerOptions { v: true, force: true, link: false };
        // If this fails too, the caller finds the container again by its marks.
        let _ = library.remove_container(&id, Some(options)).await;
        return Err(error.into());
    }
    Ok(id)
}

async fn furnish_and_start(
    connection: &Connection,
    id: &str,
    spec: &ContainerSpec,
) -> Result<(), Error> {
    if !spec.files.is_empty() {
        furnish::place(connection, id, &spec.files).await?;
    }
    let library = connection.library().await?;
    library.start_container(id, None::<StartContainerOptions>).await
}

fn container_body(order: &CreateOrder, spec: &ContainerSpec) -> ContainerCreateBody {
    let mounts = spec.mounts.iter().map(|mount| Mount {
        typ: Some(MountType::VOLUME),
        source: Some(mount.volume.clone()),
        target: Some(mount.target.clone()),
        volume_options: volume_options(order, &mount.volume),
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
        // A first process of ours listens to this one, whatever the image's own one wants.
        stop_signal: (spec.init == Init::FirstProcess).then(|| "SIGTERM".to_owned()),
        cmd: (!spec.command.is_empty()).then(|| spec.command.clone()),
        env: Some(spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(labels_of(order)),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

/// Returns the labels of a volume of ours, for the case that this create makes it anew.
///
/// An engine makes a missing volume by itself. If the volume was released while a create that
/// uses it was still on its way, that one brings it back, and nobody would know it as ours.
fn volume_options(order: &CreateOrder, volume: &str) -> Option<MountVolumeOptions> {
    let resource = ResourceId::of_object(volume)?;
    let mut labels = labels_of(order);
    labels.insert(labels::RESOURCE.to_owned(), resource.to_string());
    Some(MountVolumeOptions { labels: Some(labels), ..MountVolumeOptions::default() })
}

fn labels_of(order: &CreateOrder) -> HashMap<String, String> {
    order.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
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
    connection: &Connection,
    order: &CreateOrder,
    spec: &NetworkSpec,
) -> Result<String, Refusal> {
    // The client library cannot ask for the check, without which engines up to 24 make a second
    // network of the same name.
    let body = serde_json::json!({
        "Name": order.name,
        "CheckDuplicate": true,
        "Internal": spec.internal,
        "Labels": order.labels,
    });
    match answered(connection.post::<Made>("/networks/create", &body).await) {
        Ok(made) => Ok(made.id),
        Err(error) => Ok(ours_after_conflict(connection, order, error).await?.id),
    }
}

/// Creates a volume.
pub(super) async fn volume(
    connection: &Connection,
    order: &CreateOrder,
) -> Result<String, Refusal> {
    let body = VolumeCreateRequest {
        name: Some(order.name.clone()),
        labels: Some(labels_of(order)),
        ..VolumeCreateRequest::default()
    };
    match answered(connection.post::<Volume>("/volumes/create", &body).await) {
        // An engine answers with an existing volume as if it had made it.
        Ok(made) if is_ours(order, &made.name, &made.labels) => Ok(order.name.clone()),
        Ok(_) => Err(Refusal::NameTaken),
        Err(error) => Ok(ours_after_conflict(connection, order, error).await?.id),
    }
}

/// Returns the object that has our name already, if an earlier try of this create made it.
async fn ours_after_conflict(
    connection: &Connection,
    order: &CreateOrder,
    error: Error,
) -> Result<Observed, Refusal> {
    // Podman answers with a status of 500 where Docker answers with 409.
    let conflict = matches!(error, Error::DockerResponseServerError { status_code: 409, .. })
        || says(&error, "already exists")
        || says(&error, "already in use");
    if !conflict {
        return Err(error.into());
    }
    match read::inspect(connection, order.spec.kind(), &order.name).await? {
        Some(there) if is_ours(order, &there.name, &there.labels) => Ok(there),
        Some(there) if there.name == order.name => Err(Refusal::NameTaken),
        _ => Err(error.into()),
    }
}

/// Returns whether the engine said this.
fn says(error: &Error, words: &str) -> bool {
    matches!(error, Error::DockerResponseServerError { message, .. } if message.contains(words))
}

fn is_ours(order: &CreateOrder, name: &str, labels: &Labels) -> bool {
    name == order.name && labels::claimed_resource(labels) == Some(order.resource)
}
