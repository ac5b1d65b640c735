//! Files of batches whose columns are read apart: Arrow's IPC streams.
//!
//! A stream is a schema and then, for each batch, a message that says where each buffer lies, and the buffers. A scan of some columns
//! reads the messages, in order, and the buffers of these columns, on the thread that runs the morsel. Files are written by
//! `arrow_ipc::writer::StreamWriter`, without dictionaries and compression.

use crate::error::{Error, Result};
use crate::source::{Morsel, Scan};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_data::{ArrayData, layout};
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::{FieldNode, Message, root_as_message};
use arrow_schema::{ArrowError, DataType, FieldRef, SchemaRef};
use bessemer_durable::ConfinedDir;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The batches of the files of `folder`, one file after the other: of `columns` those that a file has, in the file's order; all by
/// default. A file is opened when the scan comes to it.
pub fn scan_files(
    folder: &ConfinedDir,
    files: impl IntoIterator<Item = PathBuf, IntoIter: Send + 'static>,
    columns: Option<&[String]>,
) -> Box<dyn Scan> {
    Box::new(FileScan {
        folder: folder.clone(),
        files: files.into_iter(),
        columns: columns.map(<[String]>::to_vec),
        open: None,
    })
}

struct FileScan<I> {
    folder: ConfinedDir,
    files: I,
    columns: Option<Vec<String>>,
    /// The file that is being read, and the place of the next message in it.
    open: Option<(Arc<BatchFile>, u64)>,
}

impl<I: Iterator<Item = PathBuf> + Send> Scan for FileScan<I> {
    fn next(&mut self) -> Result<Option<Morsel>> {
        loop {
            if let Some((file, at)) = &mut self.open {
                match file.message(*at)? {
                    None => self.open = None,
                    Some(header) => {
                        let file = file.clone();
                        *at = header.end;
                        return Ok(Some(Box::new(move || file.batch(&header))));
                    }
                }
            } else {
                let Some(path) = self.files.next() else { return Ok(None) };
                self.open = Some(BatchFile::open(&self.folder, &path, self.columns.as_deref())?);
            }
        }
    }
}

/// A message of a file.
struct Header {
    /// The message, which says where the buffers lie.
    bytes: Vec<u8>,
    /// Place of the first buffer.
    body: u64,
    /// Place of the next message.
    end: u64,
}

impl Header {
    fn message(&self) -> Result<Message<'_>> {
        root_as_message(&self.bytes).map_err(|fault| ipc(fault.to_string()))
    }
}

fn ipc(fault: impl Into<String>) -> Error {
    Error::Arrow(ArrowError::IpcError(fault.into()))
}

/// An open file.
struct BatchFile {
    file: File,
    path: PathBuf,
    schema: SchemaRef,
    /// Indices of the columns that are read.
    wanted: Vec<usize>,
    /// Schema of these columns.
    projected: SchemaRef,
}

impl BatchFile {
    /// A file and the place of the first message behind its schema.
    fn open(folder: &ConfinedDir, below: &Path, columns: Option<&[String]>) -> Result<(Arc<BatchFile>, u64)> {
        let file = folder.open_file(below).map_err(Error::System)?;
        let path = folder.path().join(below);
        let Some(header) = message(&file, &path, 0)? else { return Err(ipc("a file without a schema")) };
        let schema = header.message()?.header_as_schema().map(fb_to_schema);
        let schema = Arc::new(schema.ok_or_else(|| ipc("a file that does not begin with a schema"))?);
        let is_wanted =
            |index: &usize| columns.is_none_or(|columns| columns.contains(schema.field(*index).name()));
        let wanted: Vec<usize> = (0..schema.fields().len()).filter(is_wanted).collect();
        let projected = Arc::new(schema.project(&wanted)?);
        Ok((Arc::new(BatchFile { file, path, schema, wanted, projected }), header.end))
    }

    fn message(&self, at: u64) -> Result<Option<Header>> {
        message(&self.file, &self.path, at)
    }

