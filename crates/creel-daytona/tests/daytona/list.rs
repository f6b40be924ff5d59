//! Listing while sandboxes change.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use creel_model::provider::{Kind, Provider};
use serde_json::json;

use crate::bench::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn none_is_missed_while_rows_appear_and_vanish() {
    let bench = Bench::start().await;
    // Strangers before, between and after ours: those that vanish move every later row.
    let mut ours = BTreeSet::new();
    let mut strangers = Vec::new();
    for _ in 0..5 {
        strangers.extend(bench.seed(json!({"count": 60})).await);
        ours.extend(bench.seed(json!({"count": 50, "labels": {"ours": "yes"}})).await);
    }
    // These stay, so that there are three pages however quickly the others go.
    bench.seed(json!({"count": 300})).await;
    bench.fault(json!({"at": "list", "fault": "latency", "seconds": 0.15})).await;
    let other = bench.another();
    // The oldest go first: every row behind them moves forward, across the ends of pages.
    let (vanished, appeared) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let disturb = async {
        for (number, stranger) in strangers.iter().enumerate() {
            other.api().delete(stranger).await.unwrap();
            vanished.fetch_add(1, Ordering::SeqCst);
            if number % 10 == 0 {
                appeared.fetch_add(bench.seed(json!({"count": 5})).await.len(), Ordering::SeqCst);
            }
        }
    };
    let meanwhile = || (vanished.load(Ordering::SeqCst), appeared.load(Ordering::SeqCst));
    let listing = async {
        let listed = bench.provider.list(&[Kind::Sandbox]).await.unwrap();
        (listed, meanwhile())
    };
    let ((listed, (vanished, appeared)), ()) = tokio::join!(listing, disturb);
    let pages = bench.requests("GET /sandbox").await;
    println!("{pages} pages; meanwhile {vanished} rows vanished and {appeared} appeared");
    assert!(pages >= 3 && vanished > 60 && appeared > 30, "nothing moved while it was read");
    let ids: Vec<&String> = listed.iter().map(|seen| &seen.id).collect();
    let found: BTreeSet<&String> = ids.iter().copied().collect();
    assert_eq!(found.len(), ids.len(), "a row was listed twice");
    assert_eq!(ours.len(), 250);
    assert!(ours.iter().all(|id| found.contains(id)), "one of ours was missed");
    bench.stop().await;
}

#[tokio::test]
async fn a_listing_survives_faults_that_pass() {
    let bench = Bench::start().await;
    bench.seed(json!({"count": 450})).await;
    for fault in [
        json!({"at": "list", "fault": "half_body", "count": 1}),
        json!({"at": "list", "fault": "cut_after", "count": 1}),
        json!({"at": "list", "fault": "status", "status": 502, "count": 1}),
    ] {
        bench.fault(fault).await;
    }
    assert_eq!(bench.provider.list(&[Kind::Sandbox]).await.unwrap().len(), 450);
    bench.every_fault_struck().await;
    bench.stop().await;
}

#[tokio::test]
async fn what_is_listed_has_its_age_and_activity() {
    let bench = Bench::start().await;
    bench.seed(json!({"count": 1, "age_seconds": 90_000, "state": "stopped"})).await;
    let seen = bench.list().await.remove(0);
    assert_eq!(seen.state, "stopped");
    let age = jiff::Timestamp::now().duration_since(seen.created_at.unwrap());
    assert!((89_990..=90_100).contains(&age.as_secs()), "{age:?}");
    assert!(seen.last_active_at.is_some());
    let day = std::time::Duration::from_secs(86_400);
    let report = bench.cleanup().release_old(Kind::Sandbox, day).await.unwrap();
    assert!(report.is_all_gone());
    assert!(bench.list().await.is_empty());
    bench.stop().await;
}
