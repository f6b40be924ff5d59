//! Credentials for repositories: obtained here, and passed to git for the
//! duration of a clone.
//!
//! A token or a key comes from the workflow's references. A GitHub App creates
//! its own token: it exchanges a signed JWT for the token of one installation.
//! That token is valid for an hour and only for what the installation may access.

use std::collections::BTreeMap;
use std::time::Duration;

use creel_model::clock::now_ms;
use creel_model::failure::chain;
use creel_model::run::CauseClass;
use creel_sanitise::Diagnostic;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use crate::workflow::Credential;

use super::checklist::{StepResult, StepSpec, StepVerdict};
use super::{Drive, Stopped, tls};

/// How long obtaining a credential may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How many times it is tried.
const TRIES: u32 = 3;
/// The lifetime of an app's JWT. GitHub accepts at most ten minutes.
const JWT_SECONDS: i64 = 540;
/// How far in the past it begins, to allow for clock drift.
const CLOCK_DRIFT_SECONDS: i64 = 60;
/// The username for installation tokens.
const APP_USER: &str = "x-access-token";

/// How git logs in.
#[derive(Debug, Clone)]
pub(super) enum GitLogin {
    /// Without a login.
    None,
    /// With a username and a secret.
    Password { username: String, password: SecretString },
    /// With an ssh key.
    SshKey { private_key: SecretString, known_hosts: Option<String> },
}

/// Why a credential could not be obtained.
#[derive(Debug, thiserror::Error)]
enum CredentialError {
    #[error("{0} is not set")]
    NotSet(String),
    #[error("the private key of the app cannot be used")]
    Key(#[source] jsonwebtoken::errors::Error),
    #[error("GitHub refused the app: status {0}")]
    Refused(u16),
    #[error("GitHub could not be asked")]
    Unreachable(#[source] reqwest::Error),
    #[error("GitHub could not be asked: {0}")]
    Connection(String),
}

impl CredentialError {
    /// Returns whether a retry may help.
    fn may_pass(&self) -> bool {
        match self {
            Self::Refused(status) => *status >= 500 || *status == 429,
            Self::Unreachable(_) => true,
            Self::NotSet(_) | Self::Key(_) | Self::Connection(_) => false,
        }
    }
}

impl Drive {
    /// Obtains every credential that a repository uses.
    pub(super) async fn obtain_credentials(
        &mut self,
    ) -> Result<BTreeMap<String, GitLogin>, Stopped> {
        let mut logins = BTreeMap::new();
        for (name, required) in self.workflow.used_credentials() {
            let Some(credential) = self.workflow.credentials.get(&name).cloned() else { continue };
            if let Some(login) = self.obtain(&name, &credential, required).await? {
                logins.insert(name, login);
            }
        }
        Ok(logins)
    }

    async fn obtain(
        &mut self,
        name: &str,
        credential: &Credential,
        required: bool,
    ) -> Result<Option<GitLogin>, Stopped> {
        let plan = StepSpec {
            tries: TRIES,
            optional: !required,
            class: CauseClass::CredentialUnavailable,
            ..StepSpec::new(
                format!("credential {name}"),
                Diagnostic::ours("the credential can be had"),
                LIMIT,
            )
        };
        let obtained = tokio::sync::Mutex::new(None);
        let masker = self.masker.clone();
        let result = self
            .step(plan, || {
                let (obtained, masker) = (&obtained, masker.clone());
                async move {
                    match login(credential).await {
                        Ok(login) => {
                            *obtained.lock().await = Some(login);
                            Ok(StepResult::passed(Diagnostic::ours("it was obtained")))
                        }
                        Err(error) => Ok(refusal(&error, masker.diagnostic(&chain(&error)))),
                    }
                }
            })
            .await?;
        let login = obtained.into_inner().filter(|_| result.verdict == StepVerdict::Passed);
        if let Some(GitLogin::Password { password, .. }) = &login {
            self.hide(name, password);
        }
        Ok(login)
    }
}

fn refusal(error: &CredentialError, found: Diagnostic) -> StepResult {
    match error.may_pass() {
        true => StepResult::retryable(found),
        false => StepResult::permanent(CauseClass::CredentialUnavailable, found),
    }
}

async fn login(credential: &Credential) -> Result<GitLogin, CredentialError> {
    match credential {
        Credential::Token { username, token } => Ok(GitLogin::Password {
            username: username.clone().unwrap_or_else(|| APP_USER.to_owned()),
            password: token.clone(),
        }),
        Credential::SshKey { private_key, known_hosts } => Ok(GitLogin::SshKey {
            private_key: private_key.clone(),
            known_hosts: known_hosts.clone(),
        }),
        Credential::GithubApp { app_id, installation_id, private_key, api_url } => {
            let jwt = jwt(app_id, private_key).map_err(CredentialError::Key)?;
            let password = installation_token(api_url, installation_id, &jwt).await?;
            Ok(GitLogin::Password { username: APP_USER.to_owned(), password })
        }
        Credential::Missing { reference } => Err(CredentialError::NotSet(reference.clone())),
    }
}

/// The claims of an app's JWT.
#[derive(Debug, Serialize)]
struct AppClaims<'a> {
    iat: i64,
    exp: i64,
    iss: &'a str,
}

/// Creates the signed JWT of an app.
fn jwt(app: &str, key: &SecretString) -> Result<SecretString, jsonwebtoken::errors::Error> {
    let now = now_ms() / 1000;
    let claims = AppClaims { iat: now - CLOCK_DRIFT_SECONDS, exp: now + JWT_SECONDS, iss: app };
    let key = EncodingKey::from_rsa_pem(key.expose_secret().as_bytes())?;
    Ok(jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &key)?.into())
}

#[derive(Deserialize)]
struct InstallationToken {
    token: String,
}

/// Requests a token for an installation.
async fn installation_token(
    api_url: &str,
    installation: &str,
    jwt: &SecretString,
) -> Result<SecretString, CredentialError> {
    let tls = tls::trusting_this_machine()
        .map_err(|error| CredentialError::Connection(error.to_string()))?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .timeout(LIMIT)
        .build()
        .map_err(CredentialError::Unreachable)?;
    let url =
        format!("{}/app/installations/{installation}/access_tokens", api_url.trim_end_matches('/'));
    let response = client
        .post(url)
        .bearer_auth(jwt.expose_secret())
        .header("accept", "application/vnd.github+json")
        .header("user-agent", concat!("creel/", env!("CARGO_PKG_VERSION")))
        .send()
        .await
        .map_err(|error| CredentialError::Unreachable(error.without_url()))?;
    if !response.status().is_success() {
        return Err(CredentialError::Refused(response.status().as_u16()));
    }
    let body = response
        .bytes()
        .await
        .map_err(|error| CredentialError::Unreachable(error.without_url()))?;
    let parsed: InstallationToken = serde_json::from_slice(&body)
        .map_err(|_| CredentialError::Connection("its answer has no token in it".to_owned()))?;
    Ok(parsed.token.into())
}
