//! Finds single bytes, fast where they are rare.

/// How many bytes are checked at once.
const CHUNK: usize = 64;

/// Calls `found` with every position of one of the wanted bytes.
pub(super) fn places<const N: usize>(text: &[u8], wanted: [u8; N], mut found: impl FnMut(usize)) {
    for (number, chunk) in text.chunks(CHUNK).enumerate() {
        // Without an early exit from the loop the compiler can vectorise it.
        let is_wanted =
            |byte: u8| wanted.iter().fold(0_u8, |all, one| all | u8::from(byte == *one));
        if chunk.iter().fold(0, |all, byte| all | is_wanted(*byte)) == 0 {
            continue;
        }
        let inside = chunk.iter().enumerate().filter(|(_, byte)| is_wanted(**byte) != 0);
        inside.for_each(|(at, _)| found(number * CHUNK + at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_found_once_and_in_order() {
        let mut text = vec![b'x'; 200];
        for at in [0, 63, 64, 150, 199] {
            text[at] = b'%';
        }
        let mut found = Vec::new();
        places(&text, *b"%&", |at| found.push(at));
        assert_eq!(found, [0, 63, 64, 150, 199]);
    }
}
