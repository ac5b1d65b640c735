//! Files that a run leaves: metrics.jsonl, experts.loads, trace.json, studies.

use bessemer_runlog::coord_check::CoordCheck;
use bessemer_runlog::study::Study;
use bessemer_runlog::{LOADS_FILE, Loads, read, read_trace};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let folder = crate::folder().join("run");
    let _ = std::fs::create_dir_all(&folder);
    for name in ["metrics.jsonl", LOADS_FILE, "trace.json", "study.json", "coord-check.json"] {
        let _ = std::fs::write(folder.join(name), data);
    }
    let _ = read(folder.join("metrics.jsonl"));
    if let Ok(Some(mut loads)) = Loads::open(folder.as_path()) {
        let _ = loads.spans(100);
        let _ = loads.sum([1, u64::MAX]);
    }
    let _ = read_trace(folder.join("trace.json"));
    let _ = Study::read(&folder.join("study.json"));
    let _ = CoordCheck::read(&folder.join("coord-check.json"));
}
