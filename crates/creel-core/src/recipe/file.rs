//! The recipe file format. `docs/reference/recipes.md` documents every key.

use std::collections::BTreeSet;
use std::time::Duration;

use creel_model::duration;
use creel_model::provider::{Kind, UnknownName};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use crate::select::{LabelMatch, NamePattern};

use super::Pattern;

/// Describes what a harness leaves behind, and what proves that it has finished.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// A one-line summary for users.
    pub summary: String,
    /// The names of the harness's own programs, scripts and modules, as globs.
    #[serde(default, deserialize_with = "texts")]
    pub programs: Vec<NamePattern>,
    /// The names of programs that can run the harness as a library, as globs.
    #[serde(default, deserialize_with = "texts")]
    pub interpreters: Vec<NamePattern>,
    /// What the user must name to vouch that the harness has ended.
    #[serde(default)]
    pub vouch: Vouch,
    /// Which live processes may still use an object.
    #[serde(default)]
    pub owners: Owners,
    /// What groups objects into sessions, if anything does.
    pub session: Option<RecipeSession>,
    /// The rules; an object is selected if one of them proves it finished.
    #[serde(rename = "rule")]
    pub rules: Vec<RecipeRule>,
}

/// Which live processes of a harness may still use an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owners {
    /// Those that started before the object was made: the harness never reuses what another left.
    #[default]
    Earlier,
    /// All of them: the harness continues with what an earlier process of it left.
    Any,
}

/// What the user must name to vouch that a harness has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vouch {
    /// The recipe: everything with its marks belongs to the harness.
    #[default]
    Recipe,
    /// Also the Compose project: the marks match objects of other users too.
    Project,
}

/// What groups objects into sessions.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeSession {
    /// The labels whose value names the session; the first one that is present counts.
    pub labels: Vec<String>,
    /// Name templates, with `{session}`, of containers that live as long as their session.
    #[serde(default)]
    pub keepers: Vec<String>,
    /// Labels that make a container of the session such a keeper.
    #[serde(default, deserialize_with = "texts")]
    pub keeper_labels: Vec<LabelMatch>,
}

/// How objects of one category are recognised, and what proves them finished.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeRule {
    /// The name of the rule in plans.
    pub name: String,
    /// Only of these kinds.
    pub kinds: Vec<Kind>,
    /// Only with such a name; an image must have no other names.
    pub object: Option<Pattern>,
    /// Only of such a Compose project.
    pub project: Option<Pattern>,
    /// Only with all of these labels.
    #[serde(default, deserialize_with = "texts")]
    pub labels: Vec<LabelMatch>,
    /// Only with none of these labels.
    #[serde(default, deserialize_with = "texts")]
    pub without_labels: Vec<LabelMatch>,
    /// Only if it has the name of its Compose project.
    #[serde(default)]
    pub named_as_project: bool,
    /// Only if it names a session.
    #[serde(default)]
    pub in_session: bool,
    /// Only if there is an image of this name, with `$1` for the first group of `project`.
    pub with_image: Option<String>,
    /// Only if the user vouches that the harness has ended, because nothing else proves it.
    #[serde(default)]
    pub vouched: bool,
    /// Proof: it is in one of these states.
    #[serde(default)]
    pub states: Vec<String>,
    /// Proof: made at least this long ago and, for a container, also last started or ended.
    #[serde(deserialize_with = "duration::deserialize")]
    pub older_than: Duration,
    /// The same where the running processes are unknown; without it such objects are spared.
    #[serde(default, with = "duration::optional")]
    pub older_than_remote: Option<Duration>,
    /// Proof: no activity for at least this long, where the provider reports it.
    #[serde(default, with = "duration::optional")]
    pub idle_for: Option<Duration>,
    /// Proof: no keeper of its session runs.
    #[serde(default)]
    pub keeper_gone: bool,
    /// Proof: all containers of its session have been at rest for as long as the rule requires.
    #[serde(default)]
    pub session_quiet: bool,
}

const RECIPE_KEYS: [&str; 7] =
    ["summary", "programs", "interpreters", "owners", "vouch", "session", "rule"];
const SESSION_KEYS: [&str; 3] = ["labels", "keepers", "keeper_labels"];
const RULE_KEYS: [&str; 16] = [
    "name",
    "kinds",
    "object",
    "project",
    "labels",
    "without_labels",
    "named_as_project",
    "in_session",
    "with_image",
    "vouched",
    "states",
    "older_than",
    "older_than_remote",
    "idle_for",
    "keeper_gone",
    "session_quiet",
];

