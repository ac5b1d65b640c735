//! Training a tokenizer: count first, learn at the end.

use crate::added_tokens::AddedToken;
use crate::batch::{parts, share_out};
use crate::bpe::Bpe;
use crate::byte_alphabet::{BYTES_IN_ALPHABET_ORDER, unspell};
use crate::char_model::CharModel;
use crate::config::{TokenizerConfig, TokenizerKind};
use crate::error::{Result, TokenizerError};
use crate::learn_merges::{Limits, Words, learn_merges};
use crate::tokenizer::{Model, Parts, Tokenizer};
use crate::word_counts::WordCounts;
use std::collections::BTreeSet;

/// How far [`Trainer::finish`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingProgress {
    /// Ids so far.
    pub vocabulary: usize,
    /// Ids asked for. Training may end below, when no pair is frequent enough.
    pub wanted: usize,
}

/// Collects what training needs of a text, then learns a tokenizer from it.
///
/// The result depends on the text alone: not on how it was cut into batches, nor on the number of threads. Memory
/// grows with the number of distinct pieces (about 60 bytes each), not with the text.
///
/// ```
/// use bessemer_tokenizer::{TokenizerConfig, Trainer};
/// let config = TokenizerConfig { vocab_size: 260, ..TokenizerConfig::default() };
/// let mut trainer = Trainer::new(config)?;
/// trainer.feed("low lower lowest low low");
/// let tokenizer = trainer.finish(|_| {})?;
/// let ids = tokenizer.encode(b"lower")?;
/// assert_eq!(tokenizer.decode(&ids)?, b"lower");
/// # Ok::<(), bessemer_tokenizer::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct Trainer {
    config: TokenizerConfig,
    /// One per thread that has worked so far; their sum counts.
    tallies: Vec<Tally>,
    bytes: u64,
}

#[derive(Debug)]
enum Tally {
    Words(WordCounts),
    Alphabet(Alphabet),
}

/// The set of characters seen, one bit each.
#[derive(Debug)]
struct Alphabet(Vec<u64>);

impl Alphabet {
    fn new() -> Self {
        Alphabet(vec![0; 0x110000 / 64])
    }

    fn add(&mut self, text: &str) {
        for c in text.chars() {
            self.0[c as usize / 64] |= 1 << (c as usize % 64);
        }
    }

    fn chars(&self) -> impl Iterator<Item = char> + '_ {
        ('\0'..=char::MAX).filter(|c| self.0[*c as usize / 64] >> (*c as usize % 64) & 1 == 1)
    }
}

impl Trainer {
    /// A trainer that has seen nothing.
    ///
    /// # Errors
    /// [`TokenizerError::Config`] when a value is out of range.
    pub fn new(config: TokenizerConfig) -> Result<Self> {
        config.check()?;
        Ok(Trainer { config, tallies: Vec::new(), bytes: 0 })
    }

    /// Takes in one document.
    pub fn feed(&mut self, text: &str) {
        self.feed_batch(&[text], 1);
    }

    /// Takes in documents on up to `threads` threads that live for this call.
    pub fn feed_batch<T: AsRef<str> + Sync>(&mut self, texts: &[T], threads: usize) {
        let texts: Vec<&[u8]> = texts.iter().map(|text| text.as_ref().as_bytes()).collect();
        self.bytes += texts.iter().map(|text| text.len() as u64).sum::<u64>();
        let threads = threads.max(1);
        while self.tallies.len() < threads {
            self.tallies.push(match self.config.kind {
                TokenizerKind::ByteBpe => Tally::Words(WordCounts::new()),
                TokenizerKind::Char => Tally::Alphabet(Alphabet::new()),
            });
        }
        let pretokenizer = self.config.pretokenizer;
        let parts = parts(&texts, true);
        share_out(&parts, &mut self.tallies[..threads], |tally, group| {
            for part in &parts[group] {
                match tally {
                    Tally::Words(counts) => counts.count(pretokenizer, part.bytes),
                    Tally::Alphabet(alphabet) => {
                        alphabet
                            .add(std::str::from_utf8(part.bytes).expect("str cut beside ASCII characters"));
                    }
                }
            }
        });
    }

    /// Bytes of text taken in.
    pub fn bytes_seen(&self) -> u64 {
        self.bytes
    }

