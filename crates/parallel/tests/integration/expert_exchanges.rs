//! Shadows of experts and exchanges in pieces: the bits of whole exchanges without shadows, and the bytes of the formulas.

use crate::experts::{
    folded_over_context, folded_over_tensor, gradients, mixture, on_ranks, ranks, worker_gradients,
};
use crate::pipelines::{Done, Layout, pipelined, train};
use bessemer_arch::{Experts, Model, SharedExpert};
use bessemer_collectives::Communicator;
use bessemer_fixture::SEQ;
use bessemer_mesh::ContextMethod;
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job, ParallelConfig, ParallelError, Plan, Stage, Worker};
use bessemer_program::{ByCounts, Collective, Node, Phase};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext, TokenBatch};
use bessemer_schedule::Kind;
use bessemer_units::{ParamStorage, Recompute, Storage};

/// Shadows that are chosen wherever they lower the most rows of a rank.
pub(crate) fn shadowed(config: ParallelConfig, shadows: u64) -> ParallelConfig {
    ParallelConfig { shadows, shadow_flops: 1e6, shadow_bandwidth: 1e15, ..config }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Losses, evaluations and trained parameters of two runs are the same to the bit.
fn same_bits(found: &Done, wanted: &Done, of: &str) {
    assert_eq!(found.losses, wanted.losses, "{of}");
    assert_eq!(found.evaluated, wanted.evaluated, "{of}");
    for ((name, found), (_, wanted)) in found.params.iter().zip(&wanted.params) {
        assert!(bits(found) == bits(wanted), "{of}: {name}");
    }
}

/// Losses, gradients and trained parameters keep their bits with shadows of any number.
#[test]
fn shadows_change_no_bit() {
    // Shadows are chosen: other bytes are sent.
    let sent = |shadows| {
        let config = shadowed(ParallelConfig { experts: 2, ..ParallelConfig::default() }, shadows);
        on_ranks(&mixture(true), &config, (2, 8), |cpu, worker, ledger| {
            worker_gradients(cpu, worker, 8, ledger).2
        })
    };
    assert_ne!(sent(0), sent(4));
    let base = ParallelConfig::default;
    let experts = |experts| ParallelConfig { experts, ..base() };
    let tensor = ParallelConfig { tensor: 2.into(), ..experts(2) };
    let zero = |stage, of: ParallelConfig| ParallelConfig { stage, ..of };
    let full = |layout: Layout| {
        let mut layout = layout;
        layout.activations.recompute = Recompute::Full.into();
        layout
    };
    let staged = |kind, stage| {
        let mut layout = pipelined(kind, 2, 4).with_data(2, stage, 0);
        layout.config.experts = 2;
        layout
    };
    let mut bf16 = ranks(2, experts(2));
    bf16.activations.storage = Storage::Bf16;
    let layouts = [
        ranks(2, experts(2)),
        ranks(4, zero(Stage::Zero3, experts(4))),
        ranks(4, zero(Stage::Zero2, experts(2))),
        ranks(4, tensor.clone()),
        ranks(4, ParallelConfig { sequence: true, ..tensor.clone() }),
        Layout { micro_batches: 4, ..ranks(4, ParallelConfig { context: 2, ..experts(2) }) },
        ranks(4, folded_over_tensor(4)),
        Layout { micro_batches: 4, ..ranks(4, folded_over_context(4)) },
        full(ranks(2, experts(2))),
        bf16,
        staged(Kind::ZbH1, Stage::Ddp),
        staged(Kind::Interleaved, Stage::Zero1),
    ];
    for (number, layout) in layouts.iter().enumerate() {
        let trained = |shadows| {
            let config = shadowed(layout.config.clone(), shadows);
            train(&mixture(true), &Layout { config, ..layout.clone() }, 8).swap_remove(0)
        };
        let wanted = trained(0);
        for shadows in [1, 4] {
            let found = trained(shadows);
            same_bits(&found, &wanted, &format!("layout {number}, {shadows} shadows"));
        }
    }
}

/// All tokens choose the first two experts: with shadows of both no row travels, but matrices to all ranks and gradients to their owners.
#[test]
fn shadows_have_the_bytes_of_the_formula() {
    let model = mixture(true);
    let expert = 3 * model.width * 8 * 4;
    for (experts, shadows) in [(2, 4), (4, 1), (4, 2)] {
        let config = shadowed(ParallelConfig { experts, ..ParallelConfig::default() }, shadows);
        let ranks = experts as usize;
        let sent = on_ranks(&model, &config, (ranks, 8), |cpu, worker, ledger| {
            for tensor in worker.params().into_iter().filter(|tensor| tensor.name.contains("router")) {
                worker.write(cpu, &tensor, &vec![0.0; tensor.len()]).unwrap();
            }
            ledger.clear();
            worker_gradients(cpu, worker, 8, ledger).2 as usize
        });
        // Experts 0 and 1 have all rows: with two ranks they are on one, with four on two, of which one shadow would leave the other.
        let tokens = 8 * SEQ / ranks;
        let shadows = if shadows == 1 { 0 } else { 2 };
        let offsets = 4 * 5 * (ranks - 1);
        for (rank, sent) in sent.into_iter().enumerate() {
            let of = |rank: usize| (0..shadows).filter(|expert| expert * ranks / 4 == rank).count();
            // In a ring a rank passes on the rows that the next one lacks; gradients go straight to the owner.
            let matrices = expert * (shadows - of((rank + 1) % ranks) + shadows - of(rank));
            // Rows of experts without a shadow: two exchanges with matrices of the row's width, and back.
            let rows: usize = (shadows..2)
                .map(|expert| if expert * ranks / 4 == rank { (ranks - 1) * tokens } else { tokens })
                .sum();
            let wanted = model.layers * (offsets + matrices + 2 * rows * model.width * 4);
            assert_eq!(sent, wanted, "{experts} ranks, {shadows} shadows, rank {rank}");
        }
    }
}

/// Pieces of exchanges that the lists of a rank start.
fn pieces(worker: &Worker) -> usize {
    let lists = worker.decoder().programs().flat_map(|(_, unit, _)| unit.lists.iter().flatten());
    let of_rows = |c: &Collective| matches!(c.by_counts, Some(ByCounts::Rows { .. }));
    lists.filter(|node| matches!(node, Node::Start(c) if of_rows(c))).count()
}

/// Losses, gradients and trained parameters keep their bits with exchanges in pieces concurrent with products.
#[test]
fn exchanges_in_pieces_change_no_bit() {
    let base = ParallelConfig::default;
    let experts = |experts| ParallelConfig { experts, ..base() };
    let zero = |stage, of: ParallelConfig| ParallelConfig { stage, ..of };
    let tensor = ParallelConfig { tensor: 2.into(), ..experts(2) };
    let full = |mut layout: Layout| {
        layout.activations.recompute = Recompute::Full.into();
        layout
    };
    let bf16 = |mut layout: Layout| {
        layout.activations.storage = Storage::Bf16;
        layout
    };
    let staged = |kind, stage| {
        let mut layout = pipelined(kind, 2, 4).with_data(2, stage, 0);
        layout.config.experts = 2;
        layout
    };
    let layouts = [
        ranks(2, experts(2)),
        ranks(4, experts(4)),
        ranks(2, zero(Stage::Zero1, experts(2))),
        ranks(4, zero(Stage::Zero2, experts(2))),
        ranks(4, zero(Stage::Zero3, experts(4))),
        ranks(4, tensor.clone()),
        ranks(4, ParallelConfig { sequence: true, ..tensor }),
        ranks(4, folded_over_tensor(4)),
        full(ranks(4, experts(4))),
        bf16(ranks(4, experts(4))),
        staged(Kind::OneFOneB, Stage::Ddp),
        staged(Kind::ZbH1, Stage::Zero1),
    ];
    let shared_expert = Some(SharedExpert { width: 6, gate: true, mixed: false });
    let with_block = Model { shared_expert, ..mixture(true) };
    for (number, layout) in layouts.iter().enumerate() {
        // A group has 32 rows of 8 sequences, if all experts have as many.
        let data = layout.ranks / layout.config.pipeline.max(1) as usize;
        let all = (8 * data * layout.micro_batches) as u64;
        let models: &[&Model] = if number < 2 { &[&mixture(true), &with_block] } else { &[&mixture(true)] };
        for model in models {
            let trained = |overlap, shadows| {
                let config = ParallelConfig { overlap, ..shadowed(layout.config.clone(), shadows) };
                train(model, &Layout { config, ..layout.clone() }, all).swap_remove(0)
            };
            let wanted = trained(false, 0);
            for shadows in [0, 1] {
                let found = trained(true, shadows);
                same_bits(&found, &wanted, &format!("layout {number}, {shadows} shadows"));
            }
        }
    }
}

/// With more ranks than pieces neighbours are a block, and blocks may have different numbers of ranks.
#[test]
fn exchanges_between_blocks_of_ranks_change_no_bit() {
    for ranks in [6, 8] {
        let model = Model { experts: Some(Experts::top_k([ranks, 2, 8], true)), ..mixture(true) };
        let of = |overlap, shadows| {
            let config = ParallelConfig { experts: ranks as u64, overlap, ..ParallelConfig::default() };
            on_ranks(&model, &shadowed(config, shadows), (ranks, 16 * ranks), |cpu, worker, _| {
                assert_eq!(pieces(worker) > 0, overlap);
                gradients(cpu, worker, 16 * ranks)
            })
        };
        let whole = of(false, 0);
        for shadows in [0, 2] {
            for (found, wanted) in of(true, shadows).into_iter().zip(&whole) {
                assert_eq!(found.0.to_bits(), wanted.0.to_bits(), "{ranks} ranks, {shadows} shadows");
                for (name, values) in &found.1 {
                    assert!(
                        bits(values) == bits(&wanted.1[name]),
                        "{ranks} ranks, {shadows} shadows: {name}"
                    );
                }
            }
        }
    }
}

/// One long sequence.
struct Long<'a>(&'a [u32]);

