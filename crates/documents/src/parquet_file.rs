//! Parquet files from outside, checked before the Parquet library reads them.
//!
//! The library trusts two numbers that a file states: how many elements a list of its Thrift structures has (lists of booleans take
//! no bytes there, so 119 bytes can state 2^31 of them), and how large a page is when unpacked. [`CheckedParquet`] walks over
//! the footer, and over each page's header when it is read, and refuses a file that states too much.
//!
//! This is the lowest crate that reads Parquet from outside; sources of a corpus and `corpus explain` use it too.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use serde_json::{Map, Value as Json};
use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest page when unpacked, in bytes. It bounds one value too: the library holds whole pages.
pub const MAX_PAGE_BYTES: u64 = 256 << 20;
/// Largest header of a page: it may hold the least and the greatest value.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Elements of lists in a page's header. The format has none there; other writers may add some.
const MAX_HEADER_ELEMENTS: u64 = 1 << 16;
/// Structures inside each other; the library stops at 64.
const MAX_DEPTH: u32 = 64;
/// Bytes at the end of a file: length of the footer, and the magic number.
const TAIL: u64 = 8;

/// Most bytes of the pages that are unpacked for one batch, and of its values: each row may repeat a value of a dictionary.
const MAX_BATCH_BYTES: u64 = if cfg!(test) { 4 << 20 } else { 1 << 30 };
/// Most values of the pages that are read for one batch: a list may have many in one row.
const MAX_BATCH_VALUES: u64 = if cfg!(test) { 1 << 17 } else { 1 << 26 };
/// Rows that any file may have, and rows for each byte of a larger one.
const MAX_ROWS: (u64, u64) = (1 << 20, 64);

/// Counts of what is unpacked for the current batch.
#[derive(Debug)]
struct Unpacked {
    bytes: AtomicU64,
    values: AtomicU64,
    /// Largest dictionary that is read.
    dictionary: AtomicU64,
}

impl Unpacked {
    fn new() -> Unpacked {
        let dictionary = AtomicU64::new(MAX_PAGE_BYTES);
        Unpacked { bytes: AtomicU64::new(0), values: AtomicU64::new(0), dictionary }
    }

    fn begin_batch(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.values.store(0, Ordering::Relaxed);
    }

    fn add(&self, page: Page) -> io::Result<()> {
        let Page { kind, bytes, values } = page;
        if bytes > MAX_PAGE_BYTES {
            return Err(refused(format!("a page has {bytes} bytes, at most {MAX_PAGE_BYTES} are read")));
        }
        let dictionary = self.dictionary.load(Ordering::Relaxed);
        if kind == DICTIONARY_PAGE && bytes > dictionary {
            return Err(refused(format!(
                "a dictionary has {bytes} bytes, at most {dictionary} are read here"
            )));
        }
        let batch = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if batch > MAX_BATCH_BYTES {
            return Err(refused(format!(
                "a batch of rows unpacks to {batch} bytes, at most {MAX_BATCH_BYTES} are read"
            )));
        }
        let values = self.values.fetch_add(values, Ordering::Relaxed).saturating_add(values);
        if values > MAX_BATCH_VALUES {
            return Err(refused(format!(
                "a batch of rows has {values} values, at most {MAX_BATCH_VALUES} are read"
            )));
        }
        Ok(())
    }
}

/// A Parquet file whose footer and page headers are checked before the Parquet library reads them.
struct CheckedParquet<R> {
    inner: R,
    unpacked: Arc<Unpacked>,
}

/// Batches of a Parquet file from outside. A file that takes few bytes and would fill the memory is refused.
pub struct CheckedBatches {
    reader: ParquetRecordBatchReader,
    unpacked: Arc<Unpacked>,
}

