//! What a running container shows of those who use it.

use std::path::PathBuf;

use bollard::errors::Error;
use futures::StreamExt;
use serde::Deserialize;

use crate::provider::InUse;

use super::connection::Connection;
use super::encode::encoded;
use super::model::lenient;

/// How many exec sessions of a container are asked for at once.
const CONCURRENCY: usize = 4;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Details {
    #[serde(default, deserialize_with = "lenient")]
    state: Process,
    #[serde(default, deserialize_with = "lenient", rename = "ExecIDs")]
    sessions: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    mounts: Vec<Mount>,
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
struct Mount {
    #[serde(default, deserialize_with = "lenient", rename = "Type")]
    sort: String,
    #[serde(default, deserialize_with = "lenient")]
    source: PathBuf,
}

/// Asks what a container shows of those who use it; nothing of one that is gone.
pub(super) async fn container(connection: &Connection, id: &str) -> Result<InUse, Error> {
    let path = format!("/containers/{}/json", encoded(id));
    let Some(details) = connection.get_if_any::<Details>(&path).await? else {
        return Ok(InUse::default());
    };
    let first_process = Some(details.state.pid).filter(|pid| *pid > 0);
    let mounted = details.mounts.into_iter().filter(|mount| mount.sort == "bind");
    let directories = mounted.map(|mount| mount.source).collect();
    let asked = details.sessions.into_iter().map(|session| async move {
        let path = format!("/exec/{}/json", encoded(&session));
        let found = connection.get_if_any::<Process>(&path).await?;
        Ok::<bool, Error>(found.is_some_and(|found| found.running))
    });
    let asked: Vec<_> = asked.collect();
    let answers: Vec<Result<bool, Error>> =
        futures::stream::iter(asked).buffer_unordered(CONCURRENCY).collect().await;
    let mut sessions = 0;
    for answer in answers {
        sessions += usize::from(answer?);
    }
    Ok(InUse { first_process, directories, sessions })
}
