//! Every kind of layout gives the losses of one rank.

use crate::drift::Drift;
use crate::instruction_set;
use bessemer_arch::{Annotations, ParamLayout};
use bessemer_collectives::ThreadSettings;
use bessemer_optim::{OptimConfig, OptimizerChoice, StateChoice};
use bessemer_parallel::{ContextSharing, ParallelConfig, Stage};
use bessemer_parity::{
    Bounds, Comparison, Layout, ParityJob, Reference, References, SYNCHRONOUS, Style, Trajectory,
    asynchronous, contexts, grids, in_int8, in_process, matrix, pipelines, placed, stale_reference,
};
use bessemer_runtime::ActivationConfig;
use bessemer_tensor::Backend;
use bessemer_test_tier::{either, part};
use bessemer_train::TrainError;
use bessemer_units::{Compression, ParamDType, ParamStorage, Recompute, ReduceDType, Storage};

const SEQ: usize = 16;
/// Sequences of a step.
const SEQUENCES: usize = 16;

fn backend() -> Result<Box<dyn Backend>, TrainError> {
    Ok(Box::new(instruction_set::cpu(1)))
}

pub(crate) fn job(style: Style, steps: u64) -> ParityJob {
    ParityJob {
        model: style.model(SEQ).expect("a model that fits together"),
        optim: OptimConfig { lr: 1e-3, ..OptimConfig::default() },
        activations: ActivationConfig { in_gradients: true, ..ActivationConfig::default() },
        sequences: SEQUENCES,
        seq: SEQ,
        steps,
        seed: 3,
    }
}

fn check(style: Style, layouts: &[Layout], steps: u64) {
    check_job(style, &job(style, steps), layouts);
}

/// Layouts in which this model is trained: in turn with the other one, all of them in a soak.
fn in_turn(style: Style, layouts: impl IntoIterator<Item = Layout>) -> Vec<Layout> {
    let turn = Style::ALL.iter().position(|s| *s == style).expect("a model of the list");
    part(layouts, turn, Style::ALL.len())
}

/// What is wrong with a layout of a few steps, in words: beyond the bounds of any layout, or of rounding in so few steps.
pub(crate) fn problem(job: &ParityJob, found: &Trajectory, reference: &Reference) -> Option<String> {
    let Reference { trajectory: reference, bounds, .. } = reference;
    let c = Comparison::new(found, reference, bounds);
    if c.problem.is_some() {
        return c.problem;
    }
    // A few steps drift far less than the bound of a long run.
    if c.any_loss.0 > 1e-6 {
        return Some(format!("loss of step {} {:.1e} apart", c.any_loss.1, c.any_loss.0));
    }
    // Muon and K-FAC leave what is no hidden matrix to AdamW.
    let adam = |tensor: &str| match job.optim.optimizer {
        OptimizerChoice::AdamW => true,
        OptimizerChoice::Adafactor => false,
        _ => !tensor.starts_with("layers.") || tensor.contains("norm") || !tensor.ends_with("weight"),
    };
    let drift = Drift::new(&job.optim, reference, bounds).problem(found, reference, &adam);
    if drift.is_some() {
        return drift;
    }
    // The others scale a matrix as a whole, which leaves it as exact as its gradient: 9e-7 of the largest element and at
    // most 1.1e-6 of the norm, measured with every instruction set. Biases take a step as AdamW's, and those of keys have
    // no gradient but rounding.
    found.params.iter().zip(&reference.params).find_map(|((tensor, a), (_, b))| {
        let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let apart = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied());
        let fine = adam(tensor) || tensor.ends_with("bias") || apart < 1e-5;
        (!fine).then(|| format!("{tensor} {apart:.1e} apart"))
    })
}

