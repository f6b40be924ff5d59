//! Tables for people, and formatting of ages and ids.

use comfy_table::{Attribute, Color, ContentArrangement, presets};
use creel_model::names;
use jiff::Timestamp;

/// A table whose cells have one line each, whatever a foreign name contains.
pub(crate) struct Table(comfy_table::Table);

/// The content of a cell.
pub(crate) struct Cell {
    text: String,
    color: Option<Color>,
}

impl Cell {
    pub(crate) fn new(text: impl ToString) -> Self {
        Self { text: text.to_string(), color: None }
    }

    pub(crate) fn fg(self, color: Color) -> Self {
        Self { color: Some(color), ..self }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, color: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// Creates a table with a header; it adapts to the terminal and is plain in a pipe.
pub(crate) fn new(header: &[&str]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    let cell = |name: &&str| comfy_table::Cell::new(name).add_attribute(Attribute::Bold);
    table.set_header(header.iter().map(cell));
    Table(table)
}

impl Table {
    /// Adds a row; invisible characters are escaped.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        let cells = cells.into_iter().map(|cell| {
            let Cell { text, color } = cell.into();
            let shown = comfy_table::Cell::new(names::visible(&text));
            match color {
                Some(color) => shown.fg(color),
                None => shown,
            }
        });
        self.0.add_row(cells);
    }
}

/// Renders a table without trailing spaces.
pub(crate) fn render(table: &Table) -> String {
    let lines: Vec<String> = table
        .0
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
    fn ages_are_shown_in_their_largest_unit() {
        let at = |seconds| Timestamp::from_second(seconds).ok();
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert_eq!(age(at(999_995), now), "5s");
        assert_eq!(age(at(996_400), now), "1h");
        assert_eq!(age(at(0), now), "11d");
        assert_eq!(age(None, now), "?");
    }

    #[test]
    fn a_foreign_name_makes_one_row_and_steers_no_terminal() {
        let mut table = new(&["NAME", "STATE"]);
        table.add_row(["web\ncontainer  forged  running", "up"]);
        table.add_row(["\u{1b}[2Jcleared\u{202e}txt.exe", "up"]);
        let shown = render(&table);
        assert_eq!(shown.lines().count(), 3, "{shown}");
        assert!(shown.contains("web\\ncontainer") && shown.contains("\\u{1b}[2J"), "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
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
