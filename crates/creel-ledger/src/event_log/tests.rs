//! Tests of the journal with real files: what is on disk when, and after the
//! death of which process.

pub(crate) mod output;
mod processes;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use creel_model::crashpoint;
use creel_model::crashpoint::{Crash, Crashpoint};
use creel_model::owner::{Liveness, Owner};
use creel_model::run::examples::{events_until_running, some_step, some_text};
use creel_model::run::{AttemptFrom, Logged, Phase, RunEvent, StepStatus};
use tempfile::TempDir;

use crate::examples::{a_dead_owner, a_run_of, me};
use crate::{LedgerError, RunFilter};

use super::*;

/// The variables that define where the child process of a test dies.
const DIE_AT: &str = "CREEL_TEST_DIE_AT";
const DIE_IN: &str = "CREEL_TEST_DIE_IN";

/// A ledger, and a run of this process in the running phase.
struct Scene {
    home: TempDir,
    ledger: Ledger,
    journal: Journal,
}

impl Scene {
    async fn running() -> Self {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let mut journal = Journal::begin(&ledger, &a_run_of(me())).await.unwrap();
        // The first event is on record already.
        journal.record_all(events_until_running()[1..].to_vec()).await.unwrap();
        Self { home, ledger, journal }
    }

    async fn log(&self) -> &EventLog {
        self.ledger.event_log().await.unwrap()
    }

    async fn logged(&self) -> Vec<Logged> {
        self.log().await.read(self.journal.run(), 1, 10_000).await.unwrap()
    }

    async fn row(&self) -> RunState {
        self.ledger.run(self.journal.run()).await.unwrap().unwrap().state
    }
}

fn a_certain_event() -> RunEvent {
    RunEvent::MessageTaken { key: "k".into() }
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "it never came true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_run_is_on_record_before_anything_happens_to_it() {
    let home = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(home.path()).await.unwrap();
    let run = a_run_of(me());
    let journal = Journal::begin(&ledger, &run).await.unwrap();
    let row = ledger.run(run.id).await.unwrap().unwrap();
    assert_eq!((row.state.phase, row.state.sequence), (Phase::Queued, 1));
    assert_eq!(journal.state(), &row.state);
    let log = ledger.event_log().await.unwrap().read(run.id, 1, 9).await.unwrap();
    assert_eq!(log.into_iter().map(|one| one.event).collect::<Vec<_>>(), [RunEvent::Queued]);
}

#[tokio::test]
async fn everything_but_output_is_durable_at_once_and_output_comes_first() {
    let mut scene = Scene::running().await;
    let before = scene.logged().await.len();
    scene.journal.record(some_text()).await.unwrap();
    scene.journal.record(a_certain_event()).await.unwrap();
    let log = scene.logged().await;
    assert_eq!([&log[before].event, &log[before + 1].event], [&some_text(), &a_certain_event()]);
    assert_eq!(&scene.row().await, scene.journal.state());
}

#[tokio::test]
async fn output_is_written_after_a_short_delay() {
    let mut scene = Scene::running().await;
    scene.journal.record(some_text()).await.unwrap();
    let newest = scene.journal.state().sequence;
    until(async || scene.logged().await.len() as u64 == newest).await;
    let record = current(&scene.ledger, scene.journal.run()).await.unwrap().unwrap();
    assert_eq!(&record.state, scene.journal.state());
}

#[tokio::test]
async fn an_illegal_event_is_reported_and_changes_neither_log_nor_row() {
    let mut scene = Scene::running().await;
    let (log, row) = (scene.logged().await, scene.row().await);
    let error = scene.journal.record(RunEvent::Queued).await.unwrap_err();
    let RecordsError::Illegal { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.to_string(), "queued cannot happen to a run that is running");
    let both = vec![a_certain_event(), RunEvent::BootstrapOk];
    assert!(scene.journal.record_all(both).await.is_err());
    assert_eq!((scene.logged().await, scene.row().await), (log, row));
}

#[tokio::test]
async fn an_event_of_the_spool_is_recorded_once_and_safe_only_on_disk() {
    let mut scene = Scene::running().await;
    let before = scene.logged().await.len();
    scene.journal.record_spooled(some_text(), 1).await.unwrap();
    assert_eq!((scene.journal.state().spooled, scene.journal.safe_spool().await), (1, 0));
    scene.journal.record_spooled(a_certain_event(), 2).await.unwrap();
    scene.journal.record_spooled(a_certain_event(), 2).await.unwrap();
    scene.journal.record_spooled(some_text(), 1).await.unwrap();
    assert_eq!(scene.journal.safe_spool().await, 2);
    assert_eq!(scene.logged().await.len(), before + 2);

    let resumed = Journal::resume(&scene.ledger, scene.journal.run(), &me().owner).await.unwrap();
    assert_eq!((resumed.state().spooled, resumed.safe_spool().await), (2, 2));
}

