//! How fast creel releases sandboxes, against `creel dev daytona`.
//!
//! There are two parts. The first runs under limits and faults; its bound is what the limits allow,
//! see [`limits::LimitParams::bound`]. The second has neither, and compares with the official
//! Python SDK, which deletes without proof, or waits for a 404 on request.

mod limits;
mod report;
mod sdk;
mod stage;

use anyhow::{Result, bail};

use super::{Effort, page};
use crate::step::step;
use crate::venvs;

const PARTS: [&str; 2] = ["limits", "sdk"];

/// Measures both parts, writes the results and checks the bars.
pub(super) fn run(effort: &Effort) -> Result<()> {
    let [limited, beside] = PARTS.map(|part| effort.wants(part));
    if !limited && !beside {
        bail!("no such part; there are: {}", PARTS.join(", "));
    }
    let limits = limited.then(|| step("limits", || limits::measure(effort))).transpose()?;
    let sdk = if beside {
        step("official SDK", venvs::install_missing)?;
        Some(step("sdk", || sdk::measure(effort))?)
    } else {
        None
    };
    let text = report::render(limits.as_ref(), sdk.as_ref())?;
    println!("{text}");
    if effort.is_whole() {
        page::write("daytona", &text)?;
    }
    report::check(limits.as_ref(), sdk.as_ref())
}
