//! The scripts of setup and teardown.

use std::collections::BTreeSet;
use std::time::Duration;

use super::pass::Pass;
use crate::workflow::place::KeyPath;
use crate::workflow::{Script, file};

/// The default time limit of a setup script.
const SETUP: Duration = Duration::from_secs(600);
/// The default time limit of a teardown script.
const TEARDOWN: Duration = Duration::from_secs(60);

/// The common form of a script in both lists.
struct RawScript<'a> {
    name: Option<&'a String>,
    run: &'a str,
    timeout: Option<&'a String>,
    inactivity: Option<&'a String>,
    tries: Option<u32>,
    optional: bool,
}

/// Validates and resolves `[[setup]]`.
pub(super) fn setup(pass: &mut Pass<'_>, scripts: &[file::Setup]) -> Vec<Script> {
    let raw = scripts.iter().map(|file| RawScript {
        name: file.name.as_ref(),
        run: &file.run,
        timeout: file.timeout.as_ref(),
        inactivity: file.inactivity.as_ref(),
        tries: file.tries,
        optional: file.optional,
    });
    resolve(pass, &KeyPath::of("setup"), SETUP, raw)
}

/// Validates and resolves `[[teardown]]`, whose scripts never change the outcome.
pub(super) fn teardown(pass: &mut Pass<'_>, scripts: &[file::Teardown]) -> Vec<Script> {
    let raw = scripts.iter().map(|file| RawScript {
        name: file.name.as_ref(),
        run: &file.run,
        timeout: file.timeout.as_ref(),
        inactivity: file.inactivity.as_ref(),
        tries: file.tries,
        optional: true,
    });
    resolve(pass, &KeyPath::of("teardown"), TEARDOWN, raw)
}

fn resolve<'a>(
    pass: &mut Pass<'_>,
    list: &KeyPath,
    timeout: Duration,
    scripts: impl Iterator<Item = RawScript<'a>>,
) -> Vec<Script> {
    let mut names = BTreeSet::new();
    let mut resolved = Vec::new();
    for (index, raw) in scripts.enumerate() {
        let at = list.index(index);
        let script = script(pass, &at, &raw, timeout);
        let name = script.name.unwrap_or_else(|| (index + 1).to_string());
        if !name.is_empty() && !names.insert(name.clone()) {
            pass.wrong(&at.key("name"), "another step is called so");
        }
        resolved.push(Script { name, ..script.script });
    }
    resolved
}

/// A script without its final name, which may be its number.
struct Unnamed {
    name: Option<String>,
    script: Script,
}

fn script(pass: &mut Pass<'_>, at: &KeyPath, raw: &RawScript<'_>, timeout: Duration) -> Unnamed {
    let name = raw.name.map(|name| pass.name(&at.key("name"), name));
    let script = Script {
        name: String::new(),
        run: pass.prompt(&at.key("run"), raw.run),
        timeout: pass.span(&at.key("timeout"), raw.timeout).unwrap_or(timeout),
        inactivity: pass.span(&at.key("inactivity"), raw.inactivity),
        optional: raw.optional,
        tries: raw.tries.unwrap_or(1),
    };
    Unnamed { name, script }
}
