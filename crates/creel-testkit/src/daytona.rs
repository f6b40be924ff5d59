//! `creel dev daytona`, run by the real binary: start it, control it, inspect it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::api::parse_response;
use crate::creel::{Creel, Running};
use crate::wait::eventually_some;

/// The time limit for the server to start, and for a response.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit for the whole run of a server. It is killed on drop in any case.
const LIFETIME: Duration = Duration::from_secs(2 * 3600);

/// A running server.
#[derive(Debug)]
pub struct LocalDaytona {
    running: Running,
    url: String,
    api_key: String,
    admin_url: String,
}

impl LocalDaytona {
    /// Starts a server with these additional arguments, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// Fails when it does not become ready.
    pub fn start(creel: &Creel, arguments: &[&str]) -> Result<Self> {
        let command = [&["dev", "daytona"], arguments].concat();
        let running = creel.clone().deadline(LIFETIME).spawn(command);
        let ready = eventually_some(PATIENCE, || serde_json::from_str(&running.stdout()).ok());
        let ready: Value = ready.with_context(|| format!("not ready: {}", running.stderr()))?;
        let text = |name: &str| {
            let value = ready[name].as_str().with_context(|| format!("no {name} in {ready}"));
            value.map(str::to_owned)
        };
        Ok(Self {
            url: text("url")?,
            api_key: text("api_key")?,
            admin_url: text("admin_url")?,
            running,
        })
    }

    /// Returns the variables by which clients find it.
    pub fn environment(&self) -> [(&'static str, &str); 2] {
        [("DAYTONA_API_URL", &self.url), ("DAYTONA_API_KEY", &self.api_key)]
    }

    /// Sends a request to an admin route, such as `faults`.
    ///
    /// # Errors
    ///
    /// Fails when it does not answer with success.
    pub fn admin(&self, method: &str, route: &str, body: &Value) -> Result<Value> {
        self.send(method, &format!("{}/{route}", self.admin_url), body)
    }

    /// Creates sandboxes without a process, and returns how many.
    ///
    /// # Errors
    ///
    /// Fails when the server does not create them.
    pub fn seed(&self, seed: &Value) -> Result<usize> {
        let created = self.admin("POST", "seed", seed)?;
        Ok(created["ids"].as_array().map_or(0, Vec::len))
    }

    /// Returns how many sandboxes have these labels, including those whose destroy failed.
    ///
    /// # Errors
    ///
    /// Fails when the server does not list them.
    pub fn count(&self, labels: &Value) -> Result<usize> {
        let labels = crate::api::escape(&labels.to_string());
        let first = format!(
            "{}/sandbox?limit=200&sort=createdAt&order=asc&includeErroredDeleted=true&labels={labels}",
            self.url
        );
        let (mut count, mut next) = (0, first.clone());
        loop {
            let page = self.send("GET", &next, &json!(null))?;
            count += page["items"].as_array().context("a page has items")?.len();
            let Some(cursor) = page["nextCursor"].as_str() else { return Ok(count) };
            next = format!("{first}&cursor={cursor}");
        }
    }

    /// Asks the server to end, and waits for it.
    ///
    /// # Errors
    ///
    /// Fails when its exit code is not zero.
    pub fn stop(self) -> Result<()> {
        self.running.signal("TERM");
        let output = self.running.wait();
        if output.code() != Some(0) {
            bail!("the server did not end well\n{output}");
        }
        Ok(())
    }

    fn send(&self, method: &str, url: &str, body: &Value) -> Result<Value> {
        let address = url.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        let (authority, path) = address.with_context(|| format!("{url} is no address"))?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(authority).context("the server does not answer")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "{method} /{path} HTTP/1.1\r\nHost: {authority}\r\nAuthorization: Bearer {}\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.api_key,
            body.len()
        )?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).context("the answer was cut")?;
        let response = parse_response(&bytes)?;
        if !response.is_success() {
            bail!("{method} answered {}: {}", response.status, response.text().trim());
        }
        response.json()
    }
}
