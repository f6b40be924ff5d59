//! Uploads and downloads of files.

use bytes::Bytes;
use creel_model::provider::ErrorClass;

use super::fixture::{SandboxFixture, binary};
use super::for_every_provider;

/// Names that a shell, a form or a listing could misinterpret.
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

for_every_provider!(
    files_keep_their_content_and_mode,
    a_file_is_replaced_as_a_whole,
    large_files_are_transferred_completely,
    a_failed_transfer_reports_why,
);

async fn files_keep_their_content_and_mode(fixture: &SandboxFixture) {
    let contents = [Bytes::new(), Bytes::from_static(b"text\n"), binary(70_000)];
    for (number, name) in ODD_NAMES.iter().enumerate() {
        let content = &contents[number % contents.len()];
        let mode = [0o644, 0o600, 0o755][number % 3];
        fixture.sandbox.upload(name, content.clone(), mode).await.unwrap();
        assert_eq!(fixture.sandbox.download(name).await.unwrap(), content, "{name}");
        let path = format!("{}/{name}", fixture.sandbox.workspace_root());
        assert_eq!(fixture.sandbox.download(&path).await.unwrap(), content, "{path}");
    }
    let modes = fixture.output("stat -c %a 'with space' \"it's \\\"quoted\\\"\" ./-rf").await;
    assert_eq!(modes, "644\n600\n755\n");
    let evil = fixture.output("ls | grep -c '^evil$' || true").await;
    assert_eq!(evil.trim(), "0");
    // No temporary file of the upload is left.
    assert_eq!(fixture.output("find . -name '.creel-*' | wc -l").await.trim(), "0");
}

async fn a_file_is_replaced_as_a_whole(fixture: &SandboxFixture) {
    fixture.output("ln -s elsewhere link && echo kept > elsewhere").await;
    fixture.sandbox.upload("link", Bytes::from_static(b"new"), 0o644).await.unwrap();
    assert_eq!(fixture.output("cat elsewhere link").await, "kept\nnew");
    fixture.sandbox.upload("link", Bytes::from_static(b"newer"), 0o600).await.unwrap();
    assert_eq!(fixture.output("cat link; stat -c %a link").await, "newer600\n");
}

async fn large_files_are_transferred_completely(fixture: &SandboxFixture) {
    let content = binary(20_000_000);
    fixture.sandbox.upload("large", content.clone(), 0o644).await.unwrap();
    let back = fixture.sandbox.download("large").await.unwrap();
    assert!(back == content, "{} bytes came back, which are not those", back.len());
    let over = fixture.sandbox.upload("over", binary((40 << 20) + 1), 0o644).await.unwrap_err();
    assert_eq!(over.class, ErrorClass::Invalid, "{over}");
    fixture.output("head -c 41943041 /dev/zero > over").await;
    let over = fixture.sandbox.download("over").await.unwrap_err();
    assert_eq!(over.class, ErrorClass::Quota, "{over}");
}

async fn a_failed_transfer_reports_why(fixture: &SandboxFixture) {
    let absent = fixture.sandbox.download("no/such/file").await.unwrap_err();
    assert_eq!(absent.class, ErrorClass::Gone, "{absent}");
    fixture.output("mkdir directory && echo x > file").await;
    let directory = fixture.sandbox.download("directory").await.unwrap_err();
    assert_eq!(directory.class, ErrorClass::Invalid, "{directory}");
    for path in ["directory", "file/below"] {
        let refused = fixture.sandbox.upload(path, Bytes::new(), 0o644).await.unwrap_err();
        assert_eq!(refused.class, ErrorClass::Invalid, "{refused}");
    }
    // The sandbox still works.
    fixture.sandbox.probe().await.unwrap();
}
