//! Interprets the values of a file: fills in references, parses values, and
//! checks them against each other.
//!
//! One pass serves both [`super::Workflow::parse`], where references have no
//! values yet, and [`super::Workflow::resolve`], where they have. The first pass
//! skips what is not known yet; in the second everything is known. An invalid
//! part is reported and replaced by a harmless value, so that all mistakes are
//! found at once. The result is valid only if nothing was reported.

mod credentials;
mod model;
mod pass;
mod paths;
mod runtime;
mod sandbox;
mod scripts;
mod workspace;

use std::collections::BTreeSet;

use creel_model::backend::Backends;

use super::error::Problem;
use super::file::{self, File};
use super::place::{KeyPath, Places};
use super::reference::Reference;
use super::{Lookup, OnFailure, Pause, Resolved, RunLimits, Task};

use pass::Pass;

/// The result of a pass over a file.
pub(super) struct Resolution {
    /// The resolved workflow. Meaningless if there are problems.
    pub(super) resolved: Resolved,
    /// The problems.
    pub(super) problems: Vec<Problem>,
    /// The references in the file.
    pub(super) references: BTreeSet<Reference>,
}

/// Validates and resolves the values of a file, with or without the values of its references.
pub(super) fn resolve(
    (file, places): (&File, &Places),
    backends: Backends,
    lookup: Option<&Lookup<'_>>,
) -> Resolution {
    let mut pass = Pass::new(places, lookup);
    let name = pass.name(&KeyPath::of("name"), &file.name);
    let backend = sandbox::backend(&mut pass, &file.sandbox, backends);
    let sandbox = sandbox::resolve(&mut pass, &file.sandbox, (backend, backends));
    let credentials = credentials::resolve(&mut pass, &file.credentials);
    let workspace = workspace::resolve(&mut pass, &file.workspace, &file.credentials, backend);
    let setup = scripts::setup(&mut pass, &file.setup);
    let runtime = runtime::resolve(&mut pass, &file.runtime);
    let model = file.model.as_ref().map(|model| model::resolve(&mut pass, model, &runtime.kind));
    let task = task(&mut pass, &file.task);
    let limits = limits(&mut pass, &file.limits);
    let pause = file.pause.as_ref().map(|pause| Pause { after_turns: pause.after_turns });
    let teardown = scripts::teardown(&mut pass, &file.teardown);
    let keep = pass.duration(&KeyPath::of("on_failure").key("keep"), file.on_failure.keep.as_ref());
    let on_failure = OnFailure { keep: keep.unwrap_or_default() };
    let (reference_values, notes, problems, references) = pass.finish();
    let resolved = Resolved {
        name,
        sandbox,
        workspace,
        credentials,
        setup,
        runtime,
        model,
        task,
        limits,
        pause,
        teardown,
        on_failure,
        notes,
        reference_values,
    };
    Resolution { resolved, problems, references }
}

fn task(pass: &mut Pass<'_>, file: &file::Task) -> Task {
    let at = KeyPath::of("task");
    let prompt = pass.prompt(&at.key("prompt"), &file.prompt);
    let follow_ups = file.follow_ups.iter().enumerate();
    let follow_ups = follow_ups
        .map(|(index, text)| pass.prompt(&at.key("follow_ups").index(index), text))
        .collect();
    Task { prompt, follow_ups }
}

fn limits(pass: &mut Pass<'_>, file: &file::Limits) -> RunLimits {
    let at = KeyPath::of("limits");
    RunLimits {
        turns: file.turns,
        wall: pass.span(&at.key("wall"), file.wall.as_ref()),
        idle: pass.span(&at.key("idle"), file.idle.as_ref()),
        turn: pass.span(&at.key("turn"), file.turn.as_ref()),
    }
}
