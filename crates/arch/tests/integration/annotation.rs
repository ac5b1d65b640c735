//! Annotations: which layouts they complete to, and which are refused.

use bessemer_arch::{AnnotationError, Annotations, GradientSum, Model, ParamLayout, Sharding, named};
use std::collections::BTreeMap;

fn gpt2() -> Model {
    Model { layers: 3, vocab_size: 11, context: 8, ..named("gpt2").unwrap() }
}

fn llama() -> Model {
    Model { layers: 2, vocab_size: 11, tied_embeddings: false, qk_norm: true, ..named("llama").unwrap() }
}

fn annotations(list: &[(&str, ParamLayout)]) -> Annotations {
    Annotations(list.iter().map(|(pattern, layout)| ((*pattern).to_owned(), *layout)).collect())
}

fn shardings(
    model: &Model,
    list: &[(&str, ParamLayout)],
    sequence: bool,
) -> Result<BTreeMap<String, Sharding>, AnnotationError> {
    let all = model.annotated_shardings(&annotations(list), sequence)?;
    Ok(all.into_iter().map(|sharding| (sharding.spec.name.clone(), sharding)).collect())
}

fn refused(model: &Model, list: &[(&str, ParamLayout)], sequence: bool) -> String {
    shardings(model, list, sequence).unwrap_err().to_string()
}

use ParamLayout::{Columns, Replicate, Rows};

#[test]
fn an_annotation_holds_for_all_parameters_of_its_loop_and_no_others() {
    let plain = shardings(&gpt2(), &[], false).unwrap();
    let found = shardings(&gpt2(), &[("layers.1.mlp.up.weight", Replicate)], true).unwrap();
    for (name, sharding) in &found {
        let changed = ["up.weight", "up.bias", "down.weight", "down.bias"];
        if changed.iter().any(|end| *name == format!("layers.1.mlp.{end}")) {
            assert_eq!(sharding.dim(), None, "{name}");
            assert_eq!(sharding.gradient, GradientSum::IfSequenceParallel, "{name}");
        } else {
            assert_eq!(sharding, &plain[name], "{name}");
        }
    }
    let found = shardings(&llama(), &[("layers.*.attention.out.weight", Replicate)], false).unwrap();
    for name in ["qkv.weight", "out.weight", "q_norm.weight", "k_norm.weight"] {
        let sharding = &found[&format!("layers.1.attention.{name}")];
        assert_eq!((sharding.dim(), sharding.gradient), (None, GradientSum::IfSequenceParallel), "{name}");
    }
    // Tables are sharded each by itself.
    let found = shardings(&llama(), &[("embed.tokens", Replicate)], true).unwrap();
    assert_eq!((found["embed.tokens"].dim(), found["head.weight"].dim()), (None, Some(0)));
}

#[test]
fn the_layouts_that_parameters_have_anyway_may_be_written_down() {
    for sequence in [false, true] {
        let list = [
            ("layers.*.mlp.up.weight", Rows),
            ("layers.*.mlp.down.weight", Columns),
            ("layers.*.attention.out.*", Replicate),
            ("*norm*", Replicate),
        ];
        // A replicated bias replicates no heads; the weight's pattern is another.
        let list = [list[0], list[1], ("layers.*.attention.out.bias", list[2].1), list[3]];
        assert_eq!(shardings(&gpt2(), &list, sequence), shardings(&gpt2(), &[], sequence));
    }
}

#[test]
fn contradictions_name_both_annotations_and_the_way_out() {
    let e = refused(
        &gpt2(),
        &[("layers.*.mlp.up.weight", Replicate), ("layers.2.mlp.down.weight", Columns)],
        false,
    );
    for part in [
        "layers.2.mlp.down.weight is shard(1) over the tensor axis by \"layers.2.mlp.down.weight\"",
        "its hidden units are those of layers.2.mlp.up.weight, which is replicate by \"layers.*.mlp.up.weight\"",
        "annotate them alike, or only one",
    ] {
        assert!(e.contains(part), "{e}");
    }
    let e = refused(&gpt2(), &[("layers.0.*", Replicate), ("layers.*.mlp.up.weight", Rows)], false);
    assert!(
        e.contains("layers.0.mlp.up.weight is shard(0)") || e.contains("layers.0.mlp.up.weight is replicate"),
        "{e}"
    );
    assert!(
        e.contains("\"layers.0.*\"") && e.contains("\"layers.*.mlp.up.weight\"") && e.contains("narrower"),
        "{e}"
    );
}

