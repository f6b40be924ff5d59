//! Repositories: cloned, then verified by a separate step.
//!
//! Git receives a credential through its environment, with a helper that prints
//! what the environment holds. A credential is never an argument, never in the
//! repository's settings, and never on disk. Only an ssh key has to be a file.
//! Each clone has its own copy of the key below creel's own directory in the
//! sandbox, and removes it afterwards. The keys are removed once more before the
//! sandbox is released or kept, however the clone ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use creel_model::provider::ProviderError;
use creel_model::run::CauseClass;
use creel_sanitise::{Diagnostic, Masker};
use futures::FutureExt;
use secrecy::{ExposeSecret, SecretString};
use tracing::warn;

use crate::sandbox::{Command, Finished, Sandbox};
use crate::workflow::{Credential, Repository};

use super::checklist::{CommandOutput, StepResult, StepSpec, StepVerdict, TryOnce, run};
use super::credential::GitLogin;
use super::workspace::{INCOMPLETE, within};
use super::{Drive, Stopped};

/// How many repositories are cloned at once.
///
/// Enough to hide the latency of their servers, and few enough for one server and one sandbox.
const CLONES_AT_ONCE: usize = 8;
/// How many times a clone is tried.
const CLONE_TRIES: u32 = 2;
/// How long the verification of a repository may take.
const VERIFY_LIMIT: Duration = Duration::from_secs(60);
/// How long a removal may take.
const REMOVE_LIMIT: Duration = Duration::from_secs(20);
/// The directory of temporary ssh keys, in creel's own directory.
const KEY_DIRECTORY: &str = "lent";
/// The message of ssh about an unexpected host key.
const HOST_KEY_MISMATCH: &str = "host key verification failed";
/// The messages of git about a rejected login.
const REFUSALS: [&str; 8] = [
    "authentication failed",
    "could not read username",
    "could not read password",
    "invalid credentials",
    "permission denied (publickey",
    "the requested url returned error: 401",
    "the requested url returned error: 403",
    "terminal prompts disabled",
];
/// A git credential helper that prints what the environment holds.
const HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
                      \"$CREEL_GIT_USERNAME\" \"$CREEL_GIT_PASSWORD\"; }; f";
/// The exit codes of [`VERIFY`].
const NO_DIRECTORY: i32 = 11;
const NO_REPOSITORY: i32 = 12;
/// Checks a repository: its directory, its `.git`, and the commit of its `HEAD`.
const VERIFY: &str = "test -d \"$1\" || exit 11; test -e \"$1/.git\" || exit 12; \
                      exec git -C \"$1\" rev-parse --verify --quiet 'HEAD^{commit}'";

impl Drive {
    /// Clones repositories, several at once. Returns those that were cloned.
    pub(super) async fn clone_repositories(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        wanted: Vec<(Repository, GitLogin)>,
    ) -> Result<Vec<Repository>, Stopped> {
        let steps = wanted.iter().enumerate();
        let steps = steps
            .map(|(index, (repository, login))| self.clone_step(sandbox, repository, login, index));
        let steps = steps.collect();
        let results = self.steps_at_once(steps, CLONES_AT_ONCE).await?;
        if wanted.iter().any(|(_, login)| matches!(login, GitLogin::SshKey { .. })) {
            // Each clone removes its own key, but one that was interrupted could not.
            self.remove_keys(sandbox).await?;
        }
        let mut cloned = Vec::new();
        for ((repository, _), result) in wanted.into_iter().zip(results) {
            if result?.verdict == StepVerdict::Passed {
                cloned.push(repository);
            }
        }
        Ok(cloned)
    }

    fn clone_step(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        repository: &Repository,
        login: &GitLogin,
        index: usize,
    ) -> (StepSpec, TryOnce) {
        let plan = StepSpec {
            silence: Some(repository.inactivity),
            tries: CLONE_TRIES,
            optional: !repository.required,
            class: INCOMPLETE,
            ..StepSpec::new(
                format!("clone {}", repository.path),
                Diagnostic::ours("the repository is cloned"),
                repository.timeout,
            )
        };
        let clone = Arc::new(Cloning {
            sandbox: Arc::clone(sandbox),
            repository: repository.clone(),
            login: login.clone(),
            path: within(&self.workspace_path(sandbox.as_ref()), &repository.path),
            key_directory: format!("{}/{index}", key_directory(sandbox.as_ref())),
            env: self.environment(),
            limit: plan.limit,
            silence: plan.silence,
            masker: self.masker.clone(),
        });
        let try_once = move || {
            let clone = Arc::clone(&clone);
            async move { clone.try_once().await }.boxed()
        };
        (plan, Box::new(try_once))
    }

