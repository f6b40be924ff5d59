//! Finds many texts at once, looking at few places of what is searched.
//!
//! Of every four bytes that begin in the first part of a text a bit is set; that part is so long
//! that whatever is searched need be looked at only once in as many bytes. Where the bit is set,
//! the texts with those four bytes are compared. So the time hardly depends on their number.

/// How many bytes are looked at in one place.
const GRAM: usize = 4;
/// How many bits tell whether four bytes occur at all.
const BITS: usize = 1 << 16;
/// No more bytes than this are skipped, lest every text bring too many places.
const LONGEST_STEP: usize = 16;

/// Texts to be found, each of at least four bytes.
pub(super) struct Sieve {
    /// How many bytes lie between two places that are looked at.
    step: usize,
    /// A bit for all four bytes that may stand at such a place.
    bits: Vec<u64>,
    /// The four bytes, the text they are of, and where they begin in it; sorted.
    places: Vec<(u32, usize, usize)>,
}

impl Sieve {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let shortest = texts.clone().map(<[u8]>::len).min().unwrap_or(GRAM);
        let step = (shortest + 1 - GRAM).min(LONGEST_STEP);
        let mut sieve = Self { step, bits: vec![0; BITS / 64], places: Vec::new() };
        for (number, text) in texts.enumerate() {
            for at in 0..step {
                let Some(gram) = gram(text, at) else { continue };
                let bit = bit(gram);
                sieve.bits[bit / 64] |= 1 << (bit % 64);
                sieve.places.push((gram, number, at));
            }
        }
        sieve.places.sort_unstable();
        sieve
    }

    /// Calls `found` with the number and the beginning of every text that may be there: four of
    /// its bytes are.
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
        let sieve = Sieve::new(texts.iter().map(|text| text.as_bytes()));
        for (number, text) in texts.iter().enumerate() {
            for before in 0..40 {
                let searched = format!("{}{text}", "x".repeat(before));
                let mut found = Vec::new();
                sieve.find(searched.as_bytes(), |number, at| found.push((number, at)));
                assert!(found.contains(&(number, before)), "{text} behind {before}");
            }
        }
    }
}
