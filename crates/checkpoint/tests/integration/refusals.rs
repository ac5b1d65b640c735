//! What a save refuses, what a store does not take for intact, and files with a million tensors.

use bessemer_checkpoint::format::{Header, MAX_TENSORS};
use bessemer_checkpoint::{CheckpointError, HostTensors, SaveReport, SaveRequest, Store};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::fmt::Write;
use std::time::Instant;

fn save(store: &Store, step: u64, tokens: u64, values: Vec<f32>) -> Result<SaveReport, CheckpointError> {
    let good = HostTensor { name: "good".into(), shape: vec![3], dtype: DType::F32, values: vec![1.0; 3] };
    let shape = vec![values.len()];
    let w = HostTensor { name: "optimizer.w.second".into(), shape, dtype: DType::F32, values };
    store.save(SaveRequest {
        step,
        tokens,
        state: serde_json::json!({}),
        recipe: String::new(),
        tokenizer: None,
        tensors: &mut HostTensors::new(&[good, w]),
        max_file_bytes: 8,
        progress: &mut |_, _| {},
    })
}

#[test]
fn values_that_are_not_finite_are_refused_by_name_and_leave_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path().join("c"));
    save(&store, 1, 1, vec![1.0; 4]).unwrap();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let e = save(&store, 2, 2, vec![0.0, 1.0, value, 2.0]).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("optimizer.w.second") && text.contains("element 2"), "{text}");
        assert!(matches!(e, CheckpointError::NotFinite { index: 2, .. }), "{e:?}");
    }
    let mut names: Vec<_> = std::fs::read_dir(store.dir())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".lock", "step-00000001"]);
    // The largest finite values are.
    save(&store, 2, 2, vec![f32::MAX, f32::MIN, -0.0, f32::MIN_POSITIVE]).unwrap();
}

#[test]
fn a_state_that_its_owner_does_not_accept_is_passed_over_everywhere() {
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path());
    save(&store, 1, 64, vec![1.0]).unwrap();
    save(&store, 2, 65, vec![1.0]).unwrap();
    let store = store.accepting(|m| match m.tokens == 64 * m.step {
        true => Ok(()),
        false => Err(format!("{} tokens after step {}", m.tokens, m.step)),
    });
    let latest = store.latest_valid().unwrap().unwrap();
    assert_eq!(latest.loaded.manifest().step, 1);
    assert!(latest.skipped[0].to_string().contains("65 tokens after step 2"));
    let scan = store.scan().unwrap();
    assert_eq!((scan.complete.len(), scan.damaged.len()), (1, 1));
    assert!(store.load(2).unwrap_err().to_string().contains("65 tokens"));
}

#[test]
fn a_million_empty_tensors_are_refused_in_bounded_time() {
    let mut json = String::from("{");
    for i in 0..1_000_000 {
        write!(json, "\"{i}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}},").unwrap();
    }
    json.pop();
    json.push('}');
    let begun = Instant::now();
    let e = Header::parse(json.as_bytes(), 0).unwrap_err();
    assert!(e.contains(&MAX_TENSORS.to_string()) && e.contains("tensors"), "{e}");
    // A quarter of the header is read; the whole of it took this program 200 MB and several seconds without optimisation.
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}
