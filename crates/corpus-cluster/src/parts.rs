//! Parts: the units in which a source is read, and the files that hold their rows between jobs.
//!
//! `rows-G/part-P.arrow` holds the rows of part P after G side joins, `side-G/part-P.arrow` the rows of the G-th side plan for
//! them, both as Arrow IPC files in a folder that every executor sees. A file becomes visible whole: it is written under another
//! name, synced and renamed. A task that runs twice (its executor died, or seemed dead) writes the same bytes to the same path.
//! The marker `part-P.json` beside it is written after it and holds its summary.

use crate::node::foreign;
use arrow_array::{RecordBatch, UInt32Array, UInt64Array};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::FileWriter;
use bessemer_dataflow::{Error, Morsel, Result, Scan, column, morsel};
use bessemer_durable::ConfinedDir;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Identity of a row: (file, row).
pub(crate) type RowId = (u32, u64);

/// Summary of a finished part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartSummary {
    /// Ordinal of the part.
    pub(crate) part: usize,
    /// Rows in it.
    pub(crate) rows: u64,
    /// First and last row, where there is one.
    pub(crate) range: Option<(RowId, RowId)>,
}

/// Identity of row `row` of `batch`.
pub(crate) fn id_of(batch: &RecordBatch, row: usize) -> Result<RowId> {
    let file: &UInt32Array = column("parts", batch, "file")?;
    let id: &UInt64Array = column("parts", batch, "row")?;
    Ok((file.value(row), id.value(row)))
}

/// Opens the folder of the parts of a plan; makes it if it is missing. The folder itself must be no symbolic link.
pub(crate) fn open_folder(folder: &Path) -> Result<ConfinedDir> {
    let above = ConfinedDir::create_named(bessemer_durable::parent(folder)).map_err(Error::System)?;
    above.create_dir(folder.file_name().unwrap_or_default()).map_err(Error::System)
}

/// Names of a part's files.
#[derive(Debug, Clone)]
pub(crate) struct PartPath {
    /// Folder of the parts of a plan.
    folder: ConfinedDir,
    /// Name of the folder of this kind of rows in it.
    rows: String,
    part: usize,
}

impl PartPath {
    pub(crate) fn rows(folder: &ConfinedDir, generation: usize, part: usize) -> PartPath {
        PartPath { folder: folder.clone(), rows: format!("rows-{generation}"), part }
    }

    pub(crate) fn side_rows(folder: &ConfinedDir, generation: usize, part: usize) -> PartPath {
        PartPath { folder: folder.clone(), rows: format!("side-{generation}"), part }
    }

    fn data(&self) -> String {
        format!("part-{:06}.arrow", self.part)
    }

    fn marker(&self) -> String {
        format!("part-{:06}.json", self.part)
    }

    fn below(&self, name: &str) -> PathBuf {
        Path::new(&self.rows).join(name)
    }

    /// Returns the summary of a finished part; none where it is not finished.
    pub(crate) fn finished(&self) -> Result<Option<PartSummary>> {
        match self.folder.read_to_string(self.below(&self.marker())) {
            Ok(text) => {
                serde_json::from_str(&text).map(Some).map_err(|cause| foreign("read a part's marker", &cause))
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(Error::System(cause)),
        }
    }

    /// Returns a writer of the part's file. Nothing is visible until [`PartWriter::finish`].
    pub(crate) fn writer(&self) -> Result<PartWriter> {
        let folder = self.folder.create_dir(&self.rows).map_err(Error::System)?;
        // Two executors may write the same part at once, with the same bytes. Each has a file of its own until the rename; process
        // numbers would not do, because containers on different machines have the same.
        let own = RandomState::new().build_hasher().finish();
        let name = format!("part-{:06}.{own:016x}.partial", self.part);
        Ok(PartWriter {
            target: self.clone(),
            folder,
            name,
            writer: None,
            summary: PartSummary { part: self.part, rows: 0, range: None },
        })
    }

    /// Returns a reader of a finished part, which yields no batch for a part without rows. `project`: the wanted columns, as far as rows
    /// have them; all if empty.
    pub(crate) fn read(&self, project: &[String]) -> Result<PartReader> {
        let open = || self.folder.open_file(self.below(&self.data()));
        let file = match open() {
            Ok(file) => file,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return Ok(PartReader { reader: None });
            }
            Err(cause) => return Err(Error::System(cause)),
        };
        let mut reader = FileReader::try_new(BufReader::new(file), None)?;
        if !project.is_empty() {
            let schema = reader.schema();
            let indices = project.iter().filter_map(|name| schema.index_of(name).ok()).collect();
            let file = open().map_err(Error::System)?;
            reader = FileReader::try_new(BufReader::new(file), Some(indices))?;
        }
        Ok(PartReader { reader: Some(reader) })
    }
}

/// Writes a part.
pub(crate) struct PartWriter {
    target: PartPath,
    folder: ConfinedDir,
    /// Name of the file until the part is whole.
    name: String,
    writer: Option<FileWriter<BufWriter<File>>>,
    summary: PartSummary,
}

