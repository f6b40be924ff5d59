//! The runtime that runs the turns.

use std::collections::BTreeSet;

use super::pass::Pass;
use crate::workflow::place::KeyPath;
use crate::workflow::{PromptBy, Runtime, RuntimeKind, file};

/// The placeholder for the prompt in the arguments.
const PROMPT: &str = "{prompt}";

/// The kinds of runtime that a file may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownRuntime {
    Command,
    Openclaw,
    StreamJson,
}

impl KnownRuntime {
    const ALL: &'static [Self] = &[Self::Command, Self::Openclaw, Self::StreamJson];

    fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Openclaw => "openclaw",
            Self::StreamJson => "stream-json",
        }
    }
}

const PROMPT_BY: &[PromptBy] = &[PromptBy::Stdin, PromptBy::Argument];

fn prompt_name(prompt: PromptBy) -> &'static str {
    match prompt {
        PromptBy::Stdin => "stdin",
        PromptBy::Argument => "argument",
    }
}

/// Validates and resolves `[runtime]`.
pub(super) fn resolve(pass: &mut Pass<'_>, file: &file::Runtime) -> Runtime {
    let at = KeyPath::of("runtime");
    let kind =
        pass.choice(&at.key("kind"), &file.kind, ("kind", KnownRuntime::ALL, KnownRuntime::name));
    let prompt = file
        .prompt
        .as_ref()
        .and_then(|raw| pass.choice(&at.key("prompt"), raw, ("way", PROMPT_BY, prompt_name)));
    let command = file.command.as_ref().map(|args| pass.program(&at.key("command"), args));
    let runtime = Runtime {
        kind: RuntimeKind::Command {
            command: command.unwrap_or_default(),
            prompt: prompt.unwrap_or(PromptBy::Stdin),
        },
        version: pass.optional_line(&at.key("version"), file.version.as_ref()),
        plugins: plugins(pass, &at.key("plugins"), &file.plugins),
        check: file.check.as_ref().map(|args| pass.program(&at.key("check"), args)),
    };
    match kind {
        Some(KnownRuntime::Command) => by_command(pass, file, runtime),
        Some(other @ (KnownRuntime::Openclaw | KnownRuntime::StreamJson)) => {
            if pass.is_final() {
                let name = other.name();
                pass.wrong(
                    &at.key("kind"),
                    format!(
                        "this build of creel knows `{name}` but cannot run it yet; `command` runs"
                    ),
                );
            }
            runtime
        }
        None => runtime,
    }
}

fn plugins(pass: &mut Pass<'_>, at: &KeyPath, raw: &[String]) -> Vec<String> {
    let (mut plugins, mut seen) = (Vec::new(), BTreeSet::new());
    for (index, raw) in raw.iter().enumerate() {
        let plugin = pass.line(&at.index(index), raw);
        if !plugin.is_empty() && !seen.insert(plugin.clone()) {
            pass.wrong(&at.index(index), "it stands there twice");
        }
        plugins.push(plugin);
    }
    plugins
}

/// Checks the settings of a runtime of kind `command`.
fn by_command(pass: &mut Pass<'_>, file: &file::Runtime, mut runtime: Runtime) -> Runtime {
    let at = KeyPath::of("runtime");
    if file.command.is_none() {
        pass.wrong(&at.key("command"), "a runtime of kind `command` needs one");
    }
    if runtime.version.take().is_some() {
        pass.note(
            "`runtime.version` has no effect: a runtime of kind `command` has no versions; \
             prove one with `check`"
                .to_owned(),
        );
    }
    let RuntimeKind::Command { command, prompt } = &mut runtime.kind;
    let has_place = command.iter().any(|arg| arg.contains(PROMPT));
    match prompt {
        PromptBy::Stdin if has_place => {
            pass.wrong(&at.key("command"), "`{prompt}` in it needs `prompt = \"argument\"`");
        }
        PromptBy::Argument if !has_place => command.push(PROMPT.to_owned()),
        PromptBy::Stdin | PromptBy::Argument => {}
    }
    runtime
}
