//! A workflow with every value in its place: what the run engine works from.
//!
//! Values may have come by reference, and what comes from the environment counts as secret.
//! So these types show, where they are printed for debugging, only what cannot hold one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use crate::provider::ProviderName;
use crate::sanitise::Secrets;

/// Shows only the named fields: the others may hold what came by reference.
macro_rules! shows_only {
    ($($type:ident { $($field:ident),* })+) => {
        $(impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        })+
    };
}

/// A workflow with every value in its place.
#[derive(Clone)]
pub struct Resolved {
    /// What the run is called.
    pub name: String,
    /// Where the work happens.
    pub sandbox: SandboxSettings,
    /// What is in the working directory before the agent starts.
    pub workspace: Workspace,
    /// What repositories are cloned with, by name.
    pub credentials: BTreeMap<String, Credential>,
    /// The scripts before the runtime, in order.
    pub setup: Vec<Script>,
    /// What carries out the turns.
    pub runtime: Runtime,
    /// Which models the agent uses.
    pub model: Option<Model>,
    /// What the agent is asked to do.
    pub task: Task,
    /// When the run is ended.
    pub limits: RunLimits,
    /// When it waits for a person.
    pub pause: Option<Pause>,
    /// The scripts before the release, in order.
    pub teardown: Vec<Script>,
    /// What becomes of the sandbox of a run that failed.
    pub on_failure: OnFailure,
    /// What in the file has no effect in this run, and why: sentences for people.
    pub notes: Vec<String>,
    /// What came by reference.
    pub(crate) given: Given,
}

/// What came by reference.
#[derive(Clone, Default)]
pub(crate) struct Given {
    /// Variables of the environment that were used; they count as secret.
    pub(crate) env: BTreeMap<String, SecretString>,
    /// Inputs that were used.
    pub(crate) inputs: BTreeMap<String, String>,
    /// The names in `sandbox.env` whose values have a reference in them.
    pub(crate) sandbox_env: BTreeSet<String>,
}

/// Where the work happens.
#[derive(Clone)]
pub struct SandboxSettings {
    /// The world of the sandbox.
    pub provider: ProviderName,
    /// The image it starts from, where the provider starts from one.
    pub image: Option<String>,
    /// The snapshot it starts from, where the provider has such.
    pub snapshot: Option<String>,
    /// How long it may live without a sign of its owner.
    pub lease: Duration,
    /// Variables of everything that runs in it.
    pub env: BTreeMap<String, SecretString>,
    /// What it may use.
    pub limits: crate::provider::Limits,
    /// How much disk it may use, in bytes.
    pub disk: Option<u64>,
    /// The network it joins.
    pub network: Option<String>,
}

/// What is in the working directory before the agent starts.
#[derive(Clone)]
pub struct Workspace {
    /// The working directory: relative to the sandbox's workspace root, or absolute.
    pub path: String,
    /// Files: relative path to content.
    pub files: BTreeMap<String, String>,
    /// Repositories, in the order of the file.
    pub repositories: Vec<Repository>,
}

/// A repository that is cloned and verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Repository {
    /// Where it comes from; no password is in it.
    pub url: String,
    /// Where it goes, relative to the working directory.
    pub path: String,
    /// The branch, tag or commit.
    pub reference: Option<String>,
    /// Whether the agent must not start without it.
    pub required: bool,
    /// The name of what it is cloned with.
    pub credential: Option<String>,
    /// How long the clone may take.
    pub timeout: Duration,
    /// How long the clone may write nothing.
    pub inactivity: Duration,
}

/// What a repository is cloned with.
#[derive(Clone)]
pub enum Credential {
    /// A token for http(s).
    Token {
        /// The user name that goes with it.
        username: Option<String>,
        /// The token.
        token: SecretString,
    },
    /// A key for ssh.
    SshKey {
        /// The key.
        private_key: SecretString,
        /// The lines of `known_hosts` the server must fit.
        known_hosts: Option<String>,
    },
    /// The installation of a GitHub App, which gives tokens.
    GithubApp {
        /// The App.
        app_id: String,
        /// The installation.
        installation_id: String,
        /// The App's key, in PEM.
        private_key: SecretString,
        /// Where GitHub's API is.
        api_url: String,
    },
    /// What it refers to was not given.
    Missing {
        /// The reference, such as `${env:GIT_TOKEN}`.
        reference: String,
    },
}

impl Credential {
    /// Returns what sort it is, in a word for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Token { .. } => "token",
            Self::SshKey { .. } => "ssh key",
            Self::GithubApp { .. } => "GitHub App",
            Self::Missing { .. } => "missing",
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.kind()).finish_non_exhaustive()
    }
}

/// A script of the setup or the teardown.
#[derive(Clone, PartialEq, Eq)]
pub struct Script {
    /// What the step is called; unique in its list.
    pub name: String,
    /// The script, for `sh`.
    pub run: String,
    /// How long it may take.
    pub timeout: Duration,
    /// How long it may write nothing.
    pub inactivity: Option<Duration>,
    /// Whether the run goes on when it fails.
    pub optional: bool,
    /// How often it is tried.
    pub tries: u32,
}

