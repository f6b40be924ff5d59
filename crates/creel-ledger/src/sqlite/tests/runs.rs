//! Tests of runs and their commands on record.

use creel_model::id::RunId;
use creel_model::run::{Cause, CauseClass, Phase, RunCommand, RunState};
use creel_sanitise::Diagnostic;
use sqlx::Row;

use crate::sqlite::columns::Binds;
use crate::sqlite::{database, open};
use crate::{NewCommand, NewRun, RunFilter, WorkflowRecord};

use super::*;

fn some_run() -> NewRun {
    NewRun {
        id: RunId::new(),
        name: "hello".into(),
        provider: ProviderName::new("process"),
        owner: some_owner(),
        on_owner_death: OnOwnerDeath::Release,
        workflow: WorkflowRecord {
            source_name: "hello.toml".into(),
            source: "name = \"hello\"\n[task]\nprompt = \"Say it\"\n".to_owned(),
            inputs: [("who".to_owned(), "world".to_owned())].into(),
        },
    }
}

fn another_owner() -> OwnerRecord {
    let mut other = some_owner();
    other.owner.process.pid = 77;
    other
}

fn state_at(sequence: u64, phase: Phase) -> RunState {
    RunState { sequence, phase, attempt: 1, ..RunState::new() }
}

fn failed_by(class: CauseClass) -> RunState {
    let mut state = state_at(1, Phase::Failed);
    state.causes.latch(Cause::new(class, Diagnostic::ours("so it was"), 1));
    state
}

#[tokio::test]
async fn a_run_its_state_and_its_workflow_survive_reopening() {
    let home = tempfile::tempdir().unwrap();
    let (store, run) = (open_in(home.path()).await, some_run());
    store.create_run(&run).await.unwrap();
    store.save_run(run.id, &run.owner.owner, &failed_by(CauseClass::Offline)).await.unwrap();
    drop(store);

    let store = open_in(home.path()).await;
    let record = store.run(run.id).await.unwrap().expect("it was recorded");
    assert_eq!(record.state, failed_by(CauseClass::Offline));
    assert_eq!((record.name.as_str(), record.owner), ("hello", run.owner));
    assert_eq!(store.workflow_of(run.id).await.unwrap(), Some(run.workflow));
    assert_eq!(store.workflow_of(RunId::new()).await.unwrap(), None);
}

#[tokio::test]
async fn a_state_is_saved_by_its_owner_only() {
    let home = tempfile::tempdir().unwrap();
    let (store, run) = (open_in(home.path()).await, some_run());
    store.create_run(&run).await.unwrap();
    let other = another_owner();
    let saved = store.save_run(run.id, &other.owner, &state_at(3, Phase::Running)).await;
    assert!(matches!(saved, Err(LedgerError::NotOwner { run: id, .. }) if id == run.id));
    assert_eq!(store.run(run.id).await.unwrap().unwrap().state, RunState::new());
    let unknown = store.save_run(RunId::new(), &other.owner, &RunState::new()).await;
    assert!(matches!(unknown, Err(LedgerError::UnknownRun { .. })));
}

#[tokio::test]
async fn an_older_state_never_replaces_a_newer_one() {
    let home = tempfile::tempdir().unwrap();
    let (store, run) = (open_in(home.path()).await, some_run());
    store.create_run(&run).await.unwrap();
    store.save_run(run.id, &run.owner.owner, &state_at(5, Phase::Running)).await.unwrap();
    store.save_run(run.id, &run.owner.owner, &state_at(4, Phase::Ready)).await.unwrap();
    assert_eq!(store.run(run.id).await.unwrap().unwrap().state.sequence, 5);
}

#[tokio::test]
async fn of_two_heirs_only_one_claims_a_run() {
    let home = tempfile::tempdir().unwrap();
    let (one, other) = (open_in(home.path()).await, open_in(home.path()).await);
    let run = some_run();
    one.create_run(&run).await.unwrap();
    let (first, mut second) = (another_owner(), another_owner());
    second.owner.process.pid = 78;
    let (dead, id) = (run.owner.owner.clone(), run.id);
    let (a, b) =
        tokio::join!(one.claim_run(id, &dead, &first), other.claim_run(id, &dead, &second));
    let claimed = [a.unwrap(), b.unwrap()].into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(claimed.len(), 1);
    let owner = one.run(id).await.unwrap().unwrap().owner;
    assert_eq!(owner, claimed[0].owner);
    let late = one.save_run(id, &dead, &state_at(1, Phase::Queued)).await;
    assert!(matches!(late, Err(LedgerError::NotOwner { .. })));
}

