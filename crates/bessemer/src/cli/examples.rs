//! Examples of every verb, printed after its help.

use clap::Command;

/// Widest line on which a command is followed by its purpose; wider ones have the purpose on the line before.
const WIDEST: usize = 100;

/// A command line, as a user types it, and its purpose.
type Example = (&'static str, &'static str);

/// Verbs with their examples, in the order of `bessemer --help`.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "init",
        &[
            ("bessemer init my-texts/", "write my.toml for a folder of texts"),
            ("bessemer init pages.jsonl --out pages.toml", "name the recipe, and thereby the run"),
            ("bessemer init chats.jsonl --hours 8", "plan a training of one night"),
        ],
    ),
    (
        "run",
        &[
            ("bessemer run quickstart", "train a small model with a built-in recipe"),
            ("bessemer run my.toml", "run all stages, or continue where they stopped"),
            ("bessemer run my.toml --set train.steps=2000", "override a key of the recipe"),
            ("bessemer run my.toml --ranks 4", "train on 4 ranks of this machine"),
        ],
    ),
    (
        "train",
        &[
            ("bessemer train my.toml", "train, or resume from the newest checkpoint"),
            ("mpirun -n 4 bessemer train my.toml", "train on 4 processes under MPI"),
        ],
    ),
    (
        "supervise",
        &[
            ("bessemer supervise -- bessemer run my.toml", "restart the run after a crash or a hang"),
            (
                "bessemer supervise --roll-back --health-address 0.0.0.0:9400 -- mpirun -n 8 bessemer run my.toml",
                "supervise MPI ranks and serve their metrics",
            ),
            (
                "bessemer supervise --hosts a,b --spares c -- mpirun --host {host-slots} bessemer run my.toml",
                "replace lost hosts by spare ones",
            ),
        ],
    ),
    (
        "recipes",
        &[
            ("bessemer recipes", "list the built-in recipes"),
            ("bessemer recipes show quickstart", "print one of them"),
        ],
    ),
    (
        "recipes show",
        &[
            ("bessemer recipes show quickstart", "print a built-in recipe"),
            ("bessemer recipes show gpt2-124m > my.toml", "begin a recipe of your own with a copy"),
        ],
    ),
    (
        "corpus",
        &[
            ("bessemer corpus build my.toml", "build the corpus of a recipe"),
            ("bessemer corpus inspect runs/my", "see which documents were dropped, and why"),
            ("bessemer corpus card runs/my", "write the data card"),
        ],
    ),
    (
        "corpus build",
        &[
            ("bessemer corpus build my.toml", "build runs/my/corpus"),
            ("bessemer corpus build my.toml --memory 8GiB", "sort and deduplicate in more memory"),
            (
                "bessemer corpus build my.toml --cluster 10.0.0.1:50050",
                "build on a cluster (docs/cluster.md)",
            ),
        ],
    ),
    (
        "corpus cluster",
        &[
            ("bessemer corpus cluster scheduler --listen 10.0.0.1:50050", "start the scheduler"),
            (
                "bessemer corpus cluster executor --scheduler 10.0.0.1:50050 --work-dir /scratch",
                "start an executor",
            ),
        ],
    ),
    (
        "corpus cluster scheduler",
        &[
            ("bessemer corpus cluster scheduler", "try a cluster on this machine"),
            (
                "bessemer corpus cluster scheduler --listen 10.0.0.1:50050",
                "accept executors of other machines",
            ),
        ],
    ),
    (
        "corpus cluster executor",
        &[
            ("bessemer corpus cluster executor --work-dir /scratch", "join the scheduler of this machine"),
            (
                "bessemer corpus cluster executor --scheduler a:50050 --listen 10.0.0.2:50051 --work-dir /scratch",
                "join the scheduler of another machine",
            ),
        ],
    ),
    (
        "corpus inspect",
        &[
            ("bessemer corpus inspect runs/my", "show dropped documents and their reasons"),
            ("bessemer corpus inspect runs/my --reason near-duplicate", "show one reason"),
            ("bessemer corpus inspect runs/my --kept validation --full", "read whole kept documents"),
        ],
    ),
    (
        "corpus review",
        &[
            ("bessemer corpus review serve runs/my", "review 200 documents in a browser"),
            ("bessemer corpus review apply runs/my --out reviewed.toml", "change rules by the verdicts"),
        ],
    ),
    (
        "corpus review serve",
        &[
            ("bessemer corpus review serve runs/my", "review 200 documents in a browser"),
            (
                "bessemer corpus review serve runs/my --documents 500 --verdicts 2",
                "two verdicts on each of 500 documents",
            ),
        ],
    ),
    (
        "corpus review apply",
        &[
            ("bessemer corpus review apply runs/my", "print the changes, and precision and recall"),
            ("bessemer corpus review apply runs/my --out reviewed.toml", "write a recipe with the changes"),
        ],
    ),
    (
        "corpus export",
        &[
            ("bessemer corpus export runs/my --out my.jsonl", "write all kept documents"),
            (
                "bessemer corpus export runs/my --split validation | jq .path",
                "list the files of the validation split",
            ),
        ],
    ),
    (
        "corpus verify",
        &[
            ("bessemer corpus verify runs/my", "check the corpus of a run"),
            ("bessemer corpus verify /data/corpus --json", "print the result as JSON"),
        ],
    ),
    (
        "corpus delete",
        &[
            ("bessemer corpus delete runs/my --id 3f2a9c", "delete one document"),
            (
                "bessemer corpus delete runs/my --ids ids.txt --reason \"request of the author\"",
                "delete a list of documents and record the reason",
            ),
        ],
    ),
    (
        "corpus extract",
        &[
            ("bessemer corpus extract page.html", "print the main text of a page"),
            ("bessemer corpus extract crawl.warc.gz --ok --limit 20", "print 20 pages that have text"),
        ],
    ),
    (
        "corpus stats",
        &[
            ("bessemer corpus stats runs/my", "count kept and dropped documents"),
            ("bessemer corpus stats runs/my --recipe other.toml", "show another mixture of the sources"),
        ],
    ),
    (
        "corpus card",
        &[
            ("bessemer corpus card runs/my", "write card.html"),
            ("bessemer corpus card runs/my --out docs/data-card.html", "choose the file"),
        ],
    ),
    (
        "corpus explain",
        &[
            (
                "bessemer corpus explain pages.jsonl --profile gopher-quality",
                "show which rules drop which documents",
            ),
            (
                "bessemer corpus explain pages.jsonl --profile fineweb --keep 'lang == \"en\"' --limit 10",
                "test a profile with a predicate",
            ),
        ],
    ),
    (
        "corpus profiles",
        &[
            ("bessemer corpus profiles", "list the built-in profiles"),
            ("bessemer corpus profiles fineweb", "list the rules of one"),
        ],
    ),
    (
        "corpus train-classifier",
        &[
            (
                "bessemer corpus train-classifier --positive good.jsonl --negative bad.jsonl --out quality.bin",
                "train a quality classifier",
            ),
            (
                "bessemer corpus train-classifier --positive en.txt --negative de.txt --minn 2 --maxn 4 --out a.bin",
                "use character n-grams, as for languages",
            ),
        ],
    ),
    (
        "corpus train-lm",
        &[
            ("bessemer corpus train-lm wiki.txt --out wiki.arpa", "train a 5-gram model as text"),
            (
                "bessemer corpus train-lm wiki.jsonl.zst --order 3 --memory 4GiB --out wiki.binary",
                "train a trigram model as KenLM binary",
            ),
        ],
    ),
    (
        "corpus train-dsir",
        &[
            (
                "bessemer corpus train-dsir --target papers.jsonl --source web.jsonl --out papers.dsir",
                "learn weights that prefer documents like papers",
            ),
            (
                "bessemer corpus train-dsir --target a.jsonl --source b.jsonl --field content --out a.dsir",
                "read the text from another field",
            ),
        ],
    ),
    (
        "corpus score",
        &[
            ("bessemer corpus score pages.jsonl --kind language", "identify languages"),
            (
                "bessemer corpus score pages.jsonl --kind perplexity --model wiki.binary",
                "compute perplexities",
            ),
            ("bessemer corpus score pages.jsonl --kind fasttext --model quality.bin", "classify documents"),
        ],
    ),
    (
        "corpus media",
        &[
            ("bessemer corpus media inspect photo.jpg", "show size and hashes of an image"),
            (
                "bessemer corpus media build pairs.tar --tokenizer runs/my --out shards/",
                "build shards of image-text pairs",
            ),
        ],
    ),
    (
        "corpus media inspect",
        &[
            ("bessemer corpus media inspect photo.jpg", "show size and hashes of an image"),
            ("bessemer corpus media inspect speech.flac --json", "print the result as JSON"),
        ],
    ),
    (
        "corpus media build",
        &[
            (
                "bessemer corpus media build pairs.tar --tokenizer runs/my --normalize clip --out shards/",
                "normalise pixels as for CLIP",
            ),
            (
                "bessemer corpus media build speech/ --tokenizer runs/my --mels 80 --out shards/",
                "compute mel spectrograms as for Whisper",
            ),
        ],
    ),
    (
        "chat",
        &[
            (
                "bessemer chat show chats.jsonl --template models/my-chat",
                "see what a model learns from chats",
            ),
            (
                "bessemer chat show chats.jsonl --template chatml --tokenizer runs/my --count",
                "count tokens, and those that are scored",
            ),
        ],
    ),
    (
        "chat show",
        &[
            (
                "bessemer chat show chats.jsonl --template models/my-chat",
                "use chat_template and tokenizer of a model",
            ),
            (
                "bessemer chat show chats.json --template chatml --tokenizer tokenizer.json",
                "use a template of this program",
            ),
            (
                "bessemer chat show chats.jsonl --template models/my-chat --answers last",
                "score the last answer alone",
            ),
        ],
    ),
    (
        "tokenizer",
        &[
            ("bessemer tokenizer train my.toml", "train the tokenizer of a recipe"),
            ("bessemer tokenizer encode runs/my text.txt", "encode a file"),
            ("bessemer tokenizer inspect runs/my", "show vocabulary size and longest tokens"),
        ],
    ),
    (
        "tokenizer train",
        &[
            ("bessemer tokenizer train my.toml", "train on the corpus of the run"),
            ("bessemer tokenizer train my.toml --set tokenizer.vocab_size=32000", "choose the size"),
        ],
    ),
    (
        "tokenizer encode",
        &[
            ("bessemer tokenizer encode runs/my text.txt", "encode a file with the tokenizer of a run"),
            ("echo hello | bessemer tokenizer encode tokenizer.json", "encode standard input"),
        ],
    ),
    (
        "tokenizer decode",
        &[
            ("bessemer tokenizer decode runs/my ids.txt", "decode a file of token ids"),
            ("echo 15 42 7 | bessemer tokenizer decode tokenizer.json", "decode standard input"),
        ],
    ),
    (
        "tokenizer inspect",
        &[
            ("bessemer tokenizer inspect runs/my", "show the tokenizer of a run"),
            ("bessemer tokenizer inspect gpt2/tokenizer.json --json", "print a file's facts as JSON"),
        ],
    ),
    (
        "eval",
        &[
            ("bessemer eval runs/quickstart", "compute loss and perplexity on the validation split"),
            ("bessemer eval runs/quickstart --text book.txt", "compute the loss of a text"),
            ("bessemer eval runs/quickstart --tasks families --fewshot 2", "evaluate generated tasks"),
            (
                "bessemer eval runs/my --tasks arc_easy --task-dir tasks/ --task-data data/",
                "evaluate a task of the lm-evaluation-harness",
            ),
        ],
    ),
    (
        "metric",
        &[
            ("bessemer metric bleu outputs.txt references.txt", "score translations"),
            ("bessemer metric rougel outputs.jsonl references.jsonl --stem", "score summaries"),
            ("bessemer metric chrf a.txt references.txt --against b.txt", "compare two systems"),
            ("bessemer metric pass-at-k samples.jsonl problems.jsonl --k 1,10", "run the tests of programs"),
        ],
    ),
    (
        "judge",
        &[
            ("bessemer judge create study.jsonl --texts texts.jsonl", "create a study"),
            ("bessemer judge serve study.jsonl", "let people compare texts in a browser"),
            ("bessemer judge results study.jsonl", "print ratings with intervals"),
        ],
    ),
    (
        "judge create",
        &[
            ("bessemer judge create study.jsonl --texts texts.jsonl", "compare texts in pairs"),
            (
                "bessemer judge create study.jsonl --texts texts.jsonl --scale poor,fair,good --judgements 3",
                "rate each text by three judges",
            ),
        ],
    ),
    (
        "judge serve",
        &[
            ("bessemer judge serve study.jsonl", "serve the page on http://127.0.0.1:8090"),
            (
                "bessemer judge serve study.jsonl --allow-host judge.example.org",
                "serve behind a proxy with this host name",
            ),
        ],
    ),
    (
        "judge model",
        &[
            ("bessemer judge model study.jsonl runs/my", "judge by likelihoods of a trained model"),
            (
                "bessemer judge model study.jsonl --at http://127.0.0.1:8080/v1 --chat --method generate",
                "judge by the answers of a server",
            ),
        ],
    ),
    (
        "judge results",
        &[
            ("bessemer judge results study.jsonl", "print ratings, intervals and agreement"),
            ("bessemer judge results study.jsonl --human people", "compute HUSE of the other systems"),
        ],
    ),
    (
        "judge sheet",
        &[
            ("bessemer judge sheet study.jsonl --judge ana --out ana.csv", "write 50 tasks for a judge"),
            ("bessemer judge sheet study.jsonl --judge ana --tasks 10 --out ana.csv", "write 10 tasks"),
        ],
    ),
    (
        "judge read",
        &[
            ("bessemer judge read study.jsonl ana.csv --judge ana", "add the judgements of a sheet"),
            ("bessemer judge read study.jsonl ana.csv --judge ana --json", "print the result as JSON"),
        ],
    ),
    (
        "judge power",
        &[
            ("bessemer judge power --win 0.6", "judgements that detect a share of 60 %"),
            ("bessemer judge power --win 0.6 --judgements 200", "power of 200 judgements"),
            ("bessemer judge power --win 0.6 --against 0.5", "compare two groups"),
        ],
    ),
    (
        "judge migrate",
        &[
            ("bessemer judge migrate study.db study.jsonl", "convert a study of version 0.1"),
            ("bessemer judge migrate study.db study.jsonl --json", "print the result as JSON"),
        ],
    ),
    (
        "generate",
        &[
            ("bessemer generate runs/quickstart --prompt \"fn main() {\"", "continue a text"),
            ("bessemer generate runs/my -p \"Once\" -n 5 --seed 7", "generate five texts"),
            ("bessemer generate runs/my --prompts prompts.jsonl --json", "continue a file of prompts"),
            ("bessemer generate runs/my -p \"Once\" --temperature 0", "decode greedily"),
        ],
    ),
    (
        "serve",
        &[
            ("bessemer serve runs/quickstart", "open the chat page at http://127.0.0.1:8080"),
            ("bessemer serve runs/my --listen 0.0.0.0:8000 --api-key-file key.txt", "serve other machines"),
        ],
    ),
    (
        "checkpoint",
        &[
            ("bessemer checkpoint ls runs/my", "list checkpoints"),
            ("bessemer checkpoint verify runs/my", "verify their checksums"),
            ("bessemer checkpoint export runs/my --out my-hf", "export for Hugging Face"),
        ],
    ),
    (
        "checkpoint ls",
        &[
            ("bessemer checkpoint ls runs/my", "list the checkpoints of a run"),
            ("bessemer checkpoint ls s3://bucket/my", "list those of an object store"),
        ],
    ),
    (
        "checkpoint inspect",
        &[
            ("bessemer checkpoint inspect runs/my", "show the newest checkpoint"),
            ("bessemer checkpoint inspect runs/my --step 500 --json", "print another one as JSON"),
        ],
    ),
    (
        "checkpoint verify",
        &[
            ("bessemer checkpoint verify runs/my", "verify all checkpoints of a run"),
            ("bessemer checkpoint verify s3://bucket/my --step 500", "verify one of an object store"),
        ],
    ),
    (
        "checkpoint gc",
        &[
            ("bessemer checkpoint gc runs/my", "apply the retention rule of the recipe"),
            ("bessemer checkpoint gc runs/my --keep-last 2", "keep the two newest"),
        ],
    ),
    (
        "checkpoint diff",
        &[
            ("bessemer checkpoint diff runs/a runs/b", "compare the newest checkpoints of two runs"),
            (
                "bessemer checkpoint diff runs/a/checkpoints/step-00000100 runs/b --tensors",
                "compare only tensors",
            ),
        ],
    ),
    (
        "checkpoint plan",
        &[
            ("bessemer checkpoint plan my.toml", "bytes that one rank saves"),
            (
                "bessemer checkpoint plan my.toml --ranks 8 --set parallel.tensor=2",
                "bytes of each rank of a layout",
            ),
        ],
    ),
    (
        "checkpoint reshard",
        &[
            (
                "bessemer checkpoint reshard runs/a runs/b/checkpoints --ranks 4 --layout tensor=2,pipeline=2",
                "prepare a checkpoint for another layout",
            ),
            (
                "bessemer checkpoint reshard runs/a runs/b/checkpoints --step 500 --max-file-mib 1024",
                "limit the size of its files",
            ),
        ],
    ),
    (
        "checkpoint copy",
        &[
            ("bessemer checkpoint copy runs/my s3://bucket/my", "upload the newest checkpoint"),
            ("bessemer checkpoint copy s3://bucket/my runs/b/checkpoints --step 500", "download one"),
        ],
    ),
    (
        "checkpoint upload",
        &[
            ("bessemer checkpoint upload runs/my", "upload to save.upload of the recipe"),
            ("bessemer checkpoint upload runs/my --to s3://bucket/my", "upload to another store"),
        ],
    ),
    (
        "checkpoint export",
        &[
            ("bessemer checkpoint export runs/my --out my-hf --dtype bf16", "for transformers or vLLM"),
            (
                "bessemer checkpoint export runs/my --to gguf --dtype q8_0 --out my.gguf",
                "for llama.cpp, quantised to 8 bits",
            ),
        ],
    ),
    (
        "checkpoint import",
        &[
            ("bessemer checkpoint import gpt2/ --out runs/gpt2", "import a downloaded model"),
            ("bessemer checkpoint import my-hf/ --out runs/again", "import an earlier export"),
        ],
    ),
    (
        "config",
        &[
            ("bessemer config show my.toml", "print the recipe with all defaults"),
            ("bessemer config diff a.toml b.toml", "compare two recipes"),
        ],
    ),
    (
        "config show",
        &[
            ("bessemer config show my.toml --origin", "print where each value comes from"),
            ("bessemer config show my.toml --set train.steps=10 --json", "print as JSON with an override"),
        ],
    ),
    (
        "config schema",
        &[
            ("bessemer config schema > recipe.schema.json", "write a schema for an editor"),
            ("bessemer config schema | jq .properties.train", "look at one section"),
        ],
    ),
    (
        "config diff",
        &[
            ("bessemer config diff a.toml b.toml", "print the keys that differ"),
            ("bessemer config diff my.toml runs/my/recipe.toml", "compare with the recipe of a run"),
        ],
    ),
    (
        "report",
        &[
            ("bessemer report runs/quickstart", "write runs/quickstart/report.html"),
            ("bessemer report runs/quickstart --json", "print the result as JSON"),
        ],
    ),
    (
        "compare",
        &[
            ("bessemer compare runs/a runs/b", "compare figures and recipes of two runs"),
            ("bessemer compare runs/* --out compare.html", "write a page with all curves"),
        ],
    ),
    (
        "runs",
        &[
            ("bessemer runs", "list the runs in runs/"),
            ("bessemer runs /scratch/runs --json", "list those of another folder as JSON"),
        ],
    ),
    (
        "doctor",
        &[
            ("bessemer doctor", "measure cores, memory and bandwidth"),
            ("bessemer doctor --machine this.toml", "write a machine file for the planner"),
            ("bessemer doctor --host 2x4x16", "model a machine of two sockets"),
        ],
    ),
    (
        "parity",
        &[
            ("bessemer parity --ranks 4 --steps 10", "test all layouts of up to 4 ranks"),
            ("bessemer parity --models llama --only \"tensor 2\"", "test some layouts of one model"),
        ],
    ),
    (
        "plan",
        &[
            ("bessemer plan llama-1b.toml --devices 64", "find layouts for 64 A100"),
            (
                "bessemer plan llama-1b.toml --devices 64 --machine h100-80gb --svg plan.svg",
                "draw time and memory on H100",
            ),
            ("bessemer plan my.toml --devices 8 --compare", "compare search methods"),
        ],
    ),
    (
        "plan validate",
        &[
            ("bessemer plan validate steps.csv", "compare predictions with measured steps"),
            ("bessemer plan validate a.csv b.csv --fit-each --svg error.svg", "fit and draw each table"),
        ],
    ),
    (
        "plan calibrate",
        &[
            ("bessemer plan calibrate my.toml --machine this.toml", "write calibration.csv"),
            (
                "bessemer plan calibrate my.toml --machine this.toml --runs 4 --steps 3 --out quick.csv",
                "run fewer layouts",
            ),
        ],
    ),
    (
        "program",
        &[
            ("bessemer program show my.toml", "print the operators of a rank"),
            ("bessemer program show my.toml --ranks 2 --unit step", "print its whole step"),
        ],
    ),
    (
        "program simulate",
        &[
            (
                "bessemer program simulate my.toml --ranks 8 --routing balanced,zipf=1.2",
                "simulate a step with skewed loads of experts",
            ),
            (
                "bessemer program simulate my.toml --ranks 8 --routing runs/moe:100-200 --shadows 0,2",
                "simulate recorded loads with shadows",
            ),
        ],
    ),
    (
        "program show",
        &[
            ("bessemer program show my.toml --unit layer", "print the operators of one layer"),
            (
                "bessemer program show my.toml --ranks 4 --rank 1 --after partition",
                "print rank 1 after the partition",
            ),
        ],
    ),
    (
        "schedule",
        &[
            ("bessemer schedule show 1f1b --stages 4 --micro-batches 8", "draw a pipeline schedule"),
            ("bessemer schedule energy 1f1b --stages 4 --micro-batches 8", "plan clocks that save energy"),
        ],
    ),
    (
        "schedule show",
        &[
            ("bessemer schedule show 1f1b --stages 4 --micro-batches 8", "draw it in the terminal"),
            (
                "bessemer schedule show zb-h1 --stages 4 --micro-batches 8 --times 1,1.2,0.8 --svg zb.svg",
                "draw it as SVG with times of your own",
            ),
        ],
    ),
    (
        "schedule fill",
        &[
            ("bessemer schedule fill 1f1b --stages 4 --micro-batches 8", "fill bubbles with K-FAC"),
            (
                "bessemer schedule fill 1f1b --stages 4 --micro-batches 8 --no-kfac --evaluations 2",
                "fill bubbles with evaluations",
            ),
        ],
    ),
    (
        "schedule energy",
        &[
            ("bessemer schedule energy 1f1b --stages 4 --micro-batches 8", "save energy at equal time"),
            (
                "bessemer schedule energy 1f1b --stages 4 --micro-batches 8 --slowdown 0.05",
                "save more with steps 5 % longer",
            ),
        ],
    ),
    (
        "network",
        &[
            ("bessemer network show fat-tree-1024", "show a built-in network"),
            ("bessemer network compare fat-tree-1024 torus-32x32", "compare two networks"),
        ],
    ),
    (
        "network show",
        &[
            ("bessemer network show fat-tree-1024 --bytes 256MiB", "time collectives of 256 MiB"),
            (
                "bessemer network show rail-only-1024 --axis tensor=8:all-reduce:64MiB --axis data=128",
                "show the traffic of a job",
            ),
        ],
    ),
    (
        "network compare",
        &[
            ("bessemer network compare fat-tree-1024 dragonfly-1056", "compare two networks"),
            ("bessemer network compare mine.toml torus-32x32 --job job.toml", "compare for a job"),
        ],
    ),
    (
        "network place",
        &[
            (
                "bessemer network place fat-tree-1024 --axis tensor=8:all-reduce:64MiB --axis data=128",
                "order the axes of a job",
            ),
            ("bessemer network place mine.toml --job job.toml", "read network and job from files"),
        ],
    ),
    (
        "network failures",
        &[
            ("bessemer network failures", "print the costs for common sizes and rates"),
            ("bessemer network failures --nodes 512 --rates 6.5 --save 30", "print those of your cluster"),
        ],
    ),
    (
        "network switch",
        &[
            ("bessemer network switch --workers 4 --bytes 1MiB", "measure on this machine"),
            ("bessemer network switch --serve 10.0.0.1:5000", "serve workers of other machines"),
            ("bessemer network switch --join 10.0.0.1:5000 --worker 1", "join as worker 1"),
        ],
    ),
    (
        "scaling",
        &[
            ("bessemer scaling fit runs/*", "fit a scaling law to runs"),
            ("bessemer scaling advise --compute 1e21", "recommend sizes for a compute budget"),
        ],
    ),
    (
        "scaling fit",
        &[
            ("bessemer scaling fit runs/* --out law.html", "fit a law and write a page"),
            ("bessemer scaling fit runs.csv --hold-out 2", "predict the two largest runs"),
            ("bessemer scaling fit runs/* --law kaplan", "fit Kaplan's law beside Chinchilla's"),
        ],
    ),
    (
        "scaling advise",
        &[
            ("bessemer scaling advise --compute 1e21", "sizes for a compute budget"),
            ("bessemer scaling advise --days 10 --devices 64 --mfu 0.45", "sizes for 10 days on 64 H100"),
            ("bessemer scaling advise --parameters 7e9 --used 1e12", "tokens for a served 7B model"),
        ],
    ),
    (
        "study",
        &[
            ("bessemer study lr my.toml", "find the best learning rate"),
            ("bessemer study scaling my.toml", "measure a scaling law"),
        ],
    ),
    (
        "study init",
        &[
            ("bessemer study init", "compare all initialisations"),
            (
                "bessemer study init --methods pre-ln,deepnorm --layers 48 --steps 200",
                "compare two in a deeper network",
            ),
        ],
    ),
    (
        "study coord-check",
        &[
            ("bessemer study coord-check", "check muP at five widths"),
            ("bessemer study coord-check --widths 64,256 --seeds 1", "check it quickly"),
        ],
    ),
    (
        "study scaling",
        &[
            ("bessemer study scaling my.toml", "train 4 sizes on 3 lengths and fit a law"),
            ("bessemer study scaling my.toml --predict 256x6", "predict and then train a larger model"),
        ],
    ),
    (
        "study lr",
        &[
            ("bessemer study lr my.toml", "try four learning rates"),
            (
                "bessemer study lr my.toml --lrs 1e-3,3e-3 --batches 8192,32768",
                "try learning rates with batch sizes",
            ),
        ],
    ),
    (
        "completions",
        &[
            (
                "bessemer completions bash > ~/.local/share/bash-completion/completions/bessemer",
                "install completions for bash",
            ),
            ("bessemer completions zsh > ~/.zfunc/_bessemer", "install completions for zsh"),
            (
                "bessemer completions fish > ~/.config/fish/completions/bessemer.fish",
                "install completions for fish",
            ),
        ],
    ),
    (
        "man",
        &[
            ("bessemer man --out ~/.local/share/man/man1", "install the manual pages"),
            ("bessemer man --out man && man man/bessemer-run.1", "read one without installing it"),
        ],
    ),
    (
        "help",
        &[("bessemer help recipes", "explain recipes"), ("bessemer help exit-codes", "list the exit codes")],
    ),
];

