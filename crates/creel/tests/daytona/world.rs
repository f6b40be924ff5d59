//! `creel dev daytona` with process sandboxes, and a provider that speaks to it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use creel_core::ledger::Ledger;
use creel_core::provider::daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_core::provider::{Provider, ProviderName, Providers, SandboxSpec, Spec};
use creel_core::scope::{Held, Request, Supervisor};
use creel_testkit::http::send;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server of its own process, and a sandbox in it.
pub(crate) struct World {
    server: Child,
    admin_url: String,
    supervisor: Supervisor,
    pub(crate) provider: Arc<DaytonaProvider>,
    /// Goes last, when the server is gone.
    _home: tempfile::TempDir,
}

impl World {
    pub(crate) async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut server = Command::new(env!("CARGO_BIN_EXE_creel"))
            .args(["dev", "daytona", "--listen", "127.0.0.1:0", "--fast"])
            .env("CREEL_HOME", home.path().join("server"))
            .env_remove("DAYTONA_API_KEY")
            .current_dir(home.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let environment = DaytonaEnvironment {
            api_key: Some(ready["api_key"].as_str().unwrap().into()),
            api_url: Some(ready["url"].as_str().unwrap().to_owned()),
            ..DaytonaEnvironment::default()
        };
        let settings = DaytonaSettings::default();
        let provider = Arc::new(DaytonaProvider::connect(&environment, settings).unwrap());
        let ledger = Ledger::open(&home.path().join("client")).await.unwrap();
        let all: Arc<dyn Provider> = provider.clone();
        let supervisor = Supervisor::new(ledger, Providers::new(vec![all]), "test").unwrap();
        let admin_url = ready["admin_url"].as_str().unwrap().to_owned();
        Self { server, admin_url, supervisor, provider, _home: home }
    }

    fn admin(&self, method: &str, body: &Value) -> Value {
        let url = format!("{}/faults", self.admin_url);
        let (status, answer) = send(method, &url, "", body).unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Arms a fault.
    pub(crate) fn arm(&self, fault: &Value) {
        self.admin("POST", fault);
    }

    /// Returns how often the faults have struck, and disarms them.
    pub(crate) fn disarm(&self) -> u64 {
        let answer = self.admin("GET", &Value::Null);
        self.admin("DELETE", &Value::Null);
        let faults = answer["faults"].as_array().unwrap();
        faults.iter().map(|fault| fault["fired"].as_u64().unwrap()).sum()
    }

    pub(crate) async fn create(&self) -> Held {
        let spec = SandboxSpec {
            env: [("GREETING".to_owned(), "hello".to_owned())].into(),
            ..SandboxSpec::default()
        };
        let request = Request::new(ProviderName::Daytona, Spec::Sandbox(spec));
        self.supervisor.create(request).await.unwrap()
    }

    pub(crate) async fn release(&self, held: Held) {
        self.supervisor.release(held).await.unwrap();
    }

    /// Ends the server, which gives back what it has.
    pub(crate) fn stop(mut self) {
        assert!(self.end().success());
    }

    fn end(&mut self) -> ExitStatus {
        // One that has ended already is not there to be asked.
        let _ = kill_process(Pid::from_child(&self.server), Signal::TERM);
        self.server.wait().unwrap()
    }
}

/// A test that fails leaves no server behind either.
impl Drop for World {
    fn drop(&mut self) {
        if self.server.try_wait().is_ok_and(|status| status.is_none()) {
            self.end();
        }
    }
}
