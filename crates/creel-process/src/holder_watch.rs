//! Watches the holder of a process tree from the side of its supervisor.
//!
//! A tree whose holder was killed is lost, even if some of its processes still exist: the holder may
//! have been killed between the freeze and the thaw of a kill, and a frozen process cannot end.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use creel_model::id::ResourceId;
use creel_model::os;

use super::provider::ProcessProvider;
use super::sidecar::SidecarRecord;
use super::state::io_failure;
use super::tree;

/// The interval between two checks of a holder.
const CHECK_PERIOD: Duration = Duration::from_millis(500);

impl ProcessProvider {
    /// Waits until the holder of a process tree has ended.
    ///
    /// Never returns for a tree whose holder this process cannot see.
    pub(super) async fn until_holder_ends(&self, id: &str) {
        match self.holder(id).await {
            Holder::Alive(handle) => until_ended(handle).await,
            Holder::Ended => {}
            Holder::Unknown => std::future::pending().await,
        }
    }

    /// Returns whether the holder of a process tree is known to have ended.
    pub(super) async fn has_lost_holder(&self, id: &str) -> bool {
        matches!(self.holder(id).await, Holder::Ended)
    }

    async fn holder(&self, id: &str) -> Holder {
        let (operation, resource) = (format!("find the holder of {id}"), ResourceId::of_object(id));
        let holder = self.blocking(move |state| {
            let Some(resource) = resource else { return Ok(Holder::Unknown) };
            let record = state.records(&operation)?.read(&resource);
            record
                .and_then(|record| Holder::of(&record))
                .map_err(|error| io_failure(&operation, &error))
        });
        holder.await.unwrap_or(Holder::Unknown)
    }
}

/// The holder of a tree, as this process sees it.
enum Holder {
    /// It runs. The handle becomes readable when it has ended.
    Alive(OwnedFd),
    /// It has ended.
    Ended,
    /// It is not on record, or its pid has no meaning here.
    Unknown,
}

impl Holder {
    fn of(record: &SidecarRecord) -> io::Result<Self> {
        let Some(sidecar) = record.sidecar() else { return Ok(Self::Unknown) };
        let Some(tree) = &sidecar.tree else { return Ok(Self::Unknown) };
        if sidecar.boot != os::boot_id()? {
            return Ok(Self::Ended);
        }
        if sidecar.pid_namespace != os::pid_namespace()? {
            return Ok(Self::Unknown);
        }
        Ok(tree::handle_of(&tree.holder)?.map_or(Self::Ended, Self::Alive))
    }
}

/// Waits until a process has ended. A process that cannot be checked counts as ended.
///
/// Polls, because the closed connection tells of nearly every end before. A thread that blocks on
/// the handle could not be cancelled with the command.
async fn until_ended(process: OwnedFd) {
    let handles = [process];
    while matches!(tree::wait_for_all(&handles, Instant::now()), Ok(false)) {
        tokio::time::sleep(CHECK_PERIOD).await;
    }
}