    /// Removes all ssh keys from a sandbox. Nothing may start there while one is left.
    async fn remove_keys(&self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        match remove(sandbox.as_ref(), &key_directory(sandbox.as_ref())).await {
            Ok(ran) if ran.is_success() => Ok(()),
            Ok(ran) => {
                let found = ran.found(&self.masker);
                let message = format!("the ssh key could not be removed again: {found}");
                Err(self.stopped(CauseClass::BootstrapFailed, &message))
            }
            Err(error) => {
                let message = format!("the ssh key could not be removed again: {error}");
                Err(self.stopped(CauseClass::SandboxLost, &message))
            }
        }
    }

    /// Removes the keys that remain when a clone was interrupted together with its run.
    pub(super) async fn remove_leftover_keys(&self) {
        let is_key = |credential: &Credential| matches!(credential, Credential::SshKey { .. });
        let Some(sandbox) = &self.sandbox else { return };
        let cause = self.journal.state().cause().map(|cause| cause.class);
        let is_lost = cause == Some(CauseClass::SandboxLost);
        if is_lost || !self.workflow.credentials.values().any(is_key) {
            return;
        }
        if self.remove_keys(sandbox).await.is_err() {
            warn!("an ssh key may be left in the sandbox; it goes with it");
        }
    }

    /// Verifies that repositories exist and are at the expected commits.
    pub(super) async fn verify_repositories(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        repositories: &[Repository],
    ) -> Result<(), Stopped> {
        let steps = repositories.iter().map(|repository| self.verify_step(sandbox, repository));
        let steps = steps.collect();
        for result in self.steps_at_once(steps, CLONES_AT_ONCE).await? {
            result?;
        }
        Ok(())
    }

    fn verify_step(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        repository: &Repository,
    ) -> (StepSpec, TryOnce) {
        let wanted = repository.reference.as_deref().unwrap_or("its default branch");
        let expected = format!("{} with .git, at {wanted}", repository.path);
        let plan = StepSpec {
            optional: !repository.required,
            class: INCOMPLETE,
            ..StepSpec::new(
                format!("verify {}", repository.path),
                self.masker.diagnostic(&expected),
                VERIFY_LIMIT,
            )
        };
        let path = within(&self.workspace_path(sandbox.as_ref()), &repository.path);
        let (masker, reference) = (self.masker.clone(), repository.reference.clone());
        let sandbox = Arc::clone(sandbox);
        let try_once = move || {
            let (sandbox, path) = (Arc::clone(&sandbox), path.clone());
            let (masker, reference) = (masker.clone(), reference.clone());
            async move { verify(sandbox.as_ref(), &path, reference.as_deref(), &masker).await }
                .boxed()
        };
        (plan, Box::new(try_once))
    }
}

/// One clone.
struct Cloning {
    sandbox: Arc<dyn Sandbox>,
    repository: Repository,
    login: GitLogin,
    /// The target directory.
    path: String,
    /// The directory of its ssh key. Clones run concurrently, so each has its own.
    key_directory: String,
    env: BTreeMap<String, SecretString>,
    limit: Duration,
    silence: Option<Duration>,
    masker: Masker,
}

impl Cloning {
    async fn try_once(&self) -> Result<StepResult, ProviderError> {
        let result = self.try_with_key().await;
        if !matches!(self.login, GitLogin::SshKey { .. }) {
            return result;
        }
        // Nothing may start in the sandbox while a key is left there.
        let removed = remove(self.sandbox.as_ref(), &self.key_directory).await?;
        if removed.is_success() {
            return result;
        }
        let found = removed.found(&self.masker);
        let message = format!("the ssh key could not be removed again: {found}");
        Ok(StepResult::permanent(CauseClass::BootstrapFailed, self.masker.diagnostic(&message)))
    }

    async fn try_with_key(&self) -> Result<StepResult, ProviderError> {
        // Removes what is there already, because it would block the clone.
        let _ = remove(self.sandbox.as_ref(), &self.path).await?;
        let mut env = self.environment();
        self.upload_key(&mut env).await?;
        let ran = self.clone_and_check_out(&env).await?;
        let result = ran.result(&self.masker);
        if result.verdict == StepVerdict::Passed {
            return Ok(result);
        }
        if matches!(ran.finished, Finished::NotStarted(_)) {
            return Ok(StepResult {
                verdict: StepVerdict::Permanent(INCOMPLETE),
                ..self.without_git(&result)
            });
        }
        // A partial repository is worse than none for a run that continues without it.
        let _ = remove(self.sandbox.as_ref(), &self.path).await?;
        Ok(match login_error(&ran) {
            Some(reason) => StepResult {
                verdict: StepVerdict::Permanent(CauseClass::CredentialUnavailable),
                found: self.masker.diagnostic(&format!("{reason} ({})", result.found)),
                ..result
            },
            None => result,
        })
    }

