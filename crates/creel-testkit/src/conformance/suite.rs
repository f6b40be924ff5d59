//! Turns the cases into tests, each with a subject of its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::ExitCode;
use std::time::Duration;

use creel_model::provider::Kind;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::context::CaseContext;
use super::sandbox::SandboxCaseContext;
use super::subject::{Abilities, Purpose, Subject};
use super::{
    commands, creation, failures, files, lifecycle, listing, lost_answers, refusals, releasing,
    self_description,
};

/// How long one case may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// A case about the objects of one kind, or about the provider itself.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Returns whether the case applies to a kind of a provider.
    pub(super) applies: fn(&Abilities, Kind) -> bool,
    pub(super) run: for<'a> fn(&'a CaseContext) -> LocalBoxFuture<'a, ()>,
}

/// A case about sandboxes.
pub(super) struct SandboxCase {
    pub(super) name: &'static str,
    /// Returns whether the case applies to a provider.
    pub(super) applies: fn(&Abilities) -> bool,
    pub(super) run: for<'a> fn(&'a SandboxCaseContext) -> LocalBoxFuture<'a, ()>,
}

/// Lists the cases of a module, each with what it applies to.
macro_rules! cases {
    ($type:ident: $($name:ident if $applies:expr),+ $(,)?) => {
        pub(super) const ALL: &[super::suite::$type] = &[$(super::suite::$type {
            name: stringify!($name),
            applies: $applies,
            run: |context| Box::pin($name(context)),
        }),+];
    };
}
pub(super) use cases;

/// How many cases run at once. Most of them wait for the system.
const THREADS: usize = 8;

/// Runs the suite with the arguments that every Rust test program accepts.
pub fn run<S: Subject + 'static>() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    libtest_mimic::run(&arguments, trials::<S>()).exit_code()
}

/// Returns the tests of a provider.
pub fn trials<S: Subject + 'static>() -> Vec<Trial> {
    let abilities = S::abilities();
    let provider = abilities.backend.name();
    let mut trials = Vec::new();
    for case in self_description::ALL.iter().chain(refusals::OF_PROVIDERS) {
        // These cases go through all kinds by themselves.
        let kind = abilities.kinds[0];
        let name = format!("conformance::{}::{}", provider, case.name);
        if (case.applies)(&abilities, kind) {
            trials.push(Trial::test(name, move || run_case::<S>(case, kind)));
        }
    }
    let of_kinds = [
        creation::ALL,
        lost_answers::ALL,
        listing::ALL,
        releasing::ALL,
        refusals::ALL,
        failures::ALL,
    ];
    for &kind in abilities.kinds {
        for case in of_kinds.into_iter().flatten().filter(|case| (case.applies)(&abilities, kind)) {
            let name = format!("conformance::{}::{kind}::{}", provider, case.name);
            trials.push(Trial::test(name, move || run_case::<S>(case, kind)));
        }
    }
    if abilities.sandboxes.is_some() {
        for case in [commands::ALL, files::ALL, lifecycle::ALL].into_iter().flatten() {
            let name = format!("conformance::{}::sandboxes::{}", provider, case.name);
            if (case.applies)(&abilities) {
                trials.push(Trial::test(name, move || run_sandbox_case::<S>(case)));
            }
        }
    }
    trials
}

fn run_case<S: Subject + 'static>(case: &'static Case, kind: Kind) -> Result<(), Failed> {
    runtime().block_on(async {
        let subject = Box::new(S::start(Purpose::Objects).await);
        let context = CaseContext::new(subject, S::abilities(), kind);
        let result = guarded((case.run)(&context)).await;
        context.clear().await;
        context.subject().end().await;
        finish(result)
    })
}

fn run_sandbox_case<S: Subject + 'static>(case: &'static SandboxCase) -> Result<(), Failed> {
    runtime().block_on(async {
        let subject = Box::new(S::start(Purpose::Sandboxes).await);
        let context = SandboxCaseContext::new(subject, S::abilities());
        let result = guarded((case.run)(&context)).await;
        context.clear().await;
        context.subject().end().await;
        finish(result)
    })
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// How a case ended: in time or not, or by a panic.
type Ending = Result<Result<(), tokio::time::error::Elapsed>, Box<dyn Any + Send>>;

/// Runs a case so that its objects can be removed however it ends.
async fn guarded(case: LocalBoxFuture<'_, ()>) -> Ending {
    AssertUnwindSafe(timeout(DEADLINE, case)).catch_unwind().await
}

fn finish(ending: Ending) -> Result<(), Failed> {
    match ending {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(format!("it did not end within {} s", DEADLINE.as_secs()).into()),
        Err(panic) => resume_unwind(panic),
    }
}
