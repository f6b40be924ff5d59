//! Steps of a classic build that were made after its client was gone.
//!
//! An engine notices late that nobody waits for a build, and commits one or a
//! few more steps. They have no name, and no answer told their ids: only the
//! image that they were built upon leads to them. Somebody else's build that
//! takes our steps from the cache builds upon them too, so a step counts as
//! ours only if nothing else was built upon the same image, nobody named it,
//! it was made soon after the image that it is built upon, and the builder did
//! not tell of another step there: that one is known by its container.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::provider::{Kind, Observed, Result};

use super::classify::Act;
use super::model::ImageRow;
use super::provider::DockerProvider;
use super::{observe, read};

/// How long after an image the next step of the same build is made at the latest, on a machine
/// with too much to do. One that takes long by itself runs a container, and was told.
const NEXT_STEP: SignedDuration = SignedDuration::from_secs(30);

impl DockerProvider {
    /// Finds the steps that were built upon these images and are not among them; `recorded` are
    /// the names on record of the same runs.
    pub(super) async fn steps_upon(
        &self,
        images: &[String],
        recorded: &[String],
    ) -> Result<Vec<Observed>> {
        let mut family = Family::default();
        let each = |row: ImageRow| family.add(&row);
        let listed = self.connection().rows("/images/json", &[("all", "1")], each).await;
        listed.map_err(|error| self.classified(error, Act::Ask, "list images"))?;
        let mut steps = Vec::new();
        for image in images.iter().filter(|image| !is_told(image, recorded)) {
            let mut parent = image.clone();
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

    /// Returns a step if it was made right after the image that it is built upon.
    async fn next_step(&self, parent: &str, child: &str) -> Result<Option<Observed>> {
        let inspect = async |id: &str| {
            let seen = read::inspect(self.connection(), Kind::Image, id).await;
            seen.map_err(|error| self.classified(error, Act::Look, format!("inspect image {id}")))
        };
        let (before, step) = (inspect(parent).await?, inspect(child).await?);
        let made_at = |seen: &Option<Observed>| seen.as_ref().and_then(|seen| seen.created_at);
        let is_next = follows(made_at(&before), made_at(&step));
        Ok(step.filter(|step| is_next && step.tags().next().is_none()))
    }
}

/// Returns whether the builder told which container runs the step upon an image.
fn is_told(image: &str, recorded: &[String]) -> bool {
    let digits = image.trim_start_matches("sha256:");
    let told = recorded.iter().filter_map(|name| read::image_under_step(name));
    told.map(|id| id.trim_start_matches("sha256:")).any(|id| digits.starts_with(id))
}

fn follows(before: Option<Timestamp>, step: Option<Timestamp>) -> bool {
    let (Some(before), Some(step)) = (before, step) else { return false };
    let after = step.duration_since(before);
    !after.is_negative() && after <= NEXT_STEP
}

/// Which images are built upon which.
#[derive(Debug, Default)]
struct Family {
    children: BTreeMap<String, Vec<String>>,
    named: BTreeSet<String>,
}

impl Family {
    fn add(&mut self, row: &ImageRow) {
        let id = observe::image_id(&row.id);
        if !observe::real_references(&row.repo_tags).is_empty() {
            self.named.insert(id.clone());
        }
        if !row.parent_id.is_empty() {
            self.children.entry(observe::image_id(&row.parent_id)).or_default().push(id);
        }
    }

    /// Returns the only image that is built upon another, if it has no name.
    fn only_step_upon(&self, image: &str) -> Option<String> {
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
            family.add(&serde_json::from_value(row).unwrap());
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
        assert!(is_told("sha256:0123456789abcdef", &recorded));
        assert!(!is_told("sha256:1123456789abcdef", &recorded));
    }

    #[test]
    fn a_step_follows_at_once_or_is_somebody_elses() {
        let at = |second: i64| Timestamp::from_second(second).ok();
        assert!(follows(at(10), at(10)) && follows(at(10), at(40)));
        assert!(!follows(at(10), at(41)) && !follows(at(10), at(9)));
        assert!(!follows(None, at(1)) && !follows(at(1), None));
    }
}
