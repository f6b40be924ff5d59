//! The transport to the service for requests that other clients make.
//!
//! Nothing is added to these requests, none is rate-limited here, and none is sent twice.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Client, Response, Url};
use secrecy::{ExposeSecret, SecretString};

use super::access::{DaytonaAccess, DaytonaEnvironment, InvalidAccess};
use super::http;

/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum idle time of a connection. A server closes connections after five idle seconds, and a
/// request that races with the close is lost.
const REST: Duration = Duration::from_secs(4);
/// The header that names the organisation of a token.
const ORGANIZATION: &str = "x-daytona-organization-id";

/// The transport to the service.
#[derive(Debug)]
pub struct PassthroughClient {
    shared: Client,
    /// Opens a new connection each time.
    fresh: Client,
    url: Url,
    bearer: SecretString,
    organization: Option<String>,
}

impl PassthroughClient {
    /// Prepares a client from the environment.
    ///
    /// # Errors
    ///
    /// Fails when the address or the key is not valid.
    pub fn of(environment: &DaytonaEnvironment) -> Result<Self, InvalidAccess> {
        let DaytonaAccess { url, bearer, organization } = DaytonaAccess::of(environment)?;
        let failed = |detail: String| InvalidAccess::Connection { detail };
        let tls = http::tls().map_err(|error| failed(error.to_string()))?;
        let client = |most_idle| {
            let builder = http::client(environment, &tls)?
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(REST)
                .pool_max_idle_per_host(most_idle)
                .retry(reqwest::retry::never());
            builder.build().map_err(|error| failed(error.to_string()))
        };
        Ok(Self { shared: client(usize::MAX)?, fresh: client(0)?, url, bearer, organization })
    }

    /// Returns the address of the API.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns whether a request uses the same login as creel.
    ///
    /// Objects that another login creates may be inaccessible to us.
    pub fn is_our_login(&self, headers: &HeaderMap) -> bool {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let organization = self.organization.as_deref();
        text(AUTHORIZATION.as_str()) == Some(self.bearer.expose_secret())
            && organization.is_none_or(|ours| text(ORGANIZATION) == Some(ours))
    }

    /// Sends a request.
    pub async fn send(&self, request: reqwest::Request) -> reqwest::Result<Response> {
        self.shared.execute(request).await
    }

    /// Sends a request over a new connection, so that a connection that is being closed cannot lose
    /// it.
    pub async fn send_alone(&self, request: reqwest::Request) -> reqwest::Result<Response> {
        self.fresh.execute(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_same_login_is_ours() {
        let token = DaytonaEnvironment {
            jwt_token: Some("jwt".into()),
            organization_id: Some("org".to_owned()),
            ..DaytonaEnvironment::default()
        };
        let passthrough = PassthroughClient::of(&token).unwrap();
        let headers = |bearer: &str, organization: &str| {
            let pairs = [(AUTHORIZATION.as_str(), bearer), (ORGANIZATION, organization)];
            let pair = |(name, value): (&str, &str)| {
                (name.parse::<reqwest::header::HeaderName>().unwrap(), value.parse().unwrap())
            };
            pairs.map(pair).into_iter().collect::<HeaderMap>()
        };
        assert!(passthrough.is_our_login(&headers("Bearer jwt", "org")));
        assert!(!passthrough.is_our_login(&headers("Bearer jwt", "other")));
        assert!(!passthrough.is_our_login(&headers("Bearer key", "org")));
        assert!(!passthrough.is_our_login(&HeaderMap::new()));
        assert!(!format!("{passthrough:?}").contains("jwt"));
    }
}
