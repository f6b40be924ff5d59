//! Resource usage of a running object.

/// Resource usage of a sandbox, as far as its provider reports it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Processor time in seconds since its start.
    pub cpu_seconds: Option<f64>,
    /// Processes.
    pub processes: Option<u64>,
}
