//! Runs on shards with a mask of scored tokens: the mean over the scored targets of a step in every layout and however they are distributed
//! over micro-batches, exact resuming, steps without a scored target, and evaluations.

use crate::place::{STEPS, recipe};
use crate::run::{Run, cpu, numbers};
use bessemer_arch::{Model, named};
use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
use bessemer_loader::{Batch, DocumentConfig, IGNORED, Loader};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job, ParallelError, Plan};
use bessemer_recipe::Recipe;
use bessemer_runlog::{Eval, Record, Step};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext, TokenBatch};
use bessemer_shards::{ShardSet, ShardSetWriter, SplitMeta};
use bessemer_train::{Runner, TrainState, checkpoints};
use bessemer_units::ParamStorage;
use std::ops::Range;
use std::sync::Arc;

const BASE: [&str; 6] = [
    "train.micro_batch=1",
    "train.z_loss=1e-4",
    "optim.lr=3e-3",
    "eval.every_steps=10",
    "eval.max_tokens=900",
    "train.batch_tokens=128",
];

fn with(sets: &[&str]) -> Recipe {
    recipe(&[&BASE[..], sets].concat())
}

/// The scored ranges of document `number`, of `len` tokens, among the documents of a split.
type Scored<'a> = &'a dyn Fn(u128, usize) -> Vec<Range<usize>>;

/// Answers of every length: none in every fourth document, else the last tokens, and now and then one in the middle.
fn answers(number: u128, len: usize) -> Vec<Range<usize>> {
    let last = (number as usize * 5 % 11).min(len);
    match number % 4 {
        0 => Vec::new(),
        1 if len > 20 => vec![3..6, len - last..len],
        _ => std::iter::once(len - last..len).collect(),
    }
}

/// A split of sentences of 3 to 60 characters with these scored ranges.
fn split(run: &Run, name: &str, scored: Scored<'_>) -> Arc<ShardSet> {
    let meta = SplitMeta {
        split: name.into(),
        vocab_size: run.tokenizer.vocab_size() as u32,
        tokenizer: run.tokenizer.fingerprint().parse().unwrap(),
    };
    let shards = run.dir.join("chats");
    let mut writer = ShardSetWriter::create(&shards, meta, 1 << 20).unwrap();
    let words = ["the ", "cat ", "sat ", "on ", "a ", "mat. "];
    for i in 0..300_u128 {
        let text: String = (0..=i * 7 % 16).map(|w| words[((i / 3 + w) % 6) as usize]).collect();
        let tokens = run.tokenizer.encode(text.as_bytes()).unwrap();
        let scored = scored(i, tokens.len());
        writer.push_scored(i.to_le_bytes(), text.len() as u64, &tokens, &scored).unwrap();
    }
    writer.finish().unwrap();
    Arc::new(ShardSet::open(&shards, name).unwrap())
}

/// A run directory with such splits.
fn run_with(scored: Scored<'_>) -> Run {
    let mut run = Run::new(false);
    run.train = split(&run, "train", scored);
    run.validation = split(&run, "validation", &|i, len| answers(i + 1, len));
    run
}

fn run() -> Run {
    run_with(&answers)
}

fn steps(records: &[Record]) -> Vec<&Step> {
    records.iter().filter_map(|r| if let Record::Step(s) = r { Some(s) } else { None }).collect()
}

fn evals(records: &[Record]) -> Vec<&Eval> {
    records.iter().filter_map(|r| if let Record::Eval(e) = r { Some(e) } else { None }).collect()
}

fn warnings(records: &[Record]) -> Vec<&str> {
    let mut all = Vec::new();
    for record in records {
        if let Record::Warning(warning) = record {
            all.push(warning.message.as_str());
        }
    }
    all
}

