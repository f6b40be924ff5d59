//! `exec`: limits, hang-ups, and what ends with a command.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::{Ending, Heard, Order};
use creel_bridge::frame::Decoder;
use rustix::process::Signal;

use crate::support::{
    Told, exec, is_alive, kill, line, pid_in, program, script, signal, start, until,
};

#[test]
fn both_streams_and_the_exit_code_come_through() {
    let told = exec(&script("echo to output; echo to error >&2; exit 7"));
    assert_eq!(told.output, b"to output\n");
    assert_eq!(told.error, b"to error\n");
    assert_eq!(told.ending(), Ending::Code { code: 7 });
}

#[test]
fn a_signal_of_somebody_else_is_told_as_such() {
    assert_eq!(exec(&script("kill -SEGV $$")).ending(), Ending::Signal { signal: 11 });
}

#[test]
fn what_cannot_be_started_is_explained() {
    let refused = |order: Order| exec(&order).refusal().to_owned();
    let order = |program: &str| Order { command: vec![program.to_owned()], ..script("") };
    assert_eq!(refused(order("/no/such")), "no such program: /no/such");
    assert_eq!(refused(order("/etc/passwd")), "not an executable program: /etc/passwd");
    let elsewhere = Order { directory: Some("/no/such".to_owned()), ..script("") };
    assert_eq!(refused(elsewhere), "no such directory: /no/such");
    assert_eq!(refused(Order::default()), "the command is empty");
}

#[test]
fn an_order_that_makes_no_sense_is_refused_without_repeating_it() {
    let mut child = start(&["exec"], b"{\"command\":[\"secret\n");
    let told = Told::read(child.stdout.take().unwrap());
    assert!(told.refusal().starts_with("the order is not understood at line 1"));
    assert!(!told.refusal().contains("secret"));
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn an_order_in_a_file_is_removed_before_the_command_runs() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("order");
    let look = format!("ls {}", home.path().display());
    fs::write(&file, line(&script(&look))).unwrap();
    let output = program(&["exec", "--order", file.to_str().unwrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = Told::read(output.stdout.as_slice());
    assert_eq!((told.output.as_slice(), told.ending()), (&b""[..], Ending::Code { code: 0 }));
}

#[test]
fn variables_directory_and_input_are_those_of_the_order() {
    let order = Order {
        env: [("GREETING".to_owned(), "hi".to_owned())].into(),
        directory: Some("/".to_owned()),
        input: BASE64_STANDARD.encode(b"\0from outside\xff"),
        ..script("printf %s \"$GREETING\"; pwd; cat")
    };
    assert_eq!(exec(&order).output, b"hi/\n\0from outside\xff");
}

#[test]
fn a_large_input_goes_through_a_command_that_answers_as_it_reads() {
    let input: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    let told = exec(&Order { input: BASE64_STANDARD.encode(&input), ..script("cat") });
    assert!(told.output == input);
}

#[test]
fn a_command_that_does_not_read_its_input_is_not_waited_for() {
    let input = BASE64_STANDARD.encode(vec![b'x'; 1 << 20]);
    let told = exec(&Order { input, ..script("exit 3") });
    assert_eq!(told.ending(), Ending::Code { code: 3 });
}

#[test]
fn any_byte_comes_through() {
    let every = (0..=255).map(|byte: u8| format!("\\{byte:03o}")).collect::<String>();
    let told = exec(&script(&format!("printf '{every}'")));
    assert_eq!(told.output, (0..=255).collect::<Vec<u8>>());
}

#[test]
fn at_its_limit_a_command_is_killed() {
    let before = Instant::now();
    let told = exec(&Order { limit_ms: 200, ..script("trap '' TERM; echo on; sleep 100") });
    assert_eq!((told.output.as_slice(), told.ending()), (&b"on\n"[..], Ending::TimedOut));
    assert!(before.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_command_may_be_silent_only_for_so_long() {
    let speak = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; sleep 100";
    let told = exec(&Order { silence_ms: Some(1000), ..script(speak) });
    assert_eq!(told.output, b"1\n2\n3\n4\n5\n6\n");
    assert_eq!(told.ending(), Ending::Silent);
}

#[test]
fn a_killed_command_takes_along_what_it_forked_into_other_sessions() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (home.path().join("one"), home.path().join("two"));
    let fork = format!(
        "(setsid sh -c 'echo $$ > {one}; exec sleep 1000' &) ; \
         setsid sh -c 'setsid sh -c \"echo \\$\\$ > {two}; exec sleep 1000\" & exit' ; sleep 1000",
        one = one.display(),
        two = two.display(),
    );
    let mut child = start(&["exec"], &line(&Order { limit_ms: 1500, ..script(&fork) }));
    let (first, second) = (pid_in(&one), pid_in(&two));
    let told = Told::read(child.stdout.take().unwrap());
    assert_eq!(told.ending(), Ending::TimedOut);
    assert!(!is_alive(first) && !is_alive(second));
    child.wait().unwrap();
}

#[test]
fn one_that_forks_into_new_sessions_and_ends_without_pause_is_caught() {
    let home = tempfile::tempdir().unwrap();
    let (hop, stop) = (home.path().join("hop"), home.path().join("stop"));
    // The file is for the case that it is not caught.
    let script_of_hop = "#!/bin/sh\n[ -e \"$1\" ] && exit\nsetsid \"$0\" \"$1\" &\n";
    fs::write(&hop, script_of_hop).unwrap();
    fs::set_permissions(&hop, fs::Permissions::from_mode(0o700)).unwrap();
    let start = format!("{} {}; sleep 100", hop.display(), stop.display());
    let told = exec(&Order { limit_ms: 300, ..script(&start) });
    let is_hopping = is_any_process_of(hop.to_str().unwrap());
    fs::write(&stop, "").unwrap();
    assert_eq!(told.ending(), Ending::TimedOut);
    assert!(!is_hopping);
}

/// Returns whether a process has this among its arguments.
fn is_any_process_of(word: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|other| other == word.as_bytes()))
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
    let told = exec(&script(&leave));
    assert_eq!((told.output.as_slice(), told.ending()), (&b"left\n"[..], Ending::Code { code: 0 }));
    let daemon = pid_in(&daemon);
    assert!(!is_alive(pid_in(&job)));
    assert!(is_alive(daemon));
    kill(daemon);
}

#[test]
fn hanging_up_kills_the_command_where_that_was_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let order = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut child = start(&["exec", "--while-connected"], &line(&order));
    let command = pid_in(&file);
    assert!(is_alive(command));
    drop(child.stdin.take());
    let told = Told::read(child.stdout.take().unwrap());
    assert_eq!(told.ending(), Ending::Signal { signal: 9 });
    assert!(!is_alive(command));
    child.wait().unwrap();
}

