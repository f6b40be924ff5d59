//! `creel recipes`: what recipes there are, and what they say.

use clap::{Args, Subcommand};
use creel_core::provider::Providers;
use creel_core::recipe::{
    self, Entry, Findings, LocalEvidence, Origin, Shelf, Surroundings, Vouch,
};
use creel_core::select::Roll;
use serde::Serialize;

use crate::app::{App, Listing};
use crate::output::{Exit, Failure, table};

/// List the recipes: what harnesses leave behind, and what proves it finished
///
/// A recipe selects what bears a harness's own names and labels and is proven
/// finished; see `creel sweep --recipe`. Your own are files NAME.toml in the
/// directory recipes of CREEL_HOME; one with the name of a built-in recipe is
/// used in its place.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  creel recipes                          what there is, and where it comes from
  creel recipes show harbor              by what it knows things, and what it asks for
  creel sweep --recipe harbor            what would go by it, and what stays, and why"
)]
pub(crate) struct Recipes {
    #[command(subcommand)]
    command: Option<RecipesSubcommand>,
}

#[derive(Debug, Subcommand)]
enum RecipesSubcommand {
    /// Print a recipe, ready to be edited
    #[command(after_help = "\
Examples:
  creel recipes show testcontainers
  mkdir -p ~/.local/state/creel/recipes
  creel recipes show harbor > ~/.local/state/creel/recipes/harbor.toml")]
    Show {
        /// The recipe's name
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
        let shelf = Shelf::of(&app.environment.home);
        match self.command {
            Some(RecipesSubcommand::Show { name }) => show(app, shelf.take_to_show(&name)?),
            None => list(app, &shelf)?,
        }
        Ok(Exit::Done)
    }
}

/// Lists what there is. A file that is not right hides none of the others.
fn list(app: &App, shelf: &Shelf) -> Result<(), Failure> {
    let (mut entries, mut broken) = (Vec::new(), Vec::new());
    for name in shelf.names()? {
        match shelf.take(&name) {
            Ok(entry) => entries.push(entry),
            Err(error) => broken.push((name, Failure::from(error))),
        }
    }
    print_list(app, entries, &broken);
    match broken.into_iter().next() {
        Some((_, failure)) => Err(failure.after_answer()),
        None => Ok(()),
    }
}

fn print_list(app: &App, entries: Vec<Entry>, broken: &[(String, Failure)]) {
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

fn show(app: &App, entry: Entry) {
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

/// Takes a recipe off the shelf, and says so where it is not the one people know by that name.
pub(super) fn take(app: &App, name: &str) -> Result<Entry, Failure> {
    let entry = Shelf::of(&app.environment.home).take(name)?;
    say_if_replaced(app, &entry);
    Ok(entry)
}

/// Looks closely at what bears the recipe's marks, and says of each whether it has finished.
pub(super) async fn judge(
    entry: &Entry,
    listing: &mut Listing,
    roll: &Roll,
    providers: &Providers,
    ended: bool,
) -> Result<Findings, Failure> {
    let listed = std::mem::take(&mut listing.inventory);
    listing.inventory = recipe::look_closer(&entry.recipe, listed, providers).await?;
    listing.inventory.iter_mut().for_each(|seen| roll.date(seen));
    let inventory = &listing.inventory;
    let evidence = LocalEvidence::gather(&entry.recipe, inventory, providers).await?;
    let around = Surroundings { inventory, evidence: &evidence, ended };
    Ok(entry.recipe.judge(&entry.name, &around))
}

/// Refuses to take a user's word for the end of a harness whose marks others use too.
pub(super) fn check_vouched(entry: &Entry, projects: &[String]) -> Result<(), Failure> {
    if entry.recipe.vouch == Vouch::Project && projects.is_empty() {
        let name = &entry.name;
        let message = format!("with the recipe {name}, --ended needs the --project that has ended");
        return Err(
            Failure::usage(&message).hint(format!("creel ls --recipe {name} lists the projects"))
        );
    }
    Ok(())
}

/// Warns of what contradicts the user who says that a harness has ended.
pub(super) fn warn_of_running(app: &App, findings: &Findings) {
    for process in &findings.still_running {
        app.printer.warn(&format!("warning: {process} runs; --ended means what it uses too"));
    }
}

fn say_if_replaced(app: &App, entry: &Entry) {
    if replaces(entry) {
        let (name, origin) = (&entry.name, &entry.origin);
        app.printer.say(&format!("the recipe {name} is yours: {origin}, not the built-in one"));
    }
}

fn replaces(entry: &Entry) -> bool {
    matches!(entry.origin, Origin::File { replaces: true, .. })
}
