//! Damage on a real file system: whatever happens to a file of a checkpoint, it is refused by name and the checkpoint
//! before it is used.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap in a test's own plumbing is a failed test"
)]

use bessemer_checkpoint::{
    CheckpointError, HostTensors, Loaded, MANIFEST_NAME, Manifest, Retention, SaveRequest, Store, TensorSpec,
    TensorsFrom,
};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::fs;
use std::path::Path;

pub(crate) fn tensors(scale: usize, seed: u64) -> Vec<HostTensor> {
    let make = |name: &str, shape: Vec<usize>, dtype| {
        let n: usize = shape.iter().product();
        // Values that bf16 and f16 hold exactly.
        let values = (0..n).map(|i| ((i as u64 * 7 + seed) % 255) as f32 / 8.0 - 10.0).collect();
        HostTensor { name: name.into(), shape, dtype, values }
    };
    vec![
        make("a.weight", vec![3, scale], DType::F32),
        make("a.bias", vec![3], DType::Bf16),
        make("b.weight", vec![5, 2, scale], DType::F16),
        make("empty", vec![0, 4], DType::F32),
        make("scalar", vec![], DType::F32),
    ]
}

pub(crate) fn save(store: &Store, step: u64, scale: usize) -> Vec<HostTensor> {
    let list = tensors(scale, step);
    let report = store
        .save(SaveRequest {
            step,
            tokens: step * 1024,
            state: serde_json::json!({"loader": {"sample": step}, "rng": [1, 2, 3]}),
            recipe: "[train]\nlr = 3e-4\n".into(),
            tokenizer: Some("blake3:00ff".into()),
            tensors: &mut HostTensors::new(&list),
            max_file_bytes: 24 * scale as u64,
            progress: &mut |done, total| assert!(done <= total),
        })
        .unwrap();
    let on_disk: u64 =
        fs::read_dir(&report.path).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    let compressed = files_of(&report.path).iter().any(|name| name.ends_with(".zblocks"));
    assert!(compressed || report.bytes == on_disk);
    list
}

pub(crate) fn files_of(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The damaged file that an error names, if the error is about damage.
fn blamed(e: &CheckpointError) -> String {
    let file = match e {
        CheckpointError::Checksum { file, expected, found } => {
            assert_ne!(expected, found);
            assert_eq!(found.len(), 64);
            assert!(e.to_string().contains(expected.as_str()) && e.to_string().contains(found.as_str()));
            file
        }
        CheckpointError::Size { file, expected, found } => {
            assert_ne!(expected, found);
            file
        }
        CheckpointError::MissingFile { file } => file,
        // What the blocks of a compressed file say.
        CheckpointError::Io { path, .. } if e.to_string().contains("compressed file: ") => path,
        other => panic!("{other}"),
    };
    assert!(e.to_string().contains(&file.display().to_string()));
    file.file_name().unwrap().to_str().unwrap().to_string()
}

#[test]
fn what_is_saved_is_loaded_bit_for_bit_and_any_tool_can_read_the_files() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path().join("deep/er/checkpoints"));
    assert!(store.latest_valid().unwrap().is_none());
    let list = save(&store, 7, 11);
    let loaded = store.load(7).unwrap();
    for t in &list {
        assert_eq!(loaded.read_tensor(&t.name).unwrap(), *t);
    }
    let m = loaded.manifest();
    assert_eq!((m.step, m.tokens, m.recipe.as_str()), (7, 7 * 1024, "[train]\nlr = 3e-4\n"));
    assert_eq!(m.state["loader"]["sample"], 7);
    assert_eq!(m.tokenizer.as_deref(), Some("blake3:00ff"));
    assert!(m.files.len() > 1, "several files");
    let mut seen = 0;
    for f in &m.files {
        let bytes = fs::read(loaded.path().join(&f.name)).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in theirs.tensors() {
            let ours = loaded.tensor(&name).unwrap();
            assert_eq!(view.shape(), ours.shape);
            let s = &ours.slices[0];
            assert_eq!(view.data(), &bytes[s.offset as usize..(s.offset + s.bytes) as usize]);
            assert!(s.offset.is_multiple_of(ours.dtype.size() as u64), "aligned");
            seen += 1;
        }
    }
    assert_eq!(seen, list.len());
}

