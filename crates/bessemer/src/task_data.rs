//! Documents of tasks and tables, Parquet among their formats.

use bessemer_documents::JsonRows;
use bessemer_tasks::{Document, TaskError};
use std::fs::File;
use std::path::Path;

/// Rows of a Parquet file, as [`bessemer_tasks::Catalog`] reads them.
pub(crate) fn parquet_rows(file: File) -> Result<Vec<Document>, String> {
    JsonRows::open(file).map_err(|error| error.to_string())?.collect()
}

/// The documents of a file, by its ending.
pub(crate) fn read_documents(path: &Path) -> Result<Vec<Document>, TaskError> {
    bessemer_tasks::read_documents(path, Some(parquet_rows))
}
