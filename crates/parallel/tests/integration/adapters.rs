//! Low-rank adapters: golden values of transformers with PEFT, and layouts that have the losses of one rank.

use crate::pipelines::{Layout, check, pipelined, single};
use bessemer_arch::{AdapterTarget, Adapters, Model, NormChoice};
use bessemer_fixture::model;
use bessemer_optim::OptimConfig;
use bessemer_parallel::{
    BatchSource, ContextMethod, Job, ParallelConfig, ParallelError, Plan, Stage, StateTensor, Worker,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext, TokenBatch};
use bessemer_schedule::Kind;
use bessemer_tensor::op::IGNORED;
use bessemer_units::{ParamStorage, Recompute};

use AdapterTarget::{Down, Gate, Key, Out, Qkv, Query, Up, Value};

const SEQ: usize = 8;
const IDS: [u32; 16] = [1, 5, 9, 3, 7, 2, 11, 4, 6, 6, 0, 14, 13, 8, 10, 12];
/// Labels that are ignored at the beginning of each sequence.
const UNSCORED: [usize; 2] = [3, 5];

fn adapters(rank: u64, targets: &[AdapterTarget]) -> Option<Adapters> {
    Some(Adapters { rank, alpha: 4.0, targets: targets.to_vec(), ..Adapters::default() })
}

fn magnitudes(of: Option<Adapters>) -> Option<Adapters> {
    of.map(|of| Adapters { magnitude: true, ..of })
}

fn tiny(of: Model) -> Model {
    let tiny = Model { vocab_size: 16, layers: 2, width: 8, heads: 2, head_dim: 4, context: 16, ..of };
    tiny.check().unwrap();
    tiny
}

fn llama(adapters: Option<Adapters>) -> Model {
    let of = bessemer_arch::named("llama").unwrap();
    tiny(Model { kv_heads: 1, ffn_width: 12, rope_theta: 1e4, tied_embeddings: false, adapters, ..of })
}

fn gpt2(adapters: Option<Adapters>) -> Model {
    let of = bessemer_arch::named("gpt2").unwrap();
    tiny(Model { kv_heads: 2, ffn_width: 16, adapters, ..of })
}

/// Element `j` of matrix `k` in the order of transformers' list of parameters without norms and biases.
fn base(k: usize, j: usize) -> f32 {
    (0.3 * (1.3 * j as f64 + 0.7 * k as f64).sin()) as f32
}

/// Rows of matrices of transformers, one below the other.
fn stacked(first: usize, rows: &[usize], cols: usize) -> Vec<f32> {
    let matrix = |(k, rows): (usize, &usize)| (0..rows * cols).map(move |j| base(first + k, j));
    rows.iter().enumerate().flat_map(matrix).collect()
}

/// The transpose of a matrix of `inputs` rows, as GPT-2 stores it.
fn transposed(k: usize, inputs: usize, outputs: usize) -> Vec<f32> {
    (0..outputs * inputs).map(|at| base(k, at % inputs * outputs + at / inputs)).collect()
}

/// Euclidean norms of rows.
fn norms(matrix: &[f32], cols: usize) -> Vec<f32> {
    let norm = |row: &[f32]| row.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt() as f32;
    matrix.chunks(cols).map(norm).collect()
}

/// Value of a parameter of the golden models, without the matrices of adapters.
fn golden(model: &Model, tensor: &StateTensor) -> Vec<f32> {
    let name = &tensor.name;
    let layer: usize = name.split('.').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let (d, f, is_llama) = (model.width, model.ffn_width, model.norm == NormChoice::RmsNorm);
    let k = if is_llama { 1 + 7 * layer } else { 2 + 4 * layer };
    let of = |part: &str| name.ends_with(part);
    match name.as_str() {
        "embed.tokens" => stacked(0, &[16], d),
        "embed.positions" => stacked(1, &[16], d),
        "head.weight" => stacked(1 + 7 * model.layers, &[16], d),
        _ if of("norm.weight") => vec![1.0; tensor.len()],
        _ if of(".bias") => vec![0.0; tensor.len()],
        _ if of("qkv.magnitude") => norms(&transposed(k, d, 3 * d), d),
        _ if of("query.magnitude") => norms(&stacked(k, &[8], d), d),
        _ if of("key.magnitude") => norms(&stacked(k + 1, &[4], d), d),
        _ if of("value.magnitude") => norms(&stacked(k + 2, &[4], d), d),
        _ if of("out.magnitude") => norms(&stacked(k + 3, &[d], d), d),
        _ if of("gate.magnitude") => norms(&stacked(k + 4, &[f], d), d),
        _ if of("up.magnitude") => norms(&stacked(k + 5, &[f], d), d),
        _ if of("down.magnitude") => norms(&stacked(k + 6, &[d], f), f),
        _ if is_llama && of("qkv.weight") => stacked(k, &[8, 4, 4], d),
        _ if is_llama && of("attention.out.weight") => stacked(k + 3, &[d], d),
        _ if of("gate_up.weight") => stacked(k + 4, &[f, f], d),
        _ if is_llama && of("down.weight") => stacked(k + 6, &[d], f),
        _ if of("qkv.weight") => transposed(k, d, 3 * d),
        _ if of("attention.out.weight") => transposed(k + 1, d, d),
        _ if of("up.weight") => transposed(k + 2, d, f),
        _ if of("down.weight") => transposed(k + 3, f, d),
        _ => panic!("{name}"),
    }
}