/// What carries out the turns.
#[derive(Clone)]
pub struct Runtime {
    /// How.
    pub kind: RuntimeKind,
    /// The version that is installed and proven, where the kind has versions.
    pub version: Option<String>,
    /// What is installed into it.
    pub plugins: Vec<String>,
    /// How the agent is proven to run; `None` means the program of the command with `--version`.
    pub check: Option<Vec<String>>,
}

/// How turns are carried out.
#[derive(Clone, PartialEq, Eq)]
pub enum RuntimeKind {
    /// By a program for every turn.
    Command {
        /// The program and its arguments. With [`PromptBy::Argument`] one of them has `{prompt}`
        /// in it; with [`PromptBy::Stdin`] none has.
        command: Vec<String>,
        /// How it gets the prompt.
        prompt: PromptBy,
    },
}

impl fmt::Debug for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { prompt, .. } => {
                f.debug_struct("Command").field("prompt", prompt).finish_non_exhaustive()
            }
        }
    }
}

/// How a program gets the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptBy {
    /// On its standard input.
    Stdin,
    /// In place of `{prompt}` in its arguments.
    Argument,
}

/// Which models the agent uses.
#[derive(Clone)]
pub struct Model {
    /// The first choice.
    pub primary: ModelChoice,
    /// What is used when that fails, in order.
    pub fallbacks: Vec<ModelChoice>,
    /// Where models are, by name.
    pub providers: BTreeMap<String, ModelProvider>,
}

/// A model that may be used.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelChoice {
    /// What the workflow calls it: a profile, or `provider/model`.
    pub name: String,
    /// Where it is: a name in [`Model::providers`].
    pub provider: String,
    /// What its provider calls it.
    pub model: String,
    /// How long the first token may take.
    pub first_token: Duration,
    /// How long its stream may be silent after that.
    pub idle: Duration,
}

/// Where models are.
#[derive(Clone)]
pub struct ModelProvider {
    /// The address of its API.
    pub base_url: String,
    /// Its key.
    pub api_key: Option<SecretString>,
}

/// What the agent is asked to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Task {
    /// The prompt of the first turn.
    pub prompt: String,
    /// The prompts of further turns.
    pub follow_ups: Vec<String>,
}

/// When a run is ended, whatever it is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// How many turns it may take.
    pub turns: Option<u32>,
    /// How long all of it may take.
    pub wall: Option<Duration>,
    /// How long nothing may happen in it.
    pub idle: Option<Duration>,
    /// How long one turn may take.
    pub turn: Option<Duration>,
}

/// When a run waits for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// After every so many turns.
    pub after_turns: u32,
}

/// What becomes of the sandbox of a run that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnFailure {
    /// How long it is kept.
    pub keep: Duration,
}

shows_only! {
    Resolved { sandbox, workspace, credentials, setup, runtime, model, task, limits, pause,
               teardown, on_failure }
    SandboxSettings { provider, lease, limits, disk }
    Workspace { repositories }
    Repository { required }
    Script { timeout, inactivity, optional, tries }
    Runtime { kind }
    Model { primary, fallbacks, providers }
    ModelChoice { first_token, idle }
    ModelProvider { }
    Task { }
}

impl Resolved {
    /// Returns everything that must never be shown, each once, with what it is called in the
    /// workflow: credentials, keys of models, variables of the sandbox that were given by
    /// reference, and whatever else came from the environment.
    pub fn secrets(&self) -> Vec<(String, &SecretString)> {
        let credentials = self.credentials.iter().filter_map(|(name, credential)| {
            let (key, secret) = match credential {
                Credential::Token { token, .. } => ("token", token),
                Credential::SshKey { private_key, .. } => ("ssh_key", private_key),
                Credential::GithubApp { private_key, .. } => ("private_key", private_key),
                Credential::Missing { .. } => return None,
            };
            Some((format!("credentials.{name}.{key}"), secret))
        });
        let providers = self.model.iter().flat_map(|model| &model.providers);
        let keys = providers.filter_map(|(name, provider)| {
            Some((format!("model.providers.{name}.api_key"), provider.api_key.as_ref()?))
        });
        let by_reference = self.given.sandbox_env.iter();
        let variables = by_reference
            .filter_map(|name| Some((format!("sandbox.env.{name}"), self.sandbox.env.get(name)?)));
        let others = self.given.env.iter().map(|(name, value)| (format!("env:{name}"), value));
        let mut seen = BTreeSet::new();
        let all = credentials.chain(keys).chain(variables).chain(others);
        all.filter(|(_, secret)| !secret.expose_secret().is_empty())
            .filter(|(_, secret)| seen.insert(secret.expose_secret()))
            .collect()
    }

    /// Returns all of them as what a masker looks for.
    pub fn known_secrets(&self) -> Secrets {
        let mut secrets = Secrets::new();
        for (name, secret) in self.secrets() {
            secrets.add(&name, secret);
        }
        secrets
    }

    /// Returns the texts that are nobody's business: prompts, contents of files, inputs.
    pub fn private_texts(&self) -> Vec<&str> {
        let prompts = std::iter::once(&self.task.prompt).chain(&self.task.follow_ups);
        let texts = prompts.chain(self.workspace.files.values()).chain(self.given.inputs.values());
        texts.map(String::as_str).filter(|text| !text.is_empty()).collect()
    }
}
