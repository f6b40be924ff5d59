//! The toolbox of a sandbox that runs: commands, sessions, files, repositories.
//!
//! Two traps of the other side, which callers must know: `exec` feeds the
//! command to a shell's standard input, so a command that reads its input eats
//! what follows it; and a session hangs on here-documents. For anything longer
//! than a line, upload a script and run that with `</dev/null`.

mod demux;
mod files;
mod follow;
mod progress;
mod session;

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::{Method, Url};
use serde::Serialize;
use serde_json::{Value, json};

use crate::provider::{ErrorClass, ProviderError};

use super::bounds;
use super::classify::Refusal;
use super::http::{Http, Login, Request, extended};
use super::model::Sandbox;
use super::wire::Answered;

pub use demux::Stream;
pub use session::{CommandLogs, SessionCommand};

/// How much longer than the command itself its answer may take.
const GRACE: Duration = Duration::from_secs(15);
/// As much of an address is shown.
const SHOWN: usize = 200;
/// How long a transfer of files or of a repository may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);

/// The toolbox of one sandbox.
#[derive(Debug, Clone)]
pub struct Toolbox {
    http: Http,
    base: Url,
    sandbox: String,
}

/// A command to run to its end.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    /// The command, for a shell.
    pub command: String,
    /// Where it runs; `None` means the working directory of the sandbox.
    pub directory: Option<String>,
    /// Its environment, on top of the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// When it is killed; a command without an end would never answer.
    pub limit: Duration,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Executed {
    /// It ended by itself.
    Ended {
        /// Its exit code; −1 where it could not be started.
        code: i64,
        /// What it wrote, both streams mixed.
        output: String,
    },
    /// It was killed at its limit.
    TimedOut,
}

/// A repository to clone.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Repository {
    /// Where it comes from.
    pub url: String,
    /// Where it goes.
    pub path: String,
    /// The branch; `None` means its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The commit; `None` means the newest.
    #[serde(rename = "commit_id", skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// How many commits; `None` means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Who asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The secret of whoever asks.
    #[serde(skip)]
    pub password: Option<secrecy::SecretString>,
}

impl Toolbox {
    /// Finds the toolbox of a sandbox.
    pub(super) fn of(http: &Http, sandbox: &Sandbox) -> Answered<Self> {
        let refused = |message: &str| Refusal::new(ErrorClass::Invalid, message);
        let told = sandbox.toolbox_proxy_url.as_deref();
        let told = told.ok_or_else(|| refused("it does not say where its toolbox is"))?;
        let base = extended(&address(http, told)?, &[&sandbox.id]);
        Ok(Self { http: http.clone(), base, sandbox: sandbox.id.clone() })
    }

    /// Asks for an answer of any kind at the address of the toolboxes.
    pub(super) async fn probe(http: &Http, told: &str) -> Answered<()> {
        // No sandbox has this id; what matters is that something answers that is no web page.
        let url = extended(&address(http, told)?, &["0-no-such-sandbox", "version"]);
        let request = Request { login: Login::Others, ..Request::to_toolbox(Method::GET, url) };
        match http.send(request).await {
            Err(refusal) if refusal.class == ErrorClass::Unreachable => Err(refusal),
            Err(refusal) if refusal.status.is_none() => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Runs a command to its end or its limit.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not answer; whether the command ran is not known then.
    pub async fn exec(&self, exec: &Exec) -> Result<Executed, ProviderError> {
        let mut body = json!({ "command": exec.command, "timeout": exec.limit.as_secs().max(1) });
        if let Some(directory) = &exec.directory {
            body["cwd"] = json!(directory);
        }
        if !exec.env.is_empty() {
            body["envs"] = json!(exec.env);
        }
        let request = Request {
            timeout: exec.limit + GRACE,
            ..Request::to_toolbox(Method::POST, self.url(&["process", "execute"])).with_body(body)
        };
        match self.read(request).await {
            Ok(answer) => Ok(executed(&answer)),
            Err(refusal) if refusal.status == Some(408) => Ok(Executed::TimedOut),
            Err(refusal) => Err(self.during(refusal, "run a command")),
        }
    }

    /// Clones a repository.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be cloned; a login that the repository refuses is `Denied`.
    pub async fn git_clone(&self, repository: &Repository) -> Result<(), ProviderError> {
        use secrecy::ExposeSecret;
        let mut body = json!(repository);
        if let Some(password) = &repository.password {
            body["password"] = json!(password.expose_secret());
        }
        let request = Request {
            timeout: TRANSFER_TIMEOUT,
            // A 401 here is the repository's word about its login, not Daytona's about ours.
            login: Login::Others,
            ..Request::to_toolbox(Method::POST, self.url(&["git", "clone"])).with_body(body)
        };
        let answer = self.http.send(request).await;
        answer.map(drop).map_err(|refusal| self.during(refusal, "clone a repository"))
    }

    fn url(&self, parts: &[&str]) -> Url {
        extended(&self.base, parts)
    }

    async fn read(&self, request: Request) -> Answered<Value> {
        let body = self.http.send(request).await?;
        serde_json::from_slice(&body).map_err(|_| {
            Refusal::new(
                ErrorClass::Transient,
                format!(
                    "the toolbox at {} answered with something that is not JSON",
                    self.origin()
                ),
            )
        })
    }

    /// Returns where it answers, as errors name it.
    fn origin(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    fn during(&self, refusal: Refusal, what: &str) -> ProviderError {
        refusal.during(format!("{what} in sandbox {}", self.sandbox))
    }
}

/// Reads the address of toolboxes as the service names it; one that would take our key over an open
/// connection is refused.
fn address(http: &Http, told: &str) -> Answered<Url> {
    let refused = |message: String| Refusal::new(ErrorClass::Invalid, message);
    let shown = bounds::shortened(told, SHOWN);
    let url: Url =
        told.parse().map_err(|_| refused(format!("`{shown}` is no address of a toolbox")))?;
    let plain = url.scheme() == "http" && http.access().url.scheme() == "https";
    if plain || !matches!(url.scheme(), "http" | "https") {
        let message = format!("the toolbox at {shown} would get our key over an open connection");
        return Err(refused(message));
    }
    Ok(url)
}

/// Reads how a command ended; older toolboxes call the code otherwise.
fn executed(answer: &Value) -> Executed {
    let code = answer.get("exitCode").or_else(|| answer.get("code")).and_then(Value::as_i64);
    let output = answer.get("result").and_then(Value::as_str).unwrap_or_default().to_owned();
    Executed::Ended { code: code.unwrap_or(-1), output }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_the_exit_code_are_read() {
        let ended = |code| Executed::Ended { code, output: "x".to_owned() };
        assert_eq!(executed(&json!({"exitCode": 3, "result": "x"})), ended(3));
        assert_eq!(executed(&json!({"code": 4, "result": "x"})), ended(4));
        assert_eq!(executed(&json!({"result": "x"})), ended(-1));
    }

    #[test]
    fn a_clone_shows_no_password() {
        let repository = Repository { password: Some("hush".into()), ..Repository::default() };
        assert!(!format!("{repository:?} {}", json!(repository)).contains("hush"));
    }
}