    /// Returns a result that explains what to do if git does not run at all.
    fn without_git(&self, result: &StepResult) -> StepResult {
        let advice = "git does not run in the sandbox; take an image that has it, or install it \
                      in a `[[setup]]` step";
        StepResult {
            found: self.masker.diagnostic(&format!("{advice} ({})", result.found)),
            ..result.clone()
        }
    }

    async fn clone_and_check_out(
        &self,
        env: &BTreeMap<String, SecretString>,
    ) -> Result<CommandOutput, ProviderError> {
        let deadline = Instant::now() + self.limit;
        let (url, path) = (self.repository.url.as_str(), self.path.as_str());
        let clone = ["git", "clone", "--progress"];
        let commit = self.repository.reference.as_deref().filter(|name| is_commit(name));
        let command: Vec<&str> = match (commit, self.repository.reference.as_deref()) {
            (Some(_), _) => [&clone[..], &["--no-checkout", "--", url, path]].concat(),
            (None, Some(name)) => [&clone[..], &["--branch", name, "--", url, path]].concat(),
            (None, None) => [&clone[..], &["--", url, path]].concat(),
        };
        let ran = self.git(command, env, deadline).await?;
        match commit {
            Some(commit) if ran.is_success() => self.check_out(commit, env, deadline).await,
            _ => Ok(ran),
        }
    }

    /// Checks out a commit.
    ///
    /// A commit that is on no branch, such as that of a proposed change, is not part of the clone.
    /// It is fetched by its id.
    async fn check_out(
        &self,
        commit: &str,
        env: &BTreeMap<String, SecretString>,
        deadline: Instant,
    ) -> Result<CommandOutput, ProviderError> {
        let path = self.path.as_str();
        let check_out = ["git", "-C", path, "checkout", "--progress", "--detach", commit];
        let ran = self.git(check_out, env, deadline).await?;
        if ran.is_success() {
            return Ok(ran);
        }
        let fetch = ["git", "-C", path, "fetch", "--progress", "--", "origin", commit];
        let fetched = self.git(fetch, env, deadline).await?;
        match fetched.is_success() {
            true => self.git(check_out, env, deadline).await,
            false => Ok(fetched),
        }
    }

    async fn git<'a>(
        &self,
        command: impl IntoIterator<Item = &'a str>,
        env: &BTreeMap<String, SecretString>,
        deadline: Instant,
    ) -> Result<CommandOutput, ProviderError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let command =
            Command { env: env.clone(), silence: self.silence, ..Command::new(command, left) };
        run(self.sandbox.as_ref(), &command).await
    }

    /// Returns the environment of git, including the login.
    fn environment(&self) -> BTreeMap<String, SecretString> {
        let mut env = self.env.clone();
        let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.into());
        set("GIT_TERMINAL_PROMPT", "0");
        set("GIT_ASKPASS", "true");
        set("LC_ALL", "C");
        if let GitLogin::Password { username, password } = &self.login {
            set("CREEL_GIT_USERNAME", username);
            set("CREEL_GIT_PASSWORD", password.expose_secret());
            set("GIT_CONFIG_COUNT", "2");
            // The empty value comes first, to disable the sandbox's own helpers. They must neither
            // answer nor store the credential.
            set("GIT_CONFIG_KEY_0", "credential.helper");
            set("GIT_CONFIG_VALUE_0", "");
            set("GIT_CONFIG_KEY_1", &format!("credential.{}.helper", origin(&self.repository.url)));
            set("GIT_CONFIG_VALUE_1", HELPER);
        }
        env
    }

    /// Writes the ssh key with private permissions, and configures git to use it.
    async fn upload_key(
        &self,
        env: &mut BTreeMap<String, SecretString>,
    ) -> Result<(), ProviderError> {
        let GitLogin::SshKey { private_key, known_hosts } = &self.login else { return Ok(()) };
        let directory = self.key_directory.as_str();
        let path = format!("{directory}/key");
        let text = format!("{}\n", private_key.expose_secret().trim_end());
        self.sandbox.upload(&path, Bytes::from(text), 0o600).await?;
        let hosts = format!("{directory}/known_hosts");
        let checking = match known_hosts {
            Some(known) => {
                self.sandbox.upload(&hosts, Bytes::from(known.clone()), 0o600).await?;
                "yes"
            }
            None => "accept-new",
        };
        let command = format!(
            "ssh -i '{path}' -o IdentitiesOnly=yes -o BatchMode=yes -o UserKnownHostsFile='{hosts}' \
             -o StrictHostKeyChecking={checking}"
        );
        env.insert("GIT_SSH_COMMAND".to_owned(), command.into());
        Ok(())
    }
}