impl CheckedBatches {
    /// Opens `file`. `choose` returns the columns that are read and the rows of a batch; batches are smaller where a
    /// dictionary has large values.
    ///
    /// # Errors
    /// It is no Parquet file; its footer states too much, or more rows than a file of this length can have; those of `choose`.
    pub fn open<R: ChunkReader + 'static, E: From<ParquetError>>(
        file: R,
        choose: impl FnOnce(&ArrowReaderMetadata) -> std::result::Result<(ProjectionMask, usize), E>,
    ) -> std::result::Result<CheckedBatches, E> {
        let file = CheckedParquet::new(file)?;
        let metadata = load_metadata(&file)?;
        let groups = metadata.metadata().row_groups();
        let rows: u64 =
            groups.iter().map(|group| group.num_rows().max(0) as u64).fold(0, u64::saturating_add);
        let most = MAX_ROWS.0.max(file.len().saturating_mul(MAX_ROWS.1));
        if rows > most {
            let problem = refused(format!("{rows} rows in {} bytes, at most {most} are read", file.len()));
            return Err(wrong("footer", &problem).into());
        }
        let (mask, mut rows) = choose(&metadata)?;
        let mut largest = 0;
        for group in groups {
            for (_, chunk) in group.columns().iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf))
            {
                // Without an offset of its own a dictionary stands before the data.
                let start = chunk.dictionary_page_offset().filter(|start| *start > 0);
                if let Ok(start) = u64::try_from(start.unwrap_or(chunk.data_page_offset())) {
                    largest = largest.max(file.dictionary_bytes(start)?);
                }
            }
        }
        rows = rows.min((MAX_BATCH_BYTES / largest.max(1)) as usize).max(1);
        file.unpacked.dictionary.store(MAX_BATCH_BYTES / rows as u64, Ordering::Relaxed);
        let unpacked = file.unpacked.clone();
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
        let reader = builder.with_projection(mask).with_batch_size(rows).build()?;
        Ok(CheckedBatches { reader, unpacked })
    }
}

impl Iterator for CheckedBatches {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.unpacked.begin_batch();
        self.reader.next()
    }
}

impl<R: ChunkReader> CheckedParquet<R> {
    /// Checks the footer of a file.
    ///
    /// # Errors
    /// The footer states more elements than it has bytes, nests too deep or is cut off; or the system's error.
    fn new(inner: R) -> Result<CheckedParquet<R>> {
        let length = inner.len();
        if let Some(tail) = length.checked_sub(TAIL) {
            let bytes = inner.get_bytes(tail, TAIL as usize)?;
            let size = u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            // Other files are refused by the library.
            if let (b"PAR1", Some(start)) = (&bytes[4..], tail.checked_sub(size)) {
                let footer = inner.get_bytes(start, size as usize)?;
                let mut walk = Walk { input: &footer[..], elements_left: size, page: Page::default() };
                walk.structure(MAX_DEPTH, Level::Inner).map_err(|problem| wrong("footer", &problem))?;
            }
        }
        Ok(CheckedParquet { inner, unpacked: Arc::new(Unpacked::new()) })
    }

    /// Bytes of the dictionary page that begins at `start`; 0 for another kind of page, and where none can be read.
    fn dictionary_bytes(&self, start: u64) -> Result<u64> {
        if start >= self.inner.len() {
            return Ok(0);
        }
        let input = self.inner.get_read(start)?.take(MAX_HEADER_BYTES);
        let mut walk = Walk { input, elements_left: MAX_HEADER_ELEMENTS, page: Page::default() };
        // The library reads it again, and reports what is wrong with it.
        let walked = walk.structure(MAX_DEPTH, Level::Page);
        Ok(if walked.is_ok() && walk.page.kind == DICTIONARY_PAGE { walk.page.bytes } else { 0 })
    }
}

/// Number of a page's kind in its header.
const DICTIONARY_PAGE: i64 = 2;

/// Facts of a page's header.
#[derive(Debug, Default, Clone, Copy)]
struct Page {
    kind: i64,
    /// Bytes when unpacked.
    bytes: u64,
    values: u64,
}

/// Reads the footer, with the file's own types and without dictionaries that are not there.
fn load_metadata<R: ChunkReader>(file: &CheckedParquet<R>) -> Result<ArrowReaderMetadata> {
    // The file's own types, not those that the writer noted: they are few.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(file, options.clone())?;
    if !columns(metadata.metadata()).any(has_false_dictionary) {
        return Ok(metadata);
    }
    let own = without_false_dictionaries(metadata.metadata().as_ref().clone())?;
    ArrowReaderMetadata::try_new(own.into(), options)
}

fn columns(metadata: &ParquetMetaData) -> impl Iterator<Item = &ColumnChunkMetaData> {
    metadata.row_groups().iter().flat_map(|group| group.columns())
}

