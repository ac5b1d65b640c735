//! From a tree to a config type through serde, keeping the path to the place where it fails.
//!
//! The schema check has been passed before; what still fails here is what a schema cannot say.

use crate::node::{Node, Table, Value};
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use std::fmt;

/// A failure with the way to it, outermost step last while it is being built.
#[derive(Debug)]
pub(crate) struct ValueError {
    pub(crate) message: String,
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Key(String),
    Index(usize),
}

impl ValueError {
    /// The failing value and its dotted path.
    pub(crate) fn find<'a>(&self, root: &'a Node) -> (&'a Node, String) {
        let mut node = root;
        let mut path = String::new();
        for step in self.steps.iter().rev() {
            let next = match (step, &node.value) {
                (Step::Key(key), Value::Table(_)) => node.get(key),
                (Step::Index(i), Value::Array(items)) => items.get(*i),
                _ => None,
            };
            let Some(next) = next else { break };
            path = match step {
                Step::Key(key) => crate::check::join(&path, key),
                Step::Index(i) => format!("{path}[{i}]"),
            };
            node = next;
        }
        (node, path)
    }

    fn under(mut self, step: Step) -> ValueError {
        self.steps.push(step);
        self
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ValueError {}

impl de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> ValueError {
        ValueError { message: message.to_string(), steps: Vec::new() }
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.value {
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Int(i) => match (i64::try_from(*i), u64::try_from(*i)) {
                (Ok(i), _) => visitor.visit_i64(i),
                (_, Ok(u)) => visitor.visit_u64(u),
                _ => Err(de::Error::custom("the integer does not fit in 64 bits")),
            },
            Value::Float(x) => visitor.visit_f64(*x),
            Value::Str(s) | Value::Date(s) => visitor.visit_borrowed_str(s),
            Value::Array(items) => visitor.visit_seq(Items { items, next: 0 }),
            Value::Table(table) => visitor.visit_map(Entries { entries: table.iter(), current: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match &self.value {
            Value::Str(s) => visitor.visit_enum(StrDeserializer::<ValueError>::new(s)),
            Value::Table(table) if table.len() == 1 => {
                visitor.visit_enum(Variant { entry: table.iter().next().expect("the table has one entry") })
            }
            Value::Table(_) => {
                Err(de::Error::custom("expected a table with exactly one key, the variant's name"))
            }
            _ => Err(de::Error::custom(format!("expected a name, found {}", self.describe()))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Items<'de> {
    items: &'de [Node],
    next: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'de> {
    type Error = ValueError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ValueError> {
        let Some(item) = self.items.get(self.next) else { return Ok(None) };
        self.next += 1;
        seed.deserialize(item).map(Some).map_err(|e| e.under(Step::Index(self.next - 1)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

struct Entries<'de> {
    entries: std::collections::btree_map::Iter<'de, String, crate::node::Field>,
    current: Option<(&'de String, &'de Node)>,
}

impl<'de> de::MapAccess<'de> for Entries<'de> {
    type Error = ValueError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ValueError> {
        let Some((key, field)) = self.entries.next() else { return Ok(None) };
        self.current = Some((key, &field.node));
        let key: StrDeserializer<'_, ValueError> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ValueError> {
        let (key, node) = self.current.take().expect("serde asks for a value only after its key");
        seed.deserialize(node).map_err(|e| e.under(Step::Key(key.clone())))
    }
}

struct Variant<'de> {
    entry: (&'de String, &'de crate::node::Field),
}

impl<'de> de::EnumAccess<'de> for Variant<'de> {
    type Error = ValueError;
    type Variant = Content<'de>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content<'de>), ValueError> {
        let (key, field) = self.entry;
        let name: StrDeserializer<'_, ValueError> = key.as_str().into_deserializer();
        Ok((seed.deserialize(name)?, Content { key, node: &field.node }))
    }
}

struct Content<'de> {
    key: &'de String,
    node: &'de Node,
}

impl<'de> de::VariantAccess<'de> for Content<'de> {
    type Error = ValueError;

    fn unit_variant(self) -> Result<(), ValueError> {
        match &self.node.value {
            Value::Table(table) if Table::is_empty(table) => Ok(()),
            _ => Err(de::Error::custom(format!(
                "the variant {} takes no value",
                crate::error::quoted(self.key)
            ))),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ValueError> {
        seed.deserialize(self.node).map_err(|e| e.under(Step::Key(self.key.clone())))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, ValueError> {
        self.node.deserialize_any(visitor).map_err(|e| e.under(Step::Key(self.key.clone())))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.node.deserialize_any(visitor).map_err(|e| e.under(Step::Key(self.key.clone())))
    }
}
