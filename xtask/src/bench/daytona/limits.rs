//! A sweep under rate limits and faults, and the least time it can take.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::stage::{LABEL, LATENCY, Stage};
use crate::bench::memory;
use crate::bench::{COUNT, Effort};

/// The limits of a window for [`COUNT`] sandboxes.
const LIFECYCLE: usize = 2_500;
const GENERAL: usize = 10_000;
/// How likely a request meets a fault that passes.
pub(super) const FAULTS: f64 = 0.05;
/// The faults, each as likely as the others. After the last two the request was carried out.
const KINDS: [&str; 4] = ["status", "cut_before", "cut_after", "half_body"];
/// How long the server takes to destroy a sandbox, in seconds.
const DESTROY: f64 = 1.5;
/// The largest page of a listing.
const PAGE: usize = 200;
/// A sweep that takes longer than this many bounds has hung.
const PATIENCE: f64 = 4.0;
/// Look-alikes that must stay.
const DECOYS: usize = 25;

/// What is to be released under which limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) count: usize,
    /// Deletes in a window.
    pub(super) lifecycle: usize,
    /// Other requests in a window.
    pub(super) general: usize,
    pub(super) window: Duration,
}

impl Terms {
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

    /// One each, and one more wherever a fault kept it from being carried out.
    pub(super) fn deletes(&self) -> f64 {
        self.count as f64 / (1.0 - FAULTS / 2.0)
    }

    /// The listing, a look by id at each and one listing of hidden records as the proof, a look
    /// after each delete whose answer was lost; and again wherever a fault struck.
    pub(super) fn reads(&self) -> f64 {
        let proof = self.count + 1;
        ((self.pages() + proof) as f64 + FAULTS * self.deletes()) / (1.0 - FAULTS)
    }

    /// How many windows it takes at least.
    pub(super) fn windows(&self) -> u32 {
        let of = |requests: f64, limit: usize| (requests / limit as f64).ceil() as u32;
        of(self.deletes(), self.lifecycle).max(of(self.reads(), self.general)).max(1)
    }

    /// The least time: one page after the other, all windows but the last in full, and in the
    /// last one delete, its destroy, a look and a listing.
    pub(super) fn bound(&self) -> Duration {
        let in_turn = (self.pages() + 3) as f64 * LATENCY + DESTROY;
        self.window * (self.windows() - 1) + Duration::from_secs_f64(in_turn)
    }
}

/// What came of it.
pub(super) struct Limited {
    pub(super) terms: Terms,
    pub(super) took: Duration,
    pub(super) code: Option<i32>,
    /// What creel said, without the items.
    pub(super) said: Said,
    /// What is left of what was to go.
    pub(super) left: usize,
    /// Whether every look-alike is still there.
    pub(super) spared_decoys: bool,
    /// The most memory that was resident, in bytes.
    pub(super) peak: u64,
    /// What the server counted.
    pub(super) requests: Value,
    /// How many faults struck.
    pub(super) faults: u64,
}

/// What creel counted.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) gone: u64,
    /// Everything else: accepted, failed, drifted, spared and the like.
    pub(super) other: u64,
}

/// Measures one sweep.
pub(super) fn measure(effort: &Effort) -> Result<Limited> {
    let terms = Terms::of(effort);
    let stage = Stage::start(effort, "limits", &scenario(&terms))?;
    stage.seed(terms.count, "ours")?;
    stage.seed(DECOYS, "ours-not")?;
    stage.delay_answers()?;
    arm(&stage)?;
    let creel = stage.creel.clone().deadline(terms.bound().mul_f64(PATIENCE));
    let label = format!("{LABEL}=ours");
    let sweep = ["sweep", "--provider", "daytona", "--label", &label, "--apply", "--json"];
    let (output, peak) = memory::watch(creel.spawn(sweep))?;
    let faults = disarm(&stage)?;
    let requests = stage.server.admin("GET", "requests", &json!(null))?;
    let limited = Limited {
        terms,
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

fn scenario(terms: &Terms) -> String {
    let Terms { lifecycle, general, window, .. } = terms;
    format!(
        "[rate_limits]\nsandbox_lifecycle = {lifecycle}\nauthenticated = {general}\nwindow = {:.1}\n",
        window.as_secs_f64()
    )
}

fn arm(stage: &Stage) -> Result<()> {
    let each = FAULTS / KINDS.len() as f64;
    for (earlier, kind) in KINDS.into_iter().enumerate() {
        // A request meets the first fault that strikes: the later ones see only the rest.
        let likely = each / (1.0 - each * earlier as f64);
        let order = json!({"fault": kind, "status": 503, "probability": likely});
        stage.server.admin("POST", "faults", &order)?;
    }
    Ok(())
}

/// Disarms all faults and returns how often they struck, but for the delays.
fn disarm(stage: &Stage) -> Result<u64> {
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
        let terms = Terms { count: 10_000, lifecycle: 2_500, general: 10_000, window };
        assert_eq!((terms.pages(), terms.deletes().round() as u64), (50, 10_256));
        // Four full windows hold 10,000 deletes; the faults need a fifth.
        assert_eq!((terms.windows(), terms.bound().as_secs()), (5, 242));
        let reads_bind = Terms { general: 1_000, ..terms };
        assert_eq!(reads_bind.windows(), 12);
        let no_limit = Terms { lifecycle: 100_000, general: 100_000, ..terms };
        assert_eq!(no_limit.bound().as_secs(), 2);
    }
}
