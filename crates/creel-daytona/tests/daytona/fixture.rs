//! A server, a provider that uses it, and helpers for tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use creel_core::cleanup::Cleanup;
use creel_core::reap::{ItemReport, ReapOptions};
use creel_core::reconcile::Reconciler;
use creel_core::scope::{Request, Supervisor};
use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_daytona_server::{Running, Server, Settings};
use creel_ledger::{Ledger, OwnerRecord};
use creel_model::provider::retry::RetryPolicy;
use creel_model::provider::{Kind, Observed, Provider, Providers, SandboxSpec, Spec};
use serde_json::{Value, json};

/// A server and a provider connected to it.
pub(crate) struct DaytonaFixture {
    server: Running,
    admin: reqwest::Client,
    pub(crate) provider: Arc<DaytonaProvider>,
}

impl DaytonaFixture {
    /// Starts a server without processes, whose operations complete quickly.
    pub(crate) async fn start() -> Self {
        Self::with(Settings::hollow()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        let server = Server::start(settings).await.unwrap();
        let environment = DaytonaEnvironment {
            api_key: Some(server.api_key().into()),
            api_url: Some(server.url()),
            ..DaytonaEnvironment::default()
        };
        let provider = Arc::new(connect(&environment));
        // Created after the provider, which installs the cryptography that both use.
        let admin = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(no_tls());
        Self { server, admin: admin.build().unwrap(), provider }
    }

    /// Returns another provider for the same server, as another process would have it.
    pub(crate) fn another(&self) -> DaytonaProvider {
        connect(&self.environment())
    }

    pub(crate) fn environment(&self) -> DaytonaEnvironment {
        DaytonaEnvironment {
            api_key: Some(self.server.api_key().into()),
            api_url: Some(self.server.url()),
            ..DaytonaEnvironment::default()
        }
    }

    pub(crate) fn server(&self) -> &Running {
        &self.server
    }

    async fn post(&self, route: &str, body: Value) -> Value {
        let url = format!("{}/{route}", self.server.admin_url());
        let response = self.admin.post(url).body(body.to_string()).send().await.unwrap();
        assert!(response.status().is_success(), "{route} {body}: {}", response.status());
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
    }

    async fn get(&self, route: &str) -> Value {
        let url = format!("{}/{route}", self.server.admin_url());
        let response = self.admin.get(url).send().await.unwrap();
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
    }

    /// Arms a fault.
    pub(crate) async fn fault(&self, body: Value) {
        self.post("faults", body).await;
    }

    /// Asserts that every fault fired, and disarms all.
    pub(crate) async fn assert_every_fault_fired(&self) {
        let faults = self.get("faults").await;
        for fault in faults["faults"].as_array().unwrap() {
            assert!(fault["fired"].as_u64().unwrap() > 0, "did not fire: {fault}");
        }
        self.disarm().await;
    }

    /// Returns how often the faults have fired.
    pub(crate) async fn fired(&self) -> u64 {
        let faults = self.get("faults").await;
        let faults = faults["faults"].as_array().unwrap().iter();
        faults.map(|fault| fault["fired"].as_u64().unwrap()).sum()
    }

    pub(crate) async fn disarm(&self) {
        let url = format!("{}/faults", self.server.admin_url());
        self.admin.delete(url).send().await.unwrap();
    }

    /// Creates sandboxes without a process, and returns their ids.
    pub(crate) async fn seed(&self, spec: Value) -> Vec<String> {
        let ids = self.post("seed", spec).await;
        let ids = ids["ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    pub(crate) async fn one(&self) -> String {
        self.seed(json!({"count": 1})).await.remove(0)
    }

    /// Sets the permissions of the key.
    pub(crate) async fn permit(&self, permissions: &[&str]) {
        let url = format!("{}/permissions", self.server.admin_url());
        self.admin.put(url).body(json!(permissions).to_string()).send().await.unwrap();
    }

    /// Returns how many requests were received, by route.
    pub(crate) async fn requests(&self, route: &str) -> u64 {
        let counts = self.get("requests").await;
        counts["by_route"][route].as_u64().unwrap_or(0)
    }

    /// Returns the server's counters.
    pub(crate) async fn counts(&self) -> Value {
        self.get("requests").await
    }

    /// Releases one sandbox by its id, and returns the report on it.
    pub(crate) async fn release(&self, id: &str) -> ItemReport {
        self.cleanup().release(Kind::Sandbox, id).await.unwrap()
    }

    pub(crate) fn cleanup(&self) -> Cleanup {
        let provider: Arc<dyn Provider> = self.provider.clone();
        Cleanup::new(provider).with_options(options())
    }

    /// Returns this id as a fresh provider observes it.
    pub(crate) async fn inspect(&self, id: &str) -> Option<Observed> {
        self.disarm().await;
        self.another().inspect(Kind::Sandbox, id).await.unwrap()
    }

    /// Returns all sandboxes.
    pub(crate) async fn list(&self) -> Vec<Observed> {
        self.another().list(&[Kind::Sandbox]).await.unwrap()
    }

    /// Returns the ids of everything that is not gone, hidden records included, from the server's
    /// own state.
    pub(crate) async fn there(&self) -> BTreeSet<String> {
        let rows = self.rows().await;
        rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns everything that is not gone, from the server's own state.
    pub(crate) async fn rows(&self) -> Vec<Value> {
        self.get("sandboxes").await["sandboxes"].as_array().unwrap().clone()
    }

    /// Creates a reconciler that acts as another process would after the owner's end.
    pub(crate) fn reconciler(&self, ledger: &Ledger, me: OwnerRecord) -> Reconciler {
        let provider: Arc<dyn Provider> = self.provider.clone();
        Reconciler::new(ledger.clone(), Providers::new(vec![provider]), me).with_options(options())
    }

    /// Creates a supervisor with its own ledger.
    pub(crate) async fn supervisor(&self) -> (Supervisor, Ledger, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let provider: Arc<dyn Provider> = self.provider.clone();
        let providers = Providers::new(vec![provider]);
        let supervisor = Supervisor::new(ledger.clone(), providers, "test").unwrap();
        (supervisor.with_options(options()), ledger, home)
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }
}

/// A request for the default sandbox.
pub(crate) fn sandbox() -> Request {
    Request::new(creel_daytona::NAME, Spec::Sandbox(SandboxSpec::default()))
}

/// Returns the usual retry options with shorter delays.
pub(crate) fn options() -> ReapOptions {
    ReapOptions {
        retry: RetryPolicy {
            initial: Duration::from_millis(100),
            deadline: Duration::from_secs(6),
            ..RetryPolicy::default()
        },
        ..ReapOptions::default()
    }
}

fn connect(environment: &DaytonaEnvironment) -> DaytonaProvider {
    let settings = DaytonaSettings { longest_wait: Duration::from_secs(3) };
    DaytonaProvider::connect(environment, settings).unwrap()
}

/// Returns a TLS configuration. The admin routes are plain HTTP, but the client requires one.
pub(crate) fn no_tls() -> tokio_rustls::rustls::ClientConfig {
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}