#[test]
fn a_command_ends_when_nobody_listens_any_more() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let order = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut child = start(&["exec"], &line(&order));
    let command = pid_in(&file);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!is_alive(command));
}

#[test]
fn an_exec_that_is_asked_to_end_takes_its_command_along() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let order = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut child = start(&["exec"], &line(&order));
    let command = pid_in(&file);
    signal(child.id(), Signal::TERM);
    let told = Told::read(child.stdout.take().unwrap());
    assert_eq!(told.ending(), Ending::Signal { signal: 9 });
    assert!(!is_alive(command));
    child.wait().unwrap();
}

#[test]
fn the_limit_holds_although_nobody_reads_and_the_silence_is_not_the_commands() {
    let order = Order { limit_ms: 1500, silence_ms: Some(300), ..script("yes") };
    let mut child = start(&["exec"], &line(&order));
    std::thread::sleep(Duration::from_millis(1700));
    let told = Told::read(child.stdout.take().unwrap());
    assert_eq!(told.ending(), Ending::TimedOut);
    child.wait().unwrap();
}

#[test]
fn a_hundred_megabytes_come_through_in_little_memory() {
    const SIZE: usize = 100 << 20;
    let order = script(&format!("head -c {SIZE} /dev/zero; sleep 0.2"));
    let mut child = start(&["exec"], &line(&order));
    let mut output = child.stdout.take().unwrap();
    let (mut decoder, mut count, mut peak) = (Decoder::default(), 0, 0);
    let mut chunk = vec![0; 1 << 16];
    loop {
        let read = output.read(&mut chunk).unwrap();
        if read == 0 {
            break;
        }
        decoder.feed::<Heard>(&chunk[..read], |frame| {
            if let Heard::Output { bytes, .. } = frame.body {
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
fn one_that_waits_for_its_turn_gets_it_when_the_other_has_cleared_away() {
    let home = tempfile::tempdir().unwrap();
    let (lock, file) = (home.path().join("turn"), home.path().join("pid"));
    let words = ["exec", "--while-connected", "--after", lock.to_str().unwrap()];
    let order = script(&format!("echo $$ > {}; sleep 1000", file.display()));
    let mut first = start(&words, &line(&order));
    let command = pid_in(&file);
    let look = script(&format!("if [ -d /proc/{command} ]; then echo there; else echo gone; fi"));
    let mut second = start(&words, &line(&look));
    drop(first.stdin.take());
    let told = Told::read(second.stdout.take().unwrap());
    assert_eq!(told.output, b"gone\n");
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
    assert_eq!(Told::read(child.stdout.take().unwrap()).output, b"on\n");
    until("the end", || child.try_wait().unwrap().is_some());
}

/// Returns the most memory a process has used, in KiB.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
