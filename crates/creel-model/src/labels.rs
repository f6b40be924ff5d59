//! The labels that identify an object without the ledger.
//!
//! Labels are inherited (a container takes those of its image), so a label alone never proves
//! ownership. The ledger must have a record of the resource, and the recorded id must match where
//! one was recorded.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{LedgerId, ResourceId, RunId};
use crate::owner::Owner;

/// Labels as every provider shows them: a small map, sorted by key.
///
/// A listing holds thousands of them. All text of one map is therefore stored contiguously, and
/// clones share it. Reads are cheap; every change rebuilds the map.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// The keys and values in alternation, sorted by key.
    text: Arc<str>,
    /// The end offset of each key and value in the text.
    ends: Arc<[u32]>,
}

impl Labels {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of labels.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Returns whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find_map(|(known, value)| (known == key).then_some(value))
    }

    /// Returns whether a key exists, with any value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: impl AsRef<str>, value: impl AsRef<str>) {
        self.extend([(key, value)]);
    }

    /// Returns all keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.len()).map(|place| (self.piece(place * 2), self.piece(place * 2 + 1)))
    }

    fn piece(&self, place: usize) -> &str {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[place] as usize]
    }

    fn pack<K: AsRef<str>, V: AsRef<str>>(pairs: &BTreeMap<K, V>) -> Self {
        let pieces = || pairs.iter().flat_map(|(key, value)| [key.as_ref(), value.as_ref()]);
        let text: String = pieces().collect();
        let ends = pieces().scan(0, |end, piece| {
            *end += piece.len();
            Some(u32::try_from(*end).expect("no engine sends labels of four gigabytes"))
        });
        Self { ends: ends.collect(), text: text.into() }
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Extend<(K, V)> for Labels {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, more: I) {
        let more: Vec<(K, V)> = more.into_iter().collect();
        let more = more.iter().map(|(key, value)| (key.as_ref(), value.as_ref()));
        let all: BTreeMap<&str, &str> = self.iter().chain(more).collect();
        *self = Self::pack(&all);
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut labels = Self::new();
        labels.extend(pairs);
        labels
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> From<[(K, V); N]> for Labels {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs: BTreeMap<String, String> = BTreeMap::deserialize(deserializer)?;
        Ok(Self::pack(&pairs))
    }
}

/// The resource id, which is unique per create and serves as its nonce.
pub const RESOURCE: &str = "dev.creel.resource";
/// The run that the resource was acquired for.
pub const RUN: &str = "dev.creel.run";
/// The owner, as [`Owner`] prints itself.
pub const OWNER: &str = "dev.creel.owner";
/// The ledger that recorded the intent.
pub const LEDGER: &str = "dev.creel.ledger";
/// The id of the image that a reference named before. Only the record of an image reference has it.
pub const REPLACED_IMAGE: &str = "dev.creel.replaced-image";
/// Protects an object from every release. Any value except `false` protects.
pub const PROTECT: &str = "dev.creel.protect";
/// The name of the bridge program that was installed in this sandbox.
pub const BRIDGE: &str = "dev.creel.bridge";
/// The file in a container whose changes show the holder inside that the owner is alive.
pub const LEASE_FILE: &str = "dev.creel.lease-file";
/// The Compose project an object belongs to.
pub const COMPOSE_PROJECT: &str = "com.docker.compose.project";
/// The directory of a Compose project, as Compose records it.
pub const COMPOSE_DIRECTORY: &str = "com.docker.compose.project.working_dir";

/// Returns the labels that every create carries.
pub fn of_resource(
    resource: &ResourceId,
    ledger: &LedgerId,
    owner: &Owner,
    run: Option<&RunId>,
) -> Labels {
    let mut labels = Labels::from([
        (RESOURCE, resource.to_string()),
        (LEDGER, ledger.to_string()),
        (OWNER, owner.to_string()),
    ]);
    if let Some(run) = run {
        labels.insert(RUN, run.to_string());
    }
    labels
}

/// Returns whether the labels request protection.
pub fn protects(labels: &Labels) -> bool {
    labels.get(PROTECT).is_some_and(|value| value != "false")
}

/// Returns the resource id that the labels claim, if it is valid.
pub fn claimed_resource(labels: &Labels) -> Option<ResourceId> {
    labels.get(RESOURCE)?.parse().ok()
}

/// Returns the run that the labels claim, if it is valid.
pub fn claimed_run(labels: &Labels) -> Option<RunId> {
    labels.get(RUN)?.parse().ok()
}

/// Returns the owner that the labels claim, if it is valid.
pub fn claimed_owner(labels: &Labels) -> Option<Owner> {
    labels.get(OWNER)?.parse().ok()
}

/// Returns the ledger that the labels claim, if it is valid.
pub fn claimed_ledger(labels: &Labels) -> Option<LedgerId> {
    labels.get(LEDGER)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_map_has_nothing() {
        let labels = Labels::new();
        assert_eq!((labels.len(), labels.get("")), (0, None));
        assert!(labels.is_empty() && !labels.contains_key(""));
        assert_eq!(format!("{labels:?}"), "{}");
    }

    #[test]
    fn equal_texts_with_other_borders_are_other_labels() {
        assert_ne!(Labels::from([("ab", "c")]), Labels::from([("a", "bc")]));
        assert_eq!(Labels::from([("b", "2"), ("a", "1")]), Labels::from([("a", "1"), ("b", "2")]));
    }

    #[test]
    fn a_change_leaves_clones_as_they_were() {
        let before = Labels::from([("a", "1"), ("b", "2")]);
        let mut after = before.clone();
        after.insert("a", "9");
        assert_eq!((before.get("a"), after.get("a"), after.len()), (Some("1"), Some("9"), 2));
    }

    proptest! {
        #[test]
        fn they_behave_like_a_map(
            first in prop::collection::btree_map(".{0,3}", ".*", 0..6),
            more in prop::collection::vec((".{0,3}", ".*"), 0..6),
        ) {
            let mut map = first.clone();
            map.extend(more.clone());
            let mut labels: Labels = first.into_iter().collect();
            labels.extend(more.clone());
            let borrowed: Vec<(&str, &str)> =
                map.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            prop_assert_eq!(labels.iter().collect::<Vec<_>>(), borrowed);
            prop_assert_eq!(labels.len(), map.len());
            for (key, _) in &more {
                prop_assert_eq!(labels.get(key), map.get(key).map(String::as_str));
            }
            let json = serde_json::to_string(&labels).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&map).unwrap());
            prop_assert_eq!(serde_json::from_str::<Labels>(&json).unwrap(), labels);
        }
    }
}
