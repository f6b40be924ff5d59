//! Describes what a workflow would do: for people, and as one line of JSON.
//!
//! Values from the environment count as secrets and are masked, as are the values of the sandbox's
//! variables and the contents of files. Of prompts only the number is shown.

use std::fmt;
use std::time::Duration;

use creel_model::backend::Backend;
use creel_model::duration;
use creel_model::provider::{Kind, ProviderName};
use creel_run::workflow::{
    Credential, Model, PromptBy, Repository, Resolved, RuntimeKind, SettingsMasker, Workflow,
};
use serde::Serialize;

use crate::backends::BACKENDS;

/// The format that scripts rely on; documented in `docs/reference/workflow.md`.
#[derive(Debug, Serialize)]
pub(super) struct RunPlan {
    version: u32,
    name: String,
    inputs: Vec<String>,
    sandbox: PlannedSandbox,
    workspace: WorkspacePlan,
    credentials: Vec<CredentialPlan>,
    checklist: Vec<StepPlan>,
    runtime: RuntimePlan,
    model: Option<ModelPlan>,
    turns: usize,
    limits: LimitsPlan,
    pause_after_turns: Option<u32>,
    teardown: Vec<String>,
    given_back: Vec<Kind>,
    keep_on_failure_seconds: f64,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PlannedSandbox {
    provider: ProviderName,
    isolation: &'static str,
    image: Option<String>,
    snapshot: Option<String>,
    lease_seconds: f64,
    env: Vec<String>,
    cpus: Option<f64>,
    memory: Option<u64>,
    disk: Option<u64>,
    network: Option<String>,
}

#[derive(Debug, Serialize)]
struct WorkspacePlan {
    path: String,
    files: Vec<String>,
    repositories: Vec<RepositoryPlan>,
}

#[derive(Debug, Serialize)]
struct RepositoryPlan {
    url: String,
    path: String,
    #[serde(rename = "ref")]
    reference: Option<String>,
    required: bool,
    credential: Option<String>,
}

#[derive(Debug, Serialize)]
struct CredentialPlan {
    name: String,
    kind: &'static str,
    missing: Option<String>,
}

#[derive(Debug, Serialize)]
struct StepPlan {
    step: String,
    expected: String,
    optional: bool,
}

#[derive(Debug, Serialize)]
struct RuntimePlan {
    kind: &'static str,
    command: Vec<String>,
    prompt: &'static str,
    version: Option<String>,
    plugins: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ModelPlan {
    primary: String,
    fallbacks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LimitsPlan {
    turns: Option<u32>,
    wall_seconds: Option<f64>,
    idle_seconds: Option<f64>,
    turn_seconds: Option<f64>,
}

fn mask_option(masker: &SettingsMasker<'_>, text: Option<&String>) -> Option<String> {
    text.map(|text| masker.mask(text))
}

fn mask_all<'a>(
    masker: &SettingsMasker<'_>,
    texts: impl IntoIterator<Item = &'a String>,
) -> Vec<String> {
    texts.into_iter().map(|text| masker.mask(text)).collect()
}

impl RunPlan {
    /// Describes what a workflow would do.
    pub(super) fn of(workflow: &Workflow, resolved: &Resolved) -> Self {
        let masker = &resolved.settings_masker();
        let limits = &resolved.limits;
        let seconds = |limit: Option<Duration>| limit.map(|limit| limit.as_secs_f64());
        Self {
            version: 1,
            name: masker.mask(&resolved.name),
            inputs: workflow.inputs().into_iter().collect(),
            sandbox: sandbox(resolved, masker),
            workspace: workspace(resolved, masker),
            credentials: resolved.credentials.iter().map(credential).collect(),
            checklist: checklist(resolved, masker),
            runtime: runtime(resolved, masker),
            model: resolved.model.as_ref().map(|used| model(used, masker)),
            turns: 1 + resolved.task.follow_ups.len(),
            limits: LimitsPlan {
                turns: limits.turns,
                wall_seconds: seconds(limits.wall),
                idle_seconds: seconds(limits.idle),
                turn_seconds: seconds(limits.turn),
            },
            pause_after_turns: resolved.pause.as_ref().map(|pause| pause.after_turns),
            teardown: mask_all(masker, resolved.teardown.iter().map(|script| &script.name)),
            given_back: BACKENDS
                .get(resolved.sandbox.provider)
                .map_or_else(Vec::new, |backend| backend.sandbox_kinds().to_vec()),
            keep_on_failure_seconds: resolved.on_failure.keep.as_secs_f64(),
            notes: resolved.notes.clone(),
        }
    }
}

fn sandbox(resolved: &Resolved, masker: &SettingsMasker<'_>) -> PlannedSandbox {
    let sandbox = &resolved.sandbox;
    let backend = BACKENDS.get(sandbox.provider);
    PlannedSandbox {
        provider: sandbox.provider,
        isolation: backend.map_or("unknown", Backend::isolation),
        image: mask_option(masker, sandbox.image.as_ref()),
        snapshot: mask_option(masker, sandbox.snapshot.as_ref()),
        lease_seconds: sandbox.lease.as_secs_f64(),
        env: sandbox.env.keys().cloned().collect(),
        cpus: sandbox.limits.cpus,
        memory: sandbox.limits.memory,
        disk: sandbox.disk,
        network: mask_option(masker, sandbox.network.as_ref()),
    }
}

fn workspace(resolved: &Resolved, masker: &SettingsMasker<'_>) -> WorkspacePlan {
    let workspace = &resolved.workspace;
    let repository = |repository: &Repository| RepositoryPlan {
        url: masker.mask(&repository.url),
        path: masker.mask(&repository.path),
        reference: mask_option(masker, repository.reference.as_ref()),
        required: repository.required,
        credential: repository.credential.clone(),
    };
    WorkspacePlan {
        path: masker.mask(&workspace.path),
        files: workspace.files.keys().cloned().collect(),
        repositories: workspace.repositories.iter().map(repository).collect(),
    }
}

fn credential((name, credential): (&String, &Credential)) -> CredentialPlan {
    let missing = match credential {
        Credential::Missing { reference } => Some(reference.clone()),
        _ => None,
    };
    CredentialPlan { name: name.clone(), kind: credential.kind(), missing }
}

fn checklist(resolved: &Resolved, masker: &SettingsMasker<'_>) -> Vec<StepPlan> {
    let steps = resolved.steps().into_iter().map(|step| StepPlan {
        step: masker.mask(&step.name),
        expected: masker.mask(&step.expected),
        optional: step.optional,
    });
    steps.collect()
}

fn runtime(resolved: &Resolved, masker: &SettingsMasker<'_>) -> RuntimePlan {
    let RuntimeKind::Command { command, prompt } = &resolved.runtime.kind;
    RuntimePlan {
        kind: "command",
        command: mask_all(masker, command),
        prompt: match prompt {
            PromptBy::Stdin => "stdin",
            PromptBy::Argument => "argument",
        },
        version: mask_option(masker, resolved.runtime.version.as_ref()),
        plugins: mask_all(masker, &resolved.runtime.plugins),
    }
}

fn model(model: &Model, masker: &SettingsMasker<'_>) -> ModelPlan {
    let fallbacks = model.fallbacks.iter().map(|choice| &choice.name);
    ModelPlan { primary: masker.mask(&model.primary.name), fallbacks: mask_all(masker, fallbacks) }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut page =
            PlanText(vec![format!("the workflow {} is valid; a run would be:", self.name)]);
        page.add("sandbox", self.sandbox_lines());
        page.add("workspace", self.workspace_lines());
        page.add("credentials", self.credentials.iter().map(CredentialPlan::line));
        page.add("checklist", self.checklist_lines());
        page.add("runtime", self.runtime_lines());
        page.add("limits", [self.limits_line()]);
        page.add("released", self.ending_lines());
        page.add("note", self.notes.iter().cloned());
        f.write_str(&page.0.join("\n"))
    }
}

/// Lines in sections, with a title before the first line of each section.
struct PlanText(Vec<String>);

impl PlanText {
    fn add(&mut self, title: &str, lines: impl IntoIterator<Item = String>) {
        let mut title = title;
        for line in lines {
            self.0.push(format!("  {title:<12} {line}").trim_end().to_owned());
            title = "";
        }
    }
}

impl RunPlan {
    fn sandbox_lines(&self) -> Vec<String> {
        let sandbox = &self.sandbox;
        let source = sandbox.image.as_ref().or(sandbox.snapshot.as_ref());
        let source = source.map(|source| format!(" {source}")).unwrap_or_default();
        let lease = show_seconds(sandbox.lease_seconds);
        let mut lines = vec![format!(
            "{}{source} (isolation: {}), lease {lease}",
            sandbox.provider, sandbox.isolation
        )];
        let sizes = [
            sandbox.cpus.map(|cpus| format!("cpus {cpus}")),
            sandbox.memory.map(|memory| format!("memory {} MiB", memory >> 20)),
            sandbox.disk.map(|disk| format!("disk {} MiB", disk >> 20)),
            sandbox.network.as_ref().map(|network| format!("network {network}")),
        ];
        let sizes: Vec<String> = sizes.into_iter().flatten().collect();
        lines.extend(Some(sizes.join(", ")).filter(|sizes| !sizes.is_empty()));
        lines.extend((!sandbox.env.is_empty()).then(|| format!("env {}", sandbox.env.join(", "))));
        lines
    }

