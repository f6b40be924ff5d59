//! How a step of the bootstrap is worked through: recorded before and after, with limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use creel_bridge::event::Stream;
use creel_bridge::exec::Ending;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::{info, warn};

use crate::provider::{ErrorClass, ProviderError};
use crate::run::{CauseClass, RunEvent, Step, StepStatus};
use crate::sandbox::{Command, Finished, Sandbox};
use crate::sanitise::{Diagnostic, Masked, Masker};

use super::{Drive, Stopped};

/// How much of what a command writes is kept for its tail.
const KEPT_OUTPUT: usize = 4096;
/// The pause before a step is tried again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// A step before it is worked on.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) expected: Diagnostic,
    /// How long it may take.
    pub(super) limit: Duration,
    /// How long it may say nothing.
    pub(super) silence: Option<Duration>,
    /// How often it is tried.
    pub(super) tries: u32,
    /// Whether the bootstrap goes on without it.
    pub(super) optional: bool,
    /// What a failure of it is called.
    pub(super) class: CauseClass,
}

impl Plan {
    /// Plans a step that is tried once and must pass.
    pub(super) fn new(name: impl Into<String>, expected: Diagnostic, limit: Duration) -> Self {
        Self {
            name: name.into(),
            expected,
            limit,
            silence: None,
            tries: 1,
            optional: false,
            class: CauseClass::BootstrapFailed,
        }
    }
}

/// What a try of a step showed.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) found: Diagnostic,
    pub(super) exit_code: Option<i32>,
    pub(super) tail: Option<Diagnostic>,
    pub(super) verdict: Verdict,
}

/// What a look means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as expected.
    Good,
    /// It is not; another try may help.
    Bad,
    /// It is not, and that is called so whatever the step; another try does not help.
    Hopeless(CauseClass),
}

impl Look {
    pub(super) fn good(found: Diagnostic) -> Self {
        Self { found, exit_code: None, tail: None, verdict: Verdict::Good }
    }

    pub(super) fn bad(found: Diagnostic) -> Self {
        Self { verdict: Verdict::Bad, ..Self::good(found) }
    }

    /// Returns whether the sandbox was found to be gone.
    fn is_sandbox_lost(&self) -> bool {
        self.verdict == Verdict::Hopeless(CauseClass::SandboxLost)
    }

    pub(super) fn hopeless(class: CauseClass, found: Diagnostic) -> Self {
        Self { verdict: Verdict::Hopeless(class), ..Self::good(found) }
    }
}

/// A command that has run, with the end of what it wrote.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) finished: Finished,
    /// The standard output, whole if it is short.
    pub(super) output: Vec<u8>,
    /// The end of both streams as they came.
    pub(super) mixed: Vec<u8>,
}

impl Ran {
    /// Returns its exit code, if it ended with one.
    pub(super) fn code(&self) -> Option<i32> {
        match self.finished {
            Finished::Ended(Ending::Code { code }) => Some(code),
            _ => None,
        }
    }

    pub(super) fn is_success(&self) -> bool {
        self.code() == Some(0)
    }

    /// Returns the standard output as one line of text.
    pub(super) fn line(&self) -> String {
        String::from_utf8_lossy(&self.output).trim().to_owned()
    }

    /// Says how it ended.
    pub(super) fn found(&self, masker: &Masker) -> Diagnostic {
        match &self.finished {
            Finished::Ended(Ending::Code { code: 0 }) => Diagnostic::ours("it succeeded"),
            Finished::Ended(Ending::Code { code }) => {
                masker.diagnostic(&format!("exit code {code}"))
            }
            Finished::Ended(Ending::Signal { signal }) => {
                masker.diagnostic(&format!("ended by signal {signal}"))
            }
            Finished::Ended(Ending::TimedOut) => Diagnostic::ours("killed at its time limit"),
            Finished::Ended(Ending::Silent) => {
                Diagnostic::ours("killed because it said nothing for too long")
            }
            Finished::NotStarted(reason) => masker.diagnostic(&format!("not started: {reason}")),
        }
    }

    /// Turns it into a look, good if it succeeded.
    pub(super) fn look(&self, masker: &Masker) -> Look {
        let verdict = if self.is_success() { Verdict::Good } else { Verdict::Bad };
        let tail = masker.tail(&self.mixed);
        Look {
            found: self.found(masker),
            exit_code: self.code(),
            tail: Some(tail).filter(|tail| !tail.is_empty()),
            verdict,
        }
    }
}

