//! Checkpoints that are read once for all ranks that need the same.

use crate::place::recipe;
use crate::run::Run;
use bessemer_runlog::Record;
use std::path::Path;

fn warnings(records: &[Record]) -> String {
    let text = |r: &Record| if let Record::Warning(w) = r { Some(w.message.clone()) } else { None };
    records.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

/// A run that is stopped after a step and resumes, with shared reads set to `read`: the bytes of its last checkpoint.
fn stopped(sets: &[&str], ranks: usize, read: &str) -> Vec<u8> {
    let run = Run::new(false);
    let read = format!("save.read={read}");
    let recipe = recipe(&[sets, &[read.as_str()]].concat());
    run.train(&recipe, ranks, Some(2));
    run.train(&recipe, ranks, None);
    run.tensors()
}

#[test]
fn a_run_goes_on_with_the_same_bits_in_every_layout() {
    // Tensors of two windows, which several ranks read.
    let large = &[
        "model.width=512",
        "model.ffn_width=2100",
        "model.layers=1",
        "train.micro_batch=1",
        "train.batch_tokens=64",
    ];
    for (ranks, sets) in [
        (4, &["parallel.data=ddp", "train.micro_batch=2"][..]),
        (4, &["parallel.data=zero1", "optim.optimizer=muon", "train.micro_batch=2"]),
        (4, &["parallel.data=zero3", "train.micro_batch=2"]),
        (4, &["parallel.data=zero3", "parallel.shard=2", "train.micro_batch=2"]),
        (4, &["parallel.tensor=2", "parallel.data=zero2", "train.micro_batch=2"]),
        (4, &["parallel.pipeline=2", "train.micro_batch=2"]),
        (4, large),
    ] {
        assert!(stopped(sets, ranks, "once") == stopped(sets, ranks, "each"), "{sets:?}: other bits");
    }
}

/// A bit of the newest checkpoint that one rank reads is wrong: all ranks resume from the preceding one.
#[test]
fn damage_that_one_rank_finds_is_passed_over_by_all() {
    let sets = ["train.micro_batch=2", "save.read=once"];
    let (whole, run) = (Run::new(false), Run::new(false));
    whole.train(&recipe(&sets), 4, None);
    run.train(&recipe(&sets), 4, Some(10));
    let newest = run.dir.join("checkpoints/step-00000010");
    let file = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path();
    let weights = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    let shard = std::fs::read_dir(&newest).unwrap().map(file).find(weights).unwrap();
    flip_last(&shard);
    let records = run.train(&recipe(&sets), 4, None);
    let text = warnings(&records);
    assert!(text.contains("step-00000010 was skipped"), "{text}");
    assert!(run.tensors() == whole.tensors(), "other bits");
}

fn flip_last(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// A run whose first checkpoint is compressed resumes, as a run that stores plain files, with the bits of one that was never stopped.
#[test]
fn a_compressed_checkpoint_is_gone_on_from() {
    for (ranks, set) in [(1, "parallel.data=ddp"), (2, "parallel.data=zero1")] {
        let sets = |compress| recipe(&["train.micro_batch=2", set, compress]);
        let (whole, run) = (Run::new(false), Run::new(false));
        whole.train(&sets("save.compress=none"), ranks, None);
        run.train(&sets("save.compress=zstd"), ranks, Some(10));
        let files = std::fs::read_dir(run.dir.join("checkpoints/step-00000010")).unwrap();
        let names: Vec<_> = files.map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        assert!(
            names.iter().all(|name| name == "manifest.json" || name.ends_with(".safetensors.zblocks")),
            "{names:?}"
        );
        run.train(&sets("save.compress=none"), ranks, None);
        assert!(run.tensors() == whole.tensors(), "{ranks} ranks: other bits");
    }
}
