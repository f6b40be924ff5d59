//! Identity: what distinguishes an object from a replacement that took its name.
//!
//! # How to use it
//!
//! - A provider fills [`Observed::identity`](super::Observed::identity) in `inspect` (and in `list`
//!   where that costs nothing). An id that is never reused needs nothing: `None` there means
//!   [`Identity::Id`] of `Observed::id` for containers, networks, sandboxes and process trees, and
//!   a provider must not fill in anything else for these kinds.
//! - The code that records a create passes the identity with the event: `Event::Created { object,
//!   identity }` and `Event::Found { object, identity }`. A later event of the same object with
//!   another identity replaces the recorded one (a tag that the same command moved again).
//!   [`Supervisor`](creel_core::scope::Supervisor) does this by itself, with one `inspect` after the
//!   create of a kind whose names can be reused.
//! - [`Identity::compare`] is the only comparison, and
//!   [`Record::check`](creel_ledger::Record::check) applies it to a record, also to one that
//!   an older version wrote without an identity. The reaper does that right before every
//!   `Provider::release`, and again before every retry. `Replaced` closes the record and spares
//!   the object; `Unproven` quarantines the record and keeps the object.
//! - To release one record outside a plan, call
//!   [`Pipeline::release_record`](creel_core::pipeline::Pipeline::release_record). Nothing else may call
//!   `Provider::release`, because that function also writes the audit row.
//! - A provider that can compare and delete in one step reads [`ReleaseMode::expected`] and returns
//!   [`Released::Kept`] where the object is not the expected one.
//!
//! The stored form is JSON with a tag. New variants and new optional fields may be added;
//! existing ones keep their meaning.
//!
//! [`ReleaseMode::expected`]: super::ReleaseMode::expected
//! [`Released::Kept`]: super::Released::Kept

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::ResourceId;

/// What distinguishes an object from a replacement that took its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Identity {
    /// The provider's id, which is never reused: containers, networks, sandboxes, process trees.
    Id {
        /// The id.
        id: String,
    },
    /// A volume: its name can be reused.
    Volume {
        /// Its name.
        name: String,
        /// The value of our per-create label, if the volume carries one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resource: Option<ResourceId>,
        /// Whether the engine generated the name: 64 random hexadecimal digits.
        #[serde(default)]
        engine_made: bool,
        /// The creation time that the engine reports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        created_at: Option<Timestamp>,
        /// Whether that time never changes on this engine; before API 1.42 a write moves it.
        #[serde(default)]
        created_at_is_stable: bool,
    },
    /// A reference of an image. It can be moved to another image, and back.
    Tag {
        /// The reference, as the engine writes it.
        reference: String,
        /// The id of the image it names.
        image: String,
        /// `Metadata.LastTagTime` of that image; every new tag on the image changes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tagged_at: Option<Timestamp>,
        /// Whether the image itself is ours too, so that it may be deleted with its last reference.
        #[serde(default)]
        image_is_ours: bool,
        /// All references of the image.
        #[serde(default)]
        tags: BTreeSet<String>,
        /// The image that the reference named before. The reference moves back to it on release.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
    },
    /// An image by its id, which recurs when the same content is built again.
    Image {
        /// The id.
        id: String,
        /// Its references. In a record these are our references; in an observation, all references.
        #[serde(default)]
        tags: BTreeSet<String>,
        /// `Metadata.LastTagTime`. While the image has a name, it must equal the recorded time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tagged_at: Option<Timestamp>,
    },
    /// A directory: its path can be created again.
    Directory {
        /// The device it is on.
        device: u64,
        /// Its inode, which the file system may reuse for another directory.
        inode: u64,
        /// When the inode was created, where the file system reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        born_at: Option<Timestamp>,
        /// The file system's handle of the inode, where it reports no time and has handles.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handle: Option<String>,
    },
    /// Only our own records of the object are left. Never recorded, only observed.
    Traces,
    /// A control group by its inode; the kernel numbers these in sequence.
    ControlGroup {
        /// The inode of its directory.
        inode: u64,
    },
}