    /// Learns the tokenizer, calling `progress` some hundred times.
    ///
    /// # Errors
    /// [`TokenizerError::Training`] without text, when a special token is an ordinary word of the text, or when a
    /// character tokenizer needs more ids than `vocab_size`.
    pub fn finish(self, mut progress: impl FnMut(TrainingProgress)) -> Result<Tokenizer> {
        if self.bytes == 0 {
            return Err(TokenizerError::Training("the training text is empty".to_owned()));
        }
        let (mut words, mut chars) = (None::<WordCounts>, BTreeSet::new());
        for tally in self.tallies {
            match (tally, &mut words) {
                (Tally::Words(counts), Some(total)) if counts.len() > total.len() => {
                    let smaller = std::mem::replace(total, counts);
                    total.merge(smaller);
                }
                (Tally::Words(counts), Some(total)) => total.merge(counts),
                (Tally::Words(counts), None) => words = Some(counts),
                (Tally::Alphabet(alphabet), _) => chars.extend(alphabet.chars()),
            }
        }
        match words {
            Some(words) => train_byte_bpe(&self.config, words, &mut progress),
            None => build_char(&self.config, chars),
        }
    }
}

/// Special tokens come first, as the Hugging Face trainers number them.
fn special_tokens(config: &TokenizerConfig) -> Vec<AddedToken> {
    let tokens = config.special_tokens().into_iter().enumerate();
    tokens
        .map(|(id, content)| AddedToken {
            content,
            id: id as u32,
            special: true,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            in_vocabulary: true,
        })
        .collect()
}

fn train_byte_bpe(
    config: &TokenizerConfig,
    counts: WordCounts,
    progress: &mut dyn FnMut(TrainingProgress),
) -> Result<Tokenizer> {
    let added = special_tokens(config);
    let first_byte = added.len() as u32;
    let mut byte_ids = [0; 256];
    for (i, byte) in BYTES_IN_ALPHABET_ORDER.iter().enumerate() {
        byte_ids[usize::from(*byte)] = first_byte + i as u32;
    }
    // In the file a special token is spelled like the other entries of the vocabulary, so what must not be made by
    // merges is the byte string that this spelling stands for. A special token with other characters cannot clash.
    let spelled = added.iter().map(|token| unspell(&token.content).unwrap_or_default().into_boxed_slice());
    let tokens = spelled.chain(BYTES_IN_ALPHABET_ORDER.iter().map(|byte| [*byte].into())).collect();
    let mut words = Words::default();
    counts.for_each_sorted(|piece, count| {
        words.push(piece.iter().map(|byte| byte_ids[usize::from(*byte)]), count);
    });
    let wanted = config.vocab_size as usize;
    let limits = Limits { vocab_size: wanted, min_frequency: config.min_frequency, special: added.len() };
    let mut report = |vocabulary| progress(TrainingProgress { vocabulary, wanted });
    let mut learned = learn_merges(words, tokens, limits, &mut report)?;
    for token in &added {
        learned.tokens[token.id as usize] = token.content.as_bytes().into();
    }
    Tokenizer::from_parts(Parts {
        model: Model::ByteBpe {
            pretokenizer: config.pretokenizer,
            bpe: Box::new(Bpe::new(byte_ids, learned.merges, None)?),
        },
        tokens: learned.tokens,
        added,
        post_processor: serde_json::Value::Null,
    })
}

fn build_char(config: &TokenizerConfig, chars: BTreeSet<char>) -> Result<Tokenizer> {
    let added = special_tokens(config);
    let needed = chars.len() + added.len();
    if needed as u64 > config.vocab_size {
        return Err(TokenizerError::Training(format!(
            "the text has {} distinct characters; with {} special tokens they need vocab_size = {needed} or more, \
             and it is {}",
            chars.len(),
            added.len(),
            config.vocab_size
        )));
    }
    let ids = chars.iter().copied().zip(added.len() as u32..);
    let model = Model::Char(Box::new(CharModel::new(ids)));
    let spelled = chars.iter().map(|c| c.to_string().into_bytes().into_boxed_slice());
    let tokens = added.iter().map(|token| token.content.as_bytes().into()).chain(spelled).collect();
    Tokenizer::from_parts(Parts { model, tokens, added, post_processor: serde_json::Value::Null })
}
