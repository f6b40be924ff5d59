//! A failing system is an error with its class, never an empty answer.

use std::sync::Arc;
use std::time::Duration;

use creel_model::provider::{ErrorClass, ReleaseMode};

use super::context::{CaseContext, class_of, release};
use super::subject::Failure;
use super::suite::cases;

cases![Case:
    a_failing_system_is_never_an_absence if |_, _| true,
    a_stop_or_renewal_that_fails_says_so if |_, kind| kind.runs(),
    a_create_that_fails_says_so if |_, _| true,
];

async fn a_failing_system_is_never_an_absence(context: &CaseContext) {
    let (request, id) = context.create().await;
    for &failure in context.abilities.failures {
        let provider = context.subject().failing(failure).await;
        let (kind, marks) = (context.kind, request.marks());
        // All at once, because a provider may retry each of them for a while.
        let (listed, inspected, verified, found) = tokio::join!(
            provider.list(std::slice::from_ref(&context.kind)),
            provider.inspect(kind, &id),
            provider.verify(kind, &id),
            provider.find(&marks),
        );
        let mut classes = vec![
            class_of(listed, "list"),
            class_of(inspected, "inspect"),
            class_of(verified, "verify"),
            class_of(found, "find"),
        ];
        if failure != Failure::HalfAnswer {
            let released = release(Arc::clone(&provider), kind, &id, ReleaseMode::AT_ONCE).await;
            classes.push(class_of(released, "release"));
        }
        let fit = classes.iter().all(|class| fits(*class, failure));
        assert!(fit, "{failure:?} was classified as {classes:?}");
    }
    context.subject().mend().await;
    context.assert_exist(&[id]).await;
}

async fn a_stop_or_renewal_that_fails_says_so(context: &CaseContext) {
    let (_, id) = context.create().await;
    for failure in changes_that_fail(context) {
        let provider = context.subject().failing(failure).await;
        let (stopped, renewed) = tokio::join!(
            provider.stop(context.kind, &id, Duration::ZERO),
            provider.renew(context.kind, &id),
        );
        let classes = [class_of(stopped, "stop"), class_of(renewed, "renew")];
        let fit = classes.iter().all(|class| fits(*class, failure));
        assert!(fit, "{failure:?} was classified as {classes:?}");
    }
    context.subject().mend().await;
    assert!(context.inspect(&id).await.is_some_and(|seen| seen.is_running()));
}

async fn a_create_that_fails_says_so(context: &CaseContext) {
    for failure in changes_that_fail(context) {
        let request = context.request();
        let provider = context.subject().failing(failure).await;
        let class = class_of(provider.create(&request).await, "create");
        assert!(fits(class, failure), "{failure:?} was classified as {class}");
    }
}

fn changes_that_fail(context: &CaseContext) -> impl Iterator<Item = Failure> {
    let all = context.abilities.failures.iter().copied();
    all.filter(|failure| *failure != Failure::HalfAnswer)
}

/// Returns whether a class says what is known: nothing about the object.
fn fits(class: ErrorClass, failure: Failure) -> bool {
    match failure {
        Failure::NoServer => class == ErrorClass::Unreachable,
        // A server that is there and answers badly may do better next time.
        Failure::Reset | Failure::ServerError | Failure::HalfAnswer => {
            matches!(class, ErrorClass::Transient | ErrorClass::Unreachable)
        }
        Failure::ForeignPage | Failure::UnreadableStore => class != ErrorClass::Gone,
    }
}
