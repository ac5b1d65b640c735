//! Small runs: every optimizer learns, and a run that was stopped ends with the bits of one that was not, spikes included.

use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::OptimizerChoice;
use bessemer_recipe::{Recipe, SpikeAction};
use bessemer_runlog::{Record, Step};
use bessemer_train::{Observer, Outcome, TrainError, Trainer, TrainerInput, checkpoints};
use bessemer_units::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::place;
use crate::run::Run;

use place::{STEPS, data, recipe};

/// Collects steps and warnings, and requests a stop after the step of a given number.
struct Watch<'a> {
    steps: &'a mut Vec<Step>,
    warnings: &'a mut Vec<String>,
    stop_after: Option<u64>,
    stop: &'a AtomicBool,
}

impl Observer for Watch<'_> {
    fn record(&mut self, record: &Record) {
        match record {
            Record::Step(step) => {
                self.stop.fetch_or(self.stop_after == Some(step.step), Ordering::Relaxed);
                self.steps.push(step.clone());
            }
            Record::Warning(warning) => self.warnings.push(warning.message.clone()),
            _ => {}
        }
    }
    fn message(&mut self, _: &str) {}
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
}

/// Results of a run: losses by step, warnings, and the bytes of the last checkpoint's tensors.
#[derive(Debug, PartialEq)]
struct Result {
    losses: Vec<(u64, u64)>,
    z_losses: Vec<Option<f64>>,
    loss_scales: Vec<Option<f64>>,
    warnings: Vec<String>,
    tensors: Vec<u8>,
}

/// Trains to the end, in sessions that stop after the given steps.
fn train(recipe: &Recipe, noisy: bool, stops: &[u64], threads: usize) -> Result {
    let dir = tempfile::tempdir().unwrap();
    let (tokenizer, set) = data(&dir.path().join("shards"), "train", noisy);
    let (mut steps, mut warnings) = (Vec::new(), Vec::new());
    for stop in stops.iter().map(|s| Some(*s)).chain([None]) {
        let input = TrainerInput {
            recipe: recipe.clone(),
            recipe_text: String::new(),
            tokenizer: Arc::clone(&tokenizer),
            train: Arc::clone(&set),
            validation: None,
            former: None,
            tasks: Default::default(),
            directory: bessemer_durable::ConfinedDir::open(dir.path()).unwrap(),
            memory_available: Bytes(1 << 30),
            peak: None,
        };
        let backend = CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() }).unwrap();
        let mut trainer = Trainer::new(input, Box::new(backend)).unwrap();
        let flag = AtomicBool::new(false);
        let mut watch = Watch { steps: &mut steps, warnings: &mut warnings, stop_after: stop, stop: &flag };
        let outcome = trainer.run(&mut watch, &flag).unwrap();
        assert_eq!(outcome == Outcome::Stopped, stop.is_some());
    }
    let last = dir.path().join(format!("checkpoints/step-{STEPS:08}"));
    let mut files: Vec<_> = std::fs::read_dir(&last)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    let tensors = files.iter().flat_map(|f| std::fs::read(f).unwrap()).collect();
    Result {
        losses: steps.iter().map(|s| (s.step, s.loss.to_bits())).collect(),
        z_losses: steps.iter().map(|s| s.losses.get("z_loss").copied()).collect(),
        loss_scales: steps.iter().map(|s| s.loss_scale).collect(),
        warnings,
        tensors,
    }
}

