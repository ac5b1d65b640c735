//! Checkpoints that several ranks write, each its own slices: what is read back, whole or in part, in which version, and which damage
//! is found by whom.

use bessemer_checkpoint::{
    CheckpointError, Contents, HostTensors, Loaded, MANIFEST_NAME, Manifest, PartRequest, SaveRequest, Store,
    TensorSlice, TensorSpec, TensorsFrom, WrittenPart, slice_specs,
};
use bessemer_mesh::{BoxRange, boxes_of, even};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::fs;
use std::path::Path;

/// Tensors of a version of a step, different in every value.
pub(crate) fn tensors(version: u64, rows: usize) -> Vec<HostTensor> {
    let make = |name: &str, shape: Vec<usize>, dtype| {
        let n: usize = shape.iter().product();
        let values = (0..n).map(|i| ((version * 1000 + i as u64) % 100_003) as f32).collect();
        HostTensor { name: name.into(), shape, dtype, values }
    };
    vec![
        make("embed.tokens", vec![rows, 7], DType::F32),
        make("experts.up", vec![2, 5, 3], DType::F32),
        make("norm", vec![4], DType::F32),
        make("optimizer.step", vec![1], DType::U32),
        make("scalar", vec![], DType::F32),
    ]
}

fn specs(tensors: &[HostTensor]) -> Vec<TensorSpec> {
    let spec = |t: &HostTensor| TensorSpec { name: t.name.clone(), shape: t.shape.clone(), dtype: t.dtype };
    tensors.iter().map(spec).collect()
}

/// Slices of rank `rank` of `ranks`: all elements are one list, of which each rank has an even stretch.
fn slices(specs: &[TensorSpec], rank: usize, ranks: usize) -> Vec<TensorSlice> {
    let total: usize = specs.iter().map(|s| s.shape.iter().product::<usize>()).sum();
    let mine = even(total, ranks, rank).range();
    let (mut at, mut out) = (0, Vec::new());
    for (tensor, spec) in specs.iter().enumerate() {
        let len: usize = spec.shape.iter().product();
        let (first, last) = (mine.start.max(at), mine.end.min(at + len));
        if first < last {
            let boxes = boxes_of(&spec.shape, &[(first - at, last - first)]);
            out.extend(boxes.into_iter().map(|part| TensorSlice { tensor, part }));
        }
        at += len;
    }
    out
}

/// The values of a box.
fn values_of(tensor: &HostTensor, part: &BoxRange, values: &mut [f32]) {
    for run in bessemer_mesh::box_runs(&tensor.shape, part) {
        values[run.locals()].copy_from_slice(&tensor.values[run.wholes()]);
    }
}

/// Writes one rank's part of a save.
pub(crate) fn write_part(
    store: &Store,
    ticket: bessemer_checkpoint::SaveTicket,
    tensors: &[HostTensor],
    (rank, ranks): (usize, usize),
) -> Result<WrittenPart, CheckpointError> {
    let specs = specs(tensors);
    let slices = slices(&specs, rank, ranks);
    let fill = |entry: usize, values: &mut [f32]| {
        values_of(&tensors[slices[entry].tensor], &slices[entry].part, values);
        Ok(())
    };
    let mut source = TensorsFrom::new(slice_specs(&specs, &slices), fill);
    store.write_part(
        ticket,
        PartRequest {
            rank,
            ranks,
            tensors: &mut source,
            slices: &slices,
            max_file_bytes: 400,
            progress: &mut |done, total| assert!(done <= total),
        },
    )
}

pub(crate) fn contents(tensors: &[HostTensor], version: u64) -> Contents {
    Contents {
        tokens: 64,
        state: serde_json::json!({"version": version}),
        recipe: "[model]\n".into(),
        tokenizer: Some("t".into()),
        tensors: specs(tensors),
    }
}

/// A save by `ranks` ranks, one after the other.
pub(crate) fn save_by(
    store: &Store,
    step: u64,
    version: u64,
    (ranks, rows): (usize, usize),
) -> Result<(), CheckpointError> {
    let tensors = tensors(version, rows);
    let saving = store.begin(step, 10_000)?;
    let ticket = saving.ticket();
    let parts: Vec<_> = (0..ranks)
        .map(|rank| write_part(store, ticket, &tensors, (rank, ranks)))
        .collect::<Result<_, _>>()?;
    saving.commit(parts, contents(&tensors, version)).map(|_| ())
}

