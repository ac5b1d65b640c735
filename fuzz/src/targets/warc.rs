//! WARC and WET files: plain, gzip members, zstd frames; each record as a page.

use bessemer_web::extract::{Main, Plain};
use bessemer_web::page::{PageOptions, page_of_record};
use bessemer_web::warc::{WarcLimits, WarcReader};
use std::io::Cursor;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let limits = WarcLimits { max_block: 1 << 20, bomb_floor: 4 << 20, ..WarcLimits::default() };
    let Ok(mut reader) = WarcReader::new(Cursor::new(data), limits) else { return };
    let mut last = None;
    while let Ok(Some(record)) = reader.next() {
        // Positions rise, so a run that was stopped can go on at one of them.
        assert!(last.is_none_or(|last| last < (record.position.offset, record.position.index)));
        last = Some((record.position.offset, record.position.index));
        assert!(record.block.len() as u64 <= limits.max_block);
        // The options of a build.
        page_of_record(&record, &Main, &PageOptions::with_max_body(3_200_000));
        page_of_record(&record, &Plain, &PageOptions { repair_mojibake: true, ..PageOptions::default() });
    }
}
