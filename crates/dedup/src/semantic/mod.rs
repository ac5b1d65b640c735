//! Semantic deduplication (Abbas, Tirumala, Simig, Ganguli, Morcos, "SemDeDup", 2023): embeddings are clustered by
//! k-means, and within a cluster documents whose cosine similarity to one that is kept reaches 1 − eps are dropped.
//!
//! Embeddings come as a column of 32-bit floats, made by whatever model; or, built in, as hashed bags of word n-grams.
//! The built-in ones know no meaning: two texts are close when they use the same words and word pairs in the same
//! proportions. They find reordered and lightly edited text, not paraphrases.
//!
//! SemDeDup compares with every earlier item of the cluster, dropped ones included, so that chains drop more than
//! eps allows; here, as in every method of this crate, a document is compared with those that are kept.

pub mod kmeans;
mod stages;

pub(crate) use stages::{keys, stages};

use crate::minhash::shingle::words_of;
use bessemer_units::splitmix::mix;

/// Scales a vector to length 1; false if it has none.
pub(crate) fn normalise(vector: &mut [f32]) -> bool {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length.is_finite() && length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    length.is_finite() && length > 0.0
}

/// The inner product, summed in 16 lanes whose order depends on the length alone.
#[inline]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..16 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// The hashed bag of words and word pairs of a text (Weinberger et al., "Feature Hashing", 2009): each adds ±1 to one
/// dimension; then the square root of each count, so that frequent words do not outweigh the rest; then length 1.
/// False if the text has no word.
pub fn hashed_bag(text: &str, words: &mut Vec<u64>, out: &mut [f32]) -> bool {
    words_of(text, words);
    out.fill(0.0);
    let dimensions = out.len() as u64;
    let mut add = |feature: u64| {
        let hash = mix(feature);
        let sign = if hash & 1 == 0 { 1.0 } else { -1.0 };
        out[(((hash >> 32) * dimensions) >> 32) as usize] += sign;
    };
    words.iter().for_each(|&word| add(word));
    words.windows(2).for_each(|pair| add(pair[0].rotate_left(17) ^ mix(pair[1])));
    out.iter_mut().for_each(|x| *x = x.abs().sqrt().copysign(*x));
    normalise(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bag(text: &str) -> Vec<f32> {
        let mut out = vec![0.0; 256];
        assert!(hashed_bag(text, &mut Vec::new(), &mut out));
        out
    }

    #[test]
    fn bags_are_close_where_words_are_shared() {
        let one = bag("the king rode north with his men before the winter came to the hills");
        let same = bag("Before the winter came to the hills, the king rode north with his men!");
        let other = bag("a compiler turns programs into machine code after checking their types");
        assert!((dot(&one, &one) - 1.0).abs() < 1e-6);
        assert!(dot(&one, &same) > 0.85, "{}", dot(&one, &same));
        assert!(dot(&one, &other) < 0.4, "{}", dot(&one, &other));
        assert!(!hashed_bag("...", &mut Vec::new(), &mut [0.0; 8]));
    }
}
