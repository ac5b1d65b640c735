//! From a file of chats and a trained model to a tuned model.

use crate::serve::post;
use crate::workplace::{Finished, LLAMA, Workplace};
use bessemer_shards::ShardSet;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

const CONTEXT: &str = "96";

/// A model with the tokens of ChatML in `runs/t`, chats in `chats.jsonl` and a recipe that tunes the model on them.
fn prepared() -> Workplace {
    let place = Workplace::new(&LLAMA.replace("32\ntied", &format!("{CONTEXT}\ntied")));
    place.train(&[
        "tokenizer.special_tokens=[\"<|endoftext|>\",\"<|im_start|>\",\"<|im_end|>\"]",
        "train.steps=4",
    ]);
    let text = format!(
        "[run]\nname = \"tuned\"\nthreads = 1\npin_threads = false\n\
         [corpus]\nsource = \"jsonl\"\npath = \"chats.jsonl\"\n[corpus.chats]\ntemplate = \"chatml\"\n\
         [tokenizer]\nfile = \"runs/t/tokenizer.json\"\n[model]\nvocab_size = 300\n{}\
         [model.adapters]\nrank = 4\ntargets = [\"query\", \"value\", \"down\"]\n\
         [train]\nlengths = \"padded\"\nbatch_tokens = 768\nseq_len = {CONTEXT}\nsteps = 12\n[train.init]\nfrom = \"runs/t\"\n\
         [optim]\nlr = 2e-2\nwarmup_steps = 2\n[eval.samples]\nprompts = []\n",
        LLAMA.replace("32\ntied", &format!("{CONTEXT}\ntied"))
    );
    fs::write(place.path("tune.toml"), text).unwrap();
    write_chats(&place, &[]);
    place
}

/// Fifty chats of three forms, and other rows after them.
fn write_chats(place: &Workplace, more: &[Value]) {
    let colour = |number: usize| ["red", "green", "blue"][number % 3];
    let chat = |number: usize| {
        let (question, answer) = (format!("hill {number}?"), format!("{} <|im_end|>", colour(number)));
        match number % 3 {
            0 => {
                json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question},
                        {"role": "assistant", "content": answer}, {"role": "user", "content": "and?"}, {"role": "assistant", "content": "rain"}]})
            }
            1 => {
                json!({"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]})
            }
            _ => json!({"prompt": question, "completion": answer}),
        }
    };
    let rows: Vec<String> =
        (0..50).map(chat).chain(more.iter().cloned()).map(|row| row.to_string()).collect();
    fs::write(place.path("chats.jsonl"), rows.join("\n")).unwrap();
}

/// Documents of both splits of a run: tokens, and those of them that are scored.
fn documents(place: &Workplace, run: &str) -> Vec<(Vec<u32>, Vec<bool>)> {
    let mut all = Vec::new();
    for split in ["train", "validation"] {
        let set = ShardSet::open(place.path(run).join("shards"), split).unwrap();
        let mut tokens = vec![0; set.token_count() as usize];
        set.read(0, &mut tokens).unwrap();
        let mut masked = tokens.clone();
        set.replace_unscored(0, &mut masked, u32::MAX).unwrap();
        for number in 0..set.document_count() {
            let range = set.document_tokens(number).unwrap().unwrap();
            let range = range.start as usize..range.end as usize;
            let scored = masked[range.clone()].iter().map(|token| *token != u32::MAX).collect();
            all.push((tokens[range].to_vec(), scored));
        }
    }
    all.sort();
    all
}

/// Runs the recipe of [`prepared`] with other keys.
fn tune(place: &Workplace, sets: &[&str]) -> Finished {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    place.bessemer(&["run", "tune.toml"].into_iter().chain(sets).collect::<Vec<&str>>())
}

fn losses(place: &Workplace, run: &str) -> Vec<f64> {
    let log = fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap();
    let steps = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    steps.filter(|r| r["kind"] == "step").map(|r| r["loss"].as_f64().unwrap()).collect()
}