#[track_caller]
fn assert_near(found: &[Record], wanted: &[Record], what: &str) {
    let counts = |records: &[Record]| -> Vec<_> {
        steps(records).iter().map(|s| (s.tokens, s.scored.unwrap(), s.unscored_samples.unwrap())).collect()
    };
    assert_eq!(counts(found), counts(wanted), "{what}");
    let scored = |records: &[Record]| evals(records).iter().map(|e| e.tokens_scored).collect::<Vec<_>>();
    assert_eq!(scored(found), scored(wanted), "{what}");
    let (found, wanted) = (numbers(found), numbers(wanted));
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(&wanted) {
        let off = (found.1 - wanted.1).abs() / wanted.1.abs().max(1e-9);
        assert!(found.0 == wanted.0 && off < 1e-5, "{what}: {found:?} {wanted:?}");
    }
}

/// One rank with micro-batches of one sequence, which have 0 to 16 scored targets each, against other cuts of the same steps.
#[test]
fn every_layout_and_micro_batch_trains_on_scored_targets_as_one_rank() {
    let layers = "model.layers=4";
    let single = run().train(&with(&[layers]), 1, None);
    assert!(numbers(&single).iter().all(|(_, number)| number.is_finite()));
    assert!(steps(&single).iter().any(|s| s.unscored_samples > Some(0)));
    for (sets, ranks) in [
        (&["train.micro_batch=8"][..], 1),
        (&["train.micro_batch=2", "parallel.data=ddp"], 2),
        (&["parallel.data=zero3"], 2),
        (&["train.micro_batch=2", "parallel.data=zero1"], 4),
        (&["parallel.context=2"], 2),
        (&["parallel.context=2", "parallel.data=ddp"], 4),
        (&["parallel.tensor=2", "parallel.sequence=true", "parallel.data=zero1"], 4),
        (&["parallel.pipeline=2", "parallel.schedule=1f1b", "parallel.data=ddp"], 4),
        (&["parallel.pipeline=2", "parallel.schedule=interleaved"], 2),
        (&["parallel.pipeline=2", "parallel.schedule=1f1b", "parallel.fill=evaluation"], 2),
        (&["parallel.pipeline=2", "parallel.schedule=zb-h1"], 2),
    ] {
        let records = run().train(&with(&[&[layers], sets].concat()), ranks, None);
        assert_near(&records, &single, &format!("{sets:?} x {ranks}"));
    }
}

#[test]
fn documents_and_grouped_windows_train_on_scored_targets_as_one_rank() {
    for (set, batch) in [
        ("train.lengths=padded", "train.batch_tokens=160"),
        ("train.lengths=bucketed", "train.batch_tokens=160"),
        ("loader.order=grouped", "train.batch_tokens=128"),
    ] {
        let sets = [set, batch, "train.micro_batch=2", "loader.block=64B", "loader.group=512B"];
        let single = run().train(&with(&sets), 1, None);
        let by_two = run().train(&with(&[&sets[..], &["parallel.data=zero2"]].concat()), 2, None);
        assert_near(&by_two, &single, set);
        // Fewer targets are scored than read.
        let last = steps(&single)[STEPS as usize - 1];
        let scored: u64 = steps(&single).iter().filter_map(|s| s.scored).sum();
        assert!(last.tokens > 2 * scored && scored > 0, "{set}: {scored} of {}", last.tokens);
    }
}