/// Runs a command in a sandbox and keeps the end of what it writes.
pub(super) async fn run(sandbox: &dyn Sandbox, command: &Command) -> Result<Ran, ProviderError> {
    let (mut output, mut mixed) = (Vec::new(), Vec::new());
    let mut listen = |stream: Stream, bytes: &[u8]| {
        if stream == Stream::Output {
            keep_end(&mut output, bytes);
        }
        keep_end(&mut mixed, bytes);
    };
    let finished = sandbox.exec(command, &mut listen).await?;
    Ok(Ran { finished, output, mixed })
}

fn keep_end(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    if kept.len() > 2 * KEPT_OUTPUT {
        kept.drain(..kept.len() - KEPT_OUTPUT);
    }
}

/// How a step that is worked on beside others is tried.
pub(super) type TryOnce =
    Box<dyn Fn() -> BoxFuture<'static, Result<Look, ProviderError>> + Send + Sync>;

impl Drive {
    /// Works through one step: `try_once` is called until it is as expected or the tries are over.
    ///
    /// The step is on record before the first try, and its result before the next step begins.
    pub(super) async fn step<F>(
        &mut self,
        plan: Plan,
        try_once: impl Fn() -> F + Send,
    ) -> Result<Look, Stopped>
    where
        F: Future<Output = Result<Look, ProviderError>> + Send,
    {
        let step = self.start_step(&plan).await?;
        let (step, look) = self.witness().work_through(step, &plan, try_once).await;
        self.end_step(&plan, step, look).await?
    }

