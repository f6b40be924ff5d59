//! `exec`: limits, hang-ups, and what ends with a command.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::{ExecEnding, ExecEvent, ExecRequest};
use creel_bridge::frame::Decoder;
use rustix::process::Signal;

use crate::support::{
    ExecReport, exec, is_alive, kill, line, pid_in, program, script, signal, start, until,
};

#[test]
fn both_streams_and_the_exit_code_are_delivered() {
    let report = exec(&script("echo to output; echo to error >&2; exit 7"));
    assert_eq!(report.output, b"to output\n");
    assert_eq!(report.error, b"to error\n");
    assert_eq!(report.ending(), ExecEnding::Code { code: 7 });
}

#[test]
fn a_signal_from_another_process_is_reported() {
    assert_eq!(exec(&script("kill -SEGV $$")).ending(), ExecEnding::Signal { signal: 11 });
}

#[test]
fn a_command_that_cannot_be_started_is_explained() {
    let refused = |request: ExecRequest| exec(&request).refusal().to_owned();
    let request = |program: &str| ExecRequest { command: vec![program.to_owned()], ..script("") };
    assert_eq!(refused(request("/no/such")), "no such program: /no/such");
    assert_eq!(refused(request("/etc/passwd")), "not an executable program: /etc/passwd");
    let elsewhere = ExecRequest { directory: Some("/no/such".to_owned()), ..script("") };
    assert_eq!(refused(elsewhere), "no such directory: /no/such");
    assert_eq!(refused(ExecRequest::default()), "the command is empty");
}

#[test]
fn an_invalid_request_is_refused_without_quoting_it() {
    let mut child = start(&["exec"], b"{\"command\":[\"secret\n");
    let report = ExecReport::read(child.stdout.take().unwrap());
    assert!(report.refusal().starts_with("the order is not understood at line 1"));
    assert!(!report.refusal().contains("secret"));
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn a_request_file_is_removed_before_the_command_runs() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("request");
    let list = format!("ls {}", home.path().display());
    fs::write(&file, line(&script(&list))).unwrap();
    let output = program(&["exec", "--order", file.to_str().unwrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report = ExecReport::read(output.stdout.as_slice());
    assert_eq!(
        (report.output.as_slice(), report.ending()),
        (&b""[..], ExecEnding::Code { code: 0 })
    );
}

#[test]
fn variables_directory_and_input_come_from_the_request() {
    let request = ExecRequest {
        env: [("GREETING".to_owned(), "hi".to_owned())].into(),
        directory: Some("/".to_owned()),
        input: BASE64_STANDARD.encode(b"\0from outside\xff"),
        ..script("printf %s \"$GREETING\"; pwd; cat")
    };
    assert_eq!(exec(&request).output, b"hi/\n\0from outside\xff");
}

#[test]
fn a_large_input_passes_through_a_command_that_writes_while_it_reads() {
    let input: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    let report = exec(&ExecRequest { input: BASE64_STANDARD.encode(&input), ..script("cat") });
    assert!(report.output == input);
}

#[test]
fn a_command_that_does_not_read_its_input_is_not_waited_for() {
    let input = BASE64_STANDARD.encode(vec![b'x'; 1 << 20]);
    let report = exec(&ExecRequest { input, ..script("exit 3") });
    assert_eq!(report.ending(), ExecEnding::Code { code: 3 });
}

#[test]
fn output_may_contain_any_byte() {
    let every = (0..=255).map(|byte: u8| format!("\\{byte:03o}")).collect::<String>();
    let report = exec(&script(&format!("printf '{every}'")));
    assert_eq!(report.output, (0..=255).collect::<Vec<u8>>());
}

#[test]
fn a_command_is_killed_at_its_time_limit() {
    let before = Instant::now();
    let report = exec(&ExecRequest { limit_ms: 200, ..script("trap '' TERM; echo on; sleep 100") });
    assert_eq!((report.output.as_slice(), report.ending()), (&b"on\n"[..], ExecEnding::TimedOut));
    assert!(before.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_command_is_killed_at_its_silence_limit() {
    let speak = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; sleep 100";
    let report = exec(&ExecRequest { silence_ms: Some(1000), ..script(speak) });
    assert_eq!(report.output, b"1\n2\n3\n4\n5\n6\n");
    assert_eq!(report.ending(), ExecEnding::Silent);
}

#[test]
fn killing_a_command_kills_what_it_forked_into_other_sessions() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (home.path().join("one"), home.path().join("two"));
    let fork = format!(
        "(setsid sh -c 'echo $$ > {one}; exec sleep 1000' &) ; \
         setsid sh -c 'setsid sh -c \"echo \\$\\$ > {two}; exec sleep 1000\" & exit' ; sleep 1000",
        one = one.display(),
        two = two.display(),
    );
    let mut child = start(&["exec"], &line(&ExecRequest { limit_ms: 1500, ..script(&fork) }));
    let (first, second) = (pid_in(&one), pid_in(&two));
    let report = ExecReport::read(child.stdout.take().unwrap());
    assert_eq!(report.ending(), ExecEnding::TimedOut);
    assert!(!is_alive(first) && !is_alive(second));
    child.wait().unwrap();
}

#[test]
fn a_process_that_keeps_forking_into_new_sessions_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let (hop, stop) = (home.path().join("hop"), home.path().join("stop"));
    // The file stops the process in case `exec` does not catch it.
    let script_of_hop = "#!/bin/sh\n[ -e \"$1\" ] && exit\nsetsid \"$0\" \"$1\" &\n";
    fs::write(&hop, script_of_hop).unwrap();
    fs::set_permissions(&hop, fs::Permissions::from_mode(0o700)).unwrap();
    let start = format!("{} {}; sleep 100", hop.display(), stop.display());
    let report = exec(&ExecRequest { limit_ms: 300, ..script(&start) });
    let is_hopping = is_any_process_of(hop.to_str().unwrap());
    fs::write(&stop, "").unwrap();
    assert_eq!(report.ending(), ExecEnding::TimedOut);
    assert!(!is_hopping);
}

/// Returns whether a process has this among its arguments.
fn is_any_process_of(arg: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|other| other == arg.as_bytes()))
}