#[derive(Clone)]
struct Chat {
    targets: Vec<u32>,
}

impl Chat {
    fn new(scored: impl Fn(usize, usize) -> bool) -> Chat {
        let target = |at: usize| match at % SEQ + 1 {
            SEQ => IGNORED,
            label if scored(at / SEQ, label) => IDS[at + 1],
            _ => IGNORED,
        };
        Chat { targets: (0..IDS.len()).map(target).collect() }
    }
}

impl BatchSource for Chat {
    fn micro_batch(&mut self, _: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let scored = self.targets.iter().filter(|target| **target != IGNORED).count();
        let loss_scale = 1.0 / scored as f32;
        let ctx = StepContext { seed: 1, step: 0, first_sequence: 0, loss_scale, accumulate: false };
        Ok((TokenBatch { ids: &IDS, targets: &self.targets, positions: None }, ctx))
    }
}

/// Trained elements, the norm of the first gradient, and the losses before each of six steps and after them.
fn six_steps(model: &Model, chat: &Chat) -> (usize, f64, Vec<f64>) {
    let optim =
        OptimConfig { lr: 1e-2, beta2: 0.999, weight_decay: 0.0, clip: 0.0, ..OptimConfig::default() };
    let plan = Plan::new(&ParallelConfig::default(), 1, model, optim.optimizer).unwrap();
    let program = plan.program(1, 1, None).unwrap();
    let job = Job {
        model,
        shape: Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &program,
    };
    bessemer_fixture::on_ranks(1, |world| {
        let (mut cpu, mut chat) = (crate::instruction_set::cpu(1), chat.clone());
        let mut worker = Worker::new(&mut cpu, &job, world).unwrap();
        worker.init(&mut cpu, 3).unwrap();
        let mut adapter = 0;
        for tensor in worker.params() {
            let values = match tensor.name.rsplit_once(".lora_") {
                Some((_, matrix)) => {
                    let k = f64::from(adapter);
                    adapter += 1;
                    let a = |j: usize| (0.2 * (0.9 * j as f64 + 0.5 * k).cos()) as f32;
                    (0..tensor.len()).map(|j| if matrix == "a" { a(j) } else { 0.0 }).collect()
                }
                None => golden(model, &tensor),
            };
            worker.write(&mut cpu, &tensor, &values).unwrap();
        }
        let trained = worker.gradients_of_params().iter().map(StateTensor::len).sum();
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for step in 0..=6 {
            let sum = worker.gradients(&mut cpu, &mut chat).unwrap();
            losses.push(worker.sum_over_data(sum).unwrap().mean());
            let norm = worker.grad_norm(&mut cpu).unwrap();
            norms.push(norm);
            worker.apply(&mut cpu, step + 1, 1e-2, norm).unwrap();
        }
        (trained, norms[0], losses)
    })
    .swap_remove(0)
}

/// transformers and PEFT in f32 (golden/adapters/make.py), with AdamW, whose first steps turn differences of rounding into ones of 3e-6: losses of six steps and the one after them, the norm of the first gradient.
#[test]
fn losses_and_norms_are_those_of_peft() {
    let all = [Query, Key, Value, Out, Gate, Up, Down];
    let stabilised = |of: Option<Adapters>| of.map(|of| Adapters { rank_stabilised: true, ..of });
    let chat = Chat::new(|sequence, label| label >= UNSCORED[sequence]);
    for (what, model, trained, norm, losses) in [
        (
            "full",
            llama(None),
            1_256,
            2.446359,
            [2.996419, 2.682541, 2.499198, 2.360090, 2.255292, 2.172009, 2.095800],
        ),
        (
            "LoRA of query and value",
            llama(adapters(2, &[Query, Value])),
            112,
            0.624552,
            [2.996419, 2.970997, 2.950695, 2.934400, 2.920396, 2.907159, 2.893830],
        ),
        (
            "LoRA of all maps",
            llama(adapters(2, &all)),
            464,
            0.812140,
            [2.996419, 2.940966, 2.896991, 2.854741, 2.813378, 2.772329, 2.730918],
        ),
        (
            "rsLoRA of all maps",
            llama(stabilised(adapters(4, &all))),
            928,
            1.165295,
            [2.996419, 2.907522, 2.847194, 2.792822, 2.736030, 2.675857, 2.618903],
        ),
        (
            "DoRA of query and value",
            llama(magnitudes(adapters(2, &[Query, Value]))),
            136,
            0.865802,
            [2.996419, 2.964242, 2.941839, 2.924582, 2.909588, 2.895393, 2.881453],
        ),
        (
            "DoRA of all maps",
            llama(magnitudes(adapters(2, &all))),
            576,
            1.210425,
            [2.996418, 2.920034, 2.866886, 2.819153, 2.774689, 2.731458, 2.688796],
        ),
        (
            "ranks and alphas by target",
            llama(adapters(2, &[Query, Value, Down]).map(|of| Adapters {
                ranks: [(Value, 1), (Down, 3)].into(),
                alphas: [(Down, 6.0)].into(),
                ..of
            })),
            208,
            0.742516,
            [2.996418, 2.963856, 2.934989, 2.908169, 2.882687, 2.858953, 2.837125],
        ),
        (
            "DoRA of GPT-2's fused map",
            gpt2(magnitudes(adapters(2, &[Qkv]))),
            176,
            1.051057,
            [3.917968, 3.875643, 3.845355, 3.684247, 3.722332, 3.723631, 3.703253],
        ),
        (
            "LoRA of GPT-2's fused map",
            gpt2(adapters(2, &[Qkv])),
            128,
            1.007945,
            [3.917968, 3.878595, 3.842279, 3.636054, 3.755626, 3.723324, 3.676952],
        ),
    ] {
        let (elements, found_norm, found) = six_steps(&model, &chat);
        assert_eq!(elements, trained, "{what}");
        assert!((found_norm - norm).abs() < 1e-5, "{what}: norm {found_norm}, wanted {norm}");
        for (found, wanted) in found.iter().zip(losses) {
            assert!((found - wanted).abs() < 1e-5 * wanted, "{what}: {found}, wanted {wanted}");
        }
    }
    let (.., losses) = six_steps(&llama(None), &Chat::new(|_, _| true));
    assert!((losses[0] - 2.888721).abs() < 1e-5, "{losses:?}");
}