/// Whether the dictionary page of a column lies where none can be. Some writers state offset 0 where there is none; the reader of
/// Arrow C++ too takes an offset only where it is above 0 and before the first data page.
fn has_false_dictionary(column: &ColumnChunkMetaData) -> bool {
    column.dictionary_page_offset().is_some_and(|offset| offset <= 0 || offset >= column.data_page_offset())
}

fn without_false_dictionaries(metadata: ParquetMetaData) -> Result<ParquetMetaData> {
    let mut builder = metadata.into_builder();
    let groups = builder.take_row_groups().into_iter().map(|group| {
        let columns = group.columns().iter().cloned().map(|column| match has_false_dictionary(&column) {
            true => column.into_builder().set_dictionary_page_offset(None).build(),
            false => Ok(column),
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        group.into_builder().set_column_metadata(columns).build()
    });
    let groups = groups.collect::<Result<Vec<_>>>()?;
    Ok(builder.set_row_groups(groups).build())
}

fn wrong(what: &str, problem: &io::Error) -> ParquetError {
    let hint = "write the file again with smaller pages, or leave it out";
    ParquetError::General(format!("the {what} of the Parquet file is refused: {problem}; {hint}"))
}

impl<R: ChunkReader> Length for CheckedParquet<R> {
    fn len(&self) -> u64 {
        self.inner.len()
    }
}

impl<R: ChunkReader> ChunkReader for CheckedParquet<R> {
    type T = PageHeader<R::T>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        // The library reads headers of pages this way, and the end of the file.
        let checked = start.saturating_add(TAIL) >= self.inner.len();
        let unpacked = self.unpacked.clone();
        Ok(PageHeader { inner: self.inner.get_read(start)?, head: Vec::new(), at: 0, checked, unpacked })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.inner.get_bytes(start, length)
    }
}

/// Reader that begins with the header of a page, which it checks at the first read.
struct PageHeader<T> {
    inner: T,
    /// Bytes of the header, read already.
    head: Vec<u8>,
    /// Bytes of the header that were handed on.
    at: usize,
    checked: bool,
    unpacked: Arc<Unpacked>,
}

impl<T: Read> Read for PageHeader<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !self.checked {
            self.checked = true;
            let input = Kept { inner: (&mut self.inner).take(MAX_HEADER_BYTES), kept: &mut self.head };
            let mut walk = Walk { input, elements_left: MAX_HEADER_ELEMENTS, page: Page::default() };
            walk.structure(MAX_DEPTH, Level::Page)
                .and_then(|()| self.unpacked.add(walk.page))
                .map_err(|problem| io::Error::other(wrong("page header", &problem)))?;
        }
        if self.at < self.head.len() {
            let read = (&self.head[self.at..]).read(out)?;
            self.at += read;
            return Ok(read);
        }
        self.inner.read(out)
    }
}

/// Reader that keeps what passes it.
struct Kept<'a, R> {
    inner: R,
    kept: &'a mut Vec<u8>,
}

impl<R: Read> Read for Kept<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        self.kept.extend_from_slice(&out[..read]);
        Ok(read)
    }
}

fn refused(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// A walk over structures in Thrift's compact protocol, reading them as the Parquet library does.
struct Walk<R> {
    input: R,
    /// Elements of lists and maps that may still come.
    elements_left: u64,
    page: Page,
}

/// Structure that is walked over.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    /// Header of a page: kind and unpacked bytes are its fields 1 and 2.
    Page,
    /// The part of it for a kind of pages: field 1 is the number of values.
    Kind,
    Inner,
}

