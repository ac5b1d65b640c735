//! The file in which offloaded activations wait.

use crate::TrainError;
use bessemer_durable::{AsDir, ConfinedDir, UnnamedFile};
use bessemer_parallel::{SecondMemory, Worker};
use bessemer_units::Bytes;
use std::io;
use std::path::Path;

/// A file as second memory.
#[derive(Debug)]
struct OffloadFile(UnnamedFile);

impl SecondMemory for OffloadFile {
    fn name(&self) -> String {
        format!("the unnamed file in {}", self.0.directory().display())
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }
}

/// Gives a rank that offloads activations a file of its own: in `folder`, the recipe's `train.offload_dir`, or in `directory`, which is
/// made, if that is empty. Nothing happens if the rank offloads nothing.
///
/// # Errors
/// [`TrainError::Offload`], if there is no such folder or too little space on its disk.
pub fn give_second_memory(
    worker: &mut Worker,
    folder: &str,
    directory: impl AsDir,
) -> Result<(), TrainError> {
    let bytes = worker.second_memory_bytes();
    if bytes == 0 {
        return Ok(());
    }
    let directory = match folder.is_empty() {
        true => directory.as_new_dir(),
        false => ConfinedDir::open_named(Path::new(folder)),
    };
    let file = directory.and_then(|directory| directory.reserve_unnamed(bytes));
    let file = file.map_err(|problem| TrainError::Offload { bytes: Bytes(bytes), problem })?;
    Ok(worker.set_second_memory(Box::new(OffloadFile(file)))?)
}