#[test]
fn every_optimizer_learns_and_goes_on_exactly() {
    for optimizer in ["adamw", "sgd", "adafactor", "lion", "muon", "kfac"] {
        let choice = format!("optim.optimizer={optimizer}");
        let lr = match optimizer {
            "sgd" => "optim.lr=0.3",
            "lion" => "optim.lr=3e-3",
            "adafactor" => "optim.lr=0.1",
            _ => "optim.lr=1e-2",
        };
        let sets = [&choice, lr, "optim.kfac.lr=0.05", "optim.kfac.inverse_every=5", "train.z_loss=1e-4"];
        let recipe = recipe(&sets);
        assert_ne!(recipe.optim.optimizer == OptimizerChoice::AdamW, optimizer != "adamw");
        let whole = train(&recipe, false, &[], 1);
        // 1e-4 of the square of a few nats.
        assert!(whole.z_losses.iter().all(|z| (1e-5..1e-1).contains(&z.unwrap())), "{:?}", whole.z_losses);
        let mean =
            |part: &[(u64, u64)]| part.iter().map(|s| f64::from_bits(s.1)).sum::<f64>() / part.len() as f64;
        let (first, last) = (mean(&whole.losses[..3]), mean(&whole.losses[21..]));
        assert!(last < first - 0.3, "{optimizer}: {first} to {last}");
        // After 13 steps K-FAC's inverses are older than its means.
        let parts = train(&recipe, false, &[3, 13], 2);
        assert!(whole == parts, "{optimizer}: other bits after stops");
    }
}

/// Sizes of the tensors of a checkpoint are those of f32 parameters and AdamW's two moments, whatever was trained with.
#[test]
fn short_parameters_learn_and_go_on_exactly() {
    let full = train(&recipe(&[]), false, &[], 1);
    assert!(full.loss_scales.iter().all(Option::is_none));
    for (weights, gradients) in [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16")] {
        for optimizer in ["adamw", "sgd", "lion"] {
            let sets = [
                format!("train.weights={weights}"),
                format!("train.gradients={gradients}"),
                format!("optim.optimizer={optimizer}"),
            ];
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            let recipe = recipe(&sets);
            let whole = train(&recipe, false, &[], 1);
            assert!(whole == train(&recipe, false, &[3, 13], 2), "{sets:?}: other bits after stops");
            if optimizer == "adamw" {
                assert_eq!(whole.tensors.len(), full.tensors.len(), "{sets:?}");
                for (found, wanted) in whole.losses.iter().zip(&full.losses) {
                    let (found, wanted) = (f64::from_bits(found.1), f64::from_bits(wanted.1));
                    assert!((found - wanted).abs() < 0.05 * wanted, "{sets:?}: {found} for {wanted}");
                }
            }
        }
    }
}

/// Checkpoints hold the values of the codes in f32: they have the size of those of a run in f32, and a run that was stopped
/// continues with the same bits.
#[test]
fn moments_in_8_bits_learn_and_go_on_exactly() {
    let with = |state: &str| recipe(&["model.width=64", state, "optim.lr=3e-3"]);
    let full = train(&with("optim.state=f32"), false, &[], 1);
    for state in ["optim.state=int8", "optim.state=int8-embeddings"] {
        let whole = train(&with(state), false, &[], 1);
        assert!(whole == train(&with(state), false, &[3, 13], 2), "{state}: other bits after stops");
        assert_eq!(whole.tensors.len(), full.tensors.len());
        assert_ne!(whole.losses, full.losses);
        for (found, wanted) in whole.losses.iter().zip(&full.losses) {
            let (found, wanted) = (f64::from_bits(found.1), f64::from_bits(wanted.1));
            assert!((found - wanted).abs() < 0.02 * wanted, "{state}: {found} for {wanted}");
        }
    }
}

#[test]
fn compressed_activations_learn_and_go_on_exactly() {
    let full = train(&recipe(&["train.recompute=none"]), false, &[], 1);
    for form in ["bf16", "int8"] {
        let with = recipe(&["train.recompute=none", &format!("train.compress={form}")]);
        let whole = train(&with, false, &[], 1);
        assert!(whole == train(&with, false, &[3, 13], 2), "{form}: other bits after stops");
        assert_eq!(whole.losses[0], full.losses[0]);
        assert_ne!(whole.losses, full.losses);
        for (found, wanted) in whole.losses.iter().zip(&full.losses) {
            let (found, wanted) = (f64::from_bits(found.1), f64::from_bits(wanted.1));
            assert!((found - wanted).abs() < 0.02 * wanted, "{form}: {found} for {wanted}");
        }
    }
}