impl<R: Read> Walk<R> {
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.input.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(refused("a number has more than 64 bits".into()))
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.input).take(bytes), &mut io::sink())?;
        if skipped == bytes {
            Ok(())
        } else {
            Err(refused(format!("{bytes} bytes are stated, {skipped} are there")))
        }
    }

    fn elements(&mut self, count: u64) -> io::Result<()> {
        let left = self.elements_left;
        let after = left.checked_sub(count);
        self.elements_left = after
            .ok_or_else(|| refused(format!("a list states {count} elements, at most {left} can be there")))?;
        Ok(())
    }

    fn structure(&mut self, depth: u32, level: Level) -> io::Result<()> {
        let mut id = 0_i64;
        loop {
            let header = self.byte()?;
            let kind = header & 15;
            if kind == 0 {
                return Ok(());
            }
            id = match header >> 4 {
                0 => zigzag(self.number()?),
                step => id.saturating_add(i64::from(step)),
            };
            match (level, id, kind) {
                (Level::Page, 1, 5) => self.page.kind = zigzag(self.number()?),
                // The library refuses what is below 0.
                (Level::Page, 2, 5) => self.page.bytes = zigzag(self.number()?).max(0) as u64,
                (Level::Kind, 1, 5) => self.page.values = zigzag(self.number()?).max(0) as u64,
                // Data pages of both versions and dictionaries.
                (Level::Page, 5 | 7 | 8, 12) => self.structure(depth.saturating_sub(1), Level::Kind)?,
                _ => self.value(kind, depth)?,
            }
        }
    }

    fn value(&mut self, kind: u8, depth: u32) -> io::Result<()> {
        let depth =
            depth.checked_sub(1).ok_or_else(|| refused(format!("more than {MAX_DEPTH} levels deep")))?;
        match kind {
            // A boolean is its type.
            1 | 2 => Ok(()),
            3 => self.skip(1),
            4..=6 => self.number().map(drop),
            7 => self.skip(8),
            8 => {
                let bytes = self.number()?;
                self.skip(bytes)
            }
            9 | 10 => {
                let header = self.byte()?;
                let count = if header >> 4 == 15 { self.number()? } else { u64::from(header >> 4) };
                self.elements(count)?;
                (0..count).try_for_each(|_| self.value(header & 15, depth))
            }
            11 => {
                let count = self.number()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                self.elements(count.saturating_mul(2))?;
                (0..count).try_for_each(|_| {
                    self.value(kinds >> 4, depth)?;
                    self.value(kinds & 15, depth)
                })
            }
            12 => self.structure(depth, Level::Inner),
            13 => self.skip(16),
            kind => Err(refused(format!("unknown Thrift type {kind}"))),
        }
    }
}

fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Rows that are read at once: memory is that of their texts.
const BATCH_ROWS: usize = 64;

/// The rows of a Parquet file from outside as JSON objects. Nothing follows an error.
pub struct JsonRows {
    reader: Option<CheckedBatches>,
    batch: Option<RecordBatch>,
    /// Rows of `batch` that were given out.
    taken: usize,
}

impl JsonRows {
    /// Opens the file.
    ///
    /// # Errors
    /// It is no Parquet file, or its footer states too much.
    pub fn open(file: File) -> Result<JsonRows> {
        let reader =
            CheckedBatches::open(file, |_| Ok::<_, ParquetError>((ProjectionMask::all(), BATCH_ROWS)))?;
        Ok(JsonRows { reader: Some(reader), batch: None, taken: 0 })
    }
}

impl Iterator for JsonRows {
    type Item = std::result::Result<Map<String, Json>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.as_ref().is_none_or(|batch| self.taken == batch.num_rows()) {
            let reader = self.reader.as_mut()?;
            // The library panics at some damaged files.
            let next = catch_unwind(AssertUnwindSafe(|| reader.next())).unwrap_or_else(|_| {
                let problem = "the file is damaged: the Parquet reader failed on it";
                Some(Err(ArrowError::ParquetError(problem.into())))
            });
            match next? {
                Ok(batch) => (self.batch, self.taken) = (Some(batch), 0),
                Err(error) => {
                    self.reader = None;
                    return Some(Err(error.to_string()));
                }
            }
        }
        let batch = self.batch.as_ref()?;
        let schema = batch.schema_ref();
        let columns = schema.fields().iter().zip(batch.columns());
        let row = columns.map(|(field, column)| (field.name().clone(), json_value(column, self.taken)));
        let row = row.collect();
        self.taken += 1;
        Some(Ok(row))
    }
}

