//! safetensors files and manifests of checkpoints.

use bessemer_checkpoint::Manifest;
use bessemer_checkpoint::format::SafetensorsFile;
use bessemer_checkpoint::fs::ReadFile;
use std::io;
use std::path::Path;

struct Bytes(Vec<u8>);

impl ReadFile for Bytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|&end| end <= self.0.len() as u64);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(&self.0[offset as usize..end as usize]);
        Ok(())
    }
}

/// The bytes as the body of a manifest, without what stands behind its last key, with the checksum that belongs to them.
fn sealed(body: &[u8]) -> Vec<u8> {
    let digits = blake3::hash(body).to_hex();
    [body, b",\n  \"checksum\": \"blake3:", digits.as_bytes(), b"\"\n}\n"].concat()
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let path = Path::new("fuzz");
    let _ = Manifest::parse(data, path);
    // The checksum at the end stops nearly every mutation: with the right one the slices behind it are reached.
    let _ = Manifest::parse(&sealed(data), path);
    if let Ok(file) = SafetensorsFile::from_file(Box::new(Bytes(data.to_vec())), path) {
        for entry in &file.header().entries {
            let _ = file.read_f32(entry, 0, &mut [0.0; 8]);
        }
    }
}
