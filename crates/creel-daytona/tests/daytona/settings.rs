//! The settings of a sandbox, and how the server applies them.

use creel_daytona::{DaytonaApi, StopMode};
use creel_model::provider::ErrorClass;
use serde_json::{Value, json};

use crate::fixture::DaytonaFixture;

/// Returns a sandbox from the server's own state.
async fn row(fixture: &DaytonaFixture, id: &str) -> Value {
    fixture.rows().await.into_iter().find(|row| row["id"] == id).unwrap()
}

async fn await_state_of(api: &DaytonaApi, id: &str, state: &str) {
    while api.get(id).await.unwrap().state.name() != state {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn labels_are_replaced_as_a_whole() {
    let fixture = DaytonaFixture::start().await;
    let labels = json!({"kept": "no", "changed": "1"});
    let id = fixture.seed(json!({"count": 1, "labels": labels})).await.remove(0);
    let other = fixture.seed(json!({"count": 1, "labels": labels})).await.remove(0);
    let new = [("changed", "2"), ("odd key/ü", "a b=c\"")].into_iter().collect();
    fixture.provider.api().set_labels(&id, &new).await.unwrap();
    assert_eq!(row(&fixture, &id).await["labels"], json!({"changed": "2", "odd key/ü": "a b=c\""}));
    assert_eq!(fixture.provider.api().get(&id).await.unwrap().labels, new);
    assert_eq!(row(&fixture, &other).await["labels"], labels);
    let absent = fixture.provider.api().set_labels("no-such", &new).await.unwrap_err();
    assert_eq!(absent.class, ErrorClass::Gone);
    fixture.stop().await;
}

#[tokio::test]
async fn each_interval_is_set_alone() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    let api = fixture.provider.api();
    let intervals = async || {
        let row = row(&fixture, &id).await;
        ["autoStopInterval", "autoArchiveInterval", "autoDeleteInterval"]
            .map(|field| row[field].as_i64().unwrap())
    };
    let [_, archive, delete] = intervals().await;
    api.set_auto_stop(&id, 7).await.unwrap();
    assert_eq!(intervals().await, [7, archive, delete]);
    api.set_auto_archive(&id, 8).await.unwrap();
    assert_eq!(intervals().await, [7, 8, delete]);
    api.set_auto_delete(&id, 9).await.unwrap();
    assert_eq!(intervals().await, [7, 8, 9]);
    // "Never" is 0 for a stop and negative for a delete.
    api.set_auto_stop(&id, 0).await.unwrap();
    api.set_auto_delete(&id, -1).await.unwrap();
    assert_eq!(intervals().await, [0, 8, -1]);
    fixture.stop().await;
}

#[tokio::test]
async fn only_a_stopped_sandbox_is_archived_and_an_archived_one_starts_again() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    let api = fixture.provider.api();
    let refused = api.archive(&id).await.unwrap_err();
    assert_eq!((refused.status, refused.class), (Some(400), ErrorClass::Invalid), "{refused}");
    api.stop(&id, StopMode::Polite).await.unwrap();
    await_state_of(api, &id, "stopped").await;
    api.archive(&id).await.unwrap();
    await_state_of(api, &id, "archived").await;
    api.start(&id).await.unwrap();
    await_state_of(api, &id, "started").await;
    fixture.stop().await;
}
