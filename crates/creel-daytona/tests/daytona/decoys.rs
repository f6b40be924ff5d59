//! Matching an unanswered create: only sandboxes with its name and its label match.

use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::provider::{Kind, Marks, Provider};
use serde_json::{Value, json};

use crate::fixture::DaytonaFixture;

fn marks() -> Marks {
    let resource = ResourceId::new();
    Marks { kind: Kind::Sandbox, resource, name: resource.object_name() }
}

/// Creates a sandbox, and returns its id.
async fn plant(fixture: &DaytonaFixture, name: &str, labels: Value) -> String {
    fixture.seed(json!({"count": 1, "name": name, "labels": labels})).await.remove(0)
}

fn label_of(marks: &Marks) -> Value {
    json!({ labels::RESOURCE: marks.resource.to_string() })
}

#[tokio::test]
async fn a_label_or_a_name_alone_is_no_match() {
    let fixture = DaytonaFixture::start().await;
    let marks = marks();
    let copied = plant(&fixture, "somebody-elses", label_of(&marks)).await;
    let namesake = plant(&fixture, &marks.name, json!({"team": "blue"})).await;
    let other = ResourceId::new().to_string();
    plant(&fixture, &format!("{}-2", marks.name), json!({ labels::RESOURCE: other })).await;
    assert_eq!(fixture.provider.find(&marks).await.unwrap(), []);
    for id in [copied, namesake] {
        assert!(fixture.inspect(&id).await.is_some());
    }
    fixture.stop().await;
}

#[tokio::test]
async fn the_sandbox_with_both_is_found_among_decoys() {
    let fixture = DaytonaFixture::start().await;
    let marks = marks();
    plant(&fixture, "somebody-elses", label_of(&marks)).await;
    plant(&fixture, &format!("DESTROYED_{}", marks.name), label_of(&marks)).await;
    let ours = plant(&fixture, &marks.name, label_of(&marks)).await;
    let found = fixture.provider.find(&marks).await.unwrap();
    assert_eq!(found.iter().map(|seen| &seen.id).collect::<Vec<_>>(), [&ours]);
    fixture.stop().await;
}

#[tokio::test]
async fn a_deleted_sandbox_and_a_new_one_of_the_same_name_are_both_found() {
    let fixture = DaytonaFixture::start().await;
    let marks = marks();
    let seed =
        json!({"count": 1, "name": marks.name, "labels": label_of(&marks), "state": "error"});
    let first = fixture.seed(seed).await.remove(0);
    fixture.provider.api().delete(&first).await.unwrap();
    let second = plant(&fixture, &marks.name, label_of(&marks)).await;
    let found = fixture.provider.find(&marks).await.unwrap();
    let mut ids: Vec<&String> = found.iter().map(|seen| &seen.id).collect();
    ids.sort();
    let mut expected = [&first, &second];
    expected.sort();
    assert_eq!(ids, expected, "all matches are returned, and the caller releases none");
    fixture.stop().await;
}