/// The bits of a run whose activations stay, whether or not it was stopped; the file never has a name.
#[test]
fn offloaded_activations_change_no_bit_and_leave_no_file() {
    let full = train(&recipe(&[]), false, &[], 1);
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = format!("train.offload_dir={}", elsewhere.path().display());
    for sets in [&["train.offload=disk"][..], &["train.offload=disk", "train.offload_layers=1", &folder]] {
        assert!(full == train(&recipe(sets), false, &[], 1), "{sets:?}");
        assert!(full == train(&recipe(sets), false, &[3, 13], 2), "{sets:?}: other bits after stops");
    }
    assert!(std::fs::read_dir(elsewhere.path()).unwrap().next().is_none());
}

#[test]
fn a_missing_folder_for_offloaded_activations_ends_a_run_before_its_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let (tokenizer, train) = data(&dir.path().join("shards"), "train", false);
    let missing = dir.path().join("missing");
    let folder = format!("train.offload_dir={}", missing.display());
    let input = TrainerInput {
        recipe: recipe(&["train.offload=disk", &folder]),
        recipe_text: String::new(),
        tokenizer,
        train,
        validation: None,
        former: None,
        tasks: Default::default(),
        directory: bessemer_durable::ConfinedDir::open(dir.path()).unwrap(),
        memory_available: Bytes(1 << 30),
        peak: None,
    };
    let e = Trainer::new(input, crate::run::cpu()).err().unwrap();
    assert!(matches!(&e, TrainError::Offload { bytes, .. } if bytes.0 > 0), "{e}");
    let text = e.to_string();
    assert!(text.contains("missing") && text.contains("train.offload_dir"), "{text}");
}

#[test]
fn a_loss_scale_falls_until_gradients_fit_grows_again_and_is_restored() {
    let sets = [
        "train.weights=f16",
        "train.gradients=f16",
        "train.loss_scale.value=67108864",
        "train.loss_scale.growth_interval=4",
    ];
    let recipe = recipe(&sets);
    let whole = train(&recipe, false, &[], 1);
    let scales: Vec<f64> = whole.loss_scales.iter().map(|s| s.unwrap()).collect();
    assert_eq!(scales[..3], [67_108_864.0, 67_108_864.0, 33_554_432.0], "{scales:?}");
    assert!(scales.windows(2).any(|w| w[1] == 2.0 * w[0]), "{scales:?}");
    let overflows = whole.warnings.iter().filter(|w| w.contains("overflowed at loss scale")).count();
    assert!(overflows >= 3, "{:?}", whole.warnings);
    assert!(f64::from_bits(whole.losses[23].1) < f64::from_bits(whole.losses[0].1));
    // Stopped while it falls, after an overflow that changed nothing, and while clean steps are counted.
    let parts = train(&recipe, false, &[1, 3, 14, 15], 2);
    assert!(whole == parts, "{scales:?}\n{:?}", parts.loss_scales);
}

#[test]
fn a_constant_loss_scale_of_a_power_of_two_changes_no_bit_in_f32() {
    let constant = ["train.loss_scale.mode=constant", "train.loss_scale.value=1024"];
    let (plain, scaled) = (train(&recipe(&[]), false, &[], 1), train(&recipe(&constant), false, &[], 1));
    assert!(scaled.loss_scales.iter().all(|s| *s == Some(1024.0)));
    assert_eq!(plain.losses, scaled.losses);
}

#[test]
fn spikes_are_skipped_alike_whether_or_not_a_run_was_stopped() {
    let sets = ["train.spike_action=skip", "train.spike_sigma=1.5", "train.spike_window=8"];
    let recipe = recipe(&sets);
    assert_eq!(recipe.train.spike_action, SpikeAction::Skip);
    let whole = train(&recipe, true, &[], 1);
    let skipped = whole.warnings.iter().filter(|w| w.contains("the update was skipped")).count();
    assert!(skipped >= 2, "{:?}", whole.warnings);
    assert_eq!(whole.losses.len() as u64, STEPS, "a skipped step is a step");
    assert!(whole == train(&recipe, true, &[9, 10, 17], 1));
    let off = train(&place::recipe(&[]), true, &[], 1);
    assert!(off.warnings.is_empty() && off.tensors != whole.tensors);
}