/// The result of comparing a recorded identity with an observed one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum IdentityCheck {
    /// It is the recorded object.
    Same {
        /// The evidence, for the audit.
        evidence: String,
    },
    /// Another object has its name or place; ours is gone.
    Replaced {
        /// The evidence for that.
        why: String,
    },
    /// Nothing proves that it is the recorded object, or that it is not.
    Unproven {
        /// What is missing.
        why: String,
    },
}

impl IdentityCheck {
    fn same(evidence: impl Into<String>) -> Self {
        Self::Same { evidence: evidence.into() }
    }

    fn replaced(why: impl Into<String>) -> Self {
        Self::Replaced { why: why.into() }
    }

    fn unproven(why: impl Into<String>) -> Self {
        Self::Unproven { why: why.into() }
    }
}

impl Identity {
    /// Creates the identity of an object whose id is never reused.
    pub fn id(id: impl Into<String>) -> Self {
        Self::Id { id: id.into() }
    }

    /// Creates the identity of an image that has no name.
    pub fn nameless_image(id: impl Into<String>) -> Self {
        Self::Image { id: id.into(), tags: BTreeSet::new(), tagged_at: None }
    }

    /// Returns the identity of a reference or an image after another name was put on the image.
    pub fn tagged_again(mut self, at: Timestamp) -> Self {
        if let Self::Tag { tagged_at, .. } | Self::Image { tagged_at, .. } = &mut self {
            *tagged_at = Some(at);
        }
        self
    }

    /// Returns the identity of one of our references, in the form that is recorded.
    ///
    /// It holds the image that the reference named before. It drops the other names of the image,
    /// because they may belong to another user.
    pub fn of_our_reference(mut self, before: Option<String>) -> Self {
        if let Self::Tag { reference, replaces, tags, .. } = &mut self {
            *replaces = before;
            *tags = BTreeSet::from([reference.clone()]);
        }
        self
    }

    /// Returns the identity of one of our images with one more of our names.
    pub fn with_tag(mut self, reference: &str) -> Self {
        if let Self::Image { tags, .. } = &mut self {
            tags.insert(reference.to_owned());
        }
        self
    }

    /// Returns whether the provider's name for the object can lead to another object later.
    ///
    /// Such an object must be inspected again right before a release.
    pub const fn can_be_replaced(&self) -> bool {
        match self {
            Self::Id { .. } => false,
            Self::Volume { .. }
            | Self::Tag { .. }
            | Self::Image { .. }
            | Self::Directory { .. }
            | Self::Traces
            | Self::ControlGroup { .. } => true,
        }
    }

    /// Compares the recorded identity with the observed one.
    ///
    /// Total and pure: every pair has a result, and a pair of different variants is unproven.
    pub fn compare(recorded: &Self, observed: &Self) -> IdentityCheck {
        match (recorded, observed) {
            (_, Self::Traces) => IdentityCheck::same("only our own records of it are left"),
            (Self::Id { id: ours }, Self::Id { id: seen }) => {
                if ours == seen {
                    IdentityCheck::same(format!("its id {ours} is on record"))
                } else {
                    IdentityCheck::replaced(format!("its id is {seen}, ours was {ours}"))
                }
            }
            (Self::Volume { .. }, Self::Volume { .. }) => compare_volumes(recorded, observed),
            (Self::Tag { .. }, Self::Tag { .. }) => compare_tags(recorded, observed),
            (
                Self::Image { id: ours, tags, tagged_at },
                Self::Image { id, tags: seen, tagged_at: seen_at },
            ) => compare_images((ours, tags, *tagged_at), (id, seen, *seen_at)),
            (Self::Directory { .. }, Self::Directory { .. }) => {
                compare_directories(recorded, observed)
            }
            (Self::ControlGroup { inode }, Self::ControlGroup { inode: seen }) => {
                if inode == seen {
                    IdentityCheck::same(format!("its inode {inode} is on record"))
                } else {
                    IdentityCheck::replaced(format!("its inode is {seen}, ours was {inode}"))
                }
            }
            (
                Self::Id { .. }
                | Self::Volume { .. }
                | Self::Tag { .. }
                | Self::Image { .. }
                | Self::Directory { .. }
                | Self::Traces
                | Self::ControlGroup { .. },
                _,
            ) => IdentityCheck::unproven(
                "what is on record of it cannot be compared with what was seen",
            ),
        }
    }
}