#[test]
fn chats_become_masked_shards_and_a_tuned_model() {
    let place = prepared();
    write_chats(&place, &[json!({"prompt": "a", "completion": ""})]);
    let done = place.bessemer(&["run", "tune.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    for part in [
        "1 row left out (bad-chat)",
        "bessemer chat show chats.jsonl --template chatml --tokenizer runs/t/tokenizer.json",
        "scored",
    ] {
        assert!(done.err.contains(part), "wanted {part:?} in:\n{}", done.err);
    }
    let tuned = losses(&place, "runs/tuned");
    assert!(tuned.len() == 12 && tuned[11] < tuned[0] - 0.2, "{tuned:?}");

    // The shards have the tokens that `chat show` prints, with the same scored ones.
    let show = ["chat", "show", "chats.jsonl", "--template", "runs/tuned", "--chats", "50", "--json"];
    let mut wanted: Vec<(Vec<u32>, Vec<bool>)> = Vec::new();
    for line in place.bessemer(&show).text().lines() {
        let chat: Value = serde_json::from_str(line).unwrap();
        let ids: Vec<u32> = serde_json::from_value(chat["ids"].clone()).unwrap();
        let ranges: Vec<[usize; 2]> = serde_json::from_value(chat["scored"].clone()).unwrap();
        let scored = (0..ids.len()).map(|at| ranges.iter().any(|[start, end]| (*start..*end).contains(&at)));
        wanted.push((ids.clone(), scored.collect()));
    }
    wanted.sort();
    assert_eq!(wanted.len(), 50);
    assert_eq!(documents(&place, "runs/tuned"), wanted);

    // A sample begins with the first token of its chat, which nothing predicts.
    let train = ShardSet::open(place.path("runs/tuned/shards"), "train").unwrap();
    let mean = train.token_count() as f64 / train.document_count() as f64 - 1.0;
    let words = format!("{mean:.1} tokens each on average");
    assert!(done.err.contains(&words), "wanted {words:?} in:\n{}", done.err);

    // Nothing is made again, and a template, answers or rows that changed are.
    let again = place.bessemer(&["run", "tune.toml"]);
    assert!(again.err.contains("scored); up to date"), "{}", again.err);
    let shards = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let words: Vec<&str> = ["run", "tune.toml", "--set", "run.name=other", "--set", "train.steps=1"]
            .into_iter()
            .chain(sets)
            .collect();
        let done = place.bessemer(&words);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let line = |name: &str| {
            let line = done.err.lines().find(|line| line.starts_with(name));
            line.unwrap_or_else(|| panic!("{name}: {}", done.err)).contains("up to date")
        };
        (line("corpus"), line("shards"))
    };
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}: {% generation %}{{ m.content if m.role == 'assistant' }}{% endgeneration %}\
                    {{ m.content if m.role != 'assistant' }}{% endfor %}";
    fs::write(place.path("own.jinja"), template).unwrap();
    let own = "corpus.chats.template=own.jinja";
    assert_eq!(shards(&[own]), (false, false));
    assert_eq!(shards(&[own]), (true, true));
    fs::write(place.path("own.jinja"), template.replace(": ", ">")).unwrap();
    assert_eq!(shards(&[own]), (true, false));
    let stored = fs::read_to_string(place.path("runs/other/chat_template.jinja")).unwrap();
    assert_eq!(stored, template.replace(": ", ">"));
    assert_eq!(shards(&[own, "corpus.chats.answers=last"]), (true, false));
    write_chats(&place, &[]);
    assert_eq!(shards(&[own]), (false, false));

    place.bessemer(&["checkpoint", "export", "runs/tuned", "--out", "exported"]).text();
    for name in ["chat_template.jinja", "tokenizer_config.json"] {
        let [run, out] = ["runs/tuned", "exported"].map(|dir| fs::read(place.path(dir).join(name)).unwrap());
        assert_eq!(run, out, "{name}");
    }
}

