//! Which of several copies is kept: the lowest (split, file, row), never the first to arrive.
//!
//! The split leads, train before validation, so that no validation text is also trained on; where rows carry no
//! column `split`, or none is decided yet, (file, row) alone decides.

use arrow_array::{Array, FixedSizeBinaryArray, RecordBatch, UInt8Array, UInt32Array, UInt64Array};
use bessemer_dataflow::{Result, column};

/// A document's place in the order that decides which copy is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocKey {
    /// 0: undecided; else the split's code plus one.
    pub split: u8,
    /// Ordinal of the file in the listing.
    pub file: u32,
    /// Ordinal of the document in its file.
    pub row: u64,
}

impl DocKey {
    /// Two words whose order is the order of places.
    pub fn words(self) -> [u64; 2] {
        [u64::from(self.split) << 32 | u64::from(self.file), self.row]
    }

    /// The place of two words.
    pub fn of_words(words: [u64; 2]) -> DocKey {
        DocKey { split: (words[0] >> 32) as u8, file: words[0] as u32, row: words[1] }
    }

    /// 16 bytes whose order is the order of places: the column `order`.
    pub fn bytes(self) -> [u8; 16] {
        let [high, low] = self.words();
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    /// The place of 16 bytes.
    pub fn of_bytes(bytes: &[u8]) -> DocKey {
        let mut whole = [0; 16];
        whole.copy_from_slice(&bytes[..16]);
        let both = u128::from_be_bytes(whole);
        DocKey::of_words([(both >> 64) as u64, both as u64])
    }
}

/// The places of the rows of a batch.
pub struct DocKeys<'a> {
    split: Option<&'a UInt8Array>,
    file: &'a UInt32Array,
    row: &'a UInt64Array,
}

impl<'a> DocKeys<'a> {
    /// The columns of a batch; `stage` names who asks.
    ///
    /// # Errors
    /// A missing column.
    pub fn of(stage: &str, batch: &'a RecordBatch) -> Result<Self> {
        let split = match batch.column_by_name("split") {
            Some(_) => Some(column(stage, batch, "split")?),
            None => None,
        };
        Ok(DocKeys { split, file: column(stage, batch, "file")?, row: column(stage, batch, "row")? })
    }

    /// The place of a row.
    pub fn get(&self, index: usize) -> DocKey {
        let split = match self.split {
            Some(split) if !split.is_null(index) => split.value(index).saturating_add(1),
            _ => 0,
        };
        DocKey { split, file: self.file.value(index), row: self.row.value(index) }
    }
}

/// The column `name` of 16-byte places.
pub fn doc_key_column<'a>(
    stage: &str,
    batch: &'a RecordBatch,
    name: &str,
) -> Result<&'a FixedSizeBinaryArray> {
    column(stage, batch, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_keep_the_order() {
        let places = [
            DocKey { split: 0, file: 9, row: 9 },
            DocKey { split: 1, file: 0, row: 3 },
            DocKey { split: 1, file: 0, row: u64::MAX },
            DocKey { split: 1, file: 1, row: 0 },
            DocKey { split: 2, file: 0, row: 0 },
        ];
        for pair in places.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].words() < pair[1].words());
            assert!(pair[0].bytes() < pair[1].bytes());
        }
        for place in places {
            assert_eq!(DocKey::of_words(place.words()), place);
            assert_eq!(DocKey::of_bytes(&place.bytes()), place);
        }
    }
}
