//! References in strings: `${env:NAME}`, `${input:NAME}`, and `$${` for a plain `${`.

use std::fmt;

use super::suggest::nearest;

/// The source of a reference's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReferenceSource {
    /// An environment variable.
    Env,
    /// An input of the run.
    Input,
}

impl ReferenceSource {
    const NAMES: [&'static str; 2] = ["env", "input"];

    fn name(self) -> &'static str {
        match self {
            Self::Env => "env",
            Self::Input => "input",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Env, Self::Input].into_iter().find(|origin| origin.name() == name)
    }

    /// Returns whether a name is valid for this origin.
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
    /// The source of its value.
    pub(super) origin: ReferenceSource,
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
pub(super) enum TemplatePart {
    /// Literal text.
    Text(String),
    /// A reference, to be replaced by its value.
    Reference(Reference),
}

/// How to treat a `${` that does not begin a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReferenceMode {
    /// As an error, because it has no other meaning in a setting.
    Setting,
    /// As literal text, because scripts, prompts and files use `${` themselves.
    FreeText,
}

/// A string with its references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<TemplatePart>);

/// A reference that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadReference {
    /// It has no closing brace.
    #[error("`${{{0}:` begins a reference that no `}}` ends")]
    Unterminated(&'static str),
    /// It contains another reference.
    #[error("a reference cannot stand inside of another one")]
    Nested,
    /// Its name is missing or invalid.
    #[error("`{0}` is no name that a reference may have")]
    Name(String),
    /// It resembles a reference, but its prefix is misspelt.
    #[error("unknown reference `${{{given}:…}}`; did you mean `${{{meant}:…}}`?")]
    Misspelt {
        /// The prefix in the file.
        given: String,
        /// The prefix that is most similar.
        meant: &'static str,
    },
    /// In a setting, it is not a reference.
    #[error(
        "`${{` begins a reference, `${{env:NAME}}` or `${{input:NAME}}`; write `$${{` for a plain \
         `${{`"
    )]
    Unknown,
}

impl Template {
    /// Parses a string.
    pub(super) fn parse(text: &str, mode: ReferenceMode) -> Result<Self, BadReference> {
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
            rest = match read_reference(&from[2..], mode)? {
                Some((reference, rest)) => {
                    template.0.push(TemplatePart::Reference(reference));
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
    pub(super) fn parts(&self) -> &[TemplatePart] {
        &self.0
    }

    /// Returns the references in it.
    pub(super) fn references(&self) -> impl Iterator<Item = &Reference> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Reference(reference) => Some(reference),
            TemplatePart::Text(_) => None,
        })
    }

    /// Returns whether it is one reference and nothing else.
    pub(super) fn is_single_reference(&self) -> bool {
        matches!(self.0.as_slice(), [TemplatePart::Reference(_)])
    }

    fn push(&mut self, more: &str) {
        match self.0.last_mut() {
            _ if more.is_empty() => {}
            Some(TemplatePart::Text(text)) => text.push_str(more),
            _ => self.0.push(TemplatePart::Text(more.to_owned())),
        }
    }
}

/// Parses the reference that follows a `${`. Returns `None` if it is not a reference.
fn read_reference(
    text: &str,
    mode: ReferenceMode,
) -> Result<Option<(Reference, &str)>, BadReference> {
    let prefix = &text[..text.find(|l: char| !l.is_ascii_lowercase()).unwrap_or(text.len())];
    let after = text[prefix.len()..].strip_prefix(':');
    let Some((origin, after)) = ReferenceSource::from_name(prefix).zip(after) else {
        return not_a_reference(prefix, after, mode);
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
    prefix: &str,
    after: Option<&str>,
    mode: ReferenceMode,
) -> Result<Option<(Reference, &'a str)>, BadReference> {
    let named = |after: &str| {
        let end = after.find('}');
        end.is_some_and(|end| {
            ReferenceSource::Input.admits(&after[..end]) && !after.starts_with('-')
        })
    };
    let meant = nearest(prefix, &ReferenceSource::NAMES).filter(|_| after.is_some_and(named));
    match (meant, mode) {
        (Some(meant), _) => Err(BadReference::Misspelt { given: prefix.to_owned(), meant }),
        (None, ReferenceMode::Setting) => Err(BadReference::Unknown),
        (None, ReferenceMode::FreeText) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn free(text: &str) -> Result<Template, BadReference> {
        Template::parse(text, ReferenceMode::FreeText)
    }

    /// Formats a template like its source string, with references marked.
    fn shown(template: &Template) -> String {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Reference(reference) => format!("<{}>", reference.name),
        };
        template.parts().iter().map(part).collect()
    }

    #[test]
    fn references_are_found_wherever_they_stand() {
        let template = free("a ${env:A_1} b ${input:in-put.2}${env:C}").unwrap();
        assert_eq!(shown(&template), "a <A_1> b <in-put.2><C>");
        assert!(free("${env:TOKEN}").unwrap().is_single_reference());
        assert!(!free(" ${env:TOKEN}").unwrap().is_single_reference());
    }

    #[test]
    fn a_doubled_dollar_stands_for_a_plain_one() {
        assert_eq!(shown(&free("$${env:A} $$ $x").unwrap()), "${env:A} $$ $x");
        assert_eq!(shown(&free("$$${env:A}").unwrap()), "$${env:A}");
    }

    #[test]
    fn free_text_keeps_what_is_no_reference_and_settings_do_not() {
        assert_eq!(shown(&free("echo ${HOME} ${x:-y} ${").unwrap()), "echo ${HOME} ${x:-y} ${");
        let setting = |text: &str| Template::parse(text, ReferenceMode::Setting).unwrap_err();
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
            if Template::parse(&text, ReferenceMode::Setting).is_ok() {
                prop_assert!(free(&text).is_ok());
            }
        }

        #[test]
        fn text_of_dollars_and_braces_is_parsed_or_refused(text in "[$\\{\\}:envinput A]{0,40}") {
            if let Ok(template) = free(&text) {
                prop_assert!(template.references().all(|reference| !reference.name.is_empty()));
            }
        }

        #[test]
        fn an_escaped_text_comes_back_as_it_was(text in "[$\\{\\}:envA ]{0,40}") {
            // Doubling the dollar escapes the brace. The text before it is taken literally.
            let escaped = text.replace("${", "$${");
            prop_assert_eq!(shown(&free(&escaped).unwrap()), text);
        }
    }
}