#[test]
fn the_same_content_gives_the_same_bytes() {
    let tmp = tempfile::tempdir().unwrap();
    let (a, b) = (Store::open(tmp.path().join("a")), Store::open(tmp.path().join("b")));
    save(&a, 3, 5);
    save(&b, 3, 5);
    for name in files_of(&a.path(3)) {
        assert_eq!(fs::read(a.path(3).join(&name)).unwrap(), fs::read(b.path(3).join(&name)).unwrap());
    }
}

#[test]
fn a_flipped_bit_in_any_byte_of_any_file_is_refused_by_name_and_the_checkpoint_before_is_used() {
    for compressed in [false, true] {
        each_flipped_bit_is_found(compressed);
    }
}

fn each_flipped_bit_is_found(compressed: bool) {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path()).compressing(compressed);
    save(&store, 1, 3);
    save(&store, 2, 3);
    let mut flips = 0;
    for name in files_of(&store.path(2)) {
        let path = store.path(2).join(&name);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, &bad).unwrap();
            assert_eq!(blamed(&store.load(2).unwrap_err()), name, "byte {at} of {name}");
            flips += 1;
            // Once per file: falling back, with the reason.
            if at == good.len() / 2 {
                let latest = store.latest_valid().unwrap().unwrap();
                assert_eq!(latest.loaded.manifest().step, 1);
                assert_eq!(blamed(&latest.skipped[0].why), name);
                assert!(store.load(2).is_err());
            }
        }
        fs::write(&path, &good).unwrap();
    }
    assert!(flips > 1500, "{flips}");
    store.load(2).unwrap();
}

#[test]
fn random_flips_in_a_larger_checkpoint_are_found() {
    for compressed in [false, true] {
        random_flips_are_found(compressed);
    }
}

fn random_flips_are_found(compressed: bool) {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path()).compressing(compressed);
    save(&store, 2, 20_000);
    let mut x = 88172645463325252u64;
    for name in files_of(&store.path(2)) {
        let path = store.path(2).join(&name);
        let good = fs::read(&path).unwrap();
        for _ in 0..100 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let mut bad = good.clone();
            let at = (x % good.len() as u64) as usize;
            bad[at] ^= 1 << (x >> 60 & 7);
            fs::write(&path, &bad).unwrap();
            assert_eq!(blamed(&store.load(2).unwrap_err()), name);
        }
        fs::write(&path, &good).unwrap();
    }
}

/// Each bit of the manifest, and each sampled bit of the files, as a rank finds it that reads only what it needs.
#[test]
fn every_bit_of_a_manifest_and_bits_of_files_read_in_part_are_found() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path()).compressing(true);
    save(&store, 3, 3);
    let store = store.compressing(false);
    let list = save(&store, 2, 3);
    let path = store.path(2).join(MANIFEST_NAME);
    let good = fs::read(&path).unwrap();
    let manifest = Manifest::parse(&good, &path).unwrap();
    let mut bad = good.clone();
    for bit in 0..8 * good.len() {
        bad[bit / 8] ^= 1 << (bit % 8);
        let found = Manifest::parse(&bad, &path);
        assert!(matches!(&found, Err(CheckpointError::Checksum { .. })), "bit {bit}: {found:?}");
        bad[bit / 8] ^= 1 << (bit % 8);
    }
    // Cut off anywhere, also in blocks of a disk.
    for length in (0..good.len()).rev() {
        assert!(Manifest::parse(&good[..length], &path).is_err(), "{length}");
    }
    // Both forms in one store.
    assert!(files_of(&store.path(3)).iter().all(|name| name == MANIFEST_NAME || name.ends_with(".zblocks")));
    let compressed = store.load_lazily(3).unwrap().manifest().clone();
    let files = |step: u64, manifest: &Manifest| {
        manifest.files.iter().map(move |f| (step, f.clone())).collect::<Vec<_>>()
    };
    for (step, record) in [files(2, &manifest), files(3, &compressed)].concat() {
        let path = store.path(step).join(&record.name);
        let good = fs::read(&path).unwrap();
        for bit in (0..8 * good.len()).step_by(37) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            let loaded = store.load_lazily(step).unwrap();
            let found = list.iter().find_map(|t| loaded.read_tensor(&t.name).err());
            assert_eq!(blamed(&found.unwrap()), record.name, "bit {bit}");
        }
        fs::write(&path, &good).unwrap();
    }
}

