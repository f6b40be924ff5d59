//! Tables people can read, and words for ages and sizes.

use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use jiff::Timestamp;

/// Makes a table with a header; it bends to the terminal and is plain in a pipe.
pub(crate) fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    table
}

/// Renders a table without trailing spaces.
pub(crate) fn render(table: &Table) -> String {
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned())
        .collect();
    lines.join("\n")
}

/// Returns an age in its largest unit: `5s`, `12m`, `3h`, `9d`.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return "?".to_owned() };
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a provider id short enough for a table.
pub(crate) fn short_id(id: &str) -> &str {
    let digits = id.strip_prefix("sha256:").unwrap_or(id);
    let is_hash = digits.len() >= 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { &digits[..12] } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_their_largest_unit() {
        let at = |seconds| Timestamp::from_second(seconds).ok();
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert_eq!(age(at(999_995), now), "5s");
        assert_eq!(age(at(996_400), now), "1h");
        assert_eq!(age(at(0), now), "11d");
        assert_eq!(age(None, now), "?");
    }

    #[test]
    fn only_hashes_are_cut_short() {
        let hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        assert_eq!(short_id(hash), "0123456789ab");
        assert_eq!(
            short_id("my-volume-with-a-very-long-name-that-people-gave-it"),
            "my-volume-with-a-very-long-name-that-people-gave-it"
        );
    }
}
