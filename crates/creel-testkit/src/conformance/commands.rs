//! Commands: exit codes, output, input, limits, cancelled commands and cut streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use creel_bridge::event::Stream;
use creel_bridge::exec::ExecEnding;
use creel_model::provider::{ErrorClass, Limits};
use creel_model::sandbox::{Command, Finished, SandboxError};

use super::sandbox::{
    LIMIT, Output, SandboxCaseContext, ended, eventually, output_of, run, until_ended,
};
use super::subject::LimitSupport;
use super::suite::cases;

cases![SandboxCase:
    exit_codes_and_signals_are_reported if |_| true,
    output_and_error_stay_apart if |_| true,
    large_output_arrives_whole if |_| true,
    input_reaches_the_command if |_| true,
    variables_reach_the_command_only if |_| true,
    a_command_past_its_limit_is_killed if |_| true,
    a_command_whose_caller_leaves_is_killed if |_| true,
    a_cut_stream_is_no_short_success if |_| true,
    limits_hold if |all| limits(all) == Some(LimitSupport::Enforced),
    limits_are_refused if |all| limits(all) == Some(LimitSupport::Refused),
    impossible_limits_of_a_sandbox_are_refused if |_| true,
];

fn limits(abilities: &super::subject::Abilities) -> Option<LimitSupport> {
    abilities.sandboxes.as_ref().map(|all| all.limits)
}

async fn exit_codes_and_signals_are_reported(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    for code in [0, 7, 255] {
        let command = Command::shell(&format!("exit {code}"), LIMIT);
        assert_eq!(run(&*sandbox, &command).await.0, ended(code));
    }
    let killed = run(&*sandbox, &Command::shell("kill -9 $$", LIMIT)).await.0;
    assert_eq!(killed, Finished::Ended(ExecEnding::Signal { signal: 9 }));
    let missing = run(&*sandbox, &Command::new(["no-such-program"], LIMIT)).await.0;
    assert!(matches!(missing, Finished::NotStarted(_)), "{missing:?}");
}

async fn output_and_error_stay_apart(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    let script = "echo one; echo two >&2; printf '\\303\\274 \\r\\n\\001'";
    let (finished, output) = run(&*sandbox, &Command::shell(script, LIMIT)).await;
    assert_eq!(finished, ended(0));
    assert_eq!(output.output, "one\nü \r\n\u{1}".as_bytes());
    assert_eq!(output.error, b"two\n");
}

async fn large_output_arrives_whole(context: &SandboxCaseContext) {
    const LENGTH: usize = 4_000_000;
    let sandbox = context.enter().await;
    let script = format!("yes 0123456789abcde | head -c {LENGTH}");
    let (finished, output) = run(&*sandbox, &Command::shell(&script, LIMIT)).await;
    assert_eq!((finished, output.output.len()), (ended(0), LENGTH));
    assert!(output.output.chunks(16).all(|line| line == b"0123456789abcde\n"));
}

async fn input_reaches_the_command(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    let text = "line ü 'quoted' $HOME `x`\n".repeat(10_000);
    let mut command = Command::new(["cat"], LIMIT);
    command.input = Some(text.clone().into());
    let (finished, output) = run(&*sandbox, &command).await;
    assert_eq!((finished, output.output == text.as_bytes()), (ended(0), true));
    assert_eq!(
        output_of(&*sandbox, "cat; echo end").await,
        "end\n",
        "without input it ends at once"
    );
}

async fn variables_reach_the_command_only(context: &SandboxCaseContext) {
    let mut options = context.options();
    options.env.insert("OF_SANDBOX".to_owned(), "a value".into());
    let sandbox = context.enter_with(options).await;
    let mut command = Command::shell("printf %s \"$OF_SANDBOX,$OF_COMMAND\"", LIMIT);
    command.env.insert("OF_COMMAND".to_owned(), "$(x) 'y'".into());
    let (finished, output) = run(&*sandbox, &command).await;
    assert_eq!((finished, &output.output[..]), (ended(0), &b"a value,$(x) 'y'"[..]));
    assert_eq!(output_of(&*sandbox, "printf %s \"$OF_COMMAND\"").await, "");
}