/// The counts in the log are those of the batches, and evaluations score the targets of the mask alone.
#[test]
fn what_is_logged_is_what_the_mask_scores() {
    let (run, recipe) = (run(), with(&["eval.max_tokens=0"]));
    let records = run.train(&recipe, 1, None);
    let loader = Loader::new(Arc::clone(&run.train), 16, recipe.run.seed, true).unwrap();
    let mut batch = Batch::new();
    for (number, step) in steps(&records).into_iter().enumerate() {
        loader.batch(8 * number as u64, 8, &mut batch).unwrap();
        let scored = batch.targets.iter().filter(|target| **target != IGNORED).count() as u64;
        let unscored = batch.targets.chunks(16).filter(|row| row.iter().all(|t| *t == IGNORED)).count();
        assert_eq!((step.scored, step.unscored_samples), (Some(scored), Some(unscored as u64)));
        assert_eq!(step.tokens, 128 * (number as u64 + 1), "tokens that were read");
    }
    // Characters have no separator, so the first token is no target.
    let validation = &run.validation;
    let wanted = validation.count_scored(1..validation.token_count()).unwrap();
    assert!(!evals(&records).is_empty());
    assert!(evals(&records).iter().all(|eval| eval.tokens_scored == wanted && eval.bytes_scored == wanted));
    let sequences = |records: &[Record]| -> String {
        let found = records.iter().find_map(|r| if let Record::Training(t) = r { Some(t) } else { None });
        found.unwrap().sequences.clone()
    };
    let (scored, tokens) = (run.train.scored_count(), run.train.token_count());
    let wanted = format!("{scored} of {tokens} tokens of the training split are scored (");
    assert!(sequences(&records).contains(&wanted), "{}", sequences(&records));
    // Without a mask, nothing of it is logged.
    let records = Run::new(false).train(&recipe, 1, None);
    assert!(!sequences(&records).contains("scored"));
    assert!(steps(&records).iter().all(|s| s.scored.is_none() && s.unscored_samples.is_none()));
}

#[test]
fn a_stopped_run_ends_with_the_same_bits() {
    let recipe = with(&["model.dropout=0.1"]);
    let (whole, parts) = (run(), run());
    let wanted = whole.train(&recipe, 1, None);
    let mut records = parts.train(&recipe, 1, Some(7));
    records.extend(parts.train(&recipe, 1, Some(8)));
    records.extend(parts.train(&recipe, 1, None));
    assert_eq!(numbers(&records), numbers(&wanted));
    assert!(parts.tensors() == whole.tensors(), "other bits after a stop");
    // A layout that changes in between keeps the losses.
    let changed = run();
    let mut records = changed.train(&with(&[]), 1, Some(7));
    records.extend(changed.train(&with(&["parallel.data=zero1", "train.micro_batch=2"]), 2, Some(15)));
    records.extend(changed.train(&with(&["parallel.context=2"]), 2, None));
    assert_near(&records, &run().train(&with(&[]), 1, None), "another layout in between");
}

#[test]
fn another_mask_is_other_data() {
    let mut run = run();
    run.train(&with(&[]), 1, Some(7));
    run.train = split(&run, "train", &|i, len| answers(i + 2, len));
    let records = run.train(&with(&[]), 1, None);
    let change = records.iter().find_map(|r| if let Record::Change(c) = r { Some(c) } else { None }).unwrap();
    assert!(change.effects.iter().any(|effect| effect.contains("checksum of the shards")), "{change:?}");
}