#[tokio::test]
async fn what_the_log_has_beyond_the_row_is_replayed() {
    let scene = Scene::running().await;
    let run = scene.journal.run();
    let sequence = scene.journal.state().sequence + 1;
    let phase = Phase::Releasing;
    let event = RunEvent::PhaseEntered { phase };
    let logged = Logged { sequence, at_ms: 0, spooled: Some(9), event };
    scene.log().await.append(run, &[logged]).await.unwrap();
    assert_eq!(scene.row().await.phase, Phase::Running);

    let resumed = Journal::resume(&scene.ledger, run, &me().owner).await.unwrap();
    assert_eq!((resumed.state().phase, resumed.state().spooled), (phase, 9));
    assert_eq!(&scene.row().await, resumed.state());
}

#[tokio::test]
async fn a_replaced_driver_gets_an_error_and_its_successor_loses_nothing() {
    let mut scene = Scene::running().await;
    let (run, heir) = (scene.journal.run(), a_dead_owner());
    let taken = Journal::claim(&scene.ledger, run, &me().owner, &heir).await.unwrap();
    let mut taken = taken.expect("nobody else wanted it");
    let late = Journal::claim(&scene.ledger, run, &me().owner, &heir).await.unwrap();
    assert!(late.is_none(), "it was taken twice");

    let replaced = scene.journal.record(a_certain_event()).await.unwrap_err();
    assert!(matches!(replaced, RecordsError::Store(LedgerError::NotOwner { .. })), "{replaced}");
    // What the old driver wrote at the last moment is part of the log.
    let overtaken = taken.record(RunEvent::CancelRequested).await.unwrap_err();
    assert!(matches!(overtaken, RecordsError::Overtaken { .. }), "{overtaken}");
    let mut again = Journal::resume(&scene.ledger, run, &heir.owner).await.unwrap();
    again.record(RunEvent::CancelRequested).await.unwrap();
    let tail: Vec<RunEvent> = scene.logged().await.into_iter().map(|one| one.event).collect();
    assert!(tail.ends_with(&[a_certain_event(), RunEvent::CancelRequested]), "{tail:?}");
    let not_owner = Journal::resume(&scene.ledger, run, &me().owner).await.unwrap_err();
    assert!(matches!(not_owner, RecordsError::Store(LedgerError::NotOwner { .. })));
}