#[test]
fn a_run_goes_back_to_a_checkpoint_and_on_behind_the_spike() {
    let sets = ["train.spike_action=rewind", "train.spike_sigma=1.5", "train.spike_window=8"];
    let recipe = recipe(&sets);
    let whole = train(&recipe, true, &[], 1);
    let back = whole.warnings.iter().filter(|w| w.contains("rolled back to step")).count();
    assert!(back >= 1, "{:?}", whole.warnings);
    let parts = train(&recipe, true, &[9, 12, 17], 2);
    assert!(whole == parts, "{:?}\n{:?}", whole.warnings, parts.warnings);
}

/// Warnings about the log.
fn warnings(records: &[Record]) -> Vec<String> {
    let warning = |r: &Record| if let Record::Warning(w) = r { Some(w.message.clone()) } else { None };
    records.iter().filter_map(warning).filter(|text| text.contains("metrics.jsonl")).collect()
}

/// Records of the log in a directory: the name of its run, and the steps.
fn logged(directory: &std::path::Path) -> (Vec<String>, Vec<u64>) {
    let (mut names, mut steps) = (Vec::new(), Vec::new());
    for record in bessemer_runlog::read(directory).unwrap().records {
        match record {
            Record::RunId(run) => names.push(run.id),
            Record::Step(step) => steps.push(step.step),
            _ => {}
        }
    }
    (names, steps)
}

#[test]
fn a_log_is_held_against_the_checkpoint_that_is_resumed() {
    let of = |steps: u64| recipe(&[&format!("train.steps={steps}"), "eval.every_steps=0"]);
    let (run, other) = (Run::new(false), Run::new(false));
    run.train(&of(4), 1, None);
    other.train(&of(9), 1, None);
    let log = run.dir.join(bessemer_runlog::FILE);
    let (names, steps) = logged(&run.dir);
    assert!(names.len() == 1 && steps == [1, 2, 3, 4], "{names:?} {steps:?}");
    let state = checkpoints(&run.dir).latest_valid().unwrap().unwrap().loaded.into_manifest().state;
    assert_eq!(state["run"], names[0].as_str());
    assert_eq!(warnings(&run.train(&of(5), 1, None)), [""; 0]);

    // The log of another run is moved aside whole, and another one begins.
    let foreign = std::fs::read(other.dir.join(bessemer_runlog::FILE)).unwrap();
    std::fs::write(&log, &foreign).unwrap();
    let said = warnings(&run.train(&of(6), 1, None));
    assert!(said.len() == 1 && said[0].contains("is the log of another run"), "{said:?}");
    assert!(said[0].contains("metrics.other-1.jsonl"), "{said:?}");
    assert!(std::fs::read(run.dir.join("metrics.other-1.jsonl")).unwrap() == foreign);
    assert_eq!(logged(&run.dir), (names.clone(), vec![6]));
    assert_eq!(warnings(&run.train(&of(7), 1, None)), [""; 0]);

    // A log that was cut short continues after a gap that is recorded in it.
    let text = std::fs::read_to_string(&log).unwrap();
    let cut: String = text.split_inclusive('\n').filter(|line| !line.contains("\"step\":7,")).collect();
    std::fs::write(&log, cut).unwrap();
    let said = warnings(&run.train(&of(8), 1, None));
    assert!(
        said.len() == 1 && said[0].contains("ends at step 6, before the checkpoint of step 7"),
        "{said:?}"
    );
    assert!(std::fs::read_to_string(&log).unwrap().contains("ends at step 6, before"));
    assert_eq!(logged(&run.dir), (names.clone(), vec![6, 8]));

    // A log that is gone, and one of an earlier version, which names no run.
    std::fs::remove_file(&log).unwrap();
    let said = warnings(&run.train(&of(9), 1, None));
    assert!(said.len() == 1 && said[0].contains("ends at step 0"), "{said:?}");
    assert_eq!(logged(&run.dir), (names.clone(), vec![9]));
    let text = std::fs::read_to_string(&log).unwrap();
    let unnamed: String = text.split_inclusive('\n').filter(|line| !line.contains("\"run_id\"")).collect();
    std::fs::write(&log, unnamed).unwrap();
    assert_eq!(warnings(&run.train(&of(10), 1, None)), [""; 0]);
    assert_eq!(logged(&run.dir), (names, vec![9, 10]));
}
