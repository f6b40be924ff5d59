//! Which sandboxes came of an open create: those with its name and its label, and no others.

use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::provider::{Kind, Marks, Provider};
use serde_json::{Value, json};

use crate::bench::Bench;

fn marks() -> Marks {
    let resource = ResourceId::new();
    Marks { kind: Kind::Sandbox, resource, name: resource.object_name() }
}

/// Makes a sandbox; returns its id.
async fn plant(bench: &Bench, name: &str, labels: Value) -> String {
    bench.seed(json!({"count": 1, "name": name, "labels": labels})).await.remove(0)
}

fn label_of(marks: &Marks) -> Value {
    json!({ labels::RESOURCE: marks.resource.to_string() })
}

#[tokio::test]
async fn a_label_or_a_name_alone_is_no_claim() {
    let bench = Bench::start().await;
    let marks = marks();
    let copied = plant(&bench, "somebody-elses", label_of(&marks)).await;
    let namesake = plant(&bench, &marks.name, json!({"team": "blue"})).await;
    let other = ResourceId::new().to_string();
    plant(&bench, &format!("{}-2", marks.name), json!({ labels::RESOURCE: other })).await;
    assert_eq!(bench.provider.find(&marks).await.unwrap(), []);
    for id in [copied, namesake] {
        assert!(bench.inspect(&id).await.is_some());
    }
    bench.stop().await;
}

#[tokio::test]
async fn the_one_with_both_is_found_among_decoys() {
    let bench = Bench::start().await;
    let marks = marks();
    plant(&bench, "somebody-elses", label_of(&marks)).await;
    plant(&bench, &format!("DESTROYED_{}", marks.name), label_of(&marks)).await;
    let ours = plant(&bench, &marks.name, label_of(&marks)).await;
    let found = bench.provider.find(&marks).await.unwrap();
    assert_eq!(found.iter().map(|seen| &seen.id).collect::<Vec<_>>(), [&ours]);
    bench.stop().await;
}

#[tokio::test]
async fn a_deleted_one_and_a_new_one_of_the_same_name_are_both_found() {
    let bench = Bench::start().await;
    let marks = marks();
    let seed =
        json!({"count": 1, "name": marks.name, "labels": label_of(&marks), "state": "error"});
    let first = bench.seed(seed).await.remove(0);
    bench.provider.api().delete(&first).await.unwrap();
    let second = plant(&bench, &marks.name, label_of(&marks)).await;
    let found = bench.provider.find(&marks).await.unwrap();
    let mut ids: Vec<&String> = found.iter().map(|seen| &seen.id).collect();
    ids.sort();
    let mut expected = [&first, &second];
    expected.sort();
    assert_eq!(ids, expected, "several matches are told, for the caller to release none");
    bench.stop().await;
}
