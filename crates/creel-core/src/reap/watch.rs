//! From the order to the proof: ask for the end of an object, then watch.
//!
//! The end is ordered once. Only when the provider said that the object is
//! busy, and it came to rest since, is it ordered again. Watching has its own
//! time, which depends on what the object is doing. When it is over, an object
//! on its way out is `accepted`, or `stuck` where its provider says that it
//! should have gone by then; one that is stuck in another state is given up
//! with that state.

use std::time::Duration;

use tokio::time::Instant;

use crate::crashpoint::{self, Crashpoint};
use crate::duration;
use crate::plan::PlanItem;
use crate::provider::{
    IdentityCheck, Observed, Outlook, Provider, ProviderError, ReleaseMode, Released, Retention,
};
use crate::retry::Tried;

use super::item::Job;
use super::send::{Ordered, RELEASE};
use super::warrant::Warrant;

/// How often the end of an object that was busy is ordered.
const MOST_ORDERS: u32 = 4;

/// How far a release came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reached {
    /// The absence is verified.
    Gone,
    /// The provider took the order and works on it.
    Accepted,
    /// The provider took the order, and nothing comes of it; this is what is seen.
    Stuck(String),
    /// The provider took the order, and keeps the object until a date.
    Retained(Retention),
    /// Another object has its name, and was left alone.
    Replaced(String),
    /// Nothing proves any more that it is the recorded one; it was left alone.
    Unproven(String),
}

/// What watching showed.
enum Watched {
    /// Its absence is verified.
    Gone,
    /// It is still on its way out.
    StillLeaving,
    /// It should have left by now, and is still in this state.
    NeverLeaves(String, Duration),
    /// Its provider keeps it until a date.
    Retained(Retention),
    /// It came to rest, without going.
    Settled,
    /// It is still in a state that should have passed.
    Stuck(String, Duration),
}

impl Job<'_> {
    /// Orders the end of an object and watches until it is gone or its time is over.
    pub(super) async fn end(
        &self,
        provider: &dyn Provider,
        item: &PlanItem,
        mode: &ReleaseMode,
        warrant: &Warrant,
    ) -> Tried<Reached> {
        let (mut tries, mut orders) = (0, 0);
        loop {
            orders += 1;
            let mut attempt = tries;
            let send = || {
                attempt += 1;
                // What is tracked was looked at before its release was put on record.
                let is_fresh = attempt == 1 && item.resource.is_none();
                self.send(provider, item, mode, (warrant, attempt, is_fresh))
            };
            let tried = self.with_retry(item, RELEASE, send).await;
            tries += tried.tries;
            let busy = match tried.result {
                Ok(Ordered::Taken(released)) => {
                    crashpoint::reach(Crashpoint::ReleasedNotVerified);
                    if released == Released::Accepted {
                        // It takes a while: a look at once would be wasted.
                        tokio::time::sleep(provider.first_look()).await;
                    }
                    None
                }
                Ok(Ordered::Busy(error)) => Some(error),
                Ok(Ordered::Refused(IdentityCheck::Replaced { why })) => {
                    return Tried { result: Ok(Reached::Replaced(why)), tries };
                }
                Ok(Ordered::Refused(
                    IdentityCheck::Unproven { why } | IdentityCheck::Same { evidence: why },
                )) => return Tried { result: Ok(Reached::Unproven(why)), tries },
                Err(error) => return Tried { result: Err(error), tries },
            };
            let watched = match self.watch(provider, item, warrant, busy.is_some()).await {
                Ok(watched) => watched,
                Err(error) => return Tried { result: Err(error), tries },
            };
            let result = match (watched, busy) {
                (Watched::Gone, _) => Ok(Reached::Gone),
                (Watched::Settled, Some(_)) if orders < MOST_ORDERS => continue,
                (Watched::Settled, Some(error)) => Err(error),
                (Watched::Stuck(state, patience), Some(error)) => {
                    Err(stuck(error, &state, patience))
                }
                (Watched::NeverLeaves(state, patience), _) => {
                    Ok(Reached::Stuck(stuck_words(&state, patience)))
                }
                (Watched::Retained(retention), _) => Ok(Reached::Retained(retention)),
                (Watched::StillLeaving | Watched::Settled | Watched::Stuck(..), _) => {
                    Ok(Reached::Accepted)
                }
            };
            return Tried { result, tries };
        }
    }

    /// Looks until the object is gone, or there is nothing to wait for.
    async fn watch(
        &self,
        provider: &dyn Provider,
        item: &PlanItem,
        warrant: &Warrant,
        busy: bool,
    ) -> Result<Watched, ProviderError> {
        let (first, longest) = provider.look_pause().into_inner();
        let mut pause = first;
        let mut since = (Instant::now(), String::new());
        loop {
            let (kind, id) = (item.seen.kind, item.seen.id.as_str());
            let look = || if busy { provider.inspect(kind, id) } else { provider.verify(kind, id) };
            let Some(seen) = self.with_retry(item, "verify", look).await.result? else {
                return Ok(Watched::Gone);
            };
            if is_replaced(warrant, &seen) {
                return Ok(Watched::Gone);
            }
            if since.1 != seen.state {
                since = (Instant::now(), seen.state.clone());
            }
            let outlook = provider.outlook(&seen);
            // An order that was taken is not given again, whatever the state says.
            if busy && outlook == Outlook::Settled {
                return Ok(Watched::Settled);
            }
            let patience = match outlook {
                // It was kept before the order already: nothing else is to be expected.
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
            Outlook::Leaving(None) | Outlook::Settled => self.options.retry.deadline,
        }
    }
}

fn over(seen: &Observed, outlook: Outlook, patience: Duration) -> Watched {
    if let Some(retention) = &seen.retained {
        return Watched::Retained(retention.clone());
    }
    match outlook {
        Outlook::Leaving(None) => Watched::StillLeaving,
        Outlook::Leaving(Some(_)) | Outlook::Retained(_) => {
            Watched::NeverLeaves(seen.state.clone(), patience)
        }
        Outlook::Changing(_) => Watched::Stuck(seen.state.clone(), patience),
        Outlook::Settled => Watched::Settled,
    }
}

fn stuck(error: ProviderError, state: &str, patience: Duration) -> ProviderError {
    let words = stuck_words(state, patience);
    ProviderError { message: format!("{words}: {}", error.message), ..error }
}

fn stuck_words(state: &str, patience: Duration) -> String {
    format!("stuck in {state} for {}", duration::show(patience))
}

/// Returns whether another object has the name by now, so that the one that was meant is gone.
fn is_replaced(warrant: &Warrant, seen: &Observed) -> bool {
    let refused = seen.identity().and_then(|now| warrant.check(&now));
    matches!(refused, Some(IdentityCheck::Replaced { .. }))
}