#[tokio::test]
async fn runs_are_found_by_phase_class_age_owner_and_the_beginning_of_their_id() {
    let home = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(1_000));
    let store = SqliteStore::open(home.path(), Arc::clone(&clock) as _).await.unwrap();
    let (old, young) = (some_run(), NewRun { owner: another_owner(), ..some_run() });
    store.create_run(&old).await.unwrap();
    clock.advance(Duration::from_secs(60));
    store.create_run(&young).await.unwrap();
    let state = failed_by(CauseClass::ModelTimeout);
    store.save_run(old.id, &old.owner.owner, &state).await.unwrap();

    let found = async |filter: RunFilter| -> Vec<RunId> {
        store.runs(&filter).await.unwrap().into_iter().map(|run| run.id).collect()
    };
    let all = RunFilter::default;
    assert_eq!(found(all()).await, [old.id, young.id]);
    assert_eq!(found(RunFilter::unfinished()).await, [young.id]);
    assert_eq!(found(RunFilter { phases: vec![Phase::Failed], ..all() }).await, [old.id]);
    let classes = vec![CauseClass::ModelTimeout, CauseClass::Offline];
    assert_eq!(found(RunFilter { classes, ..all() }).await, [old.id]);
    assert_eq!(found(RunFilter { newer_than_ms: Some(2_000), ..all() }).await, [young.id]);
    assert_eq!(found(RunFilter { older_than_ms: Some(2_000), ..all() }).await, [old.id]);
    assert_eq!(found(all().of(&young.owner.owner)).await, [young.id]);
    let id_prefix = Some(young.id.to_string());
    assert_eq!(found(RunFilter { id_prefix, ..all() }).await, [young.id]);
    let id_prefix = Some("run_%".to_owned());
    assert_eq!(found(RunFilter { id_prefix, ..all() }).await, []);
}

#[tokio::test]
async fn a_run_whose_sandbox_is_kept_is_not_settled() {
    let home = tempfile::tempdir().unwrap();
    let (store, run) = (open_in(home.path()).await, some_run());
    store.create_run(&run).await.unwrap();
    let kept = RunState { kept_until_ms: Some(9), ..failed_by(CauseClass::Offline) };
    store.save_run(run.id, &run.owner.owner, &kept).await.unwrap();
    let unfinished = store.runs(&RunFilter::unfinished()).await.unwrap();
    assert_eq!(unfinished.len(), 1);
    assert!(unfinished[0].is_unfinished());
}

#[tokio::test]
async fn commands_are_placed_once_read_in_sequence_and_completed_once() {
    let home = tempfile::tempdir().unwrap();
    let (store, run) = (open_in(home.path()).await, some_run());
    store.create_run(&run).await.unwrap();
    let text = RunCommand::Message { request: Some("q1".into()) };
    let first = NewCommand { key: "b".to_owned(), run: run.id, command: text };
    let second = NewCommand { key: "a".to_owned(), run: run.id, command: RunCommand::Cancel };
    assert!(store.place_command(&first).await.unwrap());
    assert!(store.place_command(&second).await.unwrap());
    assert!(!store.place_command(&first).await.unwrap());

    let open = store.open_commands(run.id).await.unwrap();
    assert_eq!(
        open.iter().map(|command| &command.command).collect::<Vec<_>>(),
        [&first.command, &second.command]
    );
    assert!(store.complete_command("b").await.unwrap());
    assert!(!store.complete_command("b").await.unwrap());
    assert_eq!(store.open_commands(run.id).await.unwrap().len(), 1);
    // The key of a completed command stays known.
    assert!(!store.place_command(&first).await.unwrap());
}

#[tokio::test]
async fn a_command_for_an_unknown_run_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let store = open_in(home.path()).await;
    let command =
        NewCommand { key: "k".to_owned(), run: RunId::new(), command: RunCommand::Resume };
    assert!(matches!(store.place_command(&command).await, Err(LedgerError::UnknownRun { .. })));
}

#[test]
fn debug_output_hides_user_text() {
    let message = RunCommand::Message { request: Some("the Secret plan".into()) };
    let run = some_run();
    let shown = format!("{run:?} {message:?}");
    assert!(shown.contains("hello.toml") && !shown.contains("Say it"), "{shown}");
    assert!(!shown.contains("Secret") && !shown.contains("world"), "{shown}");
}

#[tokio::test]
async fn a_ledger_of_the_first_schema_is_migrated_and_keeps_its_records() {
    let home = tempfile::tempdir().unwrap();
    let path = Ledger::path(home.path());
    let pool = database::connect(&path).await.unwrap();
    database::migrate(&path, &pool, &open::MIGRATIONS[..1]).await.unwrap();
    let (ledger, resource) = (LedgerId::new(), ResourceId::new());
    sqlx::query("INSERT INTO ledger VALUES (?, 5)").column(&ledger).execute(&pool).await.unwrap();
    sqlx::query(
        "INSERT INTO resources VALUES (?, NULL, 'docker', 'volume', 'v', '{}', 'intended', NULL,
             NULL, 'h/b/1/2/3', 'creel', 0, 'release', 60, 0, 0, 'b', 0, 0)",
    )
    .column(&resource)
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;

    let store = open_in(home.path()).await;
    assert_eq!(store.id(), ledger);
    assert_eq!(store.record(resource).await.unwrap().unwrap().name, "v");
    let run = some_run();
    store.create_run(&run).await.unwrap();
    let row = sqlx::query("SELECT count(*) AS count FROM workflows")
        .fetch_one(&store.inner.pool)
        .await
        .unwrap();
    assert_eq!(row.get::<i64, _>("count"), 1);
}
