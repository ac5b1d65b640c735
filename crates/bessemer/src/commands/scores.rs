//! `bessemer corpus train-classifier`, `train-lm`, `train-dsir` and `score`.

use crate::cli::scores::{ScoreArgs, TrainClassifierArgs, TrainDsirArgs, TrainLmArgs};
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_corpus::{repair_json, source_kind_of};
use bessemer_corpus_config::SourceKind;
use bessemer_corpus_config::scores::ScoreConfig;
use bessemer_durable::NewFile;
use bessemer_rules::json_field;
use bessemer_score::classifier::{ClassifierConfig, train_classifier};
use bessemer_score::dsir::{Bag, Importance};
use bessemer_score::fasttext::TrainConfig;
use bessemer_score::kenlm::{EstimateConfig, estimate};
use bessemer_score::sentencepiece::SentencePiece;
use bessemer_score::{Document, Result as ScoreResult, ScoreError, Scorer, Value};
use bessemer_units::{Bytes, counted};
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// A document of an input file.
#[derive(Debug, Default)]
struct Read {
    text: String,
    url: Option<String>,
    date: Option<String>,
}

/// The documents of a file: objects by the endings `.jsonl`, `.json`, `.csv` and `.tsv`, else lines of text; compressed ones by the further
/// ending `.gz` or `.zst`.
struct Documents {
    reader: Box<dyn BufRead + Send>,
    path: PathBuf,
    /// The field with the text, for JSON lines.
    field: Option<String>,
    line: u64,
}

impl Documents {
    fn open(path: &Path, field: &str) -> ScoreResult<Documents> {
        let reader = bessemer_corpus::open_json_lines(path, field);
        let reader = reader.map_err(|e| ScoreError::io("open", path, e))?;
        let json = source_kind_of(&path.to_string_lossy()) == Some(SourceKind::Jsonl);
        let field = json.then(|| field.to_owned());
        Ok(Documents { reader, path: path.to_path_buf(), field, line: 0 })
    }

    fn error(&self, what: String) -> ScoreError {
        ScoreError::Line { name: self.path.display().to_string(), line: self.line, what }
    }

    fn parse(&self, line: &str, field: &str) -> ScoreResult<Read> {
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&repair_json(line.as_bytes())).map_err(|e| self.error(e.to_string()))?;
        let string = |key: &str| json_field(&object, key).and_then(|v| v.as_str()).map(str::to_owned);
        let text =
            string(field).ok_or_else(|| self.error(format!("wanted an object with a text {field:?}")))?;
        Ok(Read { text, url: string("url"), date: string("date") })
    }
}

impl Iterator for Documents {
    type Item = ScoreResult<Read>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = String::new();
            self.line += 1;
            match self.reader.read_line(&mut line) {
                Ok(0) => return None,
                Err(e) => return Some(Err(self.error(e.to_string()))),
                Ok(_) if line.trim().is_empty() => {}
                Ok(_) => {
                    return Some(match &self.field {
                        Some(field) => self.parse(&line, field),
                        None => Ok(Read {
                            text: line.trim_end_matches(['\n', '\r']).to_owned(),
                            ..Read::default()
                        }),
                    });
                }
            }
        }
    }
}

/// The texts of a file; a file that cannot be opened is an error in place of the first one.
fn texts<'p>(path: &'p Path, field: &'p str) -> Box<dyn Iterator<Item = ScoreResult<String>> + 'p> {
    match Documents::open(path, field) {
        Ok(documents) => Box::new(documents.map(|d| d.map(|d| d.text))),
        Err(e) => Box::new(std::iter::once(Err(e))),
    }
}

pub(crate) fn train_classifier_of(
    args: &TrainClassifierArgs,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let config = ClassifierConfig {
        train: TrainConfig {
            lr: args.lr,
            epoch: args.epoch,
            dim: args.dim,
            min_count: args.min_count,
            word_ngrams: args.word_ngrams,
            minn: args.minn,
            maxn: args.maxn,
            bucket: args.bucket,
            loss: args.loss.into(),
            seed: args.seed,
            threads: args.threads,
            ..TrainConfig::default()
        },
        held_out: args.held_out,
    };
    let field = &args.text.field;
    let (model, found) =
        train_classifier(&config, || texts(&args.positive, field), || texts(&args.negative, field))?;
    let mut file = NewFile::create(&args.out)?;
    model.write(&mut file)?;
    file.commit()?;
    console.say(&format!("wrote {}", args.out.display()));
    if as_json {
        return Ok(print(&serde_json::to_string(&found)?)?);
    }
    Ok(print(&format!(
        "held out: {} positive and {} negative documents\n\
         precision {:.4}  recall {:.4}  F1 {:.4}  accuracy {:.4}  AUC {:.4}  ECE {:.4}",
        found.positives,
        found.negatives,
        found.precision,
        found.recall,
        found.f1,
        found.accuracy,
        found.auc,
        found.calibration_error
    ))?)
}

