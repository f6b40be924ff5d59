//! The recipe store: built-in recipes, and those of the user, which take precedence.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::builtin::BUILT_IN;
use super::{InvalidRecipe, Recipe};

/// Minimum similarity of a suggested name.
const LIKENESS: f64 = 0.8;

/// A recipe that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// There is no recipe of this name.
    #[error("unknown recipe `{name}`; {suggestion}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The suggestion for the user.
        suggestion: String,
    },
    /// The file or its directory cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The recipe is invalid.
    #[error("the recipe in {origin} is not right")]
    Invalid {
        /// Where the recipe comes from.
        origin: RecipeOrigin,
        /// What is wrong.
        source: InvalidRecipe,
    },
}

/// Where a recipe comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipeOrigin {
    /// It is built in.
    BuiltIn,
    /// It is a file of the user.
    File {
        /// The path of the file.
        path: PathBuf,
        /// Whether it replaces a built-in recipe of the same name.
        replaces: bool,
    },
}

impl std::fmt::Display for RecipeOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::File { path, .. } => write!(f, "{}", path.display()),
        }
    }
}

/// A recipe, its text and where it comes from.
#[derive(Debug, Clone)]
pub struct RecipeEntry {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub origin: RecipeOrigin,
    /// The text it was read from.
    pub text: String,
    /// The parsed recipe.
    pub recipe: Recipe,
}

/// All available recipes.
#[derive(Debug, Clone)]
pub struct RecipeStore {
    directory: PathBuf,
    /// The states that some provider reports.
    states: Vec<&'static str>,
}

impl RecipeStore {
    /// Returns the recipes of a state directory; `states` are those that some provider reports.
    pub fn of(home: &Path, states: Vec<&'static str>) -> Self {
        Self { directory: home.join("recipes"), states }
    }

    /// Returns the names of all recipes, sorted.
    ///
    /// # Errors
    ///
    /// Fails when the user's directory exists and cannot be read.
    pub fn names(&self) -> Result<Vec<String>, RecipeError> {
        let mut names: BTreeSet<String> =
            BUILT_IN.iter().map(|(name, _)| (*name).to_owned()).collect();
        let unreadable = |source| RecipeError::Unreadable { path: self.directory.clone(), source };
        let entries = match std::fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(names.into_iter().collect()),
            Err(error) => return Err(unreadable(error)),
        };
        for entry in entries {
            let path = entry.map_err(unreadable)?.path();
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if path.extension().is_some_and(|end| end == "toml") && is_name(name) {
                names.insert(name.to_owned());
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Loads a recipe; the user's file takes precedence over a built-in recipe of that name.
    ///
    /// # Errors
    ///
    /// Fails when there is no recipe of that name, or it cannot be read or is invalid.
    pub fn take(&self, name: &str) -> Result<RecipeEntry, RecipeError> {
        let built_in = built_in(name);
        match (self.users(name)?, built_in) {
            (Some((path, text)), _) => {
                self.entry(name, RecipeOrigin::File { path, replaces: built_in.is_some() }, text)
            }
            (None, Some(text)) => self.entry(name, RecipeOrigin::BuiltIn, text.to_owned()),
            (None, None) => Err(self.unknown(name)?),
        }
    }

    /// Loads a recipe in order to print its text.
    ///
    /// An empty file of the user does not count: a shell that redirects the output into that file
    /// has emptied it before this program starts.
    ///
    /// # Errors
    ///
    /// Fails when there is no recipe of that name, or it cannot be read or is invalid.
    pub fn load_to_show(&self, name: &str) -> Result<RecipeEntry, RecipeError> {
        match (self.users(name)?, built_in(name)) {
            (Some((_, users)), Some(text)) if users.trim().is_empty() => {
                self.entry(name, RecipeOrigin::BuiltIn, text.to_owned())
            }
            _ => self.take(name),
        }
    }

    /// Reads the user's recipe of this name, if there is one.
    fn users(&self, name: &str) -> Result<Option<(PathBuf, String)>, RecipeError> {
        // A name is not a path: it must not escape the directory.
        if !is_name(name) {
            return Ok(None);
        }
        let path = self.directory.join(format!("{name}.toml"));
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(RecipeError::Unreadable { path, source }),
        }
    }

    /// Parses the text of a recipe.
    fn entry(
        &self,
        name: &str,
        origin: RecipeOrigin,
        text: String,
    ) -> Result<RecipeEntry, RecipeError> {
        let recipe = Recipe::parse(&text, &self.states)
            .map_err(|source| RecipeError::Invalid { origin: origin.clone(), source })?;
        Ok(RecipeEntry { name: name.to_owned(), origin, text, recipe })
    }

    fn unknown(&self, name: &str) -> Result<RecipeError, RecipeError> {
        let known = self.names()?;
        let alike = known.iter().map(|known| (strsim::jaro_winkler(name, known), known));
        let nearest = alike.filter(|(likeness, _)| *likeness > LIKENESS);
        let suggestion = match nearest.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, nearest)) => format!("did you mean `{nearest}`?"),
            None => format!("known are {}", known.join(", ")),
        };
        Ok(RecipeError::Unknown { name: name.to_owned(), suggestion })
    }
}

