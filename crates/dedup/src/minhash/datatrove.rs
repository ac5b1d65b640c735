//! The files of datatrove's MinHash: read by its later stages, or written by its earlier ones.
//!
//! | file | records, little-endian | order |
//! |---|---|---|
//! | `bucket_BBB/RRRRR.minhash.sig` | r values of 8 (or 4) bytes, document u32 | by record |
//! | `*.dups` | file, document, file, document, each u32 | as found |
//! | `FFFFFF.remove` | document u32 | ascending |
//!
//! The functions here are from values to bytes and back: who calls them opens the files. One difference remains:
//! datatrove keeps of each cluster whichever document its union-find made the root, we keep the lowest.

use super::permutations::Width;
use std::collections::BTreeMap;

/// A document: file and position.
pub type Document = (u32, u32);

/// The bytes of one band's signature file: records of these documents of one file, sorted. `values` are the band's
/// values of each document.
pub fn signature_file(width: Width, mut records: Vec<(Vec<u64>, u32)>) -> Vec<u8> {
    records.sort_unstable();
    let mut bytes = Vec::new();
    for (values, document) in records {
        for value in values {
            match width {
                Width::W64 => bytes.extend(value.to_le_bytes()),
                // A 32-bit value has no higher bits.
                Width::W32 => bytes.extend((value as u32).to_le_bytes()),
            }
        }
        bytes.extend(document.to_le_bytes());
    }
    bytes
}

/// The records of a band's signature file with `rows` values each.
///
/// # Errors
/// The length is no multiple of a record's, or the records are not sorted.
pub fn read_signatures(width: Width, rows: usize, bytes: &[u8]) -> Result<Vec<(Vec<u64>, u32)>, String> {
    let size = match width {
        Width::W64 => 8,
        Width::W32 => 4,
    };
    let record = size * rows + 4;
    if !bytes.len().is_multiple_of(record) {
        return Err(format!("{} bytes are no whole number of signatures of {record} bytes", bytes.len()));
    }
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
    let records: Vec<(Vec<u64>, u32)> = bytes
        .chunks_exact(record)
        .map(|record| {
            let (values, document) = record.split_at(size * rows);
            (values.chunks_exact(size).map(word).collect(), word(document) as u32)
        })
        .collect();
    match records.windows(2).position(|pair| pair[0].0 > pair[1].0) {
        Some(at) => {
            Err(format!("signature {} is lower than the one before it; the file is not sorted", at + 1))
        }
        None => Ok(records),
    }
}

/// Pairs of documents with equal values in one band, each with the one before it in the order of (values, file,
/// document): datatrove's stage 2. `files` holds a band's records of each file.
pub fn duplicate_pairs(files: &[Vec<(Vec<u64>, u32)>]) -> Vec<(Document, Document)> {
    let mut all: Vec<(&[u64], u32, u32)> = Vec::new();
    for (file, records) in files.iter().enumerate() {
        all.extend(records.iter().map(|(values, document)| (values.as_slice(), file as u32, *document)));
    }
    all.sort_unstable();
    all.windows(2)
        .filter(|pair| pair[0].0 == pair[1].0)
        .map(|pair| ((pair[0].1, pair[0].2), (pair[1].1, pair[1].2)))
        .collect()
}

/// The bytes of a `.dups` file.
pub fn pairs_file(pairs: &[(Document, Document)]) -> Vec<u8> {
    pairs.iter().flat_map(|(a, b)| [a.0, a.1, b.0, b.1]).flat_map(u32::to_le_bytes).collect()
}

/// The pairs of a `.dups` file.
///
/// # Errors
/// The length is no multiple of 16.
pub fn read_pairs(bytes: &[u8]) -> Result<Vec<(Document, Document)>, String> {
    let (records, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are no whole number of pairs of 16 bytes", bytes.len()));
    }
    let word = |record: &[u8; 16], at: usize| {
        u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
    };
    Ok(records
        .iter()
        .map(|record| ((word(record, 0), word(record, 4)), (word(record, 8), word(record, 12))))
        .collect())
}

/// For each file the documents to be removed, ascending: all of each connected component but the lowest. Their
/// little-endian bytes are the `.remove` file.
pub fn removals(pairs: &[(Document, Document)]) -> BTreeMap<u32, Vec<u32>> {
    let mut parents: BTreeMap<Document, Document> = BTreeMap::new();
    fn root(parents: &BTreeMap<Document, Document>, mut node: Document) -> Document {
        while let Some(&parent) = parents.get(&node)
            && parent != node
        {
            node = parent;
        }
        node
    }
    for &(a, b) in pairs {
        let (a, b) = (root(&parents, a), root(&parents, b));
        parents.insert(a.max(b), a.min(b));
        parents.entry(a.min(b)).or_insert(a.min(b));
    }
    let mut removed: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (node, parent) in &parents {
        if node != parent {
            removed.entry(node.0).or_default().push(node.1);
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back() {
        let records = vec![(vec![3, 1], 7), (vec![1, 2], 9), (vec![3, 1], 2)];
        for (width, bytes) in [(Width::W64, 20), (Width::W32, 12)] {
            let file = signature_file(width, records.clone());
            assert_eq!(file.len(), 3 * bytes);
            let read = read_signatures(width, 2, &file).unwrap();
            assert_eq!(read, [(vec![1, 2], 9), (vec![3, 1], 2), (vec![3, 1], 7)]);
            assert!(read_signatures(width, 2, &file[1..]).unwrap_err().contains("whole number"));
            let mut swapped = file.clone();
            swapped.rotate_left(bytes);
            assert!(read_signatures(width, 2, &swapped).unwrap_err().contains("not sorted"));
            let pairs = duplicate_pairs(&[read, vec![(vec![1, 2], 4)]]);
            assert_eq!(pairs, [((0, 9), (1, 4)), ((0, 2), (0, 7))]);
            assert_eq!(read_pairs(&pairs_file(&pairs)).unwrap(), pairs);
            assert_eq!(removals(&pairs), BTreeMap::from([(0, vec![7]), (1, vec![4])]));
        }
        assert!(read_pairs(&[0; 15]).is_err());
    }

    #[test]
    fn components_keep_their_lowest() {
        let pairs = [((0, 5), (1, 0)), ((1, 0), (0, 2)), ((2, 2), (2, 1)), ((0, 5), (0, 2))];
        assert_eq!(removals(&pairs), BTreeMap::from([(0, vec![5]), (1, vec![0]), (2, vec![2])]));
    }
}
