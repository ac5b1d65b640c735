//! Symbolic links in a store: read through, never written or removed through; and files of others, never removed.

use bessemer_checkpoint::hf::{EXPORT_MANIFEST, HfExport, export_hf};
use bessemer_checkpoint::{CheckpointError, HostTensors, Retention, SaveReport, SaveRequest, Store};
use bessemer_durable::{ConfinedDir, FileLock};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn save(store: &Store, step: u64) -> Result<SaveReport, CheckpointError> {
    let values = vec![step as f32; 64];
    let w = HostTensor { name: "w".into(), shape: vec![64], dtype: DType::F32, values };
    store.save(SaveRequest {
        step,
        tokens: step,
        state: serde_json::json!({}),
        recipe: String::new(),
        tokenizer: None,
        tensors: &mut HostTensors::new(std::slice::from_ref(&w)),
        max_file_bytes: 1 << 20,
        progress: &mut |_, _| {},
    })
}

/// Every file below a directory with its bytes, links by their target.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_symlink() {
            found.insert(path.clone(), fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
        } else if kind.is_dir() {
            found.extend(snapshot(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// A store with steps 10 and 20, the second one moved to `elsewhere/` and linked.
fn linked_step() -> (tempfile::TempDir, Store, PathBuf) {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path().join("run/checkpoints"));
    fs::create_dir_all(tmp.path().join("elsewhere")).unwrap();
    for step in [10, 20] {
        save(&store, step).unwrap();
    }
    let elsewhere = tmp.path().join("elsewhere/step-00000020");
    fs::rename(store.path(20), &elsewhere).unwrap();
    symlink(&elsewhere, store.path(20)).unwrap();
    (tmp, store, elsewhere)
}

#[test]
fn a_linked_checkpoint_is_read_and_what_it_leads_to_outlives_rotation_and_replacement() {
    let (tmp, store, elsewhere) = linked_step();
    let before = snapshot(&tmp.path().join("elsewhere"));
    let steps: Vec<_> = store.list().unwrap().iter().map(|c| (c.step, c.linked)).collect();
    assert_eq!(steps, [(10, false), (20, true)]);
    assert_eq!(store.latest_valid().unwrap().unwrap().loaded.manifest().step, 20);
    assert_eq!(store.named_steps().unwrap(), [10, 20]);

    save(&store, 30).unwrap();
    let report = store.gc(&Retention { keep_last: 1, ..Retention::default() }).unwrap();
    assert_eq!((report.removed, report.kept), (vec![10], vec![20, 30]));
    assert_eq!(snapshot(&tmp.path().join("elsewhere")), before);

    // A save of the same step takes the name, and the link stands beside it.
    let aside = save(&store, 20).unwrap().set_aside.unwrap();
    assert_eq!(fs::read_link(&aside).unwrap(), elsewhere);
    assert!(fs::symlink_metadata(store.path(20)).unwrap().is_dir());
    store.load(20).unwrap();
    assert_eq!(snapshot(&tmp.path().join("elsewhere")), before);
    // The same without atomic exchange, and with a second link: names are not taken twice.
    fs::rename(store.path(20), tmp.path().join("elsewhere/new")).unwrap();
    symlink(tmp.path().join("elsewhere/new"), store.path(20)).unwrap();
    assert_ne!(save(&store, 20).unwrap().set_aside.unwrap(), aside);
    assert!(tmp.path().join("elsewhere/new/manifest.json").exists());
}

#[test]
fn a_link_that_leads_nowhere_is_damage_and_not_a_new_beginning() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path().join("checkpoints"));
    fs::create_dir(store.dir()).unwrap();
    symlink(tmp.path().join("gone"), store.path(7)).unwrap();
    assert_eq!(store.scan().unwrap().damaged.len(), 1);
    assert!(store.latest_valid().unwrap_err().to_string().contains("step-00000007"));
    // A file in the place of a directory is no less.
    fs::remove_file(store.path(7)).unwrap();
    fs::write(store.path(7), "x").unwrap();
    assert!(store.latest_valid().unwrap_err().to_string().contains("step-00000007"));
    // Nor is a store that is itself a link to nothing.
    let broken = Store::open(tmp.path().join("broken"));
    symlink(tmp.path().join("gone"), broken.dir()).unwrap();
    assert!(broken.latest_valid().unwrap_err().to_string().contains("broken"));
}

