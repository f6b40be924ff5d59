//! Values by sandbox and name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use uuid::Uuid;

use crate::error::{ApiError, Result};
use crate::lock::lock;

/// Values by sandbox and name.
#[derive(Debug)]
pub(crate) struct PerSandbox<T>(Mutex<HashMap<(Uuid, String), Arc<T>>>);

impl<T> Default for PerSandbox<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PerSandbox<T> {
    /// Returns a value. `what` names it in the error.
    pub(crate) fn get(&self, sandbox: Uuid, name: &str, what: &str) -> Result<Arc<T>> {
        let missing = || {
            ApiError::new(StatusCode::NOT_FOUND, format!("{what} not found")).with_code("NOT_FOUND")
        };
        lock(&self.0).get(&(sandbox, name.to_owned())).cloned().ok_or_else(missing)
    }

    /// Returns all values of a sandbox, unsorted.
    pub(crate) fn all_of(&self, sandbox: Uuid) -> Vec<Arc<T>> {
        let all = lock(&self.0);
        let own = all.iter().filter(|((owner, _), _)| *owner == sandbox);
        own.map(|(_, value)| Arc::clone(value)).collect()
    }

    /// Adds a value. Returns `false` if the name is taken.
    pub(crate) fn add(&self, sandbox: Uuid, name: &str, value: &Arc<T>) -> bool {
        let mut all = lock(&self.0);
        let key = (sandbox, name.to_owned());
        if all.contains_key(&key) {
            return false;
        }
        all.insert(key, Arc::clone(value));
        true
    }

    /// Sets a value, and replaces another one of the same name.
    pub(crate) fn set(&self, sandbox: Uuid, name: &str, value: T) {
        lock(&self.0).insert((sandbox, name.to_owned()), Arc::new(value));
    }

    /// Removes the value of a name.
    pub(crate) fn remove(&self, sandbox: Uuid, name: &str) {
        lock(&self.0).remove(&(sandbox, name.to_owned()));
    }

    /// Removes a value, unless another one has its name by now.
    pub(crate) fn remove_value(&self, sandbox: Uuid, name: &str, value: &Arc<T>) {
        let mut all = lock(&self.0);
        let key = (sandbox, name.to_owned());
        if all.get(&key).is_some_and(|known| Arc::ptr_eq(known, value)) {
            all.remove(&key);
        }
    }

    /// Removes the values of a sandbox that ends.
    pub(crate) fn forget(&self, sandbox: &Uuid) {
        lock(&self.0).retain(|(owner, _), _| owner != sandbox);
    }
}
