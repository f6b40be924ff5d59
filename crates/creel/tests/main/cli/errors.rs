//! Errors are part of the product: a code, a sentence, a blank line, the next command to type.

use creel_model::failure::Code;
use creel_testkit::creel::Output;
use creel_testkit::docker::ContainerSpec;
use creel_testkit::wire::{Fault, Rule, Wire};
use insta::{Settings, assert_snapshot};

use super::fixture::{CliFixture, keys, run, text};

/// Compares the error output of a failing command, without the parts that differ between runs.
macro_rules! assert_error_output {
    ($fixture:expr, $output:expr, $code:expr, @$expected:literal) => {{
        let output: Output = $output.expect_code($code);
        let mut settings = Settings::clone_current();
        settings.add_filter(&$fixture.path("").display().to_string(), "[home]/");
        settings.add_filter(r"unix://\S+/docker\.sock", "[engine]");
        settings.add_filter(&$fixture.name, "[name]");
        settings.add_filter(r"creel-[0-9a-f]{32}", "[object]");
        settings.add_filter(r"pid \d+", "pid [pid]");
        settings.bind(|| assert_snapshot!(output.stderr, @$expected));
        output
    }};
}

#[test]
fn a_typo_suggests_the_nearest_name_on_the_command_line() {
    let fixture = CliFixture::new();
    assert_error_output!(fixture, fixture.run("sweep --state exitd --apply"), 2, @"
    error[CR0002]: unknown state `exitd`; did you mean `exited`?

    hint: creel ls shows what there is to select
    ");
    assert_error_output!(fixture, fixture.run("sweep --kind contaner --apply"), 2, @"
    error[CR0002]: invalid value 'contaner' for '--kind <KIND>': unknown kind `contaner`; did you mean `container`?

    hint: --help shows what there is
    ");
    assert_error_output!(fixture, fixture.run("ls --provider dokcer"), 2, @"
    error[CR0002]: invalid value 'dokcer' for '--provider <NAME>': unknown provider `dokcer`; did you mean `docker`?

    hint: --help shows what there is
    ");
    assert_error_output!(fixture, fixture.run("sweep --preset stoped --apply"), 2, @"
    error[CR0002]: invalid value 'stoped' for '--preset <NAME>': unknown preset `stoped`; did you mean `stopped`?

    hint: --help shows what there is
    ");
    assert_error_output!(fixture, fixture.run("sweep --owned --apply --retry thorttled=3"), 2, @"
    error[CR0002]: invalid value 'thorttled=3' for '--retry <CLASS=N>': unknown error class `thorttled`; did you mean `throttled`?

    hint: --help shows what there is
    ");
    assert_error_output!(fixture, fixture.run("swep"), 2, @"
    error[CR0002]: unrecognized subcommand 'swep'

    hint: a similar subcommand exists: 'sweep'
    hint: the usage is: creel [OPTIONS] <COMMAND>
    ");
    assert_error_output!(fixture, fixture.run("sweep --lable x --apply"), 2, @"
    error[CR0002]: unexpected argument '--lable' found

    hint: a similar argument exists: '--label'
    hint: the usage is: creel sweep --label <KEY[=VALUE]>
    ");
}

#[test]
fn an_invalid_value_is_reported_with_the_expected_format() {
    let fixture = CliFixture::new();
    assert_error_output!(fixture, fixture.run("sweep --label =x --apply"), 2, @"
    error[CR0002]: invalid value '=x' for '--label <KEY[=VALUE]>': `=x` is not a label of the form key or key=value

    hint: --help shows what there is
    ");
    assert_error_output!(fixture, fixture.run("sweep --older-than 5parsecs --apply"), 2, @"
    error[CR0002]: invalid value '5parsecs' for '--older-than <AGE>': `5parsecs` is not a duration such as 90s, 2h 30m or 1d

    hint: --help shows what there is
    ");
    assert_error_output!(fixture, fixture.run("sweep --name [a --apply"), 2, @"
    error[CR0002]: invalid value '[a' for '--name <GLOB>': `[a` is not a name pattern
      because: error parsing glob '[a': unclosed character class; missing ']'

    hint: --help shows what there is
    ");
    assert_error_output!(fixture, fixture.run("rm"), 2, @"
    error[CR0002]: the following required arguments were not provided: <ID>...

    hint: the usage is: creel rm <ID>...
    ");
    assert_error_output!(fixture, fixture.run("explain CR9999"), 2, @"
    error[CR0002]: `CR9999` is not an error code such as CR0020

    hint: creel explain lists all codes
    ");
}

#[test]
fn a_refusal_states_the_reason_and_a_remedy() {
    let fixture = CliFixture::new();
    fixture.volume("-a");
    fixture.volume("-b");
    let label = fixture.label();
    assert_error_output!(fixture, fixture.run("sweep --kind container --apply"), 4, @"
    error[CR0030]: these selectors would mean every resource of that kind, also foreign ones

    hint: narrow it with --label, --name, --project, --state or --older-than
    hint: --owned means only what creel made; --all means everything
    ");
    assert_error_output!(fixture, fixture.run(&format!("sweep --label {label} --apply --max 1")), 4, @"
    error[CR0031]: the plan would release 2 resources, more than the cap of 1

    hint: review the plan without --apply; if it is right, raise --max or --max-percent
    ");
    assert_error_output!(fixture, fixture.run(&format!("sweep --all --label {label} --apply")), 4, @"
    error[CR0032]: --all means everything, and there is no terminal to confirm it

    hint: review the plan without --apply, then add --yes
    ");
    let spec = ContainerSpec::exiting(&fixture.named("-db")).label("dev.creel.protect", "");
    fixture.docker().create(&spec).unwrap();
    assert_error_output!(fixture, fixture.run(&format!("rm {}", fixture.named("-db"))), 4, @"
    error[CR0033]: container [name]-db is left alone: it is protected by its label dev.creel.protect

    hint: no flag overrides protection: creel explain CR0033
    ");
    let hold = fixture.hold("--volume");
    assert_error_output!(fixture, fixture.run(&format!("rm {}", hold.id("volume"))), 4, @"
    error[CR0034]: volume [object] is held by an owner that is alive

    hint: end that process, or release it anyway with --force
    ");
    assert_error_output!(fixture, fixture.run("rm absent"), 2, @"
    error[CR0037]: there is no resource `absent`

    hint: creel ls lists what is there
    ");
    assert_error_output!(fixture, fixture.run("apply /nowhere/plan.json"), 2, @"
    error[CR0004]: cannot use the plan file /nowhere/plan.json
      because: No such file or directory (os error 2)

    hint: make a plan: creel sweep … --plan-out FILE
    ");
}

#[test]
fn an_unusable_engine_is_named_with_its_address() {
    let fixture = CliFixture::new();
    let at = |host: &str| fixture.creel().env("DOCKER_HOST", host);
    assert_error_output!(fixture, run(&at("unix:///nowhere/docker.sock"), "sweep --preset stopped --apply"), 7, @"
    error[CR0020]: docker could not list its objects: no Docker Engine listens on [engine] (no such socket)

    hint: creel doctor shows what was tried and what answered
    ");
    assert_error_output!(fixture, run(&at("foo://x"), "ls"), 2, @"
    error[CR0023]: DOCKER_HOST names no engine we can reach
      because: `foo://x` is not an address of a Docker Engine: it must start with unix://, tcp://, https:// or ssh://

    hint: check DOCKER_HOST, DOCKER_CONTEXT and: docker context ls
    ");
    assert_error_output!(fixture, run(&fixture.creel_without_docker(), "sweep --provider docker --owned"), 7, @"
    error[CR0022]: no Docker Engine is configured here

    hint: set DOCKER_HOST, choose a context, or start an engine; creel doctor shows what was tried
    ");
    assert_error_output!(fixture, fixture.run("dev hold --container absent:1"), 3, @"
    error[CR0024]: docker could not create container [object]: no such image: absent:1

    hint: creel explain CR0024
    ");
}

#[test]
fn failed_releases_are_reported_after_the_table() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    wire.add(Rule::new("/containers/", denied).method("DELETE"));
    let creel = fixture.creel().env("DOCKER_HOST", wire.host());
    let line = format!("sweep -q --apply --label {}", fixture.label());
    let output = run(&creel, &line).expect_code(3);
    assert!(output.stdout.contains("failed  container"), "{output}");
    assert!(output.stderr.contains("error[CR0040]: 1 not verified gone\n\nhint: "), "{output}");
}

#[test]
fn a_failing_command_prints_json_with_the_json_flag() {
    let fixture = CliFixture::new();
    for (line, exit, code) in [
        ("sweep --kind container --json", 4, "CR0030"),
        ("rm absent --json", 2, "CR0037"),
        ("apply /nowhere/plan.json --json", 2, "CR0004"),
        ("sweep --state exitd --json", 2, "CR0002"),
        ("sweep --kind contaner --json", 2, "CR0002"),
        ("ls --json --nonsense", 2, "CR0002"),
        ("explain CR9999 --json", 2, "CR0002"),
        ("dev hold --container absent:1 --json", 3, "CR0024"),
    ] {
        let output = fixture.run(line).expect_code(exit);
        assert_eq!(output.stdout.lines().count(), 1, "{output}");
        let json = output.json();
        assert_eq!((keys(&json), &json["version"]), (vec!["error", "version"], &1.into()));
        assert_eq!(keys(&json["error"]), ["causes", "code", "hints", "message"]);
        assert_eq!(text(&json["error"], "code"), code, "{output}");
        assert!(!json["error"]["hints"].as_array().unwrap().is_empty(), "{output}");
    }
}

#[test]
fn every_code_is_explained() {
    let fixture = CliFixture::new();
    let all = fixture.run("explain").expect_code(0);
    for code in Code::ALL {
        assert!(all.stdout.contains(code.name()), "{all}");
        let output = fixture.run(&format!("explain {code}")).expect_code(0);
        assert!(output.stdout.starts_with(&format!("# {code}: {}", code.title())), "{output}");
        let output = fixture.run(&format!("explain {} --json", code.name().to_lowercase()));
        assert_eq!(output.expect_code(0).json()["codes"][0]["code"], code.name());
    }
}

#[test]
fn completions_contain_the_commands() {
    let fixture = CliFixture::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = fixture.run(&format!("completions {shell}")).expect_code(0);
        assert!(output.stdout.contains("sweep") && output.stdout.contains("older-than"), "{shell}");
    }
}

#[test]
fn help_and_version_are_no_failures() {
    let fixture = CliFixture::new();
    for command in
        ["", "demo", "ls", "sweep", "apply", "stop", "rm", "reconcile", "ledger", "doctor"]
    {
        let output = fixture.run(&format!("{command} --help")).expect_code(0);
        assert!(output.stdout.contains("Examples:"), "{output}");
    }
    assert!(fixture.run("--version").expect_code(0).stdout.starts_with("creel "));
    let bare = fixture.run("").expect_code(2);
    assert!(bare.stderr.contains("Usage: creel"), "{bare}");
}

#[test]
fn quiet_silences_messages_and_verbose_logs_details() {
    let fixture = CliFixture::new();
    fixture.volume("-a");
    let line = format!("sweep --label {}", fixture.label());
    let talk = fixture.run(&line).expect_code(0);
    assert!(talk.stderr.contains("1 would be released"), "{talk}");
    let quiet = fixture.run(&format!("{line} -q")).expect_code(0);
    assert_eq!((quiet.stderr.as_str(), &quiet.stdout), ("", &talk.stdout));
    let wrong = fixture.run("sweep --kind container -q").expect_code(4);
    assert!(wrong.stderr.starts_with("error[CR0030]"), "{wrong}");
    let story = fixture.run(&format!("{line} --apply -v")).expect_code(0);
    assert!(story.stderr.contains("INFO"), "{story}");
    fixture.run("ls -q -v").expect_code(2);
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let fixture = CliFixture::new();
    let state = fixture.state();
    for command in ["explain CR0006", "explain CR0006 --json", "recipes"] {
        let script = format!(
            "CREEL_HOME={} {} {command} >/dev/full",
            state.display(),
            super::fixture::BINARY
        );
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("the output could not be written"), "{stderr}");
        // A reader that reads only the beginning is not an error.
        let script = format!("{script} | head -0").replace(">/dev/full", "");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn an_invalid_recipe_does_not_hide_the_others() {
    let fixture = CliFixture::new();
    let directory = fixture.state().join("recipes");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("mine.toml"), "summary = 5").unwrap();
    let output = fixture.run("recipes").expect_code(2);
    assert!(output.stdout.contains("harbor") && output.stdout.contains("mine"), "{output}");
    assert!(output.stderr.contains("correct the file or move it away"), "{output}");
    let listed = fixture.run("recipes --json").expect_code(2).json();
    assert_eq!(listed["broken"][0]["name"], "mine");
    assert!(listed["recipes"].as_array().unwrap().len() > 5, "{listed}");
}
