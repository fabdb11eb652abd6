//! A JSON object as its fields in order, each value the very bytes of the file. What is not replaced is written as
//! it was read: fields that we do not know, and numbers that no Rust type holds.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields<'a>(Vec<(String, Cow<'a, RawValue>)>);

impl<'a> Fields<'a> {
    /// The value of a field; `null` is no value.
    pub(super) fn get(&self, name: &str) -> Option<&RawValue> {
        let (_, value) = self.0.iter().find(|(field, _)| field == name)?;
        Some(&**value).filter(|value| value.get() != "null")
    }

    /// Reads a field as it was in the file (what was `set` since is not read back); absent and `null` read as the
    /// default.
    pub(super) fn read<T: Default + Deserialize<'a>>(&self, name: &str) -> Result<T, serde_json::Error> {
        match self.0.iter().find(|(field, _)| field == name) {
            Some((_, Cow::Borrowed(value))) if value.get() != "null" => serde_json::from_str(value.get()),
            _ => Ok(T::default()),
        }
    }

    /// Replaces a field where it stands, or adds it at the end.
    pub(super) fn set(&mut self, name: &str, value: &impl Serialize) -> Result<(), serde_json::Error> {
        let value = Cow::Owned(serde_json::value::to_raw_value(value)?);
        match self.0.iter_mut().find(|(field, _)| field == name) {
            Some(field) => field.1 = value,
            None => self.0.push((name.to_owned(), value)),
        }
        Ok(())
    }

    /// Removes the fields that `gone` tells; how many it was.
    pub(super) fn remove(&mut self, mut gone: impl FnMut(&str, &RawValue) -> bool) -> usize {
        let before = self.0.len();
        self.0.retain(|(name, value)| !gone(name, value));
        before - self.0.len()
    }

    /// Whether the object has this field, be it `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field == name)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        let mut met = std::collections::HashSet::new();
        while let Some((name, value)) = entries.next_entry::<String, &'de RawValue>()? {
            if !met.insert(name.clone()) {
                return Err(A::Error::custom(format!("field {name:?} is there twice")));
            }
            fields.0.push((name, Cow::Borrowed(value)));
        }
        Ok(fields)
    }
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, &**value)?;
        }
        map.end()
    }
}
