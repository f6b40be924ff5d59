//! Releases images and their references.
//!
//! An image is removed by its id without force, so that the engine refuses while it is in use or
//! has another name. The images without a name below it always stay: they were not selected, and
//! another user may have built them. A reference is removed alone if others name the same image. Then the response
//! must show that nothing else was removed with it.

use std::collections::BTreeSet;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ImageDeleteResponseItem;
use bollard::query_parameters::RemoveImageOptions;
use creel_model::provider::{Identity, IdentityCheck, ReleaseMode, Released};

use super::classify::is_absence;
use super::connection::EngineConnection;
use super::encode::encoded;
use super::model::ImageDetails;
use super::reference::tag_options;
use super::release::{ReleaseRefusal, released_by};
use super::{observe, read};

/// Removes an image that no container uses, with all its names. If `id` is one of its names,
/// removes only that name. The expected identity limits which names may be removed.
pub(super) async fn image(
    connection: &EngineConnection,
    id: &str,
    mode: &ReleaseMode,
) -> Result<Released, ReleaseRefusal> {
    let images = Remover { library: connection.library().await? };
    let expected = mode.expected.as_ref();
    match expected {
        Some(Identity::Tag { image, image_is_ours, replaces, .. }) if !observe::is_image_id(id) => {
            let ours = Ours { image, image_is_ours: *image_is_ours, replaces: replaces.as_deref() };
            reference(connection, &images, id, &ours).await
        }
        // Only the reference is meant: others of the same image stay.
        _ if !observe::is_image_id(id) => released_by(images.remove(id).await.map(drop)),
        _ => match images.remove(id).await {
            Err(error) if may_have_several_names(&error) => {
                let names = match expected {
                    Some(Identity::Image { tags, .. }) => Some(tags),
                    _ => None,
                };
                all_names(connection, &images, id, names, error).await
            }
            result => released_by(result.map(drop)),
        },
    }
}

/// The record of a reference.
#[derive(Debug, Clone, Copy)]
pub struct Ours<'a> {
    /// The image that the reference names.
    pub image: &'a str,
    /// Whether that image may be removed with its last reference.
    pub image_is_ours: bool,
    /// The image that the reference named before.
    pub replaces: Option<&'a str>,
}

/// How a reference is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// With its image, by the image's id. If the reference was moved since, only our image is
    /// removed.
    ById,
    /// Alone, because others name the same image.
    ReferenceOnly,
    /// Not at all.
    Kept(IdentityCheck),
}

/// Decides how to remove a reference that names this image, which has these names now.
pub fn removal(reference: &str, image: &str, names: &[String], ours: Ours<'_>) -> Removal {
    if image != ours.image {
        let why = format!("{reference} names the image {image} now, ours was {}", ours.image);
        return Removal::Kept(IdentityCheck::Replaced { why });
    }
    let is_last = names.iter().all(|name| name == reference);
    if !is_last {
        return Removal::ReferenceOnly;
    }
    if !ours.image_is_ours {
        let why = format!("with {reference} its image would go, which is not on record as ours");
        return Removal::Kept(IdentityCheck::Unproven { why });
    }
    Removal::ById
}

/// Returns a name of an image that is not among the expected ones.
pub fn foreign_name<'a>(
    names: &'a [String],
    expected: Option<&BTreeSet<String>>,
) -> Option<&'a String> {
    names.iter().find(|name| expected.is_some_and(|ours| !ours.contains(*name)))
}

/// Removes one reference, and its image if that is ours and has no other name. A reference that
/// named another image before is put back on it, if that still exists.
async fn reference(
    connection: &EngineConnection,
    images: &Remover<'_>,
    reference: &str,
    ours: &Ours<'_>,
) -> Result<Released, ReleaseRefusal> {
    let Some(details) = details_of(connection, reference).await? else {
        return Ok(Released::AlreadyGone);
    };
    let image = observe::image_id(&details.id);
    let names = observe::real_references(&details.repo_tags);
    let decided = removal(reference, &image, &names, *ours);
    if let Removal::Kept(check @ IdentityCheck::Replaced { .. }) = decided {
        return Ok(Released::Kept(check));
    }
    if let (Some(before), Some(options)) = (ours.replaces, tag_options(reference)) {
        match images.library.tag_image(before, Some(options)).await {
            Err(error) if is_absence(&error) => {}
            result => return released_by(result),
        }
    }
    match decided {
        Removal::Kept(check) => return Ok(Released::Kept(check)),
        Removal::ById => return released_by(images.remove(&image).await.map(drop)),
        Removal::ReferenceOnly => {}
    }
    let result = match images.remove(reference).await {
        Ok(result) => result,
        Err(error) => return released_by(Err(error)),
    };
    let more = deleted_besides(&result, reference, ours);
    if more.is_empty() { released_by(Ok(())) } else { Err(ReleaseRefusal::DeletedMore(more)) }
}

