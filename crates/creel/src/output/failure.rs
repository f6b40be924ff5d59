//! Failures: what went wrong, and the next command to type.

use std::error::Error;

use creel_core::cleanup::CleanupError;
use creel_core::config::ConfigError;
use creel_core::pipeline::SavedPlanError;
use creel_core::plan::{CapExceeded, PlanFileError};
use creel_core::recipe::RecipeError;
use creel_core::scope::{AcquireError, ScopeError};
use creel_core::select::InvalidSelector;
use creel_ledger::event_log::RecordsError;
use creel_ledger::{LedgerError, OnOwnerDeath};
use creel_model::backend::BackendError;
use creel_model::failure::Code;
use creel_model::names;
use creel_model::provider::{ProviderError, UnknownName};
use creel_run::commands::RunCommandError;
use creel_run::engine::DriveError;
use creel_run::workflow::WorkflowError;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::{Exit, Printer};

/// An error as the user sees it.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) exit: Exit,
    message: String,
    causes: Vec<String>,
    hints: Vec<String>,
    /// Whether the JSON output has been printed already.
    has_output: bool,
}

#[derive(Serialize)]
struct FailureJson<'a> {
    version: u32,
    error: FailureBody<'a>,
}

#[derive(Serialize)]
struct FailureBody<'a> {
    code: &'static str,
    message: &'a str,
    causes: &'a [String],
    hints: &'a [String],
}

impl Failure {
    pub(crate) fn new(code: Code, exit: Exit, message: impl Into<String>) -> Self {
        Self {
            code,
            exit,
            message: message.into(),
            causes: Vec::new(),
            hints: Vec::new(),
            has_output: false,
        }
    }

    /// Creates the failure for an invalid command line.
    pub(crate) fn usage(message: &str) -> Self {
        Self::new(Code::Usage, Exit::Usage, message)
    }

    /// Creates the failure for an internal error.
    pub(crate) fn internal(message: &str, source: &dyn Error) -> Self {
        Self::new(Code::Internal, Exit::Internal, message).because(source)
    }

    /// Creates the failure for a file of the user that cannot be used.
    pub(crate) fn file(message: &str, source: &dyn Error) -> Self {
        Self::new(Code::File, Exit::Usage, message).because(source)
    }

    /// Returns the message with its causes on one line.
    pub(crate) fn sentence(&self) -> String {
        let parts = std::iter::once(&self.message).chain(&self.causes);
        parts.map(String::as_str).collect::<Vec<_>>().join(": ")
    }

    /// Sets another exit code.
    pub(crate) fn exiting(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Adds a hint about what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Adds another failure of the same command.
    ///
    /// The message stays that of this failure, and the hints of the other one are added. The exit
    /// code is the more important of the two.
    #[must_use]
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.exit = self.exit.and(other.exit);
        let pointers = other.hints.iter().map(|hint| format!("{}: {hint}", other.message));
        self.hints.extend(pointers);
        self
    }

    /// The failure of a command that released something but could not record it.
    pub(crate) fn incomplete_audit(count: usize) -> Self {
        Self::new(Code::AuditIncomplete, Exit::Unverified, incomplete_audit(count))
            .hint("free some space, then: creel reconcile")
    }

    /// Marks that stdout has its one line of JSON already.
    #[must_use]
    pub(crate) fn after_output(mut self) -> Self {
        self.has_output = true;
        self
    }

    /// Adds the chain of causes.
    #[must_use]
    pub(crate) fn because(mut self, source: &dyn Error) -> Self {
        self.causes.push(source.to_string());
        let mut next = source.source();
        while let Some(cause) = next {
            self.causes.push(cause.to_string());
            next = cause.source();
        }
        self
    }

    /// Creates a failure from an error and its causes.
    fn of(code: Code, exit: Exit, error: &dyn Error) -> Self {
        let failure = Self::new(code, exit, error.to_string());
        match error.source() {
            Some(source) => failure.because(source),
            None => failure,
        }
    }

    /// Prints it to stderr for people, and to stdout as JSON if requested.
    pub(crate) fn show(&self, printer: &Printer) {
        let message = in_view(&self.message);
        printer.warn(&format!("{}: {message}", format!("error[{}]", self.code).red().bold()));
        for cause in &self.causes {
            printer.warn(&format!("  because: {}", in_view(cause)));
        }
        if !self.hints.is_empty() {
            printer.warn("");
        }
        for hint in &self.hints {
            printer.warn(&format!("{}: {}", "hint".cyan(), in_view(hint)));
        }
        if printer.json && !self.has_output {
            let error = FailureBody {
                code: self.code.name(),
                message: &self.message,
                causes: &self.causes,
                hints: &self.hints,
            };
            printer.json(&FailureJson { version: 1, error });
        }
    }
}

