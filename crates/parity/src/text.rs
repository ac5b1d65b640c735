//! Made-up text that can be learned: a noisy walk through the vocabulary, a function of (step, sequence) alone.

use bessemer_units::splitmix::SplitMix64;

/// `seq` + 1 tokens of sequence `sequence` of step `step`: mostly `next = 3 token + 1`, one in eight anything. One in ten
/// is `document_end`, where there is such a token.
pub(super) fn tokens(
    step: u64,
    sequence: u64,
    seq: usize,
    vocab: usize,
    document_end: Option<u32>,
) -> Vec<u32> {
    let mut random = SplitMix64(step << 32 | sequence);
    let vocab = vocab as u64;
    let mut token = random.below(vocab);
    let mut out = Vec::with_capacity(seq + 1);
    for _ in 0..=seq {
        out.push(token as u32);
        let draw = random.next_u64();
        token = match document_end {
            Some(end) if (draw >> 3).is_multiple_of(10) => u64::from(end),
            _ if draw.is_multiple_of(8) => (draw >> 8) % vocab,
            _ => (3 * token + 1) % vocab,
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_end_within_sequences() {
        let text = |end| (0..64).flat_map(|s| tokens(0, s, 16, 101, end)).collect::<Vec<_>>();
        let ends = text(Some(0)).iter().filter(|t| **t == 0).count();
        assert!((80..160).contains(&ends), "{ends} of {}", text(Some(0)).len());
        assert!(text(None).iter().filter(|t| **t == 0).count() < 40);
    }
}
