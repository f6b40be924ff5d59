//! Where in its file something stands.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A line and a column, both counted from one; columns are characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The way to a value, as people write it: `setup[0].run`, `workspace.files."a.md"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyPath(Vec<String>);

impl KeyPath {
    /// Starts at the top of the file.
    pub(super) fn of(key: &str) -> Self {
        Self::default().key(key)
    }

    /// Goes on to a key of a table.
    pub(super) fn key(&self, key: &str) -> Self {
        let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        let bare = !key.is_empty() && key.chars().all(is_bare);
        self.with(if bare { key.to_owned() } else { format!("{key:?}") })
    }

    /// Goes on to an item of an array.
    pub(super) fn index(&self, index: usize) -> Self {
        self.with(format!("[{index}]"))
    }

    fn with(&self, part: String) -> Self {
        let mut parts = self.0.clone();
        parts.push(part);
        Self(parts)
    }

    /// Returns the way to what holds it.
    fn parent(&self) -> Option<Self> {
        let (_, parts) = self.0.split_last()?;
        Some(Self(parts.to_vec()))
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.0.iter().enumerate() {
            let dot = if number == 0 || part.starts_with('[') { "" } else { "." };
            write!(f, "{dot}{part}")?;
        }
        Ok(())
    }
}

/// The lines of a text: makes places of offsets.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    text: &'a str,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// Looks where the lines begin.
    pub(super) fn of(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(end, _)| end + 1)).collect();
        Self { text, starts }
    }

    /// Returns the place of an offset.
    pub(super) fn place(&self, offset: usize) -> Place {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        Place { line, column: self.text[start..offset].chars().count() + 1 }
    }
}

/// Where every value of a file stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(BTreeMap<KeyPath, Place>);

impl Places {
    /// Notes where everything in a file stands.
    pub(super) fn of(table: &DeTable<'_>, lines: &Lines<'_>) -> Self {
        let mut places = Self::default();
        places.note_table(table, &KeyPath::default(), lines);
        places
    }

    /// Returns where a value stands, or what would hold it.
    pub(super) fn find(&self, path: &KeyPath) -> Place {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            if let Some(place) = self.0.get(&path) {
                return *place;
            }
            at = path.parent();
        }
        Place { line: 1, column: 1 }
    }

    fn note_table(&mut self, table: &DeTable<'_>, path: &KeyPath, lines: &Lines<'_>) {
        for (key, value) in table {
            let span = if value.get_ref().is_table() { key.span() } else { value.span() };
            self.note(value, &path.key(key.get_ref()), span, lines);
        }
    }

    fn note(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        path: &KeyPath,
        span: Range<usize>,
        lines: &Lines<'_>,
    ) {
        self.0.insert(path.clone(), lines.place(span.start));
        match value.get_ref() {
            DeValue::Table(table) => self.note_table(table, path, lines),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.note(item, &path.index(index), item.span(), lines);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_characters_and_offsets_past_the_end_are_the_end() {
        let lines = Lines::of("a\nxü = 1\n");
        assert_eq!(lines.place(0), Place { line: 1, column: 1 });
        assert_eq!(lines.place(5), Place { line: 2, column: 3 });
        assert_eq!(lines.place(99), Place { line: 3, column: 1 });
        assert_eq!(Lines::of("").place(3), Place { line: 1, column: 1 });
    }

    #[test]
    fn paths_read_as_toml_does() {
        let path = KeyPath::of("workspace").key("files").key("a.md");
        assert_eq!(path.to_string(), "workspace.files.\"a.md\"");
        assert_eq!(KeyPath::of("setup").index(1).key("run").to_string(), "setup[1].run");
    }
}