fn check_job(style: Style, job: &ParityJob, layouts: &[Layout]) {
    let settings = ThreadSettings::default();
    let mut references = References::new(&settings, &backend);
    for layout in layouts {
        let reference = references.of(job, layout).expect("the reference runs");
        assert!(reference.trajectory.losses.iter().all(|l| l.is_finite()));
        let found = in_process(job, layout, &settings, &backend).expect("the layout runs");
        let name = format!("{:?} {} {}", job.optim.optimizer, style.name(), layout.name);
        let rounded = layout.types.has_masters() || layout.parallel.reduce_dtype == ReduceDType::Int8;
        let problem = match rounded {
            true => Comparison::new(&found, &reference.trajectory, &reference.bounds).problem,
            false => problem(job, &found, reference),
        };
        assert_eq!(problem, None, "{name}");
    }
}

#[test]
fn data_parallel_layouts_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let plain = |l: &Layout| l.parallel.tensor == 1 && !l.types.has_masters();
        let layouts = in_turn(style, matrix(4).into_iter().filter(plain));
        assert!(layouts.len() > 5);
        check(style, &layouts, either(2, 5));
    }
}

#[test]
fn tensor_parallel_layouts_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let cut = |l: &Layout| l.parallel.tensor > 1 && !l.types.has_masters();
        let layouts = in_turn(style, matrix(4).into_iter().filter(cut));
        assert!(layouts.len() > 5);
        check(style, &layouts, either(2, 5));
    }
}

/// Gradients that travel in 8 bits, within the bounds of their code.
#[test]
fn gradients_in_8_bits_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let layouts = in_turn(style, in_int8(4, SEQUENCES));
        assert!(layouts.len() > 6);
        for layout in layouts {
            let model = layout.model(style, SEQ).expect("a model that fits together");
            let optim = layout.optim(&job(style, 1).optim);
            check_job(style, &ParityJob { model, optim, ..job(style, either(3, 5)) }, &[layout]);
        }
    }
    // Parts of ranks that own whole matrices are uneven.
    let optimizers = [OptimizerChoice::Muon, OptimizerChoice::Adafactor, OptimizerChoice::Kfac];
    for (turn, optimizer) in optimizers.into_iter().enumerate() {
        let optim = OptimConfig { optimizer, lr: 1e-3, ..OptimConfig::default() };
        let goes = |l: &Layout| l.goes_with(optimizer) && l.parallel.pipeline == 1 && !l.types.has_masters();
        let layouts = part(in_int8(4, SEQUENCES).into_iter().filter(goes), turn, optimizers.len());
        assert!(layouts.len() > 2);
        check_job(Style::Llama, &ParityJob { optim, ..job(Style::Llama, 4) }, &layouts);
    }
}

/// On one rank no gradient travels, and nothing is rounded.
#[test]
fn one_rank_has_the_same_bits_whatever_travels() {
    let settings = ThreadSettings::default();
    let job = job(Style::Llama, 3);
    let stored = in_process(&job, &Layout::single(), &settings, &backend).expect("it runs");
    let mut layout = Layout::single();
    layout.parallel.reduce_dtype = ReduceDType::Int8;
    let int8 = in_process(&job, &layout, &settings, &backend).expect("it runs");
    assert!(int8 == stored);
}

/// Wherever ranks lie, and however many pieces travel, a rank computes the same.
#[test]
fn orders_of_axes_and_pieces_in_flight_change_no_loss() {
    for layout in placed(8) {
        let model = layout.model(Style::Llama, SEQ).expect("a model that fits together");
        check_job(Style::Llama, &ParityJob { model, ..job(Style::Llama, 3) }, &[layout]);
    }
    let settings = ThreadSettings::default();
    let job = job(Style::Llama, 3);
    for (stage, copies) in [(Stage::Ddp, (2, 1)), (Stage::Zero2, (1, 2)), (Stage::Zero3, (1, 2))] {
        let with = |pieces| {
            let mut layout = Layout::of(stage, copies, (1, false), 2);
            layout.parallel.overlap = true;
            (layout.parallel.values_in_flight, layout.parallel.gradients_in_flight) = pieces;
            in_process(&job, &layout, &settings, &backend).expect("it runs")
        };
        let usual = with((2, 3));
        assert!(with((1, 1)) == usual && with((8, 16)) == usual, "{stage:?}");
    }
}

