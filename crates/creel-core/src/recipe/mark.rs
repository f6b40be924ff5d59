//! Marks: decide whether an object belongs to the harness at all.
//!
//! Containers inherit the labels of their image. So a container that is recognised by labels alone
//! must have at least one label from its own create.

use std::collections::{HashMap, HashSet};

use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{Kind, Observed, ProviderName};

use super::session::session_of;
use super::{Recipe, RecipeRule};

/// Whether an object bears the marks of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Marked {
    /// It does not.
    No,
    /// It does, but possibly by inheritance.
    Doubtful(String),
    /// It does.
    Yes,
}

/// The names of all images, and their labels.
///
/// The labels separate a container's own labels from those of its image.
#[derive(Debug)]
pub(super) struct Images<'a> {
    labels: HashMap<(ProviderName, &'a str), &'a Labels>,
    names: HashSet<(ProviderName, &'a str)>,
}

impl<'a> Images<'a> {
    pub(super) fn among(inventory: &'a [Observed]) -> Self {
        let images = || inventory.iter().filter(|seen| seen.kind == Kind::Image);
        let of_image = |seen: &'a Observed| ((seen.provider, seen.id.as_str()), &seen.labels);
        let names =
            images().flat_map(|seen| seen.tags.iter().map(|tag| (seen.provider, tag.as_str())));
        Self { labels: images().map(of_image).collect(), names: names.collect() }
    }

    /// Returns the labels of a container's image, if the image still exists.
    fn of(&self, container: &Observed) -> Option<&'a Labels> {
        let (_, image) = container.uses.iter().find(|(kind, _)| *kind == Kind::Image)?;
        self.labels.get(&(container.provider, image.as_str())).copied()
    }
}

impl Recipe {
    /// Returns for every object whether it bears the marks of some rule.
    pub fn marked_among(&self, inventory: &[Observed]) -> Vec<bool> {
        let images = Images::among(inventory);
        let marks = |seen| self.rules.iter().any(|rule| rule.claims(self, seen, &images));
        inventory.iter().map(marks).collect()
    }
}

impl RecipeRule {
    pub(super) fn marked(&self, recipe: &Recipe, seen: &Observed, images: &Images<'_>) -> Marked {
        if !self.claims(recipe, seen, images) {
            return Marked::No;
        }
        // A name is never inherited.
        if seen.kind != Kind::Container || self.object.is_some() {
            return Marked::Yes;
        }
        let Some(inherited) = images.of(seen) else {
            return Marked::Doubtful(
                "its image is gone, so its labels may be inherited".to_owned(),
            );
        };
        let is_own = |key: &str| seen.labels.get(key) != inherited.get(key);
        if self.label_keys(recipe, seen).into_iter().any(is_own) {
            Marked::Yes
        } else {
            Marked::Doubtful("its labels may be inherited from its image".to_owned())
        }
    }

    fn claims(&self, recipe: &Recipe, seen: &Observed, images: &Images<'_>) -> bool {
        let project = seen.project.as_deref();
        self.kinds.contains(&seen.kind)
            && self.object.as_ref().is_none_or(|pattern| names_fit(pattern, seen))
            && self.project.as_ref().is_none_or(|pattern| project.is_some_and(|p| pattern.fits(p)))
            && self.labels.iter().all(|label| label.matches(&seen.labels))
            && !self.without_labels.iter().any(|label| label.matches(&seen.labels))
            && (!self.named_as_project || project == Some(seen.name.as_str()))
            && (!self.in_session || session_of(recipe, seen).is_some())
            && self.with_image.as_ref().is_none_or(|name| self.has_image(name, seen, images))
    }

    /// Returns whether the image that belongs to the object's project exists.
    fn has_image(&self, name: &str, seen: &Observed, images: &Images<'_>) -> bool {
        let (Some(project), Some(pattern)) = (&seen.project, &self.project) else { return false };
        let image_name = pattern.expand(project, name);
        image_name
            .is_some_and(|image_name| images.names.contains(&(seen.provider, image_name.as_str())))
    }

    /// Returns the keys of the labels by which the rule recognises this object.
    fn label_keys<'a>(&'a self, recipe: &'a Recipe, seen: &'a Observed) -> Vec<&'a str> {
        let mut keys: Vec<&str> = self.labels.iter().map(|label| label.key()).collect();
        keys.extend(self.project.is_some().then_some(labels::COMPOSE_PROJECT));
        keys.extend(
            self.in_session.then(|| session_of(recipe, seen)).flatten().map(|(key, _)| key),
        );
        keys
    }
}

/// Returns whether the name matches; of an image, all names must match.
fn names_fit(pattern: &super::Pattern, seen: &Observed) -> bool {
    if seen.kind == Kind::Image {
        let mut tags = seen.tags.iter().map(String::as_str).peekable();
        return tags.peek().is_some() && tags.all(|tag| pattern.fits(tag));
    }
    pattern.fits(&seen.name)
}
