//! A text as a sequence of symbols.

use bessemer_eval::ngram_ladder::ngram_ladder;
use bessemer_runlog::study::{StudySettings, StudyText};
use bessemer_tensor::op::IGNORED;
use bessemer_tensor::rng::RngKey;
use bessemer_train::TrainError;

/// More distinct characters than this, and bytes are the symbols.
const MOST_SYMBOLS: usize = 256;
/// Batches of validation text that are scored, as far as there are so many.
const VALIDATION_BATCHES: usize = 16;

/// Inputs and the symbols that follow them.
pub(crate) type Pairs = (Vec<u32>, Vec<u32>);

/// A text as symbols: the first 90 % to train, the rest to validate.
#[derive(Debug, Clone, PartialEq)]
pub struct SymbolText {
    facts: StudyText,
    train: Vec<u32>,
    validation: Vec<u32>,
}

impl SymbolText {
    /// A text read as characters, or as bytes if it is no UTF-8 or has more than 256 different characters.
    ///
    /// # Errors
    /// A text with fewer than two different symbols.
    pub fn new(name: &str, bytes: &[u8]) -> Result<SymbolText, TrainError> {
        let chars: Option<Vec<char>> = std::str::from_utf8(bytes).ok().map(|t| t.chars().collect());
        let distinct = |symbols: &[char]| {
            let mut all = symbols.to_vec();
            all.sort_unstable();
            all.dedup();
            all
        };
        let by_char = chars.map(|c| (distinct(&c), c)).filter(|(alphabet, _)| alphabet.len() <= MOST_SYMBOLS);
        let (unit, (alphabet, symbols)) = match by_char {
            Some(found) => ("character", found),
            None => {
                let symbols: Vec<char> = bytes.iter().map(|b| char::from(*b)).collect();
                ("byte", (distinct(&symbols), symbols))
            }
        };
        if alphabet.len() < 2 {
            return Err(TrainError::Recipe(format!(
                "{name}: wanted a text to learn from, found {} different {unit}s",
                alphabet.len()
            )));
        }
        let (train, validation) = symbols.split_at(symbols.len() / 10 * 9 + symbols.len() % 10 * 9 / 10);
        let ladder = ngram_ladder(&String::from_iter(train), &String::from_iter(validation), 1);
        let facts = StudyText {
            name: name.to_owned(),
            unit: unit.to_owned(),
            symbols: alphabet.len() as u64,
            train: train.len() as u64,
            validation: validation.len() as u64,
            unigram_nats: ladder[0].train_nats,
            bigram_nats: ladder[1].train_nats,
        };
        let ids = |part: &[char]| {
            part.iter().map(|c| alphabet.partition_point(|a| a < c) as u32).collect::<Vec<u32>>()
        };
        Ok(SymbolText { facts, train: ids(train), validation: ids(validation) })
    }

    /// Statistics of a study's text.
    pub fn facts(&self) -> &StudyText {
        &self.facts
    }

    /// Makes sure that both parts are longer than a sequence.
    ///
    /// # Errors
    /// Says how long the text is and what was wanted.
    pub fn require(&self, settings: &StudySettings) -> Result<(), TrainError> {
        let shortest = self.validation.len().min(self.train.len());
        if (shortest as u64) > settings.context {
            return Ok(());
        }
        Err(TrainError::Recipe(format!(
            "{}: {} {}s leave {shortest} to validate on, a sequence needs {}; use a longer text or a shorter context",
            self.facts.name,
            self.facts.train + self.facts.validation,
            self.facts.unit,
            settings.context + 1
        )))
    }

    /// Random windows of the training part: the batch of step `step` under `seed`.
    pub(crate) fn batch(&self, settings: &StudySettings, seed: u64, step: u64) -> Pairs {
        let (rows, seq) = (settings.batch as usize, settings.context as usize);
        let key = RngKey::new(seed, step, "study.batch");
        let mut pairs = (Vec::with_capacity(rows * seq), Vec::with_capacity(rows * seq));
        for row in 0..rows as u64 {
            let word = key.block(row);
            let at = (u64::from(word[0]) << 32 | u64::from(word[1])) % (self.train.len() - seq) as u64;
            let window = &self.train[at as usize..at as usize + seq + 1];
            pairs.0.extend(&window[..seq]);
            pairs.1.extend(&window[1..]);
        }
        pairs
    }

