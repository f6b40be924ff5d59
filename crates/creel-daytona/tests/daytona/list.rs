//! Listing while sandboxes change.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use creel_model::provider::{Kind, Provider};
use serde_json::json;

use crate::fixture::DaytonaFixture;

#[tokio::test(flavor = "multi_thread")]
async fn no_sandbox_is_missed_while_rows_appear_and_vanish() {
    let fixture = DaytonaFixture::start().await;
    // Foreign sandboxes before, between and after ours. Those that vanish shift every later row.
    let mut ours = BTreeSet::new();
    let mut foreign = Vec::new();
    for _ in 0..5 {
        foreign.extend(fixture.seed(json!({"count": 60})).await);
        ours.extend(fixture.seed(json!({"count": 50, "labels": {"ours": "yes"}})).await);
    }
    // These stay, so that there are three pages however quickly the others vanish.
    fixture.seed(json!({"count": 300})).await;
    fixture.fault(json!({"at": "list", "fault": "latency", "seconds": 0.15})).await;
    let other = fixture.another();
    // The oldest vanish first, so every row behind them shifts across page boundaries.
    let (vanished, appeared) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let disturb = async {
        for (number, id) in foreign.iter().enumerate() {
            other.api().delete(id).await.unwrap();
            vanished.fetch_add(1, Ordering::SeqCst);
            if number % 10 == 0 {
                appeared.fetch_add(fixture.seed(json!({"count": 5})).await.len(), Ordering::SeqCst);
            }
        }
    };
    let meanwhile = || (vanished.load(Ordering::SeqCst), appeared.load(Ordering::SeqCst));
    let listing = async {
        let listed = fixture.provider.list(&[Kind::Sandbox]).await.unwrap();
        (listed, meanwhile())
    };
    let ((listed, (vanished, appeared)), ()) = tokio::join!(listing, disturb);
    let pages = fixture.requests("GET /sandbox").await;
    println!("{pages} pages; meanwhile {vanished} rows vanished and {appeared} appeared");
    assert!(pages >= 3 && vanished > 60 && appeared > 30, "nothing moved while it was read");
    let ids: Vec<&String> = listed.iter().map(|seen| &seen.id).collect();
    let found: BTreeSet<&String> = ids.iter().copied().collect();
    assert_eq!(found.len(), ids.len(), "a row was listed twice");
    assert_eq!(ours.len(), 250);
    assert!(ours.iter().all(|id| found.contains(id)), "one of ours was missed");
    fixture.stop().await;
}

#[tokio::test]
async fn a_listing_survives_transient_faults() {
    let fixture = DaytonaFixture::start().await;
    fixture.seed(json!({"count": 450})).await;
    for fault in [
        json!({"at": "list", "fault": "half_body", "count": 1}),
        json!({"at": "list", "fault": "cut_after", "count": 1}),
        json!({"at": "list", "fault": "status", "status": 502, "count": 1}),
    ] {
        fixture.fault(fault).await;
    }
    assert_eq!(fixture.provider.list(&[Kind::Sandbox]).await.unwrap().len(), 450);
    fixture.assert_every_fault_fired().await;
    fixture.stop().await;
}

#[tokio::test]
async fn listed_sandboxes_have_their_age_and_activity() {
    let fixture = DaytonaFixture::start().await;
    fixture.seed(json!({"count": 1, "age_seconds": 90_000, "state": "stopped"})).await;
    let seen = fixture.list().await.remove(0);
    assert_eq!(seen.state, "stopped");
    let age = jiff::Timestamp::now().duration_since(seen.created_at.unwrap());
    assert!((89_990..=90_100).contains(&age.as_secs()), "{age:?}");
    assert!(seen.last_active_at.is_some());
    let day = std::time::Duration::from_secs(86_400);
    let report = fixture.cleanup().release_old(Kind::Sandbox, day).await.unwrap();
    assert!(report.is_all_gone());
    assert!(fixture.list().await.is_empty());
    fixture.stop().await;
}
