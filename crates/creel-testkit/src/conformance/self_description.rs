//! What the provider says about itself holds.

use std::collections::HashSet;

use creel_model::backend::{BackendContext, BackendError, HolderProgram, Sections, Variables};

use super::context::CaseContext;
use super::suite::cases;

cases![Case:
    the_identity_of_the_provider_is_stable if |_, _| true,
    the_provider_describes_itself if |_, _| true,
    the_backend_describes_its_provider if |_, _| true,
    the_backend_says_how_to_configure_it if |_, _| true,
];

async fn the_identity_of_the_provider_is_stable(context: &CaseContext) {
    let identity = context.provider().identity().await.unwrap();
    assert!(!identity.is_empty());
    context.create().await;
    assert_eq!(context.provider().identity().await.unwrap(), identity);
    assert_eq!(context.subject().another().identity().await.unwrap(), identity);
}

async fn the_provider_describes_itself(context: &CaseContext) {
    let provider = context.provider();
    assert!(!provider.address().is_empty() && !provider.other_account_hint().is_empty());
    let kinds: HashSet<_> = provider.kinds().iter().collect();
    assert_eq!(kinds.len(), provider.kinds().len(), "a kind is named twice");
    assert!(context.abilities.kinds.iter().all(|kind| kinds.contains(kind)));
    let interval = provider.check_interval();
    assert!(!interval.is_empty() && !provider.create_deadline().is_zero());
    assert_eq!(context.subject().another().name(), provider.name());
}

async fn the_backend_describes_its_provider(context: &CaseContext) {
    let (backend, provider) = (context.abilities.backend, context.provider());
    assert_eq!(backend.name(), provider.name());
    let states = backend.states();
    let distinct: HashSet<_> = states.iter().collect();
    assert!(!states.is_empty() && distinct.len() == states.len(), "{states:?}");
    assert!(states.iter().all(|state| *state == state.to_lowercase()), "{states:?}");
    for rule in backend.preset_rules() {
        assert!(provider.kinds().contains(&rule.kind), "{rule:?}");
        assert!(rule.states.iter().all(|state| states.contains(state)), "{rule:?}");
    }
    let names = |rules: &[creel_model::provider::PresetRule]| {
        rules.iter().map(|rule| rule.name).collect::<Vec<_>>()
    };
    assert_eq!(names(backend.preset_rules()), names(provider.preset_rules()));
    assert!(!backend.isolation().is_empty());
    if let Some((sandboxes, _)) = context.subject().sandboxes() {
        assert_eq!(sandboxes.name(), backend.name());
        let kinds = backend.sandbox_kinds();
        assert!(!kinds.is_empty() && kinds.iter().all(|kind| provider.kinds().contains(kind)));
    }
}

async fn the_backend_says_how_to_configure_it(context: &CaseContext) {
    let backend = context.abilities.backend;
    let BackendError::NotConfigured { message, hint } = backend.not_configured() else {
        panic!("it is not configured, and nothing else");
    };
    assert!(!message.is_empty() && !hint.is_empty());
    let home = tempfile::tempdir().unwrap();
    let context = BackendContext {
        variables: Variables::new(|_| None),
        working_directory: Some(home.path().to_owned()),
        settings: Sections::default(),
        sandboxes: home.path().join("sandboxes"),
        holder: HolderProgram { program: "/nowhere".into(), args: Vec::new() },
    };
    // Without any setting it is not configured, works as it is, or says what is missing.
    match backend.connect(&context) {
        Ok(Some(connected)) => {
            assert_eq!(connected.provider.name(), backend.name());
            assert_eq!(connected.sandboxes.name(), backend.name());
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert!(!home.path().join("sandboxes").exists(), "nothing is touched before the first call");
}
