//! The masker: the only maker of masked text.

use std::fmt;
use std::sync::Arc;

use super::known::KnownSecrets;
use super::private::PrivateText;
use super::secrets::{Secrets, Unmasked};
use super::span::{MaskSpan, render, unite};
use super::text::{Diagnostic, Masked};
use super::{clean, hidden, random, rules};

/// Knows the secrets and produces text without them; cheap to clone.
#[derive(Clone)]
pub struct Masker(Arc<Finders>);

/// What a masker searches for, besides the rules that all maskers share.
struct Finders {
    known: KnownSecrets,
    private: PrivateText,
    unmasked: Vec<Unmasked>,
}

impl Masker {
    /// Creates a masker for these secrets; see [`Masker::unmasked`] for those it cannot mask.
    pub fn new(secrets: &Secrets) -> Self {
        Self(Arc::new(Finders {
            known: KnownSecrets::new(secrets),
            private: PrivateText::new(secrets.private_texts()),
            unmasked: secrets.unmasked(),
        }))
    }

    /// Returns the secrets that are not masked because they are empty, too short or too common.
    pub fn unmasked(&self) -> &[Unmasked] {
        &self.0.unmasked
    }

    /// Returns every text that is searched for: the secrets, in all their forms.
    ///
    /// Benchmarks use it to let another program search for the same texts.
    #[doc(hidden)]
    pub fn searched(&self) -> impl Iterator<Item = &str> {
        self.0.known.texts()
    }

    /// Masks a text.
    pub fn mask(&self, text: &str) -> Masked {
        Masked::of(self.masked(text))
    }

    /// Masks bytes; invalid UTF-8 becomes replacement characters.
    pub fn mask_bytes(&self, bytes: &[u8]) -> Masked {
        self.mask(&String::from_utf8_lossy(bytes))
    }

    /// Makes a diagnostic from the beginning of a text.
    pub fn diagnostic(&self, text: &str) -> Diagnostic {
        Diagnostic::beginning(self.explained(text).trim())
    }

    /// Makes a diagnostic from the end of a program's output.
    pub fn tail(&self, bytes: &[u8]) -> Diagnostic {
        Diagnostic::end(self.explained(&String::from_utf8_lossy(bytes)).trim())
    }

    /// Makes a diagnostic from our own text with external text in it.
    ///
    /// ```
    /// # use creel_sanitise::{Masker, Secrets};
    /// # let masker = Masker::new(&Secrets::new());
    /// let error = "no such host";
    /// let text = masker.sentence(format_args!("the clone failed: {error}"));
    /// assert_eq!(text.as_str(), "the clone failed: no such host");
    /// ```
    pub fn sentence(&self, text: fmt::Arguments<'_>) -> Diagnostic {
        self.diagnostic(&text.to_string())
    }

    fn masked(&self, text: &str) -> String {
        let mut spans = self.find(text, None);
        self.find_at_edges(text, &mut spans);
        unite(&mut spans);
        render(text, &spans, 0, text.len())
    }

    /// Returns a text without secrets, control characters and text of the task.
    ///
    /// The text is masked before it is cleaned, because a secret may contain a control character.
    /// It is masked again afterwards, because a control character may have split a secret.
    fn explained(&self, text: &str) -> String {
        let text = clean::view(self.masked(text).as_bytes()).into_text();
        let mut spans = self.find(&text, None);
        self.find_at_edges(&text, &mut spans);
        self.0.private.find(&text, &mut spans);
        unite(&mut spans);
        render(&text, &spans, 0, text.len())
    }

    /// Finds parts of known secrets at both ends of a text, which a reader may have truncated.
    fn find_at_edges<'a>(&'a self, text: &str, spans: &mut Vec<MaskSpan<'a>>) {
        self.0.known.find_at_start(text, spans);
        self.0.known.find_at_end(text, spans);
    }

    pub(super) fn known(&self) -> &KnownSecrets {
        &self.0.known
    }

    /// Finds the secrets in a text; the spans are not sorted.
    ///
    /// A base64 run that begins at `picture` continues a picture and is not judged again.
    pub(super) fn find(&self, text: &str, picture: Option<usize>) -> Vec<MaskSpan<'_>> {
        let mut spans = Vec::new();
        self.find_in(text.as_bytes(), picture, &mut spans);
        if clean::has_hidden(text.as_bytes()) {
            let view = clean::view(text.as_bytes());
            let mut hidden = Vec::new();
            self.find_in(&view.bytes, picture, &mut hidden);
            spans.extend(hidden.into_iter().map(|span| view.back(span)));
        }
        spans
    }

    fn find_in<'a>(&'a self, text: &[u8], picture: Option<usize>, spans: &mut Vec<MaskSpan<'a>>) {
        self.0.known.find(text, spans);
        hidden::find(&self.0.known, text, spans);
        rules::find(text, spans);
        let mut from = 0;
        while let Some(run) = random::next_run(text, from) {
            if picture != Some(run.0) {
                random::find(text, run, spans);
            }
            from = run.1;
        }
    }
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker").field("unmasked", &self.0.unmasked).finish_non_exhaustive()
    }
}