#[test]
fn a_command_that_ends_leaves_daemons_but_nothing_in_its_session() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, job) = (home.path().join("daemon"), home.path().join("job"));
    let leave = format!(
        "setsid sh -c 'echo $$ > {daemon}; exec sleep 1000' & \
         sh -c 'echo $$ > {job}; exec sleep 1000' & \
         while ! [ -s {daemon} ] || ! [ -s {job} ]; do sleep 0.01; done; echo left",
        daemon = daemon.display(),
        job = job.display(),
    );
    let report = exec(&script(&leave));
    assert_eq!(
        (report.output.as_slice(), report.ending()),
        (&b"left\n"[..], ExecEnding::Code { code: 0 })
    );
    let daemon = pid_in(&daemon);
    assert!(!is_alive(pid_in(&job)));
    assert!(is_alive(daemon));
    kill(daemon);
}

#[test]
fn disconnecting_kills_the_command_with_while_connected() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let request = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut child = start(&["exec", "--while-connected"], &line(&request));
    let command = pid_in(&file);
    assert!(is_alive(command));
    drop(child.stdin.take());
    let report = ExecReport::read(child.stdout.take().unwrap());
    assert_eq!(report.ending(), ExecEnding::Signal { signal: 9 });
    assert!(!is_alive(command));
    child.wait().unwrap();
}

#[test]
fn a_command_is_killed_when_its_output_has_no_reader() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let request = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut child = start(&["exec"], &line(&request));
    let command = pid_in(&file);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!is_alive(command));
}

#[test]
fn an_exec_that_receives_sigterm_kills_its_command() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let request = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut child = start(&["exec"], &line(&request));
    let command = pid_in(&file);
    signal(child.id(), Signal::TERM);
    let report = ExecReport::read(child.stdout.take().unwrap());
    assert_eq!(report.ending(), ExecEnding::Signal { signal: 9 });
    assert!(!is_alive(command));
    child.wait().unwrap();
}

#[test]
fn the_limit_holds_without_a_reader_and_does_not_count_as_silence() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let endless = script(&format!("echo $$ > {}; exec yes", file.display()));
    let request = ExecRequest { limit_ms: 1500, silence_ms: Some(300), ..endless };
    let mut child = start(&["exec"], &line(&request));
    let command = pid_in(&file);
    until("the end of the command", || !is_alive(command));
    let report = ExecReport::read(child.stdout.take().unwrap());
    assert_eq!(report.ending(), ExecEnding::TimedOut);
    child.wait().unwrap();
}

#[test]
fn a_hundred_megabytes_are_delivered_in_little_memory() {
    const SIZE: usize = 100 << 20;
    // The limit on time is not what is tested here, and decoding is slow on a busy machine.
    let request = ExecRequest {
        limit_ms: 600_000,
        ..script(&format!("head -c {SIZE} /dev/zero; sleep 0.2"))
    };
    let mut child = start(&["exec"], &line(&request));
    let mut output = child.stdout.take().unwrap();
    let (mut decoder, mut count, mut peak) = (Decoder::default(), 0, 0);
    let mut chunk = vec![0; 1 << 16];
    loop {
        let read = output.read(&mut chunk).unwrap();
        if read == 0 {
            break;
        }
        decoder.feed::<ExecEvent>(&chunk[..read], |frame| {
            if let ExecEvent::Output { bytes, .. } = frame.body {
                count += BASE64_STANDARD.decode(bytes).unwrap().len();
            }
        });
        peak = peak.max(peak_memory(child.id()));
    }
    assert_eq!(count, SIZE);
    assert!((1..16 << 10).contains(&peak), "{peak} KiB");
    child.wait().unwrap();
}

#[test]
fn a_waiting_exec_starts_after_the_previous_one_has_cleaned_up() {
    let home = tempfile::tempdir().unwrap();
    let (lock, file) = (home.path().join("turn"), home.path().join("pid"));
    let args = ["exec", "--while-connected", "--after", lock.to_str().unwrap()];
    let request = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut first = start(&args, &line(&request));
    let command = pid_in(&file);
    let check = script(&format!("if [ -d /proc/{command} ]; then echo there; else echo gone; fi"));
    let mut second = start(&args, &line(&check));
    drop(first.stdin.take());
    let report = ExecReport::read(second.stdout.take().unwrap());
    assert_eq!(report.output, b"gone\n");
    first.wait().unwrap();
    second.wait().unwrap();
}

#[test]
fn an_exec_that_leads_a_group_already_works_all_the_same() {
    let child = program(&["exec"])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = child;
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), &line(&script("echo on"))).unwrap();
    assert_eq!(ExecReport::read(child.stdout.take().unwrap()).output, b"on\n");
    until("the end", || child.try_wait().unwrap().is_some());
}

/// Returns the peak memory of a process, in KiB.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
