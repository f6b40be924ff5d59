//! A turn: permission to send one release, obtained before the object is inspected.
//!
//! Where a provider limits the rate of requests, a release may have to wait. It waits before the
//! last inspect of the object, so that the observation is fresh when the object is released. The
//! requests that need the turn find their part of it by themselves, however deep in the provider
//! they are sent.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;

tokio::task_local! {
    /// The unused parts of the current task's turn.
    static HELD: RefCell<Vec<Box<dyn Any + Send>>>;
}

/// Permission to send one release. Dropping it releases the unused parts.
#[derive(Default)]
#[must_use]
pub struct ReleaseTurn(Vec<Box<dyn Any + Send>>);

impl ReleaseTurn {
    /// The turn of a provider without a rate limit.
    pub const FREE: Self = Self(Vec::new());

    /// Adds a provider's permission for one request.
    pub fn with(mut self, permission: impl Any + Send) -> Self {
        self.0.push(Box::new(permission));
        self
    }

    /// Runs work under this turn: the first request that matches a part takes that part.
    pub async fn cover<T>(self, work: impl Future<Output = T>) -> T {
        HELD.scope(RefCell::new(self.0), work).await
    }

    /// Takes a matching part from the turn of the current task.
    pub fn take<L: Any>(fits: impl Fn(&L) -> bool) -> Option<L> {
        let fits = |part: &Box<dyn Any + Send>| part.downcast_ref::<L>().is_some_and(&fits);
        let take = |held: &RefCell<Vec<Box<dyn Any + Send>>>| {
            let mut held = held.borrow_mut();
            let place = held.iter().position(fits)?;
            held.swap_remove(place).downcast().ok()
        };
        HELD.try_with(take).ok().flatten().map(|part| *part)
    }
}

impl fmt::Debug for ReleaseTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_is_taken_once_and_only_by_its_holder() {
        let take = |number: u8| ReleaseTurn::take(move |part: &u8| *part == number);
        assert_eq!(take(7), None);
        let work = async { (take(7), take(7), take(9), ReleaseTurn::take(|_: &u8| true)) };
        let turn = ReleaseTurn::FREE.with(7_u8).with(8_u8);
        assert_eq!(turn.cover(work).await, (Some(7), None, None, Some(8)));
        assert_eq!(ReleaseTurn::FREE.cover(async { take(7) }).await, None);
    }
}
