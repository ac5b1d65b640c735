//! Files that say what a corpus is: corpus.json, its list of tombstones, the text of a plan for other machines.

use bessemer_corpus::{
    CorpusReader, InspectFilter, RemotePlan, Split, Tombstones, data_card, tombstones_path,
};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let folder = crate::folder().join("corpus");
    let _ = std::fs::create_dir_all(&folder);
    let _ = std::fs::write(folder.join("corpus.json"), data);
    let _ = std::fs::write(tombstones_path(&folder), data);
    let _ = Tombstones::read(&folder);
    if let Ok(reader) = CorpusReader::open(&folder) {
        let _ = reader.verify();
        let _ = reader.documents(Split::Train).count();
        let _ = reader.inspect(InspectFilter::default()).count();
        let _ = data_card(&reader);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = RemotePlan::of(text, &Default::default());
    }
}
