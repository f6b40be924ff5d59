//! References in strings: `${env:NAME}`, `${input:NAME}`, and `$${` for a plain `${`.

use std::fmt;

use super::suggest::nearest;

/// Where the value of a reference comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// A variable of the environment.
    Env,
    /// An input of the run.
    Input,
}

impl Origin {
    const NAMES: [&'static str; 2] = ["env", "input"];

    fn name(self) -> &'static str {
        match self {
            Self::Env => "env",
            Self::Input => "input",
        }
    }

    fn called(name: &str) -> Option<Self> {
        [Self::Env, Self::Input].into_iter().find(|origin| origin.name() == name)
    }

    /// Returns whether it may have such a name.
    fn admits(self, name: &str) -> bool {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let starts_well = !name.is_empty() && !name.starts_with(|l: char| l.is_ascii_digit());
        match self {
            Self::Env => starts_well && name.chars().all(plain),
            Self::Input => {
                !name.is_empty() && name.chars().all(|l| plain(l) || l == '-' || l == '.')
            }
        }
    }
}

/// A reference to a value that is not in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    /// Where its value comes from.
    pub(super) origin: Origin,
    /// The name of the variable or input.
    pub(super) name: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${{{}:{}}}", self.origin.name(), self.name)
    }
}

/// A part of a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// As it stands.
    Text(String),
    /// To be filled in.
    Reference(Reference),
}

/// How a `${` is taken that begins no reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// As a mistake: in settings it can mean nothing else.
    Setting,
    /// As it stands: scripts, prompts and files have a `${` of their own.
    FreeText,
}

/// A string with its references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

/// A reference that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadReference {
    /// It has no end.
    #[error("`${{{0}:` begins a reference that no `}}` ends")]
    Unterminated(&'static str),
    /// Another one stands in it.
    #[error("a reference cannot stand inside of another one")]
    Nested,
    /// It has no name, or one that cannot be.
    #[error("`{0}` is no name that a reference may have")]
    Name(String),
    /// It looks like a reference, with a word that is a little wrong.
    #[error("unknown reference `${{{given}:…}}`; did you mean `${{{meant}:…}}`?")]
    Misspelt {
        /// The word that stands there.
        given: String,
        /// The word that is like it.
        meant: &'static str,
    },
    /// In a setting, it is no reference.
    #[error(
        "`${{` begins a reference, `${{env:NAME}}` or `${{input:NAME}}`; write `$${{` for a plain \
         `${{`"
    )]
    Unknown,
}

impl Template {
    /// Reads a string.
    pub(super) fn parse(text: &str, manner: Manner) -> Result<Self, BadReference> {
        let mut template = Self(Vec::new());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            if let Some(before) = before.strip_suffix('$') {
                template.push(before);
                template.push("${");
                rest = &from[2..];
                continue;
            }
            template.push(before);
            rest = match read_reference(&from[2..], manner)? {
                Some((reference, rest)) => {
                    template.0.push(Piece::Reference(reference));
                    rest
                }
                None => {
                    template.push("${");
                    &from[2..]
                }
            };
        }
        template.push(rest);
        Ok(template)
    }

    /// Returns its parts.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// Returns the references in it.
    pub(super) fn references(&self) -> impl Iterator<Item = &Reference> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Reference(reference) => Some(reference),
            Piece::Text(_) => None,
        })
    }

    /// Returns whether it is one reference and nothing else.
    pub(super) fn is_reference_alone(&self) -> bool {
        matches!(self.0.as_slice(), [Piece::Reference(_)])
    }

    fn push(&mut self, more: &str) {
        match self.0.last_mut() {
            _ if more.is_empty() => {}
            Some(Piece::Text(text)) => text.push_str(more),
            _ => self.0.push(Piece::Text(more.to_owned())),
        }
    }
}

