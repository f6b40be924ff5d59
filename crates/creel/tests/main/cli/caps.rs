//! Caps and `--all`: on a private engine, because they select everything.

use std::io::Write;
use std::process::{Command, Stdio};

use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::image;

use super::fixture::{BINARY, CliFixture};

#[test]
fn caps_refuse_before_the_first_delete_and_all_requires_confirmation() {
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let fixture = CliFixture::on(private.engine());
    for suffix in ["-1", "-2", "-3"] {
        fixture.exited(suffix);
    }
    fixture.running("-4");
    fixture.network("-net");
    fixture.volume("-vol");
    let everything = ["c-1", "c-2", "c-3", "c-4", "n-net", "v-vol"];

    // Seven are listed, including the image; three are selected.
    let stopped = "sweep --preset stopped --apply";
    for (cap, expected) in [
        ("--max 2", "the plan would release 3 resources, more than the cap of 2"),
        ("--max-percent 40", "the plan would release 3 of 7 resources, more than the cap of 40 %"),
        ("--max-percent 0", "more than the cap of 0 %"),
    ] {
        let output = fixture.run(&format!("{stopped} {cap}")).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0031]: "), "{output}");
        assert!(output.stderr.contains(expected), "{output}");
        assert_eq!(fixture.there(), everything);
    }
    fixture.configure("[release]\nmax = 2\n");
    fixture.run(stopped).expect_code(4);
    assert_eq!(fixture.there(), everything);
    // A flag overrides the settings.
    fixture.run(&format!("{stopped} --max 3 --max-percent 43")).expect_code(0);
    assert_eq!(fixture.there(), ["c-4", "n-net", "v-vol"]);

    fixture.configure("");
    for flags in ["--all --apply", "--all --apply --kind volume", "--all --apply --force"] {
        let output = fixture.run(&format!("sweep {flags}")).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0032]: "), "{output}");
        assert!(output.stderr.contains("hint: review the plan without --apply"), "{output}");
    }
    assert_eq!(fixture.there(), ["c-4", "n-net", "v-vol"]);
    let plan = fixture.run("sweep --all --json").expect_code(0).json();
    assert_eq!(plan["planned"], 4);
    let narrowed = fixture.run("sweep --all --kind volume --apply --yes --json").expect_code(0);
    assert_eq!(narrowed.json()["gone"], 1);
    let output = fixture.run("sweep --all --apply --yes --json").expect_code(0);
    assert_eq!(output.json()["gone"], 3, "{output}");
    assert_eq!(fixture.there(), [""; 0]);
    assert!(fixture.docker().inspect_image(image::REFERENCE).unwrap().is_none());
    // With nothing left there is nothing to confirm.
    fixture.run("sweep --all --apply").expect_code(0);
    private.stop().unwrap();
}

/// Types a line at a terminal, and returns the exit code and everything shown.
fn run_at_terminal(fixture: &CliFixture, answer: &str, line: &str) -> (Option<i32>, String) {
    let mut terminal = Command::new("script")
        .args(["-qec", &format!("{BINARY} {line}"), "/dev/null"])
        .env("CREEL_HOME", fixture.state())
        .env("DOCKER_HOST", fixture.engine().host())
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
fn at_a_terminal_everything_is_released_only_after_a_full_yes() {
    let fixture = CliFixture::new();
    fixture.volume("-a");
    let line = format!("sweep --all --apply --label {}", fixture.label());
    for answer in ["", "y", "no"] {
        let (code, shown) = run_at_terminal(&fixture, answer, &line);
        assert_eq!(code, Some(4), "{shown}");
        assert!(shown.contains("also what creel did not make: 1"), "{shown}");
        assert!(shown.contains("not confirmed; nothing was released"), "{shown}");
    }
    assert_eq!(fixture.there(), ["v-a"]);
    let (code, shown) = run_at_terminal(&fixture, "yes", &line);
    assert_eq!((code, fixture.there().len()), (Some(0), 0), "{shown}");
}