/// A stretch of the split without answers, as long as several steps: its samples are passed over as if they were skipped by name.
#[test]
fn steps_without_a_scored_target_are_passed_over() {
    // The first documents and some in the middle; windows come from front to back.
    let scored = |i: u128, len: usize| match i {
        0..30 | 60..100 => Vec::new(),
        _ => answers(i, len),
    };
    let sets = ["loader.shuffle=false", "save.every_steps=0"];
    let asynchronous = [
        "parallel.pipeline=2",
        "parallel.schedule=pipedream",
        "parallel.window=5",
        "optim.clip=0",
        "model.tied_embeddings=false",
    ];
    for (more, ranks) in
        [(&[][..], 1), (&["parallel.data=ddp"], 2), (&["train.lengths=padded"], 1), (&asynchronous, 2)]
    {
        let recipe = with(&[&sets[..], more].concat());
        let run = run_with(&scored);
        let records = run.train(&recipe, ranks, None);
        let losses = steps(&records);
        assert_eq!(losses.len() as u64, STEPS, "{more:?}");
        assert!(numbers(&records).iter().all(|(_, number)| number.is_finite()), "{more:?}");
        assert!(losses.iter().all(|s| s.scored > Some(0) && s.grad_norm > 0.0), "{more:?}");
        let passed: Vec<&str> =
            warnings(&records).into_iter().filter(|w| w.contains("have no scored target")).collect();
        assert!(passed.len() >= 2 && passed[0].starts_with("step 1: begins with sample"), "{passed:?}");
        let saved = checkpoints(&run.dir).load(STEPS).unwrap();
        let state = TrainState::of(saved.manifest()).unwrap();
        let passed_over = state.spikes.passed_over.unwrap();
        assert!(passed_over >= 16 && state.updates() == STEPS, "{passed_over}");
        // The same run, with these samples left out by the recipe.
        let number = |text: &str, after: &str| -> u64 {
            let rest = &text[text.find(after).unwrap() + after.len()..];
            rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
        };
        let spans: Vec<String> = passed
            .iter()
            .map(|text| format!("[{},{}]", number(text, "samples from "), number(text, "with sample ")))
            .collect();
        let skips = format!("train.skip_samples=[{}]", spans.join(","));
        let other = run_with(&scored);
        let by_name = other.train(&with(&[&sets[..], more, &[&skips]].concat()), ranks, None);
        assert_eq!(numbers(&records), numbers(&by_name), "{more:?}");
        assert!(warnings(&by_name).iter().all(|w| !w.contains("have no scored target")));
    }
}

#[test]
fn splits_without_a_scored_target_are_refused_before_the_first_step() {
    let refused = |run: &Run, recipe: &Recipe| -> String {
        let error = run.session(recipe, 1, None, &|_| cpu()).swap_remove(0).unwrap_err();
        assert!(!run.dir.join("metrics.jsonl").exists());
        error.to_string()
    };
    let nothing = |_: u128, _: usize| Vec::new();
    let error = refused(&run_with(&nothing), &with(&[]));
    assert!(error.contains("split \"train\"") && error.contains("none of its targets is scored"), "{error}");
    let mut validation = run();
    validation.validation = split(&validation, "validation", &nothing);
    let error = refused(&validation, &with(&[]));
    assert!(error.contains("split \"validation\""), "{error}");
    // Somewhere, but not among the windows that evaluations on the way take.
    let mut few = run();
    let last = |i: u128, len: usize| if i == 299 { std::iter::once(0..len).collect() } else { Vec::new() };
    few.validation = split(&few, "validation", &last);
    let error = refused(&few, &with(&["eval.max_tokens=32"]));
    assert!(error.contains("in the 2 of") && error.contains("eval.max_tokens"), "{error}");
    // Words that no step reaches within two epochs.
    let mut first = run();
    first.train =
        split(&first, "train", &|i, _| if i == 0 { std::iter::once(0..1).collect() } else { Vec::new() });
    assert!(refused(&first, &with(&[])).contains("none of its targets is scored"));
}

/// How micro-batches are weighed in a step by hand.
#[derive(Clone, Copy, PartialEq)]
enum Mean {
    /// Over the scored targets of the step.
    OfStep,
    /// Over the scored targets of each micro-batch, then over micro-batches.
    OfMicroBatches,
}

/// The documents of a step, `sequences` at a time.
struct ByHand<'a> {
    loader: &'a Loader,
    batch: Batch,
    sequences: usize,
    all: usize,
    mean: Mean,
}

impl BatchSource for ByHand<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let first_sequence = (micro * self.sequences) as u64;
        self.loader.batch(first_sequence, self.sequences, &mut self.batch).unwrap();
        let scored = match self.mean {
            Mean::OfStep => self.loader.count_targets(0, self.all as u64).unwrap().scored,
            Mean::OfMicroBatches => self.batch.scored * (self.all / self.sequences) as u64,
        };
        let batch = TokenBatch { ids: &self.batch.inputs, targets: &self.batch.targets, positions: None };
        let context = StepContext {
            seed: 1,
            step: 0,
            first_sequence,
            loss_scale: 1.0 / scored as f32,
            accumulate: false,
        };
        Ok((batch, context))
    }
}