/// Returns the text of a built-in recipe.
fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(fits)
}

/// Returns whether the error means that the file or its directory does not exist.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::provider_states;

    const MINE: &str = "summary = \"mine\"\n[[rule]]\nname = \"r\"\nkinds = [\"network\"]\n\
                        object = \"x\"\nolder_than = \"1h\"\n";

    fn home_with(name: &str, text: &str) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("recipes")).unwrap();
        std::fs::write(home.path().join("recipes").join(name), text).unwrap();
        home
    }

    #[test]
    fn every_built_in_recipe_is_valid() {
        let home = tempfile::tempdir().unwrap();
        let store = RecipeStore::of(home.path(), provider_states());
        let names = store.names().unwrap();
        let expected = [
            "compose",
            "harbor",
            "inspect",
            "openhands",
            "swe-bench",
            "terminal-bench",
            "testcontainers",
        ];
        assert_eq!(names, expected);
        for name in names {
            let entry = store.take(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(entry.origin, RecipeOrigin::BuiltIn);
        }
    }

    #[test]
    fn the_users_recipe_wins_and_reports_whether_it_replaces_one() {
        let home = home_with("harbor.toml", MINE);
        let store = RecipeStore::of(home.path(), provider_states());
        let entry = store.take("harbor").unwrap();
        assert_eq!(entry.recipe.summary, "mine");
        assert!(matches!(entry.origin, RecipeOrigin::File { replaces: true, .. }));
        let home = home_with("mine.toml", MINE);
        let store = RecipeStore::of(home.path(), provider_states());
        assert_eq!(store.names().unwrap().len(), BUILT_IN.len() + 1);
        let origin = store.take("mine").unwrap().origin;
        assert!(matches!(origin, RecipeOrigin::File { replaces: false, .. }), "{origin}");
    }

    #[test]
    fn a_recipe_can_be_shown_into_the_file_that_replaces_it() {
        let home = home_with("harbor.toml", "");
        let store = RecipeStore::of(home.path(), provider_states());
        let shown = store.load_to_show("harbor").unwrap();
        assert_eq!(shown.origin, RecipeOrigin::BuiltIn);
        // But an empty file is not a recipe to sweep with.
        assert!(store.take("harbor").is_err());
        std::fs::write(home.path().join("recipes/harbor.toml"), &shown.text).unwrap();
        assert_eq!(store.load_to_show("harbor").unwrap().text, shown.text);
        assert!(matches!(store.take("harbor").unwrap().origin, RecipeOrigin::File { .. }));
    }

    #[test]
    fn an_unknown_name_suggests_the_nearest_and_is_never_a_path() {
        let home = home_with("mine.toml", MINE);
        let store = RecipeStore::of(home.path(), provider_states());
        let error_of = |name: &str| store.take(name).unwrap_err().to_string();
        assert_eq!(error_of("harbour"), "unknown recipe `harbour`; did you mean `harbor`?");
        assert!(error_of("../recipes/mine").starts_with("unknown recipe"));
        assert!(error_of("zzz").contains("known are compose, harbor, inspect, mine,"));
    }

    #[test]
    fn an_invalid_recipe_is_named_with_its_file() {
        let home = home_with("mine.toml", "summary = 1");
        let error =
            RecipeStore::of(home.path(), provider_states()).take("mine").unwrap_err().to_string();
        assert!(error.contains("mine.toml is not right"), "{error}");
    }
}
