//! Caps: how much one plan may take away.

use super::Plan;

/// How much one plan may take away; `None` is no cap.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caps {
    /// At most this many objects.
    pub max: Option<usize>,
    /// At most this part of what was listed, in percent.
    pub max_percent: Option<u8>,
}

/// A plan that would take away more than its cap; nothing was released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapExceeded {
    /// Too many.
    #[error("the plan would release {planned} resources, more than the cap of {max}")]
    Count {
        /// How many the plan has.
        planned: usize,
        /// The cap.
        max: usize,
    },
    /// Too large a part.
    #[error(
        "the plan would release {planned} of {listed} resources, more than the cap of {max_percent} %"
    )]
    Percent {
        /// How many the plan has.
        planned: usize,
        /// How many were listed.
        listed: usize,
        /// The cap.
        max_percent: u8,
    },
}

impl Caps {
    /// Checks a plan before its first release.
    ///
    /// # Errors
    ///
    /// Fails when the plan would take away more than allowed.
    pub fn check(&self, plan: &Plan) -> Result<(), CapExceeded> {
        let (planned, listed) = (plan.items.len(), plan.listed);
        if let Some(max) = self.max
            && planned > max
        {
            return Err(CapExceeded::Count { planned, max });
        }
        if let Some(max_percent) = self.max_percent
            && planned * 100 > listed * usize::from(max_percent)
        {
            return Err(CapExceeded::Percent { planned, listed, max_percent });
        }
        Ok(())
    }
}