/// Returns a text in which foreign names cannot control a terminal.
///
/// The line breaks in a list of issues are ours and stay.
fn in_view(text: &str) -> String {
    text.split('\n').map(names::visible).collect::<Vec<_>>().join("\n")
}

/// Says how many changes are not on record.
pub(crate) fn incomplete_audit(count: usize) -> String {
    format!("audit incomplete: {count} changes are not on record: the disk is full")
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        let (code, hint) = match &error {
            LedgerError::Home { .. } => {
                (Code::Home, "set CREEL_HOME to a directory that this user may write")
            }
            LedgerError::Locked { .. } => (
                Code::LedgerLocked,
                "close what holds it (fuser on the file names it), then try again",
            ),
            LedgerError::ReadOnly { .. } => (
                Code::LedgerReadOnly,
                "make it writable for this user, or set CREEL_HOME elsewhere",
            ),
            LedgerError::DiskFull { .. } => (
                Code::LedgerDiskFull,
                "free space on the disk that holds CREEL_HOME; creel reconcile removes what dead \
                 owners left there",
            ),
            LedgerError::Corrupt { .. } => {
                (Code::LedgerCorrupt, "creel ledger rebuild shows what can be put on record again")
            }
            LedgerError::Vanished { .. } => (
                Code::LedgerVanished,
                "put a copy back, or: creel ledger rebuild shows what can be put on record again",
            ),
            LedgerError::OtherLedger { .. } => {
                (Code::LedgerOther, "put the right file back: creel explain CR0017")
            }
            LedgerError::NewerSchema { .. } => {
                (Code::LedgerNewer, "use that newer creel, or set CREEL_HOME elsewhere")
            }
            LedgerError::Unknown { .. } => (Code::NoSuch, "creel ledger --all lists every record"),
            LedgerError::UnknownRun { .. } => (Code::NoRun, "creel runs lists every run"),
            LedgerError::NotOwner { .. } => {
                (Code::RunDrivenElsewhere, "creel show RUN shows who drives it now")
            }
            LedgerError::Illegal { .. } | LedgerError::Database { .. } => {
                (Code::Internal, "creel ledger check shows whether the ledger is sound")
            }
        };
        let exit = match code {
            Code::Home | Code::LedgerNewer | Code::LedgerOther | Code::NoSuch | Code::NoRun => {
                Exit::Usage
            }
            Code::RunDrivenElsewhere => Exit::Refused,
            _ => Exit::Internal,
        };
        Self::of(code, exit, &error).hint(hint)
    }
}

impl From<RecordsError> for Failure {
    fn from(error: RecordsError) -> Self {
        match error {
            RecordsError::Store(error) => error.into(),
            RecordsError::RowBehind { source, .. } => source.into(),
            RecordsError::Overtaken { .. } => {
                Self::of(Code::RunDrivenElsewhere, Exit::Refused, &error)
                    .hint("creel show RUN shows who drives it now")
            }
            RecordsError::Illegal { .. } | RecordsError::Incomplete { .. } => {
                Self::of(Code::RunRecords, Exit::Internal, &error).hint("creel explain CR0065")
            }
        }
    }
}

impl From<DriveError> for Failure {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Journal(error) => error.into(),
            DriveError::Ledger(error) => error.into(),
        }
    }
}

impl From<RunCommandError> for Failure {
    fn from(error: RunCommandError) -> Self {
        let (code, hint) = match error {
            RunCommandError::Ledger(error) => return error.into(),
            RunCommandError::Text(_) => {
                return Self::of(Code::File, Exit::Usage, &error)
                    .hint("check the free space and permissions of CREEL_HOME: creel doctor");
            }
            RunCommandError::Over { .. } => (Code::RunOver, "creel show RUN shows how it ended"),
            RunCommandError::OwnerDead { on_owner_death: OnOwnerDeath::Release, .. } => {
                (Code::DriverDead, "creel reconcile releases what it held and closes the run")
            }
            RunCommandError::OwnerDead { on_owner_death: OnOwnerDeath::Hold, .. } => (
                Code::DriverDead,
                "creel resume RUN continues it; otherwise it ends with its lease",
            ),
        };
        Self::of(code, Exit::Refused, &error).hint(hint)
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        let (exit, hint) = match error.code() {
            Code::Denied => (Exit::Provider, "creel explain CR0021 shows how to give access"),
            Code::Unreachable => {
                (Exit::Provider, "creel doctor shows what was tried and what answered")
            }
            _ => (Exit::Unverified, "creel explain CR0024"),
        };
        Self::of(error.code(), exit, &error).hint(hint)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::of(Code::Settings, Exit::Usage, &error)
            .hint("creel config defaults prints every setting with its documentation")
    }
}