pub(crate) fn train_lm(args: &TrainLmArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let folder = match &args.temporary {
        Some(folder) => folder.clone(),
        None => bessemer_durable::parent(&args.out).to_path_buf(),
    };
    let config =
        EstimateConfig { order: args.order, memory: args.memory, folder, fallback: !args.no_fallback };
    let pieces = args.pieces.as_deref().map(SentencePiece::open).transpose()?;
    let sentence = |line: &str| {
        let line = if args.normalize { bessemer_text::cc_net_normalize(line) } else { line.to_owned() };
        match &pieces {
            Some(pieces) => pieces.pieces(&line).join(" "),
            None => line,
        }
    };
    let lines = texts(&args.input, &args.text.field).flat_map(|text| match text {
        Ok(text) => text.lines().map(|line| Ok(sentence(line))).collect::<Vec<_>>(),
        Err(e) => vec![Err(e)],
    });
    let model = estimate(&config, lines)?;
    let mut file = NewFile::create(&args.out)?;
    if args.out.extension().is_some_and(|e| e == "arpa") {
        model.write_arpa(&mut file)?;
    } else {
        model.model()?.write_binary(&mut file)?;
    }
    file.commit()?;
    let size = args.out.metadata()?.len();
    console.say(&format!("wrote {} ({})", args.out.display(), Bytes(size)));
    let discounts: Vec<_> = model.discounts().collect();
    if as_json {
        let counts = model.counts();
        let order = |(count, (discounts, fallback)): (&u64, &([f64; 3], bool))| serde_json::json!({ "ngrams": count, "discounts": discounts, "fallback": fallback });
        let orders: Vec<_> = counts.iter().zip(&discounts).map(order).collect();
        return Ok(print(&serde_json::to_string(&serde_json::json!({ "orders": orders, "bytes": size }))?)?);
    }
    for (n, (count, ([one, two, more], fallback))) in model.counts().iter().zip(&discounts).enumerate() {
        let note = if *fallback { "  (fallback: too few counts)" } else { "" };
        print(&format!("{}-grams {count:>12}  discounts {one:.4} {two:.4} {more:.4}{note}", n + 1))?;
    }
    Ok(())
}

pub(crate) fn train_dsir(args: &TrainDsirArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let bag_of = |path: &Path| -> ScoreResult<(Bag, u64)> {
        let (mut bag, mut documents) = (Bag::default(), 0);
        for text in texts(path, &args.text.field) {
            bag.add(&text?);
            documents += 1;
        }
        if documents == 0 {
            return Err(ScoreError::Training(format!("{} has no documents", path.display())));
        }
        Ok((bag, documents))
    };
    let ((target, targets), (source, sources)) = (bag_of(&args.target)?, bag_of(&args.source)?);
    let mut file = NewFile::create(&args.out)?;
    Importance::new(&target, &source).write(&mut file)?;
    file.commit()?;
    console.say(&format!("wrote {}", args.out.display()));
    if as_json {
        return Ok(print(&serde_json::json!({ "target": targets, "source": sources }).to_string())?);
    }
    Ok(print(&format!("{} of the target, {sources} of the source", counted(targets, "document")))?)
}

pub(crate) fn score(args: &ScoreArgs, as_json: bool) -> Result<(), Failure> {
    let config = ScoreConfig {
        name: "score".into(),
        kind: args.kind,
        model: args.model.clone(),
        label: args.label.clone(),
        pieces: args.pieces.clone(),
        ..ScoreConfig::default()
    };
    let scorer = Scorer::open(&config, Path::new(""))?;
    let columns = config.columns();
    for document in Documents::open(&args.input, &args.text.field)?.take(args.limit.unwrap_or(usize::MAX)) {
        let read = document?;
        let document = Document { text: &read.text, url: read.url.as_deref(), fetched: read.date.as_deref() };
        let values = scorer.score(&document);
        if as_json {
            let object: serde_json::Map<_, _> =
                columns.iter().zip(&values).map(|((name, _), value)| (name.clone(), json(value))).collect();
            print(&serde_json::to_string(&object)?)?;
            continue;
        }
        let shown: Vec<String> = values.iter().map(plain).collect();
        let head: String = read.text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect();
        print(&format!("{}\t{head}", shown.join("\t")))?;
    }
    Ok(())
}

fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Number(number) => (*number).into(),
        Value::Text(text) => text.as_str().into(),
        Value::Missing => serde_json::Value::Null,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Number(number) => format!("{number:.6}"),
        Value::Text(text) => text.clone(),
        Value::Missing => "-".into(),
    }
}
