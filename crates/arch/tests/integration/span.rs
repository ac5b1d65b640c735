//! Spans of a model: splits against all there are, what belongs where, refusals.

use bessemer_arch::{Model, ParamRole, Span, named, owner};

fn counts(spans: &[Span]) -> Vec<usize> {
    spans.iter().map(|s| s.layers.len()).collect()
}

/// All ways to give `layers` to `stages` with at least one between the ends.
fn compositions(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    fn go(left: usize, counts: &mut Vec<usize>, stages: usize, out: &mut Vec<Vec<usize>>) {
        let i = counts.len();
        if i + 1 == stages {
            counts.push(left);
            out.push(counts.clone());
            counts.pop();
            return;
        }
        for c in usize::from(i > 0)..=left {
            counts.push(c);
            go(left - c, counts, stages, out);
            counts.pop();
        }
    }
    let mut out = Vec::new();
    go(layers, &mut Vec::new(), stages, &mut out);
    out
}

/// The most expensive stage, and the sum of squares.
fn cost(model: &Model, spans: &[Span]) -> (f64, f64) {
    let costs = spans.iter().map(|s| s.flops_per_token(model, model.context).total());
    costs.fold((0.0, 0.0), |(most, squares), c| (f64::max(most, c), squares + c * c))
}

#[test]
fn a_split_is_the_best_there_is() {
    for name in ["gpt2", "gpt2-124m", "llama", "llama-8b", "llama-1b"] {
        for layers in [1, 2, 3, 6, 9] {
            let model = Model { layers, ..named(name).unwrap() };
            for stages in 2..=layers + 2 {
                let found = cost(&model, &model.split(stages).unwrap());
                for other in compositions(layers, stages) {
                    let other = model.split_layers(&other).unwrap();
                    let (most, squares) = cost(&model, &other);
                    let rounding = 1.0 + 1e-12;
                    assert!(found.0 <= most * rounding, "{name} {layers} {stages}: {:?}", counts(&other));
                    assert!(
                        found.0 * rounding < most || found.1 <= squares * rounding,
                        "{name} {layers} {stages}: {:?} is evener",
                        counts(&other)
                    );
                }
            }
        }
    }
}

/// GPT-2 124M: a layer costs 6 x 12 x 768^2 + 12 x 768 x 1024 = 51.9 MFLOP a token, the head 6 x 50257 x 768 = 231.6, as
/// much as 4.5 layers. Llama 3 8B: a layer 1.71 GFLOP, the head 3.15.
#[test]
fn the_head_counts_for_the_layers_it_costs() {
    let gpt2 = named("gpt2-124m").unwrap();
    assert_eq!(counts(&gpt2.split(2).unwrap()), [8, 4]);
    assert_eq!(counts(&gpt2.split(4).unwrap()), [4, 4, 4, 0]);
    assert_eq!(counts(&gpt2.split(1).unwrap()), [12]);
    assert_eq!(counts(&gpt2.split(14).unwrap()), [[0].as_slice(), &[1; 12], &[0]].concat());
    let llama = named("llama-8b").unwrap();
    let eight = counts(&llama.split(8).unwrap());
    assert_eq!(eight.iter().sum::<usize>(), 32);
    assert_eq!(eight[7], 3, "{eight:?}");
    assert!(eight[..7].iter().all(|c| *c == 4 || *c == 5), "{eight:?}");
}

#[test]
fn spans_of_a_split_follow_each_other_and_add_up() {
    for name in ["gpt2-124m", "llama-8b", "mistral-7b"] {
        let model = named(name).unwrap();
        for stages in [1, 2, 3, 4, 7, 8] {
            let spans = model.split(stages).unwrap();
            assert_eq!(spans.len(), stages);
            let mut next = 0;
            for (i, s) in spans.iter().enumerate() {
                s.check(&model).unwrap();
                assert_eq!((s.embedding, s.head), (i == 0, i + 1 == stages));
                assert_eq!(s.layers.start, next);
                next = s.layers.end;
            }
            assert_eq!(next, model.layers);
            let sum: f64 = spans.iter().map(|s| s.flops_per_token(&model, 512).total()).sum();
            assert!((sum / model.train_flops_per_token(512).0 - 1.0).abs() < 1e-12, "{name}");
        }
    }
}

#[test]
fn every_parameter_has_one_owner_and_a_tied_table_two_users() {
    let model = Model { layers: 6, ..named("gpt2").unwrap() };
    assert!(model.tied_embeddings);
    for model in [Model { tied_embeddings: false, ..model.clone() }, model] {
        let part = model.tensor_shard(2, 1).unwrap().model;
        for model in [&model, &part] {
            let spans = model.split_layers(&[0, 5, 1]).unwrap();
            for p in model.params() {
                let owners: Vec<_> = (0..3).filter(|i| spans[*i].owns(p.id)).collect();
                assert_eq!(owners, [owner(&spans, p.id).unwrap()], "{}", p.name);
                let users: Vec<_> = (0..3).filter(|i| spans[*i].uses(model, p.id)).collect();
                let table = model.tied_embeddings && p.name == "embed.tokens";
                assert_eq!(users, if table { vec![0, 2] } else { owners }, "{}", p.name);
            }
            let names: Vec<_> = spans[2].params(model).into_iter().map(|p| p.name).collect();
            assert_eq!(names.first().unwrap() == "embed.tokens", model.tied_embeddings);
            assert!(
                names.contains(&"layers.5.mlp.down.weight".into())
                    && names.contains(&"final_norm.bias".into())
            );
            assert_eq!(Span::whole(model).params(model), model.params());
        }
    }
    let spans = named("gpt2").unwrap().split(2).unwrap();
    assert_eq!(owner(&spans, ParamRole::DownWeight.in_layer(9)), None);
}

#[test]
fn what_cannot_be_cut_is_refused_with_a_reason() {
    let model = Model { layers: 12, ..named("gpt2").unwrap() };
    assert_eq!(counts(&model.split_layers(&[3, 4, 4, 1]).unwrap()), [3, 4, 4, 1]);
    let message = |counts: &[usize]| model.split_layers(counts).unwrap_err().to_string();
    assert!(message(&[3, 4, 4]).contains("add up to 12, found [3, 4, 4] = 11"));
    assert!(message(&[]).contains("a pipeline of 0 stages for 12 layers"));
    assert!(message(&[usize::MAX, 13]).contains("more than can be counted"));
    assert!(message(&[6, 0, 6]).contains("found none in stage 1 of [6, 0, 6]"));
    assert!(model.split(0).unwrap_err().to_string().contains("wanted 1 to 14 stages"));
    assert!(model.split(15).unwrap_err().to_string().contains("a pipeline of 15 stages for 12 layers"));
    let wrong =
        |embedding, layers, head| Span { embedding, layers, head }.check(&model).unwrap_err().to_string();
    assert!(wrong(true, 1..3, false).contains("begin with layer 0, found layer 1"));
    assert!(wrong(false, 1..3, true).contains("found 3"));
    assert!(wrong(false, 5..13, false).contains("within 0..12"));
    assert!(wrong(false, 5..5, false).contains("found nothing"));
    assert!(Span { embedding: true, layers: 0..0, head: false }.check(&model).is_ok());
}
