//! One create makes one object, which inspect, list and find agree on.

use creel_model::provider::{ErrorClass, Identity, IdentityCheck};

use super::context::{CaseContext, class_of};
use super::suite::cases;

cases![Case:
    inspect_list_and_find_agree_on_a_new_object if |_, _| true,
    an_unchanged_object_keeps_its_identity_and_generation if |_, _| true,
    creating_twice_makes_one_object if |_, _| true,
    an_object_of_another_owner_is_never_adopted if |all, kind| all.namesakes.contains(&kind),
];

async fn inspect_list_and_find_agree_on_a_new_object(context: &CaseContext) {
    let (request, id) = context.create().await;
    let provider = context.provider();
    let seen = context.inspect(&id).await.expect("it was just created");
    assert_eq!((seen.provider, seen.kind, &seen.id), (provider.name(), context.kind, &id));
    assert_eq!(seen.name, request.name);
    assert!(request.marks().fit(&seen), "its labels are missing: {:?}", seen.labels);
    context.assert_documented(&seen.state);
    assert_eq!(seen.is_running(), context.kind.runs(), "state {}", seen.state);
    assert!(!seen.predefined && seen.retained.is_none(), "{seen:?}");
    for other in
        [provider.examine(context.kind, &id).await, provider.verify(context.kind, &id).await]
    {
        assert_eq!(other.unwrap().map(|other| other.id), Some(id.clone()));
    }
    let listed = provider.list(&[context.kind]).await.unwrap();
    let listed: Vec<_> = listed.into_iter().filter(|row| row.id == id).collect();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&listed[0].name, &listed[0].state), (&seen.name, &seen.state));
    assert_eq!(context.found(&request).await, [id]);
}

async fn an_unchanged_object_keeps_its_identity_and_generation(context: &CaseContext) {
    let (_, id) = context.create().await;
    let seen = context.inspect(&id).await.unwrap();
    let again = context.subject().another().inspect(context.kind, &id).await.unwrap().unwrap();
    assert_eq!(seen.generation, again.generation);
    let identity = seen.identity().expect("an inspect tells the identity");
    let check = Identity::compare(&identity, &again.identity().unwrap());
    assert!(matches!(check, IdentityCheck::Same { .. }), "{check:?}");
    let (_, other) = context.create().await;
    let other = context.inspect(&other).await.unwrap();
    let check = Identity::compare(&identity, &other.identity().unwrap());
    assert!(matches!(check, IdentityCheck::Replaced { .. }), "{check:?}");
    if context.kind.has_lasting_ids() {
        assert_eq!(identity, Identity::id(id), "a lasting id is the identity");
    }
}

async fn creating_twice_makes_one_object(context: &CaseContext) {
    let (request, id) = context.create().await;
    match context.subject().another().create(&request).await {
        Ok(again) => assert_eq!(again, id),
        Err(error) => assert_eq!(error.class, ErrorClass::InUse, "{error}"),
    }
    assert_eq!(context.found(&request).await, [id]);
}

async fn an_object_of_another_owner_is_never_adopted(context: &CaseContext) {
    let request = context.request();
    let foreign = context.plant(&request.name, &context.request().labels).await;
    let class = class_of(context.provider().create(&request).await, "a create under a taken name");
    assert!(matches!(class, ErrorClass::Invalid | ErrorClass::InUse), "{class}");
    assert_eq!(context.found(&request).await, [""; 0]);
    context.assert_exist(&[foreign]).await;
}
