//! The keys of a workflow, as they are in its file.
//!
//! The doc comments here are the descriptions in
//! `docs/reference/workflow.schema.json`. Files are also checked against the
//! schema of these types, so editors and creel accept the same files. Values are
//! kept as they were written; [`super::resolve`] interprets them.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// A creel workflow: what a run is told to do.
///
/// Every string may hold `${env:NAME}` (a variable of creel's environment; it counts as secret)
/// and `${input:NAME}` (given for one run). `$${` stands for a plain `${`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "creel workflow")]
pub(super) struct File {
    /// What the run is called.
    pub name: String,
    /// Where the work happens.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// What is in the working directory before the agent starts.
    #[serde(default)]
    pub workspace: Workspace,
    /// What repositories are cloned with, by name.
    #[serde(default)]
    pub credentials: BTreeMap<String, Credential>,
    /// Scripts that run before the runtime, in order; each is a step of the checklist.
    #[serde(default)]
    pub setup: Vec<Setup>,
    /// What carries out the turns.
    pub runtime: Runtime,
    /// Which models the agent uses.
    pub model: Option<Model>,
    /// What the agent is asked to do.
    pub task: Task,
    /// When the run is ended, whatever it is doing.
    #[serde(default)]
    pub limits: Limits,
    /// When the run stops and waits for a person.
    pub pause: Option<Pause>,
    /// Scripts that run on every path before the sandbox is released; they never change the
    /// outcome.
    #[serde(default)]
    pub teardown: Vec<Teardown>,
    /// What becomes of the sandbox of a run that failed.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// Where the work happens.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sandbox {
    /// The provider of the sandbox: `process` (the default; no isolation), `docker` or `daytona`.
    // Examples, and no list: which providers there are is the program's decision.
    #[schemars(extend("examples" = ["process", "docker", "daytona"]))]
    pub provider: Option<String>,
    /// The image it starts from. Docker needs one; Daytona takes it where there is no snapshot.
    pub image: Option<String>,
    /// The Daytona snapshot it starts from; it brings its own resources.
    pub snapshot: Option<String>,
    /// How long it may live without a sign of its owner, such as `30m` (the default).
    pub lease: Option<String>,
    /// Variables of everything that runs in it. One that is given by a reference counts as
    /// secret.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How many processors it may use; whole ones on Daytona.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub cpus: Option<f64>,
    /// How much memory it may use, such as `512m` or `4g`; whole GiB on Daytona.
    pub memory: Option<String>,
    /// How much disk it may use, such as `20g`: processes as root, or Daytona from an image.
    pub disk: Option<String>,
    /// The network it joins, by name, or `none`: Docker.
    pub network: Option<String>,
}

/// What is in the working directory before the agent starts.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Workspace {
    /// The working directory; `work` if it is not given. An absolute one only where the sandbox
    /// has a file system of its own.
    pub path: Option<String>,
    /// Files that are written into it: relative path to content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Repositories that are cloned into it.
    #[serde(default)]
    pub repositories: Vec<Repository>,
}

/// A repository that is cloned and then verified on its own.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Repository {
    /// Where it comes from, without a password or token in it.
    pub url: String,
    /// Where it goes, relative to the working directory.
    pub path: String,
    /// The branch, tag or commit; the remote's own branch if it is not given.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// Whether the agent must not start without it; true if it is not given.
    pub required: Option<bool>,
    /// The name of what it is cloned with, from `[credentials]`.
    pub credential: Option<String>,
    /// How long the clone may take; 15 minutes if it is not given.
    pub timeout: Option<String>,
    /// How long the clone may write nothing; 2 minutes if it is not given.
    pub inactivity: Option<String>,
}

/// A token, an ssh key or a GitHub App installation: the keys of exactly one of them.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Credential {
    /// A token for http(s), only by reference: `${env:NAME}`.
    pub token: Option<String>,
    /// The user name that goes with the token.
    pub username: Option<String>,
    /// A private ssh key, only by reference: `${env:NAME}`.
    pub ssh_key: Option<String>,
    /// The lines of `known_hosts` the server must fit.
    pub known_hosts: Option<String>,
    /// The id of a GitHub App.
    pub app_id: Option<NumberOrText>,
    /// The id of its installation.
    pub installation_id: Option<NumberOrText>,
    /// The App's private key (PEM), only by reference: `${env:NAME}`.
    pub private_key: Option<String>,
    /// Where GitHub's API is; `https://api.github.com` if it is not given.
    pub api_url: Option<String>,
}

