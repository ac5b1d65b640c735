//! Shuffle blocks on disk: payloads in one file, an index in memory, read back in the order of partitions.
//!
//! An index entry has 40 bytes, a payload up to a megabyte, so a gigabyte of rows needs an index of some ten kilobytes. The file
//! is removed when the owner is dropped.

use crate::shuffle_block::{self, ShuffleBlock};
use bessemer_dataflow::{Error, Morsel, Result, Scan};
use bessemer_durable::ConfinedDir;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Words of the error of a block that came twice.
pub(crate) const CAME_TWICE: &str = "came twice";

/// Index entry of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct IndexEntry {
    partition: u32,
    from: u64,
    seq: u64,
    offset: u64,
    bytes: u64,
}

/// A file of blocks.
pub(crate) struct BlockFile {
    /// Folder of the file, and its name there.
    folder: ConfinedDir,
    name: String,
    file: BufWriter<File>,
    end: u64,
    index: Vec<IndexEntry>,
}

impl BlockFile {
    /// An empty store, the new file `name` of `folder`.
    pub(crate) fn create(folder: ConfinedDir, name: String) -> Result<BlockFile> {
        let file = folder.create_new(&name).map_err(Error::System)?;
        Ok(BlockFile { folder, name, file: BufWriter::new(file), end: 0, index: Vec::new() })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Adds a block.
    pub(crate) fn put(&mut self, block: ShuffleBlock<'_>) -> Result<()> {
        let ShuffleBlock { partition, from, seq, payload } = block;
        self.file.write_all(payload).map_err(Error::io("write", &self.path()))?;
        let bytes = payload.len() as u64;
        self.index.push(IndexEntry { partition, from, seq, offset: self.end, bytes });
        self.end += bytes;
        Ok(())
    }

    /// Calls `take` with each partition in order and a scan of its rows in order.
    ///
    /// # Errors
    /// Two blocks of the same unit and ordinal: a step's result would be taken twice.
    pub(crate) fn each(mut self, take: &mut dyn FnMut(u32, Box<dyn Scan>) -> Result<()>) -> Result<()> {
        self.file.flush().map_err(Error::io("write", &self.path()))?;
        let mut index = std::mem::take(&mut self.index);
        index.sort_unstable();
        let same =
            |a: &IndexEntry, b: &IndexEntry| (a.partition, a.from, a.seq) == (b.partition, b.from, b.seq);
        if let Some(pair) = index.windows(2).find(|pair| same(&pair[0], &pair[1])) {
            return Err(Error::Plan {
                stage: "cluster".into(),
                problem: format!(
                    "shuffle block {:?} {CAME_TWICE}",
                    (pair[0].partition, pair[0].from, pair[0].seq)
                ),
            });
        }
        for unit in index.chunk_by(|a, b| a.partition == b.partition) {
            let file = self.folder.open_file(&self.name).map_err(Error::System)?;
            let scan = PartitionScan { path: self.path(), file, index: unit.to_vec(), next: 0 };
            take(unit[0].partition, Box::new(scan))?;
        }
        Ok(())
    }
}

impl Drop for BlockFile {
    fn drop(&mut self) {
        // A file that cannot be removed lies below the executor's working folder.
        let _ = self.folder.remove_file(&self.name);
    }
}

struct PartitionScan {
    path: PathBuf,
    file: File,
    index: Vec<IndexEntry>,
    next: usize,
}

impl Scan for PartitionScan {
    fn next(&mut self) -> Result<Option<Morsel>> {
        let Some(entry) = self.index.get(self.next) else { return Ok(None) };
        self.next += 1;
        let mut bytes = vec![0; entry.bytes as usize];
        self.file
            .seek(SeekFrom::Start(entry.offset))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(Error::io("read", &self.path))?;
        Ok(Some(Box::new(move || shuffle_block::decode(&bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
    use std::sync::Arc;

    fn rows(value: u64) -> Vec<u8> {
        let batch =
            RecordBatch::try_from_iter([("value", Arc::new(UInt64Array::from(vec![value])) as ArrayRef)])
                .unwrap();
        let encoded = shuffle_block::encode(0, 0, 0, &batch).unwrap();
        ShuffleBlock::at(&encoded, 0).unwrap().payload.to_vec()
    }

    #[test]
    fn blocks_come_out_in_order_and_twice_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            |name: &str| BlockFile::create(ConfinedDir::open(folder.path()).unwrap(), name.into()).unwrap();
        let mut blocks = open("a");
        for (partition, from, seq) in [(1, 0, 0), (0, 2, 1), (0, 2, 0), (0, 1, 0)] {
            let payload = &rows(u64::from(partition) * 100 + from * 10 + seq);
            blocks.put(ShuffleBlock { partition, from, seq, payload }).unwrap();
        }
        let mut seen = Vec::new();
        blocks
            .each(&mut |partition, mut scan| {
                while let Some(morsel) = scan.next()? {
                    let batch = morsel()?;
                    let values: &UInt64Array = bessemer_dataflow::column("test", &batch, "value")?;
                    seen.push((partition, values.value(0)));
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [(0, 10), (0, 20), (0, 21), (1, 100)]);
        assert!(!folder.path().join("a").exists());

        let mut blocks = open("b");
        let payload = &rows(1);
        let block = ShuffleBlock { partition: 0, from: 0, seq: 0, payload };
        blocks.put(block).unwrap();
        blocks.put(block).unwrap();
        assert!(blocks.each(&mut |_, _| Ok(())).unwrap_err().to_string().contains("came twice"));
    }
}
