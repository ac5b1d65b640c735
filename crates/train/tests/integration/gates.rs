//! Gates of experts in whole runs: the routing state is state of a run, and a model whose experts choose generates no text.

use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_train::refuse_what_cannot_fit;
use bessemer_units::Bytes;

use crate::device::{Device, Launch};
use crate::place::recipe;
use crate::run::{Run, cpu, numbers};
use bessemer_tensor::Backend;
use bessemer_tensor::op::Op;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn mixture(gate: &str, sets: &[&str]) -> Recipe {
    let gate = format!("model.experts.gate={gate}");
    let base = ["model.experts.count=4", "model.experts.width=16", &gate, "parallel.data=zero1"];
    recipe(&[&base[..], sets].concat())
}

fn losses(records: &[Record]) -> Vec<f64> {
    let loss = |r: &Record| if let Record::Step(step) = r { Some(step.loss) } else { None };
    records.iter().filter_map(loss).collect()
}

/// Biases, loads of the step before, noise and random choices are those of a run that was never stopped; other ranks continue with them.
#[test]
fn a_stopped_run_goes_on_with_the_state_of_its_gates() {
    for (gate, sets) in [
        ("deepseek", &["model.experts.bias_rate=0.05", "model.experts.groups=2"][..]),
        ("top_k", &["model.experts.balance_over=batch", "model.experts.balance=0.1"]),
        ("switch", &["model.experts.jitter=0.1"]),
        ("gshard", &["model.experts.capacity_sequences=2"]),
    ] {
        let spread = mixture(gate, &[sets, &["parallel.experts=2"]].concat());
        let alone = mixture(gate, sets);
        let (whole, parts, other) = (Run::new(false), Run::new(false), Run::new(false));
        let wanted = whole.train(&spread, 2, None);
        let mut records = parts.train(&spread, 2, Some(7));
        records.extend(parts.train(&spread, 2, None));
        assert_eq!(numbers(&records), numbers(&wanted), "{gate}");
        let dropped =
            |r: &Record| if let Record::Step(s) = r { s.experts.get("dropped").copied() } else { None };
        let dropped: Vec<f64> = wanted.iter().filter_map(dropped).collect();
        let drops = ["switch", "gshard"].contains(&gate);
        assert!(dropped.len() == if drops { 24 } else { 0 }, "{gate}: {dropped:?}");
        assert!(dropped.iter().all(|share| (0.0..1.0).contains(share)), "{gate}: {dropped:?}");
        assert!(dropped.iter().any(|share| *share > 0.0) == drops, "{gate}: {dropped:?}");
        assert!(parts.tensors() == whole.tensors(), "{gate}: other bits after a stop");
        let mut records = other.train(&spread, 2, Some(7));
        records.extend(other.train(&alone, 1, Some(9)));
        for (step, (found, wanted)) in losses(&records).into_iter().zip(losses(&wanted)).enumerate() {
            assert!((found / wanted - 1.0).abs() < 1e-5, "{gate}, step {step}: {found}, wanted {wanted}");
        }
    }
}

/// Biases move by their rate a step, so their range grows by twice the rate at most; it does not depend on who holds which layer.
#[test]
fn the_range_of_biases_is_recorded() {
    let ranges = |sets: &[&str], ranks| {
        let base = ["model.experts.bias_rate=0.05", "train.micro_batch=4", "train.steps=6"];
        let sets = [&base[..], sets].concat();
        let records = Run::new(false).train(&mixture("deepseek", &sets), ranks, None);
        let range = |r: &Record| if let Record::Step(s) = r { Some(s.experts["bias_range"]) } else { None };
        records.iter().filter_map(range).collect::<Vec<f64>>()
    };
    let alone = ranges(&[], 1);
    assert_eq!(alone.len(), 6);
    assert!(alone[0] > 0.0, "{alone:?}");
    for (step, range) in (1..).zip(&alone) {
        assert!(*range < 0.1001 * f64::from(step), "{alone:?}");
    }
    assert_eq!(ranges(&["parallel.pipeline=2"], 2), alone);
    let records = Run::new(false).train(&mixture("switch", &["train.steps=2"]), 1, None);
    let has = |r: &Record| matches!(r, Record::Step(s) if s.experts.contains_key("bias_range"));
    assert!(!records.iter().any(has), "a gate without biases");
}

