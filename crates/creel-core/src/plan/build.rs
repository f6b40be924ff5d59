//! Builds a plan from what was listed.

use std::collections::{HashMap, HashSet};

use creel_ledger::Record;
use creel_model::owner::Liveness;
use creel_model::provider::{Kind, Observed, ProviderError, Providers};
use futures::StreamExt;
use jiff::Timestamp;

use crate::recipe::{Finding, Findings, RecipeVerdict};
use crate::select::{LedgerChoice, Ownership, ProtectRule, RecordIndex, Selector, protection};

use super::{Binding, Plan, PlanItem, SparedItem, VERSION};

/// How many objects are examined at once.
const EXAMINE_CONCURRENCY: usize = 16;

/// The input of a plan.
#[derive(Debug)]
pub(crate) struct PlanInput<'a> {
    /// Everything that was listed.
    pub(crate) inventory: &'a [Observed],
    /// The records of the ledger.
    pub(crate) record_index: &'a RecordIndex,
    /// The selectors; an object is selected if one of them matches.
    pub(crate) selectors: &'a [Selector],
    /// The findings of a recipe, if one narrows the selectors.
    ///
    /// Objects without a finding are not selected, and objects not proven finished are spared.
    pub(crate) findings: Option<&'a Findings>,
    /// What is never released.
    pub(crate) protect: &'a [ProtectRule],
    /// Whether to release even what a live owner holds.
    pub(crate) force: bool,
    /// The present time.
    pub(crate) now: Timestamp,
}

/// Decides for every listed object whether it is released, and why a selected one is spared.
pub(crate) fn build(input: PlanInput<'_>) -> Plan {
    let mut chosen: Vec<PlanItem> = Vec::new();
    let mut spared: Vec<SparedItem> = Vec::new();
    for seen in input.inventory {
        let ownership = input.record_index.ownership(seen);
        let fits = |rule: &&Selector| rule.matches(seen, &ownership, input.now);
        let Some(selector) = input.selectors.iter().find(fits) else { continue };
        let finding = input.findings.map(|findings| findings.of(seen));
        if finding == Some(None) {
            continue;
        }
        let finding = finding.flatten();
        let rule = finding.map_or(&selector.rule, |finding| &finding.rule).clone();
        let seen = seen.clone();
        let refused = refusal(&input, selector, &seen, &ownership);
        match refused.or_else(|| unproven(finding)) {
            Some(reason) => spared.push(SparedItem { seen, rule, reason }),
            None => chosen.push(item(seen, rule, &ownership, finding)),
        }
    }
    let (mut items, in_use) = part_used(chosen, input.inventory);
    spared.extend(in_use);
    items.sort_by(|a, b| (a.seen.kind, &a.seen.name).cmp(&(b.seen.kind, &b.seen.name)));
    let listed = input.inventory.iter().filter(|seen| !seen.predefined).count();
    Plan { version: VERSION, made_at: input.now, identities: Vec::new(), listed, items, spared }
}

/// Makes an item. An object that a recipe proved finished was examined, and must not change until
/// it is released.
fn item(
    seen: Observed,
    rule: String,
    ownership: &Ownership,
    finding: Option<&Finding>,
) -> PlanItem {
    let resource = ownership.record().map(|record| record.id);
    let (binding, evidence) = match finding.map(|finding| &finding.verdict) {
        Some(RecipeVerdict::Finished(proof)) => (Binding::Examined, Some(proof.clone())),
        Some(RecipeVerdict::MayLive(_)) | None => (Binding::Selected, None),
    };
    PlanItem { seen, rule, resource, binding, evidence }
}

/// Returns what the proof lacks that an object has finished, if anything.
fn unproven(finding: Option<&Finding>) -> Option<String> {
    match &finding?.verdict {
        RecipeVerdict::Finished(_) => None,
        RecipeVerdict::MayLive(reason) => Some(reason.clone()),
    }
}

/// Returns why a selected object must not be released.
fn refusal(
    input: &PlanInput<'_>,
    selector: &Selector,
    seen: &Observed,
    ownership: &Ownership,
) -> Option<String> {
    if let Some(reason) = protection(input.protect, seen, input.now) {
        return Some(reason);
    }
    let is_kept = |record: &Record| record.is_kept_on_request(input.now);
    if selector.spares_kept && ownership.record().is_some_and(is_kept) {
        return Some("kept as its owner asked; --owned takes it too".to_owned());
    }
    if let Some(other) = selector.other_name(seen) {
        return Some(format!("it also has the name {other}, which is not selected"));
    }
    let (liveness, who) = match ownership {
        Ownership::Foreign => return None,
        Ownership::Ours { record, liveness } => {
            let owner = &record.owner;
            (*liveness, format!("pid {} ({})", owner.owner.process.pid, owner.command))
        }
        Ownership::Unrecorded { liveness, .. } | Ownership::Labelled { liveness } => {
            (*liveness, "the owner that its labels name".to_owned())
        }
        Ownership::OtherLedger { ledger, liveness } => {
            (*liveness, format!("an owner on ledger {ledger}"))
        }
    };
    let named_ledger = matches!(selector.ledger, Some(LedgerChoice::Id(_)));
    match liveness {
        Liveness::Dead => None,
        _ if input.force => None,
        Liveness::Alive => Some(format!("held by a live owner: {who}")),
        Liveness::Unknown if named_ledger => None,
        Liveness::Unknown => Some(format!("held by {who}, which cannot be judged from here")),
    }
}

