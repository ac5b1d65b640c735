//! Unsupported recipes are refused before any data is read: by the recipe's own check, or, where it depends on the number of ranks,
//! when that is known. Every rank can make its programs of a recipe that is accepted.

use bessemer_collectives::NullCommunicator;
use bessemer_filling::FillPlan;
use bessemer_parallel::{FillSupplier, Job, Worker};
use bessemer_recipe::{Recipe, parse_recipe};
use bessemer_runtime::{Purpose, Shape};
use bessemer_tensor::null::NullBackend;
use bessemer_test_tier::either;
use bessemer_train::{activations, layout, refuse_what_cannot_run};

const BASE: &str = "[model]\narchitecture = \"llama\"\nlayers = 4\nwidth = 48\nheads = 12\nkv_heads = 4\nffn_width = 96\n\
    context = 48\n[train]\nbatch_tokens = 384\nseq_len = 16\nsteps = 4\n[tokenizer]\nvocab_size = 300\n";

fn load(sets: &[&str]) -> Result<Recipe, String> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    parse_recipe("recipe.toml", BASE, &sets).map(|loaded| loaded.value).map_err(|e| e.to_string())
}

/// Layouts that no number of ranks can have: the recipe's check names the key, what was found, and what to change.
#[test]
fn a_recipe_refuses_layouts_that_its_model_and_batch_cannot_have() {
    let lines = ["parallel.tensor=2", "parallel.sequence=true"];
    let odd = ["train.seq_len=15", "train.batch_tokens=45", "train.micro_batch=1"];
    let of = |sets: &[&[&'static str]]| sets.concat();
    let by = |method: &'static str| ["parallel.context=8", method];
    let grid = ["parallel.tensor={ grid = [2, 2] }"];
    for (sets, words) in [
        // Nodes of experts.
        (
            of(&[&["model.experts.nodes=2", "parallel.experts=2"]]),
            "model.experts.nodes = 2 with parallel.experts = 2: wanted train.micro_batch",
        ),
        (
            of(&[&["model.experts.nodes=2", "parallel.experts=2", "train.micro_batch=2"]]),
            "model.experts.nodes = 2 with node_sequences = 1: wanted 2 sequences in a micro-batch of the ranks that share experts, found 4",
        ),
        // Rows that a line shards.
        (
            of(&[&lines, &odd]),
            "parallel.sequence = true with parallel.tensor = 2: wanted a number of positions",
        ),
        (
            of(&[&lines, &odd]),
            "found 1 sequences of 15 tokens, 15 positions; change train.micro_batch, train.seq_len",
        ),
        (
            of(&[&odd, &["parallel.tensor=2", "parallel.partition_activations=true"]]),
            "parallel.partition_activations = true with parallel.tensor = 2",
        ),
        (
            of(&[&lines, &["parallel.context=2", "train.seq_len=6", "train.batch_tokens=12"]]),
            "found 1 sequences of 6 tokens, 3 positions on each of parallel.context = 2 ranks",
        ),
        (
            of(&[&lines, &["train.lengths=padded", "train.length_buckets=[5]", "train.micro_batch=1"]]),
            "found 1 sequences of 5 tokens",
        ),
        // Heads, hidden units and the width.
        (of(&[&["parallel.tensor=5"]]), "wanted a number of heads that it divides, found 12"),
        (of(&[&["parallel.tensor=6"]]), "wanted key/value heads that it divides, or that divide it"),
        (
            of(&[&["parallel.tensor=4", "model.ffn_width=90"]]),
            "wanted a feed-forward width that it divides, found 90",
        ),
        (of(&[&by("parallel.context_method=ulysses")]), "query heads that it divides, found 12"),
        (
            of(&[&["parallel.tensor=4", "parallel.context=2", "parallel.context_method=ulysses"]]),
            "found 3; take another parallel.context",
        ),
        (of(&[&by("parallel.context_method=ring"), &["parallel.context_heads=3"]]), "a divisor of 8 below 8"),
        (
            of(&[&["parallel.context=16", "parallel.context_method=ring", "parallel.context_heads=8"]]),
            "parallel.context_heads = 8 gives each rank of a group some heads",
        ),
        (
            of(&[&by("parallel.context_method=ulysses"), &["parallel.context_heads=2"]]),
            "by which all 8 ranks exchange heads",
        ),
        // Positions.
        (of(&[&["parallel.context=3"]]), "parallel.context = 3 does not divide train.seq_len = 16"),
        (of(&[&["parallel.context=16", "parallel.context_order=zig-zag"]]), "wanted a multiple of 32"),
        (
            of(&[&by("parallel.context_method=lightseq"), &["parallel.context_order=striped"]]),
            "wanted \"auto\" or \"consecutive\"",
        ),
        (
            of(&[&by("parallel.context_method=ring"), &["train.micro_batch=2"]]),
            "expected train.micro_batch = 1",
        ),
        (of(&[&["parallel.context=2", "train.lengths=padded"]]), "do not work with parallel.context = 2"),
        (of(&[&["parallel.context=2", "optim.optimizer=kfac"]]), "\"kfac\" with parallel.context = 2"),
        (
            of(&[&["parallel.context=2", "parallel.annotate.\"*.mlp.*\"=replicate"]]),
            "parallel.context = 1, or no annotations",
        ),
        // Grids.
        (of(&[&["parallel.tensor={ grid = [5, 1] }"]]), "needs a width that is a multiple of 5, found 48"),
        (of(&[&["parallel.tensor={ grid = [1, 8] }"]]), "wanted a number of heads that it divides, found 12"),
        (
            of(&[&["parallel.tensor={ cube = 2 }", "model.ffn_width=97"]]),
            "needs a feed-forward width that is a multiple of 2, found 97",
        ),
        (of(&[&grid, &["train.micro_batch=3"]]), "wanted a number of sequences that 2 divides, found 3"),
        (of(&[&grid, &["parallel.context=2"]]), "ranks of a grid share a micro-batch by whole sequences"),
        (of(&[&grid, &["parallel.sequence=true"]]), "a grid shards the residual stream by itself"),
        (of(&[&grid, &["parallel.partition_activations=true"]]), "a grid keeps parts anyway"),
        (
            of(&[&grid, &["parallel.annotate.\"*.mlp.*\"=replicate"]]),
            "it says how parameters lie on a line of ranks",
        ),
        (of(&[&grid, &["optim.optimizer=muon"]]), "its update needs whole matrices"),
        // ZeRO, compression, offload.
        (of(&[&["parallel.shard=2"]]), "which shards nothing"),
        (of(&[&["train.compress=bf16", "train.storage=bf16"]]), "activations are in bf16 already"),
        (of(&[&["train.compress_values=[\"mlp\"]"]]), "train.compress_values"),
        (of(&[&["train.offload_layers=2"]]), "train.offload_layers = 2 with train.offload = \"none\""),
        (of(&[&["train.activation_memory=1GiB", "train.offload=disk"]]), "train.recompute = \"input-aware\""),
    ] {
        let error = load(&sets).err().unwrap_or_else(|| panic!("{sets:?} is accepted, wanted {words}"));
        assert!(error.contains(words), "{sets:?}\nwanted {words}\nfound  {error}");
    }
}

/// Layouts that depend on the number of ranks, or on the resulting schedule.
#[test]
fn ranks_that_cannot_run_a_recipe_are_refused_before_any_data_is_read() {
    let pipeline = ["parallel.pipeline=2", "train.micro_batch=2"];
    let of = |sets: &[&[&'static str]]| sets.concat();
    for (sets, ranks, words) in [
        (of(&[&["parallel.tensor=2"]]), 3, "parallel.tensor = 2 does not divide 3 ranks"),
        (
            of(&[&["parallel.tensor=2", "parallel.context=2"]]),
            6,
            "parallel.tensor = 2 x context = 2 does not divide 6",
        ),
        (of(&[&["parallel.data=zero1", "parallel.shard=3"]]), 4, "parallel.shard = 3 does not divide the 4"),
        (of(&[&["parallel.pipeline=3"]]), 4, "parallel.pipeline = 3 does not divide 4"),
        (of(&[]), 5, "5 data-parallel ranks cannot share equally"),
        (of(&[&["parallel.pipeline=8", "train.micro_batch=1"]]), 8, "4 layers"),
        (
            of(&[&[
                "parallel.tensor=4",
                "parallel.sequence=true",
                "train.seq_len=6",
                "train.batch_tokens=18",
            ]]),
            4,
            "parallel.tensor = 4 needs micro-batches of a multiple of 2 sequences (train.seq_len = 6), and a rank has 3 sequences",
        ),
        (
            of(&[&[
                "model.experts.gate=switch",
                "model.experts.capacity_sequences=3",
                "train.batch_tokens=128",
            ]]),
            1,
            "model.experts.capacity_sequences = 3 needs micro-batches of a multiple of 3 sequences",
        ),
        (
            of(&[&["parallel.tensor={ grid = [2, 1] }", "train.batch_tokens=48"]]),
            2,
            "needs micro-batches of a multiple of 2 sequences",
        ),
        (
            of(&[&pipeline, &["parallel.schedule=zb-h1", "parallel.tensor={ grid = [2, 1] }"]]),
            4,
            "take parallel.schedule = \"1f1b\" or another that does not split",
        ),
        (
            of(&[&pipeline, &["parallel.schedule=zb-h1", "train.lengths=padded"]]),
            2,
            "the schedule splits them",
        ),
        (
            of(&[
                &pipeline,
                &[
                    "parallel.schedule=pipedream",
                    "optim.clip=0",
                    "model.tied_embeddings=false",
                    "train.lengths=padded",
                ],
            ]),
            2,
            "whose steps share micro-batches in flight",
        ),
        (of(&[&pipeline, &["parallel.schedule=pipedream"]]), 2, "set model.tied_embeddings = false"),
        (
            of(&[&pipeline, &["parallel.schedule=pipedream", "model.tied_embeddings=false"]]),
            2,
            "optim.clip = 1 needs the gradient norm over all stages",
        ),
        (
            of(&[&pipeline, &["parallel.schedule=zb-h1", "parallel.data=zero3"]]),
            4,
            "splits backward passes, so gradients",
        ),
        (
            of(&[
                &pipeline,
                &["parallel.schedule=zb-h1", "train.recompute=full", "train.stored_micro_batches=1"],
            ]),
            2,
            "train.stored_micro_batches = 0",
        ),
        (
            of(&[
                &pipeline,
                &[
                    "parallel.schedule=interleaved",
                    "train.recompute=input-aware",
                    "train.activation_memory=1GiB",
                ],
            ]),
            2,
            "take a schedule with one stage a rank",
        ),
        (of(&[&pipeline, &["parallel.schedule=interleaved", "train.batch_tokens=96"]]), 2, "micro-batches"),
        (of(&[&["train.recompute=[\"nothing\"]"]]), 1, "nothing"),
        (of(&[&["train.compress=int8", "train.compress_values=[\"nothing\"]"]]), 1, "nothing"),
        (of(&[&["parallel.fill=checkpoint"]]), 1, "without a pipeline, so there are no bubbles"),
    ] {
        let recipe = load(&sets).unwrap_or_else(|e| panic!("{sets:?}: {e}"));
        let error = refuse_what_cannot_run(&recipe, ranks);
        let error = error.err().unwrap_or_else(|| panic!("{sets:?} is accepted, wanted {words}")).to_string();
        assert!(error.contains(words), "{sets:?}\nwanted {words}\nfound  {error}");
    }
}

/// Every rank makes and verifies the programs of the whole model.
fn make(recipe: &Recipe, ranks: usize) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let mut model = recipe.model.resolve(Some(300)).map_err(|e| text(&e))?;
    model.document_end = recipe.model.document_mask.then_some(0);
    let plan = layout(recipe, ranks, &model).map_err(|e| text(&e))?;
    let batch = recipe.batch(plan.data_ranks() as u64, None)?;
    let updates = if plan.pipe.asynchronous() { 2 } else { 1 };
    let program = plan.program(batch.accumulation as usize, updates, None).map_err(|e| text(&e))?;
    let (sequences, seq) = (batch.micro_batch as usize, batch.seq_len as usize);
    let job = Job {
        model: &model,
        shape: Shape { sequences, seq, purpose: Purpose::Train },
        activations: activations(&recipe.train),
        types: recipe.train.types(),
        optim: &recipe.optim,
        losses: &[],
        plan: &plan,
        program: &program,
    };
    let fill = FillPlan::new(&job, &recipe.parallel.fill, 0).map_err(|e| text(&e))?;
    let fill = fill.as_ref().map(|fill| fill as &dyn FillSupplier);
    for rank in 0..ranks {
        let world = Box::new(NullCommunicator::new("world", rank, ranks));
        Worker::filled(&mut NullBackend::new(), &job, fill, world)
            .map_err(|e| format!("rank {rank}: {e}"))?;
    }
    Ok(())
}

/// Values of keys, perhaps with other keys that they need; the first one is taken seven times in eight.
const CHOICES: &[(&str, &[&str])] = &[
    (
        "parallel.tensor",
        &["1", "2", "3", "4", "{ grid = [2, 1] }", "{ grid = [1, 2] }", "{ grid = [2, 2] }", "{ cube = 2 }"],
    ),
    ("parallel.sequence", &["false", "true", "true"]),
    ("parallel.partition_activations", &["false", "true"]),
    ("parallel.context", &["1", "2", "3", "4"]),
    ("parallel.context_heads", &["1", "2"]),
    ("parallel.context_method", &["all-gather", "ulysses", "ring", "lightseq"]),
    ("parallel.context_order", &["auto", "consecutive", "zig-zag", "striped"]),
    ("parallel.data", &["ddp", "zero1", "zero2", "zero3"]),
    ("parallel.shard", &["0", "2"]),
    ("parallel.pipeline", &["1", "2"]),
    (
        "parallel.schedule",
        &["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe", "pipedream", "chimera"],
    ),
    ("parallel.annotate.\"*.mlp.*\"", &["", "replicate"]),
    ("parallel.overlap", &["true", "false"]),
    ("parallel.fill", &["none", "checkpoint"]),
    ("train.seq_len", &["16", "12", "6", "15"]),
    ("train.micro_batch", &["0", "1", "2", "3"]),
    ("train.lengths", &["packed", "padded", "bucketed"]),
    ("train.storage", &["f32", "bf16"]),
    ("train.weights", &["f32", "bf16"]),
    ("train.recompute", &["none", "selective", "full", "input-aware train.activation_memory=1GiB"]),
    ("train.stored_micro_batches", &["0", "1"]),
    ("train.compress", &["none", "int8", "bf16"]),
    ("train.offload", &["none", "disk"]),
    ("train.offload_layers", &["0", "1"]),
    ("optim.optimizer", &["adamw", "muon", "adafactor", "kfac", "lion"]),
    ("optim.state", &["f32", "int8"]),
    ("optim.clip", &["1", "0"]),
    ("model.heads", &["12", "4", "8"]),
    ("model.kv_heads", &["4", "2", "1"]),
    ("model.window", &["", "5"]),
    ("model.document_mask", &["false", "true"]),
    ("model.dropout", &["0", "0.1"]),
    ("model.tied_embeddings", &["true", "false"]),
    ("model.qk_norm", &["false", "true"]),
];

/// Recipes of random keys: each is refused by its check, refused for its ranks, or can be run by all of them.
#[test]
fn what_is_accepted_can_be_made_on_every_rank() {
    let mut state = 7u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let (mut by_recipe, mut by_ranks, mut run, mut wrong) = (0, 0, 0, Vec::new());
    for _ in 0..either(400, 1200) {
        let mut sets = vec!["train.batch_tokens=720".to_owned()];
        for (key, values) in CHOICES {
            let value = if next(8) < 7 { values[0] } else { values[next(values.len())] };
            if !value.is_empty() {
                let (value, other) = value.split_once(" train.").unwrap_or((value, ""));
                sets.push(format!("{key}={value}"));
                sets.extend((!other.is_empty()).then(|| format!("train.{other}")));
            }
        }
        let copies = [1, 1, 2][next(3)];
        let recipe = match load(&sets.iter().map(String::as_str).collect::<Vec<_>>()) {
            Ok(recipe) => recipe,
            Err(_) => {
                by_recipe += 1;
                continue;
            }
        };
        let ranks = copies * recipe.parallel.fewest_ranks() as usize;
        let (refused, made) = (refuse_what_cannot_run(&recipe, ranks), make(&recipe, ranks));
        match (refused, made) {
            (Ok(()), Ok(())) => run += 1,
            (Err(_), Err(_)) => by_ranks += 1,
            (Ok(()), Err(e)) => wrong.push(format!("accepted, then refused: {e}\n  {ranks} ranks {sets:?}")),
            (Err(e), Ok(())) => wrong.push(format!("refused, but can run: {e}\n  {ranks} ranks {sets:?}")),
        }
    }
    println!("{by_recipe} refused by the recipe, {by_ranks} for their ranks, {run} can run");
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
    let least = either(30, 100);
    assert!(by_recipe > 3 * least && by_ranks > least && run > 3 * least, "{by_recipe} {by_ranks} {run}");
}
