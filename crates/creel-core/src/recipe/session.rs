//! Sessions: related objects, such as a Compose project or one run of a test suite.

use std::time::Duration;

use creel_model::duration;
use creel_model::provider::{Kind, Observed};

use super::judge::{RecipeContext, last_change};
use super::{Recipe, RecipeSession};

/// States of containers that do nothing and do not start by themselves.
const AT_REST: [&str; 5] = ["created", "configured", "exited", "stopped", "dead"];

/// Returns the session that an object names, with the label that names it.
pub(super) fn session_of<'a>(recipe: &'a Recipe, seen: &'a Observed) -> Option<(&'a str, &'a str)> {
    let labels = &recipe.session.as_ref()?.labels;
    let found = labels.iter().find_map(|key| Some((key.as_str(), seen.labels.get(key)?)))?;
    Some(found).filter(|(_, session)| !session.is_empty())
}

/// Returns whether a container is active or may become active; an unknown state counts as active.
pub(super) fn may_run(container: &Observed) -> bool {
    !AT_REST.contains(&container.state.as_str())
}

/// One session, and the context it is judged in.
pub(super) struct SessionContext<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) session: &'a str,
    pub(super) around: &'a RecipeContext<'a>,
}

impl SessionContext<'_> {
    /// Reports a keeper of the session that may run, if there is one.
    pub(super) fn live_keeper(&self) -> Option<String> {
        let keeper = self.containers().find(|seen| self.is_keeper(seen) && may_run(seen))?;
        Some(format!("{} is {}: its session may go on", keeper.name, keeper.state))
    }

    /// Reports a container of the session that has not been at rest for that long, if there is one.
    pub(super) fn unrest(&self, least: Duration) -> Option<String> {
        let members = self.containers().filter(|seen| {
            session_of(self.recipe, seen).is_some_and(|(_, session)| session == self.session)
        });
        for member in members {
            if may_run(member) {
                return Some(format!("{} of {} is {}", member.name, self.session, member.state));
            }
            let clocks = &self.around.evidence.clocks;
            let quiet = last_change(member).and_then(|at| clocks.age(at));
            let Some(quiet) = quiet else {
                return Some(format!("it is unknown when {} last ran", member.name));
            };
            if quiet < least {
                let (quiet, least) = (duration::show_roughly(quiet), duration::show_limit(least));
                return Some(format!("{} ran {quiet} ago, less than {least}", member.name));
            }
        }
        None
    }

    fn containers(&self) -> impl Iterator<Item = &Observed> {
        self.around.inventory.iter().filter(|seen| seen.kind == Kind::Container)
    }

    fn is_keeper(&self, seen: &Observed) -> bool {
        let Some(RecipeSession { keepers, keeper_labels, .. }) = &self.recipe.session else {
            return false;
        };
        let is_name = |name: &String| name.replace("{session}", self.session) == seen.name;
        let same = session_of(self.recipe, seen).is_some_and(|(_, it)| it == self.session);
        keepers.iter().any(is_name)
            || (same && keeper_labels.iter().any(|label| label.matches(&seen.labels)))
    }
}
