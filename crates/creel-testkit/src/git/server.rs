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
pub enum Fault {
    /// No response until the fault is mended; then the response follows.
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

/// A fault with its counters.
#[derive(Debug)]
struct Trouble {
    fault: Fault,
    /// How often it can still happen.
    left: u32,
    /// How often it has happened.
    fired: u32,
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
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
    troubles: Mutex<BTreeMap<String, Trouble>>,
    asked: Mutex<Vec<Asked>>,
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
            troubles: Mutex::default(),
            asked: Mutex::default(),
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

    /// Makes a fault happen to a repository, this many times.
    pub fn trouble(&self, name: &str, fault: Fault, times: u32) {
        let trouble = Trouble { fault, left: times, fired: 0 };
        lock(&self.shared.troubles).insert(name.to_owned(), trouble);
    }

    /// Ends a fault. Hanging requests are answered.
    pub fn mend(&self, name: &str) {
        lock(&self.shared.troubles).remove(name);
    }

    /// Returns how often the fault of a repository has happened.
    pub fn fired(&self, name: &str) -> u32 {
        lock(&self.shared.troubles).get(name).map_or(0, |trouble| trouble.fired)
    }

    /// Returns every request so far.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.asked).clone()
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
        lock(&self.asked).push(Asked {
            method: request.method.clone(),
            path: request.path.clone(),
            authorization: request.header("authorization").map(str::to_owned),
        });
        match self.fault_of(name) {
            Some(Fault::Hang) => {
                self.fire(name);
                self.hold(name);
            }
            Some(Fault::Status(status)) => {
                self.fire(name);
                return respond(client, status, "", b"");
            }
            Some(Fault::Repeat) => {
                if let Some(login) = request.header("authorization") {
                    self.fire(name);
                    let password = password_of(login).unwrap_or_default();
                    let said = format!("you said {login}, and that is {password}\n");
                    return respond(client, 403, "Content-Type: text/plain\r\n", said.as_bytes());
                }
            }
            Some(Fault::Moved(to)) => {
                self.fire(name);
                let place = format!("Location: {to}{}?{}\r\n", request.path, request.query);
                return respond(client, 302, &place, b"");
            }
            Some(Fault::Stall | Fault::Cut) | None => {}
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
        let breaks = matches!(fault, Some(Fault::Stall | Fault::Cut));
        let passed = backend::respond(request, &self.root, client, breaks)?;
        if passed == PassedPart::Part {
            self.fire(name);
            if fault == Some(Fault::Stall) {
                self.hold(name);
            }
        }
        Ok(())
    }

    fn fault_of(&self, name: &str) -> Option<Fault> {
        let troubles = lock(&self.troubles);
        let trouble = troubles.get(name).filter(|trouble| trouble.left > 0);
        trouble.map(|trouble| trouble.fault.clone())
    }

    fn fire(&self, name: &str) {
        if let Some(trouble) = lock(&self.troubles).get_mut(name) {
            trouble.left = trouble.left.saturating_sub(1);
            trouble.fired += 1;
        }
    }

    /// Waits until the repository is mended or the server ends.
    fn hold(&self, name: &str) {
        let lasts = || lock(&self.troubles).contains_key(name);
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