/// A value of a column as JSON: texts, numbers, truth values, and lists and structures of them; null for other kinds.
pub fn json_value(column: &ArrayRef, index: usize) -> Json {
    if column.is_null(index) {
        return Json::Null;
    }
    macro_rules! number {
        ($kind:ty) => {
            Json::from(column.as_primitive::<$kind>().value(index))
        };
    }
    match column.data_type() {
        DataType::Utf8 => Json::from(column.as_string::<i32>().value(index)),
        DataType::LargeUtf8 => Json::from(column.as_string::<i64>().value(index)),
        DataType::Boolean => Json::from(column.as_boolean().value(index)),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float32 => number!(Float32Type),
        DataType::Float64 => number!(Float64Type),
        DataType::Struct(fields) => {
            let parts = fields.iter().zip(column.as_struct().columns());
            Json::Object(parts.map(|(field, part)| (field.name().clone(), json_value(part, index))).collect())
        }
        // Strings of writers that do not say that they are.
        DataType::Binary => {
            std::str::from_utf8(column.as_binary::<i32>().value(index)).map_or(Json::Null, Json::from)
        }
        DataType::List(_) => list(&column.as_list::<i32>().value(index)),
        DataType::LargeList(_) => list(&column.as_list::<i64>().value(index)),
        DataType::FixedSizeList(..) => list(&column.as_fixed_size_list().value(index)),
        _ => Json::Null,
    }
}