/// Separates the items in use by an object that stays from those that can be released.
fn part_used(chosen: Vec<PlanItem>, inventory: &[Observed]) -> (Vec<PlanItem>, Vec<SparedItem>) {
    let going: HashSet<(Kind, String)> =
        chosen.iter().map(|item| (item.seen.kind, item.seen.id.clone())).collect();
    let mut used_by: HashMap<(Kind, &str), &Observed> = HashMap::new();
    for seen in inventory {
        if !going.contains(&(seen.kind, seen.id.clone())) {
            used_by.extend(seen.uses.iter().map(|(kind, id)| ((*kind, id.as_str()), seen)));
        }
    }
    let mut items = Vec::with_capacity(chosen.len());
    let mut spared = Vec::new();
    for item in chosen {
        let user_of = |reference| used_by.get(&(item.seen.kind, reference));
        let user = item.seen.references().find_map(user_of);
        match user {
            None => items.push(item),
            Some(user) => {
                let reason = format!("in use by {} {}, which stays", user.kind, user.name);
                spared.push(SparedItem { seen: item.seen, rule: item.rule, reason });
            }
        }
    }
    (items, spared)
}

/// Examines every item of a plan, so that it can be kept and applied later.
///
/// An item that was examined already stays bound to the result of that examination.
///
/// # Errors
///
/// Fails when a provider cannot be reached; an object that vanished is dropped from the plan.
pub(crate) async fn examine(plan: Plan, providers: &Providers) -> Result<Plan, ProviderError> {
    let examinations = plan.items.into_iter().map(|item| async move {
        if item.binding == Binding::Examined {
            return Ok(Some(item));
        }
        let provider = providers.get(item.seen.provider)?;
        let seen = provider.examine(item.seen.kind, &item.seen.id).await?;
        Ok(seen.map(|seen| PlanItem { seen, binding: Binding::Examined, ..item }))
    });
    let examined: Vec<Result<Option<PlanItem>, ProviderError>> =
        futures::stream::iter(examinations).buffered(EXAMINE_CONCURRENCY).collect().await;
    let items = examined.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
    Ok(Plan { items, ..plan })
}

#[cfg(test)]
mod tests {
    use creel_model::backend::Backend;
    use creel_model::provider::Preset;

    use super::*;
    use crate::select::preset_selectors;

    fn seen(kind: Kind, name: &str, state: &str) -> Observed {
        Observed {
            name: name.to_owned(),
            state: state.to_owned(),
            ..Observed::known_by_id(creel_docker::NAME, kind, format!("id-{name}"))
        }
    }

    fn plan_of(inventory: &[Observed], selectors: &[Selector]) -> Plan {
        build(PlanInput {
            inventory,
            record_index: &RecordIndex::default(),
            selectors,
            findings: None,
            protect: &[],
            force: false,
            now: Timestamp::UNIX_EPOCH,
        })
    }

    fn everything() -> [Selector; 1] {
        [Selector { rule: "all".to_owned(), all: true, ..Selector::default() }]
    }

    #[test]
    fn what_an_object_that_stays_uses_is_spared() {
        let mut user = seen(Kind::Container, "web", "running");
        user.uses = vec![(Kind::Network, "id-net".to_owned())];
        let inventory = [user, seen(Kind::Network, "net", "present")];
        let networks = [Selector { kinds: vec![Kind::Network], ..Selector::default() }];
        let plan = plan_of(&inventory, &networks);
        assert_eq!(plan.items.len(), 0);
        assert_eq!(plan.spared[0].reason, "in use by container web, which stays");
        assert_eq!(plan_of(&inventory, &everything()).items.len(), 2);
    }

    #[test]
    fn a_network_is_in_use_also_where_the_engine_reports_only_its_name() {
        let mut user = seen(Kind::Container, "web", "running");
        user.uses = vec![(Kind::Network, "net".to_owned())];
        let mut network = seen(Kind::Network, "net", "present");
        network.aliases = vec!["net".to_owned()];
        let inventory = [user, network];
        let networks = [Selector { kinds: vec![Kind::Network], ..Selector::default() }];
        assert_eq!(plan_of(&inventory, &networks).spared.len(), 1);
    }

    #[test]
    fn predefined_objects_are_spared_and_do_not_count() {
        let mut bridge = seen(Kind::Network, "bridge", "present");
        bridge.predefined = true;
        let plan = plan_of(&[bridge], &everything());
        assert_eq!((plan.listed, plan.items.len(), plan.spared.len()), (0, 0, 1));
    }

    #[test]
    fn the_first_rule_that_fits_is_named() {
        let inventory = [seen(Kind::Container, "a", "exited")];
        let rules = creel_docker::DockerBackend.preset_rules().iter();
        let rules = rules.map(|rule| (creel_docker::NAME, rule));
        let plan = plan_of(&inventory, &preset_selectors(Preset::Aggressive, rules));
        assert_eq!(plan.items[0].rule, "preset:aggressive/stopped");
    }
}
