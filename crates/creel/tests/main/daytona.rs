//! A private Daytona: the local server in this process, its faults, and its own view of
//! the sandboxes.

use std::collections::BTreeMap;
use std::sync::Mutex;

use creel_daytona_server::{Running, Server, Settings};
use creel_testkit::creel::Creel;
use creel_testkit::http::send;
use creel_testkit::wait::eventually;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::{LEDGER_LABEL, PATIENCE};

/// A server without processes, whose operations complete quickly.
pub(crate) struct Daytona {
    runtime: Runtime,
    running: Option<Running>,
    /// The planted decoys as the server showed them then, by id.
    decoys: Mutex<BTreeMap<String, Value>>,
}

impl Daytona {
    pub(crate) fn start(settings: Settings) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let running = runtime.block_on(Server::start(settings)).unwrap();
        Self { runtime, running: Some(running), decoys: Mutex::default() }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// Returns the binary with this server in its environment.
    pub(crate) fn point(&self, creel: Creel) -> Creel {
        let (url, key) = (self.running().url(), self.running().api_key());
        creel.env("DAYTONA_API_URL", url).env("DAYTONA_API_KEY", key)
    }

    fn admin(&self, method: &str, route: &str, body: &Value) -> Value {
        let url = format!("{}/{route}", self.running().admin_url());
        let (status, answer) = send(method, &url, "", body).unwrap();
        assert_eq!(status, 200, "{method} {route} {body}: {answer}");
        answer
    }

    /// Arms a fault.
    pub(crate) fn arm(&self, fault: &Value) {
        self.admin("POST", "faults", fault);
    }

    /// Disarms all faults.
    pub(crate) fn disarm(&self) {
        self.admin("DELETE", "faults", &Value::Null);
    }

    /// Deletes a sandbox by its name, if there is one, and waits until it is gone.
    pub(crate) fn remove_named(&self, name: &str) {
        let url = format!("{}/sandbox/{name}", self.running().url());
        let ask = |method: &str, url: &str| {
            send(method, url, self.running().api_key(), &Value::Null).unwrap()
        };
        // A delete in error would only hide it.
        if ask("GET", &url).1["state"] == "error" {
            ask("POST", &format!("{url}/recover"));
            assert!(eventually(PATIENCE, || ask("GET", &url).1["state"] == "started"));
        }
        let (status, answer) = ask("DELETE", &url);
        assert!(matches!(status, 200 | 404), "{answer}");
        let gone = eventually(PATIENCE, || self.left().is_empty());
        assert!(gone, "{:#?}", self.left());
    }

    /// Returns how often the faults have fired.
    pub(crate) fn fired(&self) -> u64 {
        let answer = self.admin("GET", "faults", &Value::Null);
        let faults = answer["faults"].as_array().unwrap();
        faults.iter().map(|fault| fault["fired"].as_u64().unwrap()).sum()
    }

    /// Returns how many requests of clients were received on a route, or on all routes.
    pub(crate) fn requests(&self, route: Option<&str>) -> u64 {
        let counts = self.admin("GET", "requests", &Value::Null);
        let count = match route {
            Some(route) => &counts["by_route"][route],
            None => &counts["total"],
        };
        count.as_u64().unwrap_or(0)
    }

    /// Returns how many requests the service received of each kind.
    pub(crate) fn requests_by_route(&self) -> Value {
        self.admin("GET", "requests", &Value::Null)["by_route"].clone()
    }

    /// Returns every sandbox that is not gone, hidden ones included, from the server's own state.
    pub(crate) fn sandboxes(&self) -> BTreeMap<String, Value> {
        let answer = self.admin("GET", "sandboxes", &Value::Null);
        let rows = answer["sandboxes"].as_array().unwrap().iter();
        rows.map(|row| (row["id"].as_str().unwrap().to_owned(), row.clone())).collect()
    }

    /// Returns every sandbox that is not a decoy.
    pub(crate) fn left(&self) -> Vec<Value> {
        let decoys = self.decoys.lock().unwrap();
        self.sandboxes()
            .into_iter()
            .filter(|(id, _)| !decoys.contains_key(id))
            .map(|(_, row)| row)
            .collect()
    }

    /// Plants decoys of one of our sandboxes. Each differs in one small detail.
    pub(crate) fn plant(&self, name: &str, resource: &str, ledger: &str) {
        let (resource_label, near) = ("dev.creel.resource", format!("{resource}x"));
        let ours = json!({ resource_label: resource, LEDGER_LABEL: ledger });
        let variants = [
            (format!("{name}x"), json!({ resource_label: near, LEDGER_LABEL: ledger })),
            (format!("x{name}"), ours.clone()),
            (name.to_uppercase(), ours.clone()),
            // Like a fork: the same labels under another name.
            (format!("{name}-fork"), ours.clone()),
            // Like the name of a deleted sandbox, except for the number.
            (format!("DESTROYED_{name}"), ours),
            (
                format!("{name}-other"),
                json!({ resource_label: resource, LEDGER_LABEL: format!("{ledger}x") }),
            ),
            (
                format!("{name}-key"),
                json!({ "dev.creel.resources": resource, "xdev.creel.ledger": ledger }),
            ),
        ];
        for (number, (name, labels)) in variants.into_iter().enumerate() {
            let state = if number % 2 == 0 { "started" } else { "stopped" };
            self.plant_one(&name, &labels, state);
        }
    }

    /// Plants one sandbox of another client.
    pub(crate) fn plant_one(&self, name: &str, labels: &Value, state: &str) {
        let seed = json!({"count": 1, "name": name, "labels": labels, "state": state});
        let made = self.admin("POST", "seed", &seed);
        let id = made["ids"][0].as_str().unwrap().to_owned();
        let row = self.sandboxes().remove(&id).unwrap();
        self.decoys.lock().unwrap().insert(id, row);
    }

    /// Plants sandboxes with the same labels as the existing ones, under other names.
    pub(crate) fn copy_labels(&self) {
        for (number, row) in self.left().iter().enumerate() {
            assert!(row["labels"][LEDGER_LABEL].is_string(), "nothing to copy: {row:#}");
            for state in ["started", "stopped"] {
                self.plant_one(&format!("copied-{number}-{state}"), &row["labels"], state);
            }
        }
    }

    /// Asserts that every decoy is unchanged.
    pub(crate) fn assert_decoys_untouched(&self) {
        let decoys = self.decoys.lock().unwrap();
        assert!(!decoys.is_empty());
        let there = self.sandboxes();
        for (id, planted) in decoys.iter() {
            assert_eq!(there.get(id), Some(planted), "a decoy was touched");
        }
    }
}

impl Drop for Daytona {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running.stop());
        }
    }
}
