//! Runs the steps of the bootstrap, with limits, and records each before and after.

use std::sync::Arc;
use std::time::{Duration, Instant};

use creel_bridge::event::Stream;
use creel_bridge::exec::ExecEnding;
use creel_model::provider::{ErrorClass, ProviderError};
use creel_model::run::{CauseClass, RunEvent, Step, StepStatus};
use creel_sanitise::{Diagnostic, Masked, Masker};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::{info, warn};

use crate::sandbox::{Command, Finished, Sandbox};

use super::{Drive, Stopped};

/// The maximum number of output bytes to keep for the tail.
const TAIL_BYTES: usize = 4096;
/// The pause before the second try of a step. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// A step before it runs.
#[derive(Debug, Clone)]
pub(super) struct StepSpec {
    pub(super) name: String,
    pub(super) expected: Diagnostic,
    /// How long it may take.
    pub(super) limit: Duration,
    /// How long it may go without output.
    pub(super) silence: Option<Duration>,
    /// The maximum number of tries.
    pub(super) tries: u32,
    /// Whether the bootstrap continues if it fails.
    pub(super) optional: bool,
    /// The class of its failure.
    pub(super) class: CauseClass,
}

impl StepSpec {
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

/// The result of one try of a step.
#[derive(Debug, Clone)]
pub(super) struct StepResult {
    pub(super) found: Diagnostic,
    pub(super) exit_code: Option<i32>,
    pub(super) tail: Option<Diagnostic>,
    pub(super) verdict: StepVerdict,
}

/// What a result means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepVerdict {
    /// It is as expected.
    Passed,
    /// It is not as expected, but another try may help.
    Retryable,
    /// It is not as expected, and another try does not help. This class replaces that of the step.
    Permanent(CauseClass),
}

impl StepResult {
    pub(super) fn passed(found: Diagnostic) -> Self {
        Self { found, exit_code: None, tail: None, verdict: StepVerdict::Passed }
    }

    pub(super) fn retryable(found: Diagnostic) -> Self {
        Self { verdict: StepVerdict::Retryable, ..Self::passed(found) }
    }

    /// Returns whether the sandbox was lost.
    fn is_sandbox_lost(&self) -> bool {
        self.verdict == StepVerdict::Permanent(CauseClass::SandboxLost)
    }

    pub(super) fn permanent(class: CauseClass, found: Diagnostic) -> Self {
        Self { verdict: StepVerdict::Permanent(class), ..Self::passed(found) }
    }
}

/// A command that has run, with the end of its output.
#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) finished: Finished,
    /// The standard output. Complete if it is short.
    pub(super) output: Vec<u8>,
    /// The end of both streams, in the order of arrival.
    pub(super) mixed: Vec<u8>,
}