fn compare_volumes(recorded: &Identity, observed: &Identity) -> IdentityCheck {
    let (
        Identity::Volume { name, resource, engine_made, created_at, created_at_is_stable },
        Identity::Volume {
            name: seen_name,
            resource: seen_resource,
            created_at: seen_at,
            created_at_is_stable: seen_is_stable,
            ..
        },
    ) = (recorded, observed)
    else {
        return IdentityCheck::unproven("it is not a volume");
    };
    if name != seen_name {
        return IdentityCheck::replaced(format!("it is the volume {seen_name}, ours was {name}"));
    }
    if let Some(ours) = resource
        && seen_resource.as_ref() != Some(ours)
    {
        return IdentityCheck::replaced(match seen_resource {
            Some(other) => {
                format!("the volume of that name carries the label of {other}, not ours")
            }
            None => "the volume of that name was created again without our label".to_owned(),
        });
    }
    let is_stable = *created_at_is_stable && *seen_is_stable;
    match (created_at, seen_at) {
        (Some(ours), Some(seen)) if is_stable && ours != seen => {
            return IdentityCheck::replaced(format!(
                "the volume of that name was created at {seen}, ours at {ours}"
            ));
        }
        // A write moves such a time forward, and unpacking an archive may move it backward.
        (Some(ours), Some(seen)) if seen < ours => {
            return IdentityCheck::unproven(format!(
                "the volume of that name was created at {seen}, before ours ({ours})"
            ));
        }
        _ => {}
    }
    let is_proven_by_time = is_stable && created_at.is_some() && created_at == seen_at;
    match (resource, engine_made) {
        (Some(resource), _) => IdentityCheck::same(format!("it carries the label of {resource}")),
        (None, true) => IdentityCheck::same("the engine made up its name for a container of ours"),
        (None, false) if is_proven_by_time => {
            IdentityCheck::same("it was created when ours was created")
        }
        (None, false) => IdentityCheck::unproven(
            "the volume of that name carries no label of ours, and this engine does not tell \
             when it was created",
        ),
    }
}

fn compare_tags(recorded: &Identity, observed: &Identity) -> IdentityCheck {
    let (
        Identity::Tag { reference, image, tagged_at, image_is_ours, replaces, .. },
        Identity::Tag {
            reference: seen_reference,
            image: seen_image,
            tagged_at: seen_at,
            tags: seen_tags,
            ..
        },
    ) = (recorded, observed)
    else {
        return IdentityCheck::unproven("it is not a tag");
    };
    if reference != seen_reference {
        return IdentityCheck::replaced(format!("it is {seen_reference}, ours was {reference}"));
    }
    if image != seen_image {
        return IdentityCheck::replaced(format!(
            "{reference} names the image {seen_image} now, ours was {image}"
        ));
    }
    let (Some(ours), Some(seen)) = (tagged_at, seen_at) else {
        return IdentityCheck::unproven(format!(
            "it is not known when {reference} was put on its image"
        ));
    };
    if ours != seen {
        return IdentityCheck::unproven(format!(
            "its image was tagged again at {seen}, after our tag of {ours}"
        ));
    }
    let is_last = seen_tags.iter().all(|tag| tag == reference);
    // A reference that moves back to its previous image deletes no image.
    if is_last && !image_is_ours && replaces.is_none() {
        return IdentityCheck::unproven(format!(
            "with {reference} its image would go, which is not on record as ours"
        ));
    }
    IdentityCheck::same(format!("it names {image} since {ours}, as recorded"))
}

