//! A create whose answer was lost is found again, and nothing else is.

use creel_model::provider::ErrorClass;

use super::context::CaseContext;
use super::suite::cases;

cases![Case:
    a_create_whose_answer_was_lost_is_found_again if |_, _| true,
    a_retry_after_a_lost_answer_makes_no_second_object if |_, _| true,
    only_the_object_of_a_lost_create_is_found if |all, kind| all.planted.contains(&kind),
    nothing_is_found_for_a_create_that_never_happened if |all, kind| all.planted.contains(&kind),
];

/// Creates an object whose answer is lost, and returns its id.
async fn lost(context: &CaseContext, request: &creel_model::provider::CreateRequest) -> String {
    let answer = context.subject().lose_answer(request).await;
    if let Some(Err(error)) = &answer {
        let is_doubt = matches!(error.class, ErrorClass::Unreachable | ErrorClass::Transient);
        assert!(is_doubt, "a lost answer says nothing about the object: {error}");
    }
    let found = context.found(request).await;
    assert_eq!(found.len(), 1, "{found:?}");
    context.note(context.kind, &found[0]);
    // A provider may have searched by itself.
    if let Some(Ok(id)) = answer {
        assert_eq!(found, [id]);
    }
    found.into_iter().next().unwrap()
}

async fn a_create_whose_answer_was_lost_is_found_again(context: &CaseContext) {
    let request = context.request();
    let id = lost(context, &request).await;
    let seen = context.inspect(&id).await.expect("what is found exists");
    assert_eq!(seen.name, request.name);
    context.release_to_the_end(&id).await;
    assert_eq!(context.found(&request).await, [""; 0]);
}

async fn a_retry_after_a_lost_answer_makes_no_second_object(context: &CaseContext) {
    let request = context.request();
    let id = lost(context, &request).await;
    match context.subject().another().create(&request).await {
        Ok(again) => assert_eq!(again, id),
        Err(error) => assert_eq!(error.class, ErrorClass::InUse, "{error}"),
    }
    assert_eq!(context.found(&request).await, [id]);
}

async fn only_the_object_of_a_lost_create_is_found(context: &CaseContext) {
    let request = context.request();
    let decoys = context.decoys(&request).await;
    let id = lost(context, &request).await;
    assert!(!decoys.contains(&id), "{id} is a decoy");
    context.release_to_the_end(&id).await;
    context.assert_exist(&decoys).await;
    assert_eq!(context.found(&request).await, [""; 0]);
}

async fn nothing_is_found_for_a_create_that_never_happened(context: &CaseContext) {
    let request = context.request();
    let decoys = context.decoys(&request).await;
    assert_eq!(context.found(&request).await, [""; 0]);
    context.assert_exist(&decoys).await;
}