    /// The batch of a message.
    fn batch(&self, header: &Header) -> Result<RecordBatch> {
        let message = header.message()?;
        let found = message.header_as_record_batch().ok_or_else(|| ipc("a message that is not a batch"))?;
        let mut buffers = Vec::new();
        for buffer in found.buffers().into_iter().flatten() {
            let invalid = |_| ipc("a buffer of negative length");
            let at = u64::try_from(buffer.offset()).map_err(invalid)?;
            buffers.push((header.body + at, usize::try_from(buffer.length()).map_err(invalid)?));
        }
        let nodes = found.nodes().into_iter().flatten().copied();
        let mut rest = Rest { file: self, nodes, buffers: buffers.into_iter() };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.wanted.len());
        for (index, field) in self.schema.fields().iter().enumerate() {
            let array = rest.array(field, self.wanted.contains(&index))?;
            columns.extend(array.map(make_array));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(found.length() as usize));
        Ok(RecordBatch::try_new_with_options(self.projected.clone(), columns, &options)?)
    }

    fn read(&self, at: u64, length: usize) -> Result<Buffer> {
        let mut bytes = MutableBuffer::from_len_zeroed(length);
        self.file.read_exact_at(&mut bytes, at).map_err(Error::io("read", &self.path))?;
        Ok(bytes.into())
    }
}

/// The message at a place; none at the end of the stream.
fn message(file: &File, path: &Path, at: u64) -> Result<Option<Header>> {
    let mut prefix = [0; 8];
    file.read_exact_at(&mut prefix, at).map_err(Error::io("read", path))?;
    let [.., a, b, c, d] = prefix;
    let length = u32::from_le_bytes([a, b, c, d]);
    if length == 0 {
        return Ok(None);
    }
    let mut header = Header { bytes: vec![0; length as usize], body: at + 8 + u64::from(length), end: 0 };
    file.read_exact_at(&mut header.bytes, at + 8).map_err(Error::io("read", path))?;
    let body = u64::try_from(header.message()?.bodyLength()).map_err(|_| ipc("a body of negative length"))?;
    header.end = header.body + body;
    Ok(Some(header))
}

/// Lengths and buffers of the columns that are not read yet.
struct Rest<'a, N> {
    file: &'a BatchFile,
    nodes: N,
    /// Place and length of each buffer.
    buffers: std::vec::IntoIter<(u64, usize)>,
}

impl<N: Iterator<Item = FieldNode>> Rest<'_, N> {
    /// The next column; none where it is passed over.
    fn array(&mut self, field: &FieldRef, wanted: bool) -> Result<Option<ArrayData>> {
        let kind = field.data_type();
        let node = self.nodes.next().ok_or_else(|| ipc("a batch with too few columns"))?;
        let layout = layout(kind);
        let nulls =
            if layout.can_contain_null_mask { self.buffer(wanted && node.null_count() > 0)? } else { None };
        let mut data = ArrayData::builder(kind.clone()).len(node.length() as usize).null_bit_buffer(nulls);
        for _ in layout.buffers {
            if let Some(buffer) = self.buffer(wanted)? {
                data = data.add_buffer(buffer);
            }
        }
        let children = match kind {
            DataType::List(field) | DataType::Map(field, _) | DataType::FixedSizeList(field, _) => {
                std::slice::from_ref(field)
            }
            DataType::Struct(fields) => &**fields,
            _ => &[],
        };
        for child in children {
            if let Some(child) = self.array(child, wanted)? {
                data = data.add_child_data(child);
            }
        }
        if wanted { Ok(Some(data.build()?)) } else { Ok(None) }
    }

    fn buffer(&mut self, wanted: bool) -> Result<Option<Buffer>> {
        let (at, length) = self.buffers.next().ok_or_else(|| ipc("a batch with too few buffers"))?;
        if wanted { self.file.read(at, length).map(Some) } else { Ok(None) }
    }
}
