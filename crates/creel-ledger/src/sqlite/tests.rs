mod runs;

use std::fs;
use std::time::Duration;

use creel_model::clock::{ManualClock, SystemClock};
use creel_model::provider::{Kind, ProviderName};

use crate::event::tests::some_owner;
use crate::{Ledger, OnOwnerDeath, ResourceState, StateName};

use super::*;

fn some_intent() -> Intent {
    let id = ResourceId::new();
    Intent {
        id,
        run: None,
        provider: ProviderName::new("docker"),
        kind: Kind::Container,
        name: id.object_name(),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        owner: some_owner(),
        on_owner_death: OnOwnerDeath::Release,
        lease: Duration::from_secs(60),
    }
}

async fn open_in(home: &Path) -> SqliteStore {
    SqliteStore::open(home, Arc::new(SystemClock)).await.expect("a fresh directory takes a ledger")
}

#[tokio::test]
async fn a_record_and_its_history_survive_reopening() {
    let home = tempfile::tempdir().unwrap();
    let intent = some_intent();
    let first = open_in(home.path()).await;
    first.record_intent(&intent).await.unwrap();
    first
        .append(&[(intent.id, Event::Created { object: "c1".to_owned(), identity: None })])
        .await
        .unwrap();
    drop(first);

    let second = open_in(home.path()).await;
    let record = second.record(intent.id).await.unwrap().expect("it was recorded");
    assert_eq!(record.state, ResourceState::Created { object: "c1".to_owned() });
    assert_eq!(record.labels, intent.labels);
    assert_eq!(second.history(intent.id).await.unwrap().len(), 2);
    assert_eq!(second.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn an_event_that_changes_nothing_is_not_stored_twice() {
    let home = tempfile::tempdir().unwrap();
    let (store, intent) = (open_in(home.path()).await, some_intent());
    store.record_intent(&intent).await.unwrap();
    let request = (intent.id, Event::ReleaseRequested { why: "test".into() });
    store.append(&[request.clone(), request]).await.unwrap();
    assert_eq!(store.history(intent.id).await.unwrap().len(), 2);
}

#[tokio::test]
async fn several_events_are_stored_all_or_none() {
    let home = tempfile::tempdir().unwrap();
    let (store, intent) = (open_in(home.path()).await, some_intent());
    store.record_intent(&intent).await.unwrap();
    let result = store
        .append(&[
            (intent.id, Event::Created { object: "c1".to_owned(), identity: None }),
            (intent.id, Event::VerifiedGone),
        ])
        .await;
    assert!(matches!(result, Err(LedgerError::Illegal { .. })));
    let record = store.record(intent.id).await.unwrap().unwrap();
    assert_eq!(record.state, ResourceState::Intended);
}

#[tokio::test]
async fn of_two_heirs_only_one_takes_over() {
    let home = tempfile::tempdir().unwrap();
    let (one, other) = (open_in(home.path()).await, open_in(home.path()).await);
    let mut all = Vec::new();
    for _ in 0..20 {
        all.push(one.record_intent(&some_intent()).await.unwrap().id);
    }
    let dead = some_owner().owner;
    let heir = |pid| {
        let mut heir = some_owner();
        heir.owner.process.pid = pid;
        heir
    };
    let (first, second) = (heir(7), heir(8));
    let (a, b) =
        tokio::join!(one.take_over(&all, &dead, &first), other.take_over(&all, &dead, &second));
    assert_eq!(a.unwrap().len() + b.unwrap().len(), 20);
}

#[tokio::test]
async fn many_writers_on_one_file_lose_nothing() {
    let home = tempfile::tempdir().unwrap();
    let stores = [open_in(home.path()).await, open_in(home.path()).await];
    let writes = (0..100).map(|n| {
        let store = stores[n % 2].clone();
        async move { store.record_intent(&some_intent()).await }
    });
    for written in futures::future::join_all(writes).await {
        written.unwrap();
    }
    assert_eq!(stores[0].records(&RecordFilter::open()).await.unwrap().len(), 100);
}

#[tokio::test]
async fn a_cancelled_caller_does_not_cut_a_write() {
    let home = tempfile::tempdir().unwrap();
    let (store, intent) = (open_in(home.path()).await, some_intent());
    {
        let write = store.record_intent(&intent);
        // Poll once, so that the write has started, then drop it.
        futures::pin_mut!(write);
        assert!(futures::poll!(&mut write).is_pending());
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while store.record(intent.id).await.unwrap().is_none() {
        assert!(tokio::time::Instant::now() < deadline, "the write was cut");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_ledger_of_a_newer_creel_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let store = open_in(home.path()).await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (99, 'from the future', 1, x'00', 0)",
    )
    .execute(&store.inner.pool)
    .await
    .unwrap();
    let error = SqliteStore::open(home.path(), Arc::new(SystemClock)).await.unwrap_err();
    assert!(matches!(error, LedgerError::NewerSchema { found: 99, .. }), "{error}");
}

#[tokio::test]
async fn a_file_that_is_no_ledger_is_reported_as_damaged_and_not_changed() {
    let home = tempfile::tempdir().unwrap();
    let path = Ledger::path(home.path());
    let content = "this is not a database, however long it may be ".repeat(100);
    fs::write(&path, &content).unwrap();
    let error = SqliteStore::open(home.path(), Arc::new(SystemClock)).await.unwrap_err();
    assert!(matches!(error, LedgerError::Corrupt { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), content);
}

#[tokio::test]
async fn events_and_tries_cannot_be_rewritten() {
    let home = tempfile::tempdir().unwrap();
    let (store, intent) = (open_in(home.path()).await, some_intent());
    store.record_intent(&intent).await.unwrap();
    for statement in ["DELETE FROM events", "UPDATE events SET at_ms = 0"] {
        let refused = sqlx::query(statement).execute(&store.inner.pool).await.unwrap_err();
        assert!(refused.to_string().contains("append-only"), "{refused}");
    }
}

#[tokio::test]
async fn a_record_that_contradicts_its_events_is_found_by_the_check() {
    let home = tempfile::tempdir().unwrap();
    let (store, intent) = (open_in(home.path()).await, some_intent());
    store.record_intent(&intent).await.unwrap();
    sqlx::query("UPDATE resources SET state = 'gone'").execute(&store.inner.pool).await.unwrap();
    let problems = store.check().await.unwrap();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("is stored as gone but its events say intended"));
}

#[tokio::test]
async fn renewing_moves_the_lease_of_open_records_only() {
    let home = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(1_000));
    let store = SqliteStore::open(home.path(), Arc::clone(&clock) as _).await.unwrap();
    let (open, closed) = (some_intent(), some_intent());
    store.record_intent(&open).await.unwrap();
    store.record_intent(&closed).await.unwrap();
    let never = Event::NeverCreated { evidence: "refused".into() };
    store.append(&[(closed.id, never)]).await.unwrap();
    clock.advance(Duration::from_secs(5));
    assert_eq!(store.renew_leases(&open.owner.owner).await.unwrap(), 1);
    let renewed = store.record(open.id).await.unwrap().unwrap();
    assert_eq!(renewed.lease.renewed.wall_ms, 6_000);
    let gone = store.record(closed.id).await.unwrap().unwrap();
    assert_eq!(gone.state.name(), StateName::Gone);
}

#[tokio::test]
async fn a_create_renews_the_earlier_leases_of_its_owner() {
    let home = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(1_000));
    let store = SqliteStore::open(home.path(), Arc::clone(&clock) as _).await.unwrap();
    let (first, second) = (some_intent(), some_intent());
    store.record_intent(&first).await.unwrap();
    clock.advance(Duration::from_secs(5));
    store.record_intent(&second).await.unwrap();
    let renewed = store.record(first.id).await.unwrap().unwrap().lease.renewed;
    assert_eq!(renewed, store.record(second.id).await.unwrap().unwrap().lease.renewed);
}
