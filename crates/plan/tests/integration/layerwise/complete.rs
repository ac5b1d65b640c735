//! Layouts that follow from a few annotations, on the programs of real models.

use bessemer_arch::{Model, named};
use bessemer_mesh::{Axis, Placement};
use bessemer_plan::layerwise::{Annotation, Origin, complete};
use bessemer_program::UnitProgram;
use bessemer_runtime::{Decoder, Purpose, Rewrite, Shape, Unit};
use bessemer_tensor::null::NullBackend;

const ROWS: Placement = Placement::Shard { dim: 0 };
const COLUMNS: Placement = Placement::Shard { dim: 1 };

fn models() -> Vec<Model> {
    ["gpt2-124m", "llama-8b", "qwen3-0.6b"]
        .iter()
        .map(|name| Model { layers: 1, ..named(name).expect("a listed name") })
        .collect()
}

/// The layer as the model's code records it.
fn layer(model: &Model) -> UnitProgram {
    let shape = Shape { sequences: 1, seq: 64, purpose: Purpose::Train };
    let decoder = Decoder::new(&mut NullBackend::new(), model, shape).unwrap();
    let mut units = decoder.programs_after(Rewrite::Record).unwrap().into_iter();
    units.find(|(unit, ..)| *unit == Unit::Layer(0)).unwrap().1
}

fn annotations(of: &[(&str, Placement)]) -> Vec<Annotation> {
    let annotation = |(value, layout): &(&str, Placement)| Annotation {
        value: (*value).into(),
        source: (*value).into(),
        layout: *layout,
    };
    of.iter().map(annotation).collect()
}

/// Holds the layouts of the parameters of a layer against Megatron's.
fn expect_megatron(model: &Model, of: &[(&str, Placement)]) {
    let unit = layer(model);
    let completion = complete(&unit, &annotations(of)).unwrap();
    let mut sharded = 0;
    for sharding in model.shardings() {
        let Some(name) = sharding.spec.name.strip_prefix("layers.0.") else { continue };
        let id = unit.find(name).unwrap();
        // A vector is a row of a program.
        let wanted = match sharding.layout.at(Axis::Tensor) {
            ROWS if sharding.spec.shape.len() == 1 => COLUMNS,
            other => other,
        };
        assert_eq!(completion.layouts[id], wanted, "{name} after {of:?}");
        let given = of.iter().any(|(value, _)| *value == name);
        let open = completion.origins[id] == Origin::Open;
        assert_eq!(open, wanted == Placement::Replicate && !given, "{name}");
        sharded += usize::from(wanted != Placement::Replicate);
    }
    assert!(sharded >= 4);
}

fn first_of_mlp(model: &Model) -> &'static str {
    if layer(model).find("mlp.up.weight").is_some() { "mlp.up.weight" } else { "mlp.gate_up.weight" }
}

#[test]
fn weights_alone_give_megatron_s_layout() {
    for model in models() {
        let up = first_of_mlp(&model);
        expect_megatron(&model, &[("attention.qkv.weight", ROWS), (up, ROWS)]);
        expect_megatron(&model, &[("attention.out.weight", COLUMNS), ("mlp.down.weight", COLUMNS)]);
    }
}

#[test]
fn activations_alone_give_megatron_s_layout() {
    for model in models() {
        expect_megatron(&model, &[("attention.mixed", COLUMNS), ("mlp.hidden", COLUMNS)]);
        expect_megatron(&model, &[("attention.qkv.out", COLUMNS), ("mlp.pre", COLUMNS)]);
    }
}

#[test]
fn a_block_without_annotations_stays_whole() {
    for model in models() {
        let unit = layer(&model);
        let completion = complete(&unit, &annotations(&[("mlp.hidden", COLUMNS)])).unwrap();
        for (value, layout) in unit.values.iter().zip(&completion.layouts) {
            let inside = value.name.starts_with("mlp.");
            assert!(*layout == Placement::Replicate || inside, "{}", value.name);
        }
    }
}

#[test]
fn a_conflict_names_the_operator_and_both_annotations() {
    let model = named("gpt2-124m").unwrap();
    let model = Model { layers: 1, ..model };
    let unit = layer(&model);
    let of = annotations(&[("mlp.up.weight", ROWS), ("mlp.down.weight", Placement::Replicate)]);
    let conflict = complete(&unit, &of).unwrap_err();
    assert_eq!((conflict.first, conflict.second), (1, 0));
    assert_eq!((conflict.value.as_str(), conflict.op), ("mlp.down.weight", "linear"));
    assert_eq!((conflict.layout, conflict.wanted), (Placement::Replicate, COLUMNS));
    let twice = annotations(&[("mlp.hidden", COLUMNS), ("mlp.hidden", Placement::Replicate)]);
    assert!(complete(&unit, &twice).is_err());
    // Values of other units are none of this one's.
    assert!(complete(&unit, &annotations(&[("head.weight", ROWS)])).is_ok());
}