/// A script before the runtime.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    /// What the step is called; unique.
    pub name: Option<String>,
    /// The script, for `sh`.
    pub run: String,
    /// How long it may take; `10m` if it is not given.
    pub timeout: Option<String>,
    /// How long it may write nothing.
    pub inactivity: Option<String>,
    /// Whether the run goes on when it fails.
    #[serde(default)]
    pub optional: bool,
    /// How often it is tried before it counts as failed; once if it is not given.
    #[schemars(range(min = 1, max = 10))]
    pub tries: Option<u32>,
}

/// A script before the release.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Teardown {
    /// What the step is called; unique.
    pub name: Option<String>,
    /// The script, for `sh`.
    pub run: String,
    /// How long it may take; `60s` if it is not given.
    pub timeout: Option<String>,
    /// How long it may write nothing.
    pub inactivity: Option<String>,
    /// How often it is tried; once if it is not given.
    #[schemars(range(min = 1, max = 10))]
    pub tries: Option<u32>,
}

/// What carries out the turns.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Runtime {
    /// `command` (a program for every turn), `openclaw` or `stream-json`.
    #[schemars(extend("anyOf" = [
        { "enum": ["command", "openclaw", "stream-json"] },
        { "pattern": "\\$\\{(env|input):" },
    ]))]
    pub kind: String,
    /// The version that is installed and proven, where the kind has versions.
    pub version: Option<String>,
    /// What is installed into the runtime; each is a step of the checklist.
    #[serde(default)]
    pub plugins: Vec<String>,
    /// The program and its arguments.
    pub command: Option<Vec<String>>,
    /// How the program gets the prompt: `stdin` (the default) or `argument`, in place of
    /// `{prompt}` in the command or at its end.
    #[schemars(extend("anyOf" = [
        { "enum": ["stdin", "argument"] },
        { "pattern": "\\$\\{(env|input):" },
    ]))]
    pub prompt: Option<String>,
    /// How the agent is proven to run; the program of `command` with `--version` if it is not
    /// given.
    pub check: Option<Vec<String>>,
}

/// Which models the agent uses.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Model {
    /// The first choice: a profile, or `provider/model`.
    pub primary: String,
    /// What is used when the first choice fails, in order.
    #[serde(default)]
    pub fallbacks: Vec<String>,
    /// Where models are, by name.
    #[serde(default)]
    pub providers: BTreeMap<String, ModelProvider>,
    /// Named model settings.
    #[serde(default)]
    pub profiles: BTreeMap<String, Profile>,
}

/// Where models are.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelProvider {
    /// The address of its API.
    pub base_url: String,
    /// Its key, only by reference: `${env:NAME}`.
    pub api_key: Option<String>,
}

/// A named model setting.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
    /// Which model: `provider/model`.
    pub model: String,
    /// How long the first token may take; `120s` if it is not given.
    pub first_token_timeout: Option<String>,
    /// How long the stream may be silent after it; `120s` if it is not given.
    pub idle_timeout: Option<String>,
}

/// What the agent is asked to do.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    /// The prompt of the first turn.
    pub prompt: String,
    /// The prompts of further turns.
    #[serde(default)]
    pub follow_ups: Vec<String>,
}

/// When the run is ended, whatever it is doing.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    /// How many turns it may take.
    #[schemars(range(min = 1))]
    pub turns: Option<u32>,
    /// How long all of it may take.
    pub wall: Option<String>,
    /// How long nothing may happen in it.
    pub idle: Option<String>,
    /// How long one turn may take.
    pub turn: Option<String>,
}

/// When the run stops and waits for a person.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Pause {
    /// After every so many turns it waits for `creel resume`.
    #[schemars(range(min = 1))]
    pub after_turns: u32,
}

/// What becomes of the sandbox of a run that failed.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OnFailure {
    /// How long it is kept, to look into it; `0m` (not at all) if it is not given.
    pub keep: Option<String>,
}

/// An id that people write with or without quotes.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum NumberOrText {
    /// Written as a number.
    Number(u64),
    /// Written as text.
    Text(String),
}

impl NumberOrText {
    /// Returns the id as text.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl JsonSchema for NumberOrText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NumberOrText".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"] })
    }
}
