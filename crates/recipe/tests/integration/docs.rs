//! docs/recipes.md lists every key of a recipe. That list is made here from the JSON Schema, and its ranges are tried
//! out, so the page cannot say anything that the program does not do.
//!
//! `BESSEMER_GOLDEN=write cargo test -p bessemer-recipe --test integration docs::` writes the page anew; the diff is reviewed like code.

use bessemer_arch::ModelConfig;
use bessemer_recipe::{Recipe, RecipeUse, continued_recipe, json_schema, load_recipe_for, parse_recipe};
use serde_json::{Map, Value as Json};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Settings that pairs of answers need besides `train.preferences`.
macro_rules! pairs {
    () => {
        "corpus.chats.pairs=true corpus.chats.template=chatml corpus.source=jsonl corpus.path=a.jsonl tokenizer.file=t.json \
         train.lengths=padded train.init.from=runs/a"
    };
}

/// The list stands between these lines of the page.
const BEGIN: &str = "<!-- keys: begin. Made from the schema by crates/recipe/tests/integration/docs.rs; do not edit by hand. -->";
const END: &str = "<!-- keys: end -->";

/// The recipe that ranges are tried on.
const BASE: &str = "[train]\nsteps = 5\n";

/// What a key may be beyond its type: (key, allowed, settings that are accepted, settings that are refused). A setting is a
/// list of `--set` values with spaces between them; the first is the value of the key itself.
const RANGES: &[(&str, &str, &[&str], &[&str])] = &[
    (
        "run.name",
        "letters, digits and `-_.+=`, no dot first, at most 120 bytes",
        &["a-1", "лес"],
        &["a/b", ".a"],
    ),
    ("run.seed", "0 to 2^63 - 1", &["0", "9223372036854775807"], &["-1"]),
    ("run.threads", "0 to 4096", &["0", "4096"], &["4097"]),
    ("run.trace.steps", "0 to 2^48", &["0", "281474976710656"], &["281474976710657"]),
    ("run.trace.every_steps", "0 to 2^48", &["0", "281474976710656"], &["281474976710657"]),
    ("run.trace.max_intervals", "0 to 10000000", &["0", "10000000"], &["10000001"]),
    ("run.prometheus.every_steps", "0 to 2^48", &["0", "281474976710656"], &["281474976710657"]),
    ("run.prometheus.path", "a name that ends in `.prom`", &["a.prom", "/var/x/a.prom"], &["\"\"", "a.txt"]),
    ("corpus.mix.temperature", "0.01 to 1000", &["0.01", "1000"], &["0", "1001"]),
    (
        "corpus.path",
        "needed by every kind but auto, cargo and embedded",
        &["a corpus.source=file"],
        &["a corpus.source=embedded"],
    ),
    ("corpus.dialogue.answers", "1 to 100", &["1", "100"], &["0", "101"]),
    ("corpus.text", "not empty", &["content"], &["\"\""]),
    ("corpus.extensions", "without dot, or `*`", &["[\"rs\"]", "[\"*\"]"], &["[\".rs\"]"]),
    ("corpus.exclude", "relative paths without `..`", &["[\"a/b\"]"], &["[\"../a\"]", "[\"/a\"]"]),
    ("corpus.urls.soft_threshold", "1 to 1000", &["1", "1000"], &["0", "1001"]),
    ("corpus.evaluate.sample", "0 to 1", &["0", "0.01", "1"], &["-0.1", "1.1"]),
    ("corpus.evaluate.review", "0 to 100000", &["0", "100000"], &["100001"]),
    ("corpus.memory", "auto, or a size of at least 144MiB", &["auto", "144MiB", "2GiB"], &["143MiB", "much"]),
    ("corpus.clean.min_bytes", "0 to `max_bytes`", &["0", "200000"], &["200001"]),
    (
        "corpus.clean.max_bytes",
        "1 to 268435456",
        &["1 corpus.clean.min_bytes=0", "268435456"],
        &["0 corpus.clean.min_bytes=0", "268435457"],
    ),
    ("corpus.clean.max_numeric_share", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("corpus.clean.max_line_chars", "at least 1", &["1"], &["0"]),
    ("corpus.clean.max_mean_line_chars", "1 to 1e9", &["1", "1e9"], &["0.9", "1.1e9"]),
    ("corpus.clean.min_alphanumeric_share", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("corpus.rules.bad_words_keep", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    (
        "corpus.dedup.rehydrate",
        "rising sizes with weights from 1 to 64; needs `methods`",
        &["[[1,1],[2,2]] corpus.dedup.methods=[\"exact\"]", "[]"],
        &[
            "[[2,2],[1,1]] corpus.dedup.methods=[\"exact\"]",
            "[[1,0]] corpus.dedup.methods=[\"exact\"]",
            "[[1,65]] corpus.dedup.methods=[\"exact\"]",
            "[[1,1]]",
        ],
    ),
    ("corpus.dedup.minhash.length", "1 to 100", &["1", "100"], &["0", "101"]),
    (
        "corpus.dedup.minhash.bands",
        "0, or such that bands times rows is at most 16384",
        &["0", "2340"],
        &["2341"],
    ),
    ("corpus.dedup.minhash.rows", "at least 1", &["1"], &["0"]),
    ("corpus.dedup.minhash.similarity", "above 0, at most 1", &["0.1", "1"], &["0", "1.1"]),
    ("corpus.dedup.minhash.seed", "0 to 2^63 - 1", &["0", "9223372036854775807"], &["-1"]),
    ("corpus.dedup.simhash.length", "1 to 100", &["1", "100"], &["0", "101"]),
    ("corpus.dedup.simhash.distance", "at most 16", &["3"], &["17"]),
    (
        "corpus.dedup.simhash.blocks",
        "distance + 1 to distance + 8, at most 255 choices of equal blocks",
        &["4", "6"],
        &["3", "12"],
    ),
    ("corpus.dedup.bloom.ngram", "1 to 100", &["1", "100"], &["0", "101"]),
    ("corpus.dedup.bloom.threshold", "above 0, at most 1", &["0.1", "1"], &["0", "1.1"]),
    ("corpus.dedup.bloom.expected", "1 to 2^40", &["1", "1099511627776"], &["0", "1099511627777"]),
    ("corpus.dedup.bloom.false_positives", "1e-9 to 0.5", &["1e-9", "0.5"], &["0", "0.6"]),
    ("corpus.dedup.bloom.seed", "0 to 2^63 - 1", &["0", "9223372036854775807"], &["-1"]),
    ("corpus.dedup.semantic.dimensions", "8 to 65536", &["8", "65536"], &["7", "65537"]),
    ("corpus.dedup.semantic.clusters", "0 to 2^20", &["0", "1048576"], &["1048577"]),
    ("corpus.dedup.semantic.sample", "1 to 2^30", &["1", "1073741824"], &["0", "1073741825"]),
    ("corpus.dedup.semantic.iterations", "0 to 10000", &["0", "10000"], &["10001"]),
    ("corpus.dedup.semantic.tolerance", "0 to below 1", &["0", "0.9"], &["-0.1", "1"]),
    ("corpus.dedup.semantic.eps", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("corpus.dedup.semantic.seed", "0 to 2^63 - 1", &["0", "9223372036854775807"], &["-1"]),
    ("corpus.dedup.substring.length", "8 to 65536", &["8", "65536"], &["7", "65537"]),
    ("corpus.dedup.substring.min_bytes_left", "at least 0", &["0"], &["-1"]),
    ("corpus.dedup.lines.span", "1 to 100", &["1", "100"], &["0", "101"]),
    ("corpus.dedup.lines.min_words", "0 to 2^32 - 1", &["0", "4294967295"], &["4294967296"]),
    ("corpus.dedup.lines.min_sentences", "0 to 2^32 - 1", &["0", "4294967295"], &["4294967296"]),
    ("corpus.privacy.email_replacements", "not empty if `emails`", &["[\"a@example.com\"]"], &["[]"]),
    ("corpus.privacy.ip_replacements", "not empty if `ips`", &["[\"192.0.2.1\"]"], &["[]"]),
    (
        "corpus.privacy.ipv6_replacements",
        "not empty if `ipv6`",
        &["[\"x\"] corpus.privacy.ipv6=true", "[]"],
        &["[] corpus.privacy.ipv6=true"],
    ),
    (
        "corpus.privacy.phone_replacements",
        "not empty if `phones`",
        &["[\"x\"] corpus.privacy.phones=dolma", "[]"],
        &["[] corpus.privacy.phones=dolma"],
    ),
    (
        "corpus.privacy.card_replacements",
        "not empty if `cards`",
        &["[\"x\"] corpus.privacy.cards=true", "[]"],
        &["[] corpus.privacy.cards=true"],
    ),
    (
        "corpus.privacy.iban_replacements",
        "not empty if `ibans`",
        &["[\"x\"] corpus.privacy.ibans=true", "[]"],
        &["[] corpus.privacy.ibans=true"],
    ),
    (
        "corpus.privacy.secret_replacements",
        "not empty if `secrets`",
        &["[\"x\"] corpus.privacy.secrets=true", "[]"],
        &["[] corpus.privacy.secrets=true"],
    ),
    ("corpus.privacy.drop_above", "0 to 2^32 - 1", &["0", "4294967295"], &["4294967296"]),
    ("corpus.decontaminate.ngram", "8 to 50", &["8", "50"], &["7", "51"]),
    ("corpus.decontaminate.window_chars", "0 to 10000", &["0", "10000"], &["10001"]),
    ("corpus.decontaminate.max_cuts", "1 to 2^32 - 1", &["1", "4294967295"], &["0", "4294967296"]),
    ("corpus.decontaminate.min_piece_chars", "0 to 2^32 - 1", &["0", "4294967295"], &["4294967296"]),
    ("corpus.decontaminate.answer_within", "1 to 1000", &["1", "1000"], &["0", "1001"]),
    ("corpus.split.validation_fraction", "0 to 0.9", &["0", "0.9"], &["-0.1", "0.91"]),
    ("corpus.split.seed", "0 to 2^63 - 1", &["0", "9223372036854775807"], &["-1"]),
    (
        "tokenizer.vocab_size",
        "256 + special tokens to 2^24; for char from 1 + special tokens",
        &["257", "16777216", "1 tokenizer.kind=char"],
        &["256", "16777217", "0 tokenizer.kind=char"],
    ),
    ("tokenizer.min_frequency", "1 to 2^63 - 1", &["1", "9223372036854775807"], &["0"]),
    (
        "tokenizer.special_tokens",
        "two characters or more each, no two alike",
        &["[\"<a>\"]"],
        &["[\"a\"]", "[\"<a>\", \"<a>\"]"],
    ),
    ("model.vocab_size", "0, or at least `tokenizer.vocab_size`", &["0", "4096"], &["4095"]),
    ("model.layers", "1 to 10000", &["1", "10000"], &["0", "10001"]),
    (
        "model.width",
        "1 to 2^20; a multiple of `heads` unless `head_dim` is set",
        &["1 model.heads=1", "1048576"],
        &["0", "1048580", "6"],
    ),
    ("model.heads", "1 to 65536", &["1", "65536 model.width=65536"], &["0", "65537 model.width=65537"]),
    ("model.kv_heads", "a divisor of `heads`", &["1", "4"], &["0", "3", "8"]),
    ("model.head_dim", "1 to 4096; even with rope", &["1", "4096"], &["0", "4097", "3 model.positions=rope"]),
    ("model.ffn_width", "1 to 2^22", &["1", "4194304"], &["0", "4194305"]),
    (
        "model.experts.layers",
        "numbers of layers in ascending order",
        &[
            "all model.architecture=llama",
            "alternate model.architecture=llama",
            "[0,3] model.architecture=llama",
        ],
        &[
            "some model.architecture=llama",
            "[] model.architecture=llama",
            "[4] model.architecture=llama",
            "[2,1] model.architecture=llama",
            "[-1] model.architecture=llama",
        ],
    ),
    ("model.adapters.rank", "1 to the smaller side of each map", &["1", "64"], &["0", "100000"]),
    ("model.adapters.alpha", "above 0", &["16.0", "0.5"], &["0.0", "-1.0"]),
    ("model.adapters.dropout", "0 to 0.99; 0 with `magnitude`", &["0.0", "0.1"], &["1.0", "-0.1"]),
    (
        "model.adapters.ranks",
        "targets that have an adapter, with 1 to the smaller side of each",
        &["{query=4}", "{query=64,value=1}"],
        &["{query=0}", "{down=4}", "{embedding=4}"],
    ),
    (
        "model.adapters.alphas",
        "targets that have an adapter, with numbers above 0",
        &["{value=4.0}"],
        &["{value=0.0}", "{down=4.0}"],
    ),
    (
        "model.adapters.targets",
        "at least one; not \"qkv\" with its parts; \"gate\" where the block is gated",
        &["[\"qkv\",\"down\"]", "[\"gate\"] model.architecture=llama"],
        &[
            "[]",
            "[\"qkv\",\"key\"]",
            "[\"out\",\"out\"]",
            "[\"gate\"]",
            "[\"up\"] model.architecture=mixtral",
        ],
    ),
    (
        "model.experts.count",
        "1 to 16384",
        &[
            "2 model.architecture=llama",
            "16384 model.architecture=llama",
            "[2,2,4,16384] model.architecture=llama",
            "[2,4] model.architecture=llama model.experts.layers=alternate",
        ],
        &[
            "0 model.architecture=llama",
            "16385 model.architecture=llama",
            "2",
            "[2,4] model.architecture=llama",
            "[] model.architecture=llama",
            "[0,2,4,8] model.architecture=llama",
            "[-1,2,4,8] model.architecture=llama",
        ],
    ),
    (
        "model.experts.choices",
        "1 to `count`; 1 with `renormalise = false`",
        &["2 model.architecture=llama", "8 model.architecture=llama"],
        &["0 model.architecture=llama", "9 model.architecture=llama", "1 model.architecture=llama"],
    ),
    (
        "model.experts.width",
        "1 to 2^22, or 0",
        &["0 model.architecture=llama", "4194304 model.architecture=llama"],
        &["4194305 model.architecture=llama"],
    ),
    (
        "model.experts.bias_rate",
        "0 to 1; with `bias`",
        &[
            "0 model.architecture=llama model.experts.bias=true",
            "1 model.architecture=llama model.experts.gate=deepseek",
        ],
        &["0.1 model.architecture=llama", "1.1 model.architecture=llama model.experts.gate=deepseek"],
    ),
    (
        "model.experts.groups",
        "1 to 64; a divisor of `count`",
        &["1 model.architecture=llama", "4 model.architecture=llama"],
        &[
            "0 model.architecture=llama",
            "3 model.architecture=llama",
            "128 model.architecture=llama model.experts.count=128",
        ],
    ),
    (
        "model.experts.groups_kept",
        "1 to `groups`, with `choices` experts or more",
        &[
            "1 model.architecture=llama model.experts.groups=4",
            "4 model.architecture=llama model.experts.groups=4",
        ],
        &[
            "0 model.architecture=llama model.experts.groups=4",
            "5 model.architecture=llama model.experts.groups=4",
            "1 model.architecture=llama model.experts.groups=8",
            "2 model.architecture=llama",
        ],
    ),
    (
        "model.experts.scale",
        "0.001 to 1000",
        &["0.001 model.architecture=llama", "1000 model.architecture=llama"],
        &["0 model.architecture=llama", "1001 model.architecture=llama"],
    ),
    (
        "model.experts.capacity",
        "0.000001 to 1000 with six decimal places, or `\"none\"`",
        &[
            "1.25 model.architecture=llama",
            "0.000001 model.architecture=llama",
            "1000 model.architecture=llama",
            "none model.architecture=llama model.experts.gate=switch",
        ],
        &[
            "0 model.architecture=llama",
            "1001 model.architecture=llama",
            "0.0000001 model.architecture=llama",
            "some model.architecture=llama",
        ],
    ),
    (
        "model.experts.capacity_sequences",
        "1 to 2^20; a divisor of a rank's micro-batch; with a capacity",
        &["1 model.architecture=llama model.experts.gate=switch"],
        &[
            "0 model.architecture=llama model.experts.gate=switch",
            "1048577 model.architecture=llama model.experts.gate=switch",
            "1 model.architecture=llama",
        ],
    ),
    (
        "model.experts.nodes",
        "1 to 16384; a divisor of `count`, with 2 experts of a node or more",
        &["1 model.architecture=llama", "4 model.architecture=llama"],
        &[
            "0 model.architecture=llama",
            "3 model.architecture=llama",
            "8 model.architecture=llama",
            "2 model.architecture=llama model.experts.gate=switch",
        ],
    ),
    (
        "model.experts.node_sequences",
        "1 to 2^20, with `nodes`; with `parallel.experts` the sequences of a micro-batch of those ranks over `nodes`",
        &[
            "1 model.architecture=llama model.experts.nodes=2",
            "1048576 model.architecture=llama model.experts.nodes=2",
        ],
        &[
            "0 model.architecture=llama model.experts.nodes=2",
            "1048577 model.architecture=llama model.experts.nodes=2",
            "2 model.architecture=llama",
        ],
    ),
    (
        "model.experts.leaving",
        "0 to 1 with six decimal places, with `nodes`",
        &[
            "0 model.architecture=llama model.experts.nodes=2",
            "1 model.architecture=llama model.experts.nodes=2",
        ],
        &[
            "-0.1 model.architecture=llama model.experts.nodes=2",
            "1.1 model.architecture=llama model.experts.nodes=2",
            "0.5 model.architecture=llama",
        ],
    ),
    (
        "model.experts.jitter",
        "0 to 0.5",
        &["0 model.architecture=llama", "0.5 model.architecture=llama"],
        &["-0.1 model.architecture=llama", "0.6 model.architecture=llama"],
    ),
    (
        "model.experts.balance_over",
        "sequences from 1 to 2^20, a divisor of a rank's micro-batch",
        &["1 model.architecture=llama", "batch model.architecture=llama"],
        &["0 model.architecture=llama", "1048577 model.architecture=llama", "epoch model.architecture=llama"],
    ),
    (
        "model.experts.shared",
        "0 to 2^22",
        &["0 model.architecture=llama", "4194304 model.architecture=llama"],
        &["4194305 model.architecture=llama"],
    ),
    (
        "model.experts.balance",
        "0 to 1",
        &["0 model.architecture=llama", "1 model.architecture=llama"],
        &["-0.1 model.architecture=llama", "1.1 model.architecture=llama"],
    ),
    (
        "model.experts.z_loss",
        "0 to 1",
        &["0 model.architecture=llama", "1 model.architecture=llama"],
        &["-0.1 model.architecture=llama", "1.1 model.architecture=llama"],
    ),
    ("model.context", "1 to 2^24; at least `train.seq_len`", &["256", "16777216"], &["0", "255", "16777217"]),
    ("model.norm_eps", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("model.rope_theta", "1 to 1e12", &["1", "1e12"], &["0.9", "1.1e12"]),
    (
        "model.rope_scaling.factor",
        "1 to 1000000; rotary positions only",
        &["1 model.positions=rope", "1e6 model.positions=rope"],
        &["0.9 model.positions=rope", "2"],
    ),
    (
        "model.rope_scaling.low_freq_factor",
        "above 0; with `llama3`",
        &["0.5 model.positions=rope model.rope_scaling.kind=llama3"],
        &["0 model.positions=rope model.rope_scaling.kind=llama3"],
    ),
    (
        "model.rope_scaling.high_freq_factor",
        "above `low_freq_factor`, to 1000000; with `llama3`",
        &["1.5 model.positions=rope model.rope_scaling.kind=llama3"],
        &["1 model.positions=rope model.rope_scaling.kind=llama3"],
    ),
    (
        "model.rope_scaling.original_context",
        "1 to 2^24",
        &["1 model.positions=rope", "16777216 model.positions=rope"],
        &["0 model.positions=rope", "16777217 model.positions=rope"],
    ),
    ("model.window", "1 to 2^24", &["1", "16777216"], &["0", "16777217"]),
    ("model.embedding_scale", "0.000001 to 1000000", &["1e-6", "1e6"], &["0", "1e7"]),
    ("model.dropout", "0 to 0.99", &["0", "0.99"], &["-0.1", "1"]),
    ("model.init_std", "0 to 10", &["0", "10"], &["-0.1", "10.1"]),
    (
        "model.init_gain",
        "0 to 100; with `xavier` and `ds-init`",
        &["0 model.init=xavier", "100 model.init=ds-init"],
        &["101 model.init=xavier", "-1 model.init=xavier", "2"],
    ),
    (
        "model.mup_base_width",
        "1 to 2^20; with `mup` only",
        &["1 model.init=mup", "1048576 model.init=mup"],
        &["0 model.init=mup", "64"],
    ),
    (
        "model.mup_base_head_dim",
        "1 to 4096; with `mup` only",
        &["1 model.init=mup model.mup_base_width=64"],
        &["4097 model.init=mup model.mup_base_width=64", "16"],
    ),
    (
        "train.batch_tokens",
        "1 to 2^40; a multiple of `seq_len`",
        &["256", "1099511627776"],
        &["0", "1000", "1099511628032"],
    ),
    ("train.seq_len", "1 to 2^24; at most `model.context`", &["1", "256"], &["0", "512"]),
    (
        "train.micro_batch",
        "0, or a divisor of the sequences of a step (at most those, with documents)",
        &["0", "1", "32"],
        &["5", "33"],
    ),
    ("train.steps", "0 to 2^40", &["1", "1099511627776"], &["0", "1099511627777"]),
    (
        "train.tokens",
        "0, or so that there are at most 2^40 steps",
        &["1 train.steps=0"],
        &["9223372036854775807"],
    ),
    (
        "train.epochs",
        "0 to 1000000",
        &["0.1 train.steps=0", "1000000 train.steps=0"],
        &["-1 train.steps=0", "1000001 train.steps=0"],
    ),
    ("train.log_every", "at least 1", &["1"], &["0"]),
    (
        "train.recompute",
        "input-aware with `activation_memory`, without `recompute_layers`",
        &[
            "full",
            "attention",
            "attention-output",
            "[\"mlp.pre\"]",
            "[]",
            "input-aware train.activation_memory=1GiB",
        ],
        &["all", "1", "input-aware"],
    ),
    (
        "train.activation_memory",
        "a size; with `recompute = \"input-aware\"`",
        &["\"512 MiB\" train.recompute=input-aware", "\"\""],
        &["512MiB", "lots train.recompute=input-aware"],
    ),
    (
        "train.lengths",
        "documents not with `parallel.context`, `parallel.fill`, `kfac`, several sources",
        &["packed", "bucketed", "padded"],
        &["short", "padded parallel.context=2", "bucketed optim.optimizer=kfac"],
    ),
    (
        "train.length_buckets",
        "at most 64, ascending, below `seq_len`; with documents",
        &["[1,255] train.lengths=padded", "[] train.lengths=bucketed"],
        &["[1]", "[0] train.lengths=padded", "[256] train.lengths=padded", "[5,5] train.lengths=bucketed"],
    ),
    (
        "train.recompute_layers",
        "layers of the model; no layer twice",
        &["{\"0-1\"=\"full\",3=[\"mlp\"]}", "{\"stage 0-1\"=\"full\"}", "{}"],
        &["{\"0-999\"=\"full\"}", "{\"a\"=\"full\"}", "{\"0-1\"=\"full\",1=\"none\"}", "{\"0-1\"=\"all\"}"],
    ),
    (
        "train.compress",
        "`bf16` only with `train.storage` = `f32`",
        &["none", "bf16", "int8", "int8 train.storage=bf16"],
        &["int4", "bf16 train.storage=bf16"],
    ),
    (
        "train.compress_values",
        "empty with `train.compress` = `none`",
        &["[]", "[\"mlp\"] train.compress=int8"],
        &["[\"mlp\"]"],
    ),
    (
        "train.offload_layers",
        "0 to 2^20; 0 with `train.offload` = `none`",
        &["0", "3 train.offload=disk"],
        &["3", "1048577 train.offload=disk"],
    ),
    (
        "train.offload_dir",
        "empty with `train.offload` = `none`",
        &["''", "scratch train.offload=disk"],
        &["scratch"],
    ),
    ("train.z_loss", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    (
        "train.weights",
        "short types not with `kfac`",
        &["f32", "bf16", "f16", "bf16 optim.optimizer=muon"],
        &["u32", "bf16 optim.optimizer=kfac"],
    ),
    (
        "train.gradients",
        "f32 where `train.weights` is; short types not with `adafactor`, `muon` and `kfac`",
        &["f32", "bf16 train.weights=bf16", "f16 train.weights=f16"],
        &["bf16", "bf16 train.weights=bf16 optim.optimizer=muon"],
    ),
    ("train.loss_scale.mode", "not with `kfac`", &["constant", "dynamic"], &["dynamic optim.optimizer=kfac"]),
    (
        "train.loss_scale.value",
        "1e-6 to 2^32, at least `floor`",
        &["1", "4294967296"],
        &["0.5", "4294967297"],
    ),
    ("train.loss_scale.floor", "1e-6 to 2^32", &["1e-6", "65536"], &["0", "65537"]),
    ("train.loss_scale.hysteresis", "1 to 1e9", &["1", "1000000000"], &["0", "1000000001"]),
    ("train.loss_scale.growth_interval", "1 to 1e9", &["1", "1000000000"], &["0", "1000000001"]),
    ("train.init.optimizer", "keep needs `from`", &["fresh", "keep train.init.from=runs/a"], &["keep"]),
    (
        "train.init.schedule",
        "continue needs `from`",
        &["begin", "continue train.init.from=runs/a"],
        &["continue"],
    ),
    (
        "train.teacher.weight",
        "1e-6 to 1000; with `from`",
        &["1e-6 train.teacher.from=runs/a", "1000 train.teacher.from=runs/a"],
        &["0 train.teacher.from=runs/a", "1001 train.teacher.from=runs/a", "2"],
    ),
    (
        "train.teacher.temperature",
        "0.01 to 1000; with `from`",
        &["0.01 train.teacher.from=runs/a", "1000 train.teacher.from=runs/a"],
        &["0 train.teacher.from=runs/a", "1001 train.teacher.from=runs/a", "2"],
    ),
    (
        "train.teacher.steps",
        "0 to 2^40; with `from`",
        &["0", "1099511627776 train.teacher.from=runs/a"],
        &["1099511627777 train.teacher.from=runs/a", "100"],
    ),
    (
        "train.preferences.beta",
        "0 to 100; above 0 with `corpus.chats.pairs`",
        &["0", concat!("100 ", pairs!())],
        &["-0.1", concat!("101 ", pairs!()), "0.1"],
    ),
    (
        "train.preferences.label_smoothing",
        "0 to 0.499; with `beta`",
        &["0", concat!("0.499 train.preferences.beta=0.1 ", pairs!())],
        &[concat!("0.5 train.preferences.beta=0.1 ", pairs!()), "0.1"],
    ),
    (
        "train.early_stop.patience",
        "0 to 2^20; needs `eval.every_steps`",
        &["0", "1048576 eval.every_steps=5"],
        &[
            "1048577 eval.every_steps=5",
            "1 eval.every_steps=0",
            "1 parallel.fill=evaluation eval.every_steps=5",
        ],
    ),
    ("train.early_stop.min_delta", "0 to 1000", &["0", "1000"], &["-0.1", "1001"]),
    (
        "train.spike_action",
        "rewind needs `save.every_steps`",
        &["rewind save.every_steps=5"],
        &["rewind save.every_steps=0"],
    ),
    ("train.spike_sigma", "0.1 to 1e6", &["0.1", "1e6"], &["0", "1.1e6"]),
    ("train.spike_window", "8 to 65536", &["8", "65536"], &["7", "65537"]),
    (
        "train.skip_samples",
        "ascending spans up to 2^50, apart",
        &["[]", "[[0,8]]", "[[8,16],[24,32]]"],
        &["[[8,8]]", "[[16,8]]", "[[8,16],[16,32]]", "[[8]]", "[[0,1125899906842625]]"],
    ),
    ("train.integrity.every_steps", "0 (never) to 2^40", &["0", "1099511627776"], &["-1", "1099511627777"]),
    ("train.integrity.at_rest_every", "0 (never) to 2^40", &["0", "1099511627776"], &["-1", "1099511627777"]),
    (
        "parallel.shard",
        "0 to 2^20; above 1 not with `ddp`",
        &["0", "2 parallel.data=zero1", "1048576 parallel.data=zero3"],
        &["2", "1048577 parallel.data=zero1"],
    ),
    (
        "parallel.annotate",
        "names of parameters; `replicate`, `shard(0)`, `shard(1)`",
        &["{\"layers.*.mlp.*\"=\"replicate\"}", "{\"layers.0.mlp.down.weight\"=\"shard(1)\"}", "{}"],
        &["{\"layers.*.mpl.*\"=\"replicate\"}", "{\"*\"=\"shard(1)\"}", "{\"*\"=\"rows\"}"],
    ),
    ("train.stored_micro_batches", "0 to 2^20", &["0", "1048576"], &["1048577"]),
    (
        "parallel.tensor",
        "1 to 2^20, a grid or a cube; divides heads and widths",
        &["1", "2", "4", "{grid=[2,2]}", "{grid=[1,2],depth=2}", "{cube=2}"],
        &[
            "0",
            "3",
            "1048577",
            "{grid=[0,2]}",
            "{grid=[2]}",
            "{grid=[2,2],depth=0}",
            "{cube=0}",
            "{cube=1025}",
            "{tube=2}",
        ],
    ),
    (
        "parallel.context",
        "1 to 2^20; divides `train.seq_len`; not with a grid of `tensor`",
        &["1", "2", "2 parallel.tensor=2"],
        &["0", "1048577", "2 parallel.tensor={cube=2}"],
    ),
    (
        "parallel.context_heads",
        "1, or a divisor of `context` below it; not with \"ulysses\"",
        &["1", "2 parallel.context=4", "2 parallel.context=4 parallel.context_method=\"ring\""],
        &[
            "0",
            "2",
            "2 parallel.context=2",
            "3 parallel.context=4",
            "2 parallel.context=4 parallel.context_method=\"ulysses\"",
        ],
    ),
    (
        "parallel.experts",
        "1 to 2^20; a divisor of `model.experts.count`",
        &["1", "2 model.architecture=\"mixtral\""],
        &["0", "1048577", "2", "3 model.architecture=\"mixtral\""],
    ),
    (
        "parallel.shadows",
        "0 to 1024; above 0 with `experts` above 1",
        &[
            "0",
            "2 model.architecture=\"mixtral\" parallel.experts=2 parallel.shadow_flops=1e11 parallel.shadow_bandwidth=1e9",
        ],
        &[
            "1025 model.architecture=\"mixtral\" parallel.experts=2 parallel.shadow_flops=1e11 parallel.shadow_bandwidth=1e9",
        ],
    ),
    (
        "parallel.shadow_flops",
        "above 0; with `shadows`",
        &["0.0", "1e11"],
        &[
            "-1.0",
            "0.0 model.architecture=\"mixtral\" parallel.experts=2 parallel.shadows=1 parallel.shadow_bandwidth=1e9",
        ],
    ),
    (
        "parallel.shadow_bandwidth",
        "above 0; with `shadows`",
        &["0.0", "1e9"],
        &[
            "-1.0",
            "0.0 model.architecture=\"mixtral\" parallel.experts=2 parallel.shadows=1 parallel.shadow_flops=1e11",
        ],
    ),
    ("parallel.pipeline", "1 to 2^20", &["1", "1048576"], &["0", "1048577"]),
    ("parallel.schedule", "a schedule, or a file with a `.` in its name", &["zb-h1", "a.sched"], &["1f2b"]),
    ("parallel.chunks", "0 to 1024", &["0", "1024"], &["1025"]),
    ("parallel.values_in_flight", "1 to 1024", &["1", "1024"], &["0", "1025"]),
    ("parallel.gradients_in_flight", "1 to 1024", &["1", "1024"], &["0", "1025"]),
    (
        "parallel.order",
        "each axis at most once",
        &["[]", "[\"pipeline\",\"tensor\"]", "[\"replicate\",\"shard\",\"context\",\"tensor\",\"pipeline\"]"],
        &["[\"shard\",\"shard\"]", "[\"rows\"]"],
    ),
    ("parallel.window", "1 to 65536", &["1", "65536"], &["0", "65537"]),
    ("parallel.memory_limit", "0 or more", &["0", "2.5"], &["-1"]),
    ("parallel.planned.ranks", "0 to 2^20", &["0", "1048576"], &["1048577"]),
    ("loader.seed", "0 to 2^63 - 1", &["0", "9223372036854775807"], &["-1"]),
    (
        "loader.order",
        "grouped with `shuffle`, without documents",
        &["uniform", "grouped"],
        &["blocks", "grouped loader.shuffle=false", "grouped train.lengths=padded"],
    ),
    ("loader.block", "a size up to `group`", &["\"64 KiB\"", "1B"], &["0", "lots", "512MiB"]),
    ("loader.group", "a size of at least `block`", &["8MiB", "\"2 TiB\""], &["7MiB", "lots"]),
    ("loader.prefetch", "a size", &["\"0\"", "\"64 MiB\"", "\"1B\""], &["\"\"", "lots", "-1MiB"]),
    (
        "loader.cache",
        "0 or a size of at least 1 MiB",
        &["\"0\"", "1MiB", "\"3 GiB\""],
        &["\"\"", "1kB", "lots"],
    ),
    ("loader.threads", "1 to 64", &["1", "64"], &["0", "65"]),
    (
        "optim.state",
        "in 8 bits only with `adamw` and `optim.eps` of at least 1e-12",
        &["f32", "int8", "int8-embeddings", "int8 optim.eps=1e-12"],
        &["int4", "int8 optim.optimizer=lion", "int8 optim.eps=1e-13"],
    ),
    (
        "optim.lr",
        "0 to 100; `lr * weight_decay` at most 1",
        &["0", "100 optim.weight_decay=0"],
        &["-1", "101 optim.weight_decay=0", "100"],
    ),
    ("optim.min_lr_ratio", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("optim.beta1", "0 to 0.9999999", &["0", "0.9999999"], &["-0.1", "1"]),
    ("optim.beta2", "0 to 0.9999999", &["0", "0.9999999"], &["-0.1", "1"]),
    ("optim.eps", "1.2e-38 to 1", &["1.2e-38", "1"], &["0", "1.1e-38", "1.1"]),
    ("optim.weight_decay", "0 to 100", &["0", "100"], &["-1", "101"]),
    ("optim.clip", "0 to 1e30", &["0", "1e30"], &["-1", "1.1e30"]),
    ("optim.warmup_steps", "at least 0", &["0", "5", "6"], &["-1"]),
    ("optim.warmup_fraction", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("optim.decay_fraction", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("optim.decay_power", "0 to 10", &["0", "10"], &["-0.1", "11"]),
    ("optim.cycles", "1 to 2^20", &["1", "1048576"], &["0", "1048577"]),
    ("optim.sgd.momentum", "0 to 0.9999999", &["0", "0.9999999"], &["-0.1", "1"]),
    ("optim.adafactor.momentum", "0 to 0.9999999", &["0", "0.9999999"], &["-0.1", "1"]),
    ("optim.adafactor.decay_power", "0.1 to 1", &["0.1", "1"], &["0", "1.1"]),
    ("optim.adafactor.clip_threshold", "1e-6 to 1e6", &["1e-6", "1e6"], &["0", "1e7"]),
    ("optim.adafactor.eps", "1.2e-38 to 1", &["1.2e-38", "1"], &["0", "1.1"]),
    ("optim.adafactor.eps_parameter", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    (
        "optim.muon.lr",
        "0 to 100; above 0 only with `optim.lr` above 0",
        &["0", "0.02 optim.optimizer=muon"],
        &["-1", "101", "0.02 optim.optimizer=muon optim.lr=0"],
    ),
    ("optim.muon.momentum", "0 to 0.9999999", &["0", "0.9999999"], &["-0.1", "1"]),
    ("optim.muon.steps", "1 to 100", &["1", "100"], &["0", "101"]),
    (
        "optim.kfac.lr",
        "0 to 100; above 0 only with `optim.lr` above 0",
        &["0", "0.02 optim.optimizer=kfac"],
        &["-1", "101", "0.02 optim.optimizer=kfac optim.lr=0"],
    ),
    ("optim.kfac.momentum", "0 to 0.9999999", &["0", "0.9999999"], &["-0.1", "1"]),
    ("optim.kfac.damping", "0 to 1e6", &["0", "1e6"], &["-1", "1.1e6"]),
    ("optim.kfac.decay", "0 to 0.9999999", &["0", "0.9999999"], &["-0.1", "1"]),
    ("optim.kfac.curvature_every", "1 to 2^40", &["1", "1099511627776"], &["0", "1099511627777"]),
    ("optim.kfac.inverse_every", "1 to 2^40", &["1", "1099511627776"], &["0", "1099511627777"]),
    ("optim.kfac.kl_clip", "0 to 1e30", &["0", "1e30"], &["-1", "1.1e30"]),
    ("save.every_steps", "0 to 2^48", &["0", "281474976710656"], &["281474976710657"]),
    ("save.every_seconds", "0 to 31622400 (366 days)", &["0", "31622400"], &["31622401"]),
    ("save.overhead", "1e-6 to 1", &["1e-6", "1"], &["0", "1.1"]),
    ("save.mtbf_hours", "0.001 to 1e9", &["0.001", "1e9"], &["0", "1.1e9"]),
    ("save.keep_last", "1 to 1000000", &["1", "1000000"], &["0", "1000001"]),
    ("save.keep_every", "0 to 2^48", &["0", "281474976710656"], &["281474976710657"]),
    (
        "save.keep_best",
        "0 to 1000; needs `eval.every_steps`",
        &["0", "1000 eval.every_steps=5"],
        &["1001 eval.every_steps=5", "1 eval.every_steps=0"],
    ),
    (
        "save.upload",
        "empty, or a bucket behind `s3://`, `gs://` or `az://`",
        &["\"\"", "\"s3://bucket/prefix\"", "\"gs://bucket\""],
        &["\"bucket\"", "\"s3://\"", "\"https://host/x\""],
    ),
    ("save.max_file_mib", "1 to 2^24", &["1", "16777216"], &["0", "16777217"]),
    ("save.memory.every_steps", "0 to 2^48", &["0", "281474976710656"], &["281474976710657"]),
    ("save.memory.copies", "1 to 16", &["1", "16"], &["0", "17"]),
    ("save.memory.ranks_per_domain", "0 to 2^20", &["0", "1048576"], &["1048577"]),
    ("save.memory.limit_mib", "0 to 2^40", &["0", "1099511627776"], &["1099511627777"]),
    ("save.memory.rate_mib", "0 to 2^20", &["0", "1048576"], &["1048577"]),
    ("save.memory.directory", "an absolute path", &["/dev/shm", "/mnt/memory"], &["shm"]),
    ("eval.every_steps", "at least 0", &["0"], &["-1"]),
    ("eval.max_tokens", "at least 0", &["0"], &["-1"]),
    ("eval.samples.every_steps", "at least 0", &["0"], &["-1"]),
    ("eval.tasks.names", "at most 1000", &["[]", "[\"logic\", \"grammar\"]"], &[]),
    ("eval.tasks.every_steps", "at least 0", &["0"], &["-1"]),
    ("eval.tasks.limit", "at least 0", &["0"], &["-1"]),
    ("eval.tasks.max_generated_tokens", "0 to 65536", &["0", "65536"], &["65537"]),
    ("eval.samples.prompts", "at most 10000", &["[]", "[\"a\", \"b\"]"], &[]),
    ("eval.samples.per_prompt", "1 to 10000", &["1", "10000"], &["0", "10001"]),
    (
        "eval.samples.generate.stop",
        "at most 64 strings of 1 to 4096 bytes",
        &["[]", "[\"END\",\"x\"]"],
        &["[\"\"]"],
    ),
    ("eval.samples.generate.max_tokens", "0 to 2^32", &["0", "4294967296"], &["4294967297"]),
    ("eval.samples.generate.sampling.temperature", "0 to 100", &["0", "100"], &["-1", "101"]),
    ("eval.samples.generate.sampling.top_k", "at least 0", &["0"], &["-1"]),
    ("eval.samples.generate.sampling.top_p", "above 0, to 1", &["0.01", "1"], &["0", "1.1"]),
    ("eval.samples.generate.min_tokens", "0 to max_tokens", &["0", "128"], &["129"]),
    ("eval.samples.generate.stop_token_ids", "at most 1024", &["[]", "[0, 7]"], &[]),
    ("eval.samples.generate.sampling.min_p", "0 to 1", &["0", "1"], &["-0.1", "1.1"]),
    ("eval.samples.generate.sampling.frequency_penalty", "-2 to 2", &["-2", "2"], &["-2.1", "2.1"]),
    ("eval.samples.generate.sampling.presence_penalty", "-2 to 2", &["-2", "2"], &["-2.1", "2.1"]),
    ("eval.samples.generate.sampling.repetition_penalty", "0.01 to 100", &["0.01", "100"], &["0", "101"]),
    ("eval.samples.generate.sampling.seed", "0 to 2^63 - 1", &["0", "9223372036854775807"], &["-1"]),
    ("eval.ngram.order", "1 to 7", &["1", "7"], &["0", "8"]),
    ("eval.ngram.max_memory", "at least 1048576", &["1048576"], &["1048575"]),
];

fn range(key: &str) -> Option<&'static str> {
    RANGES.iter().find(|r| r.0 == key).map(|r| r.1)
}

/// The object that a schema is or refers to.
fn settled<'a>(root: &'a Json, schema: &'a Json) -> &'a Json {
    let target = schema.get("$ref").and_then(Json::as_str).and_then(|r| root.pointer(r.strip_prefix('#')?));
    // An option of a named type: the one alternative that is not null.
    let option = schema.get("anyOf").and_then(Json::as_array);
    let inner =
        option.and_then(|all| all.iter().find(|s| s.get("type").and_then(Json::as_str) != Some("null")));
    match (target, inner) {
        (Some(target), _) => target,
        (_, Some(inner)) => settled(root, inner),
        _ => schema,
    }
}

/// The schemas of a value of several kinds.
fn alternatives(schema: &Json) -> Option<&Vec<Json>> {
    schema.get("anyOf").and_then(Json::as_array).filter(|all| all.iter().all(|one| one["type"] != "null"))
}

/// (name, meaning) of the values of an enum, or of the names that a value of several kinds may be.
fn values<'a>(root: &'a Json, schema: &'a Json) -> Option<Vec<(&'a str, &'a str)>> {
    let text = |s: &'a Json, key| s.get(key).and_then(Json::as_str);
    if let Some(several) = alternatives(schema) {
        return several.iter().find_map(|one| values(root, settled(root, one)));
    }
    let all = schema.get("oneOf").and_then(Json::as_array)?;
    all.iter().map(|s| Some((text(s, "const")?, text(s, "description").unwrap_or_default()))).collect()
}

fn properties(schema: &Json) -> Option<&Map<String, Json>> {
    schema.get("properties").and_then(Json::as_object)
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ").replace('|', "\\|").trim().to_owned()
}

fn kind(root: &Json, schema: &Json) -> &'static str {
    if let Some(several) = alternatives(schema) {
        let of = |one: &Json| {
            let one = settled(root, one);
            if properties(one).is_some() { "table" } else { kind(root, one) }
        };
        let kinds: Vec<&str> = several.iter().map(of).collect();
        return match kinds[..] {
            ["name", "list of texts"] => "name, or list of texts",
            ["name", "list of integers"] => "name, or list of integers",
            ["name", "number"] => "name, or number",
            ["integer", "list of integers"] => "integer, or list of integers",
            ["integer", "name"] => "name, or integer",
            ["integer", "table", "table"] => "integer, or table",
            _ => panic!("kinds of one value that this page cannot name: {kinds:?}"),
        };
    }
    if values(root, schema).is_some() {
        return "name";
    }
    let one = match schema.get("type") {
        Some(Json::Array(several)) => several.first().and_then(Json::as_str),
        other => other.and_then(Json::as_str),
    };
    match one {
        Some("integer") => "integer",
        Some("number") => "number",
        Some("boolean") => "true or false",
        Some("string") => "text",
        Some("object") => match kind(root, settled(root, &schema["additionalProperties"])) {
            "text" => "table of texts",
            "integer" => "table of integers",
            "number" => "table of numbers",
            "name, or list of texts" => "table of names or lists",
            "name" => "table of names",
            other => panic!("a table of {other} that this page cannot name"),
        },
        Some("array") => match schema.get("items").map(|items| settled(root, items)).and_then(properties) {
            Some(_) => "list of tables",
            None if schema["items"]["type"] == "array" => "list of pairs",
            None if schema["items"]["type"] == "integer" => "list of integers",
            None => "list of texts",
        },
        other => panic!("a type that this page cannot name: {other:?} in {schema}"),
    }
}

fn default_of(schema: &Json) -> String {
    match schema.get("default") {
        None | Some(Json::Null) => "not set".into(),
        Some(value) => format!("`{}`", value.to_string().replace(",", ", ").replace('|', "\\|")),
    }
}

/// The path of a table, or of the tables of a list.
fn heading(path: &str) -> String {
    let plain = path.replace("[]", "");
    if path.ends_with("[]") { format!("[[{plain}]]") } else { format!("[{plain}]") }
}

fn write_section(root: &Json, schema: &Json, path: &str, keys: &mut Vec<(String, bool)>, page: &mut String) {
    let _ = writeln!(page, "\n### `{}`\n", heading(path));
    if let Some(text) = schema.get("description").and_then(Json::as_str) {
        // "`[run]`: name, place" repeats the heading.
        let text = cell(text);
        let text = text.strip_prefix(&format!("`{}`: ", heading(path))).unwrap_or(&text);
        let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
        let _ = writeln!(page, "{}{rest}\n", first.to_uppercase());
    }
    let _ = writeln!(page, "| key | type | default | allowed | meaning |\n|---|---|---|---|---|");
    let (mut inner, mut enums, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for (name, property) in properties(schema).unwrap() {
        let target = settled(root, property);
        if properties(target).is_some() {
            inner.push((name, target));
            continue;
        }
        let key = format!("{path}.{name}");
        let names = values(root, target);
        if let Some(item) = target.get("items").map(|items| settled(root, items))
            && properties(item).is_some()
        {
            lists.push((format!("{path}.{name}[]"), item));
        }
        // What lists hold cannot be set from outside, so its range is not tried here.
        let tried = !path.ends_with("[]");
        if tried {
            keys.push((key.clone(), matches!(kind(root, target), "integer" | "number")));
        }
        let allowed = match &names {
            Some(names) => names.iter().map(|v| format!("`{}`", v.0)).collect::<Vec<_>>().join(", "),
            None => range(&key).unwrap_or_default().into(),
        };
        let meaning = property.get("description").and_then(Json::as_str).unwrap();
        let _ = writeln!(
            page,
            "| `{name}` | {} | {} | {allowed} | {} |",
            kind(root, target),
            default_of(property),
            cell(meaning)
        );
        enums.extend(names.map(|v| (name, v)));
    }
    for (name, values) in enums {
        let _ = writeln!(page, "\n| `{name}` | meaning |\n|---|---|");
        for (value, meaning) in values {
            let _ = writeln!(page, "| `{value}` | {} |", cell(meaning));
        }
    }
    for (path, item) in lists {
        write_section(root, item, &path, keys, page);
    }
    for (name, target) in inner {
        write_section(root, target, &format!("{path}.{name}"), keys, page);
    }
}

/// The list of keys as Markdown, and (key, is a number) of each.
fn keys_of_a_recipe() -> (String, Vec<(String, bool)>) {
    let schema = json_schema::<Recipe>();
    let (mut page, mut keys) = (String::new(), Vec::new());
    for (name, property) in properties(&schema).unwrap() {
        let target = settled(&schema, property);
        if properties(target).is_some() {
            write_section(&schema, target, name, &mut keys, &mut page);
        }
    }
    (page, keys)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_of_all_keys_is_what_the_schema_says() {
    let path = root().join("docs/recipes.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("the page has the line that begins the list");
    let (_, tail) = rest.split_once(END).expect("the page has the line that ends the list");
    let wanted = format!("{head}{BEGIN}\n{}\n{END}{tail}", keys_of_a_recipe().0);
    if std::env::var("BESSEMER_GOLDEN").as_deref() == Ok("write") {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    let stale = wanted.lines().zip(found.lines()).find(|(w, f)| w != f);
    assert!(
        wanted == found,
        "docs/recipes.md is out of date, first at {stale:?}; write it anew with BESSEMER_GOLDEN=write"
    );
}

#[test]
fn ranges_on_the_page_are_those_that_the_program_enforces() {
    let keys = keys_of_a_recipe().1;
    for (key, is_number) in &keys {
        assert!(!is_number || range(key).is_some(), "{key}: no range in this test");
    }
    let load = |key: &str, setting: &str| {
        // A value may hold spaces inside brackets; further settings have a dot before their first `=`.
        let mut sets: Vec<String> = Vec::new();
        for word in format!("{key}={setting}").split(' ') {
            match word.split_once('=') {
                Some((name, _)) if name.contains('.') && !name.contains('"') => sets.push(word.into()),
                _ => {
                    let last = sets.last_mut().unwrap();
                    last.push(' ');
                    last.push_str(word);
                }
            }
        }
        parse_recipe("recipe.toml", BASE, &sets)
    };
    for (key, _, accepted, refused) in RANGES {
        assert!(keys.iter().any(|k| k.0 == *key), "{key} is no key of a recipe");
        for setting in *accepted {
            load(key, setting).unwrap_or_else(|e| panic!("{key}={setting} should be allowed:\n{e}"));
        }
        for setting in *refused {
            let Err(error) = load(key, setting) else { panic!("{key}={setting} should be refused") };
            let name = key.rsplit('.').next().unwrap();
            assert!(
                error.to_string().contains(name),
                "{key}={setting}: the message should name the key:\n{error}"
            );
        }
    }
}

/// Recipes printed on a page between ```` ```toml ```` fences.
fn recipes_on(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.trim() {
            "```toml" => {
                inside = true;
                found.push(String::new());
            }
            "```" => inside = false,
            _ if inside => {
                let text = found.last_mut().unwrap();
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    found
}

#[test]
fn every_recipe_printed_in_the_documentation_loads() {
    let folder = tempfile::tempdir().unwrap();
    // A page names the base of a recipe beside the shipped ones, or as seen from the workspace.
    let shipped = folder.path().join("recipes");
    fs::create_dir(&shipped).unwrap();
    for entry in fs::read_dir(root().join("recipes")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        fs::copy(entry.path(), shipped.join(entry.file_name())).unwrap();
    }
    // What an import leaves.
    let base = folder.path().join("runs/base");
    fs::create_dir_all(&base).unwrap();
    let model = ModelConfig::default().resolve(Some(300)).unwrap();
    let imported = continued_recipe(
        ModelConfig::of(&model),
        Path::new("runs/base"),
        Some(Path::new("runs/base/tokenizer.json")),
    );
    fs::write(base.join("recipe.toml"), imported.unwrap()).unwrap();
    let mut pages = vec![root().join("README.md")];
    pages.extend(fs::read_dir(root().join("docs")).unwrap().map(|e| e.unwrap().path()));
    // What is printed there describes networks, and is read by the tests of the program.
    pages.retain(|page| !page.ends_with("docs/network.md"));
    let mut seen = 0;
    for path in pages.iter().filter(|p| p.extension().is_some_and(|e| e == "md")) {
        for text in recipes_on(&fs::read_to_string(path).unwrap()) {
            seen += 1;
            // A printed recipe may leave out how long to train; a base is looked for among the shipped recipes.
            let duration: Vec<String> = match text.contains("[train]") || text.contains("base =") {
                true => vec![],
                false => vec!["train.steps=5".into()],
            };
            let file = folder.path().join(format!("printed-{seen}.toml"));
            fs::write(&file, &text).unwrap();
            load_recipe_for(&file, &duration, None, RecipeUse::Training, bessemer_corpus::check)
                .unwrap_or_else(|e| panic!("{}:\n{text}\n{e}", path.display()));
        }
    }
    assert!(seen >= 3, "{seen}");
}
