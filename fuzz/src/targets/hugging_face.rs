//! Models of others: config.json, beside an index of tensors and a container that are damaged the same way.

use bessemer_checkpoint::fs::OsFileSystem;
use bessemer_checkpoint::hf::HfImport;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let folder = crate::folder();
    let split = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let (config, rest) = (&data[..split], data.get(split + 1..).unwrap_or_default());
    let _ = std::fs::write(folder.join("config.json"), config);
    let index = folder.join("model.safetensors.index.json");
    if rest.starts_with(b"{") {
        let _ = std::fs::write(&index, rest);
    } else {
        let _ = std::fs::remove_file(&index);
    }
    let _ = std::fs::write(folder.join("model.safetensors"), rest);
    if let Ok(model) = HfImport::open_on(&OsFileSystem, &folder) {
        let _ = model.read_tensor("model.embed_tokens.weight");
    }
}
