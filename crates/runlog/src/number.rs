//! Numbers that JSON does not have.
//!
//! A diverged run has a loss of NaN, and that is the record one wants to find. JSON knows neither NaN nor
//! infinities, so they are written as the strings `"NaN"`, `"Infinity"` and `"-Infinity"` (the names that the JSON
//! mapping of Protocol Buffers uses) and read back from them. Finite numbers survive the round trip bit for bit.

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

/// For `#[serde(with = "number")]` on an `f64`.
pub(crate) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    match value {
        v if v.is_finite() => to.serialize_f64(*v),
        v if v.is_nan() => to.serialize_str("NaN"),
        v if *v > 0.0 => to.serialize_str("Infinity"),
        _ => to.serialize_str("-Infinity"),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    struct Number;
    impl Visitor<'_> for Number {
        type Value = f64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number, \"NaN\", \"Infinity\" or \"-Infinity\"")
        }
        fn visit_f64<E>(self, v: f64) -> Result<f64, E> {
            Ok(v)
        }
        fn visit_u64<E>(self, v: u64) -> Result<f64, E> {
            Ok(v as f64)
        }
        fn visit_i64<E>(self, v: i64) -> Result<f64, E> {
            Ok(v as f64)
        }
        fn visit_str<E: Error>(self, v: &str) -> Result<f64, E> {
            match v {
                "NaN" => Ok(f64::NAN),
                "Infinity" => Ok(f64::INFINITY),
                "-Infinity" => Ok(f64::NEG_INFINITY),
                _ => Err(E::invalid_value(serde::de::Unexpected::Str(v), &self)),
            }
        }
    }
    from.deserialize_any(Number)
}

/// Losses by name, for `#[serde(default, with = "number::losses", alias = "z_loss", skip_serializing_if = "BTreeMap::is_empty")]`. Logs
/// of earlier versions have one number, the z-loss, under its own key.
pub(crate) mod losses {
    use super::optional::Wrapped;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Found {
        ByName(BTreeMap<String, Wrapped>),
        ZLoss(Wrapped),
    }

    pub(crate) fn serialize<S: Serializer>(value: &BTreeMap<String, f64>, to: S) -> Result<S::Ok, S::Error> {
        value.iter().map(|(name, value)| (name, Wrapped(*value))).collect::<BTreeMap<_, _>>().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
        Ok(match Found::deserialize(from)? {
            Found::ByName(losses) => losses.into_iter().map(|(name, value)| (name, value.0)).collect(),
            Found::ZLoss(value) => BTreeMap::from([("z_loss".into(), value.0)]),
        })
    }
}

/// For `#[serde(default, with = "number::optional", skip_serializing_if = "Option::is_none")]`.
pub(crate) mod optional {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    pub(super) struct Wrapped(#[serde(with = "super")] pub(super) f64);

    pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(from)?.map(|w| w.0))
    }
}
