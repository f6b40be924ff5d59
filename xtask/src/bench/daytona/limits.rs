//! A sweep under rate limits and faults, and the least time it can take.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::stage::{DaytonaStage, LABEL, LATENCY};
use crate::bench::memory;
use crate::bench::{COUNT, Effort};

/// The limits per window for [`COUNT`] sandboxes.
const LIFECYCLE: usize = 2_500;
const GENERAL: usize = 10_000;
/// The probability that a request meets a transient fault.
pub(super) const FAULTS: f64 = 0.05;
/// The faults, all equally likely. After the last two, the request was carried out.
const KINDS: [&str; 4] = ["status", "cut_before", "cut_after", "half_body"];
/// How long the server takes to destroy a sandbox, in seconds.
const DESTROY: f64 = 1.5;
/// The largest page of a listing.
const PAGE: usize = 200;
/// The factor over the bound after which a sweep counts as hung.
const PATIENCE: f64 = 4.0;
/// The number of decoys, which must stay.
const DECOYS: usize = 25;

/// The number of sandboxes to release, and the limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitParams {
    pub(super) count: usize,
    /// Deletes per window.
    pub(super) lifecycle: usize,
    /// Other requests per window.
    pub(super) general: usize,
    pub(super) window: Duration,
}

impl LimitParams {
    fn of(effort: &Effort) -> Self {
        let share = |limit: usize| (limit * effort.count).div_ceil(COUNT);
        Self {
            count: effort.count,
            lifecycle: share(LIFECYCLE),
            general: share(GENERAL),
            window: effort.window(),
        }
    }

    pub(super) fn pages(&self) -> usize {
        self.count.div_ceil(PAGE)
    }

    /// Returns the expected number of deletes: one each, and one more wherever a fault prevented
    /// it.
    pub(super) fn deletes(&self) -> f64 {
        self.count as f64 / (1.0 - FAULTS / 2.0)
    }

    /// Returns the expected number of reads: the listing; as proof, one lookup by id per sandbox
    /// and one listing of hidden records; one lookup after each delete whose answer was lost; and a
    /// retry for each fault.
    pub(super) fn reads(&self) -> f64 {
        let proof = self.count + 1;
        ((self.pages() + proof) as f64 + FAULTS * self.deletes()) / (1.0 - FAULTS)
    }

    /// Returns the minimum number of windows.
    pub(super) fn windows(&self) -> u32 {
        let of = |requests: f64, limit: usize| (requests / limit as f64).ceil() as u32;
        of(self.deletes(), self.lifecycle).max(of(self.reads(), self.general)).max(1)
    }

    /// Returns the least time: the pages one after the other, all windows but the last in full, and
    /// in the last window one delete, its destroy, a lookup and a listing.
    pub(super) fn bound(&self) -> Duration {
        let in_turn = (self.pages() + 3) as f64 * LATENCY + DESTROY;
        self.window * (self.windows() - 1) + Duration::from_secs_f64(in_turn)
    }
}

/// The result of the sweep.
pub(super) struct Limited {
    pub(super) params: LimitParams,
    pub(super) took: Duration,
    pub(super) code: Option<i32>,
    /// The counts that creel reported.
    pub(super) said: Said,
    /// The number of sandboxes left that should be gone.
    pub(super) left: usize,
    /// Whether every decoy is still there.
    pub(super) spared_decoys: bool,
    /// The peak resident memory, in bytes.
    pub(super) peak: u64,
    /// The requests that the server counted.
    pub(super) requests: Value,
    /// The number of faults that fired.
    pub(super) faults: u64,
}

/// The counts that creel reported.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) gone: u64,
    /// All other results: accepted, failed, drifted, spared and the like.
    pub(super) other: u64,
}

/// Measures one sweep.
pub(super) fn measure(effort: &Effort) -> Result<Limited> {
    let params = LimitParams::of(effort);
    let stage = DaytonaStage::start(effort, "limits", &scenario(&params))?;
    stage.seed(params.count, "ours")?;
    stage.seed(DECOYS, "ours-not")?;
    stage.delay_responses()?;
    arm(&stage)?;
    let creel = stage.creel.clone().deadline(params.bound().mul_f64(PATIENCE));
    let label = format!("{LABEL}=ours");
    let sweep = ["sweep", "--provider", "daytona", "--label", &label, "--apply", "--json"];
    let (output, peak) = memory::watch(creel.spawn(sweep))?;
    let faults = disarm(&stage)?;
    let requests = stage.server.admin("GET", "requests", &json!(null))?;
    let limited = Limited {
        params,
        took: output.took,
        code: output.code(),
        said: Said::read(&output.stdout).with_context(|| output.stderr.clone())?,
        left: stage.left("ours")?,
        spared_decoys: stage.left("ours-not")? == DECOYS,
        peak,
        requests,
        faults,
    };
    stage.stop()?;
    Ok(limited)
}

impl Said {
    fn read(stdout: &str) -> Result<Self> {
        let said: Value = serde_json::from_str(stdout).context("creel did not print JSON")?;
        let gone = said["gone"].as_u64().context("creel did not say what is gone")?;
        let items = said["items"].as_array().map_or(0, Vec::len) as u64;
        Ok(Self { gone, other: items.saturating_sub(gone) })
    }
}

fn scenario(params: &LimitParams) -> String {
    let LimitParams { lifecycle, general, window, .. } = params;
    format!(
        "[rate_limits]\nsandbox_lifecycle = {lifecycle}\nauthenticated = {general}\nwindow = {:.1}\n",
        window.as_secs_f64()
    )
}

fn arm(stage: &DaytonaStage) -> Result<()> {
    let each = FAULTS / KINDS.len() as f64;
    for (earlier, kind) in KINDS.into_iter().enumerate() {
        // A request meets the first fault that fires, so later faults see only the remaining
        // requests.
        let likely = each / (1.0 - each * earlier as f64);
        let fault = json!({"fault": kind, "status": 503, "probability": likely});
        stage.server.admin("POST", "faults", &fault)?;
    }
    Ok(())
}

/// Disarms all faults, and returns how often they fired, without the delays.
fn disarm(stage: &DaytonaStage) -> Result<u64> {
    let armed = stage.server.admin("GET", "faults", &json!(null))?;
    let faults = armed["faults"].as_array().context("the server lists its faults")?;
    let struck = faults.iter().filter(|fault| fault["fault"] != "latency");
    let struck = struck.filter_map(|fault| fault["fired"].as_u64()).sum();
    stage.server.admin("DELETE", "faults", &json!(null))?;
    Ok(struck)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_what_the_limits_allow() {
        let window = Duration::from_secs(60);
        let params = LimitParams { count: 10_000, lifecycle: 2_500, general: 10_000, window };
        assert_eq!((params.pages(), params.deletes().round() as u64), (50, 10_256));
        // Four full windows hold 10,000 deletes; the faults need a fifth.
        assert_eq!((params.windows(), params.bound().as_secs()), (5, 242));
        let reads_bind = LimitParams { general: 1_000, ..params };
        assert_eq!(reads_bind.windows(), 12);
        let no_limit = LimitParams { lifecycle: 100_000, general: 100_000, ..params };
        assert_eq!(no_limit.bound().as_secs(), 2);
    }
}
