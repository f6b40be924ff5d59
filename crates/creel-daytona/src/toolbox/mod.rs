//! The toolbox of a running sandbox: commands, sessions, files, repositories.
//!
//! Callers must know two pitfalls of the toolbox. `exec` feeds the command to a shell's standard
//! input, so a command that reads its input consumes what follows it. A session hangs on
//! here-documents. For anything longer than a line, upload a script and run that with `</dev/null`.

mod demux;
mod files;
mod follow;
mod progress;
mod session;

use std::collections::BTreeMap;
use std::time::Duration;

use creel_model::provider::{ErrorClass, ProviderError};
use reqwest::{Method, Url};
use serde::Serialize;
use serde_json::{Value, json};

use super::api::DaytonaResult;
use super::bounds;
use super::classify::DaytonaError;
use super::http::{ApiRequest, Http, LoginOwner, extended};
use super::model::DaytonaSandbox;

pub use demux::Stream;
pub use session::{CommandLogs, SessionCommand};

/// How much longer than the command itself its response may take.
const GRACE: Duration = Duration::from_secs(15);
/// How much of an address is shown.
const SHOWN: usize = 200;
/// Timeout for a response that requires no work.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a transfer of files or of a repository.
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
    /// Its working directory; `None` means that of the sandbox.
    pub directory: Option<String>,
    /// Its environment, on top of the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// When it is killed; without a limit an endless command would never return.
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
        /// Its output, both streams mixed.
        output: String,
    },
    /// It was killed at its limit.
    TimedOut,
}

/// A repository to clone.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Repository {
    /// Its address.
    pub url: String,
    /// The target path.
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
    /// The user name of the login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password of the login.
    #[serde(skip)]
    pub password: Option<secrecy::SecretString>,
}

impl Toolbox {
    /// Returns the toolbox of a sandbox.
    pub(super) fn of(http: &Http, sandbox: &DaytonaSandbox) -> DaytonaResult<Self> {
        let refused = |message: &str| DaytonaError::new(ErrorClass::Invalid, message);
        let advertised = sandbox.toolbox_proxy_url.as_deref();
        let advertised =
            advertised.ok_or_else(|| refused("it does not say where its toolbox is"))?;
        let base = extended(&address(http, advertised)?, &[&sandbox.id]);
        Ok(Self { http: http.clone(), base, sandbox: sandbox.id.clone() })
    }

    /// Checks that the address of the toolboxes sends any response.
    pub(super) async fn probe(http: &Http, advertised: &str) -> DaytonaResult<()> {
        // No sandbox has this id; any response that is not a web page is enough.
        let url = extended(&address(http, advertised)?, &["0-no-such-sandbox", "version"]);
        let request = ApiRequest {
            login: LoginOwner::Others,
            timeout: PROBE_TIMEOUT,
            ..ApiRequest::to_toolbox(Method::GET, url)
        };
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
    /// Fails when the toolbox does not respond; it is then unknown whether the command ran.
    pub async fn exec(&self, exec: &Exec) -> Result<Executed, ProviderError> {
        let mut body = json!({ "command": exec.command, "timeout": exec.limit.as_secs().max(1) });
        if let Some(directory) = &exec.directory {
            body["cwd"] = json!(directory);
        }
        if !exec.env.is_empty() {
            body["envs"] = json!(exec.env);
        }
        let request = ApiRequest {
            timeout: exec.limit + GRACE,
            ..ApiRequest::to_toolbox(Method::POST, self.url(&["process", "execute"]))
                .with_body(body)
        };
        match self.read(request).await {
            Ok(response) => Ok(executed(&response)),
            Err(refusal) if refusal.status == Some(408) => Ok(Executed::TimedOut),
            Err(refusal) => Err(self.during(refusal, "run a command")),
        }
    }

    /// Clones a repository.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be cloned; `Denied` means that the repository refuses the login.
    pub async fn git_clone(&self, repository: &Repository) -> Result<(), ProviderError> {
        use secrecy::ExposeSecret;
        let mut body = json!(repository);
        if let Some(password) = &repository.password {
            body["password"] = json!(password.expose_secret());
        }
        let request = ApiRequest {
            timeout: TRANSFER_TIMEOUT,
            // A 401 here comes from the repository about its login, not from Daytona about ours.
            login: LoginOwner::Others,
            ..ApiRequest::to_toolbox(Method::POST, self.url(&["git", "clone"])).with_body(body)
        };
        let result = self.http.send(request).await;
        result.map(drop).map_err(|refusal| self.during(refusal, "clone a repository"))
    }

    fn url(&self, parts: &[&str]) -> Url {
        extended(&self.base, parts)
    }

    async fn read(&self, request: ApiRequest) -> DaytonaResult<Value> {
        let body = self.http.send(request).await?;
        serde_json::from_slice(&body).map_err(|_| {
            DaytonaError::new(
                ErrorClass::Transient,
                format!(
                    "the toolbox at {} answered with something that is not JSON",
                    self.origin()
                ),
            )
        })
    }

    /// Returns its address, as errors name it.
    fn origin(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    fn during(&self, refusal: DaytonaError, what: &str) -> ProviderError {
        refusal.during(format!("{what} in sandbox {}", self.sandbox))
    }
}

/// Parses the address of the toolboxes, and rejects one that would get our key unencrypted.
fn address(http: &Http, advertised: &str) -> DaytonaResult<Url> {
    let refused = |message: String| DaytonaError::new(ErrorClass::Invalid, message);
    let shown = bounds::shortened(advertised, SHOWN);
    let url: Url =
        advertised.parse().map_err(|_| refused(format!("`{shown}` is no address of a toolbox")))?;
    let plain = url.scheme() == "http" && http.access().url.scheme() == "https";
    if plain || !matches!(url.scheme(), "http" | "https") {
        let message = format!("the toolbox at {shown} would get our key over an open connection");
        return Err(refused(message));
    }
    Ok(url)
}

/// Parses how a command ended; older toolboxes use another name for the code.
fn executed(response: &Value) -> Executed {
    let code = response.get("exitCode").or_else(|| response.get("code")).and_then(Value::as_i64);
    let output = response.get("result").and_then(Value::as_str).unwrap_or_default().to_owned();
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
