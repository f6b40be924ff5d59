//! Many processes that write to one ledger and one log at once.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use creel_model::run::Phase;
use creel_model::run::examples::events_until_running;

use crate::event_log::{Journal, check};
use crate::{Ledger, RunFilter};

use super::{a_run_of, me};

/// The variable that passes the ledger to the child process of a test.
const HOME: &str = "CREEL_TEST_WRITE_IN";
const MYSELF: &str =
    "event_log::tests::processes::sixty_processes_at_once_all_write_what_they_have_to";

/// The work of each child: drives a run up to the first turn.
async fn drive_a_run(home: &Path) {
    let ledger = Ledger::open(home).await.unwrap();
    let mut journal = Journal::begin(&ledger, &a_run_of(me())).await.unwrap();
    for event in &events_until_running()[1..] {
        journal.record(event.clone()).await.unwrap();
    }
    ledger.renew_leases(&me().owner).await.unwrap();
}

fn writing_process(home: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", MYSELF])
        .env(HOME, home)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Threads that keep the processors busy until this is dropped.
struct BusyLoops(Arc<AtomicBool>);

impl BusyLoops {
    fn start(count: usize) -> Self {
        let runs = Arc::new(AtomicBool::new(true));
        for _ in 0..count {
            let runs = Arc::clone(&runs);
            std::thread::spawn(move || {
                while runs.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(runs)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Starts this many processes at once on a new ledger, and checks that each wrote everything.
async fn write_with(processes: usize) {
    let home = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..processes).map(|_| writing_process(home.path())).collect();
    let ended: Vec<_> = children.into_iter().map(|mut child| child.wait().unwrap()).collect();
    let failed: Vec<_> = ended.iter().filter(|status| !status.success()).collect();
    assert!(failed.is_empty(), "{} of {processes} failed: {failed:?}", failed.len());

    let ledger = Ledger::open(home.path()).await.unwrap();
    let running = RunFilter { phases: vec![Phase::Running], ..RunFilter::default() };
    assert_eq!(ledger.runs(&running).await.unwrap().len(), processes);
    assert_eq!(check(&ledger).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn sixty_processes_at_once_all_write_what_they_have_to() {
    if let Some(home) = std::env::var_os(HOME) {
        return drive_a_run(home.as_ref()).await;
    }
    write_with(60).await;
}

mod torture {
    mod ledger {
        use super::super::{BusyLoops, write_with};

        #[tokio::test]
        async fn four_hundred_processes_under_forty_busy_loops_all_write_what_they_have_to() {
            let _load = BusyLoops::start(40);
            write_with(400).await;
            println!(
                "report: 400 of 400 processes under 40 busy loops wrote their run and ended 0"
            );
        }
    }
}
