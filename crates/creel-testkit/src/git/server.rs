//! The server in front of the backend: authentication and faults.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::backend::{self, PassedPart};
use super::repository::Origin;
use crate::engine::{Engine, temporary_directory};
use crate::web::{Web, WebRequest, respond};

/// The interval at which a hanging stream checks whether the fault is over.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// A fault of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitFault {
    /// No response until the fault is disarmed; then the response follows.
    Hang,
    /// The pack stops in the middle, and the connection stays open.
    Stall,
    /// The pack stops in the middle, and the connection is closed.
    Cut,
    /// A response with this status.
    Status(u16),
    /// A client with credentials is refused, and the response repeats them.
    Repeat,
    /// A redirect to another server, which has the repository at the same path.
    Moved(String),
}

/// An armed fault with its counters.
#[derive(Debug)]
struct ArmedFault {
    fault: GitFault,
    /// How often it can still happen.
    left: u32,
    /// How often it has happened.
    fired: u32,
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRequest {
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The value of its `Authorization` header.
    pub authorization: Option<String>,
}

/// A running server. It ends on drop, and its repositories are removed.
#[derive(Debug)]
pub struct GitServer {
    web: Web,
    shared: Arc<GitServerState>,
}

#[derive(Debug)]
struct GitServerState {
    root: PathBuf,
    stopped: AtomicBool,
    /// The accepted passwords. If there are none, no login is required.
    passwords: Mutex<Vec<String>>,
    armed_faults: Mutex<BTreeMap<String, ArmedFault>>,
    requests: Mutex<Vec<GitRequest>>,
}

impl GitServer {
    /// Starts a server without repositories that requires no login.
    ///
    /// # Errors
    ///
    /// Fails when it cannot listen.
    pub fn start() -> Result<Self> {
        Self::start_in(None)
    }

    /// Starts a server on the loopback of containers that share the engine's network.
    ///
    /// # Errors
    ///
    /// As [`GitServer::start`].
    pub fn start_beside(engine: &Engine) -> Result<Self> {
        Self::start_in(Some(engine.namespace()))
    }

    fn start_in(namespace: Option<PathBuf>) -> Result<Self> {
        let shared = Arc::new(GitServerState {
            root: temporary_directory()?,
            stopped: AtomicBool::new(false),
            passwords: Mutex::default(),
            armed_faults: Mutex::default(),
            requests: Mutex::default(),
        });
        let served = Arc::clone(&shared);
        let web = Web::start(namespace, move |request, client| served.serve(request, client))?;
        Ok(Self { web, shared })
    }

    /// Creates a repository with a history.
    ///
    /// # Errors
    ///
    /// Fails when git does.
    pub fn add(&self, name: &str) -> Result<Origin> {
        Origin::make(&self.shared.root.join(format!("{name}.git")))
    }

    /// Creates a repository without a commit.
    ///
    /// # Errors
    ///
    /// Fails when git does.
    pub fn add_empty(&self, name: &str) -> Result<()> {
        Origin::make_empty(&self.shared.root.join(format!("{name}.git")))
    }

    /// Returns the address of a repository, whether it exists or not.
    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}.git", self.web.url())
    }

    /// Returns the address of the server.
    pub fn address(&self) -> String {
        self.web.url()
    }

    /// Requires a password from now on. Each call adds another valid one.
    pub fn admit(&self, password: &str) {
        lock(&self.shared.passwords).push(password.to_owned());
    }

    /// Arms a fault of a repository, which fires this many times.
    pub fn arm(&self, name: &str, fault: GitFault, times: u32) {
        let armed = ArmedFault { fault, left: times, fired: 0 };
        lock(&self.shared.armed_faults).insert(name.to_owned(), armed);
    }

    /// Disarms a fault. Hanging requests are answered.
    pub fn disarm(&self, name: &str) {
        lock(&self.shared.armed_faults).remove(name);
    }

    /// Returns how often the fault of a repository has happened.
    pub fn fired(&self, name: &str) -> u32 {
        lock(&self.shared.armed_faults).get(name).map_or(0, |armed| armed.fired)
    }

    /// Returns every request so far.
    pub fn requests(&self) -> Vec<GitRequest> {
        lock(&self.shared.requests).clone()
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let _ = fs::remove_dir_all(&self.shared.root);
    }
}

impl GitServerState {
    fn serve(&self, request: &WebRequest, client: &mut TcpStream) -> io::Result<()> {
        let name = name_of(&request.path);
        lock(&self.requests).push(GitRequest {
            method: request.method.clone(),
            path: request.path.clone(),
            authorization: request.header("authorization").map(str::to_owned),
        });
        match self.fault_of(name) {
            Some(GitFault::Hang) => {
                self.fire(name);
                self.hold(name);
            }
            Some(GitFault::Status(status)) => {
                self.fire(name);
                return respond(client, status, "", b"");
            }
            Some(GitFault::Repeat) => {
                if let Some(login) = request.header("authorization") {
                    self.fire(name);
                    let password = password_of(login).unwrap_or_default();
                    let body = format!("you said {login}, and that is {password}\n");
                    return respond(client, 403, "Content-Type: text/plain\r\n", body.as_bytes());
                }
            }
            Some(GitFault::Moved(to)) => {
                self.fire(name);
                let place = format!("Location: {to}{}?{}\r\n", request.path, request.query);
                return respond(client, 302, &place, b"");
            }
            Some(GitFault::Stall | GitFault::Cut) | None => {}
        }
        if !self.admits(request) {
            return respond(client, 401, "WWW-Authenticate: Basic realm=\"git\"\r\n", b"");
        }
        self.pass(name, request, client)
    }

    /// Answers through the backend. A fault in the middle of the pack happens only to a response
    /// that is long enough.
    fn pass(&self, name: &str, request: &WebRequest, client: &mut TcpStream) -> io::Result<()> {
        let fault = self.fault_of(name);
        let breaks = matches!(fault, Some(GitFault::Stall | GitFault::Cut));
        let passed = backend::respond(request, &self.root, client, breaks)?;
        if passed == PassedPart::Part {
            self.fire(name);
            if fault == Some(GitFault::Stall) {
                self.hold(name);
            }
        }
        Ok(())
    }

    fn fault_of(&self, name: &str) -> Option<GitFault> {
        let armed_faults = lock(&self.armed_faults);
        let armed = armed_faults.get(name).filter(|armed| armed.left > 0);
        armed.map(|armed| armed.fault.clone())
    }

    fn fire(&self, name: &str) {
        if let Some(armed) = lock(&self.armed_faults).get_mut(name) {
            armed.left = armed.left.saturating_sub(1);
            armed.fired += 1;
        }
    }

    /// Waits until the fault is disarmed or the server ends.
    fn hold(&self, name: &str) {
        let lasts = || lock(&self.armed_faults).contains_key(name);
        while lasts() && !self.stopped.load(Ordering::SeqCst) {
            thread::sleep(POLL_PERIOD);
        }
    }

    fn admits(&self, request: &WebRequest) -> bool {
        let passwords = lock(&self.passwords);
        let given = request.header("authorization").and_then(password_of);
        passwords.is_empty() || given.is_some_and(|given| passwords.contains(&given))
    }
}

/// Returns the name of the repository in a path.
fn name_of(path: &str) -> &str {
    path.trim_start_matches('/').split(".git").next().unwrap_or_default()
}

fn password_of(authorization: &str) -> Option<String> {
    let pair = BASE64_STANDARD.decode(authorization.strip_prefix("Basic ")?).ok()?;
    let (_, password) = std::str::from_utf8(&pair).ok()?.split_once(':')?;
    Some(password.to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