#[test]
fn what_does_not_go_with_chats_is_refused() {
    let place = prepared();
    let run = |sets: &[&str]| tune(&place, sets);
    for (set, parts) in [
        ("train.lengths=packed", ["train.lengths = \"packed\"", "\"padded\""]),
        ("tokenizer.file=\"\"", ["wanted tokenizer.file", "bessemer init"]),
        ("model.document_mask=true", ["model.document_mask", "wanted false"]),
        ("corpus.source=folder", ["corpus.source = \"folder\"", "jsonl"]),
        ("corpus.clean.min_bytes=7", ["[corpus.clean]", "exact_dedup"]),
        ("corpus.dedup.methods=[\"lines\"]", ["corpus.dedup.methods", "minhash"]),
        ("corpus.rules.profiles=[\"c4\"]", ["corpus.rules.profiles", "corpus.rules.keep"]),
        ("corpus.chats.answers=first", ["corpus.chats.answers", "last"]),
    ] {
        run(&[set]).failed(78, &parts);
    }
    for (set, parts) in [
        ("corpus.chats.template=lama-3", ["corpus.chats.template", "did you mean \"llama-3\""]),
        ("corpus.chats.template=llama-3", ["<|eot_id|>", "special tokens"]),
        ("corpus.chats.template=\"\"", ["train.init.from", "wanted chat_template.jinja"]),
        ("corpus.path=none.jsonl", ["none.jsonl", ""]),
    ] {
        run(&[set]).failed(1, &parts);
    }
    assert!(!place.path("runs/tuned").exists(), "refused before anything is made");

    // A long chat loses its oldest turns; the last question with its answer is never cut.
    let turn = |role: &str, words: usize| json!({"role": role, "content": "rain ".repeat(words)});
    let older =
        json!({"messages": [turn("user", 60), turn("assistant", 60), turn("user", 2), turn("assistant", 2)]});
    let long = json!({"messages": [turn("user", 2), turn("assistant", 90)]});
    write_chats(&place, &[older, long]);
    run(&[])
        .failed(1, &["chats.jsonl#52", "never cut", "train.seq_len = 96", "corpus.chats.long = \"drop\""]);
    assert!(!place.path("runs/tuned/checkpoints").exists());
    let dropped = run(&["corpus.chats.long=drop", "train.steps=1"]);
    assert_eq!(dropped.code, Some(0), "{}", dropped.err);
    for part in ["1 chat left out", "1 chat of more than 96 tokens without their oldest turns"] {
        assert!(dropped.err.contains(part), "wanted {part:?} in:\n{}", dropped.err);
    }
    let found = documents(&place, "runs/tuned");
    assert!(found.len() == 51 && found.iter().all(|(tokens, _)| tokens.len() <= 96));

    // Rows that are all wrong.
    fs::write(place.path("chats.jsonl"), "{\"text\": \"a\"}\n{\"messages\": []}\n").unwrap();
    run(&["run.name=wrong"]).failed(1, &["bad-chat", "bessemer chat show"]);
}

