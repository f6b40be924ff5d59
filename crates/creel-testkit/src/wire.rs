//! A proxy in front of an engine that cuts, delays and falsifies responses.
//!
//! ```text
//!   client ──▶ Wire ──▶ engine
//!               │ one rule fires: cut, lose, reset, hang, half a body, a status, a delay
//! ```
//!
//! Each connection carries one request. The wire sends the engine `Connection: close`, the engine
//! repeats it in its response, and a pooling client opens a new connection for the next request. So
//! every request is subject to the rules, and each fault that fires is counted, so that a test can
//! prove that it happened. Bytes are forwarded as they come; only the request's head is parsed.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self};
use std::time::Duration;

use anyhow::Result;
use memchr::memmem;
use regex::Regex;

use crate::engine::Engine;
use crate::listener::UnixServer;

/// The maximum size of a request head.
const HEAD_LIMIT: usize = 64 * 1024;

/// The effect on a request that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Forwards the request, and closes the client's connection after this long.
    CutAfterSend {
        /// How long the client may wait. An earlier response is discarded.
        after: Duration,
    },
    /// Forwards the request, then reads and discards the whole response.
    LoseResponse,
    /// Closes the connection, and forwards nothing.
    Reset,
    /// Forwards nothing and answers nothing as long as the wire lives.
    Hang,
    /// Passes on the response's head and half of its body.
    HalfBody,
    /// Sends the client this answer, and forwards nothing.
    Status {
        /// The HTTP status.
        code: u16,
        /// The message, in the format of the engine's errors.
        message: String,
    },
    /// Forwards the request after a delay.
    Delay {
        /// The delay.
        by: Duration,
    },
}

/// The requests a fault happens to, and how often.
pub struct Rule {
    method: Option<String>,
    path: Regex,
    probability: f64,
    /// The number of requests that may still be hit.
    left: AtomicU64,
    fault: Fault,
    fired: AtomicU64,
}

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.method.as_deref().unwrap_or("*");
        write!(formatter, "{method} {} {:?} fired {}", self.path, self.fault, self.fired())
    }
}

impl Rule {
    /// Returns a rule for every request whose path (with query) matches the expression.
    ///
    /// # Panics
    ///
    /// Panics when the expression is invalid; it is written in the test.
    pub fn new(path: &str, fault: Fault) -> Self {
        let path = Regex::new(path).expect("the rule's path is a regular expression");
        let (left, fired) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        Self { method: None, path, probability: 1.0, left, fault, fired }
    }

    /// Narrows the rule to one method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Makes the rule fire only with this probability, drawn from the wire's seed.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// Makes the rule fire at most this often.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        self.left.store(count, Ordering::SeqCst);
        self
    }

    /// Returns how often the rule fired.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::SeqCst)
    }

    fn fires(&self, head: &Head, random: &Mutex<fastrand::Rng>) -> bool {
        if self.method.as_deref().is_some_and(|method| method != head.method)
            || !self.path.is_match(&head.path)
        {
            return false;
        }
        let drawn = random.lock().is_ok_and(|mut random| random.f64() < self.probability);
        let take = |left: u64| left.checked_sub(1);
        if !drawn || self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return false;
        }
        self.fired.fetch_add(1, Ordering::SeqCst);
        true
    }
}

/// A running wire. It ends on drop, and cuts hanging connections.
#[derive(Debug)]
pub struct Wire {
    listener: UnixServer,
    shared: Arc<WireState>,
}

struct WireState {
    upstream: PathBuf,
    rules: Mutex<Vec<Arc<Rule>>>,
    random: Mutex<fastrand::Rng>,
    requests: AtomicU64,
    /// Hanging connections, kept open until the wire ends.
    hanging: Mutex<Vec<UnixStream>>,
    /// Connections that are being forwarded, with the requested path.
    open: Mutex<Vec<OpenConnection>>,
}

/// A connection that is being forwarded.
struct OpenConnection {
    /// Its number among all requests.
    number: u64,
    path: String,
    client: UnixStream,
}

impl fmt::Debug for WireState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.rules.lock())
    }
}