    /// Works through steps that do not depend on each other, at most so many at once.
    ///
    /// They begin in the given order, so the checklist has them in it. One that fails does not
    /// stop the others: every one has its outcome on record, and they are returned in the same
    /// order. Only a sandbox that is lost ends it; what was not begun then is missing.
    pub(super) async fn steps_at_once(
        &mut self,
        steps: Vec<(Plan, TryOnce)>,
        most: usize,
    ) -> Result<Vec<Result<Look, Stopped>>, Stopped> {
        let (mut waiting, mut under_way) = (steps.into_iter(), FuturesUnordered::new());
        let mut outcomes: Vec<Option<Result<Look, Stopped>>> = Vec::new();
        let mut is_lost = false;
        loop {
            while under_way.len() < most && !is_lost {
                let Some((plan, try_once)) = waiting.next() else { break };
                let (index, step) = (outcomes.len(), self.start_step(&plan).await?);
                outcomes.push(None);
                let witness = self.witness();
                under_way.push(async move {
                    let (step, look) = witness.work_through(step, &plan, try_once).await;
                    (index, plan, step, look)
                });
            }
            let Some((index, plan, step, look)) = under_way.next().await else { break };
            is_lost |= look.is_sandbox_lost();
            outcomes[index] = Some(self.end_step(&plan, step, look).await?);
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    async fn start_step(&mut self, plan: &Plan) -> Result<Step, Stopped> {
        let step = begin(plan, self.masker.mask(&plan.name));
        self.record(RunEvent::StepStarted { step: step.clone() }).await?;
        info!(step = %step.step, "step begins");
        Ok(step)
    }

    /// Records the result of a step; returns what it means for the bootstrap.
    async fn end_step(
        &mut self,
        plan: &Plan,
        step: Step,
        look: Look,
    ) -> Result<Result<Look, Stopped>, Stopped> {
        let status = step.status;
        self.record(RunEvent::StepEnded { step }).await?;
        Ok(match (look.verdict, status) {
            (Verdict::Good, _) | (_, StepStatus::Tolerated) => Ok(look),
            (verdict, _) => Err(self.step_failed(plan, &look, verdict)),
        })
    }

    fn witness(&self) -> Witness {
        Witness { sandbox: self.sandbox.clone(), masker: self.masker.clone() }
    }

    fn step_failed(&self, plan: &Plan, look: &Look, verdict: Verdict) -> Stopped {
        let class = match verdict {
            Verdict::Hopeless(class) => class,
            Verdict::Good | Verdict::Bad => plan.class,
        };
        let tail = look.tail.as_ref().map(Diagnostic::as_str).unwrap_or_default();
        let last_line = tail.lines().rev().find(|line| says_something(line));
        let detail = last_line.map(|line| format!(" ({})", line.trim())).unwrap_or_default();
        let sentence = format!("step {} failed: {}{detail}", plan.name, look.found);
        let mut cause = self.cause(class, &sentence);
        cause.step = Some(self.masker.mask(&plan.name));
        // What was worth several tries is worth another attempt, whatever its class.
        cause.retryable |= verdict == Verdict::Bad && plan.tries > 1;
        Stopped::Cause(cause)
    }
}

/// Works through steps without the run's records, so that several can be under way.
#[derive(Debug)]
struct Witness {
    sandbox: Option<Arc<dyn Sandbox>>,
    masker: Masker,
}

impl Witness {
    /// Tries a step that is on record; returns it as it ended, with what the last try showed.
    async fn work_through<F>(
        &self,
        mut step: Step,
        plan: &Plan,
        try_once: impl Fn() -> F + Send,
    ) -> (Step, Look)
    where
        F: Future<Output = Result<Look, ProviderError>> + Send,
    {
        let started_at = Instant::now();
        let (mut pause, mut last) = (FIRST_PAUSE, None);
        while step.tries < plan.tries.max(1) {
            if step.tries > 0 {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            step.tries += 1;
            let answer = tokio::time::timeout(plan.limit + GRACE, try_once()).await;
            let look = match answer {
                Ok(Ok(look)) => self.doubted(look).await,
                Ok(Err(error)) => self.unanswered(&error).await,
                Err(_) => Look::bad(Diagnostic::ours("no answer within its time limit")),
            };
            let over = !matches!(look.verdict, Verdict::Bad);
            last = Some(look);
            if over {
                break;
            }
        }
        let look = last.unwrap_or_else(|| Look::bad(Diagnostic::ours("it was never tried")));
        finish(&mut step, plan, &look, started_at.elapsed());
        (step, look)
    }

    /// Looks behind a command that did not end by itself: its sandbox may have ended with it.
    async fn doubted(&self, look: Look) -> Look {
        let ended_by_itself = look.verdict != Verdict::Bad || look.exit_code.is_some();
        if ended_by_itself { look } else { self.behind(look).await }
    }

    /// Finds out what a sandbox that did not answer means: it may be gone.
    async fn unanswered(&self, error: &ProviderError) -> Look {
        warn!(%error, "the sandbox did not answer");
        self.behind(Look::bad(self.masker.diagnostic(&error.to_string()))).await
    }

    /// Returns a look as it is, unless the sandbox shows no sign of life.
    async fn behind(&self, look: Look) -> Look {
        let Some(sandbox) = &self.sandbox else { return look };
        match sandbox.probe().await {
            Ok(()) => look,
            Err(error) if error.class == ErrorClass::Gone => Look::hopeless(
                CauseClass::SandboxLost,
                Diagnostic::ours("the sandbox does not exist any more"),
            ),
            Err(error) => Look::hopeless(
                CauseClass::SandboxLost,
                self.masker.diagnostic(&format!("the sandbox does not answer: {error}")),
            ),
        }
    }
}

/// What git adds to whatever went wrong, in these words or in a part of them.
const NO_NEWS: [&str; 3] = [
    "fatal: Could not read from remote repository.",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
];

/// Returns whether a line of a tail says what went wrong.
fn says_something(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !NO_NEWS.contains(&line)
}

/// How much longer than a step its answer may take.
const GRACE: Duration = Duration::from_secs(30);

fn begin(plan: &Plan, name: Masked) -> Step {
    Step {
        step: name,
        status: StepStatus::Running,
        expected: plan.expected.clone(),
        found: None,
        exit_code: None,
        seconds: None,
        tries: 0,
        inactivity_limit: plan.silence.map(|limit| limit.as_secs_f64()),
        hard_limit: plan.limit.as_secs_f64(),
        tail: None,
    }
}

fn finish(step: &mut Step, plan: &Plan, look: &Look, took: Duration) {
    let lost = look.is_sandbox_lost();
    step.status = match look.verdict {
        Verdict::Good => StepStatus::Passed,
        // Nothing is optional in a sandbox that is not there.
        _ if plan.optional && !lost => StepStatus::Tolerated,
        _ => StepStatus::Failed,
    };
    step.found = Some(look.found.clone());
    step.exit_code = look.exit_code;
    step.tail.clone_from(&look.tail);
    step.seconds = Some((took.as_secs_f64() * 1000.0).round() / 1000.0);
}
