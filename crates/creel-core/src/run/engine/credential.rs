//! Credentials for repositories: obtained here, handed to git for as long as a clone takes.
//!
//! A token or a key comes from the workflow's references. A GitHub App mints
//! its own: a signed statement of who it is buys a token for one installation,
//! which is good for an hour and only for what that installation may see.

use std::collections::BTreeMap;
use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use crate::clock::now_ms;
use crate::provider::daytona::tls;
use crate::run::CauseClass;
use crate::sanitise::Diagnostic;
use crate::workflow::Credential;

use super::checklist::{Look, Plan, Verdict};
use super::provision::chain;
use super::{Drive, Stopped};

/// How long obtaining a credential may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How often it is tried, where it has to be asked for.
const TRIES: u32 = 3;
/// How long the statement of an app is good; ten minutes is the most that is taken.
const STATEMENT_SECONDS: i64 = 540;
/// How far in the past it begins, for clocks that differ.
const CLOCK_DRIFT_SECONDS: i64 = 60;
/// Who a token of an installation belongs to.
const APP_USER: &str = "x-access-token";

/// How git logs in.
#[derive(Debug, Clone)]
pub(super) enum Login {
    /// Not at all.
    None,
    /// With a name and a secret.
    Password { username: String, password: SecretString },
    /// With a key.
    SshKey { private_key: SecretString, known_hosts: Option<String> },
}

/// Why a credential could not be had.
#[derive(Debug, thiserror::Error)]
enum Unavailable {
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

impl Unavailable {
    /// Returns whether asking again may help.
    fn may_pass(&self) -> bool {
        match self {
            Self::Refused(status) => *status >= 500 || *status == 429,
            Self::Unreachable(_) => true,
            Self::NotSet(_) | Self::Key(_) | Self::Connection(_) => false,
        }
    }
}

impl Drive {
    /// Obtains every credential that a repository names.
    pub(super) async fn obtain_credentials(&mut self) -> Result<BTreeMap<String, Login>, Stopped> {
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
    ) -> Result<Option<Login>, Stopped> {
        let plan = Plan {
            tries: TRIES,
            optional: !required,
            class: CauseClass::CredentialUnavailable,
            ..Plan::new(
                format!("credential {name}"),
                Diagnostic::ours("the credential can be had"),
                LIMIT,
            )
        };
        let obtained = tokio::sync::Mutex::new(None);
        let masker = self.masker.clone();
        let look = self
            .step(plan, || {
                let (obtained, masker) = (&obtained, masker.clone());
                async move {
                    match login(credential).await {
                        Ok(login) => {
                            *obtained.lock().await = Some(login);
                            Ok(Look::good(Diagnostic::ours("it was obtained")))
                        }
                        Err(error) => Ok(refusal(&error, masker.diagnostic(&chain(&error)))),
                    }
                }
            })
            .await?;
        let login = obtained.into_inner().filter(|_| look.verdict == Verdict::Good);
        if let Some(Login::Password { password, .. }) = &login {
            self.hide(name, password);
        }
        Ok(login)
    }
}

fn refusal(error: &Unavailable, found: Diagnostic) -> Look {
    match error.may_pass() {
        true => Look::bad(found),
        false => Look::hopeless(CauseClass::CredentialUnavailable, found),
    }
}

async fn login(credential: &Credential) -> Result<Login, Unavailable> {
    match credential {
        Credential::Token { username, token } => Ok(Login::Password {
            username: username.clone().unwrap_or_else(|| APP_USER.to_owned()),
            password: token.clone(),
        }),
        Credential::SshKey { private_key, known_hosts } => {
            Ok(Login::SshKey { private_key: private_key.clone(), known_hosts: known_hosts.clone() })
        }
        Credential::GithubApp { app_id, installation_id, private_key, api_url } => {
            let statement = statement(app_id, private_key).map_err(Unavailable::Key)?;
            let password = installation_token(api_url, installation_id, &statement).await?;
            Ok(Login::Password { username: APP_USER.to_owned(), password })
        }
        Credential::Missing { reference } => Err(Unavailable::NotSet(reference.clone())),
    }
}

/// What an app says of itself.
#[derive(Debug, Serialize)]
struct Claims<'a> {
    iat: i64,
    exp: i64,
    iss: &'a str,
}

/// Signs who the app is.
fn statement(app: &str, key: &SecretString) -> Result<SecretString, jsonwebtoken::errors::Error> {
    let now = now_ms() / 1000;
    let claims = Claims { iat: now - CLOCK_DRIFT_SECONDS, exp: now + STATEMENT_SECONDS, iss: app };
    let key = EncodingKey::from_rsa_pem(key.expose_secret().as_bytes())?;
    Ok(jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &key)?.into())
}

#[derive(Deserialize)]
struct Minted {
    token: String,
}

/// Buys a token for an installation.
async fn installation_token(
    api_url: &str,
    installation: &str,
    statement: &SecretString,
) -> Result<SecretString, Unavailable> {
    let tls = tls().map_err(|error| Unavailable::Connection(error.to_string()))?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .timeout(LIMIT)
        .build()
        .map_err(Unavailable::Unreachable)?;
    let url =
        format!("{}/app/installations/{installation}/access_tokens", api_url.trim_end_matches('/'));
    let answer = client
        .post(url)
        .bearer_auth(statement.expose_secret())
        .header("accept", "application/vnd.github+json")
        .header("user-agent", concat!("creel/", env!("CARGO_PKG_VERSION")))
        .send()
        .await
        .map_err(|error| Unavailable::Unreachable(error.without_url()))?;
    if !answer.status().is_success() {
        return Err(Unavailable::Refused(answer.status().as_u16()));
    }
    let body =
        answer.bytes().await.map_err(|error| Unavailable::Unreachable(error.without_url()))?;
    let minted: Minted = serde_json::from_slice(&body)
        .map_err(|_| Unavailable::Connection("its answer has no token in it".to_owned()))?;
    Ok(minted.token.into())
}
