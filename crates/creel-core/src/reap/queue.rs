//! The release queue: an object waits only for those that use it.
//!
//! Objects that others wait for are released first, then running ones, because they take longest.
//! An object that had to wait goes before those that were ready from the start. A sweep therefore
//! ends with many short releases in parallel, not with a few long ones.

use std::collections::{BTreeMap, HashMap, VecDeque};

use creel_model::provider::{Kind, ProviderName};

use crate::plan::PlanItem;

/// The items that may start now.
#[derive(Debug)]
pub(super) struct ReleaseQueue {
    /// Items that no unfinished item of the plan uses. Providers do not wait for each other.
    ready: BTreeMap<ProviderName, VecDeque<usize>>,
    /// The provider of each item.
    providers: Vec<ProviderName>,
    /// For each item, how many items of the plan still use it.
    users_left: Vec<usize>,
    /// For each item, the items it uses.
    used: Vec<Vec<usize>>,
}

impl ReleaseQueue {
    pub(super) fn of(items: &[PlanItem]) -> Self {
        // Match by name too: a container that never started knows its networks only by name.
        let mut places: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, PlanItem { seen, .. }) in items.iter().enumerate() {
            for reference in seen.references() {
                places.entry((seen.provider, seen.kind, reference)).or_default().push(index);
            }
        }
        let mut users_left = vec![0; items.len()];
        let mut used = vec![Vec::new(); items.len()];
        for (index, item) in items.iter().enumerate() {
            for (kind, id) in &item.seen.uses {
                let found = places.get(&(item.seen.provider, *kind, id.as_str()));
                for &place in found.into_iter().flatten().filter(|&&place| place != index) {
                    used[index].push(place);
                    users_left[place] += 1;
                }
            }
        }
        chain_names_of_one_image(items, &mut users_left, &mut used);
        let mut ready: Vec<usize> =
            (0..items.len()).filter(|&index| users_left[index] == 0).collect();
        ready.sort_by_key(|&index| (used[index].is_empty(), !items[index].seen.is_running()));
        let providers: Vec<ProviderName> = items.iter().map(|item| item.seen.provider).collect();
        let mut queues: BTreeMap<ProviderName, VecDeque<usize>> = BTreeMap::new();
        for index in ready {
            queues.entry(providers[index]).or_default().push_back(index);
        }
        Self { ready: queues, providers, users_left, used }
    }

    /// Takes the next item that may start at a provider that accepts requests now.
    pub(super) fn take(&mut self, may_start: impl Fn(ProviderName) -> bool) -> Option<usize> {
        let mut queues = self.ready.iter_mut().filter(|(name, _)| may_start(**name));
        queues.find_map(|(_, queue)| queue.pop_front())
    }

    /// Returns the providers at which an item may start.
    pub(super) fn ready(&self) -> impl Iterator<Item = ProviderName> {
        self.ready.iter().filter(|(_, queue)| !queue.is_empty()).map(|(name, _)| *name)
    }

    /// Marks an item as done, and makes items ready that waited only for it, whatever its outcome.
    pub(super) fn done(&mut self, index: usize) {
        for place in std::mem::take(&mut self.used[index]) {
            self.users_left[place] -= 1;
            if self.users_left[place] == 0 {
                self.ready.entry(self.providers[place]).or_default().push_front(place);
            }
        }
    }
}

/// Serializes the releases of one image's names, and puts them before the image itself.
///
/// Engines fail when two names of one image are removed at once. The image itself stays while it
/// has a name that is not ours.
fn chain_names_of_one_image(items: &[PlanItem], users_left: &mut [usize], used: &mut [Vec<usize>]) {
    let mut last = HashMap::new();
    let mut images: Vec<(usize, &PlanItem)> =
        items.iter().enumerate().filter(|(_, item)| item.seen.kind == Kind::Image).collect();
    images.sort_by_key(|(_, item)| item.seen.references().count() == 1);
    for (index, PlanItem { seen, .. }) in images {
        let image = seen.references().last().unwrap_or(&seen.id);
        if let Some(before) = last.insert((seen.provider, image), index) {
            used[before].push(index);
            users_left[index] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use creel_model::provider::Activity;

    use super::*;
    use crate::plan::Binding;
    use crate::select::selector::tests::container;

    fn item(kind: Kind, id: &str, uses: &[(Kind, &str)]) -> PlanItem {
        let mut seen = container(id, "exited");
        seen.kind = kind;
        seen.id = id.to_owned();
        seen.uses = uses.iter().map(|(kind, id)| (*kind, (*id).to_owned())).collect();
        PlanItem {
            seen,
            rule: String::new(),
            resource: None,
            binding: Binding::Selected,
            evidence: None,
        }
    }

    #[test]
    fn a_network_waits_for_its_containers_and_for_no_other() {
        let items = [
            item(Kind::Container, "c1", &[(Kind::Network, "n1")]),
            item(Kind::Container, "c2", &[(Kind::Network, "n2")]),
            item(Kind::Network, "n1", &[]),
            item(Kind::Network, "n2", &[]),
            item(Kind::Network, "n3", &[]),
        ];
        let mut queue = ReleaseQueue::of(&items);
        let take_all = |queue: &mut ReleaseQueue| {
            std::iter::from_fn(|| queue.take(|_| true)).collect::<Vec<_>>()
        };
        assert_eq!(take_all(&mut queue), [0, 1, 4]);
        queue.done(1);
        assert_eq!(take_all(&mut queue), [3]);
        queue.done(0);
        assert_eq!(take_all(&mut queue), [2]);
    }

    #[test]
    fn a_network_waits_for_a_container_that_knows_it_only_by_name() {
        let mut network = item(Kind::Network, "n1", &[]);
        network.seen.aliases = vec!["backend".to_owned()];
        let items = [network, item(Kind::Container, "c1", &[(Kind::Network, "backend")])];
        let mut queue = ReleaseQueue::of(&items);
        assert_eq!((queue.take(|_| true), queue.take(|_| true)), (Some(1), None));
        queue.done(1);
        assert_eq!(queue.take(|_| true), Some(0));
    }

    #[test]
    fn names_of_one_image_are_released_sequentially() {
        let named_item = |name: &str, image: &str| {
            let mut item = item(Kind::Image, name, &[]);
            item.seen.aliases = vec![image.to_owned()];
            item
        };
        let items = [named_item("a:1", "i"), named_item("b:1", "i"), named_item("c:1", "other")];
        let mut queue = ReleaseQueue::of(&items);
        let popped = [queue.take(|_| true), queue.take(|_| true), queue.take(|_| true)];
        assert_eq!(popped, [Some(0), Some(2), None]);
        queue.done(0);
        assert_eq!(queue.take(|_| true), Some(1));
    }

    #[test]
    fn dependencies_are_released_first_and_then_running_containers() {
        let mut running = item(Kind::Container, "running", &[]);
        running.seen.activity = Activity::Running;
        let items = [
            item(Kind::Container, "exited", &[]),
            running,
            item(Kind::Container, "joined", &[(Kind::Network, "n")]),
            item(Kind::Network, "n", &[]),
        ];
        let mut queue = ReleaseQueue::of(&items);
        assert_eq!(queue.take(|_| true), Some(2));
        assert_eq!(queue.take(|_| true), Some(1));
        queue.done(2);
        assert_eq!(queue.take(|_| true), Some(3));
        assert_eq!(queue.take(|_| true), Some(0));
    }
}