impl BatchSource for Long<'_> {
    fn micro_batch(&mut self, _: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let loss_scale = 1.0 / (2 * self.0.len()) as f32;
        let ctx = StepContext { seed: 1, step: 0, first_sequence: 0, loss_scale, accumulate: false };
        Ok((TokenBatch { ids: self.0, targets: self.0, positions: None }, ctx))
    }
}

/// The same property where ranks share a sequence, whose passes `overlap` leaves alone but for experts.
#[test]
fn exchanges_of_shared_sequences_in_pieces_change_no_bit() {
    const LONG: usize = 128;
    let model = Model { context: LONG, ..mixture(true) };
    let ids: Vec<u32> = (0..LONG as u32).map(|at| at * at % 13).collect();
    for context_method in [ContextMethod::AllGather, ContextMethod::Ring] {
        let of = |overlap| {
            let config = ParallelConfig {
                experts: 2,
                context: 2,
                context_method,
                overlap,
                ..ParallelConfig::default()
            };
            let optim = OptimConfig::default();
            let plan = Plan::new(&config, 4, &model, optim.optimizer).unwrap();
            let program = plan.program(1, 1, None).unwrap();
            let job = Job {
                model: &model,
                shape: Shape { sequences: 1, seq: LONG, purpose: Purpose::Train },
                activations: ActivationConfig::default(),
                types: ParamStorage::default(),
                optim: &optim,
                losses: &[],
                plan: &plan,
                program: &program,
            };
            bessemer_fixture::on_ranks(4, |world: Box<dyn Communicator>| {
                let mut cpu = crate::instruction_set::cpu(1);
                let mut worker = Worker::new(&mut cpu, &job, world).unwrap();
                worker.init(&mut cpu, 3).unwrap();
                assert_eq!(pieces(&worker) > 0, overlap);
                let sum = worker.gradients(&mut cpu, &mut Long(&ids)).unwrap();
                let mut bits = vec![worker.sum_over_data(sum).unwrap().mean().to_bits()];
                for tensor in worker.gradients_of_params() {
                    let mut values = vec![0.0; tensor.len()];
                    worker.read(&mut cpu, &tensor, &mut values).unwrap();
                    bits.extend(values.iter().map(|value| u64::from(value.to_bits())));
                }
                bits
            })
        };
        assert!(of(true) == of(false), "{context_method:?}");
    }
}