/// Reads the reference whose `${` has just been passed; `None` where it is none.
fn read_reference(text: &str, manner: Manner) -> Result<Option<(Reference, &str)>, BadReference> {
    let word = &text[..text.find(|l: char| !l.is_ascii_lowercase()).unwrap_or(text.len())];
    let after = text[word.len()..].strip_prefix(':');
    let Some((origin, after)) = Origin::called(word).zip(after) else {
        return not_a_reference(word, after, manner);
    };
    let end = after.find('}');
    let inner = &after[..end.unwrap_or(after.len())];
    if inner.contains("${") {
        return Err(BadReference::Nested);
    }
    let Some(end) = end else { return Err(BadReference::Unterminated(origin.name())) };
    if !origin.admits(inner) {
        return Err(BadReference::Name(inner.chars().take(40).collect()));
    }
    let reference = Reference { origin, name: inner.to_owned() };
    Ok(Some((reference, &after[end + 1..])))
}

fn not_a_reference<'a>(
    word: &str,
    after: Option<&str>,
    manner: Manner,
) -> Result<Option<(Reference, &'a str)>, BadReference> {
    let named = |after: &str| {
        let end = after.find('}');
        end.is_some_and(|end| Origin::Input.admits(&after[..end]) && !after.starts_with('-'))
    };
    let meant = nearest(word, &Origin::NAMES).filter(|_| after.is_some_and(named));
    match (meant, manner) {
        (Some(meant), _) => Err(BadReference::Misspelt { given: word.to_owned(), meant }),
        (None, Manner::Setting) => Err(BadReference::Unknown),
        (None, Manner::FreeText) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn free(text: &str) -> Result<Template, BadReference> {
        Template::parse(text, Manner::FreeText)
    }

    /// Shows a template as the string that it came from, with references marked.
    fn shown(template: &Template) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Reference(reference) => format!("<{}>", reference.name),
        };
        template.pieces().iter().map(piece).collect()
    }

    #[test]
    fn references_are_found_wherever_they_stand() {
        let template = free("a ${env:A_1} b ${input:in-put.2}${env:C}").unwrap();
        assert_eq!(shown(&template), "a <A_1> b <in-put.2><C>");
        assert!(free("${env:TOKEN}").unwrap().is_reference_alone());
        assert!(!free(" ${env:TOKEN}").unwrap().is_reference_alone());
    }

    #[test]
    fn a_doubled_dollar_stands_for_a_plain_one() {
        assert_eq!(shown(&free("$${env:A} $$ $x").unwrap()), "${env:A} $$ $x");
        assert_eq!(shown(&free("$$${env:A}").unwrap()), "$${env:A}");
    }

    #[test]
    fn free_text_keeps_what_is_no_reference_and_settings_do_not() {
        assert_eq!(shown(&free("echo ${HOME} ${x:-y} ${").unwrap()), "echo ${HOME} ${x:-y} ${");
        let setting = |text: &str| Template::parse(text, Manner::Setting).unwrap_err();
        assert_eq!(setting("${HOME}"), BadReference::Unknown);
        assert!(setting("a${").to_string().contains("write `$${`"));
    }

    #[test]
    fn broken_references_are_mistakes_everywhere() {
        assert_eq!(free("${env:A").unwrap_err(), BadReference::Unterminated("env"));
        assert_eq!(free("${env:${input:A}}").unwrap_err(), BadReference::Nested);
        assert_eq!(free("${env:${input:A").unwrap_err(), BadReference::Nested);
        for name in ["${env:}", "${env:A B}", "${env:1A}", "${input:}", "${env:Ä}"] {
            assert!(matches!(free(name).unwrap_err(), BadReference::Name(_)), "{name}");
        }
        let misspelt = free("${inptu:NAME}").unwrap_err().to_string();
        assert_eq!(misspelt, "unknown reference `${inptu:…}`; did you mean `${input:…}`?");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic_and_settings_admit_no_more_than_free_text(text in ".*") {
            if Template::parse(&text, Manner::Setting).is_ok() {
                prop_assert!(free(&text).is_ok());
            }
        }

        #[test]
        fn text_of_dollars_and_braces_is_read_or_refused(text in "[$\\{\\}:envinput A]{0,40}") {
            if let Ok(template) = free(&text) {
                prop_assert!(template.references().all(|reference| !reference.name.is_empty()));
            }
        }

        #[test]
        fn an_escaped_text_comes_back_as_it_was(text in "[$\\{\\}:envA ]{0,40}") {
            // A dollar before the brace doubles; what stands before that is taken as it is.
            let escaped = text.replace("${", "$${");
            prop_assert_eq!(shown(&free(&escaped).unwrap()), text);
        }
    }
}