fn check(loaded: &Loaded, version: u64, rows: usize) {
    for t in tensors(version, rows) {
        assert_eq!(loaded.read_tensor(&t.name).unwrap(), t);
    }
}

#[test]
fn slices_of_any_number_of_ranks_are_read_as_whole_tensors_by_any_tool_too() {
    for ranks in [1, 2, 3, 5, 8, 130] {
        let tmp = tempfile::tempdir().unwrap();
        let store = Store::open(tmp.path().join("c"));
        save_by(&store, 3, 1, (ranks, 9)).unwrap();
        let loaded = store.load(3).unwrap();
        check(&loaded, 1, 9);
        check(&store.load_lazily(3).unwrap(), 1, 9);
        let mut seen = 0;
        for f in &loaded.manifest().files {
            let bytes = fs::read(loaded.path().join(&f.name)).unwrap();
            seen += safetensors::SafeTensors::deserialize(&bytes).unwrap().len();
        }
        assert_eq!(seen, loaded.manifest().tensors.iter().map(|t| t.slices.len()).sum::<usize>());
        assert_eq!(fs::read_dir(tmp.path().join("c")).unwrap().count(), 2, "the step and the lock");
    }
}

/// A save by one rank through the protocol of several has the bytes of [`Store::save`].
#[test]
fn one_rank_writes_the_same_bytes_in_both_ways() {
    let tmp = tempfile::tempdir().unwrap();
    let (a, b) = (Store::open(tmp.path().join("a")), Store::open(tmp.path().join("b")));
    save_by(&a, 3, 1, (1, 9)).unwrap();
    let tensors = tensors(1, 9);
    b.save(SaveRequest {
        step: 3,
        tokens: 64,
        state: serde_json::json!({"version": 1}),
        recipe: "[model]\n".into(),
        tokenizer: Some("t".into()),
        tensors: &mut HostTensors::new(&tensors),
        max_file_bytes: 400,
        progress: &mut |_, _| {},
    })
    .unwrap();
    for entry in fs::read_dir(a.path(3)).unwrap() {
        let name = entry.unwrap().file_name();
        assert_eq!(fs::read(a.path(3).join(&name)).unwrap(), fs::read(b.path(3).join(&name)).unwrap());
    }
}

#[test]
fn any_elements_of_a_tensor_are_read_from_any_slices() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    for (step, ranks) in [(1, 1), (2, 3), (3, 7)] {
        save_by(&store, step, 1, (ranks, 9)).unwrap();
        let loaded = store.load_lazily(step).unwrap();
        let whole = loaded.read_tensor("embed.tokens").unwrap().values;
        for first in 0..whole.len() {
            for len in [1, 2, 6, 7, 8, 20] {
                let len = len.min(whole.len() - first);
                let mut values = vec![-1.0; len];
                loaded.read_runs("embed.tokens", &[(first, len)], &mut values).unwrap();
                assert_eq!(values, whole[first..first + len]);
            }
        }
        // Columns, in an order of their own.
        let runs: Vec<_> = (0..9).rev().map(|row| (row * 7 + 2, 3)).collect();
        let wanted: Vec<f32> = runs.iter().flat_map(|r| whole[r.0..r.0 + r.1].to_vec()).collect();
        let mut values = vec![-1.0; 27];
        loaded.read_runs("embed.tokens", &runs, &mut values).unwrap();
        assert_eq!(values, wanted);
        let e = loaded.read_runs("embed.tokens", &[(62, 2)], &mut [0.0; 2]).unwrap_err().to_string();
        assert!(e.contains("embed.tokens") && e.contains("from 62 on"), "{e}");
    }
}