fn compare_images(
    (ours, tags, tagged_at): (&str, &BTreeSet<String>, Option<Timestamp>),
    (seen, seen_tags, seen_at): (&str, &BTreeSet<String>, Option<Timestamp>),
) -> IdentityCheck {
    if ours != seen {
        return IdentityCheck::replaced(format!("its id is {seen}, ours was {ours}"));
    }
    match seen_tags.difference(tags).next() {
        Some(foreign) => IdentityCheck::unproven(format!(
            "it has the name {foreign}, which is not on record as ours"
        )),
        None if !seen_tags.is_empty() && (tagged_at.is_none() || tagged_at != seen_at) => {
            IdentityCheck::unproven("it was tagged again after the names on record")
        }
        None => IdentityCheck::same(format!("its id {ours} and all its names are on record")),
    }
}

fn compare_directories(recorded: &Identity, observed: &Identity) -> IdentityCheck {
    let (
        Identity::Directory { device, inode, born_at, handle },
        Identity::Directory {
            device: seen_device,
            inode: seen_inode,
            born_at: seen_born_at,
            handle: seen_handle,
        },
    ) = (recorded, observed)
    else {
        return IdentityCheck::unproven("it is not a directory");
    };
    if (device, inode) != (seen_device, seen_inode) {
        return IdentityCheck::replaced(format!(
            "it is the inode {seen_device}:{seen_inode}, ours was {device}:{inode}"
        ));
    }
    match (born_at, seen_born_at) {
        (Some(ours), Some(seen)) if ours != seen => {
            IdentityCheck::replaced(format!("it was made at {seen}, ours at {ours}"))
        }
        (Some(_), None) => {
            IdentityCheck::unproven("the file system no longer reports when it was made")
        }
        (Some(ours), Some(_)) => {
            IdentityCheck::same(format!("its inode {device}:{inode}, made at {ours}, is on record"))
        }
        (None, _) => match (handle, seen_handle) {
            (Some(ours), Some(seen)) if ours != seen => {
                IdentityCheck::replaced(format!("its file handle is {seen}, ours was {ours}"))
            }
            (Some(ours), Some(_)) => {
                IdentityCheck::same(format!("its file handle {ours} is on record"))
            }
            // The number of a removed inode is given to the next one.
            _ => IdentityCheck::unproven(format!(
                "the inode {device}:{inode} is on record, and neither its birth time nor its file \
                 handle"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Option<Timestamp> {
        Timestamp::from_second(second).ok()
    }

    fn volume(resource: Option<ResourceId>, created_at: i64, stable: bool) -> Identity {
        Identity::Volume {
            name: "pgdata".to_owned(),
            resource,
            engine_made: false,
            created_at: at(created_at),
            created_at_is_stable: stable,
        }
    }

    fn tag(image: &str, tagged_at: Option<Timestamp>, ours: bool, tags: &[&str]) -> Identity {
        Identity::Tag {
            reference: "app:1".to_owned(),
            image: image.to_owned(),
            tagged_at,
            image_is_ours: ours,
            tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            replaces: None,
        }
    }

    fn is_same(recorded: &Identity, observed: &Identity) -> bool {
        matches!(Identity::compare(recorded, observed), IdentityCheck::Same { .. })
    }

    fn is_replaced(recorded: &Identity, observed: &Identity) -> bool {
        matches!(Identity::compare(recorded, observed), IdentityCheck::Replaced { .. })
    }

    fn is_unproven(recorded: &Identity, observed: &Identity) -> bool {
        matches!(Identity::compare(recorded, observed), IdentityCheck::Unproven { .. })
    }

    #[test]
    fn a_volume_is_known_by_the_label_of_its_create() {
        let ours = Some(ResourceId::new());
        assert!(is_same(&volume(ours, 5, false), &volume(ours, 9, false)));
        assert!(is_replaced(&volume(ours, 5, false), &volume(None, 9, false)));
        assert!(is_replaced(&volume(ours, 5, false), &volume(Some(ResourceId::new()), 5, false)));
    }

    #[test]
    fn a_copied_label_does_not_help_where_the_time_of_a_volume_is_stable() {
        let ours = Some(ResourceId::new());
        assert!(is_same(&volume(ours, 5, true), &volume(ours, 5, true)));
        assert!(is_replaced(&volume(ours, 5, true), &volume(ours, 9, true)));
        assert!(is_unproven(&volume(ours, 5, false), &volume(ours, 4, false)));
    }

    #[test]
    fn a_volume_without_a_label_is_proven_by_a_stable_time_alone() {
        assert!(is_same(&volume(None, 5, true), &volume(None, 5, true)));
        assert!(is_unproven(&volume(None, 5, false), &volume(None, 5, false)));
    }

    #[test]
    fn a_tag_is_known_by_its_image_and_by_when_it_was_tagged() {
        let ours = tag("i1", at(5), true, &["app:1"]);
        assert!(is_same(&ours, &tag("i1", at(5), false, &["app:1"])));
        assert!(is_replaced(&ours, &tag("i2", at(5), false, &["app:1"])));
        assert!(is_unproven(&ours, &tag("i1", at(6), false, &["app:1"])));
        assert!(is_unproven(&ours, &tag("i1", None, false, &["app:1"])));
        assert!(is_unproven(&tag("i1", None, true, &[]), &tag("i1", at(5), false, &["app:1"])));
    }

    #[test]
    fn the_last_tag_of_an_image_that_is_not_ours_stays() {
        let ours = tag("i1", at(5), false, &[]);
        assert!(is_unproven(&ours, &tag("i1", at(5), false, &["app:1"])));
        assert!(is_same(&ours, &tag("i1", at(5), false, &["app:1", "theirs:1"])));
    }

    #[test]
    fn an_image_is_ours_while_all_its_names_are() {
        let image_at = |tags: &[&str], second: i64| Identity::Image {
            id: "i1".to_owned(),
            tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            tagged_at: at(second),
        };
        let image = |tags: &[&str]| image_at(tags, 5);
        assert!(is_same(&image(&["a:1", "b:1"]), &image(&["a:1"])));
        assert!(is_unproven(&image(&["a:1"]), &image_at(&["a:1"], 6)));
        assert!(is_same(&image(&["a:1"]), &image_at(&[], 6)));
        assert!(is_same(&image(&[]), &image(&[])));
        assert!(is_unproven(&image(&[]), &image(&["theirs:1"])));
    }

    #[test]
    fn a_recreated_directory_is_another_one_even_with_the_same_inode() {
        let directory =
            |inode, born_at| Identity::Directory { device: 1, inode, born_at, handle: None };
        assert!(is_same(&directory(7, at(5)), &directory(7, at(5))));
        assert!(is_replaced(&directory(7, at(5)), &directory(8, at(5))));
        assert!(is_replaced(&directory(7, at(5)), &directory(7, at(6))));
        assert!(is_unproven(&directory(7, at(5)), &directory(7, None)));
    }

    #[test]
    fn without_a_birth_time_the_file_handle_decides() {
        let directory = |handle: Option<&str>| Identity::Directory {
            device: 1,
            inode: 7,
            born_at: None,
            handle: handle.map(str::to_owned),
        };
        assert!(is_same(&directory(Some("1:a")), &directory(Some("1:a"))));
        assert!(is_replaced(&directory(Some("1:a")), &directory(Some("1:b"))));
        assert!(is_unproven(&directory(Some("1:a")), &directory(None)));
        assert!(is_unproven(&directory(None), &directory(None)), "inode numbers are reused");
        assert!(is_unproven(&directory(None), &directory(Some("1:a"))));
    }

    #[test]
    fn identities_of_different_kinds_prove_nothing() {
        assert!(is_unproven(&Identity::id("c1"), &Identity::ControlGroup { inode: 1 }));
        assert!(is_unproven(&volume(None, 1, true), &tag("i1", at(1), true, &[])));
    }

    #[test]
    fn the_stored_form_reads_back_and_missing_fields_have_defaults() {
        let tag = tag("i1", at(5), true, &["app:1"]);
        let stored = serde_json::to_string(&tag).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&stored).unwrap(), tag);
        let old = r#"{"by":"volume","name":"pgdata"}"#;
        let read: Identity = serde_json::from_str(old).unwrap();
        assert!(matches!(read, Identity::Volume { resource: None, engine_made: false, .. }));
    }
}
