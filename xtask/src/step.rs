//! Announces each step and how long it took.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Runs a step between two lines that name it.
pub(crate) fn step<T>(name: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("xtask: {name} …");
    let started_at = Instant::now();
    let result = act();
    let verdict = if result.is_ok() { "done" } else { "failed" };
    println!("xtask: {name}: {verdict} in {}", seconds(started_at.elapsed()));
    result
}

/// Formats a duration for people.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
