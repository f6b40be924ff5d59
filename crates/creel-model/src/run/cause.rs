//! Causes: why a run did not continue, recorded once and never hidden by a symptom.
//!
//! The engine records them in `Drive::conclude`, recovery names that of a dead driver, and
//! [`RunState::cause`](super::RunState::cause) picks the decisive one: the first of the attempt.

use creel_sanitise::{Diagnostic, Masked};
use serde::{Deserialize, Serialize};

use crate::provider::UnknownName;

macro_rules! classes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, retryable: $retryable:literal, $action:literal;)+) => {
        /// The class of a cause.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum CauseClass {
            $($(#[$doc])* $variant,)+
        }

        impl CauseClass {
            /// All classes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name for scripts.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns whether another attempt may succeed with nothing changed.
            pub const fn is_retryable(self) -> bool {
                match self { $(Self::$variant => $retryable,)+ }
            }

            /// Returns what to do, in one sentence.
            pub const fn action(self) -> &'static str {
                match self { $(Self::$variant => $action,)+ }
            }
        }
    };
}

classes! {
    /// No sandbox could be created.
    ProvisionFailed = "provision_failed", retryable: true,
        "Check the provider with `creel doctor`, then try again.";
    /// A step of the bootstrap failed for which there is no more specific class.
    BootstrapFailed = "bootstrap_failed", retryable: true,
        "Read the step's tail with `creel show`, fix the step, then try again.";
    /// A required repository is not there as it should be.
    WorkspaceIncomplete = "workspace_incomplete", retryable: true,
        "Check the repository's address, ref and path in the workflow, and that the sandbox has git; then try again.";
    /// A credential is missing, or was refused.
    CredentialUnavailable = "credential_unavailable", retryable: false,
        "Set the credential that the workflow names, or renew it, then try again.";
    /// The agent program does not run. This is not the agent's fault.
    AgentLaunchFailed = "agent_launch_failed", retryable: false,
        "Install the agent program in the image or in a setup step; the agent itself did nothing wrong.";
    /// The agent kept calling a tool that is forbidden here.
    ToolPolicyLoop = "tool_policy_loop", retryable: false,
        "Allow the tool, or write in the task that the agent has to do without it.";
    /// The agent kept making the same failing call.
    ToolLoop = "tool_loop", retryable: true,
        "Read the failing call with `creel events`, then change the task or the workspace.";
    /// Nothing happened for too long.
    NoProgress = "no_progress", retryable: true,
        "Raise `limits.idle` if such a silence is normal, else try again.";
    /// The model did not answer in time.
    ModelTimeout = "model_timeout", retryable: true,
        "Configure a fallback model or raise the profile's timeouts, then try again.";
    /// The model's provider limits the request rate.
    ModelRateLimited = "model_rate_limited", retryable: true,
        "Wait for the limit to pass, or configure a fallback model.";
    /// The model's provider rejects the key.
    ModelAuth = "model_auth", retryable: false,
        "Check the provider's `api_key` in the workflow.";
    /// The quota at the model's provider is used up.
    ModelQuota = "model_quota", retryable: false,
        "Raise the quota at the model's provider, or configure a fallback model.";
    /// The model's provider cannot be reached.
    ModelUnreachable = "model_unreachable", retryable: true,
        "Check the provider's `base_url` and the sandbox's network, then try again.";
    /// The model's provider rejects the model's settings.
    ModelConfig = "model_config", retryable: false,
        "Check the model's name and settings in the workflow.";
    /// The conversation does not fit the model.
    ContextOverflow = "context_overflow", retryable: false,
        "Give the agent a smaller task, or a model with a larger context.";
    /// The sandbox vanished or died.
    SandboxLost = "sandbox_lost", retryable: true,
        "Check the provider with `creel doctor`, then try again from scratch.";
    /// The agent program ended with an error.
    AgentCrashed = "agent_crashed", retryable: true,
        "Read the end of its output with `creel events`, then try again.";
    /// The sandbox can no longer be reached.
    Offline = "offline", retryable: true,
        "Check the network to the provider, then try again.";
    /// A limit of the workflow was reached.
    BudgetExceeded = "budget_exceeded", retryable: false,
        "Raise the limit that the message names, if the work is worth it.";
    /// The lease ended before a user answered or the owner renewed it.
    LeaseExpired = "lease_expired", retryable: true,
        "Try again, with a longer `sandbox.lease` if it cannot be answered sooner.";
    /// A user cancelled the run.
    Cancelled = "cancelled", retryable: true,
        "Try again when you want it to go on.";
    /// The disk that holds creel's records is full.
    DiskFull = "disk_full", retryable: true,
        "Free some space on the disk that CREEL_HOME is on, then try again; what the run held has been released.";
    /// The driver of the run died, or could not write its records.
    HubError = "hub_error", retryable: true,
        "Try again; `creel reconcile` has released what was held.";
}

