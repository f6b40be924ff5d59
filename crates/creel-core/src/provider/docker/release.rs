//! Stops and releases.

use std::time::Duration;

use bollard::errors::Error;
use bollard::query_parameters::{
    RemoveContainerOptions, RemoveVolumeOptions, StopContainerOptions,
};

use crate::crashpoint::{self, Crashpoint};
use crate::provider::{ReleaseMode, Released};

use super::classify::is_absence;
use super::connection::{Connection, REQUEST_TIMEOUT};
use super::encode::encoded;
use super::model::Network;
use super::{kill, observe};

/// Why a release did not succeed.
pub(super) enum Refusal {
    /// The engine said no, or nothing.
    Engine(Error),
    /// The network belongs to the engine.
    Predefined,
    /// These containers use the image or network.
    UsedBy(Vec<String>),
    /// The engine deleted more than it was asked to.
    DeletedMore(Vec<String>),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// Stops a container; one that is stopped already is fine.
pub(super) async fn stop(
    connection: &Connection,
    id: &str,
    patience: Duration,
) -> Result<(), Error> {
    // The engine answers when the container has stopped, and kills it when patience ends.
    let library = connection.library().await?.clone().with_timeout(patience + REQUEST_TIMEOUT);
    let seconds = patience.as_millis().div_ceil(1000);
    let options =
        StopContainerOptions { t: Some(seconds.try_into().unwrap_or(i32::MAX)), signal: None };
    library.stop_container(id, Some(options)).await
}

/// Ends a container, with the volumes that nobody named.
pub(super) async fn container(
    connection: &Connection,
    id: &str,
    mode: &ReleaseMode,
) -> Result<Released, Refusal> {
    if let Some(patience) = mode.stop_timeout {
        match stop(connection, id, patience).await {
            Ok(()) => {}
            Err(error) if is_absence(&error) => return Ok(Released::AlreadyGone),
            // A kill follows; without one this is the answer.
            Err(_) if mode.kill_running => {}
            Err(error) => return Err(error.into()),
        }
    } else if mode.kill_running {
        kill::first_process(connection, id).await;
    }
    let options = RemoveContainerOptions { v: true, force: mode.kill_running, link: false };
    let library = connection.library().await?;
    answered(library.remove_container(id, Some(options)).await)
}

/// Ends a network that is not the engine's own and that nobody uses.
///
/// Docker refuses to remove a network in use; Podman cuts its containers off, so it is not
/// asked to.
pub(super) async fn network(connection: &Connection, id: &str) -> Result<Released, Refusal> {
    let path = format!("/networks/{}", encoded(id));
    let Some(there) = connection.get_if_any::<Network>(&path).await? else {
        return Ok(Released::AlreadyGone);
    };
    if observe::is_predefined(&there.name, connection.is_podman().await?) {
        return Err(Refusal::Predefined);
    }
    if !there.containers.is_empty() {
        return Err(Refusal::UsedBy(there.containers.into_keys().collect()));
    }
    answered(connection.library().await?.remove_network(id).await)
}

/// Ends a volume that nobody uses.
pub(super) async fn volume(connection: &Connection, id: &str) -> Result<Released, Refusal> {
    let library = connection.library().await?;
    answered(library.remove_volume(id, None::<RemoveVolumeOptions>).await)
}

/// Reads the answer to a delete; before it, marks the moment when the engine has the delete
/// and we do not know it yet.
pub(super) fn answered(answer: Result<(), Error>) -> Result<Released, Refusal> {
    if answer.is_ok() {
        crashpoint::reach(Crashpoint::ReleaseSent);
    }
    match answer {
        Ok(()) => Ok(Released::Done),
        Err(error) if is_absence(&error) => Ok(Released::AlreadyGone),
        Err(error) => Err(error.into()),
    }
}
