//! A hostile service: endless responses, circular listings, wrong addresses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use creel_daytona::toolbox::Exec;
use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_model::provider::{ErrorClass, Kind, Provider};
use futures::FutureExt;
use http_body_util::Full;
use hyper::Response;
use serde_json::{Value, json};

use crate::fixture::DaytonaFixture;
use crate::stub::{self, RecordedRequest, Stub};

/// Starts a service with these responses, and a provider that uses it.
async fn service(
    respond: impl Fn(&RecordedRequest) -> Response<Full<Bytes>> + Send + Sync + 'static,
) -> (Stub, DaytonaProvider) {
    let respond = Arc::new(respond);
    let stub = Stub::start(Arc::new(move |request: RecordedRequest| {
        let respond = Arc::clone(&respond);
        async move { respond(&request) }.boxed()
    }))
    .await;
    let environment = DaytonaEnvironment {
        api_key: Some("dtn_key".into()),
        api_url: Some(format!("http://{}/api", stub.address)),
        ..DaytonaEnvironment::default()
    };
    let settings = DaytonaSettings { longest_wait: Duration::from_secs(3) };
    (stub, DaytonaProvider::connect(&environment, settings).unwrap())
}

fn page(rows: &[Value], next: Option<String>) -> Response<Full<Bytes>> {
    stub::json(200, &json!({ "items": rows, "nextCursor": next }))
}

async fn list_error(
    respond: impl Fn(&RecordedRequest) -> Response<Full<Bytes>> + Send + Sync + 'static,
) -> String {
    let (_stub, provider) = service(respond).await;
    let error = provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient, "{error}");
    error.message
}

#[tokio::test]
async fn a_repeated_cursor_is_an_error_and_not_the_end() {
    let fixture = DaytonaFixture::start().await;
    fixture.seed(json!({"count": 260, "same_millisecond": true})).await;
    let error = fixture.provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(error.message.contains("repeats a cursor after 201 sandboxes"), "{error}");
    assert!(error.message.contains("not complete"), "{error}");
    fixture.stop().await;
    let circle = list_error(|request| {
        let other = if request.what.contains('x') { "b" } else { "a" };
        page(&[json!({"id": "one"})], Some(other.to_owned()))
    });
    assert!(circle.await.contains("repeats a cursor"), "a circle has no end either");
}

#[tokio::test]
async fn a_body_without_end_is_refused() {
    let huge = Bytes::from(vec![b' '; 33 << 20]);
    let error = list_error(move |_| Response::new(Full::new(huge.clone()))).await;
    assert!(error.contains("more than 32 MiB"), "{error}");
    let (_stub, provider) =
        service(|_| Response::new(Full::new(Bytes::from(vec![b' '; 5 << 20])))).await;
    let error = provider.inspect(Kind::Sandbox, "one").await.unwrap_err();
    assert!(error.message.contains("more than 4 MiB"), "{error}");
}

#[tokio::test]
async fn rows_texts_and_pages_above_the_limits_are_refused() {
    let row = list_error(|_| page(&[json!({"id": "a", "env": "x".repeat(600 << 10)})], None)).await;
    assert!(row.contains("a row of"), "{row}");
    let name =
        list_error(|_| page(&[json!({"id": "a", "name": "x".repeat(65 << 10)})], None)).await;
    assert!(name.contains("the name of a sandbox"), "{name}");
    let rows: Vec<Value> = (0..1001).map(|number| json!({"id": number.to_string()})).collect();
    let many = list_error(move |_| page(&rows, None)).await;
    assert!(many.contains("more than 1000 rows"), "{many}");
}

#[tokio::test]
async fn an_error_of_any_length_is_shown_in_one_line() {
    let (_stub, provider) =
        service(|_| stub::json(400, &json!({"message": "no\n".repeat(1 << 20)}))).await;
    let error = provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert!(
        error.message.len() < 2_000 && !error.message.contains('\n'),
        "{}",
        error.message.len()
    );
}

#[tokio::test]
async fn errors_of_the_toolbox_name_its_own_address() {
    let (stub, provider) = service(|request| {
        let address = json!({"proxyToolboxUrl": "http://127.0.0.1:9/toolbox"});
        if request.what == "GET /api/config" {
            return stub::json(200, &address);
        }
        stub::json(
            200,
            &json!({"id": "one", "state": "started",
            "toolboxProxyUrl": "http://127.0.0.1:9/toolbox"}),
        )
    })
    .await;
    let toolbox = provider.toolbox("one").await.unwrap();
    let exec =
        Exec { command: "true".to_owned(), limit: Duration::from_secs(5), ..Exec::default() };
    let error = toolbox.exec(&exec).await.unwrap_err();
    assert!(error.message.contains("http://127.0.0.1:9"), "{error}");
    assert!(!error.message.contains(&stub.address.to_string()), "{error}");
    assert!(!error.message.contains("; check DAYTONA_API_URL"), "{error}");
    let error = provider.probe_toolbox().await.unwrap_err();
    assert!(error.message.contains("http://127.0.0.1:9"), "{error}");
}

#[tokio::test]
async fn a_toolbox_that_responds_is_found_by_its_published_address() {
    let fixture = DaytonaFixture::start().await;
    let address = fixture.provider.probe_toolbox().await.unwrap().unwrap();
    assert_eq!(address, fixture.server().url().replace("/api", "/toolbox"));
    fixture.stop().await;
}

#[tokio::test]
async fn a_token_for_another_organisation_is_explained() {
    let fixture = DaytonaFixture::start().await;
    let environment = DaytonaEnvironment {
        api_key: None,
        jwt_token: Some(fixture.server().jwt().into()),
        organization_id: Some("another".to_owned()),
        ..fixture.environment()
    };
    let provider = DaytonaProvider::connect(&environment, DaytonaSettings::default()).unwrap();
    let error = provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Denied);
    assert!(error.message.contains("DAYTONA_ORGANIZATION_ID"), "{error}");
    assert!(error.message.contains("Invalid authentication context"), "{error}");
    fixture.stop().await;
}
