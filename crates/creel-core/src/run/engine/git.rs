//! Repositories: cloned, then verified by a step of its own, however they came.
//!
//! A credential reaches git through its environment, as a helper that prints
//! what the environment holds: never as an argument, never in the repository's
//! settings, never on disk. Only a key for ssh has to be a file; it is lent to the
//! sandbox below creel's own directory, for each clone apart, and taken back after
//! it, and once more before the sandbox is given back or kept, whatever ended the
//! clone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use secrecy::{ExposeSecret, SecretString};
use tracing::warn;

use crate::provider::ProviderError;
use crate::run::CauseClass;
use crate::sandbox::{Command, Finished, Sandbox};
use crate::sanitise::{Diagnostic, Masker};
use crate::workflow::{Credential, Repository};

use super::checklist::{Look, Plan, Ran, TryOnce, Verdict, run};
use super::credential::Login;
use super::workspace::{INCOMPLETE, within};
use super::{Drive, Stopped};

/// How many repositories are cloned at once: enough to hide their servers' delays, few enough
/// for one server and one sandbox to bear.
const CLONES_AT_ONCE: usize = 8;
/// How often a clone is tried.
const CLONE_TRIES: u32 = 2;
/// How long looking at a repository may take.
const VERIFY_LIMIT: Duration = Duration::from_secs(60);
/// How long removing something may take.
const REMOVE_LIMIT: Duration = Duration::from_secs(20);
/// The directory of what is lent to ssh, in creel's own.
const LENT: &str = "lent";
/// What ssh prints of a host that is not the one it knows.
const STRANGE_HOST: &str = "host key verification failed";
/// What git prints of a login that the other side does not take.
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
/// Prints what the environment holds, for git.
const HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
                      \"$CREEL_GIT_USERNAME\" \"$CREEL_GIT_PASSWORD\"; }; f";
/// The exit codes of [`VERIFY`].
const NO_DIRECTORY: i32 = 11;
const NO_REPOSITORY: i32 = 12;
/// Looks at a repository: its directory, its `.git`, the commit it stands at.
const VERIFY: &str = "test -d \"$1\" || exit 11; test -e \"$1/.git\" || exit 12; \
                      exec git -C \"$1\" rev-parse --verify --quiet 'HEAD^{commit}'";

impl Drive {
    /// Clones repositories, several at once; returns those that may be there now.
    pub(super) async fn clone_repositories(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        wanted: Vec<(Repository, Login)>,
    ) -> Result<Vec<Repository>, Stopped> {
        let steps = wanted.iter().enumerate();
        let steps = steps
            .map(|(index, (repository, login))| self.clone_step(sandbox, repository, login, index));
        let steps = steps.collect();
        let looks = self.steps_at_once(steps, CLONES_AT_ONCE).await?;
        if wanted.iter().any(|(_, login)| matches!(login, Login::SshKey { .. })) {
            // Each clone takes its own back; one that was cut off could not.
            self.take_back_keys(sandbox).await?;
        }
        let mut cloned = Vec::new();
        for ((repository, _), look) in wanted.into_iter().zip(looks) {
            if look?.verdict == Verdict::Good {
                cloned.push(repository);
            }
        }
        Ok(cloned)
    }

