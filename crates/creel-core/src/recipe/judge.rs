//! Proves whether an object that bears the marks of a harness has finished.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use creel_model::duration;
use creel_model::provider::{Kind, Observed, ProviderName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::mark::{Images, Marked};
use super::session::{SessionContext, session_of};
use super::users::Users;
use super::{Clocks, LocalEvidence, Processes, ProgramName, Recipe, RecipeRule, RunningProcess};

/// The context in which objects are judged.
#[derive(Debug)]
pub struct RecipeContext<'a> {
    /// Everything that was listed, with the marked objects examined.
    pub inventory: &'a [Observed],
    /// Evidence on this machine about processes that may use the objects.
    pub evidence: &'a LocalEvidence,
    /// Whether the user vouches that the harness has ended.
    pub ended: bool,
}

/// Why an object may be released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// What proves that it has finished.
    pub evidence: String,
    /// What was not checked, because it is not visible from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_checked: Vec<String>,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.evidence)?;
        match self.not_checked.as_slice() {
            [] => Ok(()),
            unchecked => write!(f, "; not checked: {}", unchecked.join(", ")),
        }
    }
}

/// A proof under construction.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) evidence: Vec<String>,
    pub(super) not_checked: Vec<String>,
}

impl From<Collected> for Proof {
    fn from(collected: Collected) -> Self {
        let Collected { evidence, not_checked } = collected;
        Self { evidence: evidence.join("; "), not_checked }
    }
}

/// Whether an object may be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipeVerdict {
    /// It has finished, and this proves it.
    Finished(Proof),
    /// It may be in use, or its state is unknown; this is the reason.
    MayLive(String),
}

/// What a recipe finds about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The name of the rule in plans.
    pub rule: String,
    /// Whether it may be released.
    pub verdict: RecipeVerdict,
}

/// What a recipe finds about all objects that bear its marks.
#[derive(Debug, Default)]
pub struct Findings {
    by_object: HashMap<(ProviderName, Kind, String), Finding>,
    /// Processes of the harness that still run although the user vouches that it has ended.
    pub still_running: Vec<String>,
}

impl Findings {
    /// Returns the finding for an object; `None` means that it bears no mark of the recipe.
    pub fn of(&self, seen: &Observed) -> Option<&Finding> {
        self.by_object.get(&(seen.provider, seen.kind, seen.id.clone()))
    }
}

/// The context that all judgements of one recipe share.
pub(super) struct JudgeContext<'a> {
    pub(super) name: &'a str,
    pub(super) recipe: &'a Recipe,
    pub(super) around: &'a RecipeContext<'a>,
    images: Images<'a>,
    /// The containers that bear a mark: a process inside one is not its owner.
    pub(super) marked: HashSet<&'a str>,
}

impl Recipe {
    /// Judges every object that bears a mark.
    pub fn judge(&self, name: &str, around: &RecipeContext<'_>) -> Findings {
        let marked = around.inventory.iter().zip(self.marked_among(around.inventory));
        let containers = marked.filter(|(seen, marked)| *marked && seen.kind == Kind::Container);
        let marked = containers.map(|(seen, _)| seen.id.as_str()).collect();
        let images = Images::among(around.inventory);
        let context = JudgeContext { name, recipe: self, around, images, marked };
        let found = around.inventory.iter().filter_map(|seen| {
            let finding = context.judge(seen)?;
            Some(((seen.provider, seen.kind, seen.id.clone()), finding))
        });
        Findings { by_object: found.collect(), still_running: context.still_running() }
    }
}