/// Each exchange goes in as many pieces as there are ranks, at most four, if groups have 32 rows; a rank's own rows are copied.
#[test]
fn exchanges_are_cut_by_ranks_if_they_have_rows_enough() {
    let model = mixture(true);
    let found = |experts, overlap, sequences, config: ParallelConfig| {
        let config = ParallelConfig { experts, overlap, ..config };
        on_ranks(&model, &config, (experts as usize, sequences), |_, worker, _| {
            // Gradients overwrite the values of which they are the last readers, piece by piece too.
            let (_, unit, memory) =
                worker.decoder().programs().find(|(of, ..)| of.layer() == Some(0)).unwrap();
            let (gradient, of) = (unit.find("mlp.pre.gradient").unwrap(), unit.find("mlp.pre"));
            assert_eq!(memory.takes[Phase::Backward as usize][gradient], of);
            pieces(worker) / worker.decoder().programs().count()
        })
    };
    let base = ParallelConfig::default;
    // Two exchanges of each of forward, scoring and backward pass in each of eight layers, of nine or ten programs.
    let in_layers = |pieces: usize| pieces * 6 * model.layers / (model.layers + 2);
    assert_eq!(found(2, true, 16, base()), [in_layers(1); 2]);
    assert_eq!(found(4, true, 32, base()), [in_layers(3); 4]);
    assert_eq!(found(4, true, 32, shadowed(base(), 1)), [in_layers(3); 4]);
    assert_eq!(found(2, true, 14, base()), [0; 2]);
    assert_eq!(found(2, false, 16, base()), [0; 2]);
}
