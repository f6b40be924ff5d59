//! A release is verified, may happen twice, and spares what it should not take.

use std::time::Duration;

use creel_model::provider::{ErrorClass, Identity, IdentityCheck, ReleaseMode, Released};

use super::context::{CaseContext, class_of};
use super::suite::cases;

/// How long a stop may take before the object is killed.
const STOP: Duration = Duration::from_secs(2);

cases![Case:
    a_released_object_is_verified_gone if |_, _| true,
    a_second_release_finds_it_gone if |_, _| true,
    an_object_that_vanished_is_absent if |_, _| true,
    a_release_spares_an_object_with_another_identity if |all, kind| all.compares.contains(&kind),
    a_release_takes_the_object_with_the_expected_identity if |_, _| true,
    a_release_by_mistake_spares_a_running_object if |all, kind| all.spares_running.contains(&kind),
    a_release_spares_the_neighbours if |all, kind| all.planted.contains(&kind),
    a_stopped_object_stays_until_it_is_released if |_, kind| kind.runs(),
    an_object_that_does_not_run_cannot_be_stopped if |_, kind| !kind.runs(),
    a_renewed_object_stays if |_, _| true,
];

async fn a_released_object_is_verified_gone(context: &CaseContext) {
    let (request, id) = context.create().await;
    context.release_to_the_end(&id).await;
    assert_eq!(context.inspect(&id).await, None);
    assert_eq!(context.provider().examine(context.kind, &id).await.unwrap(), None);
    assert!(!context.listed().await.contains(&id));
    assert_eq!(context.found(&request).await, [""; 0]);
    assert!(!context.subject().exists(context.kind, &id).await, "only the provider calls it gone");
}

async fn a_second_release_finds_it_gone(context: &CaseContext) {
    let (_, id) = context.create().await;
    context.release_to_the_end(&id).await;
    for _ in 0..2 {
        let again = context.release(&id, ReleaseMode::AT_ONCE).await.unwrap();
        assert_eq!(again, Released::AlreadyGone);
    }
    let gentle = ReleaseMode { stop_timeout: Some(STOP), ..ReleaseMode::AT_ONCE };
    assert_eq!(context.release(&id, gentle).await.unwrap(), Released::AlreadyGone);
}

async fn an_object_that_vanished_is_absent(context: &CaseContext) {
    let (request, id) = context.create().await;
    context.subject().remove(context.kind, &id).await;
    context.until_gone(&id).await;
    assert_eq!(context.inspect(&id).await, None);
    assert_eq!(context.found(&request).await, [""; 0]);
    let released = context.release(&id, ReleaseMode::AT_ONCE).await.unwrap();
    assert_eq!(released, Released::AlreadyGone);
    if context.kind.runs() {
        let stopped = context.provider().stop(context.kind, &id, STOP).await;
        // A stop that finds nothing has nothing left to do.
        assert!(stopped.as_ref().map_or_else(|error| error.class == ErrorClass::Gone, |()| true));
        let renewed = context.provider().renew(context.kind, &id).await;
        assert_eq!(class_of(renewed, "the renewal of an absent object"), ErrorClass::Gone);
    }
}

async fn a_release_spares_an_object_with_another_identity(context: &CaseContext) {
    let (_, id) = context.create().await;
    let (_, other) = context.create().await;
    let expected = context.inspect(&other).await.unwrap().identity();
    let mode = ReleaseMode { expected, ..ReleaseMode::AT_ONCE };
    let released = context.release(&id, mode).await.unwrap();
    assert!(matches!(released, Released::Kept(IdentityCheck::Replaced { .. })), "{released:?}");
    context.assert_exist(&[id, other]).await;
}

async fn a_release_takes_the_object_with_the_expected_identity(context: &CaseContext) {
    let (_, id) = context.create().await;
    let expected = context.inspect(&id).await.unwrap().identity();
    assert_eq!(
        expected.as_ref().map(Identity::can_be_replaced),
        Some(!context.kind.has_lasting_ids())
    );
    let mode = ReleaseMode { expected, ..ReleaseMode::AT_ONCE };
    let released = context.release(&id, mode).await.unwrap();
    assert!(matches!(released, Released::Done | Released::Accepted), "{released:?}");
    context.until_gone(&id).await;
}

async fn a_release_by_mistake_spares_a_running_object(context: &CaseContext) {
    let (_, id) = context.create().await;
    let mode = ReleaseMode { kill_running: false, ..ReleaseMode::AT_ONCE };
    let class = class_of(context.release(&id, mode).await, "the release of a running object");
    assert_eq!(class, ErrorClass::InUse);
    assert!(context.inspect(&id).await.is_some_and(|seen| seen.is_running()));
}

async fn a_release_spares_the_neighbours(context: &CaseContext) {
    let (request, id) = context.create().await;
    let decoys = context.decoys(&request).await;
    let gentle = ReleaseMode { stop_timeout: Some(STOP), ..ReleaseMode::AT_ONCE };
    let released = context.release(&id, gentle).await.unwrap();
    assert!(matches!(released, Released::Done | Released::Accepted), "{released:?}");
    context.until_gone(&id).await;
    context.assert_exist(&decoys).await;
}

async fn a_stopped_object_stays_until_it_is_released(context: &CaseContext) {
    let (request, id) = context.create().await;
    for _ in 0..2 {
        context.provider().stop(context.kind, &id, STOP).await.unwrap();
        let seen = context.inspect(&id).await.expect("a stop releases nothing");
        assert!(!seen.is_running(), "state {}", seen.state);
        context.assert_documented(&seen.state);
    }
    assert_eq!(context.found(&request).await, std::slice::from_ref(&id));
    let mode = ReleaseMode { kill_running: false, ..ReleaseMode::AT_ONCE };
    let released = context.release(&id, mode).await.unwrap();
    assert!(matches!(released, Released::Done | Released::Accepted), "{released:?}");
    context.until_gone(&id).await;
}

async fn an_object_that_does_not_run_cannot_be_stopped(context: &CaseContext) {
    let (_, id) = context.create().await;
    let stopped = context.provider().stop(context.kind, &id, STOP).await;
    assert_eq!(class_of(stopped, "a stop"), ErrorClass::Invalid);
    context.assert_exist(&[id]).await;
}

async fn a_renewed_object_stays(context: &CaseContext) {
    let (_, id) = context.create().await;
    let before = context.inspect(&id).await.unwrap();
    for provider in [context.provider(), context.subject().another()] {
        provider.renew(context.kind, &id).await.unwrap();
    }
    let after = context.inspect(&id).await.expect("a renewal releases nothing");
    assert_eq!((after.state, after.generation), (before.state, before.generation));
}
