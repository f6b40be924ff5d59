//! Proof: whether an object that bears the marks of a harness has finished.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::duration;
use crate::provider::{Kind, Observed, ProviderName};

use super::mark::{Images, Marked};
use super::session::{Company, session_of};
use super::{Owners, Processes, Recipe, Rule, Running};

/// A process counts as older than an object also when it started a little later: the two
/// instants come from different clocks.
const SLACK: Duration = Duration::from_secs(5);

/// What is around the objects that are judged.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// Everything that was seen, the marked ones closely.
    pub inventory: &'a [Observed],
    /// The worlds whose clients are processes of this machine.
    pub here: &'a [ProviderName],
    /// What runs on this machine.
    pub processes: &'a Processes,
    /// The present time.
    pub now: Timestamp,
}

impl Surroundings<'_> {
    /// Returns how long ago an instant was; one in the future cannot be told.
    pub(super) fn since(&self, instant: Timestamp) -> Option<Duration> {
        let passed = self.now.duration_since(instant);
        (!passed.is_negative()).then(|| passed.unsigned_abs())
    }
}

/// Whether an object may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It has finished, and this proves it.
    Finished(String),
    /// It may be in use, or nobody can tell; this is why.
    MayLive(String),
}

/// What a recipe says of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule, as plans name it.
    pub rule: String,
    /// Whether it may go.
    pub verdict: Verdict,
}

/// What a recipe says of all objects that bear its marks.
#[derive(Debug, Default)]
pub struct Findings(HashMap<(ProviderName, Kind, String), Finding>);

impl Findings {
    /// Returns what was found of an object; `None` means that it bears no mark of the recipe.
    pub fn of(&self, seen: &Observed) -> Option<&Finding> {
        self.0.get(&(seen.provider, seen.kind, seen.id.clone()))
    }
}

/// What all judgements of one recipe share.
struct Court<'a> {
    name: &'a str,
    recipe: &'a Recipe,
    around: &'a Surroundings<'a>,
    images: Images<'a>,
    /// The containers that bear a mark: what runs inside of one does not answer for it.
    marked: HashSet<&'a str>,
}

impl Recipe {
    /// Says of every object that bears a mark whether it has finished.
    pub fn judge(&self, name: &str, around: &Surroundings<'_>) -> Findings {
        let containers = around.inventory.iter().filter(|seen| seen.kind == Kind::Container);
        let marked = containers.filter(|seen| self.marks(seen)).map(|seen| seen.id.as_str());
        let (images, marked) = (Images::among(around.inventory), marked.collect());
        let court = Court { name, recipe: self, around, images, marked };
        let found = around.inventory.iter().filter_map(|seen| {
            let finding = court.judge(seen)?;
            Some(((seen.provider, seen.kind, seen.id.clone()), finding))
        });
        Findings(found.collect())
    }
}