impl std::fmt::Display for CauseClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CauseClass {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        UnknownName::pick(text, "class", Self::ALL, Self::name)
    }
}

/// The cause why an attempt did not continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The class of the cause.
    pub class: CauseClass,
    /// What happened, in one sentence.
    pub message: Diagnostic,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    /// The step of the bootstrap in which it happened.
    pub step: Option<Masked>,
    /// The attempt in which it happened.
    pub attempt: u32,
}

impl Cause {
    /// Creates a cause that is as retryable as its class.
    pub fn new(class: CauseClass, message: Diagnostic, attempt: u32) -> Self {
        Self { class, message, retryable: class.is_retryable(), step: None, attempt }
    }

    /// Returns what to do, in one sentence.
    pub fn action(&self) -> &'static str {
        self.class.action()
    }
}

/// The causes of a run: the first, the latest, and a chain of limited length between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Causes(Vec<Cause>);

impl Causes {
    /// The maximum number of stored causes. Beyond it, causes in the middle are dropped.
    pub const MOST: usize = 8;

    /// Adds a cause after the others.
    ///
    /// The first cause of an attempt is never replaced, because later ones may be symptoms of it.
    pub fn latch(&mut self, cause: Cause) {
        if self.0.last() == Some(&cause) {
            return;
        }
        if self.0.len() == Self::MOST {
            self.0.remove(self.least_informative());
        }
        self.0.push(cause);
    }

    /// Returns the index of the least informative cause.
    ///
    /// That is the oldest one that follows another cause of the same attempt. If there is none, it
    /// is the second one. So the very first cause and the one of the newest attempt always stay.
    fn least_informative(&self) -> usize {
        let follows = |at: &usize| *at > 0 && self.0[at - 1].attempt == self.0[*at].attempt;
        (0..self.0.len()).find(follows).unwrap_or(1)
    }

    /// Returns the first cause of an attempt, which is the decisive one.
    pub fn first_of(&self, attempt: u32) -> Option<&Cause> {
        self.0.iter().find(|cause| cause.attempt == attempt)
    }

    /// Returns the very first cause.
    pub fn first(&self) -> Option<&Cause> {
        self.0.first()
    }

    /// Returns the latest cause.
    pub fn latest(&self) -> Option<&Cause> {
        self.0.last()
    }

    /// Returns all stored causes, oldest first.
    pub fn chain(&self) -> &[Cause] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(class: CauseClass, attempt: u32) -> Cause {
        Cause::new(class, Diagnostic::ours("so it was"), attempt)
    }

    #[test]
    fn every_class_is_found_by_its_name_and_has_a_remedy() {
        for class in CauseClass::ALL {
            assert_eq!(class.name().parse(), Ok(*class));
            assert_eq!(serde_json::to_value(class).unwrap(), class.name());
            assert!(class.action().ends_with('.'), "{class}");
        }
    }

    #[test]
    fn a_symptom_never_takes_the_place_of_the_first_cause() {
        let mut causes = Causes::default();
        causes.latch(cause(CauseClass::ModelTimeout, 1));
        causes.latch(cause(CauseClass::SandboxLost, 1));
        assert_eq!(causes.first_of(1).unwrap().class, CauseClass::ModelTimeout);
        assert_eq!(causes.latest().unwrap().class, CauseClass::SandboxLost);
    }

    #[test]
    fn a_long_chain_keeps_the_first_of_all_and_the_first_of_the_attempt() {
        let mut causes = Causes::default();
        causes.latch(cause(CauseClass::ProvisionFailed, 1));
        causes.latch(cause(CauseClass::ModelTimeout, 2));
        for class in CauseClass::ALL.iter().cycle().take(40) {
            causes.latch(cause(*class, 2));
        }
        assert_eq!(causes.chain().len(), Causes::MOST);
        assert_eq!(causes.first().unwrap().class, CauseClass::ProvisionFailed);
        assert_eq!(causes.first_of(2).unwrap().class, CauseClass::ModelTimeout);
    }

    #[test]
    fn the_same_cause_is_latched_once() {
        let mut causes = Causes::default();
        causes.latch(cause(CauseClass::Offline, 1));
        causes.latch(cause(CauseClass::Offline, 1));
        assert_eq!(causes.chain().len(), 1);
    }
}
