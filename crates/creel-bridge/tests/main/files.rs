//! `put`, `get` and `alive`, as a sandbox runs them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use creel_bridge::file::Verdict;

use crate::support::program;

fn run(words: &[&str], input: &[u8]) -> Output {
    let mut child = program(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that refuses does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[test]
fn what_is_put_is_got_again() {
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
fn the_exit_code_says_what_is_wrong_and_a_sentence_says_it_too() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    fs::write(at("file"), "four").unwrap();
    let cases = [
        (vec!["get", "--most", "9", "--path"], at("none"), Verdict::Absent),
        (vec!["get", "--most", "3", "--path"], at("file"), Verdict::NoRoom),
        (vec!["get", "--most", "9", "--path"], at(""), Verdict::Impossible),
        (vec!["put", "--mode", "644", "--path"], at("file/below"), Verdict::Impossible),
    ];
    for (mut words, path, verdict) in cases {
        words.push(&path);
        let output = run(&words, b"x");
        assert_eq!(output.status.code(), Some(verdict.code().into()), "{words:?}");
        assert!(output.stderr.starts_with(path.as_bytes()), "{output:?}");
    }
    for words in
        [&["put", "--mode", "rw", "--path", "x"][..], &["put", "--mode", "644"], &["get", "x"]]
    {
        assert_eq!(run(words, b"").status.code(), Some(2), "{words:?}");
    }
    assert!(run(&["alive"], b"").status.success());
}