    fn workspace_lines(&self) -> Vec<String> {
        let workspace = &self.workspace;
        let mut lines = vec![workspace.path.clone()];
        lines.extend(workspace.files.iter().map(|path| format!("file {path}")));
        lines.extend(workspace.repositories.iter().map(RepositoryPlan::line));
        lines
    }

    fn checklist_lines(&self) -> Vec<String> {
        let widest = self.checklist.iter().map(|step| step.step.chars().count()).max().unwrap_or(0);
        let digits = self.checklist.len().to_string().len();
        let line = |(number, step): (usize, &StepPlan)| {
            let optional = if step.optional { " (optional)" } else { "" };
            let expected = one_line(&step.expected);
            format!("{:>digits$}. {:<widest$}  {expected}{optional}", number + 1, step.step)
        };
        let then = "then the agent starts, and never before".to_owned();
        self.checklist.iter().enumerate().map(line).chain([then]).collect()
    }

    fn runtime_lines(&self) -> Vec<String> {
        let runtime = &self.runtime;
        let command = format!("{}: {}", runtime.kind, command_line(&runtime.command));
        let turns = count(self.turns, "turn");
        let mut lines = vec![command, format!("{turns}, prompt by {}", runtime.prompt)];
        lines.extend(self.model.iter().map(ModelPlan::line));
        lines
    }