#[test]
fn ranks_that_share_sequences_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let sequences = either(SEQUENCES / 2, SEQUENCES);
        let mut layouts = contexts(4, sequences);
        // More ranks than the model has heads.
        let wide = contexts(16, 4).into_iter().filter(|l| l.ranks == 16 && l.parallel.context == 16);
        layouts.extend(part(wide, 0, 3));
        let layouts = in_turn(style, layouts);
        assert!(layouts.len() > 8);
        for layout in layouts {
            let model = layout.model(style, SEQ).expect("a model that fits together");
            let sequences = if layout.ranks == 16 { 4 } else { sequences };
            check_job(style, &ParityJob { model, sequences, ..job(style, either(2, 3)) }, &[layout]);
        }
    }
}

/// Moments in 8 bits over layouts. Blocks of 256 moments never lie on two data-parallel ranks, and sums are in the order of the ranks:
/// ZeRO has the bits of DDP. Without clipping, whose norm is summed over the ranks' parts. Tensor shards have blocks of their own, and
/// other numbers of micro-batches other sums, which the codes amplify: losses differ as two roundings of one run do, each as far from f32 as
/// that of one rank.
#[test]
fn moments_in_8_bits_give_the_losses_of_one_rank() {
    let settings = ThreadSettings::default();
    for (turn, style) in Style::ALL.into_iter().enumerate() {
        // Each model with one of the two in turn.
        for state in part([StateChoice::Int8, StateChoice::Int8Embeddings], turn, Style::ALL.len()) {
            let optim = OptimConfig { lr: 3e-3, clip: 0.0, ..OptimConfig::default() };
            let exact = ParityJob { optim: optim.clone(), ..job(style, 8) };
            let short = ParityJob { optim: OptimConfig { state, ..optim }, ..exact.clone() };
            let run = |job: &ParityJob, layout: &Layout| {
                in_process(job, layout, &settings, &backend).expect("the layout runs")
            };
            let line = (1, false);
            // From the second micro-batch on ZeRO-2 and 3 add what ranks have summed, DDP and ZeRO-1 sum what they have added.
            let same_sums = [(1, &[Stage::Zero1, Stage::Zero2, Stage::Zero3][..]), (2, &[Stage::Zero1])];
            for (accumulation, stages) in same_sums {
                let ddp = run(&short, &Layout::of(Stage::Ddp, (2, 1), line, accumulation));
                for stage in stages.iter().copied() {
                    let found = run(&short, &Layout::of(stage, (1, 2), line, accumulation));
                    let problem = Comparison::new(&found, &ddp, &Bounds::EXACT).problem;
                    assert_eq!(problem, None, "{stage:?}, {accumulation} micro-batches");
                }
            }
            let (one, in_f32) = (run(&short, &Layout::single()), run(&exact, &Layout::single()));
            let apart = |a: &Trajectory, b: &Trajectory| {
                let each = a.losses.iter().zip(&b.losses).map(|(a, b)| (a - b).abs() / b);
                each.fold(0.0, f64::max)
            };
            // The first two losses have seen no moment that was rounded.
            assert_eq!(one.losses[..2], in_f32.losses[..2]);
            let allowed = apart(&one, &in_f32);
            assert!((1e-7..1e-2).contains(&allowed), "{} {state:?}: {allowed}", style.name());
            let cut = |sequence| Layout::of(Stage::Zero1, (1, 2), (2, sequence), 2);
            let pipeline = Layout::of(Stage::Zero1, (1, 2), line, 1).pipelined("1f1b", 2, 4, &[]);
            for layout in [Layout::of(Stage::Ddp, (4, 1), line, 2), cut(false), cut(true), pipeline] {
                let found = apart(&run(&short, &layout), &one);
                eprintln!("{} {state:?} {}: {found:.1e}, f32 {allowed:.1e}", style.name(), layout.name);
                assert!(
                    found <= 3.0 * allowed,
                    "{} {}: {found}, allowed {allowed}",
                    style.name(),
                    layout.name
                );
            }
        }
    }
}