#[test]
fn truncated_extended_missing_and_swapped_files_are_refused_by_name() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    save(&store, 1, 3);
    save(&store, 2, 3);
    for name in files_of(&store.path(2)) {
        let path = store.path(2).join(&name);
        let good = fs::read(&path).unwrap();
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert_eq!(blamed(&store.load(2).unwrap_err()), name);
            // A listing does not read the tensors, yet never shows a cut file.
            if length % 97 == 0 {
                assert_eq!(store.list().unwrap().len(), 1);
            }
        }
        fs::write(&path, [&good[..], b"\n"].concat()).unwrap();
        assert_eq!(blamed(&store.load(2).unwrap_err()), name);
        fs::remove_file(&path).unwrap();
        assert_eq!(blamed(&store.load(2).unwrap_err()), name);
        assert_eq!(store.list().unwrap().len(), 1);
        // The file of another checkpoint, intact and of the same size.
        let other = fs::read(store.path(1).join(&name)).unwrap();
        fs::write(&path, &other).unwrap();
        let e = store.load(2).unwrap_err();
        if name == MANIFEST_NAME {
            assert!(e.to_string().contains("step 1") || matches!(e, CheckpointError::Checksum { .. }), "{e}");
        } else {
            assert_eq!(blamed(&e), name);
        }
        fs::write(&path, &good).unwrap();
    }
    store.load(2).unwrap();
}

#[test]
fn a_copy_under_another_step_and_links_and_fifos_are_not_taken() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    save(&store, 1, 3);
    fs::rename(store.path(1), store.path(9)).unwrap();
    let e = store.latest_valid().unwrap_err().to_string();
    assert!(e.contains("holds step 1, but its directory is named step-00000009"), "{e}");
    fs::rename(store.path(9), store.path(1)).unwrap();

    std::os::unix::fs::symlink(store.path(1), store.path(3)).unwrap();
    assert_eq!(
        store.latest_valid().unwrap().unwrap().loaded.manifest().step,
        1,
        "a link is read like a directory, and this one holds another step than its name states"
    );
    fs::remove_file(store.path(3)).unwrap();

    save(&store, 5, 3);
    let shard = store.path(5).join(&store.load(5).unwrap().manifest().files[0].name);
    let elsewhere = tmp.path().join("elsewhere");
    fs::rename(&shard, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &shard).unwrap();
    assert!(store.load(5).is_err(), "a file must not be a link");
    fs::remove_file(&shard).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&shard).status().unwrap();
    assert!(made.success());
    // Opening a FIFO to read waits for a writer, unless one takes care.
    let e = store.load(5).unwrap_err().to_string();
    assert!(e.contains("wanted a regular file, found a FIFO"), "{e}");
}

#[test]
fn removing_keeps_the_newest_the_milestones_the_pinned_and_what_is_damaged() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    for step in [10, 20, 30, 40, 50, 60] {
        save(&store.clone().compressing(step % 20 == 10), step, 3);
    }
    fs::write(store.path(20).join("keep"), "").unwrap();
    fs::remove_file(store.path(40).join(MANIFEST_NAME)).unwrap();
    fs::create_dir(tmp.path().join("notes")).unwrap();
    let report = store.gc(&Retention { keep_last: 2, keep_every: Some(30), ..Retention::default() }).unwrap();
    assert_eq!(report.removed, [10]);
    assert_eq!(report.kept, [20, 30, 50, 60]);
    assert!(report.freed > 0);
    for step in [20, 30, 40, 50, 60] {
        assert!(store.path(step).exists(), "{step}");
    }
    assert!(tmp.path().join("notes").exists());
}

