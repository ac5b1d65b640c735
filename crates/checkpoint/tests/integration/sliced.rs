//! A tensor cut over several files, as several writers leave it: what later resharding reads.

use bessemer_checkpoint::{HostTensors, Loaded, MANIFEST_NAME, Manifest, SaveRequest, Store};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::fs;
use std::path::Path;

const GLOBAL: [usize; 2] = [6, 10];

fn value(row: usize, column: usize) -> f32 {
    (row * GLOBAL[1] + column) as f32
}

/// Saves one box of the tensor alone, and gives its checkpoint.
fn save_box(dir: &Path, start: [usize; 2], shape: [usize; 2]) -> Loaded {
    let values =
        (0..shape[0] * shape[1]).map(|i| value(start[0] + i / shape[1], start[1] + i % shape[1])).collect();
    let part = HostTensor { name: "w".into(), shape: shape.to_vec(), dtype: DType::Bf16, values };
    let store = Store::open(dir);
    store
        .save(SaveRequest {
            step: 1,
            tokens: 0,
            state: serde_json::json!({}),
            recipe: String::new(),
            tokenizer: None,
            tensors: &mut HostTensors::new(&[part]),
            max_file_bytes: 1 << 20,
            progress: &mut |_, _| {},
        })
        .unwrap();
    store.load(1).unwrap()
}

/// Joins the boxes into one checkpoint directory with one manifest.
fn join(dir: &Path, boxes: &[([usize; 2], [usize; 2])]) -> Manifest {
    let whole = dir.join("step-00000001");
    fs::create_dir_all(&whole).unwrap();
    let mut joined: Option<Manifest> = None;
    for (i, (start, shape)) in boxes.iter().enumerate() {
        let part = save_box(&dir.join(format!("part{i}")), *start, *shape);
        let mut file = part.manifest().files[0].clone();
        let from = part.path().join(&file.name);
        file.name = format!("rank-{i}.safetensors");
        fs::copy(from, whole.join(&file.name)).unwrap();
        let mut slice = part.manifest().tensors[0].slices[0].clone();
        (slice.file, slice.start) = (i, start.to_vec());
        match &mut joined {
            None => {
                let mut m = part.into_manifest();
                m.files = vec![file];
                m.tensors[0].shape = GLOBAL.to_vec();
                m.tensors[0].slices = vec![slice];
                joined = Some(m);
            }
            Some(m) => {
                m.files.push(file);
                m.tensors[0].slices.push(slice);
            }
        }
    }
    joined.unwrap()
}

#[test]
fn boxes_in_several_files_are_read_as_one_tensor() {
    let cuts: [&[([usize; 2], [usize; 2])]; 4] = [
        &[([0, 0], [6, 10])],
        &[([0, 0], [2, 10]), ([2, 0], [4, 10])],
        &[([0, 0], [6, 3]), ([0, 3], [6, 7])],
        &[([3, 4], [3, 6]), ([0, 0], [3, 4]), ([3, 0], [3, 4]), ([0, 4], [3, 6])],
    ];
    let want: Vec<f32> = (0..60).map(|i| i as f32).collect();
    for boxes in cuts {
        let tmp = tempfile::tempdir().unwrap();
        let manifest = join(tmp.path(), boxes);
        fs::write(tmp.path().join("step-00000001").join(MANIFEST_NAME), manifest.to_bytes().unwrap())
            .unwrap();
        let loaded = Store::open(tmp.path()).latest_valid().unwrap().unwrap().loaded;
        assert_eq!(loaded.read_tensor("w").unwrap().values, want, "{boxes:?}");
    }
}

#[test]
fn boxes_that_leave_a_gap_are_refused_before_anything_is_written() {
    let tmp = tempfile::tempdir().unwrap();
    let manifest = join(tmp.path(), &[([0, 0], [2, 10]), ([3, 0], [3, 10])]);
    let e = manifest.to_bytes().unwrap_err();
    assert!(e.contains("cover 100 of 120 bytes"), "{e}");
}
