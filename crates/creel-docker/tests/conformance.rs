//! The Docker provider passes the suite of all providers, on a real engine.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use creel_docker::{DockerBackend, DockerProvider, DockerSandboxes, Endpoint};
use creel_model::labels::Labels;
use creel_model::provider::{
    ContainerSpec, CreateRequest, Kind, Limits, NetworkSpec, Provider, Result, Spec, VolumeSpec,
};
use creel_model::sandbox::{SandboxOptions, SandboxProvider};
use creel_testkit::conformance::{
    self, Abilities, Failure, LimitSupport, Purpose, SandboxAbilities, Subject,
};
use creel_testkit::docker;
use creel_testkit::engine::Engine;
use creel_testkit::image;
use creel_testkit::wire::{Fault, Rule, Wire};
use tokio::task::block_in_place;

/// The kinds that the suite tries. An engine has images too, but creel creates none.
const KINDS: &[Kind] = &[Kind::Container, Kind::Network, Kind::Volume];

fn main() -> ExitCode {
    conformance::run::<DockerSubject>()
}

/// The suite's engine behind a wire, and a provider that uses it.
struct DockerSubject {
    engine: Engine,
    /// The wire of the provider under test.
    wire: Wire,
    provider: Arc<DockerProvider>,
    /// The wires of the failing providers.
    broken: Mutex<Vec<Wire>>,
}

fn connect(host: &str) -> DockerProvider {
    let endpoint = Endpoint::explicit(host).expect("the address is good");
    DockerProvider::connect(endpoint).expect("a socket needs no certificates")
}

impl DockerSubject {
    /// Returns a provider on a wire that stays until the end, and the wire.
    fn on_new_wire<T>(&self, arrange: impl FnOnce(&Wire) -> T) -> (DockerProvider, T) {
        let wire = Wire::start(&self.engine, 1).expect("a socket can be made");
        let (provider, arranged) = (connect(&wire.host()), arrange(&wire));
        self.broken.lock().expect("no holder of this lock panics").push(wire);
        (provider, arranged)
    }
}

#[async_trait]
impl Subject for DockerSubject {
    fn abilities() -> Abilities {
        Abilities {
            backend: &DockerBackend,
            kinds: KINDS,
            planted: KINDS,
            namesakes: KINDS,
            // An engine cannot compare and delete a volume in one step.
            compares: &[Kind::Container, Kind::Network],
            spares_running: &[Kind::Container],
            limited: &[Kind::Container],
            failures: &[
                Failure::NoServer,
                Failure::Reset,
                Failure::ServerError,
                Failure::HalfAnswer,
                Failure::ForeignPage,
            ],
            sandboxes: Some(SandboxAbilities {
                refused_keys: &["snapshot"],
                limits: LimitSupport::Enforced,
                short_lease: Some(Duration::from_secs(2)),
            }),
        }
    }

    async fn start(_: Purpose) -> Self {
        let engine = Engine::from_env();
        let wire = Wire::start(&engine, 1).expect("a socket can be made");
        let provider = Arc::new(connect(&wire.host()));
        Self { engine, wire, provider, broken: Mutex::default() }
    }

    fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    fn another(&self) -> Arc<dyn Provider> {
        Arc::new(connect(&self.engine.host()))
    }

    fn spec(&self, kind: Kind, limits: Limits) -> Spec {
        match kind {
            Kind::Container => Spec::Container(ContainerSpec {
                image: image::REFERENCE.to_owned(),
                command: ["sleep", "100000"].map(str::to_owned).to_vec(),
                network: Some("none".to_owned()),
                limits,
                ..ContainerSpec::default()
            }),
            Kind::Network => Spec::Network(NetworkSpec { internal: true }),
            _ => Spec::Volume(VolumeSpec::default()),
        }
    }

    async fn plant(&self, kind: Kind, name: &str, labels: &Labels) -> String {
        let labels: docker::Labels =
            labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let outside = self.engine.docker();
        let planted = block_in_place(|| match kind {
            Kind::Container => {
                outside.create(&docker::ContainerSpec::sleeping(name).labels(&labels))
            }
            Kind::Network => outside.create_network(name, &labels),
            _ => outside.create_volume(name, &labels),
        });
        planted.expect("the engine makes it")
    }

    async fn exists(&self, kind: Kind, id: &str) -> bool {
        let outside = self.engine.docker();
        let found = block_in_place(|| match kind {
            Kind::Container => outside.inspect_container(id),
            Kind::Network => outside.inspect_network(id),
            _ => outside.inspect_volume(id),
        });
        found.expect("the engine answers").is_some()
    }

    async fn remove(&self, kind: Kind, id: &str) {
        let outside = self.engine.docker();
        let removed = block_in_place(|| match kind {
            Kind::Container => outside.remove_container(id),
            Kind::Network => outside.remove_network(id),
            _ => outside.remove_volume(id),
        });
        removed.expect("the engine removes it");
    }

    async fn lose_answer(&self, request: &CreateRequest) -> Option<Result<String>> {
        let path = format!("/{}s/create", request.spec.kind());
        let rule = Rule::new(&path, Fault::LoseResponse).method("POST").times(1);
        let (provider, rule) = self.on_new_wire(|wire| wire.add(rule));
        let answer = provider.create(request).await;
        assert_eq!(rule.fired(), 1, "no answer was lost");
        Some(answer)
    }

    async fn failing(&self, failure: Failure) -> Arc<dyn Provider> {
        let status = |code, message: &str| Fault::Status { code, message: message.to_owned() };
        let fault = match failure {
            Failure::Reset => Fault::Reset,
            Failure::ServerError => status(500, "something went wrong"),
            Failure::HalfAnswer => Fault::HalfBody,
            Failure::ForeignPage => status(404, "page not found"),
            Failure::NoServer | Failure::UnreadableStore => {
                return Arc::new(connect("unix:///nowhere/docker.sock"));
            }
        };
        let wire = Wire::start(&self.engine, 1).expect("a socket can be made");
        let provider = connect(&wire.host());
        // The version is negotiated first, so that the failure meets the request itself.
        provider.identity().await.expect("the wire is whole yet");
        wire.add(Rule::new("", fault));
        self.broken.lock().expect("no holder of this lock panics").push(wire);
        Arc::new(provider)
    }

    fn sandboxes(&self) -> Option<(Arc<dyn SandboxProvider>, SandboxOptions)> {
        let options = SandboxOptions {
            image: Some(image::REFERENCE.to_owned()),
            snapshot: None,
            env: BTreeMap::new(),
            limits: Limits::default(),
            disk: None,
            network: Some("none".to_owned()),
            lease: Duration::from_secs(600),
        };
        Some((Arc::new(DockerSandboxes::new(Arc::clone(&self.provider))), options))
    }

    async fn cut_streams(&self, _: &str) -> usize {
        self.wire.cut("/exec/[0-9a-f]+/start")
    }

    async fn end(&self) {}
}
