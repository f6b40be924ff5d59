//! A local Daytona for one test: the real `creel dev daytona`, and its state.

use std::path::Path;
use std::sync::Arc;

use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_testkit::creel::{Creel, Running};
use creel_testkit::http::send;
use creel_testkit::wait::eventually_some;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::PATIENCE;

use super::fixture::BINARY;

/// A running `creel dev daytona`. It is killed on drop, and hollow sandboxes end with it.
#[derive(Debug)]
pub(crate) struct Cloud {
    running: Running,
    url: String,
    key: String,
    admin: String,
    /// The server's own state, which is separate from that of its clients.
    home: TempDir,
}

impl Cloud {
    /// Starts a server whose sandboxes are records and whose states change quickly.
    pub(crate) fn start() -> Self {
        Self::with(&["--hollow", "--fast"])
    }

    /// Starts a server with these flags.
    pub(crate) fn with(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let creel = Creel::without_docker(BINARY, home.path());
        let (running, ready) = serve(&creel, flags);
        let field = |name: &str| ready[name].as_str().unwrap().to_owned();
        let (url, key, admin) = (field("url"), field("api_key"), field("admin_url"));
        Self { running, url, key, admin, home }
    }

    /// Returns a binary that is configured for this cloud.
    pub(crate) fn given_to(&self, creel: Creel) -> Creel {
        creel.env("DAYTONA_API_URL", &self.url).env("DAYTONA_API_KEY", &self.key)
    }

    /// Returns the library's provider for this cloud.
    pub(crate) fn provider(&self) -> Arc<DaytonaProvider> {
        let environment = DaytonaEnvironment {
            api_key: Some(self.key.as_str().into()),
            api_url: Some(self.url.clone()),
            ..DaytonaEnvironment::default()
        };
        Arc::new(DaytonaProvider::connect(&environment, DaytonaSettings::default()).unwrap())
    }

    /// Returns the directory that contains the files of its sandboxes.
    pub(crate) fn directory(&self) -> &Path {
        self.home.path()
    }

    /// Returns the value of `DAYTONA_API_URL`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the value of `DAYTONA_API_KEY`.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Creates a sandbox without a process from a seed of the admin routes, and returns its id.
    ///
    /// Its name is the prefix, a dot and a number.
    pub(crate) fn plant(&self, prefix: &str, mut seed: Value) -> String {
        seed["count"] = json!(1);
        seed["name_prefix"] = json!(format!("{prefix}."));
        let made = self.admin("POST", "seed", &seed);
        made["ids"][0].as_str().unwrap().to_owned()
    }

    /// Makes a sandbox without a process that has exactly this name and these labels; returns its
    /// id, or nothing where the name is taken.
    pub(crate) fn plant_named(&self, name: &str, labels: &Value) -> Option<String> {
        let seed = json!({ "count": 1, "name": name, "labels": labels });
        let made = self.admin("POST", "seed", &seed);
        made["ids"][0].as_str().map(str::to_owned)
    }

    /// Returns every sandbox that is not gone, hidden ones too, as the server itself sees it.
    pub(crate) fn sandboxes(&self) -> Vec<Value> {
        let answer = self.admin("GET", "sandboxes", &Value::Null);
        answer["sandboxes"].as_array().unwrap().clone()
    }

    /// Arms a fault.
    pub(crate) fn arm(&self, fault: &Value) {
        self.admin("POST", "faults", fault);
    }

    /// Disarms all faults.
    pub(crate) fn heal(&self) {
        self.admin("DELETE", "faults", &Value::Null);
    }

    /// Disarms all faults, and returns how often they have fired.
    pub(crate) fn disarm(&self) -> u64 {
        let fired = self.fired();
        self.heal();
        fired
    }

    /// Returns how often the armed faults have fired.
    pub(crate) fn fired(&self) -> u64 {
        let answer = self.admin("GET", "faults", &Value::Null);
        let faults = answer["faults"].as_array().unwrap();
        faults.iter().map(|fault| fault["fired"].as_u64().unwrap()).sum()
    }

    /// Sets the permissions of the key.
    pub(crate) fn permit(&self, scopes: &[&str]) {
        self.admin("PUT", "permissions", &json!(scopes));
    }

    /// Returns how often a route was requested since the last call, and resets the count.
    pub(crate) fn requests(&self, route: &str) -> u64 {
        let counts = self.admin("DELETE", "requests", &Value::Null);
        counts["by_route"][route].as_u64().unwrap_or_default()
    }

    fn admin(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = ask(method, &format!("{}/{path}", self.admin), "", body);
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    /// Sends a request to the API.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        ask(method, &format!("{}/{path}", self.url), &self.key, body)
    }

    /// Returns the state of a sandbox, or the status of the response if it has none.
    pub(crate) fn state(&self, id: &str) -> String {
        let (status, answer) = self.ask("GET", &format!("sandbox/{id}"), &Value::Null);
        answer["state"].as_str().map_or_else(|| status.to_string(), str::to_owned)
    }

    /// Returns the current representation of a sandbox.
    pub(crate) fn sandbox(&self, id: &str) -> Value {
        self.ask("GET", &format!("sandbox/{id}"), &Value::Null).1
    }

    /// Returns the names of all sandboxes, hidden ones included, oldest first.
    pub(crate) fn names(&self) -> Vec<String> {
        let query = "sandbox?limit=200&includeErroredDeleted=true&sort=createdAt&order=asc";
        let (_, page) = self.ask("GET", query, &Value::Null);
        let rows = page["items"].as_array().unwrap();
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the names of all sandboxes without their numbers, sorted.
    pub(crate) fn there(&self) -> Vec<String> {
        let mut names: Vec<String> = self.names().iter().map(|name| stem(name)).collect();
        names.sort();
        names
    }

    /// Signals the server to end, and waits until it has.
    pub(crate) fn end(self) {
        self.running.signal("TERM");
        self.running.wait().expect_code(0);
    }
}

/// Removes the number from a planted name.
pub(crate) fn stem(name: &str) -> String {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned()
}

/// Starts a server and waits until it is ready. Returns its ready report.
pub(crate) fn serve(creel: &Creel, flags: &[&str]) -> (Running, Value) {
    let running = creel.spawn([&["dev", "daytona", "--listen", "127.0.0.1:0"], flags].concat());
    let ready = eventually_some(PATIENCE, || serde_json::from_str(&running.stdout()).ok());
    let ready = ready.unwrap_or_else(|| panic!("not ready: {}", running.stderr()));
    (running, ready)
}

/// Sends a request, and returns the status and the body.
pub(crate) fn ask(method: &str, url: &str, key: &str, body: &Value) -> (u16, Value) {
    send(method, url, key, body).unwrap()
}
