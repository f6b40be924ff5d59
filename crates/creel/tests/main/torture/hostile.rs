//! Hostile rounds for twenty minutes, each from its own seed.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::hostile_rounds::{Arena, Round, Tally};

/// How long rounds are begun.
const DURATION: Duration = Duration::from_secs(20 * 60);
/// How many arenas are played in at once, each with an engine of its own.
const ARENAS: usize = 3;
/// The variable that repeats one seed: a failed round prints it.
const ONE_SEED: &str = "CREEL_HOSTILE_SEED";

#[test]
fn kills_replacements_full_disks_and_clock_jumps_break_no_promise() {
    let tally = Mutex::new(Tally::default());
    if let Some(seed) = env::var(ONE_SEED).ok().and_then(|seed| seed.parse().ok()) {
        let one = Round::new(seed).play(&Arena::set_up());
        return one.assert_good();
    }
    let (next, started_at) = (AtomicU64::new(1000), Instant::now());
    thread::scope(|scope| {
        for _ in 0..ARENAS {
            scope.spawn(|| {
                let arena = Arena::set_up();
                while started_at.elapsed() < DURATION {
                    let round = Round::new(next.fetch_add(1, Ordering::SeqCst));
                    let result = round.play(&arena);
                    tally.lock().expect("no round panics with the lock held").add(&result);
                }
            });
        }
    });
    let tally = tally.into_inner().expect("no round panics with the lock held");
    report(&tally);
    tally.assert_good();
}

#[expect(clippy::print_stdout, reason = "the report is read from standard output")]
fn report(tally: &Tally) {
    println!("report: {} rounds from seed 1000 on, {ARENAS} at once", tally.rounds);
    println!(
        "report: {} processes killed, {} acts of others on our names, {} full disks, {} clock \
         jumps, {} faults of the engine",
        tally.kills, tally.replacements, tally.full_disks, tally.jumps, tally.faults
    );
    println!(
        "report: leaks, foreign touched, runs not final and secrets found: {} rounds with any",
        tally.broken.len()
    );
    println!("report: kept in doubt and reported: {}", tally.in_doubt);
}