/// Returns the directory of temporary ssh keys.
fn key_directory(sandbox: &dyn Sandbox) -> String {
    format!("{}/{KEY_DIRECTORY}", sandbox.creel_directory())
}

/// Removes a path from a sandbox, if it exists.
async fn remove(sandbox: &dyn Sandbox, path: &str) -> Result<CommandOutput, ProviderError> {
    run(sandbox, &Command::new(["rm", "-rf", "--", path], REMOVE_LIMIT)).await
}

async fn verify(
    sandbox: &dyn Sandbox,
    path: &str,
    reference: Option<&str>,
    masker: &Masker,
) -> Result<StepResult, ProviderError> {
    let ran = run(sandbox, &Command::new(["sh", "-c", VERIFY, "sh", path], VERIFY_LIMIT)).await?;
    let result = ran.result(masker);
    let failed =
        |found: &'static str| StepResult { found: Diagnostic::ours(found), ..result.clone() };
    let head = match ran.code() {
        Some(0) => ran.line(),
        Some(NO_DIRECTORY) => return Ok(failed("the path does not exist")),
        Some(NO_REPOSITORY) => return Ok(failed("the path has no .git")),
        Some(_) => return Ok(failed("it has no commit: the repository is empty or damaged")),
        None => return Ok(result),
    };
    let Some(reference) = reference else {
        return Ok(StepResult::passed(masker.diagnostic(&format!("at {head}"))));
    };
    let wanted = resolve_commit(sandbox, path, reference).await?;
    let found = masker.diagnostic(&match &wanted {
        Some(wanted) => format!("at {head}, {reference} is {wanted}"),
        None => format!("at {head}, there is no {reference}"),
    });
    let is_expected = wanted.is_some_and(|wanted| wanted == head);
    Ok(if is_expected { StepResult::passed(found) } else { StepResult::retryable(found) })
}

/// Returns the commit that a ref points to on the remote.
///
/// A branch takes precedence over a tag, as in the clone.
async fn resolve_commit(
    sandbox: &dyn Sandbox,
    path: &str,
    reference: &str,
) -> Result<Option<String>, ProviderError> {
    let names = match is_commit(reference) {
        true => vec![reference.to_owned()],
        false => vec![format!("refs/remotes/origin/{reference}"), format!("refs/tags/{reference}")],
    };
    for name in names {
        let name = format!("{name}^{{commit}}");
        let command = ["git", "-C", path, "rev-parse", "--verify", "--quiet", &name];
        let ran = run(sandbox, &Command::new(command, VERIFY_LIMIT)).await?;
        if ran.is_success() {
            return Ok(Some(ran.line()));
        }
    }
    Ok(None)
}

/// Returns what is wrong with the login, if git failed because of it.
fn login_error(ran: &CommandOutput) -> Option<&'static str> {
    let output = String::from_utf8_lossy(&ran.mixed).to_lowercase();
    if output.contains(HOST_KEY_MISMATCH) {
        return Some("the host is not the one that `known_hosts` names");
    }
    let refused = REFUSALS.iter().any(|refusal| output.contains(refusal));
    refused.then_some("the login was refused")
}

/// Returns whether a ref is a full commit id.
fn is_commit(reference: &str) -> bool {
    matches!(reference.len(), 40 | 64) && reference.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the scheme and host of a URL. The login is used for this origin only.
fn origin(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.split('/').next().unwrap_or_default();
            format!("{scheme}://{host}")
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_for_one_host_only() {
        assert_eq!(origin("https://example.org/a/b.git"), "https://example.org");
        assert_eq!(origin("http://127.0.0.1:8080/x"), "http://127.0.0.1:8080");
    }

    #[test]
    fn only_whole_ids_are_commits() {
        assert!(is_commit(&"a1".repeat(20)));
        assert!(!is_commit("main") && !is_commit("a1b2c3") && !is_commit(&"g".repeat(40)));
    }
}