    fn limits_line(&self) -> String {
        let limits = &self.limits;
        let lasting = |limit: Option<f64>, what: &str| {
            limit.map(|limit| format!("{} {what}", show_seconds(limit)))
        };
        let every = |turns: u32| match turns {
            1 => "a pause after every turn".to_owned(),
            turns => format!("a pause after every {turns} turns"),
        };
        let parts = [
            limits.turns.map(|turns| count(turns as usize, "turn")),
            lasting(limits.turn_seconds, "for a turn"),
            lasting(limits.idle_seconds, "of silence"),
            lasting(limits.wall_seconds, "in all"),
            self.pause_after_turns.map(every),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { "none but the lease".to_owned() } else { parts.join(", ") }
    }

    fn ending_lines(&self) -> Vec<String> {
        let kinds: Vec<&str> = self.given_back.iter().map(|kind| kind.name()).collect();
        let mut lines = vec![format!("{}, verified gone, on every path", kinds.join(" and "))];
        if !self.teardown.is_empty() {
            lines.push(format!("before that: {}", count(self.teardown.len(), "teardown script")));
        }
        if self.keep_on_failure_seconds > 0.0 {
            let kept = show_seconds(self.keep_on_failure_seconds);
            lines.push(format!("after a failure it is kept for {kept}"));
        }
        lines
    }
}

impl RepositoryPlan {
    fn line(&self) -> String {
        let reference = self.reference.as_ref().map(|name| format!(" at {name}"));
        let credential = self.credential.as_ref().map(|name| format!(", with {name}"));
        let optional = if self.required { "" } else { " (optional)" };
        format!(
            "repository {} from {}{}{}{optional}",
            self.path,
            self.url,
            reference.unwrap_or_default(),
            credential.unwrap_or_default()
        )
    }
}

impl CredentialPlan {
    fn line(&self) -> String {
        match &self.missing {
            Some(reference) => format!("{}: {reference} is not set", self.name),
            None => format!("{}: {}", self.name, self.kind),
        }
    }
}

impl ModelPlan {
    fn line(&self) -> String {
        let models = std::iter::once(&self.primary).chain(&self.fallbacks);
        let models: Vec<&str> = models.map(String::as_str).collect();
        format!("model {}", models.join(", then "))
    }
}

/// Formats a program and its arguments so that they can be distinguished.
fn command_line(args: &[String]) -> String {
    let arg = |arg: &String| {
        let is_plain = !arg.is_empty() && !arg.contains(|l: char| l.is_whitespace() || l == '\'');
        if is_plain { one_line(arg) } else { format!("'{}'", one_line(arg)) }
    };
    args.iter().map(arg).collect::<Vec<_>>().join(" ")
}

/// Formats a text as one short line, whatever it contains.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut line = String::new();
    for letter in text.chars().take(LONGEST) {
        if letter.is_control() {
            line.extend(letter.escape_debug());
        } else {
            line.push(letter);
        }
    }
    if text.chars().nth(LONGEST).is_some() { line + "…" } else { line }
}

fn show_seconds(seconds: f64) -> String {
    duration::show_limit(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use creel_run::workflow::{Lookup, Source};
    use insta::assert_snapshot;

    use super::*;

    const WORKFLOW: &str = r#"
        name = "fix"
        [sandbox]
        provider = "docker"
        image = "registry.example/${env:IMAGE}:1"
        memory = "512m"
        env = { API_KEY = "${env:API_KEY}", GREETING = "hi" }
        [workspace]
        files = { "NOTES.md" = "private" }
        [[workspace.repositories]]
        url = "https://example.org/app.git"
        path = "app"
        ref = "main"
        credential = "git"
        [credentials.git]
        token = "${env:NO_TOKEN}"
        [[setup]]
        name = "tools"
        run = "true"
        optional = true
        [runtime]
        kind = "command"
        command = ["sh", "-c", "agent ${env:API_KEY}"]
        [model]
        primary = "acme/large"
        fallbacks = ["acme/small"]
        [model.providers.acme]
        base_url = "https://models.example.org"
        [task]
        prompt = "private"
        follow_ups = ["private"]
        [limits]
        turns = 5
        wall = "2h"
        [pause]
        after_turns = 1
        [[teardown]]
        run = "true"
        [on_failure]
        keep = "10m"
    "#;

    fn plan(text: &str) -> RunPlan {
        let source = Source { name: "w.toml".to_owned(), text: text.to_owned() };
        let workflow = Workflow::parse(&source, BACKENDS).unwrap();
        let env = |name: &str| (!name.starts_with("NO")).then(|| format!("secret-{name}"));
        let lookup = Lookup { env: &env, inputs: &BTreeMap::new() };
        RunPlan::of(&workflow, &workflow.resolve(&lookup).unwrap())
    }

    #[test]
    fn the_plan_shows_what_a_run_would_do() {
        assert_snapshot!(plan(WORKFLOW).to_string(), @"
        the workflow fix is valid; a run would be:
          sandbox      docker registry.example/***:1 (isolation: container), lease 30m
                       memory 512 MiB
                       env API_KEY, GREETING
          workspace    work
                       file NOTES.md
                       repository app from https://example.org/app.git at main, with git
          credentials  git: ${env:NO_TOKEN} is not set
          checklist    1. sandbox         it runs a program
                       2. setup tools     exit code 0 (optional)
                       3. workspace       the directory with 1 file
                       4. credential git  it is available
                       5. clone app       exit code 0
                       6. verify app      the path, `.git`, HEAD at `main`
                       7. capabilities    what the agent may do is known
                       8. agent           `sh` runs
                       then the agent starts, and never before
          runtime      command: sh -c 'agent ***'
                       2 turns, prompt by stdin
                       model acme/large, then acme/small
          limits       5 turns, 2h in all, a pause after every turn
          released     container, verified gone, on every path
                       before that: 1 teardown script
                       after a failure it is kept for 10m
        ");
    }

    #[test]
    fn the_smallest_workflow_has_a_plan_too() {
        let text = "name = \"n\"\n[runtime]\nkind = \"command\"\ncommand = [\"sh\"]\n\
                    [task]\nprompt = \"p\"";
        assert_snapshot!(plan(text).to_string(), @"
        the workflow n is valid; a run would be:
          sandbox      process (isolation: none), lease 30m
          workspace    work
          checklist    1. sandbox       it runs a program
                       2. workspace     the directory
                       3. capabilities  what the agent may do is known
                       4. agent         `sh` runs
                       then the agent starts, and never before
          runtime      command: sh
                       1 turn, prompt by stdin
          limits       none but the lease
          released     process and directory, verified gone, on every path
        ");
    }

    #[test]
    fn a_command_is_shown_on_one_line() {
        let args = ["sh", "-c", "a\n\u{1b}[31m", ""].map(str::to_owned);
        assert_eq!(command_line(&args), "sh -c 'a\\n\\u{1b}[31m' ''");
        let long = one_line(&"x".repeat(100));
        assert_eq!(long.chars().count(), 81);
    }

    #[test]
    fn no_plan_shows_secret_or_private_values() {
        let plan = plan(WORKFLOW);
        let json = serde_json::to_string(&plan).unwrap();
        for shown in [plan.to_string(), json.clone()] {
            assert!(!shown.contains("secret-") && !shown.contains("private"), "{shown}");
            assert!(shown.contains("${env:NO_TOKEN}") && shown.contains("***"), "{shown}");
        }
        assert!(json.starts_with("{\"version\":1,\"name\":\"fix\""), "{json}");
    }
}
