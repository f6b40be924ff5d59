//! The measured figures as a section, and the bars they have to meet.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};

use super::PairedFigures;
use super::attach::crowd_size;
use super::work::Work;
use crate::bench::machine::MachineInfo;
use crate::bench::page;

/// The maximum duration of a work, as a multiple of the direct one.
const FACTOR: f64 = 1.08;
/// The maximum extra time of a ping and of the echo of a byte.
const PING_LIMIT: Duration = Duration::from_micros(300);
const ECHO_LIMIT: Duration = Duration::from_micros(100);
/// The maximum memory of the guard, whatever streams through it.
const MEMORY_LIMIT: u64 = 40_000_000;

/// Every figure of one run.
pub(super) struct GuardResults {
    pub(super) pairs: Vec<(Work, PairedFigures)>,
    pub(super) small: Option<Small>,
    pub(super) crowd: Option<Crowd>,
    /// The processor time used in five idle seconds.
    pub(super) idle: Duration,
    pub(super) memory: u64,
    pub(super) rounds: usize,
    pub(super) machine: MachineInfo,
    pub(super) engine: String,
}

/// Medians of single requests, directly and through the guard.
pub(super) struct Small {
    pub(super) ping: [Duration; 2],
    pub(super) echo: [Duration; 2],
}

/// Many attached containers at once.
pub(super) struct Crowd {
    /// The number of containers with the right output.
    pub(super) count: usize,
    pub(super) took: Duration,
}

/// Returns the median, after sorting.
pub(super) fn median(figures: &mut [Duration]) -> Duration {
    figures.sort_unstable();
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

fn medians(pairs: &PairedFigures) -> [Duration; 2] {
    pairs.clone().map(|mut figures| median(&mut figures))
}

fn ratio([direct, guarded]: [Duration; 2]) -> f64 {
    guarded.as_secs_f64() / direct.as_secs_f64().max(f64::EPSILON)
}

/// Returns the section.
pub(super) fn render(results: &GuardResults) -> Result<String> {
    let mut text = String::from("## Guard\n\n");
    writeln!(text, "{}\n", page::origin("guard"))?;
    writeln!(text, "{}, {}.\n", results.machine, results.engine)?;
    writeln!(
        text,
        "The same work directly and through `creel guard`, medians of {} interleaved pairs. The bar:\n\
         at most {FACTOR} × direct; a ping at most {PING_LIMIT:?} longer, the echo of a byte over attach\n\
         at most {ECHO_LIMIT:?}; at most {:.0} MB whatever streams through; no processor time when idle.\n",
        results.rounds,
        MEMORY_LIMIT as f64 / 1e6
    )?;
    writeln!(text, "| work | direct | guarded | ratio |\n|---|---:|---:|---:|")?;
    for (work, pairs) in &results.pairs {
        let [direct, guarded] = medians(pairs);
        let ratio = ratio([direct, guarded]);
        writeln!(text, "| {} | {direct:.2?} | {guarded:.2?} | {ratio:.3} |", work.title())?;
    }
    if let Some(small) = &results.small {
        for (name, [direct, guarded]) in [("ping", small.ping), ("echo of a byte", small.echo)] {
            let more = guarded.saturating_sub(direct);
            writeln!(text, "| {name} | {direct:.1?} | {guarded:.1?} | + {more:.1?} |")?;
        }
    }
    writeln!(text)?;
    if let Some(crowd) = &results.crowd {
        let Crowd { count, took } = crowd;
        let size = crowd_size();
        writeln!(
            text,
            "{count} of {size} containers attached at once said what they should ({took:.1?})."
        )?;
    }
    writeln!(
        text,
        "Peak memory of the guard: {:.1} MB. Processor time of five idle seconds: {:?}.",
        results.memory as f64 / 1e6,
        results.idle
    )?;
    Ok(text)
}

/// Fails when a bar is missed.
pub(super) fn check(results: &GuardResults) -> Result<()> {
    let mut failures = Vec::new();
    for (work, pairs) in &results.pairs {
        let ratio = ratio(medians(pairs));
        if ratio > FACTOR {
            failures.push(format!("{}: {ratio:.3} × direct", work.name()));
        }
    }
    if let Some(small) = &results.small {
        let limits = [("ping", small.ping, PING_LIMIT), ("echo", small.echo, ECHO_LIMIT)];
        for (name, [direct, guarded], limit) in limits {
            if guarded.saturating_sub(direct) > limit {
                failures.push(format!("{name}: {direct:.1?} and {guarded:.1?}"));
            }
        }
    }
    if let Some(crowd) = results.crowd.as_ref().filter(|crowd| crowd.count < crowd_size()) {
        failures.push(format!("crowd: only {} were right", crowd.count));
    }
    if results.memory > MEMORY_LIMIT {
        failures.push(format!("memory: {} bytes", results.memory));
    }
    if !results.idle.is_zero() {
        failures.push(format!("idle: {:?} of processor time", results.idle));
    }
    if !failures.is_empty() {
        bail!("the bar is missed: {}", failures.join("; "));
    }
    Ok(())
}
