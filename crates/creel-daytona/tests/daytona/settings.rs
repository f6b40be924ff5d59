//! What can be set on a sandbox, and what the server makes of it.

use creel_daytona::{DaytonaApi, StopMode};
use creel_model::provider::ErrorClass;
use serde_json::{Value, json};

use crate::bench::Bench;

/// Returns a sandbox as the server itself sees it.
async fn row(bench: &Bench, id: &str) -> Value {
    bench.rows().await.into_iter().find(|row| row["id"] == id).unwrap()
}

async fn until_it_is(api: &dyn DaytonaApi, id: &str, state: &str) {
    while api.get(id).await.unwrap().state.name() != state {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn labels_are_replaced_as_a_whole() {
    let bench = Bench::start().await;
    let labels = json!({"kept": "no", "changed": "1"});
    let id = bench.seed(json!({"count": 1, "labels": labels})).await.remove(0);
    let other = bench.seed(json!({"count": 1, "labels": labels})).await.remove(0);
    let new = [("changed", "2"), ("odd key/ü", "a b=c\"")].into_iter().collect();
    bench.provider.api().set_labels(&id, &new).await.unwrap();
    assert_eq!(row(&bench, &id).await["labels"], json!({"changed": "2", "odd key/ü": "a b=c\""}));
    assert_eq!(bench.provider.api().get(&id).await.unwrap().labels, new);
    assert_eq!(row(&bench, &other).await["labels"], labels);
    let absent = bench.provider.api().set_labels("no-such", &new).await.unwrap_err();
    assert_eq!(absent.class, ErrorClass::Gone);
    bench.stop().await;
}

#[tokio::test]
async fn each_interval_is_set_alone() {
    let bench = Bench::start().await;
    let id = bench.one().await;
    let api = bench.provider.api();
    let intervals = async || {
        let row = row(&bench, &id).await;
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
    // Never: 0 for a stop, negative for a delete.
    api.set_auto_stop(&id, 0).await.unwrap();
    api.set_auto_delete(&id, -1).await.unwrap();
    assert_eq!(intervals().await, [0, 8, -1]);
    bench.stop().await;
}

#[tokio::test]
async fn only_what_is_stopped_is_archived_and_an_archived_one_starts_again() {
    let bench = Bench::start().await;
    let id = bench.one().await;
    let api = bench.provider.api();
    let refused = api.archive(&id).await.unwrap_err();
    assert_eq!((refused.status, refused.class), (Some(400), ErrorClass::Invalid), "{refused}");
    api.stop(&id, StopMode::Polite).await.unwrap();
    until_it_is(api, &id, "stopped").await;
    api.archive(&id).await.unwrap();
    until_it_is(api, &id, "archived").await;
    api.start(&id).await.unwrap();
    until_it_is(api, &id, "started").await;
    bench.stop().await;
}
