//! The settings that a fastText model file begins with.

use crate::error::Result;
use crate::source::Source;
use std::io::{self, Read, Write};

/// How labels become probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Hierarchical softmax over a Huffman tree of the labels: quick training with very many labels.
    Hs,
    /// One binary classifier a label, trained on the target and a few drawn others.
    Ns,
    /// Softmax over all labels.
    Softmax,
    /// One binary classifier a label, trained on all labels: several labels may be true at once.
    Ova,
}

impl Loss {
    pub(crate) fn from_code(code: i32) -> Option<Loss> {
        Some(match code {
            1 => Loss::Hs,
            2 => Loss::Ns,
            3 => Loss::Softmax,
            4 => Loss::Ova,
            _ => return None,
        })
    }

    pub(crate) fn code(self) -> i32 {
        match self {
            Loss::Hs => 1,
            Loss::Ns => 2,
            Loss::Softmax => 3,
            Loss::Ova => 4,
        }
    }
}

/// The settings in the order of the file. Only `dim`, `word_ngrams`, `loss`, `bucket`, `minn` and `maxn` matter to
/// inference; the others say how the model was trained.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Args {
    /// Size of a vector.
    pub(crate) dim: usize,
    /// Context window of unsupervised training; not used here.
    pub(crate) ws: i32,
    /// Passes over the training data.
    pub(crate) epoch: i32,
    /// Words seen less often were left out.
    pub(crate) min_count: i32,
    /// Labels drawn by negative sampling.
    pub(crate) neg: i32,
    /// Longest word n-gram; 1 is words alone.
    pub(crate) word_ngrams: usize,
    /// How labels become probabilities.
    pub(crate) loss: Loss,
    /// Rows of the input matrix that hashed n-grams share.
    pub(crate) bucket: u32,
    /// Shortest piece of a word, in characters.
    pub(crate) minn: usize,
    /// Longest piece of a word, in characters; 0 for none.
    pub(crate) maxn: usize,
    /// Tokens between two looks at the learning rate.
    pub(crate) lr_update_rate: i32,
    /// Sampling threshold of unsupervised training; not used here.
    pub(crate) t: f64,
}

const MAGIC: i32 = 793_712_314;
const VERSION: i32 = 12;
/// Supervised models; 1 and 2 are word vectors without labels.
const SUPERVISED: i32 = 3;
/// Longer n-grams than this would make the time of one long word quadratic; real models use up to 6.
const MAX_NGRAM: i32 = 64;

impl Args {
    pub(crate) fn read<R: Read>(source: &mut Source<R>) -> Result<Args> {
        let magic = source.i32("the fastText magic number")?;
        if magic != MAGIC {
            return Err(source.error(format!(
                "wanted the fastText magic number {MAGIC}, found {magic}: this is not a fastText .bin or .ftz file"
            )));
        }
        let version = source.i32("the format version")?;
        if version != 11 && version != VERSION {
            return Err(source
                .error(format!("fastText format version {version} is unknown; 11 and {VERSION} are read")));
        }
        let dim = source.i32("dim")?;
        let ws = source.i32("ws")?;
        let epoch = source.i32("epoch")?;
        let min_count = source.i32("minCount")?;
        let neg = source.i32("neg")?;
        let word_ngrams = source.i32("wordNgrams")?;
        let loss = source.i32("loss")?;
        let model = source.i32("model")?;
        let bucket = source.i32("bucket")?;
        let minn = source.i32("minn")?;
        let mut maxn = source.i32("maxn")?;
        let lr_update_rate = source.i32("lrUpdateRate")?;
        let t = source.f64("t")?;
        if model != SUPERVISED {
            return Err(source.error(format!(
                "this model has word vectors but no labels (model kind {model}); train one with `fasttext supervised`"
            )));
        }
        let loss = Loss::from_code(loss)
            .ok_or_else(|| source.error(format!("loss {loss} is unknown (1 hs, 2 ns, 3 softmax, 4 ova)")))?;
        if version == 11 {
            // Supervised models of that version know no pieces of words, whatever they say.
            maxn = 0;
        }
        for (name, value, low, high) in [
            ("dim", dim, 1, 1 << 20),
            ("wordNgrams", word_ngrams, 0, MAX_NGRAM),
            ("minn", minn, 0, i32::MAX),
            ("maxn", maxn, 0, MAX_NGRAM),
            ("bucket", bucket, 0, i32::MAX),
        ] {
            if !(low..=high).contains(&value) {
                return Err(source.error(format!("{name} = {value}, wanted {low} to {high}")));
            }
        }
        if bucket == 0 && (maxn > 0 || word_ngrams > 1) {
            return Err(source.error("the model has n-grams (maxn or wordNgrams) but no bucket for them"));
        }
        Ok(Args {
            dim: dim as usize,
            ws,
            epoch,
            min_count,
            neg,
            word_ngrams: word_ngrams as usize,
            loss,
            bucket: bucket as u32,
            minn: minn as usize,
            maxn: maxn as usize,
            lr_update_rate,
            t,
        })
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        for value in [
            MAGIC,
            VERSION,
            self.dim as i32,
            self.ws,
            self.epoch,
            self.min_count,
            self.neg,
            self.word_ngrams as i32,
            self.loss.code(),
            SUPERVISED,
            self.bucket as i32,
            self.minn as i32,
            self.maxn as i32,
            self.lr_update_rate,
        ] {
            to.write_all(&value.to_le_bytes())?;
        }
        to.write_all(&self.t.to_le_bytes())
    }

    /// True where words and word n-grams fall into hashed rows.
    pub(crate) fn hashes(&self) -> bool {
        self.maxn > 0 || self.word_ngrams > 1
    }
}
