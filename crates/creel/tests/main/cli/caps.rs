//! Caps and `--all`: on an engine of their own, because they mean everything.

use std::io::Write;
use std::process::{Command, Stdio};

use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::image;

use super::bench::{BINARY, Bench};

#[test]
fn caps_refuse_before_the_first_delete_and_all_needs_a_yes() {
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let bench = Bench::on(private.engine());
    for suffix in ["-1", "-2", "-3"] {
        bench.exited(suffix);
    }
    bench.running("-4");
    bench.network("-net");
    bench.volume("-vol");
    let everything = ["c-1", "c-2", "c-3", "c-4", "n-net", "v-vol"];

    // Seven are listed, with the image; three are meant.
    let stopped = "sweep --preset stopped --apply";
    for (cap, told) in [
        ("--max 2", "the plan would release 3 resources, more than the cap of 2"),
        ("--max-percent 40", "the plan would release 3 of 7 resources, more than the cap of 40 %"),
        ("--max-percent 0", "more than the cap of 0 %"),
    ] {
        let output = bench.run(&format!("{stopped} {cap}")).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0031]: "), "{output}");
        assert!(output.stderr.contains(told), "{output}");
        assert_eq!(bench.there(), everything);
    }
    bench.configure("[release]\nmax = 2\n");
    bench.run(stopped).expect_code(4);
    assert_eq!(bench.there(), everything);
    // A flag wins over the settings.
    bench.run(&format!("{stopped} --max 3 --max-percent 43")).expect_code(0);
    assert_eq!(bench.there(), ["c-4", "n-net", "v-vol"]);

    bench.configure("");
    for flags in ["--all --apply", "--all --apply --kind volume", "--all --apply --force"] {
        let output = bench.run(&format!("sweep {flags}")).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0032]: "), "{output}");
        assert!(output.stderr.contains("hint: review the plan without --apply"), "{output}");
    }
    assert_eq!(bench.there(), ["c-4", "n-net", "v-vol"]);
    let plan = bench.run("sweep --all --json").expect_code(0).json();
    assert_eq!(plan["planned"], 4);
    let narrowed = bench.run("sweep --all --kind volume --apply --yes --json").expect_code(0);
    assert_eq!(narrowed.json()["gone"], 1);
    let output = bench.run("sweep --all --apply --yes --json").expect_code(0);
    assert_eq!(output.json()["gone"], 3, "{output}");
    assert_eq!(bench.there(), [""; 0]);
    assert!(bench.docker().inspect_image(image::REFERENCE).unwrap().is_none());
    // With nothing left there is nothing to confirm.
    bench.run("sweep --all --apply").expect_code(0);
    private.stop().unwrap();
}

/// Types an answer at a terminal and returns the exit code and everything shown.
fn at_a_terminal(bench: &Bench, answer: &str, line: &str) -> (Option<i32>, String) {
    let mut terminal = Command::new("script")
        .args(["-qec", &format!("{BINARY} {line}"), "/dev/null"])
        .env("CREEL_HOME", bench.state())
        .env("DOCKER_HOST", bench.engine().host())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(format!("{answer}\n").as_bytes()).unwrap();
    let output = terminal.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn at_a_terminal_everything_is_released_only_after_a_whole_yes() {
    let bench = Bench::new();
    bench.volume("-a");
    let line = format!("sweep --all --apply --label {}", bench.label());
    for answer in ["", "y", "no"] {
        let (code, shown) = at_a_terminal(&bench, answer, &line);
        assert_eq!(code, Some(4), "{shown}");
        assert!(shown.contains("also what creel did not make: 1"), "{shown}");
        assert!(shown.contains("not confirmed; nothing was released"), "{shown}");
    }
    assert_eq!(bench.there(), ["v-a"]);
    let (code, shown) = at_a_terminal(&bench, "yes", &line);
    assert_eq!((code, bench.there().len()), (Some(0), 0), "{shown}");
}
