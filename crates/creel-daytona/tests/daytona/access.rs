//! Keys, addresses, and who is in the way.

use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_model::provider::{ErrorClass, Kind, Provider, ProviderError};
use serde_json::json;

use crate::bench::Bench;

async fn list(environment: &DaytonaEnvironment) -> Result<usize, ProviderError> {
    let provider = DaytonaProvider::connect(environment, DaytonaSettings::default()).unwrap();
    provider.list(&[Kind::Sandbox]).await.map(|listed| listed.len())
}

#[tokio::test]
async fn after_a_refused_key_nothing_more_is_sent() {
    let bench = Bench::start().await;
    let ids = bench.seed(json!({"count": 20})).await;
    bench.fault(json!({"fault": "expired_key"})).await;
    let error = bench.provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Denied);
    assert!(error.message.contains("DAYTONA_API_KEY"), "{error}");
    let before = bench.counts().await["total"].clone();
    for id in &ids {
        let error = bench.provider.inspect(Kind::Sandbox, id).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Denied);
    }
    assert_eq!(bench.counts().await["total"], before);
    bench.stop().await;
}

#[tokio::test]
async fn a_wrong_key_is_denied() {
    let bench = Bench::start().await;
    let environment =
        DaytonaEnvironment { api_key: Some("dtn_wrong".into()), ..bench.environment() };
    assert_eq!(list(&environment).await.unwrap_err().class, ErrorClass::Denied);
    bench.stop().await;
}

#[tokio::test]
async fn a_token_with_its_organisation_works_like_a_key() {
    let bench = Bench::start().await;
    bench.one().await;
    let environment = DaytonaEnvironment {
        api_key: None,
        jwt_token: Some(bench.server().jwt().into()),
        organization_id: Some(bench.server().organization_id().to_owned()),
        ..bench.environment()
    };
    assert_eq!(list(&environment).await.unwrap(), 1);
    let provider = DaytonaProvider::connect(&environment, DaytonaSettings::default()).unwrap();
    let identity = provider.identity().await.unwrap();
    assert!(identity.ends_with(bench.server().organization_id()), "{identity}");
    bench.stop().await;
}

#[tokio::test]
async fn an_identity_reveals_nothing_about_the_key_and_is_stable() {
    let bench = Bench::start().await;
    let (one, other) = (bench.provider.identity().await, bench.another().identity().await);
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one, other);
    assert!(one.starts_with(&bench.server().url()) && !one.contains(bench.server().api_key()));
    bench.stop().await;
}

#[tokio::test]
async fn an_intermediary_is_reported() {
    let bench = Bench::start().await;
    bench.fault(json!({"fault": "html", "status": 200})).await;
    let error = bench.provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable);
    assert!(error.message.contains("DAYTONA_API_URL") && error.message.contains("web page"));
    let secure = bench.server().url().replace("http:", "https:");
    let environment = DaytonaEnvironment { api_url: Some(secure), ..bench.environment() };
    let error = list(&environment).await.unwrap_err();
    assert!(error.message.contains("TLS"), "{error}");
    let port = bench.server().url();
    bench.stop().await;
    let environment = DaytonaEnvironment {
        api_url: Some(port),
        api_key: Some("dtn_key".into()),
        ..DaytonaEnvironment::default()
    };
    let error = list(&environment).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable);
    assert!(error.message.contains("cannot connect"), "{error}");
}

#[tokio::test]
async fn nothing_shows_the_key() {
    let bench = Bench::start().await;
    let key = bench.server().api_key();
    assert!(!format!("{:?}", bench.provider).contains(key));
    bench.stop().await;
}
