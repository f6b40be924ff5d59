//! A local server of its own for every case, and a provider that uses it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use creel_core::scope::Supervisor;
use creel_daytona::{
    DaytonaBackend, DaytonaEnvironment, DaytonaProvider, DaytonaSandboxes, DaytonaSettings,
};
use creel_daytona_server::{Delays, Running, SandboxHost, Server, Settings};
use creel_ledger::Ledger;
use creel_model::labels::Labels;
use creel_model::provider::{
    CreateRequest, Kind, Limits, Provider, Providers, ReleaseMode, Result, SandboxSpec, Spec,
};
use creel_model::sandbox::{SandboxOptions, SandboxProvider};
use creel_process::{HolderProgram, ProcessProvider, ProcessSettings};
use creel_testkit::conformance::{
    Abilities, Failure, LimitSupport, Purpose, SandboxAbilities, Subject,
};
use creel_testkit::http;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::task::block_in_place;

/// The kind that the suite tries.
const KINDS: &[Kind] = &[Kind::Sandbox];

/// A server and a provider connected to it.
pub(crate) struct DaytonaSubject {
    server: Mutex<Option<Running>>,
    environment: DaytonaEnvironment,
    admin_url: String,
    provider: Arc<DaytonaProvider>,
    _home: TempDir,
}

fn connect(environment: &DaytonaEnvironment) -> DaytonaProvider {
    let settings = DaytonaSettings { longest_wait: Duration::from_secs(10) };
    DaytonaProvider::connect(environment, settings).expect("the key and the address are good")
}

/// Returns a host of process trees, with its ledger in a directory.
async fn process_host(home: &TempDir) -> SandboxHost {
    let holder =
        HolderProgram { program: "/proc/self/exe".into(), args: vec!["holder".to_owned()] };
    let root = home.path().join("sandboxes");
    let provider = ProcessProvider::new(ProcessSettings { root, holder, containment: None });
    let ledger = Ledger::open(home.path()).await.expect("the directory is ours");
    let providers = Providers::new(vec![Arc::new(provider.clone())]);
    let supervisor = Supervisor::new(ledger, providers, "a test").expect("procfs can be read");
    SandboxHost::Process { supervisor, provider }
}

impl DaytonaSubject {
    fn admin(&self, method: &str, route: &str, body: &Value) -> Value {
        let url = format!("{}/{route}", self.admin_url);
        let (status, answer) = block_in_place(|| http::send(method, &url, "", body))
            .expect("the server answers its administrator");
        assert!((200..300).contains(&status), "{method} {route} {body}: {status} {answer}");
        answer
    }

    /// Replaces all faults by one.
    fn arm(&self, fault: &Value) {
        self.admin("DELETE", "faults", &Value::Null);
        self.admin("POST", "faults", fault);
    }

    fn fired(&self) -> u64 {
        let all = self.admin("GET", "faults", &Value::Null);
        let all = all["faults"].as_array().expect("a list of faults").iter();
        all.map(|fault| fault["fired"].as_u64().unwrap_or_default()).sum()
    }
}

#[async_trait]
impl Subject for DaytonaSubject {
    fn abilities() -> Abilities {
        Abilities {
            backend: &DaytonaBackend,
            kinds: KINDS,
            planted: KINDS,
            namesakes: KINDS,
            compares: KINDS,
            // The service has no delete that spares a running sandbox.
            spares_running: &[],
            limited: &[],
            failures: &[
                Failure::NoServer,
                Failure::Reset,
                Failure::ServerError,
                Failure::HalfAnswer,
                Failure::ForeignPage,
            ],
            sandboxes: Some(SandboxAbilities {
                refused_keys: &["network"],
                limits: LimitSupport::Refused,
                short_lease: None,
            }),
        }
    }

