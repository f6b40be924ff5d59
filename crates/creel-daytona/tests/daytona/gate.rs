//! The guard's gate in front of services that behave unlike the local one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_guard::daytona::{DaytonaGate, GateConfig, GateListener};
use creel_guard::{ClaimDefaults, Claims, Policy};
use creel_ledger::{Ledger, OnOwnerDeath, OwnerRecord, Record, RecordFilter};
use creel_model::id::RunId;
use creel_model::provider::{Kind, Provider};
use creel_model::task;
use futures::FutureExt;
use http_body_util::Full;
use hyper::Response;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fixture::{DaytonaFixture, no_tls};
use crate::stub::{self, RecordedRequest, Responder, Stub};

/// A lease of an hour and the margin.
const MINUTES: u64 = 65;
const KEY: &str = "test-key";

/// A gate in front of a service, and the ledger it writes.
struct GateFixture {
    url: String,
    key: String,
    ledger: Ledger,
    provider: Arc<DaytonaProvider>,
    client: reqwest::Client,
    stop: CancellationToken,
    served: JoinHandle<()>,
    _home: tempfile::TempDir,
}

impl GateFixture {
    async fn before(address: SocketAddr) -> Self {
        let environment = DaytonaEnvironment {
            api_key: Some(KEY.into()),
            api_url: Some(format!("http://{address}/api")),
            ..DaytonaEnvironment::default()
        };
        Self::of(environment, KEY).await
    }

    async fn of(environment: DaytonaEnvironment, key: &str) -> Self {
        let provider = DaytonaProvider::connect(&environment, DaytonaSettings::default());
        let provider = Arc::new(provider.unwrap());
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let lease = Duration::from_secs(3600);
        let defaults = ClaimDefaults {
            owner: OwnerRecord::this_process("test").unwrap(),
            run: RunId::new(),
            lease,
            on_owner_death: OnOwnerDeath::Release,
        };
        let gate = DaytonaGate::new(GateConfig {
            environment: &environment,
            provider: Arc::clone(&provider),
            claims: Claims::new(ledger.clone(), defaults, Arc::new(())),
            policy: Policy::default(),
            lease: Some(lease),
        });
        let (gate, listener) = (Arc::new(gate.unwrap()), GateListener::bind().await.unwrap());
        let (url, stop) = (gate.url(&listener), gate.stopper());
        let served = task::background(gate.serve(listener));
        let client = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(no_tls());
        let client = client.build().unwrap();
        let key = key.to_owned();
        Self { url, key, ledger, provider, client, stop, served, _home: home }
    }

    fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.post(format!("{}/{path}", self.url)).bearer_auth(&self.key)
    }

    async fn create(&self, body: &Value) -> u16 {
        let sent = self.post("sandbox").body(body.to_string()).send().await.unwrap();
        sent.status().as_u16()
    }

    async fn records(&self) -> Vec<Record> {
        self.ledger.records(&RecordFilter::open()).await.unwrap()
    }

    /// Closes the gate, and returns the records. Everything started is on record by then.
    async fn close(self) -> Vec<Record> {
        self.stop.cancel();
        self.served.await.unwrap();
        self.ledger.records(&RecordFilter::open()).await.unwrap()
    }
}