#[tokio::test]
async fn a_log_that_lost_events_is_reported() {
    let Scene { home, ledger, journal } = Scene::running().await;
    let run = journal.run();
    drop((ledger, journal));
    for file in ["events.db", "events.db-wal", "events.db-shm"] {
        // Whether the side files exist depends on which process closed the database last.
        let _ = std::fs::remove_file(home.path().join(file));
    }
    let ledger = Ledger::open(home.path()).await.unwrap();
    let error = Journal::resume(&ledger, run, &me().owner).await.unwrap_err();
    assert!(matches!(error, RecordsError::Incomplete { logged: 0, held: 11, .. }), "{error}");
    // The next owner continues from the row, and the log records what is missing.
    let heir = a_dead_owner();
    let mut journal = Journal::claim(&ledger, run, &me().owner, &heir).await.unwrap().unwrap();
    journal.record(RunEvent::CancelRequested).await.unwrap();
    assert_eq!((journal.state().sequence, journal.state().phase), (13, Phase::Running));
    let events = ledger.event_log().await.unwrap().read(run, 1, 100).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|logged| logged.sequence).collect();
    assert_eq!(numbers, [12, 13]);
    assert!(matches!(events[0].event, RunEvent::EventsLost { first: 1, last: 11, .. }));
    assert_eq!(check(&ledger).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn events_cannot_be_rewritten_and_numbers_have_no_gaps() {
    let scene = Scene::running().await;
    let (run, newest) = (scene.journal.run(), scene.journal.state().sequence);
    let numbered = |sequence| Logged { sequence, at_ms: 0, spooled: None, event: some_text() };
    let log = scene.log().await;
    let again = log.append(run, &[numbered(newest)]).await.unwrap_err();
    assert!(matches!(again, RecordsError::Overtaken { .. }), "{again}");
    let gap = log.append(run, &[numbered(newest + 1), numbered(newest + 3)]).await.unwrap_err();
    assert!(matches!(gap, RecordsError::Incomplete { .. }), "{gap}");
    assert_eq!(log.newest(run).await.unwrap(), newest);
    for statement in ["DELETE FROM events", "UPDATE events SET at_ms = 0"] {
        let refused = log.execute(statement).await.unwrap_err();
        assert!(refused.to_string().contains("append-only"), "{refused}");
    }
}

#[tokio::test]
async fn subscribers_receive_events_once_they_are_on_disk() {
    let mut scene = Scene::running().await;
    let mut events = scene.journal.subscribe();
    scene.journal.record(some_text()).await.unwrap();
    assert!(events.try_recv().is_err(), "it is not on disk yet");
    scene.journal.flush().await.unwrap();
    scene.journal.record(a_certain_event()).await.unwrap();
    assert_eq!(events.recv().await.unwrap().event, some_text());
    assert_eq!(events.recv().await.unwrap().event, a_certain_event());
}

#[tokio::test]
async fn a_full_disk_loses_no_recorded_event() {
    let mut scene = Scene::running().await;
    let log = scene.log().await.clone();
    // The file cannot grow any further.
    log.set("PRAGMA max_page_count = 1").await;
    let mut recorded = scene.logged().await.len();
    let error = loop {
        let step = some_step(&"x".repeat(2_000), StepStatus::Running);
        let before = scene.journal.state().clone();
        let event = RunEvent::TeardownEnded { name: step.step, found: step.expected };
        match scene.journal.record(event).await {
            Ok(()) => recorded += 1,
            Err(error) => {
                assert_eq!(scene.journal.state(), &before);
                break error;
            }
        }
        assert!(recorded < 1_000, "the disk is never full");
    };
    assert!(matches!(error, RecordsError::Store(LedgerError::DiskFull { .. })), "{error}");
    assert_eq!(scene.logged().await.len(), recorded);

    log.set("PRAGMA max_page_count = 1000000").await;
    scene.journal.record(a_certain_event()).await.unwrap();
    assert_eq!(scene.logged().await.len(), recorded + 1);
}

#[tokio::test]
async fn a_read_only_log_is_reported_and_output_waits() {
    let mut scene = Scene::running().await;
    let before = scene.logged().await.len();
    let log = scene.log().await.clone();
    scene.journal.record(some_text()).await.unwrap();
    log.set("PRAGMA query_only = 1").await;
    let error = scene.journal.record(a_certain_event()).await.unwrap_err();
    assert!(matches!(error, RecordsError::Store(LedgerError::ReadOnly { .. })), "{error}");
    let error = scene.journal.flush().await.unwrap_err();
    assert!(matches!(error, RecordsError::Store(LedgerError::ReadOnly { .. })), "{error}");

    log.set("PRAGMA query_only = 0").await;
    // It is written without another call.
    until(async || scene.logged().await.len() == before + 1).await;
    assert_eq!(scene.logged().await[before].event, some_text());
}

#[tokio::test]
async fn a_log_that_another_process_writes_is_waited_for() {
    let mut scene = Scene::running().await;
    let other = EventLog::open(scene.home.path()).await.unwrap();
    let lock = other.lock().await;
    let (run, before) = (scene.journal.run(), scene.journal.state().sequence);
    let record = scene.journal.record(a_certain_event());
    futures::pin_mut!(record);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut record).await;
    assert!(early.is_err(), "it was recorded although the file was locked");
    drop(lock);
    record.await.unwrap();
    assert_eq!(other.newest(run).await.unwrap(), before + 1);
}

#[tokio::test]
async fn a_cancelled_caller_does_not_tear_log_and_row_apart() {
    let mut scene = Scene::running().await;
    let newest = scene.journal.state().sequence;
    {
        let record = scene.journal.record(a_certain_event());
        futures::pin_mut!(record);
        assert!(futures::poll!(&mut record).is_pending());
    }
    scene.journal.record(RunEvent::CancelRequested).await.unwrap();
    let state = scene.journal.state().clone();
    assert!(state.cancel_requested && state.sequence > newest);
    assert_eq!(scene.row().await, state);
    assert_eq!(scene.logged().await.len() as u64, state.sequence);
}