#[test]
fn a_store_behind_a_link_is_read_and_nothing_is_written_or_removed_there() {
    let tmp = tempfile::tempdir().unwrap();
    let real = Store::open(tmp.path().join("real"));
    for step in [1, 2, 3] {
        save(&real, step).unwrap();
    }
    // What a crash left there is not ours to sweep either.
    fs::create_dir(tmp.path().join("real/.step-00000009.partial-1")).unwrap();
    let before = snapshot(real.dir());
    let store = Store::open(tmp.path().join("linked"));
    symlink(real.dir(), store.dir()).unwrap();
    assert_eq!(store.latest_valid().unwrap().unwrap().loaded.manifest().step, 3);
    for e in [save(&store, 4).unwrap_err(), store.gc(&Retention::default()).unwrap_err()] {
        assert!(matches!(e, CheckpointError::NotOwn { .. }), "{e}");
        assert!(e.to_string().contains("linked") && e.to_string().contains("symbolic link"), "{e}");
    }
    assert_eq!(snapshot(real.dir()), before);
    assert!(tmp.path().join("real/.step-00000009.partial-1").exists());

    // A link above the store is the user's own choice of place.
    symlink(tmp.path(), tmp.path().join("above")).unwrap();
    let above = Store::open(tmp.path().join("above/real"));
    save(&above, 4).unwrap();
    let report = above.gc(&Retention { keep_last: 1, ..Retention::default() }).unwrap();
    assert_eq!(report.removed, [1, 2, 3]);
}

#[test]
fn a_checkpoint_with_a_file_of_somebody_else_is_not_removed_and_the_file_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    for step in [1, 2, 3] {
        save(&store, step).unwrap();
    }
    fs::write(store.path(1).join("notes.txt"), "why this one was good").unwrap();
    let report = store.gc(&Retention { keep_last: 1, ..Retention::default() }).unwrap();
    assert_eq!((report.removed, report.kept), (vec![2], vec![1, 3]));
    assert_eq!(report.spared, [(1, store.path(1).join("notes.txt"))]);
    store.load(1).unwrap();
    // Replacing it keeps the file as well.
    let aside = save(&store, 1).unwrap().set_aside.unwrap();
    assert_eq!(fs::read(aside.join("notes.txt")).unwrap(), b"why this one was good");
    assert!(aside.join("manifest.json").exists());
}

#[test]
fn an_export_replaces_only_files_that_an_export_wrote_and_nobody_changed() {
    let tmp = tempfile::tempdir().unwrap();
    let mut model = bessemer_arch::named("llama").unwrap();
    (model.vocab_size, model.layers, model.width, model.ffn_width) = (11, 1, 8, 12);
    (model.heads, model.kv_heads, model.head_dim, model.context) = (2, 1, 4, 16);
    let weights: Vec<HostTensor> = model
        .params()
        .into_iter()
        .map(|p| HostTensor { values: vec![0.5; p.len()], name: p.name, shape: p.shape, dtype: DType::F32 })
        .collect();
    let export = |dir: &Path| {
        let request = HfExport {
            model: &model,
            model_type: None,
            balance: None,
            tensors: &mut HostTensors::new(&weights),
            dtype: DType::F32,
            vocab_size: None,
            bos_token_id: None,
            eos_token_id: None,
            extra_files: vec![("tokenizer.json".into(), b"{}".to_vec())],
            max_file_bytes: 1 << 20,
            overwrite: true,
            progress: &mut |_, _| {},
        };
        export_hf(dir, request).map(|_| ())
    };
    let dir = tmp.path().join("out");
    let refused = |part: &str| {
        let before = snapshot(&dir);
        let e = export(&dir).unwrap_err().to_string();
        assert!(e.contains(part) && e.contains("overwritten"), "{e}");
        assert_eq!(snapshot(&dir), before);
    };
    export(&dir).unwrap();
    export(&dir).unwrap();
    for name in ["README.md", "optimizer.safetensors"] {
        fs::write(dir.join(name), "x").unwrap();
        refused(name);
        fs::remove_file(dir.join(name)).unwrap();
    }
    let config = fs::read(dir.join("config.json")).unwrap();
    fs::write(dir.join("config.json"), [config.as_slice(), b" "].concat()).unwrap();
    refused("config.json");
    fs::write(dir.join("config.json"), config).unwrap();
    export(&dir).unwrap();
    // A model of another program has the same names and no list.
    fs::remove_file(dir.join(EXPORT_MANIFEST)).unwrap();
    refused(EXPORT_MANIFEST);
    // A link in the place of the directory.
    let link = tmp.path().join("link");
    symlink(&dir, &link).unwrap();
    assert!(export(&link).unwrap_err().to_string().contains("symbolic link"));
    // Behind a linked directory the export has a place like any other.
    fs::create_dir(tmp.path().join("big")).unwrap();
    symlink(tmp.path().join("big"), tmp.path().join("exports")).unwrap();
    export(&tmp.path().join("exports/a")).unwrap();
    export(&tmp.path().join("exports/a")).unwrap();
    assert_eq!(fs::read_dir(tmp.path().join("big")).unwrap().count(), 1);
}

