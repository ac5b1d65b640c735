//! What `CheckpointDifference` finds, against sums done by hand.

use crate::damage::{save, tensors};
use bessemer_checkpoint::{CheckpointDifference, HostTensors, SaveRequest, Store};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use serde_json::json;

fn save_list(store: &Store, step: u64, list: &[HostTensor], state: serde_json::Value, recipe: &str) {
    store
        .save(SaveRequest {
            step,
            tokens: step * 1024,
            state,
            recipe: recipe.into(),
            tokenizer: Some("blake3:00ff".into()),
            tensors: &mut HostTensors::new(list),
            max_file_bytes: 1 << 20,
            progress: &mut |_, _| {},
        })
        .unwrap();
}

fn between(a: &Store, b: &Store, step: u64) -> CheckpointDifference {
    CheckpointDifference::between(&a.load(step).unwrap(), &b.load(step).unwrap(), &mut |_, _| ()).unwrap()
}

#[test]
fn the_same_checkpoint_has_no_differences_and_another_layout_of_it_neither() {
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (Store::open(place.path().join("a")), Store::open(place.path().join("b")));
    save(&a, 7, 5);
    save(&b, 7, 5);
    assert!(between(&a, &b, 7).is_empty());
    assert_eq!(between(&a, &b, 7).equal, 5);
}

#[test]
fn tensors_are_compared_by_value_and_by_bits_and_the_rest_by_key() {
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (Store::open(place.path().join("a")), Store::open(place.path().join("b")));
    let mut list = tensors(4, 1);
    let norm: f64 = list[0].values.iter().map(|v| f64::from(*v).powi(2)).sum();
    save_list(&a, 3, &list, json!({"loader": {"sample": 3, "seed": 1}, "rng": [1]}), "a = 1\nb = 2\n");
    // 1.5 apart, and a sign: one bit that is worth 2 x |v|.
    list[0].values[2] += 1.5;
    list[0].values[7] = -list[0].values[7];
    let flipped = 2.0 * f64::from(list[0].values[7]).abs();
    // The lowest of the 16 bits of a bf16.
    list[1].values[1] = f32::from_bits(list[1].values[1].to_bits() ^ (1 << 16));
    list[2].shape = vec![10, 4];
    list.pop();
    list.push(HostTensor { name: "new".into(), shape: vec![1], dtype: DType::F32, values: vec![0.0] });
    save_list(
        &b,
        3,
        &list,
        json!({"loader": {"sample": 4, "seed": 1}, "rng": [1], "more": true}),
        "a = 1\nb = 3\n",
    );
    let found = between(&a, &b, 3);
    assert!(!found.is_empty() && !found.same_tensors());
    assert_eq!((found.equal, found.tensors.len()), (1, 2), "the empty one is equal");
    let weight = &found.tensors[0];
    assert_eq!(
        (weight.name.as_str(), weight.elements, weight.differing, weight.first),
        ("a.weight", 12, 2, 2)
    );
    assert_eq!(weight.max_abs, flipped.max(1.5));
    let wanted = ((1.5f64.powi(2) + flipped.powi(2)) / norm).sqrt();
    assert!((weight.relative_l2.unwrap() - wanted).abs() < 1e-12);
    let bias = &found.tensors[1];
    assert_eq!((bias.name.as_str(), bias.differing, bias.bits, bias.first), ("a.bias", 1, 1, 1));
    assert_eq!(
        (found.described[0].a.as_str(), found.described[0].b.as_str()),
        ("f16 [5, 2, 4]", "f16 [10, 4]")
    );
    assert_eq!((found.only_a, found.only_b), (vec!["scalar".to_string()], vec!["new".to_string()]));
    let keys: Vec<_> = found.metadata.iter().map(|m| (m.key.as_str(), m.a.as_str(), m.b.as_str())).collect();
    let wanted =
        [("recipe", "\"b = 2\"", "\"b = 3\""), ("state.loader.sample", "3", "4"), ("state.more", "", "true")];
    assert_eq!(keys, wanted);
}

#[test]
fn a_tensor_that_was_zero_has_no_relative_distance_and_blocks_are_added_up() {
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (Store::open(place.path().join("a")), Store::open(place.path().join("b")));
    let n = (1 << 20) + 5;
    let zero = |values| [HostTensor { name: "w".into(), shape: vec![n], dtype: DType::F32, values }];
    save_list(&a, 1, &zero(vec![0.0; n]), json!({}), "");
    let mut values = vec![0.0; n];
    (values[0], values[n - 1]) = (3.0, -4.0);
    save_list(&b, 1, &zero(values), json!({}), "");
    let there = between(&a, &b, 1).tensors.remove(0);
    assert_eq!((there.differing, there.first, there.max_abs, there.relative_l2), (2, 0, 4.0, None));
    let back = between(&b, &a, 1).tensors.remove(0);
    assert_eq!(back.relative_l2, Some(1.0));
}
