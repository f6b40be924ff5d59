//! What columns take: text of the outside only where its type says that it was masked.
//!
//! Every value goes to the database through [`Binds::column`]; clippy refuses the driver's own
//! `bind` everywhere else. A `String` is no [`Column`], so text that nothing has masked does not
//! compile. The one way around is [`Exact`], which says at the call why it is needed.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::query::{Query, QueryScalar};
use sqlx::query_builder::Separated;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteArgumentsBuffer, SqliteTypeInfo};
use sqlx::{QueryBuilder, Type};

use crate::id::{LedgerId, ResourceId, RunId};
use crate::labels::Labels;
use crate::owner::Owner;
use crate::provider::Identity;
use crate::run::{Order, RunState};
use crate::sanitise::{Diagnostic, Masked};

use super::super::Event;

/// A value on its way into a column. Only this module makes one.
#[derive(Debug)]
pub(crate) struct Value(Form);

#[derive(Debug)]
enum Form {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// What a column takes.
pub(crate) trait Column {
    /// Returns what is stored.
    fn value(self) -> Value;
}

/// Text that is stored letter for letter: by it an engine finds a thing, or a run begins again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exact<'a>(pub(crate) &'a str);

/// Data of ours that is stored packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a>(pub(crate) &'a [u8]);

/// Data that is stored as JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Json<'a, T>(pub(crate) &'a T);

/// Data whose texts are masked by their types, or exact for the reasons of [`Exact`].
pub(crate) trait StoredAsJson: Serialize {}

/// Reasons are [`Masked`]; the id of an object is exact.
impl StoredAsJson for Event {}
/// Causes are [`Diagnostic`] and names [`Masked`].
impl StoredAsJson for RunState {}
/// The question that a message answers is [`Masked`]; its text is not stored here.
impl StoredAsJson for Order {}
/// Ids and names of objects, which are exact.
impl StoredAsJson for Identity {}
/// An object is found by its labels, which are exact.
impl StoredAsJson for Labels {}
/// The inputs of a run, with which it begins again; secrets are references in them.
impl StoredAsJson for BTreeMap<String, String> {}

impl Column for Exact<'_> {
    fn value(self) -> Value {
        Value(Form::Text(self.0.to_owned()))
    }
}

impl Column for Packed<'_> {
    fn value(self) -> Value {
        Value(Form::Bytes(self.0.to_owned()))
    }
}

impl<T: StoredAsJson> Column for Json<'_, T> {
    fn value(self) -> Value {
        let text = serde_json::to_string(self.0).expect("what is stored is plain data");
        Value(Form::Text(text))
    }
}

/// String literals from this source code.
impl Column for &'static str {
    fn value(self) -> Value {
        Value(Form::Text(self.to_owned()))
    }
}

impl Column for i64 {
    fn value(self) -> Value {
        Value(Form::Number(self))
    }
}

impl Column for u32 {
    fn value(self) -> Value {
        Value(Form::Number(self.into()))
    }
}

impl<C: Column> Column for Option<C> {
    fn value(self) -> Value {
        self.map_or(Value(Form::Null), Column::value)
    }
}

/// Makes types columns that are safe by what they are.
macro_rules! columns {
    ($($safe:ty),+) => {
        $(impl Column for &$safe {
            fn value(self) -> Value {
                Value(Form::Text(self.to_string()))
            }
        })+
    };
}

columns!(Masked, Diagnostic, LedgerId, ResourceId, RunId, Owner);

impl Type<Sqlite> for Value {
    fn type_info() -> SqliteTypeInfo {
        <String as Type<Sqlite>>::type_info()
    }
}

impl<'q> Encode<'q, Sqlite> for Value {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        match &self.0 {
            Form::Null => Ok(IsNull::Yes),
            Form::Number(number) => Encode::<Sqlite>::encode_by_ref(number, buffer),
            Form::Text(text) => Encode::<Sqlite>::encode_by_ref(text, buffer),
            Form::Bytes(bytes) => Encode::<Sqlite>::encode_by_ref(bytes, buffer),
        }
    }
}

/// Statements that take columns.
pub(crate) trait Binds {
    /// Gives the statement its next value.
    fn column(self, value: impl Column) -> Self;
}

#[expect(clippy::disallowed_methods, reason = "this is the one place where values are bound")]
impl Binds for Query<'_, Sqlite, SqliteArguments> {
    fn column(self, value: impl Column) -> Self {
        self.bind(value.value())
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place where values are bound")]
impl<O> Binds for QueryScalar<'_, Sqlite, O, SqliteArguments> {
    fn column(self, value: impl Column) -> Self {
        self.bind(value.value())
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place where values are bound")]
impl Binds for &mut QueryBuilder<Sqlite> {
    fn column(self, value: impl Column) -> Self {
        self.push_bind(value.value())
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place where values are bound")]
impl Binds for &mut Separated<'_, Sqlite, &'static str> {
    fn column(self, value: impl Column) -> Self {
        self.push_bind(value.value())
    }
}
