//! Accepted deletes that had not finished. Every full round checks them again.

use std::collections::HashSet;

use creel_ledger::{LedgerError, UnfinishedDelete};
use creel_model::id::ResourceId;
use creel_model::provider::{Observed, ProviderError};
use futures::StreamExt;

use super::{Reconciler, Status};

/// Maximum number of concurrent inspections.
const CONCURRENCY: usize = 16;

impl Reconciler {
    /// Removes the deletes that have finished since, and lists the others.
    ///
    /// Our own records that wait for a date are no longer counted as quarantined.
    pub(super) async fn revisit_unfinished(
        &self,
        quarantined: &HashSet<ResourceId>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let deletes = self.ledger.unfinished_deletes().await?;
        let checks = deletes.into_iter().map(|delete| async move {
            let seen = self.inspect_delete(&delete).await;
            (delete, seen)
        });
        let mut checks = futures::stream::iter(checks).buffered(CONCURRENCY);
        let now = self.ledger.clock().now().timestamp();
        while let Some((delete, seen)) = checks.next().await {
            match seen {
                Ok(None) => {
                    let UnfinishedDelete { provider, kind, id, .. } = &delete;
                    self.ledger.forget_unfinished(*provider, *kind, id).await?;
                    status.converged += 1;
                    continue;
                }
                Ok(Some(_)) => {}
                // A home that lost its access to the provider need not check a delete that waits
                // for a date.
                Err(_)
                    if !delete.is_overdue(now) && self.providers.get(delete.provider).is_err() => {}
                Err(error) => status.note_unreachable(&error),
            }
            if delete.is_overdue(now) {
                status.overdue += 1;
            } else if delete.resource.is_some_and(|own| quarantined.contains(&own)) {
                status.quarantined = status.quarantined.saturating_sub(1);
            }
            status.unfinished.push(delete);
        }
        Ok(())
    }

    async fn inspect_delete(
        &self,
        delete: &UnfinishedDelete,
    ) -> Result<Option<Observed>, ProviderError> {
        let provider = self.providers.get(delete.provider)?;
        provider.inspect(delete.kind, &delete.id).await
    }
}
