//! Caps: how much one plan may release.

use super::Plan;

/// How much one plan may release; `None` means no cap.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caps {
    /// Maximum number of objects.
    pub max: Option<usize>,
    /// Maximum share of what was listed, in percent.
    pub max_percent: Option<u8>,
}

/// A plan that would release more than its cap; nothing was released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapExceeded {
    /// It has too many items.
    #[error("the plan would release {planned} resources, more than the cap of {max}")]
    Count {
        /// The number of items in the plan.
        planned: usize,
        /// The cap.
        max: usize,
    },
    /// It has too large a share of what was listed.
    #[error(
        "the plan would release {planned} of {listed} resources, more than the cap of {max_percent} %"
    )]
    Percent {
        /// The number of items in the plan.
        planned: usize,
        /// The number of listed objects.
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
    /// Fails when the plan would release more than allowed.
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
