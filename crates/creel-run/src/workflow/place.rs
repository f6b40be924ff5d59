//! Places in a workflow file.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A line and a column, both counted from one. Columns are characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The path to a value, as people write it: `setup[0].run`, `workspace.files."a.md"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyPath(Vec<String>);

impl KeyPath {
    /// Returns the path of a top-level key.
    pub(super) fn of(key: &str) -> Self {
        Self::default().key(key)
    }

    /// Returns the path of a key of this table.
    pub(super) fn key(&self, key: &str) -> Self {
        let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        let bare = !key.is_empty() && key.chars().all(is_bare);
        self.with(if bare { key.to_owned() } else { format!("{key:?}") })
    }

    /// Returns the path of an item of this array.
    pub(super) fn index(&self, index: usize) -> Self {
        self.with(format!("[{index}]"))
    }

    fn with(&self, part: String) -> Self {
        let mut parts = self.0.clone();
        parts.push(part);
        Self(parts)
    }

    /// Returns the path of the containing value.
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

/// The lines of a text, to convert offsets into places.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    text: &'a str,
    /// The offset of the beginning of each line.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// Finds the beginnings of the lines.
    pub(super) fn of(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(end, _)| end + 1)).collect();
        Self { text, starts }
    }

    /// Returns the place of an offset.
    pub(super) fn place(&self, offset: usize) -> SourcePosition {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        SourcePosition { line, column: self.text[start..offset].chars().count() + 1 }
    }
}

/// The places of all values in a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(BTreeMap<KeyPath, SourcePosition>);

impl Places {
    /// Records the places of all values in a file.
    pub(super) fn of(table: &DeTable<'_>, lines: &Lines<'_>) -> Self {
        let mut places = Self::default();
        places.note_table(table, &KeyPath::default(), lines);
        places
    }

    /// Returns the place of a value, or of its nearest existing parent.
    pub(super) fn find(&self, path: &KeyPath) -> SourcePosition {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            if let Some(place) = self.0.get(&path) {
                return *place;
            }
            at = path.parent();
        }
        SourcePosition { line: 1, column: 1 }
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
        assert_eq!(lines.place(0), SourcePosition { line: 1, column: 1 });
        assert_eq!(lines.place(5), SourcePosition { line: 2, column: 3 });
        assert_eq!(lines.place(99), SourcePosition { line: 3, column: 1 });
        assert_eq!(Lines::of("").place(3), SourcePosition { line: 1, column: 1 });
    }

    #[test]
    fn paths_read_as_toml_does() {
        let path = KeyPath::of("workspace").key("files").key("a.md");
        assert_eq!(path.to_string(), "workspace.files.\"a.md\"");
        assert_eq!(KeyPath::of("setup").index(1).key("run").to_string(), "setup[1].run");
    }
}
