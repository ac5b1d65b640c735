//! `bessemer metric`: texts scored against references.

use crate::cli::{BleuSmoothing, BleuTokens, MetricArgs, MetricName};
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_durable::TextReader;
use bessemer_metrics::proportion::wilson;
use bessemer_metrics::wordnet::{PARTS, PartFiles, WordNet};
use bessemer_metrics::{
    Bleu, ChrF, CorpusMetric, MeanMetric, Meteor, Rouge, SegmentSums, Smoothing, Ter, Tokens,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

mod bias;
mod generations;
mod pass_at_k;
mod self_contrast;
mod tables;
mod toxicity;

pub(crate) use tables::standardised;

pub(crate) fn run(args: &MetricArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let tokens = tokens(args.tokens)?;
    let synonyms = match (&args.synonyms, args.name) {
        (Some(folder), MetricName::Meteor) => Some(Box::new(word_net(folder)?)),
        (Some(_), _) => {
            return Err(Failure::usage("--synonyms: wanted the metric meteor, found another one"));
        }
        (None, _) => None,
    };
    let Some(metric) = metric(args, tokens, synonyms.clone(), false) else {
        return match args.name {
            MetricName::Kola => tables::kola(args, as_json),
            MetricName::SelfContrast => self_contrast::run(args, as_json),
            MetricName::Agreement => tables::agreement(args, as_json),
            MetricName::Pyramid => tables::pyramid(args, as_json),
            MetricName::Bias => bias::run(args, as_json),
            MetricName::Toxicity => toxicity::run(args, as_json, console),
            _ => pass_at_k::run(args, as_json, console),
        };
    };
    if args.references.is_empty() {
        return Err(Failure::usage("wanted a file of references after that of texts, found none"));
    }
    let texts = lines(&args.texts)?;
    let references = args.references.iter().map(|path| lines(path)).collect::<Result<Vec<_>, _>>()?;
    let other = args.against.as_deref().map(lines).transpose()?;
    let others = args.references.iter().zip(&references).chain(args.against.iter().zip(&other));
    as_many(&args.texts, &texts, others)?;
    let rows: Vec<Vec<&str>> =
        (0..texts.len()).map(|i| references.iter().map(|one| one[i].as_str()).collect()).collect();
    let sums_of = |metric: &dyn CorpusMetric, texts: &[String]| {
        SegmentSums::of(metric, texts.iter().zip(&rows).map(|(text, row)| (text.as_str(), row.as_slice())))
    };
    let sums = sums_of(&*metric, &texts);
    let single = self::metric(args, tokens, synonyms, true).filter(|_| args.each);
    let each = single.map(|single| {
        sums_of(&*single, &texts).rows().iter().map(|row| single.score_of(row)).collect::<Vec<f64>>()
    });
    let samples = args.samples as usize;
    let result = Scored {
        metric: &*metric,
        references: references.len(),
        score: sums.score(&*metric),
        interval: match args.name {
            MetricName::ExactMatch => None,
            _ => sums.interval(&*metric, samples, args.seed),
        },
        share: match args.name {
            MetricName::ExactMatch => exact_matches(sums.score(&*metric), texts.len()),
            _ => None,
        },
        each,
        against: other.map(|other| {
            let other = sums_of(&*metric, &other);
            Against {
                score: other.score(&*metric),
                bootstrap: sums.paired_bootstrap(&other, &*metric, samples, args.seed),
                randomisation: sums.randomisation(&other, &*metric, samples, args.seed),
            }
        }),
    };
    Ok(print(&if as_json { serde_json::to_string(&result.value())? } else { result.text() })?)
}

/// The interval of the share of exact matches, on the scale of the score.
fn exact_matches(score: f64, texts: usize) -> Option<[f64; 2]> {
    wilson(score / 100.0, texts as f64).map(|band| band.map(|bound| 100.0 * bound))
}

/// Another system on the same references.
struct Against {
    score: f64,
    /// Probabilities that chance alone makes such a difference.
    bootstrap: f64,
    randomisation: f64,
}

struct Scored<'a> {
    metric: &'a dyn CorpusMetric,
    references: usize,
    score: f64,
    /// Mean of the samples, and half the width of their interval.
    interval: Option<[f64; 2]>,
    /// Interval of a share.
    share: Option<[f64; 2]>,
    each: Option<Vec<f64>>,
    against: Option<Against>,
}