#[test]
fn leftovers_of_dead_processes_are_swept_at_the_next_save_and_other_names_are_not() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    let stale = [".step-00000005.partial-1", ".step-00000006.removing-4194303"];
    let foreign = [".step-5.partial-1", ".git", ".step-00000005.notes-7"];
    for name in stale.iter().chain(&foreign) {
        fs::create_dir_all(tmp.path().join(name)).unwrap();
        fs::write(tmp.path().join(name).join("shard-00001-of-00002.safetensors"), "x").unwrap();
    }
    // A leftover's name with somebody's file in it.
    let theirs = tmp.path().join(".step-00000007.partial-1");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("notes.txt"), "x").unwrap();
    let list = tensors(3, 1);
    let report = store
        .save(SaveRequest {
            step: 1,
            tokens: 0,
            state: serde_json::json!({}),
            recipe: String::new(),
            tokenizer: None,
            tensors: &mut HostTensors::new(&list),
            max_file_bytes: 1 << 20,
            progress: &mut |_, _| {},
        })
        .unwrap();
    assert_eq!(report.cleaned.len(), 2, "{:?}", report.cleaned);
    assert!(stale.iter().all(|n| !tmp.path().join(n).exists()));
    assert!(foreign.iter().all(|n| tmp.path().join(n).exists()));
    assert!(theirs.join("notes.txt").exists());
}

#[test]
fn impossible_requests_are_refused_before_anything_is_written() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("c");
    let store = Store::open(&dir);
    let spec = |name: &str, shape: &[usize]| TensorSpec {
        name: name.into(),
        shape: shape.into(),
        dtype: DType::F32,
    };
    let deep = (0..200).fold(serde_json::json!({}), |v, _| serde_json::json!({"a": v}));
    let cases = [
        (vec![spec("a", &[1]), spec("a", &[2])], serde_json::json!({}), "twice"),
        (vec![spec("a", &[usize::MAX, 2])], serde_json::json!({}), "overflows"),
        (vec![spec("a", &[1; 9])], serde_json::json!({}), "9 dims"),
        (vec![spec(&"n".repeat(1025), &[1])], serde_json::json!({}), "1024 bytes"),
        (vec![spec("", &[1])], serde_json::json!({}), "1 to"),
        (vec![spec("__metadata__", &[1])], serde_json::json!({}), "__metadata__"),
        (vec![spec("a", &[1])], serde_json::json!([1]), "JSON object"),
        (vec![spec("a", &[1 << 50])], serde_json::json!({}), "bytes are free"),
        (vec![spec("a", &[1])], deep, "recursion limit"),
    ];
    for (specs, state, word) in cases {
        let e = store
            .save(SaveRequest {
                step: 1,
                tokens: 0,
                state,
                recipe: String::new(),
                tokenizer: None,
                tensors: &mut TensorsFrom::new(specs, |_, _| Ok(())),
                max_file_bytes: u64::MAX,
                progress: &mut |_, _| {},
            })
            .unwrap_err();
        let text = e.to_string().replace(" are free", " bytes are free");
        assert!(text.contains(word), "{word}: {e}");
        assert!(store.list().unwrap().is_empty());
        if dir.exists() {
            assert!(files_of(&dir).iter().all(|n| n == ".lock"), "{word}");
        }
    }
    // A source that fails half-way is named, and leaves nothing.
    let e = store
        .save(SaveRequest {
            step: 1,
            tokens: 0,
            state: serde_json::json!({}),
            recipe: String::new(),
            tokenizer: None,
            tensors: &mut TensorsFrom::new(vec![spec("x", &[4]), spec("y", &[4])], |i, _| {
                if i == 1 { Err("device lost".into()) } else { Ok(()) }
            }),
            max_file_bytes: 1 << 20,
            progress: &mut |_, _| {},
        })
        .unwrap_err();
    assert!(e.to_string().contains("\"y\"") && e.to_string().contains("device lost"), "{e}");
    assert_eq!(files_of(&dir), [".lock"]);
}

