//! A turn: leave to order one release, taken before the object is looked at.
//!
//! Where a provider limits how often it is asked, a release may have to wait.
//! It waits before the last look at the object, so that what was looked at is
//! not old when it goes. The request that needs the turn finds it by itself,
//! however deep in the provider it is sent.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;

tokio::task_local! {
    /// The turn of the work under way, until a request takes it.
    static HELD: RefCell<Option<Box<dyn Any + Send>>>;
}

/// Leave to order one release; it is given back when it is dropped.
#[derive(Default)]
#[must_use]
pub struct Turn(Option<Box<dyn Any + Send>>);

impl Turn {
    /// The turn at a provider that does not limit how often it is asked.
    pub const FREE: Self = Self(None);

    /// Wraps what a provider gave leave with.
    pub(crate) fn new(leave: impl Any + Send) -> Self {
        Self(Some(Box::new(leave)))
    }

    /// Does work in this turn: its first request that needs one takes it.
    pub(crate) async fn cover<T>(self, work: impl Future<Output = T>) -> T {
        HELD.scope(RefCell::new(self.0), work).await
    }

    /// Takes what the provider gave, where the work under way has a turn that is not used yet.
    pub(crate) fn taken<L: Any>() -> Option<L> {
        let held = HELD.try_with(|held| held.borrow_mut().take()).ok().flatten()?;
        held.downcast().ok().map(|leave| *leave)
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Turn(held)" } else { "Turn(free)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_is_taken_once_and_only_by_the_work_that_has_it() {
        assert_eq!(Turn::taken::<u8>(), None);
        let work = async { (Turn::taken::<u8>(), Turn::taken::<u8>()) };
        assert_eq!(Turn::new(7_u8).cover(work).await, (Some(7), None));
        assert_eq!(Turn::FREE.cover(async { Turn::taken::<u8>() }).await, None);
    }
}