impl PartWriter {
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let file = self.folder.create_new(&self.name).map_err(Error::System)?;
                self.writer.insert(FileWriter::try_new(BufWriter::new(file), &batch.schema())?)
            }
        };
        writer.write(batch)?;
        let (first, last) = (id_of(batch, 0)?, id_of(batch, batch.num_rows() - 1)?);
        self.summary.rows += batch.num_rows() as u64;
        self.summary.range = Some((self.summary.range.map_or(first, |range| range.0), last));
        Ok(())
    }

    /// Makes the part visible and returns its summary.
    pub(crate) fn finish(mut self) -> Result<PartSummary> {
        if let Some(mut writer) = self.writer.take() {
            writer.finish()?;
            let buffered = writer.into_inner()?;
            let path = self.folder.path().join(&self.name);
            let file =
                buffered.into_inner().map_err(|error| Error::io("write", &path)(error.into_error()))?;
            file.sync_all().map_err(Error::io("sync", &path))?;
            self.folder.rename(&self.name, self.target.data()).map_err(Error::System)?;
            self.folder.sync().map_err(Error::System)?;
        }
        let marker = Path::new(&self.name).with_extension("marker");
        let text =
            serde_json::to_string(&self.summary).map_err(|cause| foreign("write a part's marker", &cause))?;
        self.folder
            .create_replacing(&marker)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| self.folder.rename(&marker, self.target.marker()))
            .map_err(Error::System)?;
        Ok(self.summary.clone())
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        // Only an unfinished part has a file under this name; it may never have been created.
        let _ = self.folder.remove_file(&self.name);
    }
}

/// Reads a part.
pub(crate) struct PartReader {
    reader: Option<FileReader<BufReader<File>>>,
}

impl PartReader {
    pub(crate) fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        match &mut self.reader {
            Some(reader) => Ok(reader.next().transpose()?),
            None => Ok(None),
        }
    }
}

impl Scan for PartReader {
    fn next(&mut self) -> Result<Option<Morsel>> {
        Ok(self.next_batch()?.map(morsel))
    }
}

/// Ranges of rows of all parts, which assign a row to its part.
#[derive(Debug, Clone, Default)]
pub(crate) struct PartRanges {
    /// (first row, last row, part), in order.
    ranges: Vec<(RowId, RowId, usize)>,
}

impl PartRanges {
    pub(crate) fn of(summaries: &[PartSummary]) -> Result<PartRanges> {
        let mut ranges: Vec<(RowId, RowId, usize)> =
            summaries.iter().filter_map(|s| s.range.map(|(first, last)| (first, last, s.part))).collect();
        ranges.sort_unstable();
        match ranges.windows(2).find(|pair| pair[0].1 >= pair[1].0 || pair[0].2 >= pair[1].2) {
            Some(pair) => Err(Error::Plan {
                stage: "parts".into(),
                problem: format!(
                    "parts {} and {} overlap or are out of order: {pair:?}",
                    pair[0].2, pair[1].2
                ),
            }),
            None => Ok(PartRanges { ranges }),
        }
    }

    pub(crate) fn part_of(&self, id: RowId) -> Result<usize> {
        let after = self.ranges.partition_point(|range| range.0 <= id);
        match after.checked_sub(1).and_then(|index| self.ranges.get(index)) {
            Some(range) if id <= range.1 => Ok(range.2),
            _ => Err(Error::Plan {
                stage: "parts".into(),
                problem: format!("a side plan refers to row {id:?}, which no part holds"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::ArrayRef;
    use std::sync::Arc;

    fn rows(file: u32, ids: &[u64]) -> RecordBatch {
        RecordBatch::try_from_iter([
            ("file", Arc::new(UInt32Array::from(vec![file; ids.len()])) as ArrayRef),
            ("row", Arc::new(UInt64Array::from(ids.to_vec())) as ArrayRef),
            ("extra", Arc::new(UInt64Array::from(ids.to_vec())) as ArrayRef),
        ])
        .unwrap()
    }

    #[test]
    fn a_part_is_visible_only_when_whole_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let place = PartPath::rows(&open_folder(folder.path()).unwrap(), 0, 4);
        {
            let mut writer = place.writer().unwrap();
            writer.write(&rows(1, &[5, 6])).unwrap();
        }
        assert_eq!(place.finished().unwrap(), None);
        assert_eq!(std::fs::read_dir(folder.path().join("rows-0")).unwrap().count(), 0);
        let mut writer = place.writer().unwrap();
        writer.write(&rows(1, &[5, 6])).unwrap();
        writer.write(&rows(2, &[0])).unwrap();
        let summary = writer.finish().unwrap();
        assert_eq!(summary, PartSummary { part: 4, rows: 3, range: Some(((1, 5), (2, 0))) });
        assert_eq!(place.finished().unwrap(), Some(summary));
        let mut reader = place.read(&["row".into(), "file".into(), "absent".into()]).unwrap();
        assert_eq!(reader.next_batch().unwrap().unwrap().num_columns(), 2);
        assert_eq!(reader.next_batch().unwrap().unwrap().num_rows(), 1);
        assert!(reader.next_batch().unwrap().is_none());
    }

    #[test]
    fn rows_find_their_part_and_strangers_are_refused() {
        let part = |part, range| PartSummary { part, rows: 1, range };
        let ranges = PartRanges::of(&[
            part(2, Some(((0, 9), (3, 4)))),
            part(0, Some(((0, 0), (0, 7)))),
            part(1, None),
        ])
        .unwrap();
        assert_eq!(ranges.part_of((0, 7)).unwrap(), 0);
        assert_eq!(ranges.part_of((2, 100)).unwrap(), 2);
        assert!(ranges.part_of((0, 8)).is_err());
        assert!(ranges.part_of((3, 5)).is_err());
        assert!(PartRanges::of(&[part(0, Some(((0, 0), (0, 5)))), part(1, Some(((0, 5), (0, 6))))]).is_err());
    }
}
