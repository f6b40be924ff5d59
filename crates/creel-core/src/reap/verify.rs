//! From the request to the proof: request the release of an object, then watch it.
//!
//! The release is requested once. It is repeated only if the provider reported the object as busy,
//! and the object is stable again. The watch has its own time limit, which depends on the state
//! of the object. When it ends, an object that is being removed is `accepted`, or `stuck` if its
//! provider says that it should be gone by then. An object stuck in another state is given up with
//! that state.

use std::sync::Arc;
use std::time::Duration;

use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::duration;
use creel_model::provider::retry::Tried;
use creel_model::provider::{
    IdentityCheck, Observed, Outlook, Provider, ProviderError, ReleaseMode, Released, Retention,
};
use tokio::time::Instant;

use super::authorization::Authorization;
use super::item::{Job, Target};
use super::send::{RELEASE, SendResult};

/// Maximum number of release requests for a busy object.
const MAX_REQUESTS: u32 = 4;

/// How far a release came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reached {
    /// The absence is verified.
    Gone,
    /// The provider accepted the request and is working on it.
    Accepted,
    /// The provider accepted the request, but makes no progress. Contains a description.
    Stuck(String),
    /// The provider accepted the request, and keeps the object until a date.
    Retained(Retention),
    /// Another object has its name, and was left alone.
    Replaced(String),
    /// Nothing proves any longer that it is the recorded object; it was left alone.
    Unproven(String),
}

/// The result of watching an object.
enum WatchResult {
    /// Its absence is verified.
    Gone,
    /// It is still being removed.
    StillLeaving,
    /// It should be gone by now, and is still in this state.
    NeverLeaves(String, Duration),
    /// Its provider keeps it until a date.
    Retained(Retention),
    /// It reached a stable state without being removed.
    Stable,
    /// It is still in a state that should have passed.
    Stuck(String, Duration),
}

impl Job<'_> {
    /// Requests the release of an object and watches until it is gone or the time is over.
    pub(super) async fn release_and_verify(
        &self,
        target: Target<'_>,
        mode: &ReleaseMode,
        authorization: &Authorization,
    ) -> Tried<Reached> {
        let Target { item, provider, .. } = target;
        let (mut tries, mut requests) = (0, 0);
        loop {
            requests += 1;
            let mut attempt = tries;
            let send = |provider| {
                attempt += 1;
                // A tracked object was inspected before its release was recorded.
                let is_fresh = attempt == 1 && item.resource.is_none();
                self.send(provider, item, mode, (authorization, attempt, is_fresh))
            };
            let tried = self.with_retry(target, RELEASE, send).await;
            tries += tried.tries;
            let busy = match tried.result {
                Ok(SendResult::Accepted(released)) => {
                    crashpoint::reach(Crashpoint::ReleasedNotVerified);
                    if released == Released::Accepted {
                        // Removal takes a while: an immediate check would be wasted.
                        tokio::time::sleep(provider.first_check_delay()).await;
                    }
                    None
                }
                Ok(SendResult::Busy(error)) => Some(error),
                Ok(SendResult::Refused(IdentityCheck::Replaced { why })) => {
                    return Tried { result: Ok(Reached::Replaced(why)), tries };
                }
                Ok(SendResult::Refused(
                    IdentityCheck::Unproven { why } | IdentityCheck::Same { evidence: why },
                )) => return Tried { result: Ok(Reached::Unproven(why)), tries },
                Err(error) => return Tried { result: Err(error), tries },
            };
            let watched = match self.watch(target, authorization, busy.is_some()).await {
                Ok(watched) => watched,
                Err(error) => return Tried { result: Err(error), tries },
            };
            let result = match (watched, busy) {
                (WatchResult::Gone, _) => Ok(Reached::Gone),
                (WatchResult::Stable, Some(_)) if requests < MAX_REQUESTS => continue,
                (WatchResult::Stable, Some(error)) => Err(error),
                (WatchResult::Stuck(state, patience), Some(error)) => {
                    Err(stuck(error, &state, patience))
                }
                (WatchResult::NeverLeaves(state, patience), _) => {
                    Ok(Reached::Stuck(describe_stuck(&state, patience)))
                }
                (WatchResult::Retained(retention), _) => Ok(Reached::Retained(retention)),
                (WatchResult::StillLeaving | WatchResult::Stable | WatchResult::Stuck(..), _) => {
                    Ok(Reached::Accepted)
                }
            };
            return Tried { result, tries };
        }
    }

    /// Polls until the object is gone, or there is nothing to wait for.
    async fn watch(
        &self,
        target: Target<'_>,
        authorization: &Authorization,
        busy: bool,
    ) -> Result<WatchResult, ProviderError> {
        let Target { item, provider, .. } = target;
        let (first, longest) = provider.check_interval().into_inner();
        let mut pause = first;
        let mut since = (Instant::now(), String::new());
        loop {
            let (kind, id) = (item.seen.kind, item.seen.id.as_str());
            let check = |provider: Arc<dyn Provider>| async move {
                if busy {
                    provider.inspect(kind, id).await
                } else {
                    provider.verify(kind, id).await
                }
            };
            let Some(seen) = self.with_retry(target, "verify", check).await.result? else {
                return Ok(WatchResult::Gone);
            };
            if is_replaced(authorization, &seen) {
                return Ok(WatchResult::Gone);
            }
            if since.1 != seen.state {
                since = (Instant::now(), seen.state.clone());
            }
            let outlook = provider.outlook(&seen);
            // An accepted request is not repeated, whatever the state is.
            if busy && outlook == Outlook::Stable {
                return Ok(WatchResult::Stable);
            }
            let patience = match outlook {
                // It was already retained before the request, so nothing else is to be expected.
                Outlook::Retained(_) if item.seen.retained.is_some() => Duration::ZERO,
                outlook => self.patience(outlook),
            };
            if since.0.elapsed() + pause >= patience {
                return Ok(over(&seen, outlook, patience));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(longest);
        }
    }

    fn patience(&self, outlook: Outlook) -> Duration {
        match outlook {
            Outlook::Changing(patience) => patience,
            Outlook::Leaving(Some(patience)) | Outlook::Retained(patience) => {
                patience.min(self.options.retry.deadline)
            }
            Outlook::Leaving(None) | Outlook::Stable => self.options.retry.deadline,
        }
    }
}

fn over(seen: &Observed, outlook: Outlook, patience: Duration) -> WatchResult {
    if let Some(retention) = &seen.retained {
        return WatchResult::Retained(retention.clone());
    }
    match outlook {
        Outlook::Leaving(None) => WatchResult::StillLeaving,
        Outlook::Leaving(Some(_)) | Outlook::Retained(_) => {
            WatchResult::NeverLeaves(seen.state.clone(), patience)
        }
        Outlook::Changing(_) => WatchResult::Stuck(seen.state.clone(), patience),
        Outlook::Stable => WatchResult::Stable,
    }
}

fn stuck(error: ProviderError, state: &str, patience: Duration) -> ProviderError {
    let description = describe_stuck(state, patience);
    ProviderError { message: format!("{description}: {}", error.message), ..error }
}

fn describe_stuck(state: &str, patience: Duration) -> String {
    format!("stuck in {state} for {}", duration::show(patience))
}

/// Returns whether another object has the name by now, so that the expected one is gone.
fn is_replaced(authorization: &Authorization, seen: &Observed) -> bool {
    let refused = seen.identity().and_then(|now| authorization.check(&now));
    matches!(refused, Some(IdentityCheck::Replaced { .. }))
}
