//! A small HTTP server on loopback, as a replacement for a server on the internet.
//!
//! Each connection carries one request and has its own thread. That is enough for a test, and every
//! fault can be simulated on the raw stream.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The maximum size of a request head.
const HEAD_LIMIT: usize = 64 * 1024;
/// The time limit for a client to send its request.
const PATIENCE: Duration = Duration::from_secs(30);

/// A complete request.
#[derive(Debug, Clone)]
pub struct WebRequest {
    /// Its method.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// Its query, without the question mark.
    pub query: String,
    /// Its header lines.
    headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl WebRequest {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Reads a request. Returns `None` if the client closed without one.
    fn read(client: &mut TcpStream) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            let count = client.read(&mut buffer)?;
            if count == 0 || bytes.len() > HEAD_LIMIT {
                return Ok(None);
            }
            bytes.extend_from_slice(&buffer[..count]);
        };
        let mut request = Self::parse(&String::from_utf8_lossy(&bytes[..end]));
        request.body = bytes[end + 4..].to_vec();
        let length = request.header("content-length").and_then(|value| value.parse().ok());
        let unread = length.unwrap_or(0_usize).saturating_sub(request.body.len());
        client.take(unread as u64).read_to_end(&mut request.body)?;
        Ok(Some(request))
    }

    fn parse(head: &str) -> Self {
        let mut lines = head.split("\r\n");
        let mut parts = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
        let method = parts.next().unwrap_or_default();
        let target = parts.next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let pair = |line: &str| {
            let (key, value) = line.split_once(':')?;
            Some((key.to_owned(), value.trim().to_owned()))
        };
        Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: lines.filter_map(pair).collect(),
            body: Vec::new(),
        }
    }
}

/// A running server. It ends on drop.
#[derive(Debug)]
pub(crate) struct Web {
    address: SocketAddr,
    /// The network namespace on whose loopback it listens. `None` means this process's own.
    namespace: Option<PathBuf>,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Web {
    /// Listens on a free port, and answers every request on its own thread.
    pub(crate) fn start(
        namespace: Option<PathBuf>,
        serve: impl Fn(&WebRequest, &mut TcpStream) -> io::Result<()> + Clone + Send + 'static,
    ) -> Result<Self> {
        let bind = || TcpListener::bind(("127.0.0.1", 0));
        let listener = within(namespace.as_deref(), bind).context("no free port")?;
        let address = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        let acceptor = thread::spawn(move || {
            for client in listener.incoming() {
                if flag.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut client) = client else { continue };
                let serve = serve.clone();
                // An error ends only this connection, which its client notices.
                thread::spawn(move || drop(converse(&mut client, serve)));
            }
        });
        Ok(Self { address, namespace, stopped, acceptor: Some(acceptor) })
    }

    /// Returns the base URL, without a slash at the end.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees the flag.
        let _ = within(self.namespace.as_deref(), || TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// Runs an action in a network namespace, on a thread that enters it and ends.
fn within<T: Send>(
    namespace: Option<&Path>,
    action: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some(namespace) = namespace else { return action() };
    let there = || {
        let namespace = File::open(namespace)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        action()
    };
    thread::scope(|scope| scope.spawn(there).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
}

fn converse(
    client: &mut TcpStream,
    serve: impl Fn(&WebRequest, &mut TcpStream) -> io::Result<()>,
) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    match WebRequest::read(client)? {
        Some(request) => serve(&request, client),
        None => Ok(()),
    }
}

/// Writes a complete response. `headers` are lines that end with CRLF.
pub(crate) fn respond(
    client: &mut TcpStream,
    status: u16,
    headers: &str,
    body: &[u8],
) -> io::Result<()> {
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status} Said\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    client.write_all(body)
}
