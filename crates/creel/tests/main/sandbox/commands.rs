//! Commands: how they end, their output, their input and environment, and what kills them.

use std::fs;
use std::time::{Duration, Instant};

use creel_bridge::exec::ExecEnding;
use creel_run::sandbox::{Command, Finished};
use creel_testkit::engine::Engine;
use futures::future::join_all;
use serde_json::json;

use super::fixture::{LIMIT, SECRET, SandboxFixture, binary, ended, run, run_bytes};
use super::{for_every_provider, provider_tests};

/// The time limit for the death of an abandoned command.
const DEATH_PATIENCE: Duration = Duration::from_secs(30);
/// The same where only a missing sign of life reveals that it is abandoned.
const LONG_DEATH_PATIENCE: Duration = Duration::from_secs(75);

/// Writes to a file for ever, itself and through a process in its own session.
const ENDLESS: &str = "setsid sh -c 'while :; do echo d >> daemon; sleep 0.1; done' & \
                       while :; do echo t >> ticks; echo tick; sleep 0.1; done";

for_every_provider!(
    exit_codes_and_signals_are_reported,
    both_streams_are_delivered_unchanged,
    large_output_is_delivered_completely,
    input_is_read_to_its_end,
    a_command_starts_in_the_requested_directory,
    secrets_are_visible_to_commands_only,
    a_time_limit_kills_all_processes_of_a_command,
    a_silent_command_is_killed,
    a_command_that_is_not_waited_for_is_killed,
    a_command_dies_with_its_caller,
    commands_run_concurrently,
);

provider_tests! {
    creel_daytona in cloud: output_is_complete_despite_broken_streams;
}

async fn exit_codes_and_signals_are_reported(fixture: &SandboxFixture) {
    for code in [0, 3, 255] {
        let (finished, ..) = fixture.script(&format!("exit {code}")).await;
        assert_eq!(finished, ended(code));
    }
    let (finished, ..) = fixture.script("kill -9 $$").await;
    assert_eq!(finished, Finished::Ended(ExecEnding::Signal { signal: 9 }));
    let (finished, ..) = run(&*fixture.sandbox, &Command::new(["no-such-program"], LIMIT)).await;
    assert!(
        matches!(&finished, Finished::NotStarted(reason) if reason.contains("no-such-program")),
        "{finished:?}"
    );
}

async fn both_streams_are_delivered_unchanged(fixture: &SandboxFixture) {
    let (finished, output, error) =
        fixture.script("echo one; echo two >&2; printf '\\303\\274 \\r\\n\\001\\002'").await;
    assert_eq!(finished, ended(0));
    assert_eq!((output.as_str(), error.as_str()), ("one\nü \r\n\u{1}\u{2}", "two\n"));
    let all = binary(100_000);
    fixture.sandbox.upload("all", all.clone(), 0o644).await.unwrap();
    let cat = Command::new(["cat", "all"], LIMIT);
    let (finished, [output, error]) = run_bytes(&*fixture.sandbox, &cat).await;
    assert_eq!((finished, error.len()), (ended(0), 0));
    assert!(output == all, "{} bytes came, which are not those", output.len());
}

async fn large_output_is_delivered_completely(fixture: &SandboxFixture) {
    const LENGTH: usize = 20_000_000;
    let script = format!("yes 0123456789abcde | head -c {LENGTH}");
    let (finished, [output, _]) =
        run_bytes(&*fixture.sandbox, &Command::shell(&script, LIMIT * 3)).await;
    assert_eq!((finished, output.len()), (ended(0), LENGTH));
    assert!(output.chunks(16).all(|line| line == &b"0123456789abcde\n"[..line.len()]));
}

async fn input_is_read_to_its_end(fixture: &SandboxFixture) {
    let text = "line ü 'quoted' \"twice\" $HOME `x`\n".repeat(20_000);
    let mut command = Command::new(["cat"], LIMIT);
    command.input = Some(text.clone().into());
    let (finished, output, _) = run(&*fixture.sandbox, &command).await;
    assert_eq!((finished, output == text), (ended(0), true));
    // A command that does not read is not disturbed, and one that reads finds the end.
    command.command = vec!["true".to_owned()];
    assert_eq!(run(&*fixture.sandbox, &command).await.0, ended(0));
    assert_eq!(fixture.output("cat; echo end").await, "end\n");
}

async fn a_command_starts_in_the_requested_directory(fixture: &SandboxFixture) {
    let root = fixture.sandbox.workspace_root();
    assert_eq!(fixture.output("pwd -P").await.trim(), root);
    fixture.output("mkdir -p app").await;
    let mut command = Command::shell("pwd -P", LIMIT);
    command.directory = Some("app".to_owned());
    assert_eq!(run(&*fixture.sandbox, &command).await.1.trim(), format!("{root}/app"));
    command.directory = Some(fixture.sandbox.creel_directory().to_owned());
    assert_eq!(run(&*fixture.sandbox, &command).await.1.trim(), fixture.sandbox.creel_directory());
    command.directory = Some("nowhere".to_owned());
    let (finished, ..) = run(&*fixture.sandbox, &command).await;
    assert!(matches!(finished, Finished::NotStarted(_)), "{finished:?}");
}