impl Wire {
    /// Starts a faultless wire in front of an engine. The seed determines all random decisions.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be created.
    pub fn start(engine: &Engine, seed: u64) -> Result<Self> {
        let shared = Arc::new(WireState {
            upstream: engine.socket().to_owned(),
            rules: Mutex::default(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            requests: AtomicU64::new(0),
            hanging: Mutex::default(),
            open: Mutex::default(),
        });
        let served = Arc::clone(&shared);
        // An error ends only this connection, which its client notices.
        let listener = UnixServer::start("wire.sock", move |client| drop(serve(client, &served)))?;
        Ok(Self { listener, shared })
    }

    /// Adds a rule, and returns it for its count. The first rule that fires applies.
    pub fn add(&self, rule: Rule) -> Arc<Rule> {
        let rule = Arc::new(rule);
        if let Ok(mut rules) = self.shared.rules.lock() {
            rules.push(Arc::clone(&rule));
        }
        rule
    }

    /// Removes all rules. Connections that already hang keep hanging.
    pub fn heal(&self) {
        if let Ok(mut rules) = self.shared.rules.lock() {
            rules.clear();
        }
    }

    /// Cuts the open connections whose path matches, and returns how many.
    ///
    /// # Panics
    ///
    /// Panics when the expression is invalid; it is written in the test.
    pub fn cut(&self, path: &str) -> usize {
        let path = Regex::new(path).expect("the path is a regular expression");
        let open = self.shared.open.lock().expect("no holder of this lock panics");
        let doomed = open.iter().filter(|passed| path.is_match(&passed.path));
        doomed.map(|passed| passed.client.shutdown(Shutdown::Both)).filter(Result::is_ok).count()
    }

    /// Returns the wire as an engine.
    pub fn engine(&self) -> Engine {
        Engine::at(self.listener.socket())
    }

    /// Returns the address in the form of `DOCKER_HOST`.
    pub fn host(&self) -> String {
        self.engine().host()
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Ok(mut hanging) = self.shared.hanging.lock() {
            hanging.clear();
        }
    }
}

fn serve(mut client: UnixStream, shared: &WireState) -> io::Result<()> {
    let Some(head) = Head::read(&mut client)? else { return Ok(()) };
    let number = shared.requests.fetch_add(1, Ordering::SeqCst);
    let rules = shared.rules.lock().map(|rules| rules.clone()).unwrap_or_default();
    let rule = rules.iter().find(|rule| rule.fires(&head, &shared.random));
    match rule.map(|rule| &rule.fault) {
        None => pass_on(client, &head, number, shared),
        Some(Fault::Delay { by }) => {
            thread::sleep(*by);
            exchange(&shared.upstream, client, &head, Passing::All)
        }
        Some(Fault::LoseResponse) => exchange(&shared.upstream, client, &head, Passing::Nothing),
        Some(Fault::HalfBody) => exchange(&shared.upstream, client, &head, Passing::HalfBody),
        Some(Fault::CutAfterSend { after }) => {
            let doomed = client.try_clone()?;
            let after = *after;
            thread::spawn(move || {
                thread::sleep(after);
                let _ = doomed.shutdown(Shutdown::Both);
            });
            exchange(&shared.upstream, client, &head, Passing::Nothing)
        }
        Some(Fault::Reset) => client.shutdown(Shutdown::Both),
        Some(Fault::Hang) => {
            if let Ok(mut hanging) = shared.hanging.lock() {
                hanging.push(client);
            }
            Ok(())
        }
        Some(Fault::Status { code, message }) => {
            head.drain_body(&mut client)?;
            respond(&mut client, *code, message)
        }
    }
}

/// Forwards everything, on a connection that can be cut meanwhile.
fn pass_on(client: UnixStream, head: &Head, number: u64, shared: &WireState) -> io::Result<()> {
    let passed = OpenConnection { number, path: head.path.clone(), client: client.try_clone()? };
    if let Ok(mut open) = shared.open.lock() {
        open.push(passed);
    }
    let ended = exchange(&shared.upstream, client, head, Passing::All);
    if let Ok(mut open) = shared.open.lock() {
        open.retain(|passed| passed.number != number);
    }
    ended
}

/// How much of the response reaches the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passing {
    All,
    HalfBody,
    Nothing,
}