    async fn start(purpose: Purpose) -> Self {
        let home = tempfile::tempdir().expect("a directory can be made");
        let settings = match purpose {
            Purpose::Objects => Settings::hollow(),
            Purpose::Sandboxes => {
                let host = process_host(&home).await;
                Settings { delays: Delays::fast(), ..Settings::new(host) }
            }
        };
        let server = Server::start(settings).await.expect("loopback has a free port");
        let environment = DaytonaEnvironment {
            api_key: Some(server.api_key().into()),
            api_url: Some(server.url()),
            ..DaytonaEnvironment::default()
        };
        let (provider, admin_url) = (Arc::new(connect(&environment)), server.admin_url());
        Self { server: Mutex::new(Some(server)), environment, admin_url, provider, _home: home }
    }

    fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    fn another(&self) -> Arc<dyn Provider> {
        Arc::new(connect(&self.environment))
    }

    fn spec(&self, _: Kind, _: Limits) -> Spec {
        Spec::Sandbox(SandboxSpec::default())
    }

    async fn plant(&self, _: Kind, name: &str, labels: &Labels) -> String {
        let planted =
            self.admin("POST", "seed", &json!({"count": 1, "name": name, "labels": labels}));
        planted["ids"][0].as_str().expect("the name is free").to_owned()
    }

    async fn exists(&self, _: Kind, id: &str) -> bool {
        let all = self.admin("GET", "sandboxes", &Value::Null);
        all["sandboxes"].as_array().expect("a list").iter().any(|sandbox| sandbox["id"] == id)
    }

    async fn remove(&self, kind: Kind, id: &str) {
        self.admin("DELETE", "faults", &Value::Null);
        let another = self.another();
        let _ =
            another.release(kind, id, ReleaseMode::AT_ONCE).await.expect("a delete is accepted");
    }

    async fn lose_answer(&self, request: &CreateRequest) -> Option<Result<String>> {
        self.arm(&json!({"at": "create", "fault": "cut_after", "count": 1}));
        let answer = self.another().create(request).await;
        assert_eq!(self.fired(), 1, "no answer was lost");
        Some(answer)
    }

    async fn failing(&self, failure: Failure) -> Arc<dyn Provider> {
        self.admin("DELETE", "faults", &Value::Null);
        let fault = match failure {
            Failure::Reset => json!({"fault": "cut_before"}),
            Failure::ServerError => json!({"fault": "status", "status": 500}),
            Failure::HalfAnswer => json!({"fault": "half_body"}),
            Failure::ForeignPage => json!({"fault": "html", "status": 404}),
            Failure::NoServer | Failure::UnreadableStore => {
                let api_url = Some("http://127.0.0.1:9/api".to_owned());
                return Arc::new(connect(&DaytonaEnvironment {
                    api_url,
                    ..self.environment.clone()
                }));
            }
        };
        let provider = self.another();
        // It asks for the rights of its key first, so that the failure meets the request itself.
        provider.identity().await.expect("nothing fails yet");
        self.arm(&fault);
        provider
    }

    async fn mend(&self) {
        self.admin("DELETE", "faults", &Value::Null);
    }

    fn sandboxes(&self) -> Option<(Arc<dyn SandboxProvider>, SandboxOptions)> {
        let options = SandboxOptions {
            image: None,
            snapshot: None,
            env: BTreeMap::new(),
            limits: Limits::default(),
            disk: None,
            network: None,
            lease: Duration::from_secs(600),
        };
        Some((Arc::new(DaytonaSandboxes::new(Arc::clone(&self.provider))), options))
    }

    async fn prepare_cut(&self) {
        self.arm(&json!({"at": "follow", "fault": "cut_stream", "seconds": 0.3, "count": 1}));
    }

    async fn cut_streams(&self, _: &str) -> usize {
        usize::try_from(self.fired()).unwrap_or(usize::MAX)
    }

    async fn end(&self) {
        if let Some(server) = self.server.lock().await.take() {
            server.stop().await;
        }
    }
}
