//! Finds the known secrets, in every form.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::forms::{self, Around, SecretForm};
use super::multi_search::MultiSearch;
use super::secrets::Secrets;
use super::span::MaskSpan;

/// How many bytes of a form are recognised at the edge of a truncated text.
const GRAM: usize = 8;
/// Fraction of a form that must also be present at an edge, as a divisor.
///
/// A shorter part, such as the scheme of a URL, is ordinary text and is not masked.
const PART: usize = 3;

/// How many bytes on one side of a line break must belong to a form before the lines are joined.
const JOINT: usize = 4;

/// Every form of every secret, indexed for the search.
pub(super) struct KnownSecrets {
    /// Finds the forms by their numbers.
    search: MultiSearch,
    /// The forms.
    forms: Vec<NamedForm>,
    /// Where each sequence of [`GRAM`] bytes occurs: the form, and the offset in it.
    grams: HashMap<[u8; GRAM], Vec<(usize, usize)>>,
    /// Every sequence of [`JOINT`] bytes of a form.
    joints: HashSet<[u8; JOINT]>,
    /// The prefixes of forms of at least [`JOINT`] and fewer than [`GRAM`] bytes.
    starts: HashSet<Vec<u8>>,
    /// Which bytes occur in the secrets.
    bytes: [bool; 256],
    /// The length of the longest form in bytes.
    longest: usize,
}

/// A form, and the name of its secret.
struct NamedForm {
    form: SecretForm,
    name: Arc<str>,
}

impl KnownSecrets {
    pub(super) fn new(secrets: &Secrets) -> Self {
        let mut entries = Vec::new();
        for (name, secret) in secrets.maskable() {
            let name: Arc<str> = Arc::from(name);
            let forms = forms::of(secret).into_iter();
            entries.extend(forms.map(|form| NamedForm { form, name: Arc::clone(&name) }));
        }
        let search = MultiSearch::new(entries.iter().map(|entry| entry.form.text.as_bytes()));
        let texts = || entries.iter().map(|entry| entry.form.text.as_bytes());
        let joints = texts().flat_map(|text| text.windows(JOINT));
        let joints = joints.filter_map(|gram| gram.first_chunk().copied()).collect();
        let starts = texts()
            .flat_map(|text| (JOINT..GRAM.min(text.len())).map(|length| text[..length].to_vec()));
        let starts = starts.collect();
        let mut bytes = [false; 256];
        for (_, secret) in secrets.maskable() {
            secret.bytes().for_each(|byte| bytes[usize::from(byte)] = true);
        }
        // The signs of base64, which may be escaped again.
        b"+/=".iter().for_each(|byte| bytes[usize::from(*byte)] = true);
        let longest = texts().map(<[u8]>::len).max().unwrap_or_default();
        let grams = grams(&entries);
        Self { search, forms: entries, grams, joints, starts, bytes, longest }
    }

    /// Returns whether there is no secret.
    pub(super) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Returns whether the secrets contain one of these bytes.
    pub(super) fn has(&self, bytes: &[u8]) -> bool {
        bytes.iter().any(|byte| self.bytes[usize::from(*byte)])
    }

    /// Returns whether two texts, joined, may form a secret.
    pub(super) fn touches(&self, before: &[u8], behind: &[u8]) -> bool {
        let before = before.last_chunk::<JOINT>();
        let behind = behind.first_chunk::<JOINT>();
        before.into_iter().chain(behind).any(|joint| self.joints.contains(joint))
    }

    /// Returns how far a form may reach from a place in it, whatever its encoding.
    pub(super) fn reach(&self) -> usize {
        2 * self.longest + 64
    }

