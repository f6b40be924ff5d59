//! The checklist of a run, as far as its workflow determines it in advance.

use std::collections::BTreeMap;

use super::{Repository, Resolved, RuntimeKind, Script};

/// The kind of a step of the checklist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// The sandbox answers.
    Sandbox,
    /// A script of the setup, by its index.
    Setup(usize),
    /// The runtime has the expected version.
    Runtime,
    /// A plugin of the runtime, by its index.
    Plugin(usize),
    /// The files of the workspace are written.
    Files,
    /// A credential for repositories is available.
    Credential,
    /// A repository is cloned, by its index.
    Clone(usize),
    /// A repository is verified, by its index.
    Verify(usize),
    /// The capabilities of the agent are determined.
    Capabilities,
    /// The agent has been proven to run.
    Agent,
}

/// A step of the checklist before it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// The kind of the step.
    pub kind: StepKind,
    /// Its name, unique in the checklist.
    pub name: String,
    /// The expected result.
    pub expected: String,
    /// Whether the run continues if it fails.
    pub optional: bool,
}

impl PlannedStep {
    fn new(kind: StepKind, name: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { kind, name: name.into(), expected: expected.into(), optional: false }
    }

    fn optional(self, optional: bool) -> Self {
        Self { optional, ..self }
    }
}

impl Resolved {
    /// Returns the steps of the checklist in order. The agent starts only after the last one.
    pub fn steps(&self) -> Vec<PlannedStep> {
        let mut steps = vec![PlannedStep::new(StepKind::Sandbox, "sandbox", "it runs a program")];
        steps.extend(self.setup.iter().enumerate().map(setup_step));
        steps.extend(self.runtime_steps());
        steps.extend(self.workspace_steps());
        let probed = "what the agent may do is known";
        steps.push(PlannedStep::new(StepKind::Capabilities, "capabilities", probed));
        steps.push(PlannedStep::new(StepKind::Agent, "agent", self.agent_proof()));
        steps
    }

    fn runtime_steps(&self) -> impl Iterator<Item = PlannedStep> {
        let version = self.runtime.version.iter();
        let version = version.map(|version| {
            PlannedStep::new(StepKind::Runtime, "runtime", format!("version {version}"))
        });
        let plugins = self.runtime.plugins.iter().enumerate().map(|(number, plugin)| {
            let name = format!("plugin {plugin}");
            PlannedStep::new(StepKind::Plugin(number), name, "it is installed")
        });
        version.chain(plugins)
    }

    fn workspace_steps(&self) -> Vec<PlannedStep> {
        let mut steps = Vec::new();
        let (files, repositories) = (&self.workspace.files, &self.workspace.repositories);
        let expected = match files.len() {
            0 => "the directory".to_owned(),
            1 => "the directory with 1 file".to_owned(),
            count => format!("the directory with {count} files"),
        };
        steps.push(PlannedStep::new(StepKind::Files, "workspace", expected));
        steps.extend(self.used_credentials().into_iter().map(|(name, required)| {
            let step = PlannedStep::new(
                StepKind::Credential,
                format!("credential {name}"),
                "it is available",
            );
            step.optional(!required)
        }));
        steps.extend(repositories.iter().enumerate().map(clone_step));
        steps.extend(repositories.iter().enumerate().map(verify_step));
        steps
    }

    /// Returns the credentials that repositories use, and whether a required repository uses them.
    pub fn used_credentials(&self) -> BTreeMap<String, bool> {
        let mut used = BTreeMap::new();
        for repository in &self.workspace.repositories {
            if let Some(name) = &repository.credential {
                *used.entry(name.clone()).or_insert(false) |= repository.required;
            }
        }
        used
    }

    fn agent_proof(&self) -> String {
        let RuntimeKind::Command { command, .. } = &self.runtime.kind;
        match (&self.runtime.check, command.first()) {
            (Some(check), _) => format!("`{}` runs", check.join(" ")),
            (None, Some(program)) => format!("`{program}` runs"),
            (None, None) => "it runs".to_owned(),
        }
    }
}

fn setup_step((number, script): (usize, &Script)) -> PlannedStep {
    let name = format!("setup {}", script.name);
    PlannedStep::new(StepKind::Setup(number), name, "exit code 0").optional(script.optional)
}

fn clone_step((number, repository): (usize, &Repository)) -> PlannedStep {
    let name = format!("clone {}", repository.path);
    PlannedStep::new(StepKind::Clone(number), name, "exit code 0").optional(!repository.required)
}

fn verify_step((number, repository): (usize, &Repository)) -> PlannedStep {
    let name = format!("verify {}", repository.path);
    let expected = match &repository.reference {
        Some(reference) => format!("the path, `.git`, HEAD at `{reference}`"),
        None => "the path, `.git`, a HEAD".to_owned(),
    };
    PlannedStep::new(StepKind::Verify(number), name, expected).optional(!repository.required)
}
