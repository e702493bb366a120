//! Secrets in options: where a reference `${secret:NAME/KEY}` may stand, and the values, which are looked up when a client is
//! made and kept nowhere else. So no plan, message or log can hold one.

use crate::options::{error, is_secret};
use sluice_engine::table::{TableDescriptor, TableError, TableOption};
use sluice_protocol::secrets::{self, SecretReference};
use std::sync::Arc;

/// Looks up a value; the text says what is missing and what to do.
pub type SecretSource = Arc<dyn Fn(&SecretReference) -> Result<String, String> + Send + Sync>;

/// For catalogs whose clients are never made: there is no secret.
#[must_use]
pub fn no_secrets() -> SecretSource {
    Arc::new(|reference| Err(format!("{reference} has no value here")))
}

/// Refuses references in options whose values may be shown, and what only looks like a reference.
pub(crate) fn check(table: &TableDescriptor, TableOption { key, value }: &TableOption) -> Result<(), TableError> {
    let is_there =
        secrets::check(value).map_err(|wrong| error(table, Some(key), format!("the option '{key}': {wrong}")))?;
    let is_client = key.starts_with("properties.");
    let takes_one =
        is_client && (is_secret(key) || key == "properties.sasl.username" || key.starts_with("properties.ssl."));
    if is_there && !takes_one {
        let message = format!(
            "the option '{key}' cannot hold a secret, since messages and plans show its value; 'properties.sasl.*' and \
             'properties.ssl.*' can"
        );
        return Err(error(table, Some(key), message));
    }
    Ok(())
}
