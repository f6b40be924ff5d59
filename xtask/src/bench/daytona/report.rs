//! The measured figures as a section, and the bars they have to meet.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::limits::{FAULTS, LimitParams, Limited};
use super::sdk::{self, Beside, SdkMethod};
use super::stage::LATENCY;
use crate::bench::machine::MachineInfo;
use crate::bench::page;

/// The maximum duration of a sweep, as a multiple of the bound.
const FACTOR: f64 = 1.15;
/// The maximum memory, in bytes.
const MEMORY_LIMIT: u64 = 100_000_000;

/// Returns the section.
pub(super) fn render(limits: Option<&Limited>, sdk: Option<&Beside>) -> Result<String> {
    let mut text = String::from("## Daytona\n\n");
    writeln!(text, "{}\n", page::origin("daytona"))?;
    writeln!(text, "{}; `creel dev daytona` on the same machine.\n", MachineInfo::here())?;
    if let Some(limits) = limits {
        render_limits(&mut text, limits)?;
    }
    if let Some(sdk) = sdk {
        render_sdk(&mut text, sdk)?;
    }
    Ok(text)
}

fn render_limits(text: &mut String, limited: &Limited) -> Result<()> {
    let params = &limited.params;
    let LimitParams { count, lifecycle, general, window, .. } = params;
    writeln!(
        text,
        "### {count} sandboxes under limits and faults\n\n\
         Listed, released and proven gone by one `creel sweep --apply`; each answer takes {:.0} ms, \
         {lifecycle} deletes and\n{general} other requests are allowed in {} s, and {:.0} % of all \
         requests fail in passing (503, cut off before or\nafter they were carried out, half an \
         answer).\n\nThe bound:\n",
        LATENCY * 1000.0,
        window.as_secs(),
        FAULTS * 100.0
    )?;
    render_bound(text, params)?;
    let ratio = limited.took.as_secs_f64() / params.bound().as_secs_f64();
    let count_of = |pointer: &str| limited.requests.pointer(pointer).and_then(|n| n.as_u64());
    let routes = ["GET ~1sandbox", "GET ~1sandbox~1{s}", "DELETE ~1sandbox~1{s}"];
    let sent = routes.map(|route| count_of(&format!("/by_route/{route}")).unwrap_or_default());
    writeln!(text, "\n| | measured | bar |\n|---|---:|---:|")?;
    writeln!(
        text,
        "| time, of the whole command | {:.1} s ({ratio:.3} × the bound) | ≤ {:.1} s ({FACTOR} ×) |",
        limited.took.as_secs_f64(),
        params.bound().as_secs_f64() * FACTOR
    )?;
    writeln!(text, "| said to be gone | {} | {count} |", limited.said.gone)?;
    writeln!(text, "| left behind | {} | 0 |", limited.left)?;
    writeln!(
        text,
        "| refusals (429) | {} | ≤ {}, one a window |",
        limited.refusals(),
        params.windows()
    )?;
    writeln!(text, "| peak of resident memory | {} | ≤ {} |", mb(limited.peak), mb(MEMORY_LIMIT))?;
    let [lists, lookups, deletes] = sent;
    writeln!(
        text,
        "\nIt sent {deletes} deletes, {lookups} lookups and {lists} pages of listings; {} requests met \
         a fault.\n",
        limited.faults
    )?;
    Ok(())
}

fn render_bound(text: &mut String, params: &LimitParams) -> Result<()> {
    let LimitParams { count, lifecycle, general, window, .. } = params;
    let (pages, half) = (params.pages(), FAULTS / 2.0);
    writeln!(
        text,
        "    deletes = {count} / (1 − {half}) = {:.0}, because half of the faults keep one from being carried out\n    \
             reads   = ({pages} pages + {count} proofs by id + 1 listing of hidden records + {FAULTS} × deletes) / (1 − {FAULTS}) = {:.0}\n    \
             windows = max(⌈deletes / {lifecycle}⌉, ⌈reads / {general}⌉) = {}\n    \
             bound   = (windows − 1) × {} s + ({pages} pages + delete + lookup + listing) × {LATENCY} s + 1.5 s to destroy = {:.1} s",
        params.deletes(),
        params.reads(),
        params.windows(),
        window.as_secs(),
        params.bound().as_secs_f64()
    )?;
    Ok(())
}

