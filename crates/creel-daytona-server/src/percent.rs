//! Percent-encoding in paths and queries.

/// Decodes a path segment. Invalid escapes stay unchanged.
pub(crate) fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Splits a query into its pairs, in their original sequence. A key may occur more than once.
pub(crate) fn pairs(query: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_keep_order_and_repetition() {
        let expected = [("states", "a"), ("states", "b c"), ("x", "%zz")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(pairs("states=a&states=b%20c&x=%zz"), expected);
    }
}