/// Compressed activations over layouts. Blocks lie within a row, so data parallelism, pipelines and shared sequences round what one rank
/// rounds, but for values that differ in their last bits. Tensor shards have blocks of their own. The first loss has read nothing that
/// was rounded.
#[test]
fn compressed_activations_give_the_losses_of_one_rank() {
    let settings = ThreadSettings::default();
    let run = |job: &ParityJob, layout: &Layout| {
        in_process(job, layout, &settings, &backend).expect("the layout runs")
    };
    for (turn, style) in Style::ALL.into_iter().enumerate() {
        let forms = [
            (Compression::Bf16, Recompute::Selective),
            (Compression::Int8, Recompute::Selective),
            (Compression::Int8, Recompute::Full),
        ];
        // Each model with some of them in turn.
        for (form, recompute) in part(forms, turn, Style::ALL.len()) {
            let activations = |compression: Compression| ActivationConfig {
                recompute: recompute.into(),
                compression: compression.into(),
                ..ActivationConfig::default()
            };
            let exact = ParityJob { activations: activations(Compression::None), ..job(style, 4) };
            let short = ParityJob { activations: activations(form), ..exact.clone() };
            let (one, stored) = (run(&short, &Layout::single()), run(&exact, &Layout::single()));
            assert_eq!(one.losses[0], stored.losses[0]);
            let unit = if form == Compression::Bf16 { 1.0 / 512.0 } else { 1.0 / 254.0 };
            let bounds = Bounds { any_loss: 1e-3, gradient: 16.0 * unit, ..Bounds::default() };
            let apart = Comparison::new(&one, &stored, &bounds);
            assert_eq!(apart.problem, None, "{} {form}", style.name());
            assert!(apart.gradient.is_some_and(|(worst, _)| worst > 1e-5));
            let (line, rows) = ((1, false), |sequence| Layout::of(Stage::Ddp, (1, 1), (2, sequence), 1));
            let rank_alone = [
                Layout::of(Stage::Ddp, (2, 1), line, 2),
                Layout::of(Stage::Zero3, (1, 2), line, 2),
                Layout::of(Stage::Ddp, (1, 1), line, SEQUENCES)
                    .sharing_sequences(2, ContextSharing::default()),
            ];
            for layout in rank_alone {
                let problem = Comparison::new(
                    &run(&short, &layout),
                    &one,
                    &Bounds { any_loss: 1e-4, gradient: unit, ..bounds },
                );
                assert_eq!(problem.problem, None, "{} {form} {}", style.name(), layout.name);
            }
            for layout in [rows(false), rows(true)] {
                let problem = Comparison::new(&run(&short, &layout), &one, &bounds).problem;
                assert_eq!(problem, None, "{} {form} {}", style.name(), layout.name);
            }
            // Fourteen thin layers instead of four.
            let layout = Layout::single().pipelined("zb-h1", 2, 4, &[]);
            let model = layout.model(style, SEQ).expect("a model that fits together");
            let deep = ParityJob { model, ..short.clone() };
            let bounds = Bounds { any_loss: 1e-4, gradient: unit, ..bounds };
            let problem =
                Comparison::new(&run(&deep, &layout), &run(&deep, &Layout::single()), &bounds).problem;
            assert_eq!(problem, None, "{} {form} {}", style.name(), layout.name);
        }
    }
}

