//! One pass over the values of a file: fills in references, parses values, and collects problems.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use creel_model::names;
use creel_model::names::InvalidName;
use creel_model::provider::UnknownName;
use creel_model::{duration, size};
use secrecy::SecretString;

use crate::workflow::Lookup;
use crate::workflow::error::Problem;
use crate::workflow::place::{KeyPath, Places};
use crate::workflow::reference::{
    Reference, ReferenceMode, ReferenceSource, Template, TemplatePart,
};
use crate::workflow::resolved::ReferenceValues;

/// The maximum total size of the values that references insert.
const LARGEST_WHOLE: usize = 8 << 20;

/// A pass over the values of a file.
pub(super) struct Pass<'a> {
    places: &'a Places,
    /// The source of values for references, or `None` in the pass without values.
    lookup: Option<&'a Lookup<'a>>,
    problems: Vec<Problem>,
    notes: Vec<String>,
    references: BTreeSet<Reference>,
    /// The references without a value that were reported already.
    missing: BTreeSet<Reference>,
    reference_values: ReferenceValues,
    /// How much more references may insert.
    remaining: usize,
}

/// A string with its references filled in.
#[derive(Clone)]
pub(super) struct Text {
    /// The text.
    pub(super) text: String,
    /// Whether a part of it came from a reference, so that messages must not repeat it.
    pub(super) by_reference: bool,
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.by_reference {
            f.write_str("what it refers to")
        } else {
            write!(f, "`{}`", self.text.escape_debug())
        }
    }
}

/// The result of filling in a string.
pub(super) enum Filled {
    /// The value is known.
    Known(Text),
    /// The value is not known in this pass, or it has a problem that was reported.
    Unknown,
    /// A reference has no value.
    Missing(Reference),
}

impl<'a> Pass<'a> {
    /// Begins a pass.
    pub(super) fn new(places: &'a Places, lookup: Option<&'a Lookup<'a>>) -> Self {
        Self {
            places,
            lookup,
            problems: Vec::new(),
            notes: Vec::new(),
            references: BTreeSet::new(),
            missing: BTreeSet::new(),
            reference_values: ReferenceValues::default(),
            remaining: LARGEST_WHOLE,
        }
    }

    /// Returns what the pass collected.
    pub(super) fn finish(
        self,
    ) -> (ReferenceValues, Vec<String>, Vec<Problem>, BTreeSet<Reference>) {
        (self.reference_values, self.notes, self.problems, self.references)
    }

    /// Returns whether references have their values in this pass.
    pub(super) fn is_final(&self) -> bool {
        self.lookup.is_some()
    }

    /// Reports a problem with a value.
    pub(super) fn wrong(&mut self, at: &KeyPath, message: impl fmt::Display) {
        let place = Some(self.places.find(at));
        self.problems.push(Problem { place, message: format!("`{at}`: {message}") });
    }

    /// Adds a note that a value has no effect.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Records that a variable of the sandbox contains a reference.
    pub(super) fn note_variable(&mut self, name: &str) {
        self.reference_values.sandbox_env.insert(name.to_owned());
    }

    /// Fills in the references of a string.
    pub(super) fn fill(&mut self, at: &KeyPath, raw: &str, mode: ReferenceMode) -> Filled {
        let template = match Template::parse(raw, mode) {
            Ok(template) => template,
            Err(error) => {
                self.wrong(at, error);
                return Filled::Unknown;
            }
        };
        self.references.extend(template.references().cloned());
        let mut text = String::new();
        let mut by_reference = false;
        for part in template.parts() {
            match part {
                TemplatePart::Text(literal) => text.push_str(literal),
                TemplatePart::Reference(reference) => {
                    let Some(lookup) = self.lookup else { return Filled::Unknown };
                    let Some(value) = self.value(lookup, reference) else {
                        return Filled::Missing(reference.clone());
                    };
                    by_reference = true;
                    if !self.reserve(at, value.len()) {
                        return Filled::Unknown;
                    }
                    text.push_str(&value);
                }
            }
        }
        Filled::Known(Text { text, by_reference })
    }

    /// Returns the value of a reference, and records that it was used.
    fn value(&mut self, lookup: &Lookup<'_>, reference: &Reference) -> Option<String> {
        let name = &reference.name;
        match reference.origin {
            ReferenceSource::Env => {
                let value = (lookup.env)(name)?;
                self.reference_values.env.insert(name.clone(), SecretString::from(value.clone()));
                Some(value)
            }
            ReferenceSource::Input => {
                let value = lookup.inputs.get(name)?.clone();
                self.reference_values.inputs.insert(name.clone(), value.clone());
                Some(value)
            }
        }
    }

    /// Reserves space for a value. Reports a problem if there is not enough.
    fn reserve(&mut self, at: &KeyPath, length: usize) -> bool {
        let left = self.remaining.checked_sub(length);
        if left.is_none() && self.remaining > 0 {
            self.wrong(at, format!("references come to more than {} MiB", LARGEST_WHOLE >> 20));
        }
        self.remaining = left.unwrap_or(0);
        left.is_some()
    }

    /// Fills in a string whose references must have values.
    fn known(&mut self, at: &KeyPath, raw: &str, mode: ReferenceMode) -> Option<Text> {
        match self.fill(at, raw, mode) {
            Filled::Known(text) => Some(text),
            Filled::Unknown => None,
            Filled::Missing(reference) => {
                self.note_missing(at, reference);
                None
            }
        }
    }

