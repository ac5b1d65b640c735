//! Checkpoints that every rank writes its slices of: files, and damage that one rank finds.

use crate::place::recipe;
use crate::run::{Run, numbers};
use bessemer_checkpoint::Store;
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use std::fs;

fn saving(sets: &[&str]) -> Recipe {
    let all = [&["train.micro_batch=2", "save.every_steps=5", "save.keep_last=9"], sets].concat();
    recipe(&all)
}

fn resumed(records: &[Record]) -> Option<u64> {
    records.iter().find_map(|r| if let Record::Resume(r) = r { Some(r.step) } else { None })
}

#[test]
fn every_rank_writes_its_part_and_a_damaged_one_costs_no_more_than_its_checkpoint() {
    let recipe = saving(&["parallel.data=zero1"]);
    let (whole, parts) = (Run::new(false), Run::new(false));
    let wanted = whole.train(&recipe, 4, None);
    let mut records = parts.train(&recipe, 4, Some(11));
    let store = Store::open(parts.dir.join("checkpoints"));
    let loaded = store.load(11).unwrap();
    store.check_chain(loaded.manifest()).unwrap();
    let files = &loaded.manifest().files;
    let of_rank = |rank: usize| files.iter().filter(move |f| f.name.starts_with(&format!("rank-{rank:05}-")));
    let bytes: Vec<u64> = (0..4).map(|rank| of_rank(rank).map(|f| f.bytes).sum()).collect();
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    // Headers differ; the values are shared evenly.
    assert!(*least > 0 && most - least < 16_384 + least / 10, "{bytes:?}");
    // A bit in the middle of the file that rank 2 has written, of the newest two checkpoints.
    for step in [10, 11] {
        let name = of_rank(2).next().unwrap().name.clone();
        let path = store.path(step).join(name);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let rest = parts.train(&recipe, 4, None);
    assert_eq!(resumed(&rest), Some(5));
    let warned = rest
        .iter()
        .any(|r| matches!(r, Record::Warning(w) if w.message.contains("step-00000011 was skipped")));
    assert!(warned);
    records.retain(|r| !matches!(r, Record::Step(s) if s.step > 5));
    records.extend(rest);
    assert_eq!(numbers(&records), numbers(&wanted));
    assert!(parts.tensors() == whole.tensors(), "other bits after damage");
    // If all are damaged, no rank starts from the beginning.
    for entry in fs::read_dir(store.dir()).unwrap() {
        let path = entry.unwrap().path().join(&files[0].name);
        if path.exists() {
            fs::write(path, "x").unwrap();
        }
    }
    let results =
        parts.session(&saving(&["parallel.data=zero1", "train.steps=25"]), 4, None, &|_| crate::run::cpu());
    for result in results {
        let e = result.unwrap_err().to_string();
        assert!(e.contains("no usable checkpoint") || e.contains("no checkpoint can be used"), "{e}");
    }
}
