//! The scripts of setup and teardown.

use std::collections::BTreeSet;
use std::time::Duration;

use super::pass::Pass;
use crate::workflow::place::KeyPath;
use crate::workflow::{Script, file};

/// How long a script of the setup may take, if the file does not say.
const SETUP: Duration = Duration::from_secs(600);
/// How long a script of the teardown may take, if the file does not say.
const TEARDOWN: Duration = Duration::from_secs(60);

/// A script as both lists have it.
struct Raw<'a> {
    name: Option<&'a String>,
    run: &'a str,
    timeout: Option<&'a String>,
    inactivity: Option<&'a String>,
    tries: Option<u32>,
    optional: bool,
}

/// Settles `[[setup]]`.
pub(super) fn setup(pass: &mut Pass<'_>, scripts: &[file::Setup]) -> Vec<Script> {
    let raw = scripts.iter().map(|file| Raw {
        name: file.name.as_ref(),
        run: &file.run,
        timeout: file.timeout.as_ref(),
        inactivity: file.inactivity.as_ref(),
        tries: file.tries,
        optional: file.optional,
    });
    settle(pass, &KeyPath::of("setup"), SETUP, raw)
}

/// Settles `[[teardown]]`, whose scripts never change the outcome.
pub(super) fn teardown(pass: &mut Pass<'_>, scripts: &[file::Teardown]) -> Vec<Script> {
    let raw = scripts.iter().map(|file| Raw {
        name: file.name.as_ref(),
        run: &file.run,
        timeout: file.timeout.as_ref(),
        inactivity: file.inactivity.as_ref(),
        tries: file.tries,
        optional: true,
    });
    settle(pass, &KeyPath::of("teardown"), TEARDOWN, raw)
}

fn settle<'a>(
    pass: &mut Pass<'_>,
    list: &KeyPath,
    timeout: Duration,
    scripts: impl Iterator<Item = Raw<'a>>,
) -> Vec<Script> {
    let mut names = BTreeSet::new();
    let mut settled = Vec::new();
    for (index, raw) in scripts.enumerate() {
        let at = list.index(index);
        let script = script(pass, &at, &raw, timeout);
        let name = script.name.unwrap_or_else(|| (index + 1).to_string());
        if !name.is_empty() && !names.insert(name.clone()) {
            pass.wrong(&at.key("name"), "another step is called so");
        }
        settled.push(Script { name, ..script.script });
    }
    settled
}

/// A script whose name may be its number.
struct Unnamed {
    name: Option<String>,
    script: Script,
}

fn script(pass: &mut Pass<'_>, at: &KeyPath, raw: &Raw<'_>, timeout: Duration) -> Unnamed {
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