    /// Windows of the validation part that do not overlap, from its beginning; the last batch is filled up with
    /// targets that are not scored.
    pub(crate) fn validation(&self, settings: &StudySettings) -> Vec<Pairs> {
        let (seq, rows) = (settings.context as usize, settings.batch as usize);
        let windows = ((self.validation.len() - 1) / seq).min(VALIDATION_BATCHES * rows);
        let batch = |first: usize| {
            let n = rows.min(windows - first) * seq;
            let from = first * seq;
            let (mut inputs, mut targets) = (vec![0; rows * seq], vec![IGNORED; rows * seq]);
            inputs[..n].copy_from_slice(&self.validation[from..from + n]);
            targets[..n].copy_from_slice(&self.validation[from + 1..from + n + 1]);
            (inputs, targets)
        };
        (0..windows).step_by(rows).map(batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(context: u64, batch: u64) -> StudySettings {
        StudySettings {
            layers: 1,
            width: 8,
            heads: 1,
            context,
            batch,
            steps: 1,
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
        }
    }

    #[test]
    fn symbols_are_characters_unless_there_are_too_many() {
        let text = SymbolText::new("t", "äbcäbcäbcä".as_bytes()).unwrap();
        assert_eq!((text.facts.unit.as_str(), text.facts.symbols), ("character", 3));
        assert_eq!(
            (text.train.as_slice(), text.validation.as_slice()),
            ([2, 0, 1].repeat(3).as_slice(), [2].as_slice())
        );
        assert!((text.facts.unigram_nats - 3f64.ln()).abs() < 1e-12 && text.facts.bigram_nats < 1e-12);
        let wide: String = (0..300).filter_map(|c| char::from_u32(0x4e00 + c)).collect();
        assert_eq!(SymbolText::new("t", wide.as_bytes()).unwrap().facts.unit, "byte");
        assert_eq!(SymbolText::new("t", &[255, 0, 255, 1]).unwrap().facts.symbols, 3);
        for empty in ["", "aaaa"] {
            assert!(SymbolText::new("t", empty.as_bytes()).unwrap_err().to_string().starts_with("t: wanted"));
        }
    }

    #[test]
    fn windows_lie_inside_and_targets_follow_inputs() {
        let text: String = (0..1000u32).map(|i| char::from(b'a' + (i * i % 26) as u8)).collect();
        let text = SymbolText::new("t", text.as_bytes()).unwrap();
        let s = settings(8, 3);
        text.require(&s).unwrap();
        let (x, y) = text.batch(&s, 1, 5);
        assert_eq!((x.len(), y.len()), (24, 24));
        for (x, y) in x.chunks(8).zip(y.chunks(8)) {
            assert_eq!(x[1..], y[..7]);
            assert!(text.train.windows(9).any(|w| w[..8] == *x && w[1..] == *y));
        }
        assert_eq!(text.batch(&s, 1, 5).0, x);
        assert_ne!(text.batch(&s, 1, 6).0, x);
        assert_ne!(text.batch(&s, 2, 5).0, x);
        // 100 characters: 12 windows of 8, four batches of 3.
        let batches = text.validation(&s);
        assert_eq!(batches.len(), 4);
        let scored: Vec<u32> = batches.iter().flat_map(|b| &b.1).copied().collect();
        assert_eq!(scored, text.validation[1..97]);
        let odd = text.validation(&settings(8, 5));
        assert_eq!(odd.iter().flat_map(|b| &b.1).filter(|t| **t != IGNORED).count(), 96);
        assert!(text.require(&settings(100, 3)).unwrap_err().to_string().contains("a sequence needs 101"));
    }
}
