//! Reads a long JSON list row by row.
//!
//! A list of ten thousand containers is tens of megabytes of JSON. Held as a whole and then as a
//! model of every field, it would cost many times what we keep of it. So rows are extracted from
//! the stream as they arrive, and each is read and dropped at once.

use super::bounds::{ROW, TooMuch};

/// Extracts the elements of a JSON array from a stream of bytes.
#[derive(Debug)]
pub(super) struct RowCutter {
    /// The part of a row that has arrived.
    row: Vec<u8>,
    /// How many brackets and braces are open.
    depth: usize,
    /// How many of them surround the rows: the list, and an object that contains it.
    around: usize,
    in_string: bool,
    escaped: bool,
    /// The bracket or brace with which the input began.
    first: Option<u8>,
    /// The beginning of what is outside of all brackets and braces.
    outside: Vec<u8>,
    /// Whether the list has elements that are not objects.
    has_strays: bool,
}

/// How much of what is outside of the list is kept.
const OUTSIDE: usize = 16;

impl RowCutter {
    /// Creates a cutter for a list of objects that is nested in `around` brackets and braces, its
    /// own included.
    pub(super) fn new(around: usize) -> Self {
        let (row, first, outside) = Default::default();
        let (in_string, escaped, has_strays) = Default::default();
        Self { row, depth: 0, around, in_string, escaped, first, outside, has_strays }
    }

    /// Consumes the next bytes, and passes on every row that they complete.
    ///
    /// # Errors
    ///
    /// Fails when a row is too long, and returns the first error of `each`.
    pub(super) fn feed<E: From<TooMuch>>(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for &byte in bytes {
            if self.consume(byte) {
                each(&self.row)?;
                self.row.clear();
            }
            if self.row.len() > ROW {
                return Err(TooMuch { what: "a row of a list", limit: ROW }.into());
            }
        }
        Ok(())
    }

    /// Returns whether the list is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.depth == 0 && self.row.is_empty() && !self.in_string
    }

    /// Returns whether there was a list at all. Empty input, a text or a page is not a list, and
    /// must not be taken for an empty one. Some engines write `null` for an empty list.
    pub(super) fn is_list(&self) -> bool {
        let outside = self.outside.trim_ascii();
        match self.first {
            Some(first) => {
                let is_right = first == if self.around == 1 { b'[' } else { b'{' };
                is_right && outside.is_empty() && !self.has_strays
            }
            None => outside == b"null",
        }
    }

    /// Consumes one byte. Returns whether it completes a row.
    fn consume(&mut self, byte: u8) -> bool {
        let in_row = self.depth > self.around;
        if self.depth == 0 {
            match byte {
                b'[' | b'{' if !self.in_string => _ = self.first.get_or_insert(byte),
                _ if self.outside.len() < OUTSIDE && !byte.is_ascii_whitespace() => {
                    self.outside.push(byte);
                }
                _ => {}
            }
        }
        if self.in_string {
            if in_row {
                self.row.push(byte);
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'[' | b'{' => {
                self.depth += 1;
                if self.depth > self.around {
                    self.row.push(byte);
                }
                false
            }
            b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                if in_row {
                    self.row.push(byte);
                }
                in_row && self.depth == self.around
            }
            _ => {
                self.in_string = byte == b'"';
                // A list in an object is beside others, whose elements may be texts.
                let is_element = self.around == 1 && self.depth == 1;
                self.has_strays |= is_element && byte != b',' && !byte.is_ascii_whitespace();
                // The rest is between rows, or around the list.
                if in_row {
                    self.row.push(byte);
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(text: &str, chunk: usize) -> (Vec<String>, bool) {
        split_around(1, text, chunk)
    }

    fn split_around(around: usize, text: &str, chunk: usize) -> (Vec<String>, bool) {
        let mut cutter = RowCutter::new(around);
        let mut rows = Vec::new();
        for part in text.as_bytes().chunks(chunk) {
            cutter
                .feed::<TooMuch>(part, |row| {
                    rows.push(String::from_utf8(row.to_vec()).unwrap());
                    Ok(())
                })
                .unwrap();
        }
        (rows, cutter.is_complete())
    }

    #[test]
    fn rows_come_out_whole_whatever_the_chunks() {
        let text = " [ {\"a\":[1,{\"b\":\"]}\\\"[{\"}]} ,\n{\"c\":null}]\n";
        for chunk in 1..text.len() {
            let (rows, complete) = split(text, chunk);
            assert_eq!(rows, [r#"{"a":[1,{"b":"]}\"[{"}]}"#, r#"{"c":null}"#]);
            assert!(complete);
        }
    }

    #[test]
    fn the_rows_of_a_list_in_an_object_come_out_too() {
        let text = r#"{"Volumes":[{"a":"]"},{"b":[{}]}],"Warnings":["a [ in it", "]"]}"#;
        for chunk in 1..text.len() {
            let (rows, complete) = split_around(2, text, chunk);
            assert_eq!(rows, [r#"{"a":"]"}"#, r#"{"b":[{}]}"#]);
            assert!(complete);
        }
        assert_eq!(split_around(2, r#"{"Volumes":null,"Warnings":null}"#, 3), (vec![], true));
    }

    #[test]
    fn a_row_that_does_not_end_is_given_up() {
        let mut cutter = RowCutter::new(1);
        let mut fed = cutter.feed::<TooMuch>(b"[{\"name\":\"", |_| Ok(()));
        let mut sent = 0;
        while fed.is_ok() {
            fed = cutter.feed(&[b'x'; 4096], |_| Ok(()));
            sent += 4096;
        }
        assert_eq!(fed, Err(TooMuch { what: "a row of a list", limit: ROW }));
        assert!(sent <= ROW + 8192);
    }

    #[test]
    fn an_empty_list_has_no_rows_and_a_truncated_one_is_incomplete() {
        assert_eq!(split("[]\n", 1), (vec![], true));
        assert!(!split(r#"[{"a":1},"#, 3).1);
        assert!(!split(r#"[{"a":"1"#, 3).1);
    }

    #[test]
    fn an_object_is_not_mistaken_for_an_empty_list() {
        let is_list = |around: usize, text: &str| {
            let mut cutter = RowCutter::new(around);
            cutter.feed::<TooMuch>(text.as_bytes(), |_| Ok(())).unwrap();
            cutter.is_complete() && cutter.is_list()
        };
        for list in ["[]", " [ ]\n", "null", r#"[{"a":1}]"#] {
            assert!(is_list(1, list), "{list}");
        }
        assert!(is_list(2, r#"{"Volumes":null}"#));
        for other in [
            "[1]",
            "[null]",
            r#"["a"]"#,
            "",
            " ",
            "\"no list\"",
            "<html>",
            "{}",
            r#"{"message":"[]"}"#,
            "[] more",
            "0",
        ] {
            assert!(!is_list(1, other), "{other}");
        }
        assert!(!is_list(2, "[]"));
    }

    proptest! {
        #[test]
        fn any_objects_survive_the_split(texts in prop::collection::vec(".*", 0..8), chunk in 1usize..9) {
            let rows: Vec<serde_json::Value> =
                texts.iter().map(|text| serde_json::json!({ "t": text, "n": [text] })).collect();
            let (cut_rows, complete) = split(&serde_json::to_string(&rows).unwrap(), chunk);
            let read: Vec<serde_json::Value> =
                cut_rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
            prop_assert_eq!(read, rows);
            prop_assert!(complete);
        }
    }
}
