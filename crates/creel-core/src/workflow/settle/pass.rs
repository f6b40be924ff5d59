//! One pass over the values of a file: fills in references, reads values, notes what is wrong.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use secrecy::SecretString;

use crate::names::{self, InvalidName};
use crate::provider::UnknownName;
use crate::workflow::Lookup;
use crate::workflow::error::Problem;
use crate::workflow::place::{KeyPath, Places};
use crate::workflow::reference::{Manner, Origin, Piece, Reference, Template};
use crate::workflow::resolved::Given;
use crate::{duration, size};

/// What all strings of a workflow may come to, once their references are filled in.
const LARGEST_WHOLE: usize = 8 << 20;

/// A pass over the values of a file.
pub(super) struct Pass<'a> {
    places: &'a Places,
    /// Where values of references come from; `None` in the pass that is made without.
    lookup: Option<&'a Lookup<'a>>,
    problems: Vec<Problem>,
    notes: Vec<String>,
    references: BTreeSet<Reference>,
    /// What was referred to and not given, each named once.
    missing: BTreeSet<Reference>,
    given: Given,
    /// How much more all strings may come to.
    room: usize,
}

/// A string with its references filled in.
#[derive(Clone)]
pub(super) struct Text {
    /// What it says.
    pub(super) text: String,
    /// Whether something in it came by reference, so that messages must not repeat it.
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

/// What came of filling in a string.
pub(super) enum Filled {
    /// It is known.
    Known(Text),
    /// It is not known in this pass, or something is wrong with it that has been noted.
    Unknown,
    /// It refers to something that was not given.
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
            given: Given::default(),
            room: LARGEST_WHOLE,
        }
    }

    /// Returns what it gathered.
    pub(super) fn finish(self) -> (Given, Vec<String>, Vec<Problem>, BTreeSet<Reference>) {
        (self.given, self.notes, self.problems, self.references)
    }

    /// Returns whether references have their values in this pass.
    pub(super) fn is_final(&self) -> bool {
        self.lookup.is_some()
    }

    /// Notes what is wrong with a value.
    pub(super) fn wrong(&mut self, at: &KeyPath, message: impl fmt::Display) {
        let place = Some(self.places.find(at));
        self.problems.push(Problem { place, message: format!("`{at}`: {message}") });
    }

    /// Notes that a value has no effect.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Notes that a variable of the sandbox was given by reference.
    pub(super) fn note_variable(&mut self, name: &str) {
        self.given.sandbox_env.insert(name.to_owned());
    }

    /// Fills in the references of a string.
    pub(super) fn fill(&mut self, at: &KeyPath, raw: &str, manner: Manner) -> Filled {
        let template = match Template::parse(raw, manner) {
            Ok(template) => template,
            Err(error) => {
                self.wrong(at, error);
                return Filled::Unknown;
            }
        };
        self.references.extend(template.references().cloned());
        let mut text = String::new();
        let mut by_reference = false;
        for piece in template.pieces() {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Reference(reference) => {
                    let Some(lookup) = self.lookup else { return Filled::Unknown };
                    let Some(value) = self.value(lookup, reference) else {
                        return Filled::Missing(reference.clone());
                    };
                    by_reference = true;
                    if !self.takes(at, value.len()) {
                        return Filled::Unknown;
                    }
                    text.push_str(&value);
                }
            }
        }
        Filled::Known(Text { text, by_reference })
    }

    /// Looks up a value, and remembers that it was used.
    fn value(&mut self, lookup: &Lookup<'_>, reference: &Reference) -> Option<String> {
        let name = &reference.name;
        match reference.origin {
            Origin::Env => {
                let value = (lookup.env)(name)?;
                self.given.env.insert(name.clone(), SecretString::from(value.clone()));
                Some(value)
            }
            Origin::Input => {
                let value = lookup.inputs.get(name)?.clone();
                self.given.inputs.insert(name.clone(), value.clone());
                Some(value)
            }
        }
    }

    /// Takes room for a value; notes where there is none.
    fn takes(&mut self, at: &KeyPath, length: usize) -> bool {
        let left = self.room.checked_sub(length);
        if left.is_none() && self.room > 0 {
            self.wrong(at, format!("references come to more than {} MiB", LARGEST_WHOLE >> 20));
        }
        self.room = left.unwrap_or(0);
        left.is_some()
    }

    /// Fills in a string that must be known in the end.
    fn known(&mut self, at: &KeyPath, raw: &str, manner: Manner) -> Option<Text> {
        match self.fill(at, raw, manner) {
            Filled::Known(text) => Some(text),
            Filled::Unknown => None,
            Filled::Missing(reference) => {
                self.note_missing(at, reference);
                None
            }
        }
    }

    /// Notes that something was referred to and not given, once for each.
    pub(super) fn note_missing(&mut self, at: &KeyPath, reference: Reference) {
        let message = match reference.origin {
            Origin::Env => format!("{reference} is not set in the environment"),
            Origin::Input => format!("{reference} was not given"),
        };
        if self.missing.insert(reference) {
            self.wrong(at, message);
        }
    }

    /// Reads a setting.
    pub(super) fn setting(&mut self, at: &KeyPath, raw: &str) -> Option<Text> {
        self.known(at, raw, Manner::Setting)
    }

    /// Reads what goes into a file.
    pub(super) fn content(&mut self, at: &KeyPath, raw: &str) -> Option<Text> {
        self.known(at, raw, Manner::FreeText)
    }

    /// Reads text with a `${` of its own, such as scripts have.
    pub(super) fn free(&mut self, at: &KeyPath, raw: &str) -> Option<Text> {
        let text = self.known(at, raw, Manner::FreeText)?;
        if text.text.contains('\0') {
            self.wrong(at, "it has a NUL in it");
        }
        Some(text)
    }

    /// Reads a setting of one line that is not empty.
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

    /// Reads what something is called.
    pub(super) fn name(&mut self, at: &KeyPath, raw: &str) -> String {
        let name = self.line(at, raw);
        if names::check(&name) == Err(InvalidName::TooLong) {
            self.wrong(at, InvalidName::TooLong);
        }
        name
    }

    /// Reads a setting of one line that may be missing.
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
        let words = raw.iter().enumerate().map(|(index, word)| {
            let at = at.index(index);
            match index {
                0 => self.prompt(&at, word),
                _ => self.free(&at, word).map_or_else(String::new, |text| text.text),
            }
        });
        words.collect()
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

    /// Reads a duration that is more than nothing.
    pub(super) fn span(&mut self, at: &KeyPath, raw: Option<&String>) -> Option<Duration> {
        let duration = self.duration(at, raw)?;
        if duration.is_zero() {
            self.wrong(at, "it must be more than nothing");
        }
        Some(duration)
    }

    /// Reads a size in bytes that is more than nothing.
    pub(super) fn size(&mut self, at: &KeyPath, raw: Option<&String>) -> Option<u64> {
        let text = self.setting(at, raw?)?;
        match size::parse(&text.text) {
            Ok(0) => self.wrong(at, "it must be more than nothing"),
            Ok(size) => return Some(size),
            Err(_) => self.wrong(at, format!("{text} is not a size such as 512m or 4g")),
        }
        None
    }

    /// Reads the name of one of a fixed list.
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

    /// Reads a secret, which must be one reference and nothing else.
    pub(super) fn secret(&mut self, at: &KeyPath, raw: &str) -> Filled {
        let alone = Template::parse(raw, Manner::Setting).map(|text| text.is_reference_alone());
        if alone == Ok(false) {
            // The value itself is not repeated: it may well be the secret.
            let message = "a secret is given only by reference, such as \"${env:NAME}\", with \
                           nothing around it";
            self.wrong(at, message);
            return Filled::Unknown;
        }
        match self.fill(at, raw, Manner::Setting) {
            Filled::Known(text) if text.text.trim().is_empty() => {
                let template = Template::parse(raw, Manner::Setting).ok();
                let reference = template.and_then(|text| text.references().next().cloned());
                reference.map_or(Filled::Unknown, Filled::Missing)
            }
            other => other,
        }
    }
}