/// Two chats of eight tokens, the last five and the last three of which are scored.
const CHATS: [([u32; 8], Range<usize>); 2] =
    [([1, 5, 9, 3, 7, 2, 11, 4], 3..8), ([6, 6, 0, 14, 13, 8, 10, 12], 5..8)];

/// The parameter of that name of Llama with 2 layers, width 8, 2 heads and 1 of keys and values: element j, row by row, of tensor k of
/// Hugging Face's order (embedding; of each layer q, k, v, o, gate, up, down; head) is 0.3 sin(1.3 j + 0.7 k), and norms are 1.
fn value(name: &str, len: usize) -> Vec<f32> {
    let tensor = |k: usize, len: usize| -> Vec<f32> {
        (0..len).map(|j| (0.3 * (1.3 * j as f64 + 0.7 * k as f64).sin()) as f32).collect()
    };
    let layer = name.split('.').find_map(|part| part.parse::<usize>().ok()).unwrap_or(0);
    let parts = |first: usize, lens: &[usize]| -> Vec<f32> {
        let first = 1 + 7 * layer + first;
        lens.iter().enumerate().flat_map(|(at, len)| tensor(first + at, *len)).collect()
    };
    let values = match name {
        _ if name.contains("norm") => vec![1.0; len],
        "embed.tokens" => tensor(0, 128),
        "head.weight" => tensor(15, 128),
        _ if name.ends_with("attention.qkv.weight") => parts(0, &[64, 32, 32]),
        _ if name.ends_with("attention.out.weight") => parts(3, &[64]),
        _ if name.ends_with("mlp.gate_up.weight") => parts(4, &[96, 96]),
        _ if name.ends_with("mlp.down.weight") => parts(6, &[96]),
        _ => panic!("no values for {name}"),
    };
    assert_eq!(values.len(), len, "{name}");
    values
}

/// Losses of seven steps of AdamW on [`CHATS`], a micro-batch of `sequences` at a time, and the norm of the first gradient.
fn tuned(sequences: usize, mean: Mean) -> (Vec<f64>, f64) {
    let dir = tempfile::tempdir().unwrap();
    let meta = SplitMeta { split: "train".into(), vocab_size: 16, tokenizer: [1; 32].into() };
    let mut writer = ShardSetWriter::create(dir.path(), meta, 1 << 20).unwrap();
    for (number, (tokens, scored)) in CHATS.iter().enumerate() {
        writer.push_scored([number as u8; 16], 8, tokens, std::slice::from_ref(scored)).unwrap();
    }
    writer.finish().unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "train").unwrap());
    let config = DocumentConfig {
        seq_len: 7,
        shorter: Vec::new(),
        micro_batch: sequences,
        bucketed: false,
        separated: false,
        pairs: false,
    };
    let loader = Loader::of_documents(set, config, 1, false).unwrap();
    let model = Model {
        vocab_size: 16,
        layers: 2,
        width: 8,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        ffn_width: 12,
        context: 8,
        norm_eps: 1e-5,
        rope_theta: 1e4,
        tied_embeddings: false,
        ..named("llama").unwrap()
    };
    let optim = OptimConfig {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        clip: 0.0,
        ..OptimConfig::default()
    };
    let plan = Plan::single();
    let job = Job {
        model: &model,
        shape: Shape { sequences, seq: 7, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(2 / sequences, 1, None).unwrap(),
    };
    let mut backend = cpu();
    let world = ThreadCommunicator::world("world", 1, &ThreadSettings::default()).swap_remove(0);
    let mut runner = Runner::new(&mut *backend, &job, Box::new(world)).unwrap();
    runner.worker.init(&mut *backend, 1).unwrap();
    let decoder = runner.worker.decoder();
    assert_eq!(decoder.params().iter().map(|p| p.spec.len()).sum::<usize>(), 1256);
    for param in decoder.params() {
        let values = value(&param.spec.name, param.spec.len());
        decoder.write_param(&mut *backend, &param.spec.name, &values).unwrap();
    }
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for t in 1..=7 {
        let mut source = ByHand { loader: &loader, batch: Batch::new(), sequences, all: 2, mean };
        let step = runner.step(&mut *backend, &mut source, t, 1e-2).unwrap();
        assert_eq!(step.loss.scored, 8);
        losses.push(step.loss.mean());
        norms.push(step.stats.grad_norm);
    }
    (losses, norms[0])
}

