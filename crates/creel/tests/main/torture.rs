//! The second tier: `cargo xtask torture crash`, `… daytona`, `… guard`, `… hostile` and `… machine`.

mod hostile;
mod machine;

mod crash {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use creel_model::crashpoint::Crashpoint;
    use creel_testkit::engine::Engine;

    use crate::crash::{End, HeldKind, Matrix};

    /// How often the whole matrix is run.
    const ROUNDS: u64 = 5;
    /// How many supervisors are ended at random instants, for each way to end.
    const ENDS: u64 = 30;

    /// Keeps a core and the engine busy in bursts during the work.
    fn under_load<T>(engine: &Engine, seed: u64, work: impl FnOnce() -> T) -> T {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = fastrand::Rng::with_seed(seed);
                while !done.load(Ordering::SeqCst) {
                    for _ in 0..random.u32(0..20) {
                        // Only reads, because the whole inventory is compared.
                        let _ = engine.api().get("/containers/json?all=true&size=true");
                    }
                    thread::sleep(Duration::from_millis(random.u64(0..200)));
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            done.store(true, Ordering::SeqCst);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    #[test]
    fn the_whole_matrix_holds_under_load() {
        let matrix = Matrix::set_up();
        for round in 0..ROUNDS {
            under_load(&matrix.engine(), round, || {
                for held_kind in HeldKind::ALL {
                    for point in Crashpoint::ALL {
                        matrix.run(held_kind, point);
                    }
                }
            });
            let cells = HeldKind::ALL.len() * Crashpoint::ALL.len();
            println!("report: round {}: {cells} of {cells} cells left nothing", round + 1);
        }
        matrix.assert_unchanged();
    }

    #[test]
    fn a_supervisor_that_ends_at_a_random_instant_leaves_nothing() {
        let matrix = Matrix::set_up();
        for end in [End::Killed, End::KilledAlone, End::Asked] {
            let mut found = BTreeMap::<String, u32>::new();
            for round in 0..ENDS {
                let mut random = fastrand::Rng::with_seed(round);
                let instant = Duration::from_micros(random.u64(0..400_000));
                let states = under_load(&matrix.engine(), round, || matrix.end_after(instant, end));
                for state in states {
                    *found.entry(state).or_default() += 1;
                }
            }
            println!("report: {ENDS} supervisors {end:?} after 0 to 400 ms: nothing left");
            println!("report: of the records they left open, these were {found:?}");
        }
        matrix.assert_unchanged();
    }
}

mod daytona {
    use std::collections::BTreeMap;

    use creel_model::crashpoint::Crashpoint;

    use crate::sandbox_crashes::{
        MAX_REQUESTS, SandboxOutcome, ServiceFault, end_many_at_random, run_all,
    };

    /// How many supervisors are ended at random instants.
    const ENDS: u64 = 60;

    #[test]
    fn every_fault_of_the_service_at_every_crashpoint_leaves_nothing() {
        let (faults, places) = (ServiceFault::all(), Crashpoint::ALL.len());
        let at = |fault: ServiceFault| Crashpoint::ALL.map(|point| (point, fault.clone()));
        let cells: Vec<_> = faults.iter().cloned().flat_map(at).collect();
        let outcomes = run_all(&cells);
        let ended = |ending| outcomes.iter().filter(|outcome| outcome.ending == ending).count();
        println!(
            "report: {} faults of the service × {places} places of a crash: {} of {} cells hold",
            faults.len(),
            outcomes.len(),
            cells.len(),
        );
        println!(
            "report: {} sandboxes released, {} never made, {} quarantined by id with exit \
             code 3; no decoy touched, one more recovery changed nothing",
            ended(SandboxOutcome::Gone),
            ended(SandboxOutcome::NeverMade),
            ended(SandboxOutcome::Quarantined) + ended(SandboxOutcome::Kept),
        );
        let fired = outcomes.iter().filter(|outcome| outcome.fired > 0).count();
        println!("report: the fault fired in {fired} cells, in the others it cannot");
        let mut most = BTreeMap::<&str, u64>::new();
        for outcome in &outcomes {
            let known = most.entry(outcome.fault).or_default();
            *known = outcome.requests.max(*known);
        }
        println!("report: most requests of a cell, {MAX_REQUESTS} allowed; by fault:");
        for (fault, requests) in most {
            println!("report: {fault}: {requests}");
        }
    }

    #[test]
    fn a_supervisor_of_sandboxes_that_ends_at_a_random_instant_leaves_nothing() {
        let found = end_many_at_random(ENDS);
        println!(
            "report: {ENDS} supervisors of 3 sandboxes killed after 0 to 4 s while one request \
             in ten fails: nothing left"
        );
        println!("report: of the records they left open, these were {found:?}");
    }
}

mod guard {
    use crate::guard::kills::{cells, run_all};

    /// The number of random instants for each cell.
    const INSTANTS: usize = 20;

    #[test]
    fn whatever_is_killed_at_a_random_instant_nothing_is_left() {
        let cells = cells(INSTANTS);
        run_all(&cells);
        println!(
            "report: {} guards: KILL, TERM, HUP, INT and INT twice, to the command, to the guard, \
             and to the guard and its watchdog, each at {INSTANTS} random instants: nothing left, \
             and still nothing 15 s later",
            cells.len(),
        );
        println!("report: no decoy touched; a second guard on the same ledger kept what it had");
    }
}