/// Files of 6 MiB and a part of one of them: chunks of 1 MiB are verified, and no others are read. Damage elsewhere does not
/// matter to this reader; where it reads, the file is named.
#[test]
fn a_reader_reads_and_verifies_the_chunks_that_it_needs() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    let rows = 200_000;
    save_by(&store, 1, 1, (4, rows)).unwrap();
    let wanted = tensors(1, rows).remove(0).values;
    let loaded = store.load_lazily(1).unwrap();
    assert_eq!(loaded.bytes_read(), 0);
    let mut values = vec![0.0; 1000];
    let first = 500_000;
    loaded.read_runs("embed.tokens", &[(first, 1000)], &mut values).unwrap();
    assert_eq!(values, wanted[first..first + 1000]);
    // The header's chunk, and one or two with the values.
    let read = loaded.bytes_read();
    assert!((1 << 20..=3 << 20).contains(&read), "{read}");
    let total = loaded.manifest().bytes();
    assert!(total > 5 << 20, "{total}");
    // Every byte once, and some headers' chunks twice, because one chunk is kept.
    let all = store.load_lazily(1).unwrap();
    check(&all, 1, rows);
    assert!(all.bytes_read() < 2 * total, "{} of {total}", all.bytes_read());
    let ahead = store.load_lazily(1).unwrap();
    reading_ahead(&ahead, |loaded| check(loaded, 1, rows));
    assert!(ahead.bytes_read() < 2 * total, "{} of {total}", ahead.bytes_read());

    // A bit in the second chunk of the second file.
    let file = loaded.manifest().files.iter().filter(|f| f.bytes > 1 << 20).nth(1).unwrap().name.clone();
    let path = store.path(1).join(&file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[(1 << 20) + 77] ^= 4;
    fs::write(&path, bytes).unwrap();
    let loaded = store.load_lazily(1).unwrap();
    loaded.read_runs("embed.tokens", &[(0, 1000)], &mut values).unwrap();
    assert_eq!(values, wanted[..1000]);
    let mut whole = vec![0.0; wanted.len()];
    match loaded.read_into("embed.tokens", &mut whole).unwrap_err() {
        CheckpointError::Checksum { file, .. } => assert_eq!(file, path),
        other => panic!("{other}"),
    }
    assert!(matches!(store.load(1), Err(CheckpointError::Checksum { .. })));
    reading_ahead(&store.load_lazily(1).unwrap(), |loaded| {
        match loaded.read_into("embed.tokens", &mut whole).unwrap_err() {
            CheckpointError::Checksum { file, .. } => assert_eq!(file, path),
            other => panic!("{other}"),
        }
    });
}

/// Reads while threads read all of the checkpoint ahead.
fn reading_ahead(loaded: &Loaded, read: impl FnOnce(&Loaded)) {
    let all = loaded.manifest().tensors.iter();
    let all = all.map(|t| (t.name.as_str(), vec![(0, t.shape.iter().product())]));
    let plan = loaded.plan_reads(all).unwrap();
    loaded.reading_ahead(plan, || read(loaded));
}

/// Format version 1 had one checksum a file, no chunks and no chain.
fn as_version_1(path: &Path) {
    let file = path.join(MANIFEST_NAME);
    let text = fs::read_to_string(&file).unwrap();
    let body = text.split(",\n  \"checksum\"").next().unwrap();
    let mut old = body.replace("\"version\": 2", "\"version\": 1").replace("  \"previous\": null,\n", "");
    while let Some(at) = old.find(",\"chunk_bytes\"") {
        let end = at + old[at..].find('}').unwrap();
        old.replace_range(at..end, "");
    }
    let sum = blake3::hash(old.as_bytes()).to_hex();
    fs::write(file, format!("{old},\n  \"checksum\": \"blake3:{sum}\"\n}}\n")).unwrap();
}

#[test]
fn version_1_is_read_whole_and_in_part_and_its_damage_is_found() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    save_by(&store, 1, 1, (1, 200_000)).unwrap();
    as_version_1(&store.path(1));
    let loaded = store.load(1).unwrap();
    assert!(loaded.manifest().files.iter().all(|f| f.chunk_bytes == 0 && f.chunks.is_empty()));
    check(&loaded, 1, 200_000);
    check(&store.load_lazily(1).unwrap(), 1, 200_000);
    reading_ahead(&store.load_lazily(1).unwrap(), |loaded| check(loaded, 1, 200_000));
    let large = loaded.manifest().files.iter().find(|f| f.bytes > 1 << 20).unwrap().name.clone();
    let path = store.path(1).join(large);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    // There is one checksum for all bytes: damage behind what is read is found too.
    let e = store.load_lazily(1).unwrap().read_runs("embed.tokens", &[(0, 1)], &mut [0.0]).unwrap_err();
    assert!(matches!(e, CheckpointError::Checksum { .. }), "{e}");
    // The next save stands on it.
    save_by(&store, 2, 2, (2, 9)).unwrap();
    assert_eq!(store.load(2).unwrap().manifest().previous.as_ref().unwrap().step, 1);
}

