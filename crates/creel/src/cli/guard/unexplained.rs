//! Finds what appeared while the command ran, and may be its own without being on record.
//!
//! Containers, networks, sandboxes and named volumes that were made through the guard carry its
//! label. One without the label was made by another client. Images and anonymous volumes carry no
//! label. Only a record explains them, or another owner's container that uses them.

use std::collections::HashSet;

use creel_ledger::Record;
use creel_model::certificate::CertificateEntry;
use creel_model::id::RunId;
use creel_model::labels;
use creel_model::provider::{Kind, Observed, ProviderName};

/// What is known when the command has ended.
pub(super) struct Unexplained<'a> {
    /// The run whose label everything made by the command carries.
    pub(super) run: RunId,
    /// Whether the user wants images to stay.
    pub(super) images_stay: bool,
    /// All open records of the ledger, of any owner.
    pub(super) known: &'a [Record],
    /// What exists now.
    pub(super) inventory: &'a [Observed],
}

impl Unexplained<'_> {
    /// Returns the objects that nothing explains.
    pub(super) fn among(&self, appeared: Vec<&Observed>) -> Vec<CertificateEntry> {
        let objects: HashSet<(ProviderName, Kind, &str)> = self
            .known
            .iter()
            .filter_map(|record| Some((record.provider, record.kind, record.state.object()?)))
            .collect();
        let is_on_record = |seen: &Observed| {
            let names = seen.references().chain(seen.tags.iter().map(String::as_str));
            names.into_iter().any(|name| objects.contains(&(seen.provider, seen.kind, name)))
        };
        let is_unexplained = |seen: &&&Observed| !is_on_record(seen) && self.may_be_ours(seen);
        appeared.iter().filter(is_unexplained).map(|seen| CertificateEntry::of(seen)).collect()
    }

    fn may_be_ours(&self, seen: &Observed) -> bool {
        let run = self.run.to_string();
        let is_labelled = |seen: &Observed| seen.labels.get(labels::RUN) == Some(run.as_str());
        let is_used_by_others = |seen: &Observed| {
            self.inventory.iter().any(|user| {
                !is_labelled(user)
                    && user.uses.iter().any(|(kind, id)| (*kind, id) == (seen.kind, &seen.id))
            })
        };
        match seen.kind {
            Kind::Image => !self.images_stay && !is_used_by_others(seen),
            Kind::Volume => {
                is_labelled(seen) || (seen.state == "anonymous" && !is_used_by_others(seen))
            }
            Kind::Container | Kind::Network | Kind::Sandbox => is_labelled(seen),
            // Processes and directories of other owners are kept in separate homes.
            Kind::Process | Kind::Directory => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use creel_model::labels::Labels;

    use super::*;

    fn seen(kind: Kind, id: &str) -> Observed {
        Observed::known_by_id(creel_docker::NAME, kind, id)
    }

    /// Returns the ids of the unexplained objects in an inventory.
    fn unexplained(inventory: &[Observed], run: RunId, images_stay: bool) -> Vec<String> {
        let known = Unexplained { run, images_stay, known: &[], inventory };
        known.among(inventory.iter().collect()).into_iter().map(|entry| entry.id).collect()
    }

    #[test]
    fn labelled_objects_images_and_anonymous_volumes_are_unexplained() {
        let run = RunId::new();
        let labels = Labels::from([(labels::RUN, run.to_string())]);
        let others = Labels::from([(labels::RUN, RunId::new().to_string())]);
        let ours = Observed { labels, ..seen(Kind::Container, "ours") };
        let theirs = Observed { labels: others, ..seen(Kind::Container, "theirs") };
        let inventory = [
            ours.clone(),
            theirs.clone(),
            seen(Kind::Network, "plain"),
            seen(Kind::Image, "image"),
            Observed { state: "anonymous".to_owned(), ..seen(Kind::Volume, "anonymous") },
            seen(Kind::Volume, "named"),
            seen(Kind::Directory, "directory"),
        ];
        assert_eq!(unexplained(&inventory, run, false), ["ours", "image", "anonymous"]);
        assert_eq!(unexplained(&inventory, run, true), ["ours", "anonymous"]);
        let uses = vec![(Kind::Image, "image".to_owned()), (Kind::Volume, "anonymous".to_owned())];
        let mut used = inventory;
        used[1] = Observed { uses: uses.clone(), ..theirs };
        assert_eq!(unexplained(&used, run, false), ["ours"], "a foreign container uses them");
        used[1] = Observed { uses, ..ours };
        assert_eq!(unexplained(&used, run, false), ["ours", "ours", "image", "anonymous"]);
    }
}
