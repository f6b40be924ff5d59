//! Searches for many texts at once and reads only a few positions of the input.
//!
//! The first part of each text contributes all its four-byte grams, and each gram sets a bit. That
//! part is long enough that the input needs a probe only once per step. Where the bit is set, the
//! texts with those four bytes are candidates. So the time hardly depends on the number of texts.

/// How many bytes one probe reads.
const GRAM: usize = 4;
/// Size of the bit set that records which grams occur.
const BITS: usize = 1 << 16;
/// Maximum step; a longer one would add too many grams per text.
const LONGEST_STEP: usize = 16;

/// Texts to search for, each of at least four bytes.
pub(super) struct MultiSearch {
    /// Distance between two probes, in bytes.
    step: usize,
    /// One bit for every gram that may occur at a probe.
    bits: Vec<u64>,
    /// Each gram, the text it belongs to, and its offset in that text; sorted.
    places: Vec<(u32, usize, usize)>,
}

impl MultiSearch {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let shortest = texts.clone().map(<[u8]>::len).min().unwrap_or(GRAM);
        let step = (shortest + 1 - GRAM).min(LONGEST_STEP);
        let mut search = Self { step, bits: vec![0; BITS / 64], places: Vec::new() };
        for (number, text) in texts.enumerate() {
            for at in 0..step {
                let Some(gram) = gram(text, at) else { continue };
                let bit = bit(gram);
                search.bits[bit / 64] |= 1 << (bit % 64);
                search.places.push((gram, number, at));
            }
        }
        search.places.sort_unstable();
        search
    }

    /// Calls `found` with the number and the start of every candidate text.
    ///
    /// A candidate shares only four bytes with the input; the caller compares the rest.
    pub(super) fn find(&self, searched: &[u8], mut found: impl FnMut(usize, usize)) {
        if self.places.is_empty() {
            return;
        }
        let mut at = 0;
        while let Some(gram) = gram(searched, at) {
            let bit = bit(gram);
            if self.bits[bit / 64] >> (bit % 64) & 1 == 1 {
                let first = self.places.partition_point(|(other, _, _)| *other < gram);
                let same = self.places[first..].iter().take_while(|(other, _, _)| *other == gram);
                for (_, number, offset) in same.filter(|(_, _, offset)| *offset <= at) {
                    found(*number, at - offset);
                }
            }
            at += self.step;
        }
    }
}

fn gram(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..)?.first_chunk().map(|bytes: &[u8; GRAM]| u32::from_le_bytes(*bytes))
}

fn bit(gram: u32) -> usize {
    (gram.wrapping_mul(0x9e37_79b1) >> 16) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_found_wherever_it_begins() {
        let texts = ["correct-horse", "battery9", "abababab-ababab"];
        let search = MultiSearch::new(texts.iter().map(|text| text.as_bytes()));
        for (number, text) in texts.iter().enumerate() {
            for before in 0..40 {
                let searched = format!("{}{text}", "x".repeat(before));
                let mut found = Vec::new();
                search.find(searched.as_bytes(), |number, at| found.push((number, at)));
                assert!(found.contains(&(number, before)), "{text} behind {before}");
            }
        }
    }
}
