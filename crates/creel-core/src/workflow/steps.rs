//! The checklist of a run, as far as its workflow tells it beforehand.

use super::{Repository, Resolved, RuntimeKind, Script};

/// What a step of the checklist is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// The sandbox answers.
    Sandbox,
    /// A script of the setup, by its number from zero.
    Setup(usize),
    /// The runtime has its version.
    Runtime,
    /// A plugin of the runtime, by its number from zero.
    Plugin(usize),
    /// The files of the workspace are written.
    Files,
    /// What the repositories are cloned with is at hand.
    Credentials,
    /// A repository is cloned, by its number from zero.
    Clone(usize),
    /// A repository is verified, by its number from zero.
    Verify(usize),
    /// What the agent may do is found out.
    Capabilities,
    /// The agent is proven to run.
    Agent,
}

/// A step of the checklist, before it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// What it is about.
    pub kind: StepKind,
    /// Its name; unique in the checklist.
    pub name: String,
    /// What should be found.
    pub expected: String,
    /// Whether the run goes on without it.
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
    /// Returns the steps of the checklist in their order; after the last one the agent starts,
    /// and never before.
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
        if !files.is_empty() {
            let expected = match files.len() {
                1 => "1 file is written".to_owned(),
                count => format!("{count} files are written"),
            };
            steps.push(PlannedStep::new(StepKind::Files, "files", expected));
        }
        if repositories.iter().any(|repository| repository.credential.is_some()) {
            let expected = "what repositories are cloned with is at hand";
            steps.push(PlannedStep::new(StepKind::Credentials, "credentials", expected));
        }
        steps.extend(repositories.iter().enumerate().map(clone_step));
        steps.extend(repositories.iter().enumerate().map(verify_step));
        steps
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
