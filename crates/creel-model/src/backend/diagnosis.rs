//! What a backend finds when it checks whether it works.

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It works, or is not configured on purpose.
    Works,
    /// It is not available, and nothing requires it.
    Unavailable,
    /// What configures it is invalid.
    Misconfigured,
    /// It is configured and does not work.
    Broken,
}

/// What a backend found, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// The result.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Diagnosis {
    /// Reports that it works.
    pub fn works(detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Works, detail: detail.into(), hint: None }
    }

    /// Reports anything else, with a hint.
    pub fn of(verdict: Verdict, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { verdict, detail: detail.into(), hint: Some(hint.into()) }
    }
}
