//! `GET /system/metrics`: the resources of the machine as the sandbox sees them.

use axum::extract::{Path, State as Extract};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::execute::finish;
use super::{SharedState, resolve};
use crate::backend::{Program, ShellInput};
use crate::error::{ApiError, Result};
use crate::moment::Moment;
use crate::sandbox::Pairs;

/// Prints the processors, two samples of their time, memory and disk, one after the other.
const PROBE: &str = "grep -c ^processor /proc/cpuinfo; head -n 1 /proc/stat; sleep 0.1; \
                     head -n 1 /proc/stat; cat /proc/meminfo; df -kP . | tail -n 1\n";

/// The response, with sizes in bytes.
#[derive(Debug, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Metrics {
    cpu_count: u64,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    disk_total: u64,
    disk_used: u64,
    disk_free: u64,
    timestamp: Moment,
    timestamp_unix: i64,
}

/// Returns used and total resources, measured in the sandbox itself.
pub(super) async fn metrics(
    Extract(shared): SharedState,
    Path(key): Path<String>,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let program = Program {
        script: ShellInput::Fed(PROBE.to_owned()),
        cwd: None,
        env: Pairs::new(),
        merged: true,
    };
    let (_, output) = finish(&sandbox, program, None).await?;
    let metrics = read(&String::from_utf8_lossy(&output), Moment::now());
    Ok(axum::Json(metrics.ok_or_else(ApiError::no_daemon)?).into_response())
}

fn read(text: &str, now: Moment) -> Option<Metrics> {
    let mut lines = text.lines();
    let cpu_count = lines.next()?.trim().parse().ok()?;
    let (before, after) = (times(lines.next()?)?, times(lines.next()?)?);
    let memory = |name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    let disk: Vec<u64> = text
        .lines()
        .last()?
        .split_whitespace()
        .skip(1)
        .map_while(|field| Some(field.parse::<u64>().ok()? * 1024))
        .collect();
    let [disk_total, disk_used, disk_free] = disk[..] else { return None };
    let (mem_total, available) = (memory("MemTotal:")?, memory("MemAvailable:")?);
    Some(Metrics {
        cpu_count,
        cpu_used_pct: busy(before, after),
        mem_total,
        mem_used: mem_total.saturating_sub(available),
        mem_cache: memory("Cached:")?,
        disk_total,
        disk_used,
        disk_free,
        timestamp: now,
        timestamp_unix: now.0 / 1000,
    })
}

/// Parses total time and idle time from the first line of `/proc/stat`.
fn times(line: &str) -> Option<(u64, u64)> {
    let numbers = line.strip_prefix("cpu ")?.split_whitespace().map(|field| field.parse().ok());
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    let idle = numbers.get(3)? + numbers.get(4).unwrap_or(&0);
    Some((numbers.iter().sum(), idle))
}

/// Returns the busy share of the time between two samples, in percent.
fn busy(before: (u64, u64), after: (u64, u64)) -> f64 {
    let (all, idle) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    if all == 0 { 0.0 } else { all.saturating_sub(idle) as f64 * 100.0 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_probe_is_parsed() {
        let text = "2\ncpu  100 0 100 700 100 0 0 0 0 0\ncpu  140 0 110 740 110 0 0 0 0 0\n\
                    MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nCached: 300 kB\n\
                    overlay 5000 2000 3000 40% /\n";
        let metrics = read(text, Moment(1500)).unwrap();
        assert_eq!((metrics.cpu_count, metrics.cpu_used_pct), (2, 50.0));
        assert_eq!((metrics.mem_total, metrics.mem_used), (1000 * 1024, 600 * 1024));
        assert_eq!((metrics.disk_total, metrics.disk_free), (5000 * 1024, 3000 * 1024));
        assert_eq!(read("sh: not found", Moment(0)), None);
    }
}