/// Values of transformers and PyTorch (full fine-tuning, f32) for labels that are -100 at the first 3 and the first 5 tokens. The mean of
/// the means of micro-batches, which weighs the scored tokens of the second chat 5/3 times as much as those of the first, is another
/// objective.
#[test]
fn the_mean_is_over_the_scored_targets_of_the_step_as_in_transformers() {
    let golden = [2.996419, 2.682541, 2.499198, 2.360090, 2.255292, 2.172009, 2.095800];
    let away = |losses: &[f64]| losses.iter().zip(golden).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    for sequences in [1, 2] {
        let (losses, norm) = tuned(sequences, Mean::OfStep);
        assert!(away(&losses) < 1e-5, "{sequences}: {losses:?}");
        assert!((norm - 2.446359).abs() < 1e-5, "{sequences}: {norm}");
    }
    let (losses, norm) = tuned(1, Mean::OfMicroBatches);
    assert!((norm - 2.446359).abs() > 1e-2 && away(&losses) > 1e-3, "{norm}, {losses:?}");
}

/// The loss that balances experts is made of all tokens, so neither its value nor its gradient depends on how many of them are scored.
#[test]
fn losses_of_routers_are_means_over_all_tokens() {
    let experts = |balance: &str| {
        let balance = format!("model.experts.balance={balance}");
        let experts = ["model.experts.count=4", "model.experts.choices=2", "model.experts.width=8"];
        [&experts[..], &[&balance, "model.experts.z_loss=0", "model.layers=4"]].concat().join(" ")
    };
    let train = |scored: Scored<'_>, balance: &str, more: &[&str], ranks: usize| {
        let sets = experts(balance);
        let sets: Vec<&str> = sets.split(' ').chain(more.iter().copied()).collect();
        run_with(scored).train(&with(&sets), ranks, None)
    };
    let all = |_: u128, len: usize| std::iter::once(0..len).collect();
    let (masked, whole) = (train(&answers, "1", &[], 1), train(&all, "1", &[], 1));
    let balance = |records: &[Record], step: usize| steps(records)[step].losses["experts_balance"];
    let same = |a: f64, b: f64, bound: f64| (a / b - 1.0).abs() < bound;
    assert!(same(balance(&masked, 0), balance(&whole, 0), 1e-9));
    assert!(steps(&masked)[0].scored.unwrap() < 60, "few tokens are scored");
    // The gradient is g + w b for the weight w, so norms at three weights give |b|^2.
    let balance_norm = |scored: Scored<'_>| {
        let square = |balance: &str| {
            let records = train(scored, balance, &["train.steps=1", "optim.warmup_steps=0"], 1);
            steps(&records)[0].grad_norm.powi(2)
        };
        (2.0 * (square("1") - 2.0 * square("0.5") + square("0"))).sqrt()
    };
    let (few, many) = (balance_norm(&answers), balance_norm(&all));
    assert!(same(few, many, 0.05) && many > 0.02, "{few} {many}");
    for (more, ranks) in
        [(&["parallel.experts=2"][..], 2), (&["parallel.pipeline=2", "parallel.schedule=1f1b"], 2)]
    {
        let records = train(&answers, "1", more, ranks);
        assert_near(&records, &masked, &format!("{more:?}"));
        let steps = STEPS as usize;
        assert!(
            (0..steps).all(|step| same(balance(&records, step), balance(&masked, step), 1e-5)),
            "{more:?}"
        );
    }
}
