//! Stops and releases objects.

use std::time::Duration;

use bollard::errors::Error;
use bollard::query_parameters::{
    RemoveContainerOptions, RemoveVolumeOptions, StopContainerOptions,
};
use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::provider::{ReleaseMode, Released};

use super::classify::is_absence;
use super::connection::{EngineConnection, REQUEST_TIMEOUT};
use super::encode::encoded;
use super::model::Network;
use super::{kill, observe};

/// Why a release did not succeed.
pub(super) enum ReleaseRefusal {
    /// The engine refused, or did not respond.
    Engine(Error),
    /// The network belongs to the engine.
    Predefined,
    /// These containers use the image or network.
    UsedBy(Vec<String>),
    /// The engine deleted more than requested.
    DeletedMore(Vec<String>),
}

impl From<Error> for ReleaseRefusal {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// Stops a container. One that is stopped already is not an error.
pub(super) async fn stop(
    connection: &EngineConnection,
    id: &str,
    patience: Duration,
) -> Result<(), Error> {
    // The engine responds when the container has stopped, and kills it when `patience` ends.
    let library = connection.library().await?.clone().with_timeout(patience + REQUEST_TIMEOUT);
    let seconds = patience.as_millis().div_ceil(1000);
    let options =
        StopContainerOptions { t: Some(seconds.try_into().unwrap_or(i32::MAX)), signal: None };
    library.stop_container(id, Some(options)).await
}

/// Removes a container with its anonymous volumes.
pub(super) async fn container(
    connection: &EngineConnection,
    id: &str,
    mode: &ReleaseMode,
) -> Result<Released, ReleaseRefusal> {
    if let Some(patience) = mode.stop_timeout {
        match stop(connection, id, patience).await {
            Ok(()) => {}
            Err(error) if is_absence(&error) => return Ok(Released::AlreadyGone),
            // A kill follows. Without one, this error is the result.
            Err(_) if mode.kill_running => {}
            Err(error) => return Err(error.into()),
        }
    } else if mode.kill_running {
        kill::first_process(connection, id).await;
    }
    let options = RemoveContainerOptions { v: true, force: mode.kill_running, link: false };
    let library = connection.library().await?;
    released_by(library.remove_container(id, Some(options)).await)
}

/// Removes a network that is not the engine's own and that has no users.
///
/// Docker refuses to remove a network in use. Podman would disconnect its containers, so the
/// request is not sent.
pub(super) async fn network(
    connection: &EngineConnection,
    id: &str,
) -> Result<Released, ReleaseRefusal> {
    let path = format!("/networks/{}", encoded(id));
    let Some(there) = connection.get_if_any::<Network>(&path).await? else {
        return Ok(Released::AlreadyGone);
    };
    if observe::is_predefined(&there.name, connection.is_podman().await?) {
        return Err(ReleaseRefusal::Predefined);
    }
    if !there.containers.is_empty() {
        return Err(ReleaseRefusal::UsedBy(there.containers.into_keys().collect()));
    }
    released_by(connection.library().await?.remove_network(id).await)
}

/// Removes a volume that has no users.
pub(super) async fn volume(
    connection: &EngineConnection,
    id: &str,
) -> Result<Released, ReleaseRefusal> {
    let library = connection.library().await?;
    released_by(library.remove_volume(id, None::<RemoveVolumeOptions>).await)
}

/// Converts the response to a delete. Before that, marks the crash point at which the engine has
/// executed the delete and we have not processed the response.
pub(super) fn released_by(result: Result<(), Error>) -> Result<Released, ReleaseRefusal> {
    if result.is_ok() {
        crashpoint::reach(Crashpoint::ReleaseSent);
    }
    match result {
        Ok(()) => Ok(Released::Done),
        Err(error) if is_absence(&error) => Ok(Released::AlreadyGone),
        Err(error) => Err(error.into()),
    }
}
