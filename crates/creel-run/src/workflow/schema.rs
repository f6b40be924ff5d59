//! The schema of workflow files: for editors, and for [`super::shape`].

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::file::File;

static SCHEMA: LazyLock<Value> = LazyLock::new(generate);

/// Returns the JSON schema of workflow files, as in `docs/reference/workflow.schema.json`.
pub fn schema() -> &'static Value {
    &SCHEMA
}

fn generate() -> Value {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<File>();
    let mut schema = schema.to_value();
    without_null(&mut schema);
    schema
}

/// Removes null alternatives and number formats, because TOML has neither.
fn without_null(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.remove("format");
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            if let Some(only) = object.get("anyOf").and_then(or_null) {
                object.remove("anyOf");
                object.extend(only);
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    object.insert("type".to_owned(), only);
                }
            }
            object.values_mut().for_each(without_null);
        }
        Value::Array(values) => values.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// Returns the only alternative to null, if there is exactly one.
fn or_null(choices: &Value) -> Option<serde_json::Map<String, Value>> {
    match choices.as_array()?.as_slice() {
        [Value::Object(only), null] if null.get("type")? == "null" => Some(only.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_on_record_is_fresh() {
        let recorded = include_str!("../../../../docs/reference/workflow.schema.json");
        // Compared as values, because the order of keys is not guaranteed.
        let recorded: Option<Value> = serde_json::from_str(recorded).ok();
        assert!(
            recorded.as_ref() == Some(schema()),
            "write it anew: cargo run -p creel-run --example workflow_schema > \
             docs/reference/workflow.schema.json"
        );
    }

    #[test]
    fn every_key_has_a_description_and_none_may_be_null() {
        fn check(value: &Value, path: &str) {
            let Some(object) = value.as_object() else { return };
            assert!(object.get("type").is_none_or(|t| !t.to_string().contains("null")), "{path}");
            for (key, property) in
                object.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                assert!(property.get("description").is_some(), "{path}.{key}");
                check(property, &format!("{path}.{key}"));
            }
            for (name, part) in object.get("$defs").and_then(Value::as_object).into_iter().flatten()
            {
                check(part, name);
            }
        }
        check(schema(), "workflow");
    }
}
