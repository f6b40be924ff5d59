//! Finds steps of a classic build that were made after its client disconnected.
//!
//! An engine notices late that the client of a build has disconnected, and commits one or a few
//! more steps. They have no name, and no response reported their ids. Only the image that they were
//! built upon leads to them. Another client's build that takes our steps from the cache builds upon
//! them too. So a step counts as ours only under four conditions. Nothing else was built upon the
//! same image. The step has no name. It was made soon after the image that it is built upon. The
//! builder did not report another step there. A step that it did report is identified by its
//! container, however late it lands.

use std::collections::{BTreeMap, BTreeSet};

use creel_model::provider::{Kind, Observed, Result};
use jiff::{SignedDuration, Timestamp};

use super::classify::EngineAction;
use super::model::ImageRow;
use super::provider::DockerProvider;
use super::{observe, read};

/// Maximum time between an image and the next step of the same build, on an overloaded machine. A
/// step that takes longer runs a container, and was reported.
const NEXT_STEP: SignedDuration = SignedDuration::from_secs(30);

impl DockerProvider {
    /// Finds the steps that were built upon these images and are not among them. `recorded` are the
    /// recorded names of the same runs.
    pub(super) async fn steps_upon(
        &self,
        images: &[String],
        recorded: &[String],
    ) -> Result<Vec<Observed>> {
        let mut family = Family::default();
        let each = |row: ImageRow| family.add_row(&row);
        let listed = self.connection().rows("/images/json", &[("all", "1")], each).await;
        listed.map_err(|error| self.classified(error, EngineAction::Query, "list images"))?;
        let mut steps = Vec::new();
        for image in images {
            let mut parent = image.clone();
            if let Some(container) = container_upon(image, recorded) {
                let Some(step) = self.reported_step(container).await? else { continue };
                if images.contains(&step.id) {
                    continue;
                }
                parent = step.id.clone();
                steps.push(step);
            }
            while let Some(child) = family.only_step_upon(&parent) {
                if images.contains(&child) {
                    break;
                }
                let Some(step) = self.next_step(&parent, &child).await? else { break };
                steps.push(step);
                parent = child;
            }
        }
        Ok(steps)
    }

    /// Returns the image of the step that runs in this container, if it has no name.
    async fn reported_step(&self, container: &str) -> Result<Option<Observed>> {
        let found = read::step_of(self.connection(), container).await;
        let found = found.map_err(|error| {
            let what = format!("find the image of container {container}");
            self.classified(error, EngineAction::Query, what)
        })?;
        Ok(found.into_iter().next())
    }

    /// Returns a step if it was made right after the image that it is built upon.
    async fn next_step(&self, parent: &str, child: &str) -> Result<Option<Observed>> {
        let inspect = async |id: &str| {
            let seen = read::inspect(self.connection(), Kind::Image, id).await;
            seen.map_err(|error| {
                self.classified(error, EngineAction::Inspect, format!("inspect image {id}"))
            })
        };
        let (before, step) = (inspect(parent).await?, inspect(child).await?);
        let created_at_of =
            |seen: &Option<Observed>| seen.as_ref().and_then(|seen| seen.created_at);
        let is_next = follows(created_at_of(&before), created_at_of(&step));
        Ok(step.filter(|step| is_next && step.tags.is_empty()))
    }
}

/// Returns the container that runs the step upon an image, if the builder reported it.
fn container_upon<'a>(image: &str, recorded: &'a [String]) -> Option<&'a str> {
    let digits = image.trim_start_matches("sha256:");
    let is_parent = |parent: &str| digits.starts_with(parent.trim_start_matches("sha256:"));
    let mut steps = recorded.iter().filter_map(|name| read::parse_step(name));
    steps.find_map(|(container, parent)| is_parent(parent).then_some(container))
}

/// Returns whether a step was created soon enough after its parent image to belong to the same
/// build.
pub fn follows(before: Option<Timestamp>, step: Option<Timestamp>) -> bool {
    let (Some(before), Some(step)) = (before, step) else { return false };
    let after = step.duration_since(before);
    !after.is_negative() && after <= NEXT_STEP
}

/// Maps images to the images that are built upon them.
#[derive(Debug, Default)]
pub struct Family {
    children: BTreeMap<String, Vec<String>>,
    named: BTreeSet<String>,
}

impl Family {
    fn add_row(&mut self, row: &ImageRow) {
        let parent = (!row.parent_id.is_empty()).then(|| observe::image_id(&row.parent_id));
        let is_named = !observe::real_references(&row.repo_tags).is_empty();
        self.add(observe::image_id(&row.id), parent, is_named);
    }

    /// Adds an image and its parent.
    pub fn add(&mut self, id: String, parent: Option<String>, is_named: bool) {
        if is_named {
            self.named.insert(id.clone());
        }
        if let Some(parent) = parent {
            self.children.entry(parent).or_default().push(id);
        }
    }

    /// Returns the only image that is built upon another one, if it has no name.
    pub fn only_step_upon(&self, image: &str) -> Option<String> {
        match self.children.get(image)?.as_slice() {
            [one] if !self.named.contains(one) => Some(one.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(rows: &[(&str, &str, &[&str])]) -> Family {
        let mut family = Family::default();
        for (id, parent, tags) in rows {
            let row = serde_json::json!({ "Id": id, "ParentId": parent, "RepoTags": tags });
            family.add_row(&serde_json::from_value(row).unwrap());
        }
        family
    }

    #[test]
    fn only_a_nameless_only_child_is_a_step_of_the_same_build() {
        let family = family(&[
            ("sha256:1", "", &[]),
            ("sha256:2", "sha256:1", &["<none>:<none>"]),
            ("sha256:3", "sha256:2", &["theirs:1"]),
            ("sha256:5", "sha256:4", &[]),
            ("sha256:6", "sha256:4", &[]),
        ]);
        assert_eq!(family.only_step_upon("sha256:1").as_deref(), Some("sha256:2"));
        for image in ["sha256:2", "sha256:3", "sha256:4"] {
            assert_eq!(family.only_step_upon(image), None, "{image}");
        }
    }

    #[test]
    fn a_step_that_runs_in_a_container_is_known_by_that() {
        let recorded = [read::step_name("c1", Some("0123456789ab")), read::step_name("c2", None)];
        assert_eq!(container_upon("sha256:0123456789abcdef", &recorded), Some("c1"));
        assert_eq!(container_upon("sha256:1123456789abcdef", &recorded), None);
    }

    #[test]
    fn a_step_that_does_not_follow_at_once_is_foreign() {
        let at = |second: i64| Timestamp::from_second(second).ok();
        assert!(follows(at(10), at(10)) && follows(at(10), at(40)));
        assert!(!follows(at(10), at(41)) && !follows(at(10), at(9)));
        assert!(!follows(None, at(1)) && !follows(at(1), None));
    }
}