impl CommandOutput {
    /// Returns its exit code, if it ended with one.
    pub(super) fn code(&self) -> Option<i32> {
        match self.finished {
            Finished::Ended(ExecEnding::Code { code }) => Some(code),
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

    /// Describes how it ended.
    pub(super) fn found(&self, masker: &Masker) -> Diagnostic {
        match &self.finished {
            Finished::Ended(ExecEnding::Code { code: 0 }) => Diagnostic::ours("it succeeded"),
            Finished::Ended(ExecEnding::Code { code }) => {
                masker.diagnostic(&format!("exit code {code}"))
            }
            Finished::Ended(ExecEnding::Signal { signal }) => {
                masker.diagnostic(&format!("ended by signal {signal}"))
            }
            Finished::Ended(ExecEnding::TimedOut) => Diagnostic::ours("killed at its time limit"),
            Finished::Ended(ExecEnding::Silent) => {
                Diagnostic::ours("killed because it wrote nothing for too long")
            }
            Finished::NotStarted(reason) => masker.diagnostic(&format!("not started: {reason}")),
        }
    }

    /// Converts it into a result, which is good if the command succeeded.
    pub(super) fn result(&self, masker: &Masker) -> StepResult {
        let verdict = if self.is_success() { StepVerdict::Passed } else { StepVerdict::Retryable };
        let tail = masker.tail(&self.mixed);
        StepResult {
            found: self.found(masker),
            exit_code: self.code(),
            tail: Some(tail).filter(|tail| !tail.is_empty()),
            verdict,
        }
    }
}

/// Runs a command in a sandbox and keeps the end of its output.
pub(super) async fn run(
    sandbox: &dyn Sandbox,
    command: &Command,
) -> Result<CommandOutput, ProviderError> {
    let (mut output, mut mixed) = (Vec::new(), Vec::new());
    let mut on_output = |stream: Stream, bytes: &[u8]| {
        if stream == Stream::Output {
            append_tail(&mut output, bytes);
        }
        append_tail(&mut mixed, bytes);
    };
    let finished = sandbox.exec(command, &mut on_output).await?;
    Ok(CommandOutput { finished, output, mixed })
}

fn append_tail(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    if kept.len() > 2 * TAIL_BYTES {
        kept.drain(..kept.len() - TAIL_BYTES);
    }
}

/// Performs one try of a step that runs concurrently with others.
pub(super) type TryOnce =
    Box<dyn Fn() -> BoxFuture<'static, Result<StepResult, ProviderError>> + Send + Sync>;

impl Drive {
    /// Runs one step: calls `try_once` until the result is as expected or no tries are left.
    ///
    /// The step is recorded before the first try, and its result before the next step begins.
    pub(super) async fn step<F>(
        &mut self,
        plan: StepSpec,
        try_once: impl Fn() -> F + Send,
    ) -> Result<StepResult, Stopped>
    where
        F: Future<Output = Result<StepResult, ProviderError>> + Send,
    {
        let step = self.start_step(&plan).await?;
        let (step, result) = self.step_runner().work_through(step, &plan, try_once).await;
        self.end_step(&plan, step, result).await?
    }

    /// Runs steps that do not depend on each other, at most `most` at once.
    ///
    /// The steps begin in the given order, so the checklist lists them in that order. A failed step
    /// does not stop the others. Every outcome is recorded, and the outcomes are returned in the
    /// same order. Only a lost sandbox stops the steps early. Then the outcomes of the steps that
    /// did not begin are missing.
    pub(super) async fn steps_at_once(
        &mut self,
        steps: Vec<(StepSpec, TryOnce)>,
        most: usize,
    ) -> Result<Vec<Result<StepResult, Stopped>>, Stopped> {
        let (mut waiting, mut in_progress) = (steps.into_iter(), FuturesUnordered::new());
        let mut outcomes: Vec<Option<Result<StepResult, Stopped>>> = Vec::new();
        let mut is_lost = false;
        loop {
            while in_progress.len() < most && !is_lost {
                let Some((plan, try_once)) = waiting.next() else { break };
                let (index, step) = (outcomes.len(), self.start_step(&plan).await?);
                outcomes.push(None);
                let step_runner = self.step_runner();
                in_progress.push(async move {
                    let (step, result) = step_runner.work_through(step, &plan, try_once).await;
                    (index, plan, step, result)
                });
            }
            let Some((index, plan, step, result)) = in_progress.next().await else { break };
            is_lost |= result.is_sandbox_lost();
            outcomes[index] = Some(self.end_step(&plan, step, result).await?);
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    async fn start_step(&mut self, plan: &StepSpec) -> Result<Step, Stopped> {
        let step = begin(plan, self.masker.mask(&plan.name));
        self.record(RunEvent::StepStarted { step: step.clone() }).await?;
        info!(step = %step.step, "step begins");
        Ok(step)
    }

    /// Records the result of a step. Returns what it means for the bootstrap.
    async fn end_step(
        &mut self,
        plan: &StepSpec,
        step: Step,
        result: StepResult,
    ) -> Result<Result<StepResult, Stopped>, Stopped> {
        let status = step.status;
        self.record(RunEvent::StepEnded { step }).await?;
        Ok(match (result.verdict, status) {
            (StepVerdict::Passed, _) | (_, StepStatus::Tolerated) => Ok(result),
            (verdict, _) => Err(self.step_failed(plan, &result, verdict)),
        })
    }

    fn step_runner(&self) -> StepRunner {
        StepRunner { sandbox: self.sandbox.clone(), masker: self.masker.clone() }
    }

    fn step_failed(&self, plan: &StepSpec, result: &StepResult, verdict: StepVerdict) -> Stopped {
        let class = match verdict {
            StepVerdict::Permanent(class) => class,
            StepVerdict::Passed | StepVerdict::Retryable => plan.class,
        };
        let tail = result.tail.as_ref().map(Diagnostic::as_str).unwrap_or_default();
        let last_line = tail.lines().rev().find(|line| is_informative(line));
        let detail = last_line.map(|line| format!(" ({})", line.trim())).unwrap_or_default();
        let sentence = format!("step {} failed: {}{detail}", plan.name, result.found);
        let mut cause = self.cause(class, &sentence);
        cause.step = Some(self.masker.mask(&plan.name));
        // A step that is worth several tries is worth another attempt, whatever its class.
        cause.retryable |= verdict == StepVerdict::Retryable && plan.tries > 1;
        Stopped::Cause(cause)
    }
}

/// Runs steps without access to the run's records, so that several can run at once.
#[derive(Debug)]
struct StepRunner {
    sandbox: Option<Arc<dyn Sandbox>>,
    masker: Masker,
}

impl StepRunner {
    /// Tries a recorded step. Returns the finished step and the result of the last try.
    async fn work_through<F>(
        &self,
        mut step: Step,
        plan: &StepSpec,
        try_once: impl Fn() -> F + Send,
    ) -> (Step, StepResult)
    where
        F: Future<Output = Result<StepResult, ProviderError>> + Send,
    {
        let started_at = Instant::now();
        let (mut pause, mut last) = (FIRST_PAUSE, None);
        while step.tries < plan.tries.max(1) {
            if step.tries > 0 {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            step.tries += 1;
            let response = tokio::time::timeout(plan.limit + GRACE, try_once()).await;
            let result = match response {
                Ok(Ok(result)) => self.recheck(result).await,
                Ok(Err(error)) => self.check_after_error(&error).await,
                Err(_) => {
                    StepResult::retryable(Diagnostic::ours("no answer within its time limit"))
                }
            };
            let over = !matches!(result.verdict, StepVerdict::Retryable);
            last = Some(result);
            if over {
                break;
            }
        }
        let result =
            last.unwrap_or_else(|| StepResult::retryable(Diagnostic::ours("it was never tried")));
        finish(&mut step, plan, &result, started_at.elapsed());
        (step, result)
    }

    /// Checks the sandbox if a command did not end by itself, because the sandbox may have ended.
    async fn recheck(&self, result: StepResult) -> StepResult {
        let ended_by_itself =
            result.verdict != StepVerdict::Retryable || result.exit_code.is_some();
        if ended_by_itself { result } else { self.check_sandbox(result).await }
    }

    /// Checks the sandbox after it did not answer, because it may be gone.
    async fn check_after_error(&self, error: &ProviderError) -> StepResult {
        warn!(%error, "the sandbox did not answer");
        self.check_sandbox(StepResult::retryable(self.masker.diagnostic(&error.to_string()))).await
    }

    /// Returns a result unchanged, unless the sandbox does not answer a probe.
    async fn check_sandbox(&self, result: StepResult) -> StepResult {
        let Some(sandbox) = &self.sandbox else { return result };
        match sandbox.probe().await {
            Ok(()) => result,
            Err(error) if error.class == ErrorClass::Gone => StepResult::permanent(
                CauseClass::SandboxLost,
                Diagnostic::ours("the sandbox does not exist any more"),
            ),
            Err(error) => StepResult::permanent(
                CauseClass::SandboxLost,
                self.masker.diagnostic(&format!("the sandbox does not answer: {error}")),
            ),
        }
    }
}

/// Lines that git adds to many errors and that do not explain the failure.
const UNINFORMATIVE: [&str; 3] = [
    "fatal: Could not read from remote repository.",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
];

/// Returns whether a line of a tail explains the failure.
fn is_informative(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !UNINFORMATIVE.contains(&line)
}

/// How much longer than the limit of a step its response may take.
const GRACE: Duration = Duration::from_secs(30);

fn begin(plan: &StepSpec, name: Masked) -> Step {
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

fn finish(step: &mut Step, plan: &StepSpec, result: &StepResult, elapsed: Duration) {
    let lost = result.is_sandbox_lost();
    step.status = match result.verdict {
        StepVerdict::Passed => StepStatus::Passed,
        // A lost sandbox is never tolerated, even for an optional step.
        _ if plan.optional && !lost => StepStatus::Tolerated,
        _ => StepStatus::Failed,
    };
    step.found = Some(result.found.clone());
    step.exit_code = result.exit_code;
    step.tail.clone_from(&result.tail);
    step.seconds = Some((elapsed.as_secs_f64() * 1000.0).round() / 1000.0);
}
