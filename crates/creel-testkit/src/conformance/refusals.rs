//! Wrong kinds, malformed ids and impossible limits are errors, never "absent".
//!
//! An object that is absent counts as released. So "absent" must never be the answer to a question
//! that was wrong.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use creel_model::id::ResourceId;
use creel_model::provider::{ErrorClass, Kind, Limits, Marks, Provider, ReleaseMode, Result};

use super::context::{CaseContext, class_of, release};
use super::suite::{Case, cases};

cases![Case:
    impossible_limits_are_refused_and_leave_nothing if |all, kind| all.limited.contains(&kind),
];

/// The cases about the provider as a whole.
pub(super) const OF_PROVIDERS: &[Case] = &[
    Case {
        name: "kinds_of_other_providers_are_refused",
        applies: |_, _| true,
        run: |context| Box::pin(kinds_of_other_providers_are_refused(context)),
    },
    Case {
        name: "malformed_ids_are_refused",
        applies: |_, _| true,
        run: |context| Box::pin(malformed_ids_are_refused(context)),
    },
    Case {
        name: "a_spec_of_another_provider_is_refused",
        applies: |_, _| true,
        run: |context| Box::pin(a_spec_of_another_provider_is_refused(context)),
    },
];

/// Texts that are the id or name of no object, on any provider.
const MALFORMED: [&str; 15] = [
    "",
    " ",
    ".",
    "..",
    "../../etc",
    "a//b",
    "a?force=1",
    "a#b",
    "a b",
    "a\nb",
    "a\0b",
    "-x",
    "a%2fb",
    // As long as the id of a container.
    "a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/a?b/",
    "ä",
];

async fn kinds_of_other_providers_are_refused(context: &CaseContext) {
    let (_, id) = context.create().await;
    let own = context.provider().kinds();
    let foreign: Vec<Kind> = Kind::ALL.iter().copied().filter(|kind| !own.contains(kind)).collect();
    assert!(!foreign.is_empty());
    for &kind in &foreign {
        assert_all_refuse(context.provider(), kind, &id).await;
        let resource = ResourceId::new();
        let marks = Marks { kind, resource, name: resource.object_name() };
        assert_invalid(context.provider().find(&marks).await, &format!("find {kind}"));
    }
    let listed = context.provider().list(&foreign).await;
    assert!(listed.is_ok_and(|listed| listed.is_empty()), "a list of foreign kinds is empty");
    context.assert_exist(&[id]).await;
}

async fn malformed_ids_are_refused(context: &CaseContext) {
    let (_, id) = context.create().await;
    for &kind in context.provider().kinds() {
        for text in MALFORMED {
            assert_all_refuse(context.provider(), kind, text).await;
        }
    }
    context.assert_exist(&[id]).await;
}

/// Asserts that every call about one object is refused as invalid.
async fn assert_all_refuse(provider: Arc<dyn Provider>, kind: Kind, id: &str) {
    let call = |verb: &str| format!("{verb} {kind} {id:?}");
    assert_invalid(provider.inspect(kind, id).await, &call("inspect"));
    assert_invalid(provider.examine(kind, id).await, &call("examine"));
    assert_invalid(provider.verify(kind, id).await, &call("verify"));
    assert_invalid(provider.stop(kind, id, Duration::ZERO).await, &call("stop"));
    assert_invalid(provider.renew(kind, id).await, &call("renew"));
    let released = release(provider, kind, id, ReleaseMode::AT_ONCE).await;
    assert_invalid(released, &call("release"));
}

#[track_caller]
fn assert_invalid<T: Debug>(result: Result<T>, call: &str) {
    assert_eq!(class_of(result, call), ErrorClass::Invalid, "{call}");
}

async fn a_spec_of_another_provider_is_refused(context: &CaseContext) {
    use creel_model::provider::{
        ContainerSpec, NetworkSpec, ProcessSpec, SandboxSpec, Spec, VolumeSpec,
    };
    let all = [
        Spec::Container(ContainerSpec::default()),
        Spec::Network(NetworkSpec::default()),
        Spec::Volume(VolumeSpec::default()),
        Spec::Sandbox(SandboxSpec::default()),
        Spec::Process(ProcessSpec::default()),
        Spec::Directory,
        Spec::Disk { bytes: 1 << 30 },
    ];
    let provider = context.provider();
    let foreign = all.into_iter().filter(|spec| !provider.kinds().contains(&spec.kind()));
    for spec in foreign {
        let request = creel_model::provider::CreateRequest { spec, ..context.request() };
        let call = format!("create {}", request.spec.kind());
        assert_invalid(provider.create(&request).await, &call);
    }
}

async fn impossible_limits_are_refused_and_leave_nothing(context: &CaseContext) {
    let cpus = |cpus: f64| Limits { cpus: Some(cpus), ..Limits::default() };
    let impossible = [
        cpus(f64::NAN),
        cpus(f64::INFINITY),
        cpus(0.0),
        cpus(-1.0),
        cpus(1e-10),
        Limits { memory: Some(0), ..Limits::default() },
        Limits { processes: Some(0), ..Limits::default() },
    ];
    for limits in impossible {
        let request = context.request_with(limits.clone());
        assert_invalid(context.provider().create(&request).await, &format!("{limits:?}"));
        assert_eq!(context.found(&request).await, [""; 0], "{limits:?}");
    }
}