impl From<RecipeError> for Failure {
    fn from(error: RecipeError) -> Self {
        let code = match error {
            RecipeError::Unknown { .. } => Code::Usage,
            RecipeError::Unreadable { .. } => Code::File,
            RecipeError::Invalid { .. } => Code::Settings,
        };
        let failure = Self::of(code, Exit::Usage, &error);
        match error {
            RecipeError::Unknown { .. } => failure.hint("creel recipes lists them"),
            RecipeError::Unreadable { .. } | RecipeError::Invalid { .. } => failure.hint(
                "correct the file or move it away; docs/reference/recipes.md documents every key",
            ),
        }
    }
}

impl From<WorkflowError> for Failure {
    fn from(error: WorkflowError) -> Self {
        let failure = match &error {
            WorkflowError::Unreadable { .. } => Self::of(Code::File, Exit::Usage, &error),
            WorkflowError::Invalid { problems, .. } if problems.len() == 1 => {
                Self::of(Code::Workflow, Exit::Usage, &error)
            }
            WorkflowError::Invalid { name, problems, more } => {
                let message = format!("{name} has {} mistakes", problems.len() + more);
                let mut failure = Self::new(Code::Workflow, Exit::Usage, message);
                failure.causes = problems.iter().map(|problem| problem.in_file(name)).collect();
                failure
            }
        };
        failure.hint(
            "docs/reference/workflow.md documents every key; examples/ has some to start from",
        )
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Invalid { code, error, hint } => {
                Self::of(code, Exit::Usage, &*error).hint(hint)
            }
            BackendError::NotConfigured { message, hint } => {
                Self::new(Code::NotConfigured, Exit::Provider, message).hint(hint)
            }
            BackendError::Settings(error) => Self::of(Code::Settings, Exit::Usage, &error)
                .hint("creel config defaults prints every setting with its documentation"),
            BackendError::Provider(error) => error.into(),
        }
    }
}

impl From<InvalidSelector> for Failure {
    fn from(error: InvalidSelector) -> Self {
        Self::of(Code::Usage, Exit::Usage, &error).hint("creel ls shows what there is to select")
    }
}

impl From<UnknownName> for Failure {
    fn from(error: UnknownName) -> Self {
        Self::of(Code::Usage, Exit::Usage, &error)
    }
}

impl From<PlanFileError> for Failure {
    fn from(error: PlanFileError) -> Self {
        Self::of(Code::File, Exit::Usage, &error).hint("make a plan: creel sweep … --plan-out FILE")
    }
}

impl From<SavedPlanError> for Failure {
    fn from(error: SavedPlanError) -> Self {
        let message = error.to_string();
        match error {
            SavedPlanError::Provider(error) => error.into(),
            SavedPlanError::OtherProvider { hint, .. } => {
                Self::new(Code::OtherEngine, Exit::Refused, message)
                    .hint(hint)
                    .hint("or make a new plan")
            }
        }
    }
}

impl From<CapExceeded> for Failure {
    fn from(error: CapExceeded) -> Self {
        Self::of(Code::Cap, Exit::Refused, &error)
            .hint("review the plan without --apply; if it is right, raise --max or --max-percent")
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Ledger(error) => {
                let mut failure = Self::from(error);
                failure.causes.insert(0, std::mem::take(&mut failure.message));
                failure.message =
                    "nothing was created, because the ledger could not record it".to_owned();
                failure
            }
            AcquireError::Provider(error) => error.into(),
            AcquireError::Absent { .. } => {
                Self::of(Code::NoSuch, Exit::Usage, &error).hint("creel ls shows what there is")
            }
        }
    }
}

impl From<ScopeError> for Failure {
    fn from(error: ScopeError) -> Self {
        match error {
            ScopeError::Acquire(error) => error.into(),
            other => Self::of(Code::NotGone, Exit::Unverified, &other).hint("creel reconcile"),
        }
    }
}

impl From<CleanupError> for Failure {
    fn from(error: CleanupError) -> Self {
        match error {
            CleanupError::Provider(error) => error.into(),
            CleanupError::Ledger(error) => error.into(),
        }
    }
}