#[test]
fn a_model_whose_experts_choose_trains_without_samples() {
    let samples = ["eval.samples.at_end=true", "eval.samples.prompts=[\"the \"]", "eval.at_end=true"];
    let written = |records: &[Record]| {
        let samples = records.iter().filter(|r| matches!(r, Record::Sample(_))).count();
        let warns =
            |r: &&Record| matches!(r, Record::Warning(w) if w.message.starts_with("no samples are written"));
        (samples, records.iter().filter(warns).count(), losses(records))
    };
    let (count, warnings, found) =
        written(&Run::new(false).train(&mixture("expert_choice", &samples), 1, None));
    assert_eq!((count, warnings), (0, 1));
    assert!(found.last() < found.first());
    let (count, warnings, _) = written(&Run::new(false).train(&mixture("top_k", &samples), 1, None));
    assert_eq!((count, warnings), (1, 0));
}

#[test]
fn rows_that_do_not_fit_are_counted() {
    let sets = ["parallel.experts=2", "train.micro_batch=512", "train.batch_tokens=16384"];
    let refused = |recipe: &Recipe, ranks| {
        refuse_what_cannot_fit(recipe, ranks, &[], Bytes(1 << 20)).unwrap_err().to_string()
    };
    // 512 sequences of 16 tokens on each of two ranks, of each of which two experts of one rank may be chosen; 2 x 16 + 3 x 16 columns.
    let e = refused(&mixture("top_k", &sets), 2);
    let rows = "; 10.0 MiB of them are 32768 rows of experts of a layer in the worst case, where all tokens of 2 ranks choose the experts of one: fewer";
    assert!(e.contains(rows), "{e}");
    let e = refused(&mixture("top_k", &["train.micro_batch=1024", "train.batch_tokens=16384"]), 1);
    assert!(
        e.contains(
            "; 10.0 MiB of them are 32768 rows of experts of a layer: fewer with a smaller train.micro_batch"
        ),
        "{e}"
    );
}

/// A device on which the router of one of the layers with experts loses its weights after some steps: router number `router` of `all` in the
/// order of the layers.
fn poisoned(poison: Arc<AtomicBool>, (router, all, experts): (usize, usize, usize)) -> Box<dyn Backend> {
    let mut routed = 0;
    let launch: Launch = Box::new(move |inner, stream, op| {
        let poisons = routed % all == router && poison.load(Ordering::Relaxed);
        match op {
            Op::Linear(product) if product.weight.rows == experts && poisons => {
                inner.write_f32(product.weight, &vec![f32::NAN; product.weight.len()])?;
            }
            Op::Route(_) => routed += 1,
            _ => {}
        }
        inner.launch(stream, op)
    });
    Box::new(Device { inner: cpu(), launch })
}

/// On any rank, and with losses of routers or without: the step is skipped, and the warning names the first layer that is wrong.
#[test]
fn a_router_that_is_not_finite_skips_the_step_and_names_the_layer() {
    for sets in [&["train.micro_batch=2"][..], &["model.experts.balance=0", "model.experts.z_loss=0"]] {
        let layers = ["model.layers=5", "model.experts.layers=[1,3,4]", "parallel.data=ddp"];
        let sets = [sets, &layers].concat();
        let (run, poison) = (Run::new(false), Arc::new(AtomicBool::new(false)));
        let after = |step: u64| poison.store(step >= 5, Ordering::Relaxed);
        let backend = |rank: usize| match rank {
            // Poisons layer 3.
            1 => poisoned(Arc::clone(&poison), (1, 3, 4)),
            _ => cpu(),
        };
        let ended = run.watched(&mixture("switch", &sets), 2, (Some(7), &after), &backend);
        let records = ended.into_iter().map(Result::unwrap).next().unwrap();
        let warning = |r: &Record| if let Record::Warning(w) = r { Some(w.message.clone()) } else { None };
        let warnings: Vec<String> = records.iter().filter_map(warning).collect();
        let wanted = |step| {
            format!(
                "step {step}: gradient norm is NaN, and the router of layer 3 is not finite; the update was skipped"
            )
        };
        assert_eq!(warnings, [wanted(6), wanted(7)], "{sets:?}");
    }
}
