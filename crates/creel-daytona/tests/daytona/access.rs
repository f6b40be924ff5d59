//! Keys, addresses, and intermediaries such as proxies and captive portals.

use creel_daytona::{DaytonaEnvironment, DaytonaProvider, DaytonaSettings};
use creel_model::provider::{ErrorClass, Kind, Provider, ProviderError};
use serde_json::json;

use crate::fixture::DaytonaFixture;

async fn list(environment: &DaytonaEnvironment) -> Result<usize, ProviderError> {
    let provider = DaytonaProvider::connect(environment, DaytonaSettings::default()).unwrap();
    provider.list(&[Kind::Sandbox]).await.map(|listed| listed.len())
}

#[tokio::test]
async fn after_a_refused_key_nothing_more_is_sent() {
    let fixture = DaytonaFixture::start().await;
    let ids = fixture.seed(json!({"count": 20})).await;
    fixture.fault(json!({"fault": "expired_key"})).await;
    let error = fixture.provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Denied);
    assert!(error.message.contains("DAYTONA_API_KEY"), "{error}");
    let before = fixture.counts().await["total"].clone();
    for id in &ids {
        let error = fixture.provider.inspect(Kind::Sandbox, id).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Denied);
    }
    assert_eq!(fixture.counts().await["total"], before);
    fixture.stop().await;
}

#[tokio::test]
async fn a_wrong_key_is_denied() {
    let fixture = DaytonaFixture::start().await;
    let environment =
        DaytonaEnvironment { api_key: Some("dtn_wrong".into()), ..fixture.environment() };
    assert_eq!(list(&environment).await.unwrap_err().class, ErrorClass::Denied);
    fixture.stop().await;
}

#[tokio::test]
async fn a_token_with_its_organisation_works_like_a_key() {
    let fixture = DaytonaFixture::start().await;
    fixture.one().await;
    let environment = DaytonaEnvironment {
        api_key: None,
        jwt_token: Some(fixture.server().jwt().into()),
        organization_id: Some(fixture.server().organization_id().to_owned()),
        ..fixture.environment()
    };
    assert_eq!(list(&environment).await.unwrap(), 1);
    let provider = DaytonaProvider::connect(&environment, DaytonaSettings::default()).unwrap();
    let identity = provider.identity().await.unwrap();
    assert!(identity.ends_with(fixture.server().organization_id()), "{identity}");
    fixture.stop().await;
}

#[tokio::test]
async fn an_identity_is_stable_and_does_not_reveal_the_key() {
    let fixture = DaytonaFixture::start().await;
    let (one, other) = (fixture.provider.identity().await, fixture.another().identity().await);
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one, other);
    assert!(one.starts_with(&fixture.server().url()) && !one.contains(fixture.server().api_key()));
    fixture.stop().await;
}

#[tokio::test]
async fn an_intermediary_is_reported() {
    let fixture = DaytonaFixture::start().await;
    fixture.fault(json!({"fault": "html", "status": 200})).await;
    let error = fixture.provider.list(&[Kind::Sandbox]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable);
    assert!(error.message.contains("DAYTONA_API_URL") && error.message.contains("web page"));
    let secure = fixture.server().url().replace("http:", "https:");
    let environment = DaytonaEnvironment { api_url: Some(secure), ..fixture.environment() };
    let error = list(&environment).await.unwrap_err();
    assert!(error.message.contains("TLS"), "{error}");
    let port = fixture.server().url();
    fixture.stop().await;
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
async fn debug_output_does_not_contain_the_key() {
    let fixture = DaytonaFixture::start().await;
    let key = fixture.server().api_key();
    assert!(!format!("{:?}", fixture.provider).contains(key));
    fixture.stop().await;
}
