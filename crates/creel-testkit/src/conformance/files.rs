//! Files make the round trip unchanged.

use bytes::Bytes;
use creel_model::provider::ErrorClass;

use super::context::class_of;
use super::sandbox::{SandboxCaseContext, output_of};
use super::suite::cases;

/// A size that no transport carries in one piece.
const BIG: usize = 8 << 20;
/// More than a file may have.
const TOO_BIG: usize = (40 << 20) + 1;

cases![SandboxCase:
    files_make_the_round_trip_unchanged if |_| true,
    a_file_is_replaced_with_its_mode if |_| true,
    a_missing_file_is_gone_and_the_sandbox_is_not if |_| true,
    paths_out_of_the_workspace_are_refused if |_| true,
];

/// Returns every byte value, repeated up to this length.
fn binary(length: usize) -> Bytes {
    (0..=255).cycle().take(length).collect::<Vec<u8>>().into()
}

async fn files_make_the_round_trip_unchanged(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    let named = [("empty", 0), ("one", 1), ("new/deep/with space 'quote'", 70_001), ("big", BIG)];
    for (path, size) in named {
        let content = binary(size);
        sandbox.upload(path, content.clone(), 0o644).await.unwrap();
        assert!(sandbox.download(path).await.unwrap() == content, "{path} came back changed");
    }
    let absolute = format!("{}/one", sandbox.workspace_root());
    assert_eq!(sandbox.download(&absolute).await.unwrap(), binary(1));
    let refused = sandbox.upload("too-big", vec![0; TOO_BIG].into(), 0o644).await;
    assert_eq!(class_of(refused, "the upload of a huge file"), ErrorClass::Invalid);
}

async fn a_file_is_replaced_with_its_mode(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    for (text, mode) in [("first and longer", 0o755), ("second", 0o600)] {
        sandbox.upload("file", Bytes::from_static(text.as_bytes()), mode).await.unwrap();
        assert_eq!(sandbox.download("file").await.unwrap(), text);
        assert_eq!(output_of(&*sandbox, "stat -c %a file").await.trim(), format!("{mode:o}"));
    }
    assert_eq!(output_of(&*sandbox, "ls -A").await.trim(), "file", "no draft is left");
}

async fn a_missing_file_is_gone_and_the_sandbox_is_not(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    output_of(&*sandbox, "mkdir directory").await;
    assert_eq!(class_of(sandbox.download("missing").await, "download"), ErrorClass::Gone);
    assert_eq!(class_of(sandbox.download("directory").await, "download"), ErrorClass::Invalid);
    let refused = sandbox.upload("directory", Bytes::new(), 0o644).await;
    assert_eq!(class_of(refused, "upload"), ErrorClass::Invalid);
    sandbox.probe().await.unwrap();
}

/// A relative path is one in the workspace. It never climbs out of it.
async fn paths_out_of_the_workspace_are_refused(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    for path in ["../out", "a/../../out", "..", "a/../.."] {
        let refused = sandbox.upload(path, Bytes::from_static(b"out"), 0o644).await;
        assert_eq!(class_of(refused, path), ErrorClass::Invalid, "{path}");
        assert_eq!(class_of(sandbox.download(path).await, path), ErrorClass::Invalid, "{path}");
    }
    let outside = format!("test ! -e '{}/../out'", sandbox.workspace_root());
    output_of(&*sandbox, &outside).await;
    sandbox.upload("a/../inside", Bytes::from_static(b"in"), 0o644).await.unwrap();
    assert_eq!(sandbox.download("inside").await.unwrap(), "in");
}