async fn secrets_are_visible_to_commands_only(fixture: &SandboxFixture) {
    let (name, secret) = SECRET;
    assert_eq!(fixture.output(&format!("printf %s \"${name}\"")).await, secret);
    let mut command = Command::shell("echo begun >> begun; read line; sleep 2", LIMIT);
    command.env.insert("ANOTHER".to_owned(), secret.into());
    command.input = Some(format!("{secret}\n").into());
    let observing = async {
        fixture.begins_to_grow("begun").await;
        seen_from_outside(fixture).await
    };
    let (ran, seen) = tokio::join!(run(&*fixture.sandbox, &command), observing);
    assert_eq!(ran.0, ended(0));
    assert!(!seen.contains(secret), "the secret shows");
    let kept = fixture.output(&format!("cat {}/orders/* 2>/dev/null; true", quoted(fixture))).await;
    assert!(!kept.contains(secret), "the secret is kept in the sandbox");
}

fn quoted(fixture: &SandboxFixture) -> String {
    format!("'{}'", fixture.sandbox.creel_directory())
}

/// Returns what others can see: every command line of this machine, and the provider's report.
async fn seen_from_outside(fixture: &SandboxFixture) -> String {
    let lines = fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|one| fs::read(one.path().join("cmdline")).ok());
    let mut seen: String = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect();
    let id = fixture.sandbox.id().to_owned();
    let report = match fixture.provider {
        creel_docker::NAME => {
            let docker = Engine::from_env().docker();
            tokio::task::block_in_place(|| docker.inspect_container(&id)).unwrap().unwrap()
        }
        creel_daytona::NAME => {
            let cloud = fixture.cloud.as_ref().unwrap();
            tokio::task::block_in_place(|| cloud.sandbox(&id))
        }
        _ => serde_json::Value::Null,
    };
    seen.push_str(&report.to_string());
    assert!(seen.contains(&id) || fixture.provider == creel_process::NAME);
    seen
}

async fn a_time_limit_kills_all_processes_of_a_command(fixture: &SandboxFixture) {
    let (finished, output, _) =
        run(&*fixture.sandbox, &Command::shell(ENDLESS, Duration::from_secs(2))).await;
    assert_eq!(finished, Finished::Ended(ExecEnding::TimedOut));
    assert!(output.starts_with("tick\n"), "{output}");
    fixture.stops_growing("ticks", DEATH_PATIENCE).await;
    fixture.stops_growing("daemon", DEATH_PATIENCE).await;
}

async fn a_silent_command_is_killed(fixture: &SandboxFixture) {
    let script = "for i in 1 2 3 4; do echo $i; sleep 0.5; done; sleep 1000";
    let mut command = Command::shell(script, LIMIT);
    command.silence = Some(Duration::from_secs(3));
    let begun = Instant::now();
    let (finished, output, _) = run(&*fixture.sandbox, &command).await;
    assert_eq!(finished, Finished::Ended(ExecEnding::Silent));
    assert_eq!(output, "1\n2\n3\n4\n");
    assert!(begun.elapsed() < LIMIT);
}

async fn a_command_that_is_not_waited_for_is_killed(fixture: &SandboxFixture) {
    let command = Command::shell(ENDLESS, Duration::from_secs(600));
    let mut listener = |_: creel_bridge::event::Stream, _: &[u8]| {};
    tokio::select! {
        finished = fixture.sandbox.exec(&command, &mut listener) => panic!("it ended: {finished:?}"),
        () = fixture.begins_to_grow("daemon") => {}
    }
    fixture.stops_growing("ticks", DEATH_PATIENCE).await;
    fixture.stops_growing("daemon", DEATH_PATIENCE).await;
}

/// The caller of the command dies in the middle of it: nothing of it is polled, dropped
/// properly or sent any more.
async fn a_command_dies_with_its_caller(fixture: &SandboxFixture) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sandbox = std::sync::Arc::clone(&fixture.sandbox);
    runtime.spawn(async move {
        let command = Command::shell(ENDLESS, Duration::from_secs(600));
        let _ = sandbox.exec(&command, &mut |_, _| {}).await;
    });
    fixture.begins_to_grow("daemon").await;
    runtime.shutdown_background();
    fixture.stops_growing("ticks", LONG_DEATH_PATIENCE).await;
    fixture.stops_growing("daemon", LONG_DEATH_PATIENCE).await;
}

async fn commands_run_concurrently(fixture: &SandboxFixture) {
    let scripts: Vec<String> = (0..8).map(|n| format!("sleep 1; echo {n}; exit {n}")).collect();
    let answers = join_all(scripts.iter().map(|script| fixture.script(script))).await;
    for (number, (finished, output, _)) in (0..).zip(answers) {
        assert_eq!((finished, output), (ended(number), format!("{number}\n")));
    }
}

/// The log is followed by a stream that breaks: never, once, and so often that it is polled.
async fn output_is_complete_despite_broken_streams(fixture: &SandboxFixture) {
    let cloud = fixture.cloud.as_ref().unwrap();
    let script = "for i in 1 2 3 4 5 6 7 8; do echo out$i; echo err$i >&2; sleep 0.3; done; exit 4";
    let lines = |prefix: &str| (1..=8).map(|n| format!("{prefix}{n}\n")).collect::<String>();
    for breaks in [0, 1, 3] {
        let fault = json!({"at": "follow", "fault": "break_off", "count": breaks});
        tokio::task::block_in_place(|| cloud.arm(&fault));
        let (finished, output, error) = fixture.script(script).await;
        let fired = tokio::task::block_in_place(|| cloud.disarm());
        assert_eq!((finished, fired), (ended(4), breaks));
        assert_eq!((output, error), (lines("out"), lines("err")), "{breaks} breaks");
    }
}