/// Adds the examples of every verb to its help, before other text that follows the flags.
pub(crate) fn with_examples(command: Command) -> Command {
    add(command, "")
}

/// Adds the examples of `verb` and of the verbs below it.
fn add(mut command: Command, verb: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    for name in below {
        let path = if verb.is_empty() { name.clone() } else { format!("{verb} {name}") };
        command = command.mut_subcommand(name, |below| add(below, &path));
    }
    let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == verb) else { return command };
    let examples = listed(examples);
    let before = |text: String| format!("{examples}\n\n{text}");
    if let Some(text) = command.get_after_long_help().map(ToString::to_string) {
        command = command.after_long_help(before(text));
    }
    let text = command.get_after_help().map(ToString::to_string);
    command.after_help(text.map_or_else(|| examples.clone(), before))
}

/// The text `Examples:` with a line, or two, for each example.
fn listed(examples: &[Example]) -> String {
    let longest = examples.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let one_line = examples.iter().all(|(_, purpose)| longest + purpose.len() + 6 <= WIDEST);
    let lines = examples.iter().map(|(command, purpose)| match one_line {
        true => format!("\n  {command:longest$}  # {purpose}"),
        false => format!("\n  # {purpose}\n  {command}"),
    });
    format!("Examples:{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Verbs that this build does not have.
    fn is_missing(verb: &str) -> bool {
        // clap adds the verb `help` only when it builds the command.
        verb == "help" || (verb == "judge migrate" && !cfg!(feature = "migrate"))
    }

    /// Command of a verb such as "corpus build".
    fn find<'c>(program: &'c Command, verb: &str) -> Option<&'c Command> {
        verb.split(' ').try_fold(program, |command, name| command.find_subcommand(name))
    }

    /// Names of all verbs that help lists, groups included.
    fn verbs(command: &Command, above: &str, to: &mut Vec<String>) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let name = format!("{above} {}", verb.get_name()).trim_start().to_owned();
            verbs(verb, &name, to);
            to.push(name);
        }
    }

    /// Words of a command line from the program's name to a pipe or a redirection, without quotes; a pattern is two paths.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for c in line.chars() {
            match (c, quote) {
                ('"' | '\'', None) => quote = Some(c),
                (c, Some(q)) if c == q => quote = None,
                (' ', None) => words.push(String::new()),
                (c, _) => words.last_mut().unwrap().push(c),
            }
        }
        assert_eq!(quote, None, "{line}: open quote");
        let words = words.into_iter().skip_while(|word| word != "bessemer");
        let words =
            words.flat_map(|word| if word.contains('*') { vec![word.clone(), word] } else { vec![word] });
        words.take_while(|word| !["|", ">", "&&"].contains(&word.as_str())).collect()
    }

    #[test]
    fn every_verb_has_two_examples_of_its_own() {
        let mut all = Vec::new();
        verbs(&Cli::command(), "", &mut all);
        for verb in &all {
            let examples = EXAMPLES.iter().find(|(name, _)| name == verb).map_or(&[][..], |(_, own)| *own);
            assert!(examples.len() >= 2, "{verb}: wanted two examples, found {}", examples.len());
            for (command, _) in examples {
                assert!(format!("{command} ").contains(&format!("bessemer {verb} ")), "{verb}: {command}");
            }
        }
        for (verb, _) in EXAMPLES.iter().filter(|(verb, _)| !is_missing(verb)) {
            assert!(all.iter().any(|known| known == verb), "{verb}: there is no such verb");
        }
    }

    #[test]
    fn every_example_is_a_command_line_of_the_program() {
        let mut wrong = String::new();
        for (verb, examples) in EXAMPLES.iter().filter(|(verb, _)| !is_missing(verb)) {
            for (line, _) in *examples {
                if let Err(error) = Cli::command().try_get_matches_from(words(line)) {
                    wrong += &format!("{verb}: {line}\n{error}");
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }

    #[test]
    fn examples_are_short_and_different() {
        for (verb, examples) in EXAMPLES {
            for (line, purpose) in *examples {
                assert!(purpose.len() <= 60, "{verb}: {purpose}");
                assert_eq!(examples.iter().filter(|(other, _)| other == line).count(), 1, "{line}");
            }
            for line in listed(examples).lines() {
                assert!(line.chars().count() <= 100, "{verb}: {line}");
            }
        }
    }

    #[test]
    fn examples_come_before_other_text_after_the_flags() {
        let mut program = with_examples(Cli::command());
        program.build();
        let help = |verb: &str| find(&program, verb).unwrap().clone().render_help().to_string();
        assert!(
            help("checkpoint export")
                .contains("Examples:\n  # for transformers or vLLM\n  bessemer checkpoint")
        );
        let supervise = help("supervise");
        let (examples, codes) =
            (supervise.find("Examples:").unwrap(), supervise.find("Exit codes:").unwrap());
        assert!(examples < codes, "{supervise}");
    }
}
