//! temporary
use creel_core::run::engine::DriveError;
use creel_core::run::orders::OrderError;
use creel_core::run::records::RecordsError;

use crate::output::Failure;

impl From<DriveError> for Failure {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Journal(error) => error.into(),
            DriveError::Ledger(error) => error.into(),
        }
    }
}
impl From<RecordsError> for Failure {
    fn from(error: RecordsError) -> Self { Failure::internal("records", &error) }
}
impl From<OrderError> for Failure {
    fn from(error: OrderError) -> Self { Failure::internal("order", &error) }
}
