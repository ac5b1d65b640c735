//! Envelopes on disk until their partition's turn comes: contents in one file, places in memory.
//!
//! An envelope's place is 40 bytes, its contents up to a megabyte, so a gigabyte of rows costs memory of some ten kilobytes. Files
//! live in a folder that vanishes with the owner.

use crate::envelope;
use bessemer_dataflow::{Error, Morsel, Result, Scan};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Where the contents of an envelope stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    partition: u32,
    from: u64,
    seq: u64,
    offset: u64,
    bytes: u64,
}

/// Envelopes that wait.
pub(crate) struct Units {
    folder: PathBuf,
    path: PathBuf,
    file: BufWriter<File>,
    end: u64,
    places: Vec<Place>,
}

impl Units {
    /// An empty store in the new folder `folder`.
    pub(crate) fn create(folder: &Path) -> Result<Units> {
        std::fs::create_dir_all(folder).map_err(Error::io("create folder", folder))?;
        let path = folder.join("envelopes");
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
        Ok(Units {
            folder: folder.to_path_buf(),
            path,
            file: BufWriter::new(file),
            end: 0,
            places: Vec::new(),
        })
    }

    /// Adds the contents of an envelope.
    pub(crate) fn put(&mut self, partition: u32, from: u64, seq: u64, rows: &[u8]) -> Result<()> {
        self.file.write_all(rows).map_err(Error::io("write", &self.path))?;
        let bytes = rows.len() as u64;
        self.places.push(Place { partition, from, seq, offset: self.end, bytes });
        self.end += bytes;
        Ok(())
    }

    /// Gives out partition after partition, each as a scan of its rows in order.
    ///
    /// # Errors
    /// Two envelopes of one place: a step's result would have come twice.
    pub(crate) fn each(mut self, take: &mut dyn FnMut(u32, Box<dyn Scan>) -> Result<()>) -> Result<()> {
        self.file.flush().map_err(Error::io("write", &self.path))?;
        let mut places = std::mem::take(&mut self.places);
        places.sort_unstable();
        let same = |a: &Place, b: &Place| (a.partition, a.from, a.seq) == (b.partition, b.from, b.seq);
        if let Some(pair) = places.windows(2).find(|pair| same(&pair[0], &pair[1])) {
            return Err(Error::Plan {
                stage: "cluster".into(),
                problem: format!("envelope {:?} came twice", (pair[0].partition, pair[0].from, pair[0].seq)),
            });
        }
        for unit in places.chunk_by(|a, b| a.partition == b.partition) {
            let file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
            let scan = UnitScan { path: self.path.clone(), file, places: unit.to_vec(), next: 0 };
            take(unit[0].partition, Box::new(scan))?;
        }
        Ok(())
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        // What cannot be removed lies below the executor's working folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct UnitScan {
    path: PathBuf,
    file: File,
    places: Vec<Place>,
    next: usize,
}

impl Scan for UnitScan {
    fn next(&mut self) -> Result<Option<Morsel>> {
        let Some(place) = self.places.get(self.next) else { return Ok(None) };
        self.next += 1;
        let mut bytes = vec![0; place.bytes as usize];
        self.file
            .seek(SeekFrom::Start(place.offset))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(Error::io("read", &self.path))?;
        Ok(Some(Box::new(move || envelope::open(&bytes))))
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
        let sealed = envelope::seal(0, 0, 0, &batch).unwrap();
        envelope::read(&sealed, 0).unwrap().3.to_vec()
    }

    #[test]
    fn envelopes_come_out_in_order_and_twice_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut units = Units::create(&folder.path().join("a")).unwrap();
        for (partition, from, seq) in [(1, 0, 0), (0, 2, 1), (0, 2, 0), (0, 1, 0)] {
            units.put(partition, from, seq, &rows(u64::from(partition) * 100 + from * 10 + seq)).unwrap();
        }
        let mut seen = Vec::new();
        units
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

        let mut units = Units::create(&folder.path().join("b")).unwrap();
        units.put(0, 0, 0, &rows(1)).unwrap();
        units.put(0, 0, 0, &rows(1)).unwrap();
        assert!(units.each(&mut |_, _| Ok(())).unwrap_err().to_string().contains("came twice"));
    }
}