#[test]
fn each_manifest_names_the_one_before_it() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    for step in [10, 20, 30] {
        save_by(&store, step, step, (2, 9)).unwrap();
    }
    let manifest = |step| store.load(step).unwrap().into_manifest();
    let checksum = |m: &Manifest| {
        let text = String::from_utf8(m.to_bytes().unwrap()).unwrap();
        text.split("\"blake3:").nth(1).unwrap()[..64].to_owned()
    };
    assert!(manifest(10).previous.is_none());
    let previous = manifest(30).previous.unwrap();
    assert_eq!((previous.step, previous.checksum), (20, checksum(&manifest(20))));
    for step in [10, 20, 30] {
        store.check_chain(&manifest(step)).unwrap();
    }
    // The newest one does not depend on those that are gone.
    save_by(&store, 20, 77, (2, 9)).unwrap();
    let e = store.check_chain(&manifest(30)).unwrap_err().to_string();
    assert!(e.contains("step-00000020") && e.contains("saved again"), "{e}");
    fs::remove_dir_all(store.path(20)).unwrap();
    store.check_chain(&manifest(30)).unwrap();
    // One that is damaged is passed over.
    fs::write(store.path(30).join(MANIFEST_NAME), "x").unwrap();
    save_by(&store, 40, 1, (2, 9)).unwrap();
    assert_eq!(manifest(40).previous.unwrap().step, 10);
}

fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n != ".lock").collect()
}

/// A rank that dies, that writes to another directory, or that leaves something out: the save is abandoned, and what was there stays.
#[test]
fn a_save_without_all_parts_leaves_nothing_behind() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path().join("c"));
    save_by(&store, 1, 1, (2, 9)).unwrap();
    let tensors = tensors(2, 9);
    let ranks = 3;
    // Never committed.
    let saving = store.begin(2, 0).unwrap();
    write_part(&store, saving.ticket(), &tensors, (1, ranks)).unwrap();
    assert!(matches!(store.begin(2, 0), Err(CheckpointError::Busy { .. })));
    drop(saving);
    assert_eq!(entries(store.dir()), ["step-00000001"]);
    // A part less.
    let saving = store.begin(2, 0).unwrap();
    let part = |rank| write_part(&store, saving.ticket(), &tensors, (rank, ranks)).unwrap();
    let parts = vec![part(0), part(2)];
    let e = saving.commit(parts, contents(&tensors, 2)).unwrap_err().to_string();
    assert!(e.contains("cannot save step 2") && e.contains("cover"), "{e}");
    assert_eq!(entries(store.dir()), ["step-00000001"]);
    // A part twice.
    let saving = store.begin(2, 0).unwrap();
    let part = |rank| write_part(&store, saving.ticket(), &tensors, (rank, ranks)).unwrap();
    let (one, two) = (part(1), part(2));
    let parts = vec![part(0), one.clone(), two, one];
    let e = saving.commit(parts, contents(&tensors, 2)).unwrap_err().to_string();
    assert!(e.contains("listed twice"), "{e}");
    // A rank whose directory is another one of the same name.
    let elsewhere = Store::open(tmp.path().join("d"));
    let saving = store.begin(2, 0).unwrap();
    let e = write_part(&elsewhere, saving.ticket(), &tensors, (1, ranks)).unwrap_err().to_string();
    assert!(e.contains("rank-00001-shard-00001-of-"), "{e}");
    let own = elsewhere.begin(2, 0).unwrap();
    let parts = vec![
        write_part(&store, saving.ticket(), &tensors, (0, ranks)).unwrap(),
        write_part(&elsewhere, saving.ticket(), &tensors, (1, ranks)).unwrap(),
        write_part(&store, saving.ticket(), &tensors, (2, ranks)).unwrap(),
    ];
    let e = saving.commit(parts, contents(&tensors, 2)).unwrap_err();
    assert!(matches!(&e, CheckpointError::MissingFile { file } if file.starts_with(store.dir())), "{e}");
    drop(own);
    assert_eq!(entries(store.dir()), ["step-00000001"]);
    assert_eq!(entries(elsewhere.dir()), [""; 0]);
    check(&store.load(1).unwrap(), 1, 9);
}

#[test]
fn a_value_that_is_not_finite_is_refused_by_the_rank_that_has_it() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    let mut tensors = tensors(2, 9);
    tensors[1].values[29] = f32::NAN;
    let saving = store.begin(2, 0).unwrap();
    write_part(&store, saving.ticket(), &tensors, (0, 2)).unwrap();
    match write_part(&store, saving.ticket(), &tensors, (1, 2)).unwrap_err() {
        CheckpointError::NotFinite { name, .. } => assert!(name.starts_with("experts.up"), "{name}"),
        other => panic!("{other}"),
    }
}