fn adapted(of: Model, targets: &[AdapterTarget]) -> Model {
    let model = Model { adapters: adapters(2, targets), ..of };
    model.check().unwrap();
    model
}

#[test]
fn every_layout_has_the_losses_of_one_rank() {
    let plain = adapted(model(false, 8, 16), &[Query, Key, Value, Out, Gate, Up, Down]);
    let with = |of: &dyn Fn(Adapters) -> Adapters| {
        let model = Model { adapters: plain.adapters.clone().map(of), ..plain.clone() };
        model.check().unwrap();
        model
    };
    layouts_have_the_losses_of_one_rank(&plain);
    layouts_have_the_losses_of_one_rank(&with(&|of| Adapters { magnitude: true, ..of }));
    layouts_have_the_losses_of_one_rank(&with(&|of| Adapters {
        dropout: 0.3,
        ranks: [(Query, 3), (Down, 1)].into(),
        ..of
    }));
}

fn layouts_have_the_losses_of_one_rank(model: &Model) {
    let base = ParallelConfig::default;
    let tensor = |sequence| ParallelConfig { tensor: 2.into(), sequence, ..base() };
    for (config, ranks, micro_batches) in [
        (base(), 2, 2),
        (ParallelConfig { stage: Stage::Zero1, ..base() }, 2, 2),
        (ParallelConfig { stage: Stage::Zero2, shard: 2, ..base() }, 4, 2),
        (ParallelConfig { stage: Stage::Zero3, ..base() }, 4, 2),
        (tensor(false), 2, 2),
        (tensor(true), 2, 2),
        (ParallelConfig { partition_activations: true, ..tensor(false) }, 2, 2),
        (ParallelConfig { stage: Stage::Zero3, ..tensor(true) }, 4, 2),
        (ParallelConfig { context: 2, ..base() }, 2, 8),
        (ParallelConfig { context: 2, context_method: ContextMethod::Ring, ..tensor(true) }, 8, 4),
    ] {
        check(model, &Layout { config, ranks, micro_batches, ..single() }, 8);
    }
    for kind in [Kind::OneFOneB, Kind::Interleaved, Kind::ZbH1, Kind::DualPipe] {
        check(model, &pipelined(kind, 2, 4), 8);
    }
    let mut recomputed = Layout { ranks: 2, micro_batches: 2, ..single() };
    recomputed.activations.recompute = Recompute::Full.into();
    check(model, &recomputed, 8);
}

/// Magnitudes are the norms of rows of a weight, which is therefore not trained besides.
#[test]
fn weights_of_maps_with_magnitudes_are_not_trained() {
    let refused = |model: &Model, name: &str| {
        let mut plan =
            Plan::new(&ParallelConfig::default(), 1, model, OptimConfig::default().optimizer).unwrap();
        plan.train_only(model, &[name.to_owned()]).err().map(|e| e.to_string())
    };
    let plain = llama(adapters(2, &[Query, Value]));
    let normed = llama(magnitudes(adapters(2, &[Query, Value])));
    let e = refused(&normed, "layers.*.attention.*.weight").unwrap();
    assert!(e.contains("layers.0.attention.qkv.weight") && e.contains("magnitude = false"), "{e}");
    assert_eq!(refused(&normed, "layers.*.mlp.*"), None);
    assert_eq!(refused(&plain, "layers.*.attention.*.weight"), None);
    let e = refused(&gpt2(magnitudes(adapters(2, &[Qkv]))), "*.qkv.bias").unwrap();
    assert!(e.contains("layers.0.attention.qkv.bias"), "{e}");
}