#[test]
fn grids_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let sequences = either(SEQUENCES / 2, SEQUENCES);
        let layouts = in_turn(style, grids(8, sequences));
        assert!(layouts.len() > 6);
        for layout in layouts {
            let model = layout.model(style, SEQ).expect("a model that fits together");
            check_job(style, &ParityJob { model, sequences, ..job(style, either(2, 3)) }, &[layout]);
        }
    }
}

/// The layout with annotations, every one of them `layout`.
fn annotated(layout: &Layout, patterns: &[&str], to: ParamLayout) -> Layout {
    let annotate = Annotations(patterns.iter().map(|pattern| ((*pattern).to_owned(), to)).collect());
    let parallel = ParallelConfig { annotate, ..layout.parallel.clone() };
    Layout { name: format!("{}, {patterns:?} {to}", layout.name), parallel, ..layout.clone() }
}

#[test]
fn annotated_layouts_give_the_losses_of_one_rank() {
    let tables = |style: Style| {
        if style == Style::Gpt2 { &["embed.tokens"][..] } else { &["embed.tokens", "head.weight"] }
    };
    for style in Style::ALL {
        let mut layouts = Vec::new();
        for (stage, shard) in [(Stage::Ddp, 1), (Stage::Zero1, 2), (Stage::Zero2, 2), (Stage::Zero3, 2)] {
            let of = |sequence| Layout::of(stage, (1, shard), (2, sequence), 2);
            layouts.push(annotated(&of(false), tables(style), ParamLayout::Replicate));
            layouts.push(annotated(&of(true), &["layers.*.mlp.*"], ParamLayout::Replicate));
            layouts.push(annotated(
                &of(false),
                &["layers.1.attention.out.weight", "layers.2.mlp.*"],
                ParamLayout::Replicate,
            ));
        }
        if style == Style::Llama {
            // The loss does not read the table: each rank looks its rows up.
            let rows = Layout::of(Stage::Zero3, (1, 2), (2, true), 2);
            layouts.push(annotated(&rows, &["embed.tokens"], ParamLayout::Replicate));
        }
        layouts.push(annotated(
            &Layout::of(Stage::Ddp, (1, 1), (4, false), 1),
            &["*"],
            ParamLayout::Replicate,
        ));
        layouts.push(annotated(
            &Layout::of(Stage::Ddp, (1, 1), (4, true), 1),
            &["layers.0.mlp.*"],
            ParamLayout::Replicate,
        ));
        layouts.push(annotated(
            &Layout::of(Stage::Ddp, (1, 1), (2, true), 1),
            &["layers.*.mlp.down.weight"],
            ParamLayout::Columns,
        ));
        check(style, &in_turn(style, layouts), either(2, 5));
        let mut job = job(style, either(2, 5));
        for optimizer in [OptimizerChoice::Muon, OptimizerChoice::Adafactor] {
            job.optim.optimizer = optimizer;
            let of = |stage| Layout::of(stage, (1, if stage == Stage::Ddp { 1 } else { 2 }), (2, false), 2);
            let patterns = ["layers.0.attention.qkv.weight", "layers.1.mlp.*", "embed.tokens"];
            let layouts = [Stage::Ddp, Stage::Zero3]
                .map(|stage| annotated(&of(stage), &patterns, ParamLayout::Replicate));
            check_job(style, &job, &layouts);
        }
        let job = ParityJob {
            model: style.deep_model(SEQ).expect("a model that fits together"),
            ..self::job(style, 4)
        };
        let layouts = ["1f1b", "zb-h1", "zb-v"].map(|schedule| {
            let layout = Layout::of(Stage::Ddp, (1, 1), (2, true), 1).pipelined(schedule, 2, 4, &[]);
            annotated(&layout, &["layers.*.mlp.*"], ParamLayout::Replicate)
        });
        check_job(style, &job, &layouts);
    }
}

