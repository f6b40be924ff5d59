//! The second tier of the testkit's own tests: `cargo xtask torture engine`.

mod engine {
    use std::thread;
    use std::time::Duration;

    use creel_testkit::docker::ContainerSpec;
    use creel_testkit::engine::{EngineOptions, PrivateEngine, clear};
    use creel_testkit::leftovers;

    const ROUNDS: u64 = 12;

    #[test]
    fn an_engine_killed_at_a_random_instant_is_cleared_completely() {
        for round in 0..ROUNDS {
            let instant = fastrand::Rng::with_seed(round).u64(0..400);
            let mut engine = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
            let directory = engine.directory().to_owned();
            let docker = engine.engine().docker();
            let busy = thread::spawn(move || {
                // Fails as soon as the engine is killed, which ends the loop.
                (0..).find(|n| docker.run(&ContainerSpec::stubborn(&format!("busy-{n}"))).is_err())
            });
            thread::sleep(Duration::from_millis(instant));
            engine.kill_hard().unwrap();
            let started = busy.join().unwrap().unwrap_or_default();
            engine.detach();
            clear(&directory).unwrap();
            assert!(!directory.exists() && !leftovers::any_daemon(&directory));
            println!("report: killed after {instant} ms with {started} containers: cleared");
        }
    }
}
