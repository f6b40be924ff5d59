//! Finds the secrets that are known, in every form.

use std::collections::{HashMap, HashSet};
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

/// How many bytes on one side of a line break must be of a form before the lines are joined.
const JOINT: usize = 4;

/// Every form of every secret, ready to be searched for.
pub(super) struct Known {
    /// Finds the forms by their numbers.
    sieve: Sieve,
    /// The forms.
    forms: Vec<Named>,
    /// Where each stretch of [`GRAM`] bytes occurs: the form, and the place in it.
    grams: HashMap<[u8; GRAM], Vec<(usize, usize)>>,
    /// Every stretch of [`JOINT`] bytes of a form.
    joints: HashSet<[u8; JOINT]>,
    /// The beginnings of forms from [`JOINT`] bytes to fewer than [`GRAM`].
    starts: HashSet<Vec<u8>>,
    /// Which bytes the secrets are made of.
    bytes: [bool; 256],
    /// How many bytes the longest form has.
    longest: usize,
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
        let texts = || named.iter().map(|named| named.form.text.as_bytes());
        let joints = texts().flat_map(|text| text.windows(JOINT));
        let joints = joints.filter_map(|gram| gram.first_chunk().copied()).collect();
        let starts = texts()
            .flat_map(|text| (JOINT..GRAM.min(text.len())).map(|length| text[..length].to_vec()));
        let starts = starts.collect();
        let mut bytes = [false; 256];
        for (_, secret) in secrets.maskable() {
            secret.bytes().for_each(|byte| bytes[usize::from(byte)] = true);
        }
        // What base64 is made of, which may be escaped again.
        b"+/=".iter().for_each(|byte| bytes[usize::from(*byte)] = true);
        let longest = texts().map(<[u8]>::len).max().unwrap_or_default();
        let grams = grams(&named);
        Self { sieve, forms: named, grams, joints, starts, bytes, longest }
    }

    /// Returns whether there is no secret.
    pub(super) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Returns whether the secrets have one of these bytes.
    pub(super) fn has(&self, bytes: &[u8]) -> bool {
        bytes.iter().any(|byte| self.bytes[usize::from(*byte)])
    }

    /// Returns whether two texts, put together, may make a form.
    pub(super) fn touches(&self, before: &[u8], behind: &[u8]) -> bool {
        let before = before.last_chunk::<JOINT>();
        let behind = behind.first_chunk::<JOINT>();
        before.into_iter().chain(behind).any(|joint| self.joints.contains(joint))
    }

    /// Returns how far a form may reach from a place in it, however it is written.
    pub(super) fn reach(&self) -> usize {
        2 * self.longest + 64
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
    pub(super) fn find<'a>(&'a self, bytes: &[u8], spans: &mut Vec<Span<'a>>) {
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
        let starts =
            self.beginnings(text.as_bytes()).filter(|(named, length)| *length >= named.fewest());
        spans.extend(starts.map(|(named, length)| named.span(text.len() - length, text.len())));
    }

    /// Returns where the beginning of a form begins, where a text ends with one.
    pub(super) fn cut_at_end(&self, text: &[u8]) -> Option<usize> {
        let long = self.beginnings(text).map(|(_, length)| text.len() - length).min();
        let short = || {
            let lengths = (JOINT..GRAM.min(text.len() + 1)).rev();
            let mut starts = lengths.map(|length| text.len() - length);
            starts.find(|start| self.starts.contains(&text[*start..]))
        };
        long.or_else(short)
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
    fn beginnings(&self, text: &[u8]) -> impl Iterator<Item = (&Named, usize)> {
        let gram = text.last_chunk::<GRAM>();
        let places = gram.and_then(|gram| self.grams.get(gram)).into_iter().flatten();
        places.filter_map(|(form, at)| {
            let named = &self.forms[*form];
            let start = &named.form.text.as_bytes()[..at + GRAM];
            let is_cut = start.len() < named.form.text.len();
            (is_cut && text.ends_with(start)).then_some((named, start.len()))
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
