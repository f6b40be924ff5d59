//! Checks the shape of a workflow file: its keys, and the types and ranges of its values.
//!
//! The shape is the schema that editors use ([`super::schema`]), so both report
//! the same. All mistakes are found at once, each with its place. Messages never
//! repeat values, because a value may be a misplaced secret.

use serde_json::{Map, Value as Json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Problem;
use super::place::{KeyPath, Lines};
use super::schema::schema;
use super::suggest::suggestion;

/// Returns every mistake in the shape of a file.
pub(super) fn mistakes(file: &Spanned<DeTable<'_>>, lines: &Lines<'_>) -> Vec<Problem> {
    let mut check = ShapeCheck { lines, problems: Vec::new() };
    check.table(file.get_ref(), schema(), &KeyPath::default(), 0);
    check.problems
}

struct ShapeCheck<'a> {
    lines: &'a Lines<'a>,
    problems: Vec<Problem>,
}

impl ShapeCheck<'_> {
    fn problem(&mut self, offset: usize, message: String) {
        self.problems.push(Problem { place: Some(self.lines.place(offset)), message });
    }

    /// Checks the keys of a table that begins at an offset.
    fn table(&mut self, table: &DeTable<'_>, shape: &Json, path: &KeyPath, at: usize) {
        let none = Map::new();
        let known = shape.get("properties").and_then(Json::as_object).unwrap_or(&none);
        // For maps with user-defined names, this is the shape of each value.
        let any = shape.get("additionalProperties").filter(|any| any.is_object());
        for (key, value) in table {
            let path = path.key(key.get_ref());
            match known.get(key.get_ref().as_ref()).or(any) {
                Some(shape) => self.value(value, shape, &path, key.span().start),
                None => {
                    let known = known.keys().map(String::as_str);
                    let suggestion = suggestion(key.get_ref(), known);
                    let message = format!("unknown key `{path}`; {suggestion}");
                    self.problem(key.span().start, message);
                }
            }
        }
        let required = shape.get("required").and_then(Json::as_array).into_iter().flatten();
        for key in required.filter_map(Json::as_str).filter(|key| !table.contains_key(*key)) {
            self.problem(at, format!("`{}` is missing", path.key(key)));
        }
    }

    /// Checks one value, whose key is at an offset.
    fn value(&mut self, value: &Spanned<DeValue<'_>>, shape: &Json, path: &KeyPath, key: usize) {
        let shape = definition(shape);
        let found = Type::of(value.get_ref());
        if !found.fits(shape) {
            let wanted = wanted(shape);
            let message = format!("`{path}` must be {wanted}, and this is {}", found.name());
            return self.problem(value.span().start, message);
        }
        match value.get_ref() {
            DeValue::Integer(number) => {
                let number = i64::from_str_radix(number.as_str(), number.radix()).ok();
                if let Some(wrong) = number.and_then(|number| out_of_bounds(number, shape)) {
                    self.problem(value.span().start, format!("`{path}` must be {wrong}"));
                }
            }
            DeValue::Table(table) => self.table(table, shape, path, key),
            DeValue::Array(items) => {
                let Some(shape) = shape.get("items") else { return };
                for (index, item) in items.iter().enumerate() {
                    self.value(item, shape, &path.index(index), item.span().start);
                }
            }
            _ => {}
        }
    }
}

/// Follows a reference to its definition in the schema.
fn definition(shape: &Json) -> &Json {
    let pointer = shape.get("$ref").and_then(Json::as_str).and_then(|at| at.strip_prefix('#'));
    pointer.and_then(|pointer| schema().pointer(pointer)).unwrap_or(shape)
}

/// The types of TOML values, with their counterparts in JSON schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    String,
    Integer,
    Number,
    Boolean,
    Array,
    Table,
    /// Has no counterpart in JSON, and no key accepts it.
    Date,
}

impl Type {
    const ALL: [Self; 7] = [
        Self::String,
        Self::Integer,
        Self::Number,
        Self::Boolean,
        Self::Array,
        Self::Table,
        Self::Date,
    ];

    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(_) => Self::String,
            DeValue::Integer(_) => Self::Integer,
            DeValue::Float(_) => Self::Number,
            DeValue::Boolean(_) => Self::Boolean,
            DeValue::Array(_) => Self::Array,
            DeValue::Table(_) => Self::Table,
            DeValue::Datetime(_) => Self::Date,
        }
    }

    /// Returns its name in a schema.
    fn in_schema(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Array => "array",
            Self::Table => "object",
            Self::Date => "date",
        }
    }

    /// Returns its name in messages.
    fn name(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::Boolean => "true or false",
            Self::Array => "an array",
            Self::Table => "a table",
            Self::Date => "a date",
        }
    }

    fn fits(self, shape: &Json) -> bool {
        let mut types = types(shape).peekable();
        types.peek().is_none()
            || types
                .any(|name| name == self.in_schema() || (self == Self::Integer && name == "number"))
    }
}

fn types(shape: &Json) -> impl Iterator<Item = &str> {
    let (one, many) = match shape.get("type") {
        Some(Json::String(one)) => (Some(one.as_str()), None),
        Some(Json::Array(many)) => (None, Some(many)),
        _ => (None, None),
    };
    one.into_iter().chain(many.into_iter().flatten().filter_map(Json::as_str))
}

/// Returns the bound that a number violates, if any.
fn out_of_bounds(number: i64, shape: &Json) -> Option<String> {
    let bound = |name: &str| shape.get(name).and_then(Json::as_i64);
    let least = bound("minimum").filter(|least| number < *least);
    let most = bound("maximum").filter(|most| number > *most);
    least.map(|least| format!("at least {least}")).or(most.map(|most| format!("at most {most}")))
}

/// Returns the types that a value may have, for messages.
fn wanted(shape: &Json) -> String {
    let name = |wanted: &str| Type::ALL.into_iter().find(|known| known.in_schema() == wanted);
    let names: Vec<&str> = types(shape).filter_map(name).map(Type::name).collect();
    names.join(" or ")
}
