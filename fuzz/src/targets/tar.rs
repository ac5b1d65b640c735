//! WebDataset archives and the samples in them.

use bessemer_media::pairs::{Entry, Event, Grouper, TarReader};
use std::path::{Component, Path};

const LIMIT: u64 = 1 << 20;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let mut reader = TarReader::new(data, LIMIT);
    let mut grouper = Grouper::new(LIMIT);
    let mut events = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        if let Entry::File { path: name, bytes } = entry {
            let path = Path::new(&name);
            assert!(path.is_relative() && path.components().all(|part| part != Component::ParentDir));
            assert!(bytes.len() as u64 <= LIMIT);
            events.extend(grouper.push(&name, bytes));
        }
    }
    events.extend(grouper.finish());
    for event in events {
        if let Event::Sample(sample) = event {
            assert!(sample.bytes() <= LIMIT);
        }
    }
}
