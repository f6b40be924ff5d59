//! `creel dev daytona`, run by the real binary: started, told what to do, looked into.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::api::parse_answer;
use crate::creel::{Creel, Running};
use crate::wait::eventually_some;

/// How long the server may take to be ready, and an answer to come.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a server may serve and then stop; it is killed on drop in any case.
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
    /// Starts a server with these further arguments and waits until it is ready.
    ///
    /// # Errors
    ///
    /// Fails when it does not get ready.
    pub fn start(creel: &Creel, arguments: &[&str]) -> Result<Self> {
        let command = [&["dev", "daytona"], arguments].concat();
        let running = creel.clone().deadline(LIFETIME).spawn(command);
        let told = eventually_some(PATIENCE, || serde_json::from_str(&running.stdout()).ok());
        let told: Value = told.with_context(|| format!("not ready: {}", running.stderr()))?;
        let text = |name: &str| {
            let value = told[name].as_str().with_context(|| format!("no {name} in {told}"));
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
        self.ask(method, &format!("{}/{route}", self.admin_url), body)
    }

    /// Makes sandboxes without a process; returns how many.
    ///
    /// # Errors
    ///
    /// Fails when the server does not make them.
    pub fn seed(&self, order: &Value) -> Result<usize> {
        let made = self.admin("POST", "seed", order)?;
        Ok(made["ids"].as_array().map_or(0, Vec::len))
    }

    /// Returns how many sandboxes have these labels, those whose destroy failed included.
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
            let page = self.ask("GET", &next, &json!(null))?;
            count += page["items"].as_array().context("a page has items")?.len();
            let Some(cursor) = page["nextCursor"].as_str() else { return Ok(count) };
            next = format!("{first}&cursor={cursor}");
        }
    }

    /// Asks the server to end and waits for it.
    ///
    /// # Errors
    ///
    /// Fails when it ends with another code than zero.
    pub fn stop(self) -> Result<()> {
        self.running.signal("TERM");
        let output = self.running.wait();
        if output.code() != Some(0) {
            bail!("the server did not end well\n{output}");
        }
        Ok(())
    }

    fn ask(&self, method: &str, url: &str, body: &Value) -> Result<Value> {
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
        let answer = parse_answer(&bytes)?;
        if !answer.is_success() {
            bail!("{method} answered {}: {}", answer.status, answer.text().trim());
        }
        answer.json()
    }
}