impl Scored<'_> {
    fn text(&self) -> String {
        let mut text = String::new();
        for score in self.each.iter().flatten() {
            let _ = writeln!(text, "{score:.4}");
        }
        let _ = write!(text, "{} = {:.4}", self.metric.name(), self.score);
        if let Some([mean, half]) = self.interval {
            let _ = write!(text, " (samples: {mean:.4} ± {half:.4})");
        }
        text += &bias::interval(self.share);
        if !self.metric.larger_is_better() {
            text += ", smaller is better";
        }
        let _ = writeln!(text, "\n{}", self.metric.signature_for(self.references));
        if let Some(other) = &self.against {
            let _ = writeln!(
                text,
                "the other system: {:.4}, difference {:+.4}; by chance with p = {:.4} (paired bootstrap), {:.4} (approximate randomisation)",
                other.score,
                self.score - other.score,
                other.bootstrap,
                other.randomisation
            );
        }
        text
    }

    fn value(&self) -> Value {
        json!({
            "name": self.metric.name(),
            "score": self.score,
            "samples_mean": self.interval.map(|[mean, _]| mean),
            "samples_half_width": self.interval.map(|[_, half]| half),
            "interval": self.share,
            "larger_is_better": self.metric.larger_is_better(),
            "signature": self.metric.signature_for(self.references),
            "each": self.each,
            "against": self.against.as_ref().map(|other| json!({
                "score": other.score,
                "p_paired_bootstrap": other.bootstrap,
                "p_approximate_randomisation": other.randomisation,
            })),
        })
    }
}

/// The one file of a metric that has no references.
fn one_file<'a>(args: &'a MetricArgs, what: &str) -> Result<&'a Path, Failure> {
    match args.references.is_empty() {
        true => Ok(&args.texts),
        false => {
            Err(Failure::usage(format!("wanted one file of {what}; found {}", 1 + args.references.len())))
        }
    }
}

/// Largest file of a WordNet that is read; the largest of version 3.1 has 16 MB.
const MOST_NET_BYTES: u64 = 64 << 20;

fn word_net(folder: &Path) -> Result<WordNet, Failure> {
    let read = |name: String| {
        let text = bessemer_durable::read_small_input(&folder.join(name), MOST_NET_BYTES);
        text.map_err(|e| {
            Failure::usage(format!(
                "--synonyms: {e}; wanted a folder of WordNet 3.0 or 3.1, such as /usr/share/wordnet of Debian's wordnet-base"
            ))
        })
    };
    let part = |part: &str| -> Result<PartFiles, Failure> {
        Ok(PartFiles {
            index: read(format!("index.{part}"))?,
            data: read(format!("data.{part}"))?,
            exceptions: read(format!("{part}.exc"))?,
        })
    };
    let [noun, verb, adj, adv] = PARTS;
    let files = [part(noun)?, part(verb)?, part(adj)?, part(adv)?];
    WordNet::new(files).map_err(|e| Failure::usage(format!("--synonyms {}: {e}", folder.display())))
}

fn tokens(named: BleuTokens) -> Result<Tokens, Failure> {
    match named {
        BleuTokens::Thirteen => Ok(Tokens::Thirteen),
        BleuTokens::Intl => Ok(Tokens::International),
        BleuTokens::Zh => Ok(Tokens::Chinese),
        BleuTokens::JaMecab => Err(Failure::usage(
            "--tokens ja-mecab: wanted MeCab with the dictionary IPA, found none in this program; cut both files into words with \
             `mecab -Owakati` and take --tokens none, or take --tokens char",
        )),
        BleuTokens::None => Ok(Tokens::Blanks),
        BleuTokens::Char => Ok(Tokens::Characters),
    }
}

