//! A workflow with every value resolved: the input of the run engine.
//!
//! Values may come from references, and a value from the environment counts as
//! secret. So the `Debug` output of these types contains only fields that cannot
//! hold a secret.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use creel_model::provider::ProviderName;
use creel_sanitise::Secrets;
use secrecy::{ExposeSecret, SecretString};

/// Shows only the named fields in `Debug` output. The others may hold values from references.
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

/// A workflow with every value resolved.
#[derive(Clone)]
pub struct Resolved {
    /// The name of the run.
    pub name: String,
    /// The settings of the sandbox.
    pub sandbox: SandboxSettings,
    /// The content of the working directory before the agent starts.
    pub workspace: Workspace,
    /// The credentials for cloning repositories, by name.
    pub credentials: BTreeMap<String, Credential>,
    /// The scripts that run before the runtime, in order.
    pub setup: Vec<Script>,
    /// The runtime that runs the turns.
    pub runtime: Runtime,
    /// The models that the agent uses.
    pub model: Option<Model>,
    /// The task of the agent.
    pub task: Task,
    /// The limits that end the run.
    pub limits: RunLimits,
    /// When the run waits for a user.
    pub pause: Option<Pause>,
    /// The scripts that run before the release, in order.
    pub teardown: Vec<Script>,
    /// What happens to the sandbox of a failed run.
    pub on_failure: OnFailure,
    /// The settings that have no effect in this run, and why, as sentences for people.
    pub notes: Vec<String>,
    /// The values that came from references.
    pub(crate) reference_values: ReferenceValues,
}

/// The values that came from references.
#[derive(Clone, Default)]
pub(crate) struct ReferenceValues {
    /// The environment variables that were used. They count as secret.
    pub(crate) env: BTreeMap<String, SecretString>,
    /// The inputs that were used.
    pub(crate) inputs: BTreeMap<String, String>,
    /// The names in `sandbox.env` whose values contain a reference.
    pub(crate) sandbox_env: BTreeSet<String>,
}

/// The settings of the sandbox.
#[derive(Clone)]
pub struct SandboxSettings {
    /// The provider of the sandbox.
    pub provider: ProviderName,
    /// The image it starts from, if the provider uses images.
    pub image: Option<String>,
    /// The snapshot it starts from, if the provider has snapshots.
    pub snapshot: Option<String>,
    /// How long it may live without a sign of life from its owner.
    pub lease: Duration,
    /// The variables of every process in it.
    pub env: BTreeMap<String, SecretString>,
    /// The limits of its resources.
    pub limits: creel_model::provider::Limits,
    /// The maximum size of its disk, in bytes.
    pub disk: Option<u64>,
    /// The network it joins.
    pub network: Option<String>,
}

/// The content of the working directory before the agent starts.
#[derive(Clone)]
pub struct Workspace {
    /// The working directory: relative to the sandbox's workspace root, or absolute.
    pub path: String,
    /// The files, as a map from relative path to content.
    pub files: BTreeMap<String, String>,
    /// The repositories, in the order of the file.
    pub repositories: Vec<Repository>,
}

/// A repository that is cloned and verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Repository {
    /// Its URL, without a password.
    pub url: String,
    /// Its target path, relative to the working directory.
    pub path: String,
    /// The branch, tag or commit.
    pub reference: Option<String>,
    /// Whether the agent must not start without it.
    pub required: bool,
    /// The name of its credential.
    pub credential: Option<String>,
    /// How long the clone may take.
    pub timeout: Duration,
    /// How long the clone may go without output.
    pub inactivity: Duration,
}

/// A credential for cloning repositories.
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
        /// The `known_hosts` lines that the server must match.
        known_hosts: Option<String>,
    },
    /// The installation of a GitHub App, which issues tokens.
    GithubApp {
        /// The App.
        app_id: String,
        /// The installation.
        installation_id: String,
        /// The App's key, in PEM.
        private_key: SecretString,
        /// The URL of GitHub's API.
        api_url: String,
    },
    /// A credential whose reference has no value.
    Missing {
        /// The reference, such as `${env:GIT_TOKEN}`.
        reference: String,
    },
}

