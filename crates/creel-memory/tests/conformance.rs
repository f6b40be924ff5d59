//! The in-memory provider passes the suite.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use creel_memory::{
    Cloud, CloudObject, Connection, MemoryBackend, MemoryProvider, MemorySandboxes, Outage,
};
use creel_model::id::ResourceId;
use creel_model::labels::Labels;
use creel_model::provider::{
    ContainerSpec, CreateRequest, Kind, Limits, Provider, Result, Spec, VolumeSpec,
};
use creel_model::sandbox::{SandboxOptions, SandboxProvider};
use creel_testkit::conformance::{
    self, Abilities, Failure, LimitSupport, Purpose, SandboxAbilities, Subject,
};

/// The kinds that the suite tries.
const KINDS: &[Kind] = &[Kind::Container, Kind::Volume];

fn main() -> ExitCode {
    conformance::run::<MemorySubject>()
}

/// A cloud of its own, and a provider for it.
struct MemorySubject {
    cloud: Arc<Cloud>,
    provider: Arc<MemoryProvider>,
    /// Acts on the objects as another client would.
    outside: Connection,
}

impl MemorySubject {
    /// Does something with one object.
    fn on<T>(&self, kind: Kind, id: &str, act: impl FnOnce(&CloudObject) -> T) -> Option<T> {
        let on = |objects: &mut Vec<CloudObject>| {
            objects.iter().find(|object| object.kind == kind && object.id == id).map(act)
        };
        self.outside.call(on).expect("this connection never fails")
    }
}

#[async_trait]
impl Subject for MemorySubject {
    fn abilities() -> Abilities {
        Abilities {
            backend: &MemoryBackend,
            kinds: KINDS,
            planted: KINDS,
            namesakes: KINDS,
            compares: KINDS,
            spares_running: &[Kind::Container],
            limited: &[Kind::Container],
            failures: &[Failure::NoServer],
            sandboxes: Some(SandboxAbilities {
                refused_keys: &["image", "network", "snapshot"],
                limits: LimitSupport::Refused,
                short_lease: None,
            }),
        }
    }

    async fn start(_: Purpose) -> Self {
        let cloud = Cloud::named(&ResourceId::new().digits());
        let provider = Arc::new(MemoryProvider(cloud.connect()));
        Self { outside: cloud.connect(), provider, cloud }
    }

    fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    fn another(&self) -> Arc<dyn Provider> {
        Arc::new(MemoryProvider(self.cloud.connect()))
    }

    fn spec(&self, kind: Kind, limits: Limits) -> Spec {
        match kind {
            Kind::Container => {
                Spec::Container(ContainerSpec { limits, ..ContainerSpec::default() })
            }
            _ => Spec::Volume(VolumeSpec::default()),
        }
    }

    async fn plant(&self, kind: Kind, name: &str, labels: &Labels) -> String {
        let object = CloudObject::new(kind, name, labels.clone());
        let id = object.id.clone();
        self.outside.call(|objects| objects.push(object)).expect("this connection never fails");
        id
    }

    async fn exists(&self, kind: Kind, id: &str) -> bool {
        self.on(kind, id, |_| ()).is_some()
    }

    async fn remove(&self, kind: Kind, id: &str) {
        let remove = |objects: &mut Vec<CloudObject>| {
            objects.retain(|object| object.kind != kind || object.id != id);
        };
        self.outside.call(remove).expect("this connection never fails");
    }

    async fn lose_answer(&self, request: &CreateRequest) -> Option<Result<String>> {
        let connection = self.cloud.connect();
        connection.set(Outage::LosesAnswer);
        Some(MemoryProvider(connection).create(request).await)
    }

    async fn failing(&self, _: Failure) -> Arc<dyn Provider> {
        let connection = self.cloud.connect();
        connection.set(Outage::Down);
        Arc::new(MemoryProvider(connection))
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
        Some((Arc::new(MemorySandboxes(Arc::clone(&self.provider))), options))
    }

    async fn cut_streams(&self, sandbox: &str) -> usize {
        self.on(Kind::Container, sandbox, CloudObject::cut).unwrap_or_default()
    }

    async fn end(&self) {}
}