/// Optimizers that make an update from a whole matrix: every matrix has one owner on the shard axis, and is gathered
/// over the tensor axis.
fn whole_matrices(optimizer: OptimizerChoice) {
    for style in Style::ALL {
        // An inverse is used in two steps, and made anew in the third.
        let mut job = job(style, either(3, 5));
        job.optim.optimizer = optimizer;
        job.optim.kfac.inverse_every = 2;
        let steps = |l: &Layout| l.types.gradients == ParamDType::F32 && optimizer != OptimizerChoice::Kfac;
        let mut layouts: Vec<_> = matrix(4)
            .into_iter()
            .filter(|l| l.parallel.tensor < 4 && l.accumulation == 2)
            .filter(|l| l.ranks == 4 || l.parallel.tensor > 1)
            .filter(|l| !l.types.has_masters() || steps(l))
            .collect();
        layouts.sort_by_key(|l| l.types.weights);
        let layouts = in_turn(style, layouts);
        assert!(layouts.len() > 5);
        check_job(style, &job, &layouts);
    }
}

#[test]
fn muon_gives_the_losses_of_one_rank() {
    whole_matrices(OptimizerChoice::Muon);
}

#[test]
fn adafactor_gives_the_losses_of_one_rank() {
    whole_matrices(OptimizerChoice::Adafactor);
}

#[test]
fn kfac_gives_the_losses_of_one_rank() {
    whole_matrices(OptimizerChoice::Kfac);
}

#[test]
fn layouts_with_bf16_parameters_give_the_losses_of_one_rank_with_them() {
    for style in Style::ALL {
        let mut layouts: Vec<_> = matrix(4).into_iter().filter(|l| l.types.has_masters()).collect();
        layouts.sort_by_key(|l| l.types.gradients);
        let layouts = in_turn(style, layouts);
        assert!(layouts.len() >= 4 && layouts.iter().any(|l| l.parallel.tensor > 1));
        check(style, &layouts, either(4, 8));
    }
}

/// Every schedule with a flush on two stages' ranks, and some of what goes with them; the rest is tried by the tests of
/// `parallel` and by `bessemer parity`.
#[test]
fn pipelines_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let job = ParityJob {
            model: style.deep_model(SEQ).expect("a model that fits together"),
            ..job(style, either(2, 4))
        };
        let all = pipelines(8);
        let layouts: Vec<_> = SYNCHRONOUS
            .iter()
            .flat_map(|kind| all.iter().filter(|l| l.parallel.schedule == *kind && l.ranks == 2).take(1))
            .chain(all.iter().filter(|l| l.parallel.schedule == "zb-v" && l.ranks == 8 && l.data_ranks() > 1))
            .chain(all.iter().filter(|l| !l.parallel.stages.is_empty()))
            .cloned()
            .collect();
        assert!(layouts.len() > SYNCHRONOUS.len() + 3, "{}", layouts.len());
        check_job(style, &job, &in_turn(style, layouts));
    }
}

/// Losses and last parameters of asynchronous schedules are those of one process that reads weights as old, bit by bit; with
/// layers that are cut over ranks, within the bounds of any layout.
fn stale(layouts: &[Layout], mut job: ParityJob) {
    let settings = ThreadSettings::default();
    for style in Style::ALL {
        let mut references = References::new(&settings, &backend);
        for layout in &in_turn(style, layouts.iter().cloned()) {
            job.model = layout.model(style, SEQ).expect("a model that fits together");
            job.optim = layout.optim(&job.optim);
            let reference = references.of(&job, layout).expect("the reference runs");
            let exact = layout.parallel.tensor == 1;
            assert_eq!(reference.bounds == Bounds::EXACT, exact, "{}", layout.name);
            let found = in_process(&job, layout, &settings, &backend).expect("the layout runs");
            let c = Comparison::new(&found, &reference.trajectory, &reference.bounds);
            let name = format!("{:?} {} {}", job.optim.optimizer, style.name(), layout.name);
            assert_eq!(c.problem, None, "{name}");
            assert!(c.any_loss.0 < 1e-6 && c.gradient.is_none(), "{name}: {:?}", c.any_loss);
            let old = reference.staleness.expect("an asynchronous schedule");
            let twice = layout.parallel.schedule == "pipedream-2bw";
            assert!(
                old > 0 && (old == 1 || !twice) && old < layout.parallel.pipeline as usize,
                "{name}: {old}"
            );
        }
    }
}