async fn a_command_past_its_limit_is_killed(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    let command =
        Command::shell("echo $$ > pid; echo begun; exec sleep 600", Duration::from_secs(2));
    let (finished, output) = run(&*sandbox, &command).await;
    assert_eq!(finished, Finished::Ended(ExecEnding::TimedOut));
    assert_eq!(output.output, b"begun\n");
    until_ended(&*sandbox, "pid").await;
}

async fn a_command_whose_caller_leaves_is_killed(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    let command = Command::shell("echo $$ > pid; echo begun; exec sleep 600", LIMIT * 10);
    let has_begun = AtomicBool::new(false);
    let mut listener = |_: Stream, _: &[u8]| has_begun.store(true, Ordering::SeqCst);
    tokio::select! {
        ended = sandbox.exec(&command, &mut listener) => panic!("it ended: {ended:?}"),
        () = eventually("it runs", async || has_begun.load(Ordering::SeqCst)) => {}
    }
    until_ended(&*sandbox, "pid").await;
}

async fn a_cut_stream_is_no_short_success(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    context.subject().prepare_cut().await;
    let script = "echo $$ > pid; echo first; while test ! -e go; do sleep 0.1; done; echo second";
    let command = Command::shell(script, LIMIT);
    let (has_begun, mut output) = (AtomicBool::new(false), Output::default());
    let mut listener = |stream: Stream, bytes: &[u8]| {
        output.take(stream, bytes);
        has_begun.store(true, Ordering::SeqCst);
    };
    let cut = async {
        eventually("it runs", async || has_begun.load(Ordering::SeqCst)).await;
        let cut = async || context.subject().cut_streams(sandbox.id()).await > 0;
        eventually("a stream is cut", cut).await;
        sandbox.upload("go", Bytes::new(), 0o644).await.unwrap();
    };
    let (finished, ()) = tokio::join!(sandbox.exec(&command, &mut listener), cut);
    match finished {
        // A transport that can read the answer again has all of it.
        Ok(finished) => {
            assert_eq!((finished, &output.output[..]), (ended(0), &b"first\nsecond\n"[..]));
        }
        Err(error) => {
            assert!(error.class.is_retryable(), "the sandbox is alive: {error}");
            until_ended(&*sandbox, "pid").await;
        }
    }
}

async fn limits_hold(context: &SandboxCaseContext) {
    let mut options = context.options();
    options.limits = Limits { processes: Some(24), ..Limits::default() };
    let sandbox = context.enter_with(options).await;
    let script = "i=0; while test $i -lt 60; do sleep 600 & i=$((i+1)); done; echo unlimited";
    let (finished, output) = run(&*sandbox, &Command::shell(script, LIMIT)).await;
    assert!(finished != ended(0) && output.output.is_empty(), "{finished:?} {output:?}");
}

async fn limits_are_refused(context: &SandboxCaseContext) {
    let all = [
        Limits { processes: Some(24), ..Limits::default() },
        Limits { memory: Some(1 << 30), ..Limits::default() },
        Limits { cpus: Some(0.5), ..Limits::default() },
    ];
    for limits in all {
        assert_refused(context, limits).await;
    }
}

async fn impossible_limits_of_a_sandbox_are_refused(context: &SandboxCaseContext) {
    for cpus in [f64::NAN, f64::INFINITY, 0.0, 1e-10] {
        assert_refused(context, Limits { cpus: Some(cpus), ..Limits::default() }).await;
    }
    assert_refused(context, Limits { memory: Some(0), ..Limits::default() }).await;
}

/// Asserts that no sandbox is made with these limits.
async fn assert_refused(context: &SandboxCaseContext, limits: Limits) {
    let mut options = context.options();
    options.limits = limits.clone();
    let (created, part) = context.try_enter(options, usize::MAX).await;
    let class = match created {
        Ok(_) => panic!("{limits:?} are accepted, and do not hold"),
        Err(SandboxError::Provider(error)) => error.class,
        Err(SandboxError::Part(_)) => part.expect("a part was refused").class,
    };
    assert_eq!(class, ErrorClass::Invalid, "{limits:?}");
}