/// A recipe that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRecipe(String);

impl Recipe {
    /// Parses a recipe; `states` are those that some provider reports.
    ///
    /// # Errors
    ///
    /// Fails when it is not TOML, has unknown keys or values, or has a rule that would match every
    /// user's objects.
    pub fn parse(text: &str, states: &[&'static str]) -> Result<Self, InvalidRecipe> {
        let not_right = |error: toml::de::Error| InvalidRecipe(error.message().to_owned());
        let table: Table = text.parse().map_err(not_right)?;
        check_keys(&table)?;
        let recipe: Self = Value::Table(table).try_into().map_err(not_right)?;
        recipe.check(states)?;
        Ok(recipe)
    }

    fn check(&self, states: &[&'static str]) -> Result<(), InvalidRecipe> {
        if self.rules.is_empty() {
            return Err(InvalidRecipe("it has no rules".to_owned()));
        }
        let mut names = BTreeSet::new();
        for rule in &self.rules {
            if !names.insert(&rule.name) {
                return Err(InvalidRecipe(format!("two rules are called `{}`", rule.name)));
            }
            let wrong = rule.mistake(self.session.as_ref(), states);
            if let Some(mistake) = wrong {
                return Err(InvalidRecipe(format!("rule `{}`: {mistake}", rule.name)));
            }
        }
        Ok(())
    }
}

impl RecipeRule {
    /// Returns what is wrong with the rule, if anything is.
    fn mistake(&self, session: Option<&RecipeSession>, states: &[&'static str]) -> Option<String> {
        let marked = self.object.is_some() || self.project.is_some() || !self.labels.is_empty();
        let is_image = self.kinds.contains(&Kind::Image);
        let needs_session = self.in_session || self.keeper_gone || self.session_quiet;
        let cannot = [Kind::Process, Kind::Directory];
        let wrong = |text: &str| Some(text.to_owned());
        if self.kinds.is_empty() {
            return wrong("it has no kinds");
        }
        if self.kinds.iter().any(|kind| cannot.contains(kind)) {
            return wrong("process trees and directories are creel's own; no harness leaves them");
        }
        if !marked && !self.in_session {
            return wrong("it needs an object, a project, labels or in_session: it would mean all");
        }
        let untagged = self.states == ["dangling"];
        if is_image && self.object.is_none() && !untagged {
            return wrong(
                "images are known only by an object, unless their one state is dangling: they \
                 inherit labels",
            );
        }
        let groups = self.project.as_ref().map_or(0, Pattern::groups);
        if self.with_image.is_some() && groups == 0 {
            return wrong("with_image needs a project with a group");
        }
        if needs_session && session.is_none() {
            return wrong("it asks about a session, and the recipe has no [session]");
        }
        if self.keeper_gone && session.is_some_and(RecipeSession::has_no_keepers) {
            return wrong(
                "it asks about a keeper, and [session] has neither keepers nor labels of them",
            );
        }
        if self.older_than_remote.is_some_and(|remote| remote < self.older_than) {
            return wrong("older_than_remote must not be shorter than older_than");
        }
        let unknown =
            |state: &String| UnknownName::pick(state, "state", states, |known| known).err();
        self.states.iter().find_map(unknown).map(|error| error.to_string())
    }
}

impl RecipeSession {
    fn has_no_keepers(&self) -> bool {
        self.keepers.is_empty() && self.keeper_labels.is_empty()
    }
}

/// Refuses unknown keys and suggests the nearest known one.
fn check_keys(table: &Table) -> Result<(), InvalidRecipe> {
    known(table, &RECIPE_KEYS, "the recipe")?;
    if let Some(Value::Table(session)) = table.get("session") {
        known(session, &SESSION_KEYS, "[session]")?;
    }
    let rules = table.get("rule").and_then(Value::as_array);
    for rule in rules.into_iter().flatten().filter_map(Value::as_table) {
        let name = rule.get("name").and_then(Value::as_str).unwrap_or("without a name");
        known(rule, &RULE_KEYS, &format!("rule `{name}`"))?;
    }
    Ok(())
}

fn known(table: &Table, keys: &[&'static str], place: &str) -> Result<(), InvalidRecipe> {
    for key in table.keys() {
        UnknownName::pick(key, "key", keys, |known| known)
            .map_err(|error| InvalidRecipe(format!("{place}: {error}")))?;
    }
    Ok(())
}

/// Deserializes a list of values that are written as text.
fn texts<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::provider_states;

    const WHOLE: &str = r#"
        summary = "everything"
        programs = ["bench*"]
        interpreters = ["python*"]
        owners = "any"
        vouch = "project"
        [session]
        labels = ["s"]
        keepers = ["keeper-{session}"]
        keeper_labels = ["keeper=1"]
        [[rule]]
        name = "all"
        kinds = ["container"]
        object = "bench-.+"
        project = "(bench)"
        with_image = "$1:latest"
        vouched = true
        labels = ["a", "b=c"]
        without_labels = ["keep"]
        named_as_project = true
        in_session = true
        states = ["exited"]
        older_than = "1h"
        older_than_remote = "1d"
        idle_for = "1h"
        keeper_gone = true
        session_quiet = true
    "#;

    fn error(text: &str) -> String {
        Recipe::parse(text, &provider_states()).unwrap_err().to_string()
    }

    fn rule(body: &str) -> String {
        format!("summary = \"s\"\n[[rule]]\nname = \"r\"\n{body}")
    }

    #[test]
    fn every_documented_key_can_be_used() {
        let recipe = Recipe::parse(WHOLE, &provider_states()).unwrap();
        assert_eq!(recipe.owners, Owners::Any);
        assert_eq!(recipe.rules[0].older_than_remote, Some(Duration::from_secs(86_400)));
        let page = include_str!("../../../../docs/reference/recipes.md");
        for key in RECIPE_KEYS.iter().chain(&SESSION_KEYS).chain(&RULE_KEYS) {
            assert!(WHOLE.contains(key), "{key}");
            assert!(page.contains(&format!("`{key}`")), "{key} is not documented");
        }
    }

    #[test]
    fn an_unknown_key_suggests_the_nearest_one() {
        let typo = rule("kinds = [\"container\"]\nobject = \"x\"\nolder_then = \"1h\"");
        assert_eq!(error(&typo), "rule `r`: unknown key `older_then`; did you mean `older_than`?");
        let typo = "summry = \"x\"\nrule = []";
        assert_eq!(error(typo), "the recipe: unknown key `summry`; did you mean `summary`?");
        let typo = "summary = \"x\"\nrule = []\n[session]\nlabel = []";
        assert_eq!(error(typo), "[session]: unknown key `label`; did you mean `labels`?");
    }

    #[test]
    fn a_rule_that_would_match_all_objects_is_refused() {
        let wide = rule("kinds = [\"container\"]\nolder_than = \"1h\"\nstates = [\"exited\"]");
        assert!(error(&wide).contains("it would mean all"));
        let image = rule("kinds = [\"image\"]\nolder_than = \"1h\"\nlabels = [\"mine\"]");
        assert!(error(&image).contains("inherit labels"));
        let untagged = image.replace("labels =", "states = [\"dangling\"]\nlabels =");
        assert!(Recipe::parse(&untagged, &provider_states()).is_ok());
        let ungrouped = rule(
            "kinds = [\"network\"]\nolder_than = \"1h\"\nproject = \"p\"\nwith_image = \"$1\"",
        );
        assert!(error(&ungrouped).contains("a project with a group"));
    }

    #[test]
    fn a_rule_without_an_age_or_with_a_wrong_value_is_refused() {
        let body = "kinds = [\"container\"]\nobject = \"x\"\n";
        assert!(error(&rule(body)).contains("older_than"));
        let shorter = format!("{body}older_than = \"1h\"\nolder_than_remote = \"1m\"");
        assert!(error(&rule(&shorter)).contains("must not be shorter"));
        let state = format!("{body}older_than = \"1h\"\nstates = [\"exitd\"]");
        assert_eq!(error(&rule(&state)), "rule `r`: unknown state `exitd`; did you mean `exited`?");
        let session = format!("{body}older_than = \"1h\"\nsession_quiet = true");
        assert!(error(&rule(&session)).contains("no [session]"));
        let kind = "kinds = [\"process\"]\nobject = \"x\"\nolder_than = \"1h\"";
        assert!(error(&rule(kind)).contains("creel's own"));
        assert_eq!(error("summary = \"s\"\nrule = []"), "it has no rules");
    }
}