#[test]
fn differences_from_a_model_are_listed_by_kind() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    save(&store, 1, 3);
    let loaded = Loaded::open(&store.path(1)).unwrap();
    let wanted: [(&str, &[usize]); 3] = [("a.weight", &[3, 3]), ("a.bias", &[4]), ("c", &[1])];
    let report = loaded.compare(wanted, |name| name != "scalar");
    assert_eq!(report.matched, ["a.weight"]);
    assert_eq!(report.missing, ["c"]);
    assert_eq!(report.unexpected, ["b.weight", "empty"]);
    assert_eq!(report.shape_mismatch[0].name, "a.bias");
    let e = loaded.require_match(wanted, |_| true).unwrap_err().to_string();
    assert!(e.contains("missing: \"c\"") && e.contains("wanted [4], found [3]"), "{e}");
    let e = loaded.read_tensor("nope").unwrap_err().to_string();
    assert!(e.contains("nope") && e.contains("5 tensors"), "{e}");
    assert!(loaded.read_into("a.bias", &mut [0.0; 2]).is_err());
}

/// A disk that is really full: a small tmpfs, filled by the source of the tensors while the save is in progress.
#[test]
fn a_disk_that_fills_up_during_a_save_costs_only_that_save() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("small");
    fs::create_dir(&dir).unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
        .arg(&dir)
        .output();
    if !mount.as_ref().is_ok_and(|o| o.status.success()) {
        println!("skipped: mounting a tmpfs needs root");
        return;
    }
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0).status();
        }
    }
    let _unmount = Unmount(&dir);
    let store = Store::open(dir.join("c"));
    let list = save(&store, 1, 3);
    let ballast = dir.join("ballast");
    let spec = |name: &str, n| TensorSpec { name: name.into(), shape: vec![n], dtype: DType::F32 };
    let request = |fill: &mut dyn FnMut(usize), n: usize| {
        store.save(SaveRequest {
            step: 2,
            tokens: 0,
            state: serde_json::json!({}),
            recipe: String::new(),
            tokenizer: None,
            tensors: &mut TensorsFrom::new(vec![spec("x", n), spec("y", n)], |i, _| {
                fill(i);
                Ok(())
            }),
            max_file_bytes: 1 << 30,
            progress: &mut |_, _| {},
        })
    };
    // Too large for what is free: known beforehand.
    let e = request(&mut |_| {}, 1 << 20).unwrap_err();
    assert!(matches!(e, CheckpointError::NoSpace { needed, free, .. } if needed > free), "{e}");
    // Room at the start, none half-way.
    let mut fill = |i: usize| {
        if i == 1 {
            let mut size = 4 << 20;
            while size >= 4096 {
                use std::io::Write;
                let mut f = fs::OpenOptions::new().append(true).create(true).open(&ballast).unwrap();
                if f.write_all(&vec![1; size]).is_err() {
                    size /= 2;
                }
            }
        }
    };
    let e = request(&mut fill, 200_000).unwrap_err();
    assert!(
        matches!(&e, CheckpointError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull),
        "{e}"
    );
    assert!(e.to_string().contains("earlier ones are untouched"), "{e}");
    assert_eq!(files_of(&dir.join("c")), [".lock", "step-00000001"]);
    let loaded = store.latest_valid().unwrap().unwrap().loaded;
    for t in &list {
        assert_eq!(loaded.read_tensor(&t.name).unwrap(), *t);
    }
    // And once there is room again, it goes on.
    fs::remove_file(&ballast).unwrap();
    request(&mut |_| {}, 200_000).unwrap();
    assert_eq!(store.list().unwrap().len(), 2);
}
