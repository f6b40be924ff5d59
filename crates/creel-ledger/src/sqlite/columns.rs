//! Column values: external text is stored only if its type proves that it was masked.
//!
//! Every value goes to the database through [`Binds::column`]; clippy rejects the driver's own
//! `bind` everywhere else. A `String` is not a [`Column`], so unmasked text does not compile. The
//! only exception is [`Exact`], whose use marks each call that needs it.

use std::collections::BTreeMap;

use creel_model::id::{LedgerId, ResourceId, RunId};
use creel_model::labels::Labels;
use creel_model::owner::Owner;
use creel_model::provider::Identity;
use creel_model::run::{RunCommand, RunState};
use creel_sanitise::{Diagnostic, Masked};
use serde::Serialize;
use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::query::{Query, QueryScalar};
use sqlx::query_builder::Separated;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteArgumentsBuffer, SqliteTypeInfo};
use sqlx::{QueryBuilder, Type};

use crate::event::Event;

/// A value for a column. Only this module creates one.
#[derive(Debug)]
pub(crate) struct ColumnValue(SqlValue);

#[derive(Debug)]
enum SqlValue {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A type that can be stored in a column.
pub(crate) trait Column {
    /// Returns the stored value.
    fn value(self) -> ColumnValue;
}

/// Text that is stored unmasked, because it identifies an object of an engine or restarts a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exact<'a>(pub(crate) &'a str);

/// Our own data in a packed format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a>(pub(crate) &'a [u8]);

/// Data that is stored as JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Json<'a, T>(pub(crate) &'a T);

/// Data whose text is masked by its types, or exact for the reasons of [`Exact`].
pub(crate) trait StoredAsJson: Serialize {}

/// Reasons are [`Masked`]; the id of an object is exact.
impl StoredAsJson for Event {}
/// Causes are [`Diagnostic`] and names [`Masked`].
impl StoredAsJson for RunState {}
/// The question that a message answers is [`Masked`]; its text is not stored here.
impl StoredAsJson for RunCommand {}
/// Ids and names of objects, which are exact.
impl StoredAsJson for Identity {}
/// An object is found by its labels, which are exact.
impl StoredAsJson for Labels {}
/// The inputs of a run, which restart it. Secrets appear in them only as references.
impl StoredAsJson for BTreeMap<String, String> {}

impl Column for Exact<'_> {
    fn value(self) -> ColumnValue {
        ColumnValue(SqlValue::Text(self.0.to_owned()))
    }
}

impl Column for Packed<'_> {
    fn value(self) -> ColumnValue {
        ColumnValue(SqlValue::Bytes(self.0.to_owned()))
    }
}

impl<T: StoredAsJson> Column for Json<'_, T> {
    fn value(self) -> ColumnValue {
        let text = serde_json::to_string(self.0).expect("what is stored is plain data");
        ColumnValue(SqlValue::Text(text))
    }
}

/// String literals from this source code.
impl Column for &'static str {
    fn value(self) -> ColumnValue {
        ColumnValue(SqlValue::Text(self.to_owned()))
    }
}

impl Column for i64 {
    fn value(self) -> ColumnValue {
        ColumnValue(SqlValue::Number(self))
    }
}

impl Column for u32 {
    fn value(self) -> ColumnValue {
        ColumnValue(SqlValue::Number(self.into()))
    }
}

impl<C: Column> Column for Option<C> {
    fn value(self) -> ColumnValue {
        self.map_or(ColumnValue(SqlValue::Null), Column::value)
    }
}

/// Implements `Column` for types that are safe by their nature.
macro_rules! columns {
    ($($safe:ty),+) => {
        $(impl Column for &$safe {
            fn value(self) -> ColumnValue {
                ColumnValue(SqlValue::Text(self.to_string()))
            }
        })+
    };
}

columns!(Masked, Diagnostic, LedgerId, ResourceId, RunId, Owner);

impl Type<Sqlite> for ColumnValue {
    fn type_info() -> SqliteTypeInfo {
        <String as Type<Sqlite>>::type_info()
    }
}

impl<'q> Encode<'q, Sqlite> for ColumnValue {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        match &self.0 {
            SqlValue::Null => Ok(IsNull::Yes),
            SqlValue::Number(number) => Encode::<Sqlite>::encode_by_ref(number, buffer),
            SqlValue::Text(text) => Encode::<Sqlite>::encode_by_ref(text, buffer),
            SqlValue::Bytes(bytes) => Encode::<Sqlite>::encode_by_ref(bytes, buffer),
        }
    }
}

/// Statements that take columns.
pub(crate) trait Binds {
    /// Binds the next value of the statement.
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