/// Returns a responder for each request. The key has all permissions.
fn responder(
    respond: impl Fn(&RecordedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> Responder {
    Arc::new(move |request: RecordedRequest| {
        let (status, body) = match request.what.as_str() {
            "GET /api/api-keys/current" => (404, json!({"message": "no such route"})),
            _ => respond(&request),
        };
        async move { stub::json(status, &body) }.boxed()
    })
}

#[tokio::test]
async fn a_create_refused_for_its_time_to_live_is_retried_once_without_it() {
    let service = Stub::start(responder(|request| match request.what.as_str() {
        "POST /api/sandbox" if request.json().get("ttlMinutes").is_some() => {
            (400, json!({"message": ["property ttlMinutes should not exist"]}))
        }
        _ => (200, json!({"id": "one", "autoDestroyAt": null})),
    }));
    let service = service.await;
    let gate = GateFixture::before(service.address).await;
    assert_eq!(gate.create(&json!({"name": "a"})).await, 200);
    assert_eq!(gate.create(&json!({"name": "b", "autoDeleteInterval": 0})).await, 200);
    let creates = service.requests("POST /api/sandbox");
    let sent: Vec<(Value, Value)> = creates
        .iter()
        .map(|request| {
            (request.json()["name"].clone(), request.json()["autoDeleteInterval"].clone())
        })
        .collect();
    let expected =
        [(json!("a"), Value::Null), (json!("a"), json!(MINUTES)), (json!("b"), json!(0))];
    assert_eq!(sent, expected);
    assert!(service.requests("POST /api/sandbox/one/autodelete/65").is_empty());
    assert_eq!(gate.close().await.len(), 2);
}

#[tokio::test]
async fn a_sandbox_whose_time_to_live_was_ignored_is_deleted_when_it_stops() {
    let service = Stub::start(responder(|request| match request.what.as_str() {
        "POST /api/sandbox" => (200, json!({"id": "one"})),
        _ => (201, json!({"id": "one"})),
    }));
    let service = service.await;
    let gate = GateFixture::before(service.address).await;
    assert_eq!(gate.create(&json!({})).await, 200);
    assert_eq!(service.requests("POST /api/sandbox/one/autodelete/65").len(), 1);
    // A renewal changes only switches that are set.
    gate.provider.renew(Kind::Sandbox, "one").await.unwrap();
    assert_eq!(service.requests("POST /api/sandbox/one/last-activity").len(), 1);
    assert!(service.requests("POST /api/sandbox/one/ttl/65").is_empty());
    assert_eq!(gate.close().await.len(), 1);
}

#[tokio::test]
async fn a_renewal_does_not_change_settings_of_the_client() {
    let service = Stub::start(responder(|_| (200, json!({"id": "one"})))).await;
    let gate = GateFixture::before(service.address).await;
    assert_eq!(gate.create(&json!({"autoStopInterval": 2, "ttlMinutes": 30})).await, 200);
    gate.provider.renew(Kind::Sandbox, "one").await.unwrap();
    let renewals = ["last-activity", "ttl/65", "ttl/2", "ttl/30", "autodelete/65"];
    for renewal in renewals {
        assert!(
            service.requests(&format!("POST /api/sandbox/one/{renewal}")).is_empty(),
            "{renewal}"
        );
    }
    let sent = service.requests("POST /api/sandbox").remove(0).json();
    assert_eq!((&sent["autoStopInterval"], &sent["ttlMinutes"]), (&json!(2), &json!(30)));
    assert_eq!(gate.close().await.len(), 1);
}

#[tokio::test]
async fn a_fork_is_claimed_by_its_id_and_marked_at_once() {
    let service = Stub::start(responder(|request| match request.what.as_str() {
        "POST /api/sandbox/parent/fork" => (200, json!({"id": "child"})),
        "GET /api/sandbox/child" => {
            (200, json!({"id": "child", "labels": {"theirs": "1"}, "autoStopInterval": 0}))
        }
        _ => (200, json!({"id": "child"})),
    }));
    let service = service.await;
    let gate = GateFixture::before(service.address).await;
    let response = gate.post("sandbox/parent/fork").body("{}").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let records = gate.records().await;
    let [record] = records.as_slice() else { panic!("{records:#?}") };
    assert_eq!(record.state.object(), Some("child"));
    let sent = service.requests("POST /api/sandbox/parent/fork").remove(0).json();
    assert_eq!(sent, json!({"name": record.name}));
    let labels = service.requests("PUT /api/sandbox/child/labels").remove(0).json();
    assert_eq!(labels["labels"]["theirs"], "1");
    assert_eq!(labels["labels"]["dev.creel.resource"], record.id.to_string());
    assert_eq!(service.requests("POST /api/sandbox/child/autostop/65").len(), 1);
    assert_eq!(service.requests("POST /api/sandbox/child/ttl/65").len(), 1);
    gate.close().await;
}

#[tokio::test]
async fn a_lost_create_is_found_by_any_client_chosen_name() {
    let fixture = DaytonaFixture::start().await;
    let gate = GateFixture::of(fixture.environment(), fixture.server().api_key()).await;
    let names = ["plain", "with a / and \u{e9}", "..", "_starts_oddly"];
    for name in names {
        fixture.fault(json!({"at": "create", "fault": "cut_after", "count": 1})).await;
        let lost = gate.post("sandbox").body(json!({"name": name}).to_string()).send().await;
        assert!(lost.is_err(), "{name}: {lost:?}");
    }
    fixture.assert_every_fault_fired().await;
    let records = gate.close().await;
    let found: Vec<&str> = records.iter().filter_map(|record| record.state.object()).collect();
    assert_eq!(found.len(), names.len(), "{records:#?}");
    let there = fixture.there().await;
    assert_eq!(there.len(), names.len());
    assert!(found.iter().all(|id| there.contains(*id)));
    fixture.stop().await;
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_stop_its_create() {
    let slow: Responder = Arc::new(|_| {
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            stub::json(200, &json!({"id": "one"}))
        }
        .boxed()
    });
    let service = Stub::start(slow).await;
    let gate = GateFixture::before(service.address).await;
    let address = gate.url.strip_prefix("http://").unwrap().trim_end_matches("/api");
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /api/sandbox HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {KEY}\r\n\
         Content-Length: 2\r\n\r\n{{}}"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    while gate.records().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(client);
    let records = gate.close().await;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].state.object(), Some("one"));
    assert_eq!(service.requests("POST /api/sandbox").len(), 1);
}