#[test]
fn asynchronous_schedules_have_the_bits_of_one_process_with_weights_as_old() {
    // A whole window and a part of one.
    let mut layouts = asynchronous(4);
    assert!(layouts.iter().any(|l| l.parallel.stage == Stage::Zero1) && layouts.len() > 10);
    for (every, layers) in [(1, &[][..]), (2, &[2, 9, 3, 0])] {
        let mut layout = Layout::single().pipelined("pipedream", 4, every, layers);
        layout.parallel.window = 6;
        layouts.push(layout);
    }
    stale(&layouts, job(Style::Llama, 9));
    let few: Vec<_> = layouts.into_iter().filter(|l| l.ranks == 2).collect();
    for optimizer in [OptimizerChoice::Muon, OptimizerChoice::Adafactor] {
        let mut job = job(Style::Llama, 3);
        job.optim.optimizer = optimizer;
        stale(&few, job);
    }
}

/// The reference sees how old weights are: those of another schedule are another run, and a pipeline without a flush that
/// waits for every update is none.
#[test]
fn another_staleness_is_another_run() {
    let mut cpu = backend().expect("a processor");
    let mut of = |kind: &str, every: usize, window: u64| {
        let mut layout = Layout::single().pipelined(kind, 4, every, &[]);
        layout.parallel.window = window;
        let model = layout.model(Style::Gpt2, SEQ).expect("a model that fits together");
        let job = job(Style::Gpt2, 8);
        let job = ParityJob { model, optim: layout.optim(&job.optim), ..job };
        stale_reference(&mut *cpu, &job, &layout).expect("the reference runs")
    };
    let (one, two, none) = (of("pipedream", 4, 8), of("pipedream-2bw", 4, 8), of("pipedream-2bw", 4, 1));
    assert_eq!((two.1, none.1), (1, 0));
    for (a, b) in [(&one, &two), (&two, &none)] {
        assert_eq!(a.0.losses[0], b.0.losses[0]);
        assert_ne!(a.0.losses, b.0.losses);
    }
    let bf16 = Layout::single().pipelined("pipedream", 2, 2, &[]);
    let bf16 = bf16.with_types(ParamStorage::weights(ParamDType::Bf16));
    let refused = stale_reference(&mut *cpu, &job(Style::Llama, 2), &bf16).map(drop);
    assert!(refused.is_err_and(|e| e.to_string().contains("in f32")));
}

/// Rows that travel in pieces beside the products have the bits of rows that wait. 256 rows are four pieces.
#[test]
fn overlap_over_the_tensor_axis_changes_no_bit() {
    for style in Style::ALL {
        for storage in [Storage::F32, Storage::Bf16] {
            let mut job = job(style, 3);
            job.activations.storage = storage;
            if storage == Storage::F32 {
                // Gathers for itself in between.
                job.optim.optimizer = OptimizerChoice::Kfac;
            }
            for sizes in [(2, false), (2, true), (4, true)] {
                let mut layout = Layout::of(Stage::Ddp, (1, 1), sizes, 1);
                let mut run = |overlap| {
                    layout.parallel.overlap = overlap;
                    in_process(&job, &layout, &ThreadSettings::default(), &backend).expect("the layout runs")
                };
                let (waiting, travelling) = (run(false), run(true));
                assert!(waiting == travelling, "{} {storage:?} {sizes:?}", style.name());
            }
        }
    }
}
