//! A turn: leave to order one release, taken before the object is looked at.
//!
//! Where a provider limits how often it is asked, a release may have to wait.
//! It waits before the last look at the object, so that what was looked at is
//! not old when it goes. The requests that need the turn find their part of it
//! by themselves, however deep in the provider they are sent.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;

tokio::task_local! {
    /// What is left of the turn of the work under way.
    static HELD: RefCell<Vec<Box<dyn Any + Send>>>;
}

/// Leave to order one release; what is not used of it is given back when it is dropped.
#[derive(Default)]
#[must_use]
pub struct Turn(Vec<Box<dyn Any + Send>>);

impl Turn {
    /// The turn at a provider that does not limit how often it is asked.
    pub const FREE: Self = Self(Vec::new());

    /// Adds what a provider gave leave with, for one request.
    pub(crate) fn with(mut self, leave: impl Any + Send) -> Self {
        self.0.push(Box::new(leave));
        self
    }

    /// Does work in this turn: the first request that fits a part of it takes that part.
    pub(crate) async fn cover<T>(self, work: impl Future<Output = T>) -> T {
        HELD.scope(RefCell::new(self.0), work).await
    }

    /// Takes a part that fits from the turn of the work under way.
    pub(crate) fn take<L: Any>(fits: impl Fn(&L) -> bool) -> Option<L> {
        let fits = |part: &Box<dyn Any + Send>| part.downcast_ref::<L>().is_some_and(&fits);
        let take = |held: &RefCell<Vec<Box<dyn Any + Send>>>| {
            let mut held = held.borrow_mut();
            let place = held.iter().position(fits)?;
            held.swap_remove(place).downcast().ok()
        };
        HELD.try_with(take).ok().flatten().map(|part| *part)
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_is_taken_once_and_only_by_the_work_that_has_it() {
        let take = |number: u8| Turn::take(move |part: &u8| *part == number);
        assert_eq!(take(7), None);
        let work = async { (take(7), take(7), take(9), Turn::take(|_: &u8| true)) };
        let turn = Turn::FREE.with(7_u8).with(8_u8);
        assert_eq!(turn.cover(work).await, (Some(7), None, None, Some(8)));
        assert_eq!(Turn::FREE.cover(async { take(7) }).await, None);
    }
}
