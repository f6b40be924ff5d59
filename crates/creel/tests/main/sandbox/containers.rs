//! Features of containers only: images of every kind, users, and our own first process.

use creel_ledger::RecordFilter;
use creel_model::provider::ErrorClass;
use creel_run::sandbox::{Command, SandboxPlan};
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::image;

use super::fixture::{LIMIT, ProviderFixture, SandboxFixture, ended, plan, run};

/// An image of one test, removed on drop.
struct Image(String);

impl Image {
    /// Imports an archive as an image, with these Dockerfile instructions.
    fn import(name: &str, archive: &[u8], changes: &[&str]) -> Self {
        let api = Engine::from_env().api();
        let reference = format!("creel-test-{name}-{}:latest", std::process::id());
        let (repository, tag) = reference.rsplit_once(':').unwrap();
        let changes: String = changes
            .iter()
            .map(|change| format!("&changes={}", creel_testkit::api::escape(change)))
            .collect();
        let path = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}{changes}");
        let answer = api.send("POST", &path, "application/x-tar", archive).unwrap();
        assert!(answer.is_success(), "{}", answer.text());
        Self(reference)
    }

    /// Returns a plan with another image, or none.
    fn plan_with(&self, image: Option<String>) -> SandboxPlan {
        let mut plan = plan(creel_docker::NAME);
        plan.options.image = image;
        plan
    }

    fn plan(&self) -> SandboxPlan {
        self.plan_with(Some(self.0.clone()))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Engine::from_env().docker().remove_image(&self.0);
    }
}

/// Returns an archive with one entry, or none.
fn archive(file: Option<&str>) -> Vec<u8> {
    let mut blocks = vec![0; 1024];
    if let Some(name) = file {
        let mut head = [0_u8; 512];
        head[..name.len()].copy_from_slice(name.as_bytes());
        head[100..108].copy_from_slice(b"0000644\0");
        head[108..116].copy_from_slice(b"0000000\0");
        head[116..124].copy_from_slice(b"0000000\0");
        head[124..136].copy_from_slice(b"00000000000\0");
        head[136..148].copy_from_slice(b"00000000000\0");
        head[156] = b'0';
        head[257..265].copy_from_slice(b"ustar\x0000");
        head[148..156].fill(b' ');
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        blocks.splice(0..0, head);
    }
    blocks
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_image_is_sufficient() {
    let image = tokio::task::block_in_place(|| Image::import("scratch", &archive(None), &[]));
    let fixture = SandboxFixture::enter_with(creel_docker::NAME, image.plan()).await;
    let alive = Command::new([fixture.sandbox.bridge_path(), "alive"], LIMIT);
    assert_eq!(run(&*fixture.sandbox, &alive).await.0, ended(0));
    fixture.sandbox.upload("deep/file", "text".into(), 0o600).await.unwrap();
    assert_eq!(fixture.sandbox.download("deep/file").await.unwrap(), "text");
    fixture.sandbox.renew().await.unwrap();
    fixture.leave().await;
    tokio::task::block_in_place(|| drop(image));
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_files_of_an_image_are_replaced() {
    let image = tokio::task::block_in_place(|| Image::import("odd", &archive(Some(".creel")), &[]));
    let fixture = SandboxFixture::enter_with(creel_docker::NAME, image.plan()).await;
    fixture.sandbox.upload("file", "text".into(), 0o600).await.unwrap();
    fixture.leave().await;
    tokio::task::block_in_place(|| drop(image));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_as_the_user_of_the_image_in_separate_directories() {
    let image = tokio::task::block_in_place(|| {
        let busybox = image::archive().unwrap();
        Image::import("user", &busybox, &["USER 4711:4712", "WORKDIR /"])
    });
    let fixture = SandboxFixture::enter_with(creel_docker::NAME, image.plan()).await;
    assert_eq!(fixture.output("echo $(id -u):$(id -g)").await, "4711:4712\n");
    fixture.output(&format!("touch made '{}/made'", fixture.sandbox.creel_directory())).await;
    fixture.sandbox.upload("file", "text".into(), 0o600).await.unwrap();
    assert_eq!(fixture.output("stat -c %u file . ; cat file").await, "4711\n4711\ntext");
    fixture.sandbox.renew().await.unwrap();
    fixture.leave().await;
    tokio::task::block_in_place(|| drop(image));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_is_the_first_process_and_the_entrypoint_does_not_run() {
    let image = tokio::task::block_in_place(|| {
        let busybox = image::archive().unwrap();
        Image::import("entry", &busybox, &["ENTRYPOINT [\"false\"]", "CMD [\"x\"]"])
    });
    let fixture = SandboxFixture::enter_with(creel_docker::NAME, image.plan()).await;
    let first = fixture.output("tr '\\0' ' ' < /proc/1/cmdline").await;
    assert!(first.starts_with(&format!("{} hold ", fixture.sandbox.bridge_path())), "{first}");
    fixture.leave().await;
    tokio::task::block_in_place(|| drop(image));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_be_created_reports_why_and_leaves_nothing() {
    let image = tokio::task::block_in_place(|| {
        Image::import("nobody", &archive(None), &["USER no-such-user"])
    });
    let provider_fixture = ProviderFixture::new(creel_docker::NAME).await;
    let nameless = image.plan_with(None);
    let absent = image.plan_with(Some("creel-no-such-image".to_owned()));
    for (plan, message) in [
        (image.plan(), "user `no-such-user` is not among"),
        (nameless, "needs an image"),
        (absent, "docker pull creel-no-such-image"),
    ] {
        let refused = provider_fixture
            .sandboxes
            .create(&provider_fixture.supervisor, &plan)
            .await
            .unwrap_err();
        assert!(refused.to_string().to_lowercase().contains(message), "{refused}");
    }
    let open = provider_fixture.ledger.records(&RecordFilter::open()).await.unwrap();
    assert!(open.is_empty(), "still on record: {open:#?}");
    tokio::task::block_in_place(|| drop(image));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_engine_is_unreachable_and_its_containers_are_not_gone() {
    let start = || PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let mut engine = tokio::task::block_in_place(start);
    let provider_fixture = ProviderFixture::on(creel_docker::NAME, &engine.engine()).await;
    let fixture = provider_fixture.enter(plan(creel_docker::NAME)).await;
    tokio::task::block_in_place(|| engine.kill_hard()).unwrap();
    let error = fixture.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable, "{error}");
    assert!(error.message.contains("no Docker Engine listens"), "{error}");
    tokio::task::block_in_place(|| engine.restart()).unwrap();
    // An engine ends the containers it finds at its start. This one exists and can be started.
    fixture.sandbox.start().await.unwrap();
    fixture.sandbox.probe().await.unwrap();
    fixture.leave().await;
    tokio::task::block_in_place(|| engine.stop()).unwrap();
}