    fn clone_step(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        repository: &Repository,
        login: &Login,
        index: usize,
    ) -> (Plan, TryOnce) {
        let plan = Plan {
            silence: Some(repository.inactivity),
            tries: CLONE_TRIES,
            optional: !repository.required,
            class: INCOMPLETE,
            ..Plan::new(
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
            lent: format!("{}/{index}", lent(sandbox.as_ref())),
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

    /// Removes the keys that were lent to a sandbox; with one in it, nothing may start there.
    async fn take_back_keys(&self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        match remove(sandbox.as_ref(), &lent(sandbox.as_ref())).await {
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

    /// Removes the keys that a clone left which was cut off together with its run.
    pub(super) async fn leave_no_keys(&self) {
        let is_key = |credential: &Credential| matches!(credential, Credential::SshKey { .. });
        let Some(sandbox) = &self.sandbox else { return };
        let cause = self.journal.state().cause().map(|cause| cause.class);
        let is_lost = cause == Some(CauseClass::SandboxLost);
        if is_lost || !self.workflow.credentials.values().any(is_key) {
            return;
        }
        if self.take_back_keys(sandbox).await.is_err() {
            warn!("an ssh key may be left in the sandbox; it goes with it");
        }
    }

    /// Verifies that repositories are there and stand where they should.
    pub(super) async fn verify_repositories(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        repositories: &[Repository],
    ) -> Result<(), Stopped> {
        let steps = repositories.iter().map(|repository| self.verify_step(sandbox, repository));
        let steps = steps.collect();
        for look in self.steps_at_once(steps, CLONES_AT_ONCE).await? {
            look?;
        }
        Ok(())
    }

    fn verify_step(&self, sandbox: &Arc<dyn Sandbox>, repository: &Repository) -> (Plan, TryOnce) {
        let wanted = repository.reference.as_deref().unwrap_or("its default branch");
        let expected = format!("{} with .git, at {wanted}", repository.path);
        let plan = Plan {
            optional: !repository.required,
            class: INCOMPLETE,
            ..Plan::new(
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

/// One clone, to be tried.
struct Cloning {
    sandbox: Arc<dyn Sandbox>,
    repository: Repository,
    login: Login,
    /// Where it goes.
    path: String,
    /// Where its key is lent: no two clones share one, since several are under way.
    lent: String,
    env: BTreeMap<String, SecretString>,
    limit: Duration,
    silence: Option<Duration>,
    masker: Masker,
}

impl Cloning {
    async fn try_once(&self) -> Result<Look, ProviderError> {
        let look = self.try_with_key().await;
        if !matches!(self.login, Login::SshKey { .. }) {
            return look;
        }
        // With a key left in the sandbox nothing may start there.
        let removed = remove(self.sandbox.as_ref(), &self.lent).await?;
        if removed.is_success() {
            return look;
        }
        let found = removed.found(&self.masker);
        let message = format!("the ssh key could not be removed again: {found}");
        Ok(Look::hopeless(CauseClass::BootstrapFailed, self.masker.diagnostic(&message)))
    }

    async fn try_with_key(&self) -> Result<Look, ProviderError> {
        // What was there before would be in the way.
        let _ = remove(self.sandbox.as_ref(), &self.path).await?;
        let mut env = self.environment();
        self.lend_key(&mut env).await?;
        let ran = self.clone_and_check_out(&env).await?;
        let look = ran.look(&self.masker);
        if look.verdict == Verdict::Good {
            return Ok(look);
        }
        if matches!(ran.finished, Finished::NotStarted(_)) {
            return Ok(Look { verdict: Verdict::Hopeless(INCOMPLETE), ..self.without_git(&look) });
        }
        // Half a repository is worse than none for whoever goes on without it.
        let _ = remove(self.sandbox.as_ref(), &self.path).await?;
        Ok(match why_refused(&ran) {
            Some(reason) => Look {
                verdict: Verdict::Hopeless(CauseClass::CredentialUnavailable),
                found: self.masker.diagnostic(&format!("{reason} ({})", look.found)),
                ..look
            },
            None => look,
        })
    }

    /// Says what it takes where git does not run at all.
    fn without_git(&self, look: &Look) -> Look {
        let advice = "git does not run in the sandbox; take an image that has it, or install it \
                      in a `[[setup]]` step";
        Look {
            found: self.masker.diagnostic(&format!("{advice} ({})", look.found)),
            ..look.clone()
        }
    }

    async fn clone_and_check_out(
        &self,
        env: &BTreeMap<String, SecretString>,
    ) -> Result<Ran, ProviderError> {
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

    /// Checks a commit out. One that no branch leads to, as that of a proposed change, did not
    /// come with the clone and is asked for by its id.
    async fn check_out(
        &self,
        commit: &str,
        env: &BTreeMap<String, SecretString>,
        deadline: Instant,
    ) -> Result<Ran, ProviderError> {
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
    ) -> Result<Ran, ProviderError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let command =
            Command { env: env.clone(), silence: self.silence, ..Command::new(command, left) };
        run(self.sandbox.as_ref(), &command).await
    }

    /// Returns the environment of git, with the login in it.
    fn environment(&self) -> BTreeMap<String, SecretString> {
        let mut env = self.env.clone();
        let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.into());
        set("GIT_TERMINAL_PROMPT", "0");
        set("GIT_ASKPASS", "true");
        set("LC_ALL", "C");
        if let Login::Password { username, password } = &self.login {
            set("CREEL_GIT_USERNAME", username);
            set("CREEL_GIT_PASSWORD", password.expose_secret());
            set("GIT_CONFIG_COUNT", "2");
            // An empty one first: helpers of the sandbox's own must neither answer nor remember.
            set("GIT_CONFIG_KEY_0", "credential.helper");
            set("GIT_CONFIG_VALUE_0", "");
            set("GIT_CONFIG_KEY_1", &format!("credential.{}.helper", origin(&self.repository.url)));
            set("GIT_CONFIG_VALUE_1", HELPER);
        }
        env
    }

    /// Writes the key for ssh where only its owner can read it, and names it to git.
    async fn lend_key(
        &self,
        env: &mut BTreeMap<String, SecretString>,
    ) -> Result<(), ProviderError> {
        let Login::SshKey { private_key, known_hosts } = &self.login else { return Ok(()) };
        let directory = self.lent.as_str();
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

/// Returns the directory of what is lent to ssh.
fn lent(sandbox: &dyn Sandbox) -> String {
    format!("{}/{LENT}", sandbox.creel_directory())
}

/// Removes something from a sandbox, if it is there.
async fn remove(sandbox: &dyn Sandbox, path: &str) -> Result<Ran, ProviderError> {
    run(sandbox, &Command::new(["rm", "-rf", "--", path], REMOVE_LIMIT)).await
}

async fn verify(
    sandbox: &dyn Sandbox,
    path: &str,
    reference: Option<&str>,
    masker: &Masker,
) -> Result<Look, ProviderError> {
    let ran = run(sandbox, &Command::new(["sh", "-c", VERIFY, "sh", path], VERIFY_LIMIT)).await?;
    let look = ran.look(masker);
    let bad = |found: &'static str| Look { found: Diagnostic::ours(found), ..look.clone() };
    let head = match ran.code() {
        Some(0) => ran.line(),
        Some(NO_DIRECTORY) => return Ok(bad("the path does not exist")),
        Some(NO_REPOSITORY) => return Ok(bad("the path has no .git")),
        Some(_) => return Ok(bad("it has no commit: the repository is empty or damaged")),
        None => return Ok(look),
    };
    let Some(reference) = reference else {
        return Ok(Look::good(masker.diagnostic(&format!("at {head}"))));
    };
    let wanted = stands_for(sandbox, path, reference).await?;
    let found = masker.diagnostic(&match &wanted {
        Some(wanted) => format!("at {head}, {reference} is {wanted}"),
        None => format!("at {head}, there is no {reference}"),
    });
    let stands = wanted.is_some_and(|wanted| wanted == head);
    Ok(if stands { Look::good(found) } else { Look::bad(found) })
}

/// Returns the commit that a ref stands for, as the other side said: a branch before a tag, as
/// in the clone.
async fn stands_for(
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

/// Returns what is wrong with the login, if git failed for that.
fn why_refused(ran: &Ran) -> Option<&'static str> {
    let said = String::from_utf8_lossy(&ran.mixed).to_lowercase();
    if said.contains(STRANGE_HOST) {
        return Some("the host is not the one that `known_hosts` names");
    }
    let refused = REFUSALS.iter().any(|refusal| said.contains(refusal));
    refused.then_some("the login was refused")
}

/// Returns whether a ref is the whole id of a commit.
fn is_commit(reference: &str) -> bool {
    matches!(reference.len(), 40 | 64) && reference.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the scheme and host of an address: where the login is for, and nowhere else.
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