fn exchange(upstream: &Path, client: UnixStream, head: &Head, passing: Passing) -> io::Result<()> {
    let mut engine = UnixStream::connect(upstream)?;
    engine.write_all(&head.closing())?;
    let (mut from_client, mut to_engine) = (client.try_clone()?, engine.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_engine);
        // Attached streams end their input by closing only one direction. A client that was cut did
        // not mean that: the engine would treat it as a cancelled request.
        if passing == Passing::All {
            let _ = to_engine.shutdown(Shutdown::Write);
        }
    });
    let passed = pass(&mut engine, &client, passing);
    let _ = client.shutdown(Shutdown::Both);
    let _ = engine.shutdown(Shutdown::Both);
    passed
}

fn pass(engine: &mut UnixStream, mut client: &UnixStream, passing: Passing) -> io::Result<()> {
    match passing {
        Passing::All => io::copy(engine, &mut client).map(drop),
        Passing::Nothing => io::copy(engine, &mut io::sink()).map(drop),
        Passing::HalfBody => {
            let mut bytes = Vec::new();
            engine.read_to_end(&mut bytes)?;
            let body = memmem::find(&bytes, b"\r\n\r\n").map_or(bytes.len(), |end| end + 4);
            client.write_all(&bytes[..body + (bytes.len() - body) / 2])
        }
    }
}

/// Answers with an error in the engine's format, and closes.
fn respond(client: &mut UnixStream, code: u16, message: &str) -> io::Result<()> {
    let body = serde_json::json!({ "message": message }).to_string();
    write!(
        client,
        "HTTP/1.1 {code} Injected\r\nApi-Version: 1.41\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The head of a request, and the part of the body that came with it.
pub(crate) struct Head {
    pub(crate) method: String,
    /// The path with its query.
    pub(crate) path: String,
    bytes: Vec<u8>,
    /// The offset of the body.
    body: usize,
}

impl Head {
    /// Reads a head. Returns `None` if the client closed without a request.
    pub(crate) fn read(client: &mut UnixStream) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        let body = loop {
            if let Some(end) = memmem::find(&bytes, b"\r\n\r\n") {
                break end + 4;
            }
            let count = client.read(&mut buffer)?;
            if count == 0 || bytes.len() > HEAD_LIMIT {
                return Ok(None);
            }
            bytes.extend_from_slice(&buffer[..count]);
        };
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut parts = line.split(' ').map(str::to_owned);
        let method = parts.next().unwrap_or_default();
        let path = parts.next().unwrap_or_default();
        Ok(Some(Self { method, path, bytes, body }))
    }

    /// Reads the rest of the body. A socket closed with unread bytes resets its peer, and the
    /// answer would be lost.
    pub(crate) fn drain_body(&self, client: &mut UnixStream) -> io::Result<()> {
        let length = self.lines().find_map(|line| header(line, "content-length"));
        let length: usize = length.and_then(|value| value.parse().ok()).unwrap_or(0);
        let unread = length.saturating_sub(self.body().len());
        io::copy(&mut client.take(unread as u64), &mut io::sink()).map(drop)
    }

    /// Returns the part of the body that came with the head.
    fn body(&self) -> &[u8] {
        &self.bytes[self.body..]
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        let text = std::str::from_utf8(&self.bytes[..self.body]).unwrap_or_default();
        text.split("\r\n").filter(|line| !line.is_empty())
    }

    /// Returns the bytes with `Connection: close`, unless the request upgrades the connection.
    fn closing(&self) -> Vec<u8> {
        if self.lines().any(|line| header(line, "upgrade").is_some()) {
            return self.bytes.clone();
        }
        let kept = self.lines().filter(|line| header(line, "connection").is_none());
        let mut head = kept.fold(String::new(), |head, line| head + line + "\r\n");
        head.push_str("Connection: close\r\n\r\n");
        [head.as_bytes(), self.body()].concat()
    }
}

/// Returns the value of a header line with this lower-case name.
fn header<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = line.split_once(':')?;
    key.eq_ignore_ascii_case(name).then(|| value.trim())
}