    /// Returns every text that is searched for.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().map(|entry| entry.form.text.as_str())
    }

    /// Returns whether a form has a line break in its first bytes, before it is recognised.
    pub(super) fn breaks_early(&self) -> bool {
        let starts = self.forms.iter().map(|entry| entry.form.text.as_bytes());
        let mut starts = starts.map(|text| &text[..text.len().min(GRAM)]);
        starts.any(|start| start.contains(&b'\n'))
    }

    /// Finds whole forms; overlapping ones are all reported.
    pub(super) fn find<'a>(&'a self, bytes: &[u8], spans: &mut Vec<MaskSpan<'a>>) {
        self.search.find(bytes, |number, start| {
            let entry = &self.forms[number];
            let end = start + entry.form.text.len();
            if bytes[start..].starts_with(entry.form.text.as_bytes()) {
                let place = widen(bytes, (start, end), entry.form.around);
                spans.extend(place.map(|(start, end)| entry.span(start, end)));
            }
        });
    }

    /// Finds the rest of a form at the beginning of a truncated text.
    pub(super) fn find_at_start<'a>(&'a self, text: &str, spans: &mut Vec<MaskSpan<'a>>) {
        let ends = self.ends(text).filter(|(entry, length)| *length >= entry.fewest());
        spans.extend(ends.map(|(entry, length)| entry.span(0, length)));
    }

    /// Finds the start of a form at the end of a truncated text.
    pub(super) fn find_at_end<'a>(&'a self, text: &str, spans: &mut Vec<MaskSpan<'a>>) {
        let starts =
            self.beginnings(text.as_bytes()).filter(|(entry, length)| *length >= entry.fewest());
        spans.extend(starts.map(|(entry, length)| entry.span(text.len() - length, text.len())));
    }

    /// Returns where a partial form begins at the end of a text, if there is one.
    pub(super) fn cut_at_end(&self, text: &[u8]) -> Option<usize> {
        let long = self.beginnings(text).map(|(_, length)| text.len() - length).min();
        let short = || {
            let lengths = (JOINT..GRAM.min(text.len() + 1)).rev();
            let mut starts = lengths.map(|length| text.len() - length);
            starts.find(|start| self.starts.contains(&text[*start..]))
        };
        long.or_else(short)
    }

    /// Returns the forms whose tail is a prefix of the text, with the length of that tail.
    fn ends(&self, text: &str) -> impl Iterator<Item = (&NamedForm, usize)> {
        let gram = text.as_bytes().first_chunk::<GRAM>();
        let places = gram.and_then(|gram| self.grams.get(gram)).into_iter().flatten();
        places.filter(|(_, at)| *at > 0).filter_map(|(form, at)| {
            let entry = &self.forms[*form];
            let rest = &entry.form.text.as_bytes()[*at..];
            text.as_bytes().starts_with(rest).then_some((entry, rest.len()))
        })
    }

    /// Returns the forms with a proper prefix that ends the text, with the length of that prefix.
    fn beginnings(&self, text: &[u8]) -> impl Iterator<Item = (&NamedForm, usize)> {
        let gram = text.last_chunk::<GRAM>();
        let places = gram.and_then(|gram| self.grams.get(gram)).into_iter().flatten();
        places.filter_map(|(form, at)| {
            let entry = &self.forms[*form];
            let start = &entry.form.text.as_bytes()[..at + GRAM];
            let is_cut = start.len() < entry.form.text.len();
            (is_cut && text.ends_with(start)).then_some((entry, start.len()))
        })
    }
}

impl NamedForm {
    fn span(&self, start: usize, end: usize) -> MaskSpan<'_> {
        MaskSpan { start, end, name: &self.name, is_known: true }
    }

    /// Returns how many bytes of the form at an edge are more than ordinary text.
    fn fewest(&self) -> usize {
        GRAM.max(self.form.text.len() / PART)
    }
}

fn grams(forms: &[NamedForm]) -> HashMap<[u8; GRAM], Vec<(usize, usize)>> {
    let mut grams: HashMap<_, Vec<_>> = HashMap::new();
    for (number, entry) in forms.iter().enumerate() {
        let windows = entry.form.text.as_bytes().windows(GRAM).enumerate();
        for (at, gram) in windows {
            let gram: [u8; GRAM] = gram.try_into().expect("a window has the length it was asked");
            grams.entry(gram).or_default().push((number, at));
        }
    }
    grams
}

/// Returns what a match covers, or `None` if its surroundings rule it out.
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

/// Returns whether a byte is a base64 character, in either alphabet.
pub(super) fn is_base64(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}