fn render_sdk(text: &mut String, beside: &Beside) -> Result<()> {
    writeln!(
        text,
        "### {} sandboxes beside the official SDK\n\n\
         Without limits and faults, each answer after {:.0} ms; medians of {} interleaved rounds. \
         creel's figures are those\nof the whole command, those of the SDK do not count the start \
         and the end of Python. The bar: faster than\nthe loop, and than those that wait until \
         each is gone.\n\n\
         | method | median | fastest | slowest | the last was gone after | requests |\n\
         |---|---:|---:|---:|---:|---:|",
        sdk::COUNT,
        LATENCY * 1000.0,
        beside.rounds
    )?;
    for method in SdkMethod::ALL {
        let sorted = beside.sorted(method, |figure| figure.took);
        let (Some(fastest), Some(slowest)) = (sorted.first(), sorted.last()) else { continue };
        let median = beside.median(method, |figure| figure.took);
        let gone = beside.median(method, |figure| figure.gone_after);
        let requests = beside.requests(method);
        writeln!(
            text,
            "| {method} | {median:.2?} | {fastest:.2?} | {slowest:.2?} | {gone:.2?} | {requests} |"
        )?;
    }
    Ok(())
}

fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

impl Limited {
    fn refusals(&self) -> u64 {
        let throttled = self.requests["throttled"].as_object();
        throttled.map_or(0, |all| all.values().filter_map(|count| count.as_u64()).sum())
    }

    fn failures(&self) -> Vec<String> {
        let params = &self.params;
        let limit = params.bound().mul_f64(FACTOR);
        let bars = [
            (self.took > limit, format!("it took {:.1?}, the limit is {limit:.1?}", self.took)),
            (self.code != Some(0), format!("creel ended with {:?}", self.code)),
            (
                self.said.gone != params.count as u64 || self.said.other > 0,
                format!("of {} sandboxes creel said {:?}", params.count, self.said),
            ),
            (self.left > 0, format!("{} sandboxes leaked", self.left)),
            (!self.spared_decoys, "a decoy is gone".to_owned()),
            (
                self.refusals() > u64::from(params.windows()),
                format!("{} refusals in {} windows", self.refusals(), params.windows()),
            ),
            (
                self.peak > MEMORY_LIMIT,
                format!("memory {}, the limit is {}", mb(self.peak), mb(MEMORY_LIMIT)),
            ),
        ];
        bars.into_iter().filter(|(missed, _)| *missed).map(|(_, why)| why).collect()
    }
}

impl Beside {
    fn failures(&self) -> Vec<String> {
        let creel = self.median(SdkMethod::Creel, |figure| figure.took);
        // Methods that return without waiting have proven nothing: they are shown, but not
        // compared.
        let slower = [SdkMethod::Loop, SdkMethod::ThreadsWait].into_iter().filter_map(|method| {
            let other = self.median(method, |figure| figure.took);
            (creel > other).then(|| format!("creel {creel:.2?}; {method} {other:.2?}"))
        });
        slower.collect()
    }
}

/// Fails when a figure misses its bar.
pub(super) fn check(limits: Option<&Limited>, sdk: Option<&Beside>) -> Result<()> {
    let mut failures = limits.map(Limited::failures).unwrap_or_default();
    failures.extend(sdk.map(Beside::failures).unwrap_or_default());
    if !failures.is_empty() {
        bail!("the bar was missed:\n{}", failures.join("\n"));
    }
    Ok(())
}
