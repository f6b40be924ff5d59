//! Ends a running container quickly, by killing its first process directly.
//!
//! An engine starts a program to deliver the signal, which costs more than all our other requests:
//! a hundred containers take a sixth longer. This module sends the signal itself where the process
//! is visible from here, and the kernel says that it is in the control group of that very
//! container. In any doubt it does nothing: the engine is asked to remove by force anyway. A paused
//! container is resumed first, because a frozen process does not die.
//!
//! A crash in the middle leaves a container that has exited, as after `docker kill`.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bollard::query_parameters::WaitContainerOptions;
use futures::StreamExt;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use tokio::time::timeout;
use tracing::debug;

use super::connection::EngineConnection;
use super::encode::{encoded, is_whole_id};

/// How long the engine may take to notice. After it the removal by force decides.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of a container that runs and is not paused. A frozen process does not die.
const RUNNING: &str = "running";

/// The state of a container whose processes are frozen.
const PAUSED: &str = "paused";

/// The part of a container's details that is needed to kill it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KillDetails {
    id: String,
    state: FirstProcess,
    host_config: HostConfig,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FirstProcess {
    status: String,
    pid: i32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    restart_policy: RestartPolicy,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RestartPolicy {
    name: String,
}

/// Kills the first process of a container, and waits until the engine has noticed. Does nothing if
/// that is not certainly the right process.
pub(super) async fn first_process(connection: &EngineConnection, id: &str) {
    let path = format!("/containers/{}/json", encoded(id));
    let Ok(mut details) = connection.get::<KillDetails>(&path, &[]).await else { return };
    if details.state.status == PAUSED {
        // An engine may not answer the forced removal of a paused container.
        let Ok(library) = connection.library().await else { return };
        let _ = timeout(PATIENCE, library.unpause_container(&details.id)).await;
        let Ok(thawed) = connection.get::<KillDetails>(&path, &[]).await else { return };
        details = thawed;
    }
    let Some(process) = process_of(&details) else { return };
    if let Err(error) = pidfd_send_signal(&process, Signal::KILL) {
        debug!(%id, %error, "its process cannot be killed from here; the engine will do it");
        return;
    }
    let Ok(library) = connection.library().await else { return };
    let mut end = library.wait_container(&details.id, None::<WaitContainerOptions>);
    // The result does not matter: the removal that follows checks for itself.
    let _ = timeout(PATIENCE, end.next()).await;
}

/// Returns a handle to the first process, if the container would stay down without it.
fn process_of(details: &KillDetails) -> Option<OwnedFd> {
    let restarts = !matches!(details.host_config.restart_policy.name.as_str(), "" | "no");
    if restarts || details.state.status != RUNNING {
        return None;
    }
    let handle = pidfd_open(Pid::from_raw(details.state.pid)?, PidfdFlags::empty()).ok()?;
    // Read after the handle was opened. If that process still lives when the signal is sent, this
    // was about it, and not about another one with the same number.
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", details.state.pid)).ok()?;
    is_in_group_of(&groups, &details.id).then_some(handle)
}

/// Returns whether control groups, as the kernel lists them, are those of a container.
fn is_in_group_of(groups: &str, id: &str) -> bool {
    // The last part is `ID`, or `docker-ID.scope` under systemd. In a container that runs another
    // engine, the ids of the inner containers follow its own.
    let matches_id = |line: &str| {
        let last = line.rsplit('/').next().unwrap_or_default();
        last == id || last == format!("docker-{id}.scope")
    };
    is_whole_id(id) && groups.lines().any(matches_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1c7a2b9d3e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8";

    fn details(status: &str, restart: &str, pid: u32) -> KillDetails {
        KillDetails {
            id: ID.to_owned(),
            state: FirstProcess { status: status.to_owned(), pid: i32::try_from(pid).unwrap() },
            host_config: HostConfig { restart_policy: RestartPolicy { name: restart.to_owned() } },
        }
    }

    #[test]
    fn the_group_of_a_container_is_recognised_by_its_whole_id() {
        let matches = |line: &str| is_in_group_of(line, ID);
        assert!(matches(&format!("0::/system.slice/docker-{ID}.scope\n")));
        assert!(matches(&format!("12:pids:/docker/{ID}\n1:name=systemd:/docker/{ID}\n")));
        assert!(!matches("0::/user.slice\n"));
        assert!(!matches(&format!("0::/docker/{}\n", &ID[..12])));
        assert!(!matches(&format!("0::/docker/{}0\n", &ID[..63])));
        assert!(!is_in_group_of("0::/docker/4f1c\n", "4f1c"));
    }

    #[test]
    fn a_nested_container_is_not_mistaken_for_its_host() {
        let inner = format!("0::/docker/{ID}/docker/{}\n", "0".repeat(64));
        assert!(!is_in_group_of(&inner, ID));
    }

    #[test]
    fn a_process_outside_of_the_container_is_never_touched() {
        // This very process is alive, and no control group names that container.
        assert!(process_of(&details(RUNNING, "no", std::process::id())).is_none());
        assert!(process_of(&details(RUNNING, "no", 0)).is_none());
    }

    #[test]
    fn what_restarts_or_is_frozen_is_left_to_the_engine() {
        for (status, restart) in [("paused", "no"), (RUNNING, "always"), (RUNNING, "on-failure")] {
            assert!(process_of(&details(status, restart, std::process::id())).is_none());
        }
    }
}