/// Returns what an engine deleted besides a reference and, if it is ours, its image.
fn deleted_besides(
    result: &[ImageDeleteResponseItem],
    reference: &str,
    ours: &Ours<'_>,
) -> Vec<String> {
    let untagged = result.iter().filter_map(|item| item.untagged.as_deref());
    // An image loses the digest it was pulled by together with its last name.
    let untagged = untagged.filter(|name| *name != reference && !name.contains('@'));
    let deleted = result.iter().filter_map(|item| item.deleted.as_deref());
    let deleted = deleted.filter(|id| observe::image_id(id) == ours.image && !ours.image_is_ours);
    untagged.chain(deleted).map(str::to_owned).collect()
}

/// Returns whether an image may have been kept only because it has several names. Podman reports
/// that with status 500.
fn may_have_several_names(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError { status_code: 409, .. } => true,
        Error::DockerResponseServerError { message, .. } => message.contains("more than one tag"),
        _ => false,
    }
}

/// Removes the names of an image one by one. The image is removed with the last one.
///
/// The users of the image are checked first. A name can be removed even while a container uses the
/// image, and an image that cannot be removed should keep its names. If it has a name that is not
/// expected, all names are kept.
async fn all_names(
    connection: &EngineConnection,
    images: &Remover<'_>,
    id: &str,
    expected: Option<&BTreeSet<String>>,
    conflict: Error,
) -> Result<Released, ReleaseRefusal> {
    let Some(details) = details_of(connection, id).await? else {
        return Ok(Released::AlreadyGone);
    };
    let users = read::users_of_image(connection, &observe::image_id(&details.id)).await?;
    if !users.is_empty() {
        return Err(ReleaseRefusal::UsedBy(users));
    }
    let names = observe::real_references(&details.repo_tags);
    if let Some(foreign) = foreign_name(&names, expected) {
        let why = format!("it has the name {foreign}, which it did not have");
        return Ok(Released::Kept(IdentityCheck::Unproven { why }));
    }
    if names.len() < 2 {
        return Err(conflict.into());
    }
    for name in names {
        match images.remove(&name).await {
            Err(error) if !is_absence(&error) => return Err(error.into()),
            _ => {}
        }
    }
    released_by(images.remove(id).await.map(drop)).map(|_| Released::Done)
}

async fn details_of(
    connection: &EngineConnection,
    object: &str,
) -> Result<Option<ImageDetails>, Error> {
    connection.get_if_any(&format!("/images/{}/json", encoded(object))).await
}

/// Removes images, unforced and without the images below them.
struct Remover<'a> {
    library: &'a Docker,
}

impl Remover<'_> {
    async fn remove(&self, reference: &str) -> Result<Vec<ImageDeleteResponseItem>, Error> {
        let options = RemoveImageOptions { force: false, noprune: true, platforms: None };
        self.library.remove_image(reference, Some(options), None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_that_names_more_than_our_reference_is_noticed() {
        let item = |untagged: Option<&str>, deleted: Option<&str>| ImageDeleteResponseItem {
            untagged: untagged.map(str::to_owned),
            deleted: deleted.map(str::to_owned),
        };
        let (theirs, ours) = (
            Ours { image: "sha256:11", image_is_ours: false, replaces: None },
            Ours { image: "sha256:11", image_is_ours: true, replaces: None },
        );
        let alone = [item(Some("a:1"), None)];
        assert!(deleted_besides(&alone, "a:1", &theirs).is_empty());
        let with_image = [item(Some("a:1"), None), item(None, Some("sha256:11"))];
        assert_eq!(deleted_besides(&with_image, "a:1", &theirs), ["sha256:11"]);
        assert!(deleted_besides(&with_image, "a:1", &ours).is_empty());
        let with_name = [item(Some("a:1"), None), item(Some("b:1"), None)];
        assert_eq!(deleted_besides(&with_name, "a:1", &ours), ["b:1"]);
    }
}