#[test]
fn checkpoints_that_a_run_went_back_from_are_no_longer_its_newest() {
    let (tmp, store, elsewhere) = linked_step();
    let before = snapshot(&elsewhere);
    for step in [30, 40, 50] {
        save(&store, step).unwrap();
    }
    fs::write(store.path(40).join("keep"), "").unwrap();
    let left = store.abandon_after(10).unwrap();
    assert_eq!(store.named_steps().unwrap(), [10]);
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(fs::read_link(&left[0]).unwrap(), elsewhere);
    assert!(left[1].join("manifest.json").exists() && left[1].join("keep").exists());
    assert_eq!(snapshot(&elsewhere), before);
    assert!(store.abandon_after(10).unwrap().is_empty());
    let names = fs::read_dir(store.dir()).unwrap().count();
    assert_eq!(names, 4, "the lock, step 10 and the two that were kept in {}", tmp.path().display());
}

/// A store of a run directory that is opened once: links in the place of the store and of its files lead nowhere, and the
/// handle goes on to name the same directory.
#[test]
fn a_store_of_an_open_directory_changes_nothing_behind_links() {
    let tmp = tempfile::tempdir().unwrap();
    let outside = Store::open(tmp.path().join("outside"));
    save(&outside, 7).unwrap();
    let before = snapshot(outside.dir());
    let run = tmp.path().join("run");
    fs::create_dir(&run).unwrap();
    let handle = ConfinedDir::open_named(&run).unwrap();
    let store = Store::open_in(&handle, "checkpoints");
    assert!(store.latest_valid().unwrap().is_none());
    symlink(outside.dir(), store.dir()).unwrap();
    // Archived checkpoints are read, and that is all.
    assert_eq!(store.latest_valid().unwrap().unwrap().loaded.manifest().step, 7);
    for e in [save(&store, 8).unwrap_err(), store.gc(&Retention::default()).unwrap_err()] {
        assert!(e.to_string().contains("symbolic link") && e.to_string().contains("run/checkpoints"), "{e}");
    }
    assert!(store.clean().is_empty());
    assert_eq!(snapshot(outside.dir()), before);

    // Another directory is put in the place of the run: the handle still names the first one.
    fs::remove_file(store.dir()).unwrap();
    save(&store, 8).unwrap();
    fs::rename(&run, tmp.path().join("moved")).unwrap();
    symlink(tmp.path().join("outside"), &run).unwrap();
    save(&store, 9).unwrap();
    assert!(tmp.path().join("moved/checkpoints/step-00000009/manifest.json").exists());
    assert_eq!(snapshot(outside.dir()), before);
}

#[test]
fn leftovers_of_a_killed_removal_go_at_the_next_open_unless_somebody_is_at_work() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    save(&store, 1).unwrap();
    save(&store, 2).unwrap();
    // Killed after the rename, and after the first file.
    let left = tmp.path().join(".step-00000001.removing-1");
    fs::rename(store.path(1), &left).unwrap();
    let shard = fs::read_dir(&left).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(shard).unwrap();
    let lock = FileLock::try_acquire(&tmp.path().join(".lock")).unwrap().unwrap();
    assert!(store.clean().is_empty() && left.exists());
    drop(lock);
    assert_eq!(store.clean(), std::slice::from_ref(&left));
    assert!(!left.exists() && store.load(2).is_ok());
    assert!(store.clean().is_empty());
}
