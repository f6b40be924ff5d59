//! A list under change neither fails nor invents.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use creel_model::provider::Observed;

use super::context::CaseContext;
use super::suite::cases;

/// How many objects come and go while lists are made.
const CHANGES: usize = 4;

cases![Case:
    a_list_under_change_neither_fails_nor_invents if |_, _| true,
    every_listed_state_is_documented if |all, kind| all.planted.contains(&kind),
    a_list_of_no_kinds_is_empty if |_, _| true,
];

async fn a_list_under_change_neither_fails_nor_invents(context: &CaseContext) {
    let stable = [context.create().await.1, context.create().await.1];
    let is_over = AtomicBool::new(false);
    let changes = async {
        let mut passed = Vec::new();
        for _ in 0..CHANGES {
            let (request, id) = context.create().await;
            passed.push(request.name);
            context.release_to_the_end(&id).await;
            tokio::task::yield_now().await;
        }
        is_over.store(true, Ordering::SeqCst);
        passed
    };
    let another = context.subject().another();
    let lists = async {
        let mut count = 0;
        while !is_over.load(Ordering::SeqCst) {
            assert_sound(context, &another.list(&[context.kind]).await.unwrap(), &stable);
            count += 1;
            // A provider without a server never waits by itself.
            tokio::task::yield_now().await;
        }
        count
    };
    let (passed, count) = tokio::join!(changes, lists);
    assert!(count > 1, "the changes were over before a second list");
    let after = another.list(&[context.kind]).await.unwrap();
    assert_sound(context, &after, &stable);
    assert!(after.iter().all(|seen| !passed.contains(&seen.name)), "a released object is listed");
}

/// Asserts that a list has every stable object, and nothing twice or of another kind.
fn assert_sound(context: &CaseContext, listed: &[Observed], stable: &[String]) {
    let ids: HashSet<&str> = listed.iter().map(|seen| seen.id.as_str()).collect();
    assert_eq!(ids.len(), listed.len(), "an object is listed twice");
    assert!(stable.iter().all(|id| ids.contains(id.as_str())), "an object is missing");
    let provider = context.provider().name();
    for seen in listed {
        assert_eq!((seen.provider, seen.kind), (provider, context.kind), "{seen:?}");
        assert!(!seen.id.is_empty() && !seen.name.is_empty(), "{seen:?}");
    }
}

async fn every_listed_state_is_documented(context: &CaseContext) {
    let (request, _) = context.create().await;
    context.decoys(&request).await;
    for seen in context.provider().list(&[context.kind]).await.unwrap() {
        context.assert_documented(&seen.state);
    }
}

async fn a_list_of_no_kinds_is_empty(context: &CaseContext) {
    context.create().await;
    assert_eq!(context.provider().list(&[]).await.unwrap(), []);
}
