//! Drift: what changed between the plan and the release.

use std::collections::BTreeSet;

use creel_model::provider::Observed;

use super::{Binding, PlanItem};

/// Returns how an object differs from what a kept plan recorded, if the difference matters.
///
/// Users that the same plan releases (`leaving`) are not a difference.
pub(crate) fn drift(
    planned: &PlanItem,
    now: &Observed,
    leaving: impl Fn(&str) -> bool,
) -> Option<String> {
    let before = &planned.seen;
    if planned.binding != Binding::Examined {
        return None;
    }
    if before.name != now.name {
        return Some(format!("its name is {} now, it was {}", now.name, before.name));
    }
    if before.state != now.state {
        return Some(format!("it is {} now, it was {}", now.state, before.state));
    }
    if before.generation != now.generation {
        return Some("it changed since the plan was made".to_owned());
    }
    let staying = |users: &[String]| -> BTreeSet<String> {
        users.iter().filter(|user| !leaving(user)).cloned().collect()
    };
    if staying(&before.users) != staying(&now.users) {
        return Some("others use it now than when the plan was made".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::selector::tests::container;

    fn planned(binding: Binding) -> PlanItem {
        let mut seen = container("a", "exited");
        seen.users = vec!["u1".to_owned()];
        PlanItem { seen, rule: String::new(), resource: None, binding, evidence: None }
    }

    fn drifts(binding: Binding, change: impl FnOnce(&mut Observed)) -> bool {
        let item = planned(binding);
        let mut now = item.seen.clone();
        change(&mut now);
        drift(&item, &now, |user| user == "leaver").is_some()
    }

    #[test]
    fn a_kept_plan_is_bound_to_everything_it_saw() {
        use Binding::{Examined, Identity, Selected};
        assert!(!drifts(Examined, |_| {}));
        assert!(drifts(Examined, |now| now.generation = "other".to_owned()));
        assert!(drifts(Examined, |now| now.state = "running".to_owned()));
        assert!(drifts(Examined, |now| now.name = "b".to_owned()));
        for binding in [Selected, Identity] {
            assert!(!drifts(binding, |now| now.state = "running".to_owned()));
        }
    }

    #[test]
    fn users_that_leave_with_the_plan_are_no_drift() {
        assert!(!drifts(Binding::Examined, |now| now.users.push("leaver".to_owned())));
        assert!(drifts(Binding::Examined, |now| now.users.push("newcomer".to_owned())));
        assert!(drifts(Binding::Examined, |now| now.users.clear()));
    }
}
