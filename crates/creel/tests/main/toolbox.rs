//! Commands, sessions, files and repositories in a running sandbox.

use std::sync::Arc;
use std::time::Duration;

use creel_core::scope::{Request, Supervisor};
use creel_daytona::toolbox::{Exec, Executed, Repository, SessionCommand, Stream, Toolbox};
use creel_ledger::Ledger;
use creel_model::provider::{ErrorClass, Provider, Providers, SandboxSpec, Spec};
use serde_json::json;

use crate::cli::cloud::Cloud;

async fn run(toolbox: &Toolbox, command: &str) -> (i64, String) {
    let exec =
        Exec { command: command.to_owned(), limit: Duration::from_secs(20), ..Exec::default() };
    match toolbox.exec(&exec).await.unwrap() {
        Executed::Ended { code, output } => (code, output),
        Executed::TimedOut => panic!("{command} took too long"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_can_be_used_and_is_released() {
    let (cloud, home) = (Cloud::with(&["--fast"]), tempfile::tempdir().unwrap());
    let provider = cloud.provider();
    let ledger = Ledger::open(home.path()).await.unwrap();
    let all: Arc<dyn Provider> = provider.clone();
    let supervisor = Supervisor::new(ledger, Providers::new(vec![all]), "test").unwrap();
    let env = [("GREETING".to_owned(), "hello".to_owned())].into();
    let spec = Spec::Sandbox(SandboxSpec { env, ..SandboxSpec::default() });
    let held = supervisor.create(Request::new(creel_daytona::NAME, spec)).await.unwrap();

    let toolbox = provider.toolbox(&held.id).await.unwrap();
    assert_eq!(run(&toolbox, "echo hi; exit 3").await, (3, "hi\n".to_owned()));
    assert_eq!(run(&toolbox, "echo $GREETING").await, (0, "hello\n".to_owned()));
    commands_have_limits(&toolbox).await;
    files_go_in_and_come_out(&toolbox).await;
    logs_are_followed_by_stream(&toolbox).await;
    logs_that_break_off_are_followed_to_their_end(&cloud, &toolbox).await;
    repositories_are_cloned(&toolbox).await;
    supervisor.release(held).await.unwrap();
    tokio::task::block_in_place(|| cloud.end());
}

async fn commands_have_limits(toolbox: &Toolbox) {
    let endless =
        Exec { command: "sleep 60".to_owned(), limit: Duration::from_secs(1), ..Exec::default() };
    assert_eq!(toolbox.exec(&endless).await.unwrap(), Executed::TimedOut);
}

async fn files_go_in_and_come_out(toolbox: &Toolbox) {
    let content: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    toolbox.upload("deep/er/file.bin", content.clone()).await.unwrap();
    assert_eq!(toolbox.download("deep/er/file.bin").await.unwrap(), content);
    let error = toolbox.download("no/such/file").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Gone, "{error}");
}

/// Follows a command to its end. Returns its exit code and its output on both streams.
async fn follow(toolbox: &Toolbox, command: &SessionCommand) -> (i64, [Vec<u8>; 2]) {
    let mut written = [Vec::new(), Vec::new()];
    let mut take = |stream: Stream, bytes: &[u8]| written[stream as usize].extend_from_slice(bytes);
    let code = toolbox.follow(command, &mut take).await.unwrap();
    (code, written)
}

/// A command that writes slowly, in chunks that end within a character, with invalid text.
const SLOW_OUTPUT: &str = r#"
for part in 'one ' '\303' '\274ber ' '\377\376 ' '\342\202' '\254' '\n'; do
  printf "$part"; printf "e$part" >&2; sleep 0.3
done
exit 4
"#;

async fn logs_that_break_off_are_followed_to_their_end(cloud: &Cloud, toolbox: &Toolbox) {
    let whole = b"one \xc3\xbcber \xff\xfe \xe2\x82\xac\n";
    let errors = b"eone e\xc3e\xbcber e\xff\xfe e\xe2\x82e\xace\n";
    toolbox.create_session("s2").await.unwrap();
    toolbox.upload("babble.sh", SLOW_OUTPUT).await.unwrap();
    // Never, once, and for every attempt at the stream: then the log is polled.
    for breaks in [0, 1, 3] {
        cloud.arm(&json!({"at": "follow", "fault": "break_off", "count": breaks}));
        let command = toolbox.start_command("s2", "sh babble.sh </dev/null").await.unwrap();
        let (code, [output, error]) = follow(toolbox, &command).await;
        assert_eq!((code, cloud.disarm()), (4, breaks));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if breaks < 3 {
            assert_eq!(output, whole, "{breaks} breaks: {}", text(&output));
            assert_eq!(error, errors, "{breaks} breaks: {}", text(&error));
        } else {
            // Polled logs are text, so invalid bytes are replaced.
            assert_eq!(text(&output), text(whole));
            assert_eq!(text(&error), text(errors));
        }
    }
    toolbox.delete_session("s2").await.unwrap();
}

async fn logs_are_followed_by_stream(toolbox: &Toolbox) {
    toolbox.create_session("s1").await.unwrap();
    toolbox
        .upload("talk.sh", "for i in 1 2 3; do echo out$i; echo err$i >&2; sleep 0.2; done; exit 7")
        .await
        .unwrap();
    let command = toolbox.start_command("s1", "sh talk.sh </dev/null").await.unwrap();
    let (code, [output, error]) = follow(toolbox, &command).await;
    assert_eq!(code, 7);
    assert_eq!(String::from_utf8_lossy(&output), "out1\nout2\nout3\n");
    assert_eq!(String::from_utf8_lossy(&error), "err1\nerr2\nerr3\n");
    let logs = toolbox.logs(&command).await.unwrap();
    assert_eq!(logs.output.as_bytes(), output);
    for _ in 0..2 {
        toolbox.delete_session("s1").await.unwrap();
    }
}

async fn repositories_are_cloned(toolbox: &Toolbox) {
    // Created in the sandbox, because its view of this machine's files is not defined.
    let make = "git init -q origin && cd origin && echo 'read me' > README && git add README \
                && git -c user.name=t -c user.email=t@t commit -qm one && pwd";
    let (code, place) = run(toolbox, make).await;
    assert_eq!(code, 0, "{place}");
    let url = format!("file://{}", place.trim());
    let repository = Repository { url, path: "clone".to_owned(), ..Repository::default() };
    toolbox.git_clone(&repository).await.unwrap();
    assert_eq!(toolbox.download("clone/README").await.unwrap(), "read me\n");
}