#[tokio::test]
async fn a_watch_notices_what_another_process_appends() {
    let mut scene = Scene::running().await;
    let mut watch = LogWatch::over(scene.home.path());
    let before = scene.logged().await.len();
    scene.journal.record(a_certain_event()).await.unwrap();
    watch.changed().await;
    assert_eq!(scene.logged().await.len(), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_drivers_on_one_log_lose_nothing() {
    let home = tempfile::tempdir().unwrap();
    let ledgers =
        [Ledger::open(home.path()).await.unwrap(), Ledger::open(home.path()).await.unwrap()];
    let runs = (0..30).map(|place| {
        let ledger = ledgers[place % 2].clone();
        async move {
            let mut journal = Journal::begin(&ledger, &a_run_of(me())).await.unwrap();
            for event in &events_until_running()[1..] {
                journal.record(event.clone()).await.unwrap();
            }
            journal.state().sequence
        }
    });
    let newest = futures::future::join_all(runs).await;
    assert!(
        newest.iter().all(|newest| *newest == events_until_running().len() as u64),
        "{newest:?}"
    );
    assert_eq!(check(&ledgers[0]).await.unwrap(), [""; 0]);
    let running = RunFilter { phases: vec![Phase::Running], ..RunFilter::default() };
    assert_eq!(ledgers[1].runs(&running).await.unwrap().len(), 30);
}

#[tokio::test]
async fn a_row_that_contradicts_its_log_is_found_by_the_check() {
    let mut scene = Scene::running().await;
    scene.journal.record(some_text()).await.unwrap();
    assert_eq!(check(&scene.ledger).await.unwrap(), [""; 0]);
    let wrong = RunState { turns: 9, sequence: 12, ..scene.row().await };
    scene.journal.flush().await.unwrap();
    scene.ledger.save_run(scene.journal.run(), &me().owner, &wrong).await.unwrap();
    let problems = check(&scene.ledger).await.unwrap();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("is stored otherwise than its events make it"), "{problems:?}");
    let ahead = RunState { sequence: 40, ..wrong };
    scene.ledger.save_run(scene.journal.run(), &me().owner, &ahead).await.unwrap();
    let problems = check(&scene.ledger).await.unwrap();
    assert!(problems[0].contains("ends at event 12, but events up to 40"), "{problems:?}");
}

#[tokio::test]
async fn a_watch_sleeps_while_others_only_read() {
    let scene = Scene::running().await;
    let mut watch = LogWatch::over(scene.home.path());
    let started_at = std::time::Instant::now();
    let read = async {
        for _ in 0..20 {
            scene.logged().await;
            scene.row().await;
        }
    };
    tokio::join!(watch.changed(), read);
    assert!(started_at.elapsed() >= Duration::from_millis(900), "{:?}", started_at.elapsed());
}

/// Runs in the child process of the next test, and dies at the given point.
async fn die_at(point: &str, home: &str) -> ! {
    let point = Crashpoint::from_str(point).unwrap();
    let ledger = Ledger::open(home.as_ref()).await.unwrap();
    let owner = if point == Crashpoint::RunClaimedNotWritten { a_dead_owner() } else { me() };
    crashpoint::arm(point, Crash::Kill, None);
    let run = a_run_of(owner);
    let mut journal = Journal::begin(&ledger, &run).await.unwrap();
    let start = RunEvent::AttemptStarted { attempt: 1, from: AttemptFrom::Scratch };
    journal.record(start).await.unwrap();
    drop(journal);
    let _ = Journal::claim(&ledger, run.id, &run.owner.owner, &me()).await;
    panic!("it did not die at {}", point.name());
}

#[tokio::test]
async fn killed_at_every_place_a_run_is_taken_up_with_row_and_log_together() {
    const MYSELF: &str = "event_log::tests::\
                          killed_at_every_place_a_run_is_taken_up_with_row_and_log_together";
    if let (Ok(point), Ok(home)) = (std::env::var(DIE_AT), std::env::var(DIE_IN)) {
        die_at(&point, &home).await;
    }
    for point in Crashpoint::OF_RUNS {
        let home = tempfile::tempdir().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", MYSELF])
            .env(DIE_AT, point.name())
            .env(DIE_IN, home.path())
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(9), "{}: {child:?}", point.name());

        let ledger = Ledger::open(home.path()).await.unwrap();
        let left = ledger.runs(&RunFilter::unfinished()).await.unwrap();
        let [left] = left.as_slice() else { panic!("{}: {left:?}", point.name()) };
        let dead: &Owner = &left.owner.owner;
        assert_eq!(dead.liveness(), Liveness::Dead, "{}", point.name());
        let journal = Journal::claim(&ledger, left.id, dead, &me()).await.unwrap().unwrap();
        let row = ledger.run(left.id).await.unwrap().unwrap();
        let newest = ledger.event_log().await.unwrap().newest(left.id).await.unwrap();
        assert_eq!(&row.state, journal.state(), "{}", point.name());
        let expected = match point {
            Crashpoint::RunCreatedNotLogged => 0,
            Crashpoint::RunLoggedNotSaved => 1,
            _ => 2,
        };
        assert_eq!((row.state.sequence, newest), (expected, expected), "{}", point.name());
    }
}