impl Court<'_> {
    /// Judges an object: the first rule that proves it finished wins; else the first whose
    /// states fit says why not.
    fn judge(&self, seen: &Observed) -> Option<Finding> {
        let (mut unproven, mut other_state) = (None, None);
        for rule in &self.recipe.rules {
            let proof = match rule.marked(self.recipe, seen, &self.images) {
                Marked::No => continue,
                Marked::Doubtful(reason) => Err(reason),
                Marked::Yes if !rule.takes_state(seen) => {
                    let reason = format!("it is {}, which no rule takes", seen.state);
                    other_state = Some(self.found(rule, Verdict::MayLive(reason)));
                    continue;
                }
                Marked::Yes => self.prove(rule, seen),
            };
            match proof {
                Ok(evidence) => {
                    return Some(self.found(rule, Verdict::Finished(evidence.join("; "))));
                }
                Err(reason) => {
                    unproven.get_or_insert_with(|| self.found(rule, Verdict::MayLive(reason)));
                }
            }
        }
        unproven.or(other_state)
    }

    fn found(&self, rule: &Rule, verdict: Verdict) -> Finding {
        Finding { rule: format!("recipe:{}/{}", self.name, rule.name), verdict }
    }

    /// Collects the evidence that an object has finished, or says what is missing.
    fn prove(&self, rule: &Rule, seen: &Observed) -> Result<Vec<String>, String> {
        let mut evidence = vec![seen.state.clone()];
        let (least, sight) = self.least_age(rule, seen)?;
        evidence.push(self.old_enough(seen, least)?);
        if let Some(least) = rule.idle_for {
            evidence.push(self.idle_enough(seen, least)?);
        }
        evidence.extend(sight);
        if rule.keeper_gone || rule.session_quiet {
            evidence.push(self.session_over(rule, seen, least)?);
        }
        Ok(evidence)
    }

    /// Returns how old the object must be: more where processes cannot be seen.
    fn least_age(
        &self,
        rule: &Rule,
        seen: &Observed,
    ) -> Result<(Duration, Option<String>), String> {
        if self.recipe.programs.is_empty() {
            return Ok((rule.older_than, None));
        }
        let hidden = match self.around.processes {
            _ if !self.around.here.contains(&seen.provider) => {
                format!("{} is not on this machine", seen.provider)
            }
            Processes::Hidden(why) => why.clone(),
            Processes::Seen(running) => {
                let sight = self.no_owner(running, seen)?;
                return Ok((rule.older_than, Some(sight)));
            }
        };
        let least = rule
            .older_than_remote
            .ok_or_else(|| format!("nobody can tell whether {} still runs: {hidden}", self.name))?;
        Ok((least, Some(format!("only its age counts: {hidden}"))))
    }

    /// Checks that no process of the harness may still use the object.
    fn no_owner(&self, running: &[Running], seen: &Observed) -> Result<String, String> {
        let made_at = seen.created_at.ok_or("its age is unknown")?;
        let inside = |one: &Running| {
            one.container.as_deref().is_some_and(|container| self.marked.contains(container))
        };
        let may_own = |one: &&Running| match self.recipe.owners {
            Owners::Any => true,
            Owners::Earlier => one.started_at <= made_at + SLACK,
        };
        let of_harness = running.iter().filter(|one| one.is_one_of(&self.recipe.programs));
        let owner = of_harness.filter(|one| !inside(one)).find(may_own);
        match (owner, self.recipe.owners) {
            (Some(owner), _) => {
                Err(format!("process {} ({}) may use it", owner.pid, owner.program))
            }
            (None, Owners::Any) => Ok(format!("no process of {} runs here", self.name)),
            (None, Owners::Earlier) => {
                Ok(format!("no process of {} here is older than it", self.name))
            }
        }
    }

    fn old_enough(&self, seen: &Observed, least: Duration) -> Result<String, String> {
        let changed_at = last_change(seen).ok_or("its age is unknown")?;
        let age = self.around.since(changed_at).ok_or("its age is in the future")?;
        let told = duration::show_roughly(age);
        let (young, old) = match seen.kind {
            Kind::Container => ("last changed", "unchanged for"),
            _ => ("made", "made"),
        };
        let ago = if seen.kind == Kind::Container { "" } else { " ago" };
        if age < least {
            return Err(format!("{young} {told} ago, less than {}", duration::show_limit(least)));
        }
        Ok(format!("{old} {told}{ago}"))
    }

    fn idle_enough(&self, seen: &Observed, least: Duration) -> Result<String, String> {
        let active_at = seen.last_active_at.ok_or("its last activity is unknown")?;
        let idle = self.around.since(active_at).ok_or("its last activity is in the future")?;
        let told = duration::show_roughly(idle);
        if idle < least {
            return Err(format!("active {told} ago, less than {}", duration::show_limit(least)));
        }
        Ok(format!("idle for {told}"))
    }

    fn session_over(
        &self,
        rule: &Rule,
        seen: &Observed,
        least: Duration,
    ) -> Result<String, String> {
        let (_, session) = session_of(self.recipe, seen).ok_or("it names no session")?;
        let company = Company { recipe: self.recipe, session, around: self.around };
        let mut evidence = Vec::new();
        if rule.keeper_gone {
            company.live_keeper().map_or(Ok(()), Err)?;
            evidence.push(format!("no keeper of session {session} runs"));
        }
        if rule.session_quiet {
            company.unrest(least).map_or(Ok(()), Err)?;
            evidence.push(format!("nothing of {session} runs"));
        }
        Ok(evidence.join("; "))
    }
}

impl Rule {
    fn takes_state(&self, seen: &Observed) -> bool {
        self.states.is_empty() || self.states.contains(&seen.state)
    }
}

/// Returns when an object was made or, if it is a container, last started or ended. That of a
/// container which was started but not looked at closely is unknown.
pub(super) fn last_change(seen: &Observed) -> Option<Timestamp> {
    let never_started = matches!(seen.state.as_str(), "created" | "configured");
    match (seen.kind, seen.last_active_at) {
        (Kind::Container, None) if !never_started => None,
        (Kind::Container, Some(active_at)) => Some(active_at.max(seen.created_at?)),
        _ => seen.created_at,
    }
}
