//! Answers to questions: exact match and F1 over words (Rajpurkar et al. 2016, SQuAD; HELM's normal form), and pass@k of programs.

use crate::rouge::Overlap;
use std::collections::HashMap;

/// An answer in the form in which answers are compared: lower case, without ASCII and typographic punctuation, without the articles a, an and the,
/// one space between words.
pub fn normal_form(answer: &str) -> String {
    let lower = answer.to_lowercase();
    let bare: String =
        lower.chars().filter(|c| !c.is_ascii_punctuation() && !"‘’´`“”".contains(*c)).collect();
    let words = bare.split_whitespace().filter(|word| !matches!(*word, "a" | "an" | "the"));
    words.collect::<Vec<_>>().join(" ")
}

/// Whether an answer is one of the expected ones, in their normal form.
pub fn exact_match(answer: &str, expected: &[&str]) -> bool {
    let answer = normal_form(answer);
    expected.iter().any(|one| normal_form(one) == answer)
}

/// The largest F1 over words, with how often each occurs, of an answer and the expected ones. Two answers without words are equal.
pub fn f1(answer: &str, expected: &[&str]) -> f64 {
    let of = |expected: &str| {
        let (own, other) = (normal_form(answer), normal_form(expected));
        let (own, other): (Vec<&str>, Vec<&str>) = (own.split(' ').collect(), other.split(' ').collect());
        let mut left: HashMap<&str, usize> = HashMap::new();
        for word in &other {
            *left.entry(word).or_default() += 1;
        }
        let shared = own.iter().filter(|word| match left.get_mut(**word) {
            Some(count @ 1..) => {
                *count -= 1;
                true
            }
            _ => false,
        });
        Overlap::of(shared.count() as f64, own.len() as f64, other.len() as f64).f1
    };
    expected.iter().map(|one| of(one)).fold(0.0, f64::max)
}

/// The probability that at least one of `k` samples is right when `right` of `samples` were (Chen et al. 2021, equation 1), without bias:
/// `1 - C(n-c, k) / C(n, k)`. None if `k` is 0 or more than `samples`.
pub fn pass_at_k(samples: u64, right: u64, k: u64) -> Option<f64> {
    if k == 0 || k > samples || right > samples {
        return None;
    }
    if samples - right < k {
        return Some(1.0);
    }
    let all_wrong: f64 = (samples - right + 1..=samples).map(|i| 1.0 - k as f64 / i as f64).product();
    Some(1.0 - all_wrong)
}
