//! `put`, `get` and `alive`, as a sandbox runs them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use creel_bridge::file::FileError;

use crate::support::program;

fn run(args: &[&str], input: &[u8]) -> Output {
    let mut child = program(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[test]
fn a_put_file_can_be_read_back() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("deep/--odd name\n");
    let path = path.to_str().unwrap();
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let put = run(&["put", "--mode", "4750", "--path", path], &content);
    assert!(put.status.success(), "{put:?}");
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o4750);
    let got = run(&["get", "--most", "300000", "--path", path], b"");
    assert!(got.status.success() && got.stdout == content);
}

#[test]
fn the_exit_code_and_a_message_report_the_error() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    fs::write(at("file"), "four").unwrap();
    let cases = [
        (vec!["get", "--most", "9", "--path"], at("none"), FileError::Absent),
        (vec!["get", "--most", "3", "--path"], at("file"), FileError::NoRoom),
        (vec!["get", "--most", "9", "--path"], at(""), FileError::Impossible),
        (vec!["put", "--mode", "644", "--path"], at("file/below"), FileError::Impossible),
    ];
    for (mut args, path, verdict) in cases {
        args.push(&path);
        let output = run(&args, b"x");
        assert_eq!(output.status.code(), Some(verdict.code().into()), "{args:?}");
        assert!(output.stderr.starts_with(path.as_bytes()), "{output:?}");
    }
    for args in
        [&["put", "--mode", "rw", "--path", "x"][..], &["put", "--mode", "644"], &["get", "x"]]
    {
        assert_eq!(run(args, b"").status.code(), Some(2), "{args:?}");
    }
    assert!(run(&["alive"], b"").status.success());
}