impl JudgeContext<'_> {
    /// Judges an object.
    ///
    /// The first rule that proves it finished wins; otherwise the first rule whose states match
    /// gives the reason.
    fn judge(&self, seen: &Observed) -> Option<Finding> {
        let (mut unproven, mut other_state) = (None, None);
        for rule in &self.recipe.rules {
            let proof = match rule.marked(self.recipe, seen, &self.images) {
                Marked::No => continue,
                Marked::Doubtful(reason) => Err(reason),
                Marked::Yes if !rule.accepts_state(seen) => {
                    let reason = format!("it is {}, which no rule takes", seen.state);
                    other_state.get_or_insert((rule, reason));
                    continue;
                }
                Marked::Yes if rule.vouched && !self.around.ended => {
                    let reason = format!("it is {}, which only --ended takes", seen.state);
                    other_state = Some((rule, reason));
                    continue;
                }
                Marked::Yes => self.prove(rule, seen),
            };
            match proof {
                Ok(proof) => return Some(self.found(rule, RecipeVerdict::Finished(proof))),
                Err(reason) => {
                    unproven
                        .get_or_insert_with(|| self.found(rule, RecipeVerdict::MayLive(reason)));
                }
            }
        }
        let other_state =
            other_state.map(|(rule, reason)| self.found(rule, RecipeVerdict::MayLive(reason)));
        unproven.or(other_state)
    }

    fn found(&self, rule: &RecipeRule, verdict: RecipeVerdict) -> Finding {
        Finding { rule: format!("recipe:{}/{}", self.name, rule.name), verdict }
    }

    /// Collects the evidence that an object has finished, or returns what is missing.
    fn prove(&self, rule: &RecipeRule, seen: &Observed) -> Result<Proof, String> {
        let mut proof = Collected { evidence: vec![seen.state.clone()], ..Collected::default() };
        if self.around.ended && is_users_own(seen) {
            if rule.keeper_gone {
                proof.evidence.push(self.keeper_gone(seen)?);
            }
            proof.evidence.push(format!("the user says that {} has ended", self.name));
            return Ok(proof.into());
        }
        let mut users = Users { context: self, seen, proof: &mut proof };
        let least = users.least_age(rule)?;
        proof.evidence.insert(1, self.old_enough(seen, least)?);
        if let Some(least) = rule.idle_for {
            proof.evidence.insert(2, self.idle_enough(seen, least)?);
        }
        if rule.keeper_gone {
            proof.evidence.push(self.keeper_gone(seen)?);
        }
        if rule.session_quiet {
            proof.evidence.push(self.session_quiet(seen, least)?);
        }
        Ok(proof.into())
    }

    fn old_enough(&self, seen: &Observed, least: Duration) -> Result<String, String> {
        let changed_at = last_change(seen).ok_or_else(|| unknown_age(seen))?;
        let age = self.clocks().age(changed_at).ok_or("its age is in the future")?;
        let shown = duration::show_roughly(age);
        let (young, old) = match seen.kind {
            Kind::Container => ("last changed", "unchanged for"),
            Kind::Image => ("tagged", "tagged"),
            _ => ("made", "made"),
        };
        let ago = if seen.kind == Kind::Container { "" } else { " ago" };
        let doubt = if self.clocks().is_steady() {
            ""
        } else {
            " by the time since boot, for the clock was set forward"
        };
        if age < least {
            let least = duration::show_limit(least);
            return Err(format!("{young} {shown} ago{doubt}, less than {least}"));
        }
        Ok(format!("{old} {shown}{ago}{doubt}"))
    }

    fn idle_enough(&self, seen: &Observed, least: Duration) -> Result<String, String> {
        let active_at = seen.last_active_at.ok_or("its last activity is unknown")?;
        let idle = self.clocks().age(active_at).ok_or("its last activity is in the future")?;
        let shown = duration::show_roughly(idle);
        if idle < least {
            return Err(format!("active {shown} ago, less than {}", duration::show_limit(least)));
        }
        Ok(format!("idle for {shown}"))
    }

    fn keeper_gone(&self, seen: &Observed) -> Result<String, String> {
        let session_context = self.session_context(seen)?;
        session_context.live_keeper().map_or(Ok(()), Err)?;
        Ok(format!("no keeper of session {} runs", session_context.session))
    }

    fn session_quiet(&self, seen: &Observed, least: Duration) -> Result<String, String> {
        let session_context = self.session_context(seen)?;
        session_context.unrest(least).map_or(Ok(()), Err)?;
        Ok(format!("nothing of {} runs", session_context.session))
    }

    fn session_context<'b>(&'b self, seen: &'b Observed) -> Result<SessionContext<'b>, String> {
        let (_, session) = session_of(self.recipe, seen).ok_or("it names no session")?;
        Ok(SessionContext { recipe: self.recipe, session, around: self.around })
    }

    fn clocks(&self) -> &Clocks {
        &self.around.evidence.clocks
    }

    /// Returns processes of the harness that still run although the user vouches that it has ended.
    fn still_running(&self) -> Vec<String> {
        let Processes::Seen(running) = &self.around.evidence.processes else { return Vec::new() };
        if !self.around.ended {
            return Vec::new();
        }
        let own = running.iter().filter(|one| !is_inside(&self.marked, one));
        own.filter_map(|one| Some(described(one, one.runs_one_of(&self.recipe.programs)?)))
            .collect()
    }
}

/// Returns whether a user can vouch for an object.
///
/// Several people share a cloud organisation, and none of them sees whose harness has ended.
fn is_users_own(seen: &Observed) -> bool {
    seen.kind != Kind::Sandbox
}

/// Returns whether a process runs inside one of these containers.
pub(super) fn is_inside(containers: &HashSet<&str>, one: &RunningProcess) -> bool {
    one.container.as_deref().is_some_and(|container| containers.contains(container))
}

/// Describes a process by the program that matched.
pub(super) fn described(one: &RunningProcess, run: &ProgramName) -> String {
    format!("process {} ({run}: `{}`)", one.pid, one.command)
}

impl RecipeRule {
    fn accepts_state(&self, seen: &Observed) -> bool {
        self.states.is_empty() || self.states.contains(&seen.state)
    }
}

/// Returns when an object was made or, if it is a container, last started or ended.
///
/// Returns `None` for a container that was started but not examined.
pub(super) fn last_change(seen: &Observed) -> Option<Timestamp> {
    let never_started = matches!(seen.state.as_str(), "created" | "configured");
    match (seen.kind, seen.last_active_at) {
        (Kind::Container, None) if !never_started => None,
        (Kind::Container, Some(active_at)) => Some(active_at.max(seen.created_at?)),
        _ => seen.known_since(),
    }
}

pub(super) fn unknown_age(seen: &Observed) -> &'static str {
    match seen.kind {
        Kind::Image => "the engine does not report when it was tagged, so its age is unknown",
        _ => "its age is unknown",
    }
}
