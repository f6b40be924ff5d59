//! From a text to a workflow, and from a workflow to what the run engine works from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::de::DeTable;

use super::error::Problem;
use super::file::File;
use super::place::{Lines, Places};
use super::reference::Origin;
use super::settle::{Settled, settle};
use super::source::LARGEST;
use super::suggest::suggestion;
use super::{Resolved, Source, WorkflowError, shape};

/// A workflow whose file is right, as far as that can be told without what it refers to.
#[derive(Clone)]
pub struct Workflow {
    /// The file's name, for messages.
    name: String,
    file: File,
    places: Places,
    inputs: BTreeSet<String>,
}

/// Where values of references come from.
#[derive(Clone, Copy)]
pub struct Lookup<'a> {
    /// The environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The inputs of the run.
    pub inputs: &'a BTreeMap<String, String>,
}

impl fmt::Debug for Lookup<'_> {
    /// Inputs are nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").finish_non_exhaustive()
    }
}

impl fmt::Debug for Workflow {
    /// Prompts are nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workflow").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Workflow {
    /// Reads a workflow.
    ///
    /// # Errors
    ///
    /// Fails with everything that is wrong with the file, each with its place: what is no TOML;
    /// else keys that are unknown, missing or of another type; else values that make no sense.
    pub fn parse(source: &Source) -> Result<Self, WorkflowError> {
        let name = source.name.clone();
        let (file, places) =
            read(&source.text).map_err(|problems| WorkflowError::of(&name, problems))?;
        let Settled { problems, references, .. } = settle(&file, &places, None);
        if !problems.is_empty() {
            return Err(WorkflowError::of(&name, problems));
        }
        let inputs = references.into_iter().filter(|known| known.origin == Origin::Input);
        let inputs = inputs.map(|reference| reference.name).collect();
        Ok(Self { name, file, places, inputs })
    }

    /// Returns the inputs that the workflow refers to.
    pub fn inputs(&self) -> BTreeSet<String> {
        self.inputs.clone()
    }

    /// Puts every value in its place.
    ///
    /// # Errors
    ///
    /// Fails with everything that is wrong: what was referred to and not given, except for
    /// credentials, where the run tells; inputs that nothing refers to; values that make no
    /// sense now that they are known; a runtime that this build cannot run.
    pub fn resolve(&self, lookup: &Lookup<'_>) -> Result<Resolved, WorkflowError> {
        let Settled { resolved, mut problems, .. } = settle(&self.file, &self.places, Some(lookup));
        problems.extend(self.unused(lookup.inputs));
        if problems.is_empty() {
            Ok(resolved)
        } else {
            Err(WorkflowError::of(&self.name, problems))
        }
    }

    fn unused(&self, given: &BTreeMap<String, String>) -> impl Iterator<Item = Problem> {
        let unused = given.keys().filter(|name| !self.inputs.contains(*name));
        unused.map(|name| {
            let suggestion = match self.inputs.len() {
                0 => "it has no inputs".to_owned(),
                _ => suggestion(name, self.inputs.iter().map(String::as_str)),
            };
            let message = format!("nothing refers to the input `{name}`; {suggestion}");
            Problem { place: None, message }
        })
    }
}

/// Reads the keys of a file, and notes where they stand.
fn read(text: &str) -> Result<(File, Places), Vec<Problem>> {
    if text.len() > LARGEST {
        let message = format!("it is larger than the {} KiB a workflow may have", LARGEST >> 10);
        return Err(vec![Problem { place: None, message }]);
    }
    let lines = Lines::of(text);
    // Only the message is told: the whole error repeats lines of the file.
    let told = |error: &toml::de::Error| Problem {
        place: error.span().map(|span| lines.place(span.start)),
        message: error.message().to_owned(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors.iter().map(told).collect());
    }
    let mistakes = shape::mistakes(&table, &lines);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let places = Places::of(table.get_ref(), &lines);
    let file = toml::from_str(text).map_err(|error| vec![told(&error)])?;
    Ok((file, places))
}