impl Credential {
    /// Returns the kind of the credential, for people.
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
    /// The name of the step, unique in its list.
    pub name: String,
    /// The script, for `sh`.
    pub run: String,
    /// How long it may take.
    pub timeout: Duration,
    /// How long it may go without output.
    pub inactivity: Option<Duration>,
    /// Whether the run continues if it fails.
    pub optional: bool,
    /// The maximum number of tries.
    pub tries: u32,
}

/// The runtime that runs the turns.
#[derive(Clone)]
pub struct Runtime {
    /// The kind of the runtime.
    pub kind: RuntimeKind,
    /// The version to install and check, if the kind has versions.
    pub version: Option<String>,
    /// The plugins to install.
    pub plugins: Vec<String>,
    /// The command that checks that the agent runs. `None` means the program with `--version`.
    pub check: Option<Vec<String>>,
}

/// How turns are run.
#[derive(Clone, PartialEq, Eq)]
pub enum RuntimeKind {
    /// By starting a program for every turn.
    Command {
        /// The program and its arguments. With [`PromptBy::Argument`] one of them contains
        /// `{prompt}`; with [`PromptBy::Stdin`] none does.
        command: Vec<String>,
        /// How it receives the prompt.
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

/// How a program receives the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptBy {
    /// On its standard input.
    Stdin,
    /// In place of `{prompt}` in its arguments.
    Argument,
}

/// The models that the agent uses.
#[derive(Clone)]
pub struct Model {
    /// The first choice.
    pub primary: ModelChoice,
    /// The models to use if it fails, in order.
    pub fallbacks: Vec<ModelChoice>,
    /// The model providers, by name.
    pub providers: BTreeMap<String, ModelProvider>,
}

/// A model that may be used.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelChoice {
    /// Its name in the workflow: a profile, or `provider/model`.
    pub name: String,
    /// Its provider: a name in [`Model::providers`].
    pub provider: String,
    /// The provider's name for it.
    pub model: String,
    /// How long the first token may take.
    pub first_token: Duration,
    /// How long the stream may be silent after that.
    pub idle: Duration,
}

/// A model provider.
#[derive(Clone)]
pub struct ModelProvider {
    /// The URL of its API.
    pub base_url: String,
    /// Its key.
    pub api_key: Option<SecretString>,
}

/// The task of the agent.
#[derive(Clone, PartialEq, Eq)]
pub struct Task {
    /// The prompt of the first turn.
    pub prompt: String,
    /// The prompts of further turns.
    pub follow_ups: Vec<String>,
}

/// The limits that end a run, whatever it is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// The maximum number of turns.
    pub turns: Option<u32>,
    /// How long the whole run may take.
    pub wall: Option<Duration>,
    /// How long the run may go without any activity.
    pub idle: Option<Duration>,
    /// How long one turn may take.
    pub turn: Option<Duration>,
}

/// When a run waits for a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// The number of turns between two pauses.
    pub after_turns: u32,
}

/// What happens to the sandbox of a failed run.
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
    /// Returns everything that must never be shown, without duplicates, with its name in the
    /// workflow.
    ///
    /// These are credentials, API keys of models, variables of the sandbox that contain references,
    /// and all other values from the environment.
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
        let by_reference = self.reference_values.sandbox_env.iter();
        let variables = by_reference
            .filter_map(|name| Some((format!("sandbox.env.{name}"), self.sandbox.env.get(name)?)));
        let others =
            self.reference_values.env.iter().map(|(name, value)| (format!("env:{name}"), value));
        let mut seen = BTreeSet::new();
        let all = credentials.chain(keys).chain(variables).chain(others);
        all.filter(|(_, secret)| !secret.expose_secret().is_empty())
            .filter(|(_, secret)| seen.insert(secret.expose_secret()))
            .collect()
    }

    /// Returns all secrets in the form that a masker needs.
    pub fn known_secrets(&self) -> Secrets {
        let mut secrets = Secrets::new();
        for (name, secret) in self.secrets() {
            secrets.add(&name, secret);
        }
        secrets
    }

    /// Returns the private texts: prompts, contents of files, inputs.
    pub fn private_texts(&self) -> Vec<&str> {
        let prompts = std::iter::once(&self.task.prompt).chain(&self.task.follow_ups);
        let texts = prompts
            .chain(self.workspace.files.values())
            .chain(self.reference_values.inputs.values());
        texts.map(String::as_str).filter(|text| !text.is_empty()).collect()
    }
}
