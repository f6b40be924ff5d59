//! Finds the secrets that are known, in every form.

use std::collections::HashMap;
use std::sync::Arc;

use super::forms::{self, Around, Form};
use super::secrets::Secrets;
use super::sieve::Sieve;
use super::span::Span;

/// How many bytes of a form are recognised at the edge of a text that was cut.
const GRAM: usize = 8;
/// Which part of a form, besides, has to be there before it is masked: fewer characters, such as
/// the scheme of an address, are words.
const PART: usize = 3;

/// Every form of every secret, ready to be searched for.
pub(super) struct Known {
    /// Finds the forms by their numbers.
    sieve: Sieve,
    /// The forms.
    forms: Vec<Named>,
    /// Where each stretch of [`GRAM`] bytes occurs: the form, and the place in it.
    grams: HashMap<[u8; GRAM], Vec<(usize, usize)>>,
}

/// A form, and whose it is.
struct Named {
    form: Form,
    name: Arc<str>,
}

impl Known {
    pub(super) fn new(secrets: &Secrets) -> Self {
        let mut named = Vec::new();
        for (name, secret) in secrets.maskable() {
            let name: Arc<str> = Arc::from(name);
            let forms = forms::of(secret).into_iter();
            named.extend(forms.map(|form| Named { form, name: Arc::clone(&name) }));
        }
        let sieve = Sieve::new(named.iter().map(|named| named.form.text.as_bytes()));
        let grams = grams(&named);
        Self { sieve, forms: named, grams }
    }

    /// Returns how many bytes the longest form has.
    pub(super) fn longest(&self) -> usize {
        self.forms.iter().map(|named| named.form.text.len()).max().unwrap_or_default()
    }

    /// Returns every text that is searched for.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().map(|named| named.form.text.as_str())
    }

    /// Returns whether a line may end within the first bytes of a form, before it is recognised.
    pub(super) fn breaks_early(&self) -> bool {
        let starts = self.forms.iter().map(|named| named.form.text.as_bytes());
        let mut starts = starts.map(|text| &text[..text.len().min(GRAM)]);
        starts.any(|start| start.contains(&b'\n'))
    }

    /// Finds whole forms, also those that overlap: together they cover all of both.
    pub(super) fn find<'a>(&'a self, text: &str, spans: &mut Vec<Span<'a>>) {
        let bytes = text.as_bytes();
        self.sieve.find(bytes, |number, start| {
            let named = &self.forms[number];
            let end = start + named.form.text.len();
            if bytes[start..].starts_with(named.form.text.as_bytes()) {
                let place = widen(bytes, (start, end), named.form.around);
                spans.extend(place.map(|(start, end)| named.span(start, end)));
            }
        });
    }

    /// Finds what is left of a form at the beginning of a text that was cut there.
    pub(super) fn find_at_start<'a>(&'a self, text: &str, spans: &mut Vec<Span<'a>>) {
        let ends = self.ends(text).filter(|(named, length)| *length >= named.fewest());
        spans.extend(ends.map(|(named, length)| named.span(0, length)));
    }

    /// Finds what is left of a form at the end of a text that was cut there.
    pub(super) fn find_at_end<'a>(&'a self, text: &str, spans: &mut Vec<Span<'a>>) {
        let starts = self.beginnings(text).filter(|(named, length)| *length >= named.fewest());
        spans.extend(starts.map(|(named, length)| named.span(text.len() - length, text.len())));
    }

    /// Returns where the beginning of a form begins, where a text ends with one.
    pub(super) fn cut_at_end(&self, text: &str) -> Option<usize> {
        self.beginnings(text).map(|(_, length)| text.len() - length).min()
    }

    /// Returns the forms whose end a text begins with, and how much of each.
    fn ends(&self, text: &str) -> impl Iterator<Item = (&Named, usize)> {
        let gram = text.as_bytes().first_chunk::<GRAM>();
        let places = gram.and_then(|gram| self.grams.get(gram)).into_iter().flatten();
        places.filter(|(_, at)| *at > 0).filter_map(|(form, at)| {
            let named = &self.forms[*form];
            let rest = &named.form.text.as_bytes()[*at..];
            text.as_bytes().starts_with(rest).then_some((named, rest.len()))
        })
    }

    /// Returns the forms whose beginning a text ends with, and how much of each.
    fn beginnings(&self, text: &str) -> impl Iterator<Item = (&Named, usize)> {
        let gram = text.as_bytes().last_chunk::<GRAM>();
        let places = gram.and_then(|gram| self.grams.get(gram)).into_iter().flatten();
        places.filter_map(|(form, at)| {
            let named = &self.forms[*form];
            let start = &named.form.text.as_bytes()[..at + GRAM];
            let is_cut = start.len() < named.form.text.len();
            (is_cut && text.as_bytes().ends_with(start)).then_some((named, start.len()))
        })
    }
}

impl Named {
    fn span(&self, start: usize, end: usize) -> Span<'_> {
        Span { start, end, name: &self.name, is_known: true }
    }

    /// Returns how many bytes of it, at the edge of a text, are more than a word.
    fn fewest(&self) -> usize {
        GRAM.max(self.form.text.len() / PART)
    }
}

fn grams(forms: &[Named]) -> HashMap<[u8; GRAM], Vec<(usize, usize)>> {
    let mut grams: HashMap<_, Vec<_>> = HashMap::new();
    for (number, named) in forms.iter().enumerate() {
        let windows = named.form.text.as_bytes().windows(GRAM).enumerate();
        for (at, gram) in windows {
            let gram: [u8; GRAM] = gram.try_into().expect("a window has the length it was asked");
            grams.entry(gram).or_default().push((number, at));
        }
    }
    grams
}

/// Returns what a match covers, or nothing where it only looks like one.
fn widen(text: &[u8], (start, end): (usize, usize), around: Around) -> Option<(usize, usize)> {
    let is = |at: Option<usize>, wanted: fn(&u8) -> bool| {
        at.and_then(|at| text.get(at)).is_some_and(wanted)
    };
    match around {
        Around::Free => Some((start, end)),
        Around::Word => {
            let in_word = is(start.checked_sub(1), u8::is_ascii_alphanumeric)
                || is(Some(end), u8::is_ascii_alphanumeric);
            (!in_word).then_some((start, end))
        }
        Around::Shared { left, right } => {
            let start = start - usize::from(left && is(start.checked_sub(1), is_base64));
            let mut end = end + usize::from(right && is(Some(end), is_base64));
            while is(Some(end), |byte| *byte == b'=') {
                end += 1;
            }
            Some((start, end))
        }
    }
}

/// Returns whether a byte is one of base64, in either alphabet.
pub(super) fn is_base64(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}
