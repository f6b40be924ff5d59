//! The output limit of a run's log, and the stored form of output.

use creel_model::run::{OutputCount, RunEvent};
use serde_json::json;

use crate::event_log::{EventLog, Journal, check};
use crate::sqlite::columns::{Binds, Exact};
use crate::sqlite::database;

use super::{Scene, a_certain_event, me};

/// Returns a piece of output as it is read from a log.
pub(crate) fn text(content: &str) -> RunEvent {
    let stored = json!({"event": "text", "turn": 1, "stream": "output", "text": content});
    serde_json::from_value(stored).unwrap()
}

/// Returns how many bytes of output the log has, and how many it reports as dropped.
async fn counted(scene: &Scene) -> (u64, u64) {
    let (mut kept, mut dropped) = (0, 0);
    for logged in scene.logged().await {
        match logged.event {
            RunEvent::Text { text, .. } => kept += text.as_str().len() as u64,
            RunEvent::TextDropped { bytes, .. } => dropped += bytes,
            _ => {}
        }
    }
    (kept, dropped)
}

#[tokio::test]
async fn output_beyond_the_limit_is_counted_and_dropped_and_nothing_else_is() {
    let mut scene = Scene::running().await;
    scene.ledger = scene.ledger.clone().with_text_limit(10_000);
    let run = scene.journal.run();
    scene.journal = Journal::resume(&scene.ledger, run, &me().owner).await.unwrap();
    let piece = "x".repeat(1_000);
    for number in 1..=100 {
        scene.journal.record_spooled(text(&piece), number).await.unwrap();
    }
    scene.journal.record_spooled(a_certain_event(), 101).await.unwrap();
    assert_eq!(counted(&scene).await, (10_000, 90_000));
    let expected = OutputCount { logged_bytes: 10_000, dropped_pieces: 90, dropped_bytes: 90_000 };
    assert_eq!(scene.row().await.output, expected);
    assert_eq!(scene.journal.safe_spool().await, 101);
    assert_eq!(scene.logged().await.last().unwrap().event, a_certain_event());

    // The next owner of the run knows that the log is full, and which events are known.
    scene.journal = Journal::resume(&scene.ledger, run, &me().owner).await.unwrap();
    scene.journal.record_spooled(text(&piece), 101).await.unwrap();
    scene.journal.record_spooled(text(&piece), 102).await.unwrap();
    scene.journal.record_spooled(text(&piece), 102).await.unwrap();
    scene.journal.flush().await.unwrap();
    assert_eq!(counted(&scene).await, (10_000, 91_000));
    assert_eq!(check(&scene.ledger).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_log_is_smaller_than_the_output_in_it() {
    let mut scene = Scene::running().await;
    let mut written = 0;
    for number in 0..200 {
        let line =
            |place| format!("test {number}/{place} ... \"ok\" in {}\tms\n", place * 37 % 101);
        let piece: String = (0..500).map(line).collect();
        written += piece.len() as u64;
        scene.journal.record(text(&piece)).await.unwrap();
    }
    scene.journal.flush().await.unwrap();
    assert_eq!(counted(&scene).await, (written, 0));
    scene.log().await.execute("PRAGMA wal_checkpoint(TRUNCATE)").await.unwrap();
    let stored = std::fs::metadata(EventLog::path(scene.home.path())).unwrap().len();
    assert!(stored < written / 2, "{stored} bytes for {written} bytes of output");
}

#[tokio::test]
async fn events_of_an_older_creel_are_read() {
    let home = tempfile::tempdir().unwrap();
    let path = EventLog::path(home.path());
    let run = creel_model::id::RunId::new();
    let old = database::connect(&path).await.unwrap();
    let version_1 = [include_str!("../../sqlite/migrations/events/0001_events.sql")];
    database::migrate(&path, &old, &version_1).await.unwrap();
    let event = serde_json::to_string(&text("as before")).unwrap();
    sqlx::query("INSERT INTO events VALUES (?, 1, 5, NULL, 1, ?)")
        .column(&run)
        .column(Exact(&event))
        .execute(&old)
        .await
        .unwrap();
    old.close().await;
    let log = EventLog::open(home.path()).await.unwrap();
    let read = log.read(run, 1, 10).await.unwrap();
    assert_eq!(read.iter().map(|one| &one.event).collect::<Vec<_>>(), [&text("as before")]);
}

#[tokio::test]
async fn the_side_file_stays_small_although_somebody_always_reads() {
    let scene = Scene::running().await;
    let (log, run) = (scene.log().await.clone(), scene.journal.run());
    let done = std::sync::atomic::AtomicBool::new(false);
    let readers = (0..4).map(|_| async {
        let other = EventLog::open(scene.home.path()).await.unwrap();
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            other.read(run, 1, 500).await.unwrap();
        }
    });
    let mut journal = Journal::resume(&scene.ledger, run, &me().owner).await.unwrap();
    let write = async {
        // Bytes that cannot be compressed, so that much is written.
        let mut seed = 1_u64;
        for _ in 0..8 {
            let mut piece = String::new();
            while piece.len() < 512 << 10 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                piece.push_str(&format!("{seed:x}"));
            }
            journal.record(text(&piece)).await.unwrap();
            journal.flush().await.unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    futures::join!(write, futures::future::join_all(readers));
    let side = scene.home.path().join("events.db-wal");
    let size = std::fs::metadata(side).unwrap().len();
    assert!(size <= 3 << 20, "the side file has {size} bytes");
    drop(log);
}
