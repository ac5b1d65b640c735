//! Character n-grams of growing context by plain counting: how much of a text each further character of context
//! explains, and what a neural model of characters has to beat.
//!
//! With c counts in the training text, V distinct characters in both texts, contexts `h` of k characters:
//!
//! ```text
//! train (maximum likelihood)   - mean over the training text's   (h, w) of ln  c(hw) / c(h)
//! validation (add one)         - mean over the validation text's (h, w) of ln (c(hw) + 1) / (c(h) + V)
//! ```
//!
//! where `c(h)` is the sum of `c(hw)` and each text is one sequence: its first k characters are contexts only. Add-one
//! smoothing is Laplace's rule of succession. Cost: a sort of the training text's n-grams for each k.

use std::collections::BTreeSet;

/// One context length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rung {
    /// Characters of context.
    pub context: u32,
    /// Nats per character of the training text under its own counts; NaN for a text shorter than the n-gram.
    pub train_nats: f64,
    /// Nats per character of the validation text, smoothed by one; NaN for a text shorter than the n-gram.
    pub validation_nats: f64,
}

/// The rungs for contexts of 0 to `max_context` characters, as far as an n-gram fits into 64 bits.
pub fn ngram_ladder(train: &str, validation: &str, max_context: u32) -> Vec<Rung> {
    let alphabet: Vec<char> =
        train.chars().chain(validation.chars()).collect::<BTreeSet<char>>().into_iter().collect();
    let v = alphabet.len() as u64;
    let ids = |text: &str| -> Vec<u64> {
        text.chars()
            .map(|c| alphabet.binary_search(&c).expect("every character was collected") as u64)
            .collect()
    };
    let (train, validation) = (ids(train), ids(validation));
    (0..=max_context)
        .map_while(|context| {
            // n-grams as numbers of `context + 1` digits to the base V.
            v.checked_pow(context + 1)?;
            Some(rung(&train, &validation, v, context))
        })
        .collect()
}

fn rung(train: &[u64], validation: &[u64], v: u64, context: u32) -> Rung {
    let n = context as usize + 1;
    let pack = |window: &[u64]| window.iter().fold(0, |key, id| key * v + id);
    let mut ngrams: Vec<u64> = train.windows(n).map(pack).collect();
    ngrams.sort_unstable();
    let (mut keys, mut counts) = (Vec::new(), Vec::new());
    let (mut contexts, mut context_counts) = (Vec::new(), Vec::new());
    let mut train_nats = 0.0;
    for with_context in ngrams.chunk_by(|a, b| a / v == b / v) {
        let total = with_context.len() as f64;
        contexts.push(with_context[0] / v);
        context_counts.push(total);
        for run in with_context.chunk_by(u64::eq) {
            keys.push(run[0]);
            counts.push(run.len() as f64);
            train_nats -= run.len() as f64 * (run.len() as f64 / total).ln();
        }
    }
    let count = |keys: &[u64], counts: &[f64], key| keys.binary_search(&key).map_or(0.0, |at| counts[at]);
    let (mut validation_nats, mut scored) = (0.0, 0u64);
    for key in validation.windows(n).map(pack) {
        let own = count(&keys, &counts, key) + 1.0;
        validation_nats -= (own / (count(&contexts, &context_counts, key / v) + v as f64)).ln();
        scored += 1;
    }
    Rung {
        context,
        train_nats: train_nats / ngrams.len() as f64,
        validation_nats: validation_nats / scored as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// tiny-shakespeare (1,115,394 bytes), looked for in `shared/data` beside or above the repository, or where
    /// BESSEMER_TINYSHAKESPEARE says.
    fn tiny_shakespeare() -> Option<String> {
        let named = std::env::var_os("BESSEMER_TINYSHAKESPEARE").map(PathBuf::from);
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let beside = root.ancestors().skip(2).take(2).map(|d| d.join("shared/data/tinyshakespeare.txt"));
        named.into_iter().chain(beside).find_map(|path| std::fs::read_to_string(path).ok())
    }

    /// Karpathy's char-rnn text, cut at 90 % as nanoGPT does.
    #[test]
    fn tiny_shakespeare_has_the_known_losses() {
        let Some(text) = tiny_shakespeare() else {
            println!(
                "skipped: shared/data/tinyshakespeare.txt is absent (BESSEMER_TINYSHAKESPEARE names another place)"
            );
            return;
        };
        let (train, validation) = text.split_at(text.len() / 10 * 9 + text.len() % 10 * 9 / 10);
        assert_eq!((train.len(), validation.len()), (1_003_854, 111_540));
        let golden = [(3.309084, 3.347330), (2.451913, 2.481889), (1.903178, 2.068421), (1.490625, 1.952574)];
        let ladder = ngram_ladder(train, validation, 3);
        assert_eq!(ladder.len(), 4);
        for (rung, (train, validation)) in ladder.iter().zip(golden) {
            assert!((rung.train_nats - train).abs() < 1e-6, "{rung:?}");
            assert!((rung.validation_nats - validation).abs() < 1e-6, "{rung:?}");
        }
    }

    #[test]
    fn small_text_has_the_losses_worked_out_by_hand() {
        // c(a) = 3, c(b) = 2; after a: a 1, b 2; after b: a 1.
        let ladder = ngram_ladder("aabab", "bb", 1);
        assert!((ladder[0].train_nats + (3.0 * 0.6f64.ln() + 2.0 * 0.4f64.ln()) / 5.0).abs() < 1e-15);
        assert!((ladder[0].validation_nats + (3.0f64 / 7.0).ln()).abs() < 1e-15);
        assert!(
            (ladder[1].train_nats + ((1.0f64 / 3.0).ln() + 2.0 * (2.0f64 / 3.0).ln()) / 4.0).abs() < 1e-15
        );
        assert!((ladder[1].validation_nats + (1.0f64 / 3.0).ln()).abs() < 1e-15);
    }

    #[test]
    fn short_and_wide_texts_do_not_panic() {
        assert!(ngram_ladder("", "", 2).iter().all(|r| r.train_nats.is_nan()));
        // The third rung would need more than 64 bits with a large alphabet, the 65th with two characters.
        assert_eq!(ngram_ladder("ab", "ba", 100).len(), 63);
        assert!(ngram_ladder("ab", "b", 1)[1].validation_nats.is_nan());
    }
}
