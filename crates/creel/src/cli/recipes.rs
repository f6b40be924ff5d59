//! `creel recipes`: lists recipes and prints them.

use clap::{Args, Subcommand};
use creel_core::pipeline::Survey;
use creel_core::recipe::{Findings, RecipeEntry, RecipeOrigin, RecipeStore, Vouch};
use creel_model::provider::Providers;
use serde::Serialize;

use crate::app::App;
use crate::backends::BACKENDS;
use crate::output::{Exit, Failure, table};

/// List the cleanup recipes for harnesses
///
/// A recipe selects resources with a harness's names and labels that are proven
/// finished; see `creel sweep --recipe`. Add your own as NAME.toml in the
/// directory recipes of CREEL_HOME. A file with the name of a built-in recipe
/// replaces it.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  creel recipes                          list all recipes and their origins
  creel recipes show harbor              print its rules
  creel sweep --recipe harbor            show what it would release, and what not"
)]
pub(crate) struct Recipes {
    #[command(subcommand)]
    command: Option<RecipesSubcommand>,
}

#[derive(Debug, Subcommand)]
enum RecipesSubcommand {
    /// Print a recipe as TOML
    #[command(after_help = "\
Examples:
  creel recipes show testcontainers
  mkdir -p ~/.local/state/creel/recipes
  creel recipes show harbor > ~/.local/state/creel/recipes/harbor.toml")]
    Show {
        /// The name of the recipe
        name: String,
    },
}

#[derive(Serialize)]
struct RecipesJson {
    version: u32,
    recipes: Vec<RecipeJson>,
    /// Files that cannot be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    broken: Vec<BrokenJson>,
}

#[derive(Serialize)]
struct BrokenJson {
    name: String,
    error: String,
}

#[derive(Serialize)]
struct RecipeJson {
    name: String,
    origin: String,
    replaces_built_in: bool,
    summary: String,
}

#[derive(Serialize)]
struct ShownJson {
    version: u32,
    name: String,
    origin: String,
    replaces_built_in: bool,
    text: String,
}

impl Recipes {
    pub(crate) fn run(self, app: &App) -> Result<Exit, Failure> {
        let store = RecipeStore::of(&app.environment.home, BACKENDS.states());
        match self.command {
            Some(RecipesSubcommand::Show { name }) => show(app, store.load_to_show(&name)?),
            None => list(app, &store)?,
        }
        Ok(Exit::Done)
    }
}

/// Lists all recipes. An invalid file hides none of the others.
fn list(app: &App, store: &RecipeStore) -> Result<(), Failure> {
    let (mut entries, mut broken) = (Vec::new(), Vec::new());
    for name in store.names()? {
        match store.take(&name) {
            Ok(entry) => entries.push(entry),
            Err(error) => broken.push((name, Failure::from(error))),
        }
    }
    print_list(app, entries, &broken);
    match broken.into_iter().next() {
        Some((_, failure)) => Err(failure.after_output()),
        None => Ok(()),
    }
}

fn print_list(app: &App, entries: Vec<RecipeEntry>, broken: &[(String, Failure)]) {
    if app.printer.json {
        let recipes = entries.into_iter().map(|entry| RecipeJson {
            origin: entry.origin.to_string(),
            replaces_built_in: replaces(&entry),
            summary: entry.recipe.summary,
            name: entry.name,
        });
        let broken = broken
            .iter()
            .map(|(name, failure)| BrokenJson { name: name.clone(), error: failure.sentence() });
        let (recipes, broken) = (recipes.collect(), broken.collect());
        return app.printer.json(&RecipesJson { version: 1, recipes, broken });
    }
    let mut table = table::new(&["NAME", "ORIGIN", "LEFTOVERS"]);
    for entry in entries {
        let instead = if replaces(&entry) { " (instead of the built-in one)" } else { "" };
        let origin = format!("{}{instead}", entry.origin);
        table.add_row([entry.name, origin, entry.recipe.summary]);
    }
    for (name, failure) in broken {
        table.add_row([name.clone(), "cannot be used".to_owned(), failure.sentence()]);
    }
    app.printer.data(&table::render(&table));
}

fn show(app: &App, entry: RecipeEntry) {
    if app.printer.json {
        app.printer.json(&ShownJson {
            version: 1,
            origin: entry.origin.to_string(),
            replaces_built_in: replaces(&entry),
            name: entry.name,
            text: entry.text,
        });
        return;
    }
    say_if_replaced(app, &entry);
    app.printer.data(entry.text.trim_end());
}

/// Loads a recipe, and reports it if it replaces the built-in one of that name.
pub(super) fn load(app: &App, name: &str) -> Result<RecipeEntry, Failure> {
    let entry = RecipeStore::of(&app.environment.home, BACKENDS.states()).take(name)?;
    say_if_replaced(app, &entry);
    Ok(entry)
}

/// Judges with a recipe what has finished, or relies on the user's --ended.
pub(super) async fn judge(
    app: &App,
    entry: &RecipeEntry,
    survey: &mut Survey,
    providers: &Providers,
    vouched: Option<&[String]>,
) -> Result<Findings, Failure> {
    if let Some(projects) = vouched {
        check_vouched(entry, projects)?;
    }
    let findings = survey.judge(entry, providers, vouched.is_some()).await?;
    for process in &findings.still_running {
        app.printer.warn(&format!("warning: {process} runs; --ended means what it uses too"));
    }
    Ok(findings)
}

/// Refuses --ended without a project for a harness whose marks other tools use too.
fn check_vouched(entry: &RecipeEntry, projects: &[String]) -> Result<(), Failure> {
    if entry.recipe.vouch == Vouch::Project && projects.is_empty() {
        let name = &entry.name;
        let message = format!("with the recipe {name}, --ended needs the --project that has ended");
        return Err(
            Failure::usage(&message).hint(format!("creel ls --recipe {name} lists the projects"))
        );
    }
    Ok(())
}

fn say_if_replaced(app: &App, entry: &RecipeEntry) {
    if replaces(entry) {
        let (name, origin) = (&entry.name, &entry.origin);
        app.printer.say(&format!("the recipe {name} is yours: {origin}, not the built-in one"));
    }
}

fn replaces(entry: &RecipeEntry) -> bool {
    matches!(entry.origin, RecipeOrigin::File { replaces: true, .. })
}
