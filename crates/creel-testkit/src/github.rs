//! A fake of the one GitHub endpoint that creel uses: tokens for an app's installation.
//!
//! It accepts only what GitHub accepts: the JWT must be signed with the app's key, name the app,
//! already be valid, and expire within ten minutes.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde_json::json;

use crate::web::{Web, WebRequest, respond};

/// How far in the future a JWT may expire, in seconds.
const LONGEST: u64 = 600;

/// An app, with the data that its owner has.
#[derive(Debug, Clone)]
pub struct App {
    /// The app's id.
    pub id: u64,
    /// The id of its installation.
    pub installation: u64,
    /// The private key, in the format that GitHub issues.
    pub private_key: String,
    public_key: String,
}

impl App {
    /// Creates an app with its own key.
    ///
    /// # Errors
    ///
    /// Fails when the key cannot be created.
    pub fn make() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let key = directory.path().join("key");
        keygen(&["-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "", "-C", "app"], &key)?;
        let public_key = keygen(&["-e", "-m", "PKCS8"], &key)?;
        let private_key = fs::read_to_string(&key)?;
        Ok(Self { id: 12_345, installation: 67_890, private_key, public_key })
    }
}

/// Runs `ssh-keygen` on a key, and returns its output.
fn keygen(arguments: &[&str], key: &Path) -> Result<String> {
    let output = Command::new("ssh-keygen")
        .args(arguments)
        .arg("-f")
        .arg(key)
        .output()
        .context("cannot run ssh-keygen (package openssh-client)")?;
    if !output.status.success() {
        bail!("ssh-keygen failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A running fake. It ends on drop.
#[derive(Debug)]
pub struct Github {
    web: Web,
    shared: Arc<GithubState>,
}

#[derive(Debug)]
struct GithubState {
    app: App,
    token: String,
    /// The statuses to answer instead of a token, one per request.
    refusals: Mutex<Vec<u16>>,
    /// The status of every response.
    statuses: Mutex<Vec<u16>>,
}

impl Github {
    /// Starts a fake with one app and one token for it.
    ///
    /// # Errors
    ///
    /// Fails when it cannot listen.
    pub fn start(app: &App, token: &str) -> Result<Self> {
        let shared = Arc::new(GithubState {
            app: app.clone(),
            token: token.to_owned(),
            refusals: Mutex::default(),
            statuses: Mutex::default(),
        });
        let served = Arc::clone(&shared);
        let web = Web::start(None, move |request, client| served.serve(request, client))?;
        Ok(Self { web, shared })
    }

    /// Returns the base URL of the API.
    pub fn url(&self) -> String {
        self.web.url()
    }

    /// Answers the next request with this status, whatever it is.
    pub fn refuse_once(&self, status: u16) {
        self.shared.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(status);
    }

    /// Returns the status of every response so far.
    pub fn statuses(&self) -> Vec<u16> {
        self.shared.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl GithubState {
    fn serve(&self, request: &WebRequest, client: &mut TcpStream) -> io::Result<()> {
        let scripted = {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            if refusals.is_empty() { None } else { Some(refusals.remove(0)) }
        };
        let status = scripted.unwrap_or_else(|| self.status_for(request));
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).push(status);
        let body = match status {
            201 => json!({ "token": self.token, "expires_at": "2100-01-01T00:00:00Z" }),
            _ => json!({ "message": "no" }),
        };
        let kind = "Content-Type: application/json\r\n";
        respond(client, status, kind, body.to_string().as_bytes())
    }

    /// Returns the status that GitHub would answer with.
    fn status_for(&self, request: &WebRequest) -> u16 {
        let place = format!("/app/installations/{}/access_tokens", self.app.installation);
        let jwt = request
            .header("authorization")
            .and_then(|line| line.strip_prefix("Bearer ").or_else(|| line.strip_prefix("bearer ")));
        if request.header("user-agent").is_none() {
            return 403;
        }
        if !jwt.is_some_and(|jwt| is_valid(jwt, &self.app)) {
            return 401;
        }
        if request.method == "POST" && request.path == place { 201 } else { 404 }
    }
}

#[derive(Debug, Deserialize)]
struct AppClaims {
    iat: u64,
    exp: u64,
    iss: String,
}

/// Returns whether a JWT is the app's own and currently valid.
fn is_valid(jwt: &str, app: &App) -> bool {
    let Ok(key) = DecodingKey::from_rsa_pem(app.public_key.as_bytes()) else { return false };
    let mut wanted = Validation::new(Algorithm::RS256);
    wanted.leeway = 0;
    let Ok(read) = jsonwebtoken::decode::<AppClaims>(jwt, &key, &wanted) else {
        return false;
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let claims = read.claims;
    claims.iss == app.id.to_string() && claims.iat <= now && claims.exp <= now + LONGEST
}
