//! Evidence that a running container is in use.

use std::path::PathBuf;

use bollard::errors::Error;
use creel_model::provider::InUse;
use futures::StreamExt;
use serde::Deserialize;

use super::connection::EngineConnection;
use super::encode::encoded;
use super::model::lenient;

/// How many exec sessions of a container are inspected at once.
const CONCURRENCY: usize = 4;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InUseDetails {
    #[serde(default, deserialize_with = "lenient")]
    state: Process,
    #[serde(default, deserialize_with = "lenient", rename = "ExecIDs")]
    sessions: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    mounts: Vec<ContainerMount>,
}

/// The first process of a container, or that of an exec session.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Process {
    #[serde(default, deserialize_with = "lenient")]
    running: bool,
    #[serde(default, deserialize_with = "lenient")]
    pid: i32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerMount {
    #[serde(default, deserialize_with = "lenient", rename = "Type")]
    kind: String,
    #[serde(default, deserialize_with = "lenient")]
    source: PathBuf,
}

/// Returns the evidence that a container is in use. A container that is gone has none.
pub(super) async fn container(connection: &EngineConnection, id: &str) -> Result<InUse, Error> {
    let path = format!("/containers/{}/json", encoded(id));
    let Some(details) = connection.get_if_any::<InUseDetails>(&path).await? else {
        return Ok(InUse::default());
    };
    let first_process = Some(details.state.pid).filter(|pid| *pid > 0);
    let mounted = details.mounts.into_iter().filter(|mount| mount.kind == "bind");
    let directories = mounted.map(|mount| mount.source).collect();
    let checks = details.sessions.into_iter().map(|session| async move {
        let path = format!("/exec/{}/json", encoded(&session));
        let found = connection.get_if_any::<Process>(&path).await?;
        Ok::<bool, Error>(found.is_some_and(|found| found.running))
    });
    let checks: Vec<_> = checks.collect();
    let results: Vec<Result<bool, Error>> =
        futures::stream::iter(checks).buffer_unordered(CONCURRENCY).collect().await;
    let mut sessions = 0;
    for result in results {
        sessions += usize::from(result?);
    }
    Ok(InUse { first_process, directories, sessions })
}
