//! Hostile rounds: our work is killed while others replace its objects, the disk is full, the
//! clock jumps and the engine fails; then one recovery must leave nothing and touch nothing foreign.
//!
//! ```text
//!   work (run, guard, hold) ── kill ──▶ others take over names ──▶ recovery under stress
//!        │ through a faulty wire,          (direct to the engine)      │ full disk, shifted clock
//!        ▼ state on a small file system                                ▼
//!   engine, Daytona                                      recovery in peace ──▶ Verdict
//! ```
//!
//! Every choice of a round is drawn from its seed, so a failed round can be repeated. The
//! instants of kills depend on the machine; the seed fixes everything else.

mod arena;
mod others;
mod round;
mod verdict;
mod work;

pub(crate) use arena::Arena;
pub(crate) use round::{Round, Tally};

/// The seeds of the first tier: one for each kind of work.
const SEEDS: [u64; 7] = [1, 2, 3, 4, 5, 6, 7];

#[test]
fn hostile_rounds_leave_nothing_and_touch_nothing_foreign() {
    let arena = Arena::set_up();
    let mut tally = Tally::default();
    for seed in SEEDS {
        tally.add(&Round::new(seed).play(&arena));
    }
    tally.assert_good();
}