    /// Reports a reference without a value, once per reference.
    pub(super) fn note_missing(&mut self, at: &KeyPath, reference: Reference) {
        let message = match reference.origin {
            ReferenceSource::Env => format!("{reference} is not set in the environment"),
            ReferenceSource::Input => format!("{reference} was not given"),
        };
        if self.missing.insert(reference) {
            self.wrong(at, message);
        }
    }

    /// Reads a setting.
    pub(super) fn setting(&mut self, at: &KeyPath, raw: &str) -> Option<Text> {
        self.known(at, raw, ReferenceMode::Setting)
    }

    /// Reads the content of a file.
    pub(super) fn content(&mut self, at: &KeyPath, raw: &str) -> Option<Text> {
        self.known(at, raw, ReferenceMode::FreeText)
    }

    /// Reads text that may contain other uses of `${`, such as scripts.
    pub(super) fn free(&mut self, at: &KeyPath, raw: &str) -> Option<Text> {
        let text = self.known(at, raw, ReferenceMode::FreeText)?;
        if text.text.contains('\0') {
            self.wrong(at, "it has a NUL in it");
        }
        Some(text)
    }

    /// Reads a setting that is a single line and not empty.
    pub(super) fn line(&mut self, at: &KeyPath, raw: &str) -> String {
        let Some(text) = self.setting(at, raw) else { return String::new() };
        if text.text.trim().is_empty() {
            self.wrong(at, "it is empty");
        }
        if text.text.contains(names::is_invisible) {
            self.wrong(at, "it has more than one line, or signs that cannot be seen");
        }
        text.text
    }

    /// Reads a name.
    pub(super) fn name(&mut self, at: &KeyPath, raw: &str) -> String {
        let name = self.line(at, raw);
        if names::check(&name) == Err(InvalidName::TooLong) {
            self.wrong(at, InvalidName::TooLong);
        }
        name
    }

    /// Reads an optional setting that is a single line.
    pub(super) fn optional_line(&mut self, at: &KeyPath, raw: Option<&String>) -> Option<String> {
        raw.map(|raw| self.line(at, raw))
    }

    /// Reads a prompt or a script: free text that is not empty.
    pub(super) fn prompt(&mut self, at: &KeyPath, raw: &str) -> String {
        let Some(text) = self.free(at, raw) else { return String::new() };
        if text.text.trim().is_empty() {
            self.wrong(at, "it is empty");
        }
        text.text
    }

    /// Reads a program and its arguments.
    pub(super) fn program(&mut self, at: &KeyPath, raw: &[String]) -> Vec<String> {
        if raw.is_empty() {
            self.wrong(at, "it is empty; write it as [\"program\", \"argument\"]");
        }
        let args = raw.iter().enumerate().map(|(index, arg)| {
            let at = at.index(index);
            match index {
                0 => self.prompt(&at, arg),
                _ => self.free(&at, arg).map_or_else(String::new, |text| text.text),
            }
        });
        args.collect()
    }

    /// Reads a duration.
    pub(super) fn duration(&mut self, at: &KeyPath, raw: Option<&String>) -> Option<Duration> {
        let text = self.setting(at, raw?)?;
        match duration::parse(&text.text) {
            Ok(duration) => Some(duration),
            Err(_) => {
                self.wrong(at, format!("{text} is not a duration such as 90s, 2h 30m or 1d"));
                None
            }
        }
    }

    /// Reads a duration that is not zero.
    pub(super) fn span(&mut self, at: &KeyPath, raw: Option<&String>) -> Option<Duration> {
        let duration = self.duration(at, raw)?;
        if duration.is_zero() {
            self.wrong(at, "it must be more than nothing");
        }
        Some(duration)
    }

    /// Reads a size in bytes that is not zero.
    pub(super) fn size(&mut self, at: &KeyPath, raw: Option<&String>) -> Option<u64> {
        let text = self.setting(at, raw?)?;
        match size::parse(&text.text) {
            Ok(0) => self.wrong(at, "it must be more than nothing"),
            Ok(size) => return Some(size),
            Err(_) => self.wrong(at, format!("{text} is not a size such as 512m or 4g")),
        }
        None
    }

    /// Reads a name from a fixed list.
    pub(super) fn choice<T: Copy>(
        &mut self,
        at: &KeyPath,
        raw: &str,
        (what, all, name): (&'static str, &[T], fn(T) -> &'static str),
    ) -> Option<T> {
        let text = self.setting(at, raw)?;
        match UnknownName::pick(&text.text, what, all, name) {
            Ok(choice) => return Some(choice),
            Err(_) if text.by_reference => {
                let known: Vec<&str> = all.iter().copied().map(name).collect();
                let known = known.join(", ");
                self.wrong(at, format!("what it refers to is no known {what}; known are {known}"));
            }
            Err(error) => self.wrong(at, error),
        }
        None
    }

    /// Reads a secret, which must be a single reference and nothing else.
    pub(super) fn secret(&mut self, at: &KeyPath, raw: &str) -> Filled {
        let is_single =
            Template::parse(raw, ReferenceMode::Setting).map(|text| text.is_single_reference());
        if is_single == Ok(false) {
            // The value itself is not repeated, because it may be the secret.
            let message = "a secret is given only by reference, such as \"${env:NAME}\", with \
                           nothing around it";
            self.wrong(at, message);
            return Filled::Unknown;
        }
        match self.fill(at, raw, ReferenceMode::Setting) {
            Filled::Known(text) if text.text.trim().is_empty() => {
                let template = Template::parse(raw, ReferenceMode::Setting).ok();
                let reference = template.and_then(|text| text.references().next().cloned());
                reference.map_or(Filled::Unknown, Filled::Missing)
            }
            other => other,
        }
    }
}