#[test]
fn what_no_program_can_follow_is_refused_with_what_can_be() {
    for (name, layout, parts) in [
        (
            "layers.0.mlp.up.weight",
            Columns,
            ["width of the residual stream", "\"shard(0)\" or \"replicate\""],
        ),
        ("layers.0.mlp.up.bias", Columns, ["it has one dim", "\"shard(0)\" or \"replicate\""]),
        ("layers.0.attention_norm.weight", Rows, ["need it whole", "expected \"replicate\""]),
        ("embed.positions", Rows, ["to positions", "expected \"replicate\""]),
        ("embed.tokens", Columns, ["width of the residual stream", "\"shard(0)\""]),
    ] {
        let e = refused(&gpt2(), &[(name, layout)], false);
        assert!(e.contains(name) && parts.iter().all(|part| e.contains(part)), "{e}");
    }
    let e = refused(&gpt2(), &[("layers.3.mlp.up.weight", Replicate)], false);
    assert!(e.contains("\"layers.3.mlp.up.weight\": the model has no such parameter"), "{e}");
    assert!(e.contains("layers.0.mlp.up.weight"), "{e}");
}

#[test]
fn operators_that_need_all_rows_refuse_rows_that_are_sharded() {
    for (model, name, reader) in [
        (gpt2(), "layers.0.attention.qkv.weight", "attention"),
        (gpt2(), "embed.tokens", "the loss"),
        (llama(), "head.weight", "the loss"),
    ] {
        let e = refused(&model, &[(name, Replicate)], true);
        assert!(e.contains(name) && e.contains(&format!("read by {reader}")), "{e}");
        assert!(e.contains("expected parallel.sequence = false"), "{e}");
        assert!(shardings(&model, &[(name, Replicate)], false).is_ok());
    }
}

/// What every rank has whole need not be divided.
#[test]
fn a_replicated_loop_may_have_any_length() {
    let model = Model { ffn_width: 33, ..gpt2() };
    assert!(model.tensor_shard(2, 0).is_err());
    let replicated =
        model.annotated_shardings(&annotations(&[("layers.*.mlp.*", Replicate)]), false).unwrap();
    let part = model.tensor_shard_of(replicated, 2, 1).unwrap();
    let specs = part.specs(&bessemer_arch::Span::whole(&model));
    let shape = |name: &str| specs.iter().find(|s| s.name == name).unwrap().shape.clone();
    assert_eq!(shape("layers.2.mlp.up.weight"), [33, model.width]);
    assert_eq!(shape("layers.2.attention.out.weight"), [model.width, model.attention_width() / 2]);
}

#[test]
fn an_activation_stands_for_the_parameters_of_its_loop() {
    for model in [gpt2(), llama()] {
        for (activation, parameter) in [
            ("layers.*.mlp.hidden", "layers.*.mlp.down.weight"),
            ("layers.1.mlp.pre", "layers.1.mlp.down.weight"),
            ("layers.0.attention.mixed", "layers.0.attention.out.weight"),
            ("layers.*.attention.qkv.out", "layers.*.attention.out.weight"),
        ] {
            let of = |name, layout| shardings(&model, &[(name, layout)], false);
            assert_eq!(of(activation, Replicate), of(parameter, Replicate), "{activation}");
            assert_eq!(of(activation, Columns), shardings(&model, &[], false), "{activation}");
        }
    }
    let list = [("layers.0.mlp.hidden", Columns), ("layers.*.mlp.down.weight", Replicate)];
    let e = refused(&gpt2(), &list, false);
    assert!(list.iter().all(|(name, _)| e.contains(name)) && e.contains("hidden units"), "{e}");
    let e = refused(&gpt2(), &[("layers.0.mlp.hidden", Rows)], false);
    assert!(e.contains("its rows are positions") && e.contains("\"shard(1)\" or \"replicate\""), "{e}");
    let e = refused(&gpt2(), &[("layers.3.mlp.hidden", Columns)], false);
    assert!(e.contains("activations: layers.0.attention.qkv.out"), "{e}");
    // A pattern that names parameters is about them alone.
    let both = [("layers.0.attention.qkv.*", Rows)];
    assert_eq!(shardings(&gpt2(), &both, false), shardings(&gpt2(), &[], false));
}