#[tokio::test]
async fn bodies_statuses_and_headers_are_forwarded_unchanged() {
    let echo: Responder = Arc::new(|request: RecordedRequest| {
        async move {
            let response = Response::builder()
                .status(418)
                .header("X-RateLimit-Remaining-authenticated", "7")
                .header("Set-Cookie", "a=1")
                .header("Set-Cookie", "b=2")
                .header("Keep-Alive", "timeout=5");
            response.body(Full::new(request.body)).unwrap()
        }
        .boxed()
    });
    let service = Stub::start(echo).await;
    let gate = GateFixture::before(service.address).await;
    let body: Vec<u8> = (0..=255).cycle().take(5_000_000).collect();
    let path = "anything/at%20all?x=a%2Fb&y=%22";
    let response = gate.post(path).header("X-Own", "1").body(body.clone()).send().await.unwrap();
    assert_eq!(response.status(), 418);
    let of = |name: &str| {
        response
            .headers()
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("x-ratelimit-remaining-authenticated"), ["7"]);
    assert_eq!(of("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(of("keep-alive"), [""; 0]);
    assert_eq!(response.bytes().await.unwrap(), Bytes::from(body));
    let request = service.requests("POST /api/anything/at%20all").remove(0);
    let header = |name: &str| request.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("host"), Some(service.address.to_string().as_str()));
    assert_eq!(header("x-own"), Some("1"));
    assert_eq!(header("authorization"), Some("Bearer test-key"));
    assert_eq!(header("content-length"), Some("5000000"));
    assert_eq!(header("transfer-encoding"), None);
    assert!(gate.close().await.is_empty());
}

#[tokio::test]
async fn an_unreachable_service_is_named_and_leaves_no_open_intent() {
    // A port without a listener.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gate = GateFixture::before(free).await;
    let response = gate.post("sandbox").body("{}").send().await.unwrap();
    assert_eq!(response.status(), 502);
    let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    let message = body["message"].as_str().unwrap();
    assert!(message.contains(&format!("cannot reach http://{free}")), "{message}");
    assert!(gate.close().await.is_empty());
}

#[tokio::test]
async fn an_upgrade_is_tunnelled_in_both_directions_with_the_service_host() {
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let theirs = service.local_addr().unwrap();
    let serving = task::background(async move {
        let (mut client, _) = service.accept().await.unwrap();
        let head = read_head(&mut client).await;
        assert!(head.starts_with("get /api/socket.io/?eio=4 http/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nhost: {theirs}\r\n")), "{head}");
        assert!(head.contains(&format!("\r\norigin: http://{theirs}\r\n")), "{head}");
        assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
        let response = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nhello";
        client.write_all(response.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        client.write_all(&[b"heard ", received.as_slice()].concat()).await.unwrap();
    });
    let gate = GateFixture::before(theirs).await;
    let ours = gate.url.strip_prefix("http://").unwrap().trim_end_matches("/api");
    let mut client = TcpStream::connect(ours).await.unwrap();
    let request = format!(
        "GET /api/socket.io/?EIO=4 HTTP/1.1\r\nHost: {ours}\r\nOrigin: http://{ours}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("\r\nsec-websocket-accept: x\r\n"), "{head}");
    client.write_all(b"some bytes").await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "helloheard some bytes");
    serving.await.unwrap();
    gate.close().await;
}

/// Reads a head to its end, in lower case.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}
