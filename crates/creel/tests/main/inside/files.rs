//! Files, in and out.

use bytes::Bytes;
use creel_model::provider::ErrorClass;

use super::bench::{Bench, binary};
use super::in_every_world;

/// Names that a shell, a form or a listing would take for something else.
const ODD_NAMES: [&str; 8] = [
    "with space",
    "it's \"quoted\"",
    "line\nfeed",
    "snow ☃ rocket 🚀",
    "$(touch evil) `x` ; rm -rf .",
    "-rf",
    "back\\slash",
    "deep/er/and deeper/file",
];

in_every_world!(
    files_survive_the_way_with_their_modes,
    a_file_is_replaced_as_a_whole,
    large_files_come_whole,
    what_cannot_be_carried_says_why,
);

async fn files_survive_the_way_with_their_modes(bench: &Bench) {
    let contents = [Bytes::new(), Bytes::from_static(b"text\n"), binary(70_000)];
    for (number, name) in ODD_NAMES.iter().enumerate() {
        let content = &contents[number % contents.len()];
        let mode = [0o644, 0o600, 0o755][number % 3];
        bench.sandbox.upload(name, content.clone(), mode).await.unwrap();
        assert_eq!(bench.sandbox.download(name).await.unwrap(), content, "{name}");
        let path = format!("{}/{name}", bench.sandbox.workspace_root());
        assert_eq!(bench.sandbox.download(&path).await.unwrap(), content, "{path}");
    }
    let modes = bench.output("stat -c %a 'with space' \"it's \\\"quoted\\\"\" ./-rf").await;
    assert_eq!(modes, "644\n600\n755\n");
    let evil = bench.output("ls | grep -c '^evil$' || true").await;
    assert_eq!(evil.trim(), "0");
    // Nothing is left of how they were written.
    assert_eq!(bench.output("find . -name '.creel-*' | wc -l").await.trim(), "0");
}

async fn a_file_is_replaced_as_a_whole(bench: &Bench) {
    bench.output("ln -s elsewhere link && echo kept > elsewhere").await;
    bench.sandbox.upload("link", Bytes::from_static(b"new"), 0o644).await.unwrap();
    assert_eq!(bench.output("cat elsewhere link").await, "kept\nnew");
    bench.sandbox.upload("link", Bytes::from_static(b"newer"), 0o600).await.unwrap();
    assert_eq!(bench.output("cat link; stat -c %a link").await, "newer600\n");
}

async fn large_files_come_whole(bench: &Bench) {
    let content = binary(20_000_000);
    bench.sandbox.upload("large", content.clone(), 0o644).await.unwrap();
    let back = bench.sandbox.download("large").await.unwrap();
    assert!(back == content, "{} bytes came back, which are not those", back.len());
    let over = bench.sandbox.upload("over", binary((40 << 20) + 1), 0o644).await.unwrap_err();
    assert_eq!(over.class, ErrorClass::Invalid, "{over}");
    bench.output("head -c 41943041 /dev/zero > over").await;
    let over = bench.sandbox.download("over").await.unwrap_err();
    assert_eq!(over.class, ErrorClass::Quota, "{over}");
}

async fn what_cannot_be_carried_says_why(bench: &Bench) {
    let absent = bench.sandbox.download("no/such/file").await.unwrap_err();
    assert_eq!(absent.class, ErrorClass::Gone, "{absent}");
    bench.output("mkdir directory && echo x > file").await;
    let directory = bench.sandbox.download("directory").await.unwrap_err();
    assert_eq!(directory.class, ErrorClass::Invalid, "{directory}");
    for path in ["directory", "file/below"] {
        let refused = bench.sandbox.upload(path, Bytes::new(), 0o644).await.unwrap_err();
        assert_eq!(refused.class, ErrorClass::Invalid, "{refused}");
    }
    // The sandbox is as well as before.
    bench.sandbox.probe().await.unwrap();
}
