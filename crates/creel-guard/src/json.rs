//! JSON objects that are changed without being fully parsed.
//!
//! Docker's engine ignores the case of keys, and merges duplicate maps. So lookups here ignore case
//! too. Everything that is not changed is forwarded as received, including unknown fields and the
//! text of numbers.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// An object as received, with its fields in their original sequence and with duplicates.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonObject {
    fields: Vec<(String, Box<RawValue>)>,
}

impl JsonObject {
    /// Parses an object. `null` and empty input count as an empty one.
    pub(super) fn parse(text: &[u8]) -> serde_json::Result<Self> {
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        Ok(serde_json::from_slice::<Option<Self>>(text)?.unwrap_or_default())
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Serializing text that was parsed before cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns all values of a key, ignoring its case.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = &RawValue> {
        let fits = move |name: &str| name.eq_ignore_ascii_case(key);
        self.fields.iter().filter(move |(name, _)| fits(name)).map(|(_, value)| value.as_ref())
    }

    /// Returns the value of a key. The last of several counts.
    pub(super) fn get(&self, key: &str) -> Option<Value> {
        self.all(key).last().and_then(|raw| serde_json::from_str(raw.get()).ok())
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.get(key)?.as_str().map(str::to_owned)
    }

    /// Returns the object under a key, with the fields of all its duplicates.
    pub(super) fn object(&self, key: &str) -> Self {
        let all = self.all(key).filter_map(|raw| Self::parse(raw.get().as_bytes()).ok());
        Self { fields: all.flat_map(|object| object.fields).collect() }
    }

    /// Returns the list of objects under a key.
    pub(super) fn objects(&self, key: &str) -> Vec<Self> {
        let last = self.all(key).last();
        last.and_then(|raw| serde_json::from_str::<Option<Vec<Self>>>(raw.get()).ok())
            .flatten()
            .unwrap_or_default()
    }

    /// Sets the value of a key, and replaces all its duplicates.
    pub(super) fn set(&mut self, key: &str, value: &impl Serialize) {
        self.fields.retain(|(name, _)| !name.eq_ignore_ascii_case(key));
        // Serialization fails only for maps with keys that are not strings, and there are none
        // here.
        if let Ok(raw) = to_raw_value(value) {
            self.fields.push((key.to_owned(), raw));
        }
    }

    /// Returns the keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// Sets a field with exactly this name, including its case, and leaves all others.
    pub(super) fn put(&mut self, key: &str, value: &str) {
        self.fields.retain(|(name, _)| name != key);
        if let Ok(raw) = to_raw_value(value) {
            self.fields.push((key.to_owned(), raw));
        }
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (key, value) in &self.fields {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = JsonObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonObject, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(JsonObject { fields })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_parts_are_forwarded_as_received() {
        let text = br#"{"Big":12345678901234567890.50,"x":{"b":1,"a":[ 1 ]},"x":null}"#;
        let object = JsonObject::parse(text).unwrap();
        assert_eq!(object.to_bytes(), text);
        assert!(JsonObject::parse(b"").unwrap().to_bytes() == b"{}");
        assert!(JsonObject::parse(b"null").unwrap().keys().next().is_none());
        assert!(JsonObject::parse(b"[1]").is_err());
    }

    #[test]
    fn keys_are_found_without_case_and_maps_are_merged() {
        let text = br#"{"labels":{"a":"1"},"Image":"x","LABELS":{"b":"2"}}"#;
        let mut object = JsonObject::parse(text).unwrap();
        let mut labels = object.object("Labels");
        labels.put("A", "3");
        object.set("Labels", &labels);
        let text = br#"{"Image":"x","Labels":{"a":"1","b":"2","A":"3"}}"#;
        assert_eq!(String::from_utf8(object.to_bytes()), String::from_utf8(text.to_vec()));
        assert_eq!(object.text("image").as_deref(), Some("x"));
    }
}
