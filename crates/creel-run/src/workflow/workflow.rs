//! Parses workflow files, and resolves workflows for the run engine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use creel_model::backend::Backends;
use toml::de::DeTable;

use super::error::Problem;
use super::file::File;
use super::place::{Lines, Places};
use super::reference::ReferenceSource;
use super::resolve::{Resolution, resolve};
use super::source::LARGEST;
use super::suggest::suggestion;
use super::{Resolved, Source, WorkflowError, shape};

/// A workflow whose file is valid, as far as that is known without the values of its references.
#[derive(Clone)]
pub struct Workflow {
    /// The file's name, for messages.
    name: String,
    file: File,
    places: Places,
    inputs: BTreeSet<String>,
    /// The providers that a sandbox may have.
    backends: Backends,
}

/// The source of values for references.
#[derive(Clone, Copy)]
pub struct Lookup<'a> {
    /// The environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The inputs of the run.
    pub inputs: &'a BTreeMap<String, String>,
}

impl fmt::Debug for Lookup<'_> {
    /// Does not show inputs, because they are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").finish_non_exhaustive()
    }
}

impl fmt::Debug for Workflow {
    /// Does not show prompts, because they are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workflow").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Workflow {
    /// Parses a workflow.
    ///
    /// # Errors
    ///
    /// Fails with all problems of the first stage that finds any, each with its place. The stages
    /// are: TOML syntax; keys that are unknown, missing or of the wrong type; invalid values.
    pub fn parse(source: &Source, backends: Backends) -> Result<Self, WorkflowError> {
        let name = source.name.clone();
        let (file, places) =
            read(&source.text).map_err(|problems| WorkflowError::of(&name, problems))?;
        let Resolution { problems, references, .. } = resolve((&file, &places), backends, None);
        if !problems.is_empty() {
            return Err(WorkflowError::of(&name, problems));
        }
        let inputs = references.into_iter().filter(|known| known.origin == ReferenceSource::Input);
        let inputs = inputs.map(|reference| reference.name).collect();
        Ok(Self { name, file, places, inputs, backends })
    }

    /// Returns the inputs that the workflow refers to.
    pub fn inputs(&self) -> BTreeSet<String> {
        self.inputs.clone()
    }

    /// Resolves every value.
    ///
    /// # Errors
    ///
    /// Fails with all problems: references without a value, except for credentials, which the run
    /// reports; inputs that nothing refers to; values that turn out to be invalid; a runtime that
    /// this build cannot run.
    pub fn resolve(&self, lookup: &Lookup<'_>) -> Result<Resolved, WorkflowError> {
        let Resolution { resolved, mut problems, .. } =
            resolve((&self.file, &self.places), self.backends, Some(lookup));
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

/// Reads the keys of a file, and records their places.
fn read(text: &str) -> Result<(File, Places), Vec<Problem>> {
    if text.len() > LARGEST {
        let message = format!("it is larger than the {} KiB a workflow may have", LARGEST >> 10);
        return Err(vec![Problem { place: None, message }]);
    }
    let lines = Lines::of(text);
    // Only the message is reported, because the whole error repeats lines of the file.
    let to_problem = |error: &toml::de::Error| Problem {
        place: error.span().map(|span| lines.place(span.start)),
        message: error.message().to_owned(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors.iter().map(to_problem).collect());
    }
    let mistakes = shape::mistakes(&table, &lines);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let places = Places::of(table.get_ref(), &lines);
    let file = toml::from_str(text).map_err(|error| vec![to_problem(&error)])?;
    Ok((file, places))
}