#[test]
fn init_writes_a_recipe_that_tunes_a_model() {
    let place = prepared();
    let init = |words: &[&str]| {
        place.bessemer(&[&["init", "--chats", "chats.jsonl", "--out", "mine.toml"], words].concat())
    };
    init(&["--from", "runs/t"]).failed(1, &["runs/t: wanted chat_template.jinja", "chatml", "--template"]);
    init(&["--from", "runs/t", "--template", "llama-3"]).failed(1, &["<|eot_id|>"]);
    init(&["--from", "text"]).failed(1, &["--from text", "config.json"]);
    init(&[]).failed(2, &["--from"]);
    fs::write(place.path("chats.parquet"), "PAR1").unwrap();
    let words = [
        "init",
        "--from",
        "runs/t",
        "--template",
        "chatml",
        "--chats",
        "chats.parquet",
        "--out",
        "mine.toml",
    ];
    place.bessemer(&words).failed(1, &["cannot read chats.parquet"]);
    fs::create_dir(place.path("strange")).unwrap();
    fs::write(place.path("strange/config.json"), "{\"model_type\": \"mamba\"}").unwrap();
    init(&["--from", "strange"]).failed(1, &["\"mamba\" is not supported; supported: gpt2, llama"]);
    assert!(!place.path("mine.toml").exists() && !place.path("runs/strange").exists());

    // A directory of Hugging Face's layout is imported, and its template is the one of the recipe.
    let chatml = ["--from", "runs/t", "--template", "chatml"];
    let made = init(&[&chatml[..], &["--json"]].concat()).json();
    assert_eq!(
        (&made["chats"], &made["rank"], &made["too_long"]),
        (&json!(50), &json!(16), &json!(0)),
        "{made}"
    );
    let recipe = fs::read_to_string(place.path("mine.toml")).unwrap();
    assert!(recipe.contains("forgetting = \"runs/t\""), "{recipe}");
    assert_eq!((&made["equal"], &made["new_tokens"]), (&json!(0), &json!(["<|im_start|>", "<|im_end|>"])));
    let recipe = fs::read_to_string(place.path("mine.toml")).unwrap();
    assert!(recipe.contains("architecture = \"llama\""), "{recipe}");
    assert!(recipe.contains("trained = [\"embed.tokens\", \"head.weight\"]"), "{recipe}");
    init(&chatml).failed(1, &["mine.toml", "exists"]);
    let run = [
        "run",
        "mine.toml",
        "--set",
        "run.threads=1",
        "--set",
        "run.pin_threads=false",
        "--set",
        "train.epochs=0",
    ];
    let done = place.bessemer(&[&run[..], &["--set", "train.steps=3"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.err);
    place.bessemer(&["checkpoint", "export", "runs/mine", "--out", "model"]).text();
    fs::remove_file(place.path("mine.toml")).unwrap();
    // Chats that are longer than the context, and a wrong row.
    let long = json!({"prompt": "a", "completion": "rain ".repeat(90)});
    write_chats(&place, &[long, json!({"text": "a"})]);
    let made = init(&["--from", "model"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    assert!(made.err.contains("chats.jsonl, line 52: wanted messages"), "{}", made.err);
    let recipe = fs::read_to_string(place.path("mine.toml")).unwrap();
    assert!(!recipe.contains("forgetting = "), "an imported model has no held-out text:\n{recipe}");
    assert!(!recipe.contains("trained = "), "the model has been trained on its template:\n{recipe}");
    for part in
        ["from = \"runs/model\"", "long = \"drop\"", "file = \"runs/model/tokenizer.json\"", "keep_best = 1"]
    {
        assert!(recipe.contains(part), "wanted {part} in:\n{recipe}");
    }
    let done = place.bessemer(&[&run[..], &["--set", "train.steps=3", "--set", "run.name=next"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("1 chat left out") && done.err.contains("1 row left out"), "{}", done.err);
}

/// Pairs of answers, and other rows after them.
fn write_pairs(place: &Workplace, more: &[Value]) {
    let pair = |number: usize| {
        let question = format!("hill {number}?");
        let turns = |answer: &str| json!([{"role": "user", "content": question}, {"role": "assistant", "content": answer}]);
        match number % 2 {
            0 => json!({"prompt": question, "chosen": "green", "rejected": "a stone"}),
            _ => json!({"chosen": turns("green"), "rejected": turns("rain")}),
        }
    };
    let rows: Vec<String> =
        (0..40).map(pair).chain(more.iter().cloned()).map(|row| row.to_string()).collect();
    fs::write(place.path("pairs.jsonl"), rows.join("\n")).unwrap();
}

#[test]
fn pairs_of_answers_are_what_a_run_prefers() {
    let place = prepared();
    write_pairs(
        &place,
        &[json!({"prompt": "a", "chosen": "b", "rejected": "b"}), json!({"prompt": "a", "completion": "b"})],
    );
    let run = |sets: &[&str]| tune(&place, &[&["corpus.path=pairs.jsonl"], sets].concat());
    let pairs = ["corpus.chats.pairs=true", "train.preferences.beta=0.3"];
    run(&pairs[..1]).failed(78, &["corpus.chats.pairs = true", "train.preferences.beta above 0", "beta = 0"]);
    run(&pairs[1..]).failed(78, &["corpus.chats.pairs = true", "found pairs = false"]);
    for (set, parts) in [
        ("train.lengths=bucketed", ["train.lengths", "\"padded\""]),
        ("train.micro_batch=1", ["train.micro_batch", "even"]),
        ("model.dropout=0.1", ["model.dropout", "wanted 0"]),
        ("model.adapters.dropout=0.1", ["model.adapters.dropout", "wanted 0"]),
        ("train.z_loss=1e-4", ["train.z_loss", "wanted 0"]),
        ("train.skip_samples=[[2, 7]]", ["7 in train.skip_samples", "wanted even numbers"]),
    ] {
        run(&[&pairs[..], &[set]].concat()).failed(78, &parts);
    }
    assert!(!place.path("runs/tuned").exists(), "refused before anything is made");
    let done = run(&pairs);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("2 rows left out (bad-chat)"), "{}", done.err);
    let log = fs::read_to_string(place.path("runs/tuned/metrics.jsonl")).unwrap();
    let records: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<&Value> = records.iter().filter(|r| r["kind"] == "step").collect();
    let of = |step: &Value, name: &str| step["preferences"][name].as_f64().unwrap();
    assert!(
        steps.len() == 12 && of(steps[0], "margin") == 0.0 && of(steps[11], "margin") > 0.1,
        "{}",
        steps[11]
    );
    let task = records.iter().rfind(|r| r["kind"] == "task").unwrap();
    assert_eq!((&task["task"], &task["metric"]), (&json!("preferences"), &json!("accuracy")), "{task}");
    // The log, a pair of documents for each row.
    for split in ["train", "validation"] {
        let set = ShardSet::open(place.path("runs/tuned/shards"), split).unwrap();
        let mut documents = Vec::new();
        for number in 0..set.document_count() {
            let range = set.document_tokens(number).unwrap().unwrap();
            let mut tokens = vec![0; (range.end - range.start) as usize];
            set.read(range.start, &mut tokens).unwrap();
            let mut masked = tokens.clone();
            set.replace_unscored(range.start, &mut masked, u32::MAX).unwrap();
            let questions = masked.iter().take_while(|token| **token == u32::MAX).count();
            documents.push(tokens[..questions].to_vec());
        }
        let (both, rest) = documents.as_chunks::<2>();
        assert!(rest.is_empty() && both.iter().all(|[chosen, rejected]| chosen == rejected), "{split}");
    }
    // A pair keeps its turns: one that is too long is named, or left out.
    let long = json!({"prompt": "rain ".repeat(90), "chosen": "b", "rejected": "c"});
    write_pairs(&place, &[long]);
    run(&[&pairs[..], &["run.name=long"]].concat())
        .failed(1, &["pairs.jsonl#41", "train.seq_len = 96", "\"drop\""]);
    let dropped = run(&[&pairs[..], &["run.name=long", "corpus.chats.long=drop", "train.steps=1"]].concat());
    assert!(dropped.code == Some(0) && dropped.err.contains("1 chat left out"), "{}", dropped.err);
}

/// Adapters of runs and of PEFT on the base that they were trained on, whose tensors are in memory once.
#[test]
fn adapters_go_on_the_base_that_they_were_trained_on() {
    let place = prepared();
    let adapt = |name: &str, sets: &[&str]| {
        let done = tune(&place, &[&["train.steps=4", &format!("run.name={name}")], sets].concat());
        assert_eq!(done.code, Some(0), "{}", done.err);
    };
    adapt("a", &[]);
    adapt(
        "b",
        &[
            "model.adapters.rank=2",
            "model.adapters.targets=[\"query\",\"gate\"]",
            "train.trained=[\"embed.tokens\"]",
        ],
    );
    let words = ["--prompt", "the hill", "--temperature", "1", "--max-tokens", "24", "--json"];
    let generate =
        |run: &str, more: &[&str]| place.bessemer(&[&["generate", run][..], &words, more].concat());
    let text = |run: &str, more: &[&str]| generate(run, more).json()["text"].clone();
    let (base, a, b) = (text("runs/t", &[]), text("runs/a", &[]), text("runs/b", &[]));
    assert!(base != a && a != b && base != b, "{base} {a} {b}");
    assert_eq!(text("runs/t", &["--adapter", "runs/a"]), a);
    assert_eq!(text("runs/t", &["--adapter", "runs/b"]), b);
    place
        .bessemer(&["checkpoint", "export", "runs/a", "--to", "peft", "--base", "base", "--out", "a-peft"])
        .text();
    assert_eq!(text("runs/t", &["--adapter", "a-peft"]), a);

    // One server with the base and both; a request names one.
    let words = [
        "serve",
        "runs/t",
        "--listen",
        "127.0.0.1:0",
        "--json",
        "--adapter",
        "a=a-peft",
        "--adapter",
        "b=runs/b",
    ];
    let mut server = place.command(&words).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let start: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&start["model"], &start["adapters"]), (&json!("t"), &json!(["a", "b"])));
    let address = start["address"].as_str().unwrap();
    for (model, wanted) in [("t", &base), ("a", &a), ("b", &b), ("a", &a), ("t", &base)] {
        let body = json!({
            "model": model, "prompt": "the hill", "max_tokens": 24, "temperature": 1, "top_p": 0.95, "seed": 0,
        });
        let answer = post(address, "/v1/completions", &body);
        assert_eq!((&answer["choices"][0]["text"], &answer["model"]), (wanted, &json!(model)), "{answer}");
    }
    let chat = json!({"model": "b", "messages": [{"role": "user", "content": "hill 1?"}], "max_tokens": 4});
    assert!(post(address, "/v1/chat/completions", &chat)["choices"][0]["message"]["content"].is_string());
    server.kill().unwrap();
    server.wait().unwrap();

    // Another base, of the same sizes and of others.
    place.train(&["tokenizer.file=runs/t/tokenizer.json", "run.name=u", "run.seed=8", "train.steps=1"]);
    let on_u = |adapter: &str| generate("runs/u", &["--adapter", adapter]);
    on_u("runs/a")
        .failed(1, &["runs/a: wanted adapters of this base", "embed.tokens, element 0: wanted", "found"]);
    on_u("runs/b").failed(1, &["runs/b: wanted adapters of this base", "train.init.from"]);
    on_u("a-peft")
        .failed(1, &["a-peft: wanted adapters of this base, whose tensors have the hash", "found those of"]);
    place.train(&["tokenizer.file=runs/t/tokenizer.json", "run.name=w", "model.width=16", "train.steps=1"]);
    let on_w = |adapter: &str| generate("runs/w", &["--adapter", adapter]);
    on_w("runs/a")
        .failed(1, &["runs/a: wanted adapters of a base with the model", "2 layers x 16", "2 layers x 32"]);
    on_w("a-peft").failed(1, &["adapter_model.safetensors", "q_proj.lora_A", "[4, 32]", "[4, 16]"]);
    generate("runs/a", &["--adapter", "runs/b"])
        .failed(2, &["--adapter runs/b: wanted a base without adapters"]);
    generate("runs/t", &["--adapter", "runs/u"]).failed(1, &["runs/u: wanted a run with [model.adapters]"]);
    generate("runs/t", &["--adapter", "nowhere"]).failed(1, &["no run directory nowhere"]);
    let name = ["serve", "runs/t", "--listen", "127.0.0.1:0", "--adapter", "t=runs/a"];
    place.bessemer(&name).failed(2, &["--adapter t=runs/a: wanted a name of its own"]);
    place.bessemer(&["serve", "runs/t", "--adapter", "runs/a"]).failed(2, &["wanted NAME=DIR"]);

    // Files of other programs name their base only; damaged ones are refused by the tensor.
    let weights = place.path("a-peft/adapter_model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    assert_eq!(header["__metadata__"]["base_blake3"].as_str().map(str::len), Some(64), "{header}");
    let write = |change: &dyn Fn(&mut Value), data: &[u8]| {
        let mut header = header.clone();
        change(&mut header);
        let text = header.to_string();
        fs::write(&weights, [&(text.len() as u64).to_le_bytes(), text.as_bytes(), data].concat()).unwrap();
    };
    let data = &whole[8 + length..];
    let nameless = |header: &mut Value| drop(header.as_object_mut().unwrap().remove("__metadata__"));
    write(&nameless, data);
    let on_t = |more: &[&str]| generate("runs/t", &[&["--adapter", "a-peft"][..], more].concat());
    on_t(&[]).failed(1, &["wanted base_blake3 in the metadata", "found none", "--unchecked-base"]);
    assert_eq!(on_t(&["--unchecked-base"]).json()["text"], a);
    place.bessemer(&["checkpoint", "export", "runs/t", "--out", "base"]).text();
    let import = |more: &[&str]| {
        place.bessemer(
            &[&["checkpoint", "import", "base", "--adapters", "a-peft", "--out", "runs/i"][..], more]
                .concat(),
        )
    };
    import(&[]).failed(1, &["wanted base_blake3", "--unchecked-base"]);
    import(&["--unchecked-base"]).text();
    assert_eq!(text("runs/i", &[]), a);
    let mut not_finite = data.to_vec();
    not_finite[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    write(&|_| {}, &not_finite);
    on_t(&[]).failed(1, &["element 0 is NaN, wanted a number", "lora_"]);
    fs::write(&weights, &whole).unwrap();
    let config = fs::read_to_string(place.path("a-peft/adapter_config.json")).unwrap();
    fs::write(place.path("a-peft/adapter_config.json"), config.replace("\"r\": 4", "\"r\": 0")).unwrap();
    on_t(&[]).failed(1, &["adapters.rank", "found 0"]);
    fs::write(place.path("a-peft/adapter_config.json"), config).unwrap();
    fs::rename(&weights, place.path("a-peft/adapter_model.bin")).unwrap();
    on_t(&[]).failed(1, &["adapter_model.bin, a pickle"]);
}

/// Files that pyarrow has written: the recipe, the shards and the tuned model of the same rows as JSON lines.
#[test]
fn chats_of_parquet_files_tune_as_those_of_json_lines() {
    let place = prepared();
    for name in ["chats-messages", "chats-texts"] {
        let made: Vec<_> = ["parquet", "jsonl"]
            .iter()
            .map(|ending| {
                let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/tests/data");
                let (chats, recipe) = (format!("{name}.{ending}"), format!("{name}-{ending}.toml"));
                fs::copy(data.join(&chats), place.path(&chats)).unwrap();
                let words = [
                    "init",
                    "--from",
                    "runs/t",
                    "--template",
                    "chatml",
                    "--chats",
                    &chats,
                    "--out",
                    &recipe,
                    "--json",
                ];
                let mut made = place.bessemer(&words).json();
                for key in ["recipe", "next"] {
                    made.as_object_mut().unwrap().remove(key);
                }
                // Splits of documents follow their names, which have the name of the file.
                let sets = [
                    "run.name=r",
                    "train.epochs=0",
                    "train.steps=2",
                    "run.threads=1",
                    "corpus.split.validation_fraction=0.5",
                ];
                let sets = sets.iter().flat_map(|set| ["--set", set]);
                let done = place.bessemer(&["run", &recipe].into_iter().chain(sets).collect::<Vec<&str>>());
                assert_eq!(done.code, Some(0), "{}", done.err);
                let found = documents(&place, "runs/r");
                fs::remove_dir_all(place.path("runs/r")).unwrap();
                (made, found)
            })
            .collect();
        assert_eq!(made[0], made[1], "{name}");
        let (chats, equal) = if name == "chats-texts" { (12, 0) } else { (30, 1) };
        assert_eq!((&made[0].0["chats"], &made[0].0["equal"]), (&json!(chats), &json!(equal)));
        assert_eq!(made[0].1.len(), chats);
    }
}