fn list(values: &ArrayRef) -> Json {
    (0..values.len()).map(|index| json_value(values, index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{StringArray, new_null_array};
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::ParquetMetaDataWriter;
    use parquet::file::properties::WriterProperties;
    use parquet::file::reader::SerializedFileReader;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A file of a footer alone.
    fn with_footer(footer: &[u8]) -> Bytes {
        [b"PAR1", footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat().into()
    }

    /// 2^31 - 1 booleans in a list that no field of the format has.
    const GIANT_LIST: [u8; 8] = [0xf9, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07, 0];

    #[test]
    fn a_footer_that_states_more_than_it_has_is_refused_at_once() {
        let lists = GIANT_LIST[..7].repeat(14);
        for footer in [&GIANT_LIST[..], &[&lists[..], &[0]].concat()] {
            let file = with_footer(footer);
            let begun = Instant::now();
            let error = CheckedParquet::new(file).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("2147483647 elements") && error.contains("footer"), "{error}");
            assert!(begun.elapsed() < Duration::from_millis(200));
        }
        let deep = [0x1c].repeat(1000);
        assert!(
            CheckedParquet::new(with_footer(&deep)).is_err_and(|e| e.to_string().contains("levels deep"))
        );
        // Lists of lists that state as many as there are bytes, each.
        let square = [&[0xf9_u8, 0xf9, 0x80, 0x08][..], &[0xf1, 0x80, 0x08].repeat(1024), &[0]].concat();
        assert!(CheckedParquet::new(with_footer(&square)).is_err());
        for cut in [&b""[..], b"PAR1", b"no Parquet at all", &with_footer(&[8])[4..]] {
            let file = Bytes::copy_from_slice(cut);
            assert!(CheckedParquet::new(file).and_then(SerializedFileReader::new).is_err());
        }
    }

    /// A file with one column, packed.
    fn packed(column: ArrayRef, with_dictionary: bool) -> Bytes {
        let batch = RecordBatch::try_from_iter_with_nullable([("text", column, true)]).unwrap();
        let properties = parquet::file::properties::WriterProperties::builder()
            .set_compression(parquet::basic::Compression::ZSTD(Default::default()))
            .set_dictionary_enabled(with_dictionary)
            .set_data_page_size_limit(1 << 20)
            .set_write_batch_size(if with_dictionary { 1024 } else { 1 });
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build()))
                .unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap().into()
    }

    fn batches(file: Bytes, rows: usize) -> std::result::Result<Vec<usize>, String> {
        let choose = |_: &ArrowReaderMetadata| Ok::<_, ParquetError>((ProjectionMask::all(), rows));
        let batches = CheckedBatches::open(file, choose).map_err(|e| e.to_string())?;
        batches.map(|batch| batch.map(|batch| batch.num_rows()).map_err(|e| e.to_string())).collect()
    }

    #[test]
    fn a_small_file_of_many_bytes_or_rows_is_read_in_small_batches_or_refused() {
        // Each row repeats the one value of a dictionary.
        let repeated = StringArray::from(vec!["x".repeat(256 << 10); 64]);
        let file = packed(Arc::new(repeated), true);
        assert!(file.len() < 10_000, "{}", file.len());
        assert!(batches(file, 1024).unwrap().iter().all(|&rows| rows <= 16));
        // Rows that differ, all of them long.
        let different =
            StringArray::from_iter_values((0..16).map(|row| format!("{row}{}", "x".repeat(1 << 20))));
        let file = packed(Arc::new(different), false);
        assert!(file.len() < 100_000, "{}", file.len());
        let error = batches(file.clone(), 64).unwrap_err();
        assert!(error.contains("a batch of rows unpacks to") && error.contains("at most 4194304"), "{error}");
        assert_eq!(batches(file, 1).unwrap(), [1; 16]);
        // Rows without a value.
        let error = batches(packed(new_null_array(&DataType::Utf8, 2 << 20), true), 64).unwrap_err();
        assert!(error.contains("2097152 rows in") && error.contains("at most 1048576"), "{error}");
        // One row of many values.
        let mut list = arrow_array::builder::ListBuilder::new(arrow_array::builder::UInt8Builder::new());
        (0..1 << 18).for_each(|_| list.values().append_value(7));
        list.append(true);
        let error = batches(packed(Arc::new(list.finish()), true), 64).unwrap_err();
        assert!(error.contains("values, at most 131072"), "{error}");
    }

    #[test]
    fn the_header_of_a_page_is_checked_before_it_is_handed_on() {
        let page = |bytes: u64| {
            // type 0, unpacked bytes, packed bytes; a structure of its own; the end.
            let mut header = vec![0x15, 0, 0x15];
            let mut number = bytes << 1;
            while number >= 0x80 {
                header.push(number as u8 | 0x80);
                number >>= 7;
            }
            header.extend([number as u8, 0x15, 8, 0x2c, 0x15, 2, 0, 0]);
            header
        };
        let read = |header: &[u8]| {
            let file = Bytes::from([header, &[7; 40]].concat());
            let file = CheckedParquet { inner: file, unpacked: Arc::new(Unpacked::new()) };
            let mut out = Vec::new();
            file.get_read(0).and_then(|mut input| Ok(input.read_to_end(&mut out)?)).map(|_| out)
        };
        let good = page(1000);
        assert_eq!(read(&good).ok(), Some([&good[..], &[7; 40]].concat()));
        let large = read(&page(MAX_PAGE_BYTES + 1)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(large.contains("268435457 bytes, at most 268435456"), "{large}");
        assert!(read(&GIANT_LIST).is_err_and(|error| error.to_string().contains("2147483647 elements")));
    }

    #[test]
    fn a_dictionary_at_offset_zero_is_none() {
        let texts: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..1000).map(|n| format!("text {}", n % 3))));
        let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
        for dictionary in [true, false] {
            let properties = WriterProperties::builder().set_dictionary_enabled(dictionary).build();
            let mut written = Vec::new();
            let mut writer = ArrowWriter::try_new(&mut written, batch.schema(), Some(properties)).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            // The same file with a footer that states offset 0.
            let file = Bytes::from(written.clone());
            let metadata = load_metadata(&CheckedParquet::new(file).unwrap()).unwrap();
            let mut builder = metadata.metadata().as_ref().clone().into_builder();
            let groups = builder.take_row_groups().into_iter().map(|group| {
                let column = group.column(0).clone();
                // As writers do that count the dictionary's page among the data.
                let first = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
                let column =
                    column.into_builder().set_dictionary_page_offset(Some(0)).set_data_page_offset(first);
                group.into_builder().set_column_metadata(vec![column.build().unwrap()]).build().unwrap()
            });
            let groups = groups.collect();
            let metadata =
                builder.set_row_groups(groups).set_column_index(None).set_offset_index(None).build();
            let footer = u32::from_le_bytes(written[written.len() - 8..][..4].try_into().unwrap()) as usize;
            written.truncate(written.len() - 8 - footer);
            let mut changed = Vec::new();
            ParquetMetaDataWriter::new(&mut changed, &metadata).finish().unwrap();
            // The writer gives the footer, its length and the mark.
            written.extend(changed);
            let all = |_: &ArrowReaderMetadata| Ok::<_, ParquetError>((ProjectionMask::all(), BATCH_ROWS));
            let reader = CheckedBatches::open(Bytes::from(written), all).unwrap();
            let mut rows = 0;
            for batch in reader {
                for text in batch.unwrap().column(0).as_string::<i32>() {
                    assert_eq!(text, Some(format!("text {}", rows % 3).as_str()));
                    rows += 1;
                }
            }
            assert_eq!(rows, 1000, "dictionary {dictionary}");
        }
    }
}
