//! Listing while the world changes.

use std::collections::BTreeSet;

use creel_core::provider::{Kind, Provider};
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
    bench.fault(json!({"at": "list", "fault": "latency", "seconds": 0.15})).await;
    let wire = bench.another();
    let disturb = async {
        for (number, stranger) in strangers.iter().enumerate() {
            wire.wire().delete(stranger).await.unwrap();
            if number % 50 == 0 {
                bench.seed(json!({"count": 20})).await;
            }
        }
    };
    let listing = async { bench.provider.list(&[Kind::Sandbox]).await.unwrap() };
    let (listed, ()) = tokio::join!(listing, disturb);
    let ids: Vec<&String> = listed.iter().map(|seen| &seen.id).collect();
    let found: BTreeSet<&String> = ids.iter().copied().collect();
    assert_eq!(found.len(), ids.len(), "a row was listed twice");
    assert!(ours.iter().all(|id| found.contains(id)), "one of ours was missed");
    assert!(bench.requests("GET /sandbox").await >= 3);
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
