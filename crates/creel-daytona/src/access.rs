//! The address of the API, and the credentials.

use std::time::Duration;

use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};

/// The API, unless `DAYTONA_API_URL` is set.
const DEFAULT_URL: &str = "https://app.daytona.io/api";

/// The environment variables of Daytona, under the names that the official SDKs read.
///
/// Secrets are never shown: `Debug` prints `[REDACTED]` for them.
#[derive(Debug, Clone, Default)]
pub struct DaytonaEnvironment {
    /// `DAYTONA_API_KEY`.
    pub api_key: Option<SecretString>,
    /// `DAYTONA_API_URL`.
    pub api_url: Option<String>,
    /// `DAYTONA_TARGET`: the region where new sandboxes are created.
    pub target: Option<String>,
    /// `DAYTONA_JWT_TOKEN`, used where there is no API key.
    pub jwt_token: Option<SecretString>,
    /// `DAYTONA_ORGANIZATION_ID`, which goes with the token.
    pub organization_id: Option<String>,
    /// `HTTPS_PROXY`: the proxy to use.
    pub proxy: Option<String>,
    /// `NO_PROXY`: the hosts that are reached without the proxy.
    pub no_proxy: Option<String>,
}

impl DaytonaEnvironment {
    /// Returns whether there are any credentials.
    pub fn is_configured(&self) -> bool {
        self.api_key.is_some() || self.jwt_token.is_some()
    }
}

/// Settings of the provider that the environment does not define.
#[derive(Debug, Clone)]
pub struct DaytonaSettings {
    /// Maximum wait for any state, whatever the table of states says.
    pub longest_wait: Duration,
}

impl Default for DaytonaSettings {
    fn default() -> Self {
        Self { longest_wait: Duration::from_secs(600) }
    }
}

/// Why the environment cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAccess {
    /// There is neither a key nor a token.
    #[error("neither DAYTONA_API_KEY nor DAYTONA_JWT_TOKEN is set")]
    NoKey,
    /// The address is not a URL.
    #[error("DAYTONA_API_URL is not an address such as {DEFAULT_URL}: `{given}`")]
    Url {
        /// What was given.
        given: String,
    },
    /// A token was given without its organisation.
    #[error("DAYTONA_JWT_TOKEN needs DAYTONA_ORGANIZATION_ID beside it")]
    NoOrganization,
    /// The key or token cannot be put into a header.
    #[error("{variable} holds characters that no key has")]
    Unprintable {
        /// Which variable.
        variable: &'static str,
    },
    /// The proxy is not a URL, or the connection cannot be prepared.
    #[error("cannot prepare the connection: {detail}")]
    Connection {
        /// Why.
        detail: String,
    },
}

/// The validated address of the API, and the credentials.
#[derive(Debug, Clone)]
pub(super) struct DaytonaAccess {
    /// The API's root, without a trailing slash.
    pub(super) url: Url,
    /// The value of the `Authorization` header.
    pub(super) bearer: SecretString,
    /// The organisation; set only with a token.
    pub(super) organization: Option<String>,
}

impl DaytonaAccess {
    pub(super) fn of(environment: &DaytonaEnvironment) -> Result<Self, InvalidAccess> {
        let given = environment.api_url.as_deref().unwrap_or(DEFAULT_URL);
        let url = api_url(given).ok_or_else(|| InvalidAccess::Url { given: hide_login(given) })?;
        let (secret, variable, organization) = match (&environment.api_key, &environment.jwt_token)
        {
            (Some(key), _) => (key, "DAYTONA_API_KEY", None),
            (None, Some(token)) => {
                let organization =
                    environment.organization_id.clone().ok_or(InvalidAccess::NoOrganization)?;
                (token, "DAYTONA_JWT_TOKEN", Some(organization))
            }
            (None, None) => return Err(InvalidAccess::NoKey),
        };
        let text = secret.expose_secret();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidAccess::Unprintable { variable });
        }
        Ok(Self { url, bearer: format!("Bearer {text}").into(), organization })
    }

    /// Returns whether the credentials are a key, whose own rights can be requested.
    ///
    /// A token has the rights of its user.
    pub(super) fn is_key(&self) -> bool {
        self.organization.is_none()
    }
}

fn api_url(given: &str) -> Option<Url> {
    let url = Url::parse(given.trim().trim_end_matches('/')).ok()?;
    let usable = matches!(url.scheme(), "http" | "https")
        && url.host().is_some()
        && url.username().is_empty()
        && url.password().is_none();
    usable.then_some(url)
}

/// Cuts off a login that the user put into an address.
fn hide_login(given: &str) -> String {
    match (given.find("://"), given.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}://…{}", &given[..scheme], &given[at..])
        }
        _ => given.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_key() -> DaytonaEnvironment {
        DaytonaEnvironment { api_key: Some("dtn_secret".into()), ..DaytonaEnvironment::default() }
    }

    #[test]
    fn nothing_shows_a_secret() {
        let environment = DaytonaEnvironment {
            jwt_token: Some("jwt_secret".into()),
            organization_id: Some("org".to_owned()),
            ..with_key()
        };
        let access = DaytonaAccess::of(&environment).unwrap();
        let shown = format!("{environment:?} {access:?}");
        assert!(!shown.contains("secret"), "{shown}");
        let wrong =
            DaytonaEnvironment { api_url: Some("ftp://me:secret@there".to_owned()), ..with_key() };
        let shown = DaytonaAccess::of(&wrong).unwrap_err().to_string();
        assert!(shown.contains("there") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn the_address_loses_its_last_slash_and_has_a_default() {
        assert_eq!(DaytonaAccess::of(&with_key()).unwrap().url.as_str(), DEFAULT_URL);
        let given = DaytonaEnvironment {
            api_url: Some("http://127.0.0.1:9/api/".to_owned()),
            ..with_key()
        };
        assert_eq!(DaytonaAccess::of(&given).unwrap().url.as_str(), "http://127.0.0.1:9/api");
    }

    #[test]
    fn a_key_wins_over_a_token_and_a_token_needs_its_organisation() {
        let both = DaytonaEnvironment { jwt_token: Some("jwt".into()), ..with_key() };
        assert!(DaytonaAccess::of(&both).unwrap().is_key());
        let token = DaytonaEnvironment { api_key: None, ..both };
        assert_eq!(DaytonaAccess::of(&token).unwrap_err(), InvalidAccess::NoOrganization);
        assert_eq!(DaytonaAccess::of(&Default::default()).unwrap_err(), InvalidAccess::NoKey);
        let broken = DaytonaEnvironment { api_key: Some("a\nb".into()), ..token };
        let variable = "DAYTONA_API_KEY";
        assert_eq!(
            DaytonaAccess::of(&broken).unwrap_err(),
            InvalidAccess::Unprintable { variable }
        );
    }
}
