//! A sandbox is made of recorded parts, stops, starts, and is gone when released.

use std::time::{Duration, Instant};

use bytes::Bytes;
use creel_model::provider::ErrorClass;
use creel_model::sandbox::{SandboxError, SandboxStatus};

use super::context::class_of;
use super::sandbox::{SandboxCaseContext, eventually, output_of};
use super::suite::cases;

cases![SandboxCase:
    a_new_sandbox_is_alive_and_laid_out if |_| true,
    every_part_goes_through_the_maker if |_| true,
    options_that_the_provider_lacks_are_refused if |all| {
        all.sandboxes.as_ref().is_some_and(|all| !all.refused_keys.is_empty())
    },
    another_process_reaches_the_same_sandbox if |_| true,
    a_stopped_sandbox_keeps_its_files_and_starts_again if |_| true,
    a_released_sandbox_is_gone if |_| true,
    a_renewed_lease_keeps_the_sandbox if |all| {
        all.sandboxes.as_ref().is_some_and(|all| all.short_lease.is_some())
    },
];

async fn a_new_sandbox_is_alive_and_laid_out(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    assert_eq!(sandbox.provider(), context.subject().provider().name());
    sandbox.probe().await.unwrap();
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Running);
    sandbox.renew().await.unwrap();
    sandbox.wake().await.unwrap();
    sandbox.usage().await.unwrap();
    let creel = sandbox.creel_directory();
    assert!(sandbox.bridge_path().starts_with(creel) && creel.starts_with('/'), "{creel}");
    assert_eq!(output_of(&*sandbox, &format!("stat -c %a '{creel}'")).await, "700\n");
    assert_eq!(output_of(&*sandbox, "pwd -P").await.trim(), sandbox.workspace_root());
}

async fn every_part_goes_through_the_maker(context: &SandboxCaseContext) {
    context.enter().await;
    let count = context.part_count();
    assert!(count > 0, "a sandbox without a part is on no record");
    context.release().await;
    for most in 0..count {
        let (created, error) = context.try_enter(context.options(), most).await;
        assert!(matches!(created, Err(SandboxError::Part(_))), "{created:?} {error:?}");
        assert_eq!(context.part_count(), most);
        context.release().await;
    }
}

async fn options_that_the_provider_lacks_are_refused(context: &SandboxCaseContext) {
    for key in context.abilities().refused_keys {
        let mut options = context.options();
        let value = Some("something".to_owned());
        match *key {
            "image" => options.image = value,
            "network" => options.network = value,
            "snapshot" => options.snapshot = value,
            other => panic!("{other} is no option of a sandbox"),
        }
        let (created, _) = context.try_enter(options, usize::MAX).await;
        let Err(SandboxError::Provider(error)) = created else { panic!("{key}: {created:?}") };
        assert_eq!(error.class, ErrorClass::Invalid, "{error}");
        assert_eq!(context.part_count(), 0);
    }
}

async fn another_process_reaches_the_same_sandbox(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    sandbox.upload("kept", Bytes::from_static(b"kept"), 0o644).await.unwrap();
    let parts = context.parts_of(&*sandbox);
    let again = context.open(&parts).await.unwrap();
    assert_eq!(again.id(), sandbox.id());
    assert_eq!(again.download("kept").await.unwrap(), "kept");
    context.release().await;
    // Some providers find that out when they connect, others at the first request.
    let late = match context.open(&parts).await {
        Ok(late) => late.probe().await,
        Err(error) => Err(error),
    };
    assert_eq!(class_of(late, "a probe of what is gone"), ErrorClass::Gone);
}

async fn a_stopped_sandbox_keeps_its_files_and_starts_again(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    sandbox.upload("kept", Bytes::from_static(b"kept"), 0o644).await.unwrap();
    sandbox.stop(Duration::from_secs(5)).await.unwrap();
    let status = sandbox.status().await.unwrap();
    assert!(matches!(status, SandboxStatus::Resting(_)), "{status:?}");
    assert_eq!(class_of(sandbox.probe().await, "a probe at rest"), ErrorClass::Unreachable);
    for _ in 0..2 {
        sandbox.start().await.unwrap();
        sandbox.probe().await.unwrap();
    }
    assert_eq!(sandbox.download("kept").await.unwrap(), "kept");
}

async fn a_released_sandbox_is_gone(context: &SandboxCaseContext) {
    let sandbox = context.enter().await;
    context.release().await;
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Absent);
    assert_eq!(class_of(sandbox.probe().await, "probe"), ErrorClass::Gone);
    assert_eq!(class_of(sandbox.download("x").await, "download"), ErrorClass::Gone);
    assert_eq!(class_of(sandbox.renew().await, "renew"), ErrorClass::Gone);
}

async fn a_renewed_lease_keeps_the_sandbox(context: &SandboxCaseContext) {
    let lease = context.abilities().short_lease.unwrap();
    let mut options = context.options();
    options.lease = lease;
    let sandbox = context.enter_with(options).await;
    let renewed_until = Instant::now() + lease * 2;
    while Instant::now() < renewed_until {
        sandbox.renew().await.unwrap();
        // The lease itself passes here: it is what the case is about.
        tokio::time::sleep(lease / 5).await;
    }
    sandbox.probe().await.unwrap();
    let is_over = async || sandbox.status().await.unwrap() != SandboxStatus::Running;
    eventually("it ends by itself when the lease is not renewed", is_over).await;
}
