//! A server for one test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use creel_core::scope::Supervisor;
use creel_daytona_server::{Delays, Running, SandboxHost, Server, Settings};
use creel_docker::{DockerProvider, Endpoint};
use creel_ledger::Ledger;
use creel_model::provider::Providers;
use creel_testkit::engine::Engine;
use creel_testkit::image::REFERENCE;
use creel_testkit::wait::eventually_some;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::client::{Request, Response, send};
use crate::server::{process_backend, runtime};

/// The time limit for a state to appear.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The program that holds process trees, and that is a server which a test kills.
pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_creel-daytona-test-helper");

/// A running server, with helpers to send requests.
pub(crate) struct ServerFixture {
    runtime: Runtime,
    running: Option<Running>,
    home: Option<tempfile::TempDir>,
}

impl ServerFixture {
    /// Starts a server whose sandboxes are records, after a change to its settings.
    pub(crate) fn hollow(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::hollow();
        change(&mut settings);
        Self::start(runtime(), settings, None)
    }

    /// Starts a server whose sandboxes are process trees.
    pub(crate) fn process() -> Self {
        Self::process_with(|_| {})
    }

    /// Starts a server whose sandboxes are process trees, after a change to its settings.
    pub(crate) fn process_with(change: impl FnOnce(&mut Settings)) -> Self {
        let home = tempfile::tempdir().expect("a directory can be made");
        let runtime = runtime();
        let backend = runtime.block_on(process_backend(home.path(), HELPER));
        let mut settings = Settings { delays: Delays::fast(), ..Settings::new(backend) };
        change(&mut settings);
        Self::start(runtime, settings, Some(home))
    }

    /// Starts a server whose sandboxes are containers of the suite's engine.
    pub(crate) fn docker(engine: &Engine) -> Self {
        let home = tempfile::tempdir().expect("a directory can be made");
        let runtime = runtime();
        let backend = runtime.block_on(docker_backend(home.path(), engine));
        let settings = Settings { delays: Delays::fast(), ..Settings::new(backend) };
        Self::start(runtime, settings, Some(home))
    }

    fn start(runtime: Runtime, settings: Settings, home: Option<tempfile::TempDir>) -> Self {
        let running = runtime.block_on(Server::start(settings)).expect("loopback has a free port");
        Self { runtime, running: Some(running), home }
    }

    /// Returns the server.
    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs until it is stopped")
    }

    /// Returns the directory of the process sandboxes.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.home.as_ref().expect("it has process sandboxes").path().join("sandboxes")
    }

    /// Stops the server.
    pub(crate) fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running.stop());
        }
    }

    /// Sends a request with the key.
    pub(crate) fn try_send(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> std::io::Result<Response> {
        let (running, path) = (self.running(), path.trim_start_matches('/'));
        let base = running.url();
        let url = match path.strip_prefix("toolbox/") {
            Some(rest) => format!("{}/toolbox/{rest}", base.trim_end_matches("/api")),
            None => format!("{base}/{path}"),
        };
        let key = format!("Bearer {}", running.api_key());
        let headers = [("Authorization", key.as_str()), ("Content-Type", "application/json")];
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        send(&Request { method, url: &url, headers: &headers, body: &body })
    }

    /// Sends a request that must be answered.
    #[track_caller]
    pub(crate) fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        self.try_send(method, path, body).expect("the server answers")
    }

    /// Sends a GET request.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, &Value::Null)
    }

    /// Sends a POST request without a body.
    #[track_caller]
    pub(crate) fn post(&self, path: &str) -> Response {
        self.send("POST", path, &Value::Null)
    }

    /// Creates a sandbox, and returns its id.
    #[track_caller]
    pub(crate) fn create(&self, body: &Value) -> String {
        let created = self.send("POST", "sandbox", body).expect(200);
        created["id"].as_str().expect("every sandbox has an id").to_owned()
    }

    /// Sends a request to the admin routes.
    #[track_caller]
    pub(crate) fn admin(&self, method: &str, path: &str, body: &Value) -> Value {
        let url = format!("{}/{path}", self.running().admin_url());
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request { method, url: &url, headers: &[], body: &body };
        send(&request).expect("the server answers").expect(200)
    }

    /// Arms a fault.
    #[track_caller]
    pub(crate) fn arm(&self, fault: &Value) {
        self.admin("POST", "faults", fault);
    }

    /// Returns how often each fault has fired, first armed first.
    pub(crate) fn fired(&self) -> Vec<u64> {
        let faults = self.admin("GET", "faults", &Value::Null);
        let faults = faults["faults"].as_array().expect("it is a list");
        faults.iter().filter_map(|fault| fault["fired"].as_u64()).collect()
    }

    /// Creates hollow sandboxes, and returns their ids.
    #[track_caller]
    pub(crate) fn seed(&self, seed: &Value) -> Vec<String> {
        let created = self.admin("POST", "seed", seed);
        let ids = created["ids"].as_array().expect("it is a list");
        ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect()
    }

    /// Returns the state that get shows, or the status if it shows none.
    pub(crate) fn state(&self, key: &str) -> String {
        let response = self.get(&format!("sandbox/{key}"));
        match response.json()["state"].as_str() {
            Some(state) => state.to_owned(),
            None => response.status.to_string(),
        }
    }

    /// Waits until get shows a state.
    #[track_caller]
    pub(crate) fn await_state(&self, key: &str, state: &str) {
        let mut last = String::new();
        let seen = eventually_some(PATIENCE, || {
            last = self.state(key);
            (last == state).then_some(())
        });
        assert!(seen.is_some(), "{key} is {last}, not {state}");
    }

    /// Lists the ids on all pages.
    #[track_caller]
    pub(crate) fn list(&self, query: &str) -> Vec<String> {
        let mut ids = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("sandbox?{query}{cursor}")).expect(200);
            let items = page["items"].as_array().expect("it is a list");
            ids.extend(items.iter().filter_map(|item| item["id"].as_str().map(str::to_owned)));
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return ids,
            }
        }
    }

    /// Runs a command in a sandbox, and returns its code and its output.
    #[track_caller]
    pub(crate) fn run(&self, key: &str, command: &str) -> (i64, String) {
        let request = json!({ "command": command });
        let response =
            self.send("POST", &format!("toolbox/{key}/process/execute"), &request).expect(200);
        let code = response["exitCode"].as_i64().expect("it ended");
        (code, response["result"].as_str().expect("it has an output").to_owned())
    }
}

impl Drop for ServerFixture {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Creates a backend of containers, with its ledger in a directory.
async fn docker_backend(home: &Path, engine: &Engine) -> SandboxHost {
    let endpoint = Endpoint::explicit(&engine.host()).expect("the suite's address is good");
    let provider = DockerProvider::connect(endpoint).expect("a socket needs no certificates");
    let ledger = Ledger::open(home).await.expect("the directory is ours");
    let providers = Providers::new(vec![Arc::new(provider)]);
    let supervisor = Supervisor::new(ledger, providers, "a test").expect("procfs can be read");
    SandboxHost::Docker { supervisor, host: engine.host(), image: Some(REFERENCE.to_owned()) }
}