/// The metric that was asked for; `single` for the scores of single texts. None for what has no references, and for programs, which are run.
fn metric(
    args: &MetricArgs,
    tokens: Tokens,
    synonyms: Option<Box<WordNet>>,
    single: bool,
) -> Option<Box<dyn CorpusMetric>> {
    let rouge =
        |variant| -> Box<dyn CorpusMetric> { Box::new(MeanMetric::Rouge { variant, stemmed: args.stem }) };
    Some(match args.name {
        MetricName::Bleu => Box::new(Bleu {
            tokens,
            lower: args.lower,
            smoothing: match args.smooth {
                BleuSmoothing::Exp => Smoothing::Exponential,
                BleuSmoothing::Floor => Smoothing::Floor(args.smooth_value.unwrap_or(0.1)),
                BleuSmoothing::AddK => Smoothing::Add(args.smooth_value.unwrap_or(1.0)),
                BleuSmoothing::None => Smoothing::Off,
            },
            effective_order: args.effective_order || single,
        }),
        MetricName::Chrf => Box::new(ChrF {
            characters: usize::from(args.char_order),
            words: usize::from(args.word_order),
            beta: args.beta,
            lower: args.lower,
            eps: args.eps_smoothing,
        }),
        MetricName::Ter => Box::new(Ter { case_sensitive: args.case_sensitive }),
        MetricName::Rouge1 => rouge(Rouge::N(1)),
        MetricName::Rouge2 => rouge(Rouge::N(2)),
        MetricName::Rougel => rouge(Rouge::L),
        MetricName::Rougelsum => rouge(Rouge::Lsum),
        MetricName::Meteor => Box::new(MeanMetric::Meteor { meteor: Meteor::default(), synonyms }),
        MetricName::ExactMatch => Box::new(MeanMetric::ExactMatch),
        MetricName::F1 => Box::new(MeanMetric::F1),
        MetricName::PassAtK
        | MetricName::Kola
        | MetricName::Agreement
        | MetricName::Pyramid
        | MetricName::Bias
        | MetricName::SelfContrast
        | MetricName::Toxicity => return None,
    })
}

/// Largest file of texts, in bytes: it is held in memory as a whole.
const MOST_BYTES: u64 = 4 << 30;

pub(super) fn text_of(path: &Path) -> Result<String, Failure> {
    let failed = |cause: &dyn std::fmt::Display| Failure::new(format!("{}: {cause}", path.display()));
    let file = bessemer_durable::open_input(path)
        .map_err(|e| Failure::new(format!("cannot open {}: {e}", path.display())))?;
    let mut text = String::new();
    TextReader::buffered(file)
        .take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|cause| failed(&cause))?;
    match text.len() as u64 > MOST_BYTES {
        true => Err(failed(&format!("is larger than {MOST_BYTES} bytes; score it in parts"))),
        false => Ok(text),
    }
}

/// The texts of a file: its lines, or those of JSON lines.
pub(super) fn lines(path: &Path) -> Result<Vec<String>, Failure> {
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        return Ok(text_of(path)?.lines().map(str::to_string).collect());
    }
    let all = lines_of_json(path)?;
    let one = |(i, value): (usize, &Value)| {
        let text = value.as_str().or_else(|| value.get("text").and_then(Value::as_str));
        text.map(str::to_string).ok_or_else(|| {
            let wanted = "a string, or an object with the key text";
            Failure::new(format!("{}: line {}: wanted {wanted}, found {value}", path.display(), i + 1))
        })
    };
    all.iter().enumerate().map(one).collect()
}

/// Errors unless there is a text and each of the other files has as many.
pub(super) fn as_many<'a>(
    path: &Path,
    texts: &[String],
    others: impl IntoIterator<Item = (&'a PathBuf, &'a Vec<String>)>,
) -> Result<(), Failure> {
    if texts.is_empty() {
        return Err(Failure::usage(format!("{}: wanted a text or more, found none", path.display())));
    }
    match others.into_iter().find(|(_, found)| found.len() != texts.len()) {
        None => Ok(()),
        Some((other, found)) => Err(Failure::usage(format!(
            "{}: wanted {} texts, as many as {} has, found {}",
            other.display(),
            texts.len(),
            path.display(),
            found.len()
        ))),
    }
}

/// The values of JSON lines.
pub(super) fn lines_of_json(path: &Path) -> Result<Vec<Value>, Failure> {
    let one = |(i, line): (usize, &str)| {
        let failed =
            |cause| Failure::new(format!("{}: line {}: wanted JSON, found: {cause}", path.display(), i + 1));
        serde_json::from_str(line).map_err(failed)
    };
    text_of(path)?.lines().enumerate().map(one).collect()
}
