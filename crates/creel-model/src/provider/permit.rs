//! A permit: permission to send the requests of one release.
//!
//! Where a provider limits the rate of requests, a release may have to wait. It waits before the
//! last inspect of the object, so that the observation is fresh when the object is released. The
//! permit then goes with every call of that release ([`Provider::within`]). Each request that needs
//! a part of it takes that part.
//!
//! [`Provider::within`]: crate::provider::Provider::within

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The unused parts of a permit.
type Parts = Vec<Box<dyn Any + Send>>;

/// Permission to send the requests of one release. Clones share the parts.
///
/// The unused parts are returned when the last clone is dropped.
#[derive(Clone, Default)]
#[must_use]
pub struct Permit(Option<Arc<Mutex<Parts>>>);

impl Permit {
    /// The permit of a provider without a rate limit.
    pub const FREE: Self = Self(None);

    /// Creates a permit from a provider's permissions, one for each request.
    pub fn of<P: Any + Send>(permissions: impl IntoIterator<Item = P>) -> Self {
        let part = |permission| Box::new(permission) as Box<dyn Any + Send>;
        Self(Some(Arc::new(Mutex::new(permissions.into_iter().map(part).collect()))))
    }

    /// Takes a part that fits, if there is one.
    pub fn take<P: Any>(&self, fits: impl Fn(&P) -> bool) -> Option<P> {
        let mut parts = self.parts()?;
        let fits = |part: &Box<dyn Any + Send>| part.downcast_ref::<P>().is_some_and(&fits);
        let place = parts.iter().position(fits)?;
        parts.swap_remove(place).downcast().ok().map(|part| *part)
    }

    fn parts(&self) -> Option<MutexGuard<'_, Parts>> {
        // A panic elsewhere leaves whole parts, which stay usable.
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({})", self.parts().map_or(0, |parts| parts.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_permit_is_taken_once_by_whichever_clone_asks_first() {
        let permit = Permit::of([7_u8, 8]);
        let clone = permit.clone();
        let is = |number: u8| move |part: &u8| *part == number;
        assert_eq!(clone.take(is(7)), Some(7));
        assert_eq!(permit.take(is(7)), None);
        assert_eq!(permit.take(|_: &u16| true), None);
        assert_eq!(permit.take(|_: &u8| true), Some(8));
        assert_eq!(clone.take(|_: &u8| true), None);
        assert_eq!(Permit::FREE.take(|_: &u8| true), None);
    }
}
