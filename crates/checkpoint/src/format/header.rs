//! The JSON header of a safetensors file, parsed without trust.

use super::{MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS};
use bessemer_units::DType;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Element type of a stored tensor: those of the format whose elements are whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum StoredType {
    Bool,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
}

const TYPES: [(&str, StoredType, u64); 15] = [
    ("BOOL", StoredType::Bool, 1),
    ("U8", StoredType::U8, 1),
    ("I8", StoredType::I8, 1),
    ("F8_E5M2", StoredType::F8E5M2, 1),
    ("F8_E4M3", StoredType::F8E4M3, 1),
    ("I16", StoredType::I16, 2),
    ("U16", StoredType::U16, 2),
    ("F16", StoredType::F16, 2),
    ("BF16", StoredType::Bf16, 2),
    ("I32", StoredType::I32, 4),
    ("U32", StoredType::U32, 4),
    ("F32", StoredType::F32, 4),
    ("F64", StoredType::F64, 8),
    ("I64", StoredType::I64, 8),
    ("U64", StoredType::U64, 8),
];

impl StoredType {
    fn row(self) -> &'static (&'static str, StoredType, u64) {
        TYPES.iter().find(|t| t.1 == self).expect("TYPES has a row for every variant")
    }

    /// Name in the format, e.g. "BF16".
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        self.row().2
    }

    /// The same type among those that a checkpoint's tensors may have. U8 is none: codes mean nothing without their scales.
    pub fn dtype(self) -> Option<DType> {
        DType::from_safetensors_name(self.name()).filter(|dtype| *dtype != DType::U8)
    }
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Element type.
    pub stored: StoredType,
    /// Shape, outermost dim first.
    pub shape: Vec<usize>,
    /// First byte, relative to the end of the header.
    pub begin: u64,
    /// One past the last byte, relative to the end of the header.
    pub end: u64,
}

/// A parsed and checked header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their bytes.
    pub entries: Vec<Entry>,
    /// The `__metadata__` map.
    pub metadata: BTreeMap<String, String>,
    by_name: HashMap<String, usize>,
}

impl Header {
    /// Parses a header whose data section has `data_bytes` bytes. The error says what was wanted and found.
    pub fn parse(json: &[u8], data_bytes: u64) -> Result<Header, String> {
        if json.first() != Some(&b'{') {
            return Err("the header does not start with '{'".into());
        }
        let mut de = serde_json::Deserializer::from_slice(json);
        let mut header = de.deserialize_map(HeaderVisitor).map_err(|e| format!("header: {e}"))?;
        de.end().map_err(|e| format!("header: {e}"))?;
        header.check_ranges(data_bytes)?;
        Ok(header)
    }

    /// The tensor of that name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|i| &self.entries[*i])
    }

    /// Sorts entries by offset and checks that they cover `0..data_bytes` exactly.
    fn check_ranges(&mut self, data_bytes: u64) -> Result<(), String> {
        self.entries.sort_by_key(|e| (e.begin, e.end));
        let mut at = 0u64;
        for e in &self.entries {
            let (name, wanted) = (&e.name, checked_bytes(&e.shape, e.stored.size()));
            let wanted = wanted
                .ok_or_else(|| format!("tensor {name:?}: the size of shape {:?} overflows", e.shape))?;
            let found = e.end.checked_sub(e.begin);
            if found != Some(wanted) {
                return Err(format!(
                    "tensor {name:?}: shape {:?} of {} takes {wanted} bytes, data_offsets are [{}, {}]",
                    e.shape,
                    e.stored.name(),
                    e.begin,
                    e.end
                ));
            }
            if e.begin != at {
                let what = if e.begin > at { "a hole" } else { "an overlap" };
                return Err(format!("tensor {name:?}: starts at {}, wanted {at}: {what}", e.begin));
            }
            at = e.end;
        }
        if at != data_bytes {
            return Err(format!("the tensors take {at} bytes, the file has {data_bytes} after the header"));
        }
        self.by_name = self.entries.iter().enumerate().map(|(i, e)| (e.name.clone(), i)).collect();
        Ok(())
    }
}

/// Bytes of a tensor, `None` on overflow.
pub(crate) fn checked_bytes(shape: &[usize], element: u64) -> Option<u64> {
    shape.iter().try_fold(element, |n, d| n.checked_mul(u64::try_from(*d).ok()?))
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tensor names to their description")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        let mut seen_metadata = false;
        // Names are held twice at most, so memory stays within a small multiple of the header's own size.
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut seen_metadata, true) {
                    return Err(de::Error::custom("\"__metadata__\" is given twice"));
                }
                header.metadata = map.next_value_seed(Metadata)?;
                continue;
            }
            if name.len() > MAX_NAME_BYTES {
                return Err(de::Error::custom(format!(
                    "a tensor name has {} bytes, at most {MAX_NAME_BYTES} are read",
                    name.len()
                )));
            }
            if header.entries.len() == MAX_TENSORS {
                return Err(de::Error::custom(format!(
                    "more than {MAX_TENSORS} tensors in one file, the most that are read; cut it into several"
                )));
            }
            let entry = map.next_value_seed(EntrySeed(&name))?;
            if !names.insert(name) {
                return Err(de::Error::custom(format!("tensor {:?} is given twice", entry.name)));
            }
            header.entries.push(entry);
        }
        Ok(header)
    }
}

struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = BTreeMap<String, String>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from strings to strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if out.insert(key, value).is_some() {
                return Err(de::Error::custom("a key of \"__metadata__\" is given twice"));
            }
        }
        Ok(out)
    }
}

struct EntrySeed<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for EntrySeed<'_> {
    type Value = Entry;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Entry, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntrySeed<'_> {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let name = self.0;
        let wrong = |problem: String| de::Error::custom(format!("tensor {name:?}: {problem}"));
        let (mut stored, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let again = match key.as_str() {
                "dtype" => {
                    let given = map.next_value::<String>()?;
                    let known = TYPES.iter().find(|t| t.0 == given).map(|t| t.1);
                    stored.replace(known.ok_or_else(|| wrong(format!("unknown dtype {given:?}")))?).is_some()
                }
                "shape" => shape.replace(map.next_value_seed(Short::<MAX_RANK>)?).is_some(),
                "data_offsets" => offsets.replace(map.next_value_seed(Short::<2>)?).is_some(),
                other => return Err(wrong(format!("unknown key {other:?}"))),
            };
            if again {
                return Err(wrong(format!("key {key:?} is given twice")));
            }
        }
        let stored = stored.ok_or_else(|| wrong("no dtype".into()))?;
        let shape = shape.ok_or_else(|| wrong("no shape".into()))?;
        let shape = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| wrong("a dim is larger than this machine's address space".into()))?;
        let Some([begin, end]) = offsets.as_deref() else {
            return Err(wrong("data_offsets must be two numbers".into()));
        };
        Ok(Entry { name: name.into(), stored, shape, begin: *begin, end: *end })
    }
}

/// A list of at most `N` unsigned numbers: a longer one is refused before it is stored.
struct Short<const N: usize>;

impl<'de, const N: usize> DeserializeSeed<'de> for Short<N> {
    type Value = Vec<u64>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Vec<u64>, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Short<N> {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N} numbers that are not negative")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut list = Vec::new();
        while let Some(n) = seq.next_element::<u64>()? {
            if list.len() == N {
                return Err(de::Error::invalid_length(N + 1, &self));
            }
            list.push(n);
        }
        Ok(list)
    }
}
