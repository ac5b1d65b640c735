//! TER, the translation edit rate (Snover et al. 2006), as sacrebleu (Post 2018) computes it after the program tercom.
//!
//! Edits over words of the reference: insertions, deletions, substitutions, and shifts of a run of words, which count one each. Which shifts
//! are tried and which of them is taken are rules of tercom: runs of up to 10 words over up to 50 places, from places where both
//! texts are wrong, the one that lowers the edit distance most, until none does; the edit distance looks 25 places to each
//! side of the diagonal. Cost: O(words^2) for each shift tried, of which there are at most 1000.

use crate::tokens::words;
use std::collections::BTreeMap;

/// Longest run of words that is shifted.
const MOST_WORDS: usize = 10;
/// Places over which a run is shifted.
const MOST_PLACES: usize = 50;
/// Places on either side of the diagonal that the edit distance looks at.
const BEAM: f64 = 25.0;
/// Shifts that are tried.
const MOST_SHIFTS: usize = 1000;

/// A definition of TER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ter {
    /// Whether upper and lower case differ.
    pub case_sensitive: bool,
}

/// Edits and mean words of the references; those of a corpus are the sums of its segments'.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TerCounts {
    /// Fewest edits to a reference.
    pub edits: f64,
    /// Words of the references, their mean.
    pub reference: f64,
}

impl Ter {
    /// Counts of one segment against its references, of which there is at least one.
    pub fn counts(&self, hypothesis: &str, references: &[&str]) -> TerCounts {
        let text = |text: &str| if self.case_sensitive { text.to_string() } else { text.to_lowercase() };
        let hypothesis = text(hypothesis);
        let references: Vec<String> = references.iter().map(|one| text(one)).collect();
        let mut numbers = crate::counts::Words::default();
        let own = numbers.number(words(&hypothesis));
        let (mut least, mut length) = (usize::MAX, 0);
        for reference in &references {
            let other = numbers.number(words(reference));
            least = least.min(edits(&own, &other));
            length += other.len();
        }
        TerCounts { edits: least as f64, reference: length as f64 / references.len() as f64 }
    }

    /// The rate in percent; more than 100 where there are more edits than words.
    pub fn score(&self, counts: &TerCounts) -> f64 {
        match counts.reference > 0.0 {
            true => 100.0 * counts.edits / counts.reference,
            false => 100.0 * f64::from(u8::from(counts.edits > 0.0)),
        }
    }

    /// The signature that sacrebleu prints for this definition.
    pub fn signature(&self, references: usize) -> String {
        let case = if self.case_sensitive { "mixed" } else { "lc" };
        format!(
            "nrefs:{references}|case:{case}|tok:tercom|norm:no|punct:yes|asian:no|version:{}",
            crate::SACREBLEU
        )
    }
}

/// One step of the way from the reference to the hypothesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    Same,
    Replace,
    /// A word of the reference alone.
    Reference,
    /// A word of the hypothesis alone.
    Hypothesis,
}

/// Edits with shifts from a hypothesis to a reference.
fn edits(hypothesis: &[u32], reference: &[u32]) -> usize {
    if reference.is_empty() {
        return hypothesis.len();
    }
    let mut now = hypothesis.to_vec();
    let (mut shifts, mut tried) = (0, 0);
    while let Some(next) = shift(&now, reference, &mut tried) {
        now = next;
        shifts += 1;
    }
    shifts + distance(&now, reference).0
}

/// The edit distance within the beam, and the edits in the order of the texts.
fn distance(hypothesis: &[u32], reference: &[u32]) -> (usize, Vec<Edit>) {
    const FAR: usize = 1 << 40;
    let (n, m) = (hypothesis.len(), reference.len());
    let ratio = if n > 0 { m as f64 / n as f64 } else { 1.0 };
    let beam = if BEAM < ratio / 2.0 { (ratio / 2.0 + BEAM).ceil() } else { BEAM } as usize;
    let width = m + 1;
    let mut cost = vec![FAR; (n + 1) * width];
    let mut last = vec![Edit::Reference; (n + 1) * width];
    for (j, cell) in cost[..width].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=n {
        let diagonal = (i as f64 * ratio).floor() as usize;
        let end = if i == n { width } else { width.min(diagonal + beam) };
        for j in diagonal.saturating_sub(beam)..end {
            let at = i * width + j;
            if j == 0 {
                (cost[at], last[at]) = (cost[at - width] + 1, Edit::Hypothesis);
                continue;
            }
            let same = hypothesis[i - 1] == reference[j - 1];
            let edit = if same { Edit::Same } else { Edit::Replace };
            // Of equal ones the first.
            let ways = [
                (cost[at - width - 1] + usize::from(!same), edit),
                (cost[at - width] + 1, Edit::Hypothesis),
                (cost[at - 1] + 1, Edit::Reference),
            ];
            for (way, edit) in ways {
                if way < cost[at] {
                    (cost[at], last[at]) = (way, edit);
                }
            }
        }
    }
    let (mut i, mut j, mut edits) = (n, m, Vec::with_capacity(n + m));
    while i > 0 || j > 0 {
        let edit = last[i * width + j];
        edits.push(edit);
        i -= usize::from(edit != Edit::Reference);
        j -= usize::from(edit != Edit::Hypothesis);
    }
    edits.reverse();
    (cost[n * width + m], edits)
}

/// The hypothesis after the best shift. None if no shift lowers the edit distance, or if enough were tried.
fn shift(hypothesis: &[u32], reference: &[u32], tried: &mut usize) -> Option<Vec<u32>> {
    let (before, edits) = distance(hypothesis, reference);
    // Place in the hypothesis of each word of the reference, or of what stands before it; which words are wrong.
    let mut aligned: Vec<isize> = Vec::with_capacity(reference.len());
    let (mut wrong_own, mut wrong_other) = (Vec::new(), Vec::new());
    for edit in edits {
        let wrong = edit != Edit::Same;
        if edit != Edit::Reference {
            wrong_own.push(wrong);
        }
        if edit != Edit::Hypothesis {
            wrong_other.push(wrong);
            aligned.push(wrong_own.len() as isize - 1);
        }
    }
    // Gain, length, start and target, both the earlier the better.
    type Rank = (isize, usize, std::cmp::Reverse<usize>, std::cmp::Reverse<usize>);
    let mut best: Option<(Rank, Vec<u32>)> = None;
    let mut distances: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
    'pairs: for start in 0..hypothesis.len() {
        for place in 0..reference.len() {
            if place.abs_diff(start) > MOST_PLACES {
                continue;
            }
            let run = hypothesis[start..].iter().zip(&reference[place..]).take(MOST_WORDS);
            let run = run.take_while(|(a, b)| a == b).count();
            for length in 1..=run {
                let within = start as isize..(start + length) as isize;
                if !wrong_own[start..start + length].contains(&true)
                    || !wrong_other[place..place + length].contains(&true)
                    || within.contains(&aligned[place])
                {
                    continue;
                }
                let mut previous = None;
                for offset in 0..=length {
                    // Before the run's first place, and after each of its places.
                    let target = match (place + offset).checked_sub(1) {
                        None => 0,
                        Some(at) => match aligned.get(at) {
                            Some(index) => (index + 1) as usize,
                            None => break,
                        },
                    };
                    if previous == Some(target) {
                        continue;
                    }
                    previous = Some(target);
                    let shifted = moved(hypothesis, start, length, target);
                    let after = match distances.get(&shifted) {
                        Some(after) => *after,
                        None => {
                            let after = distance(&shifted, reference).0;
                            distances.insert(shifted.clone(), after);
                            after
                        }
                    };
                    let gain = before as isize - after as isize;
                    let rank = (gain, length, std::cmp::Reverse(start), std::cmp::Reverse(target));
                    *tried += 1;
                    if best.as_ref().is_none_or(|(before, _)| rank > *before) {
                        best = Some((rank, shifted));
                    }
                }
                if *tried >= MOST_SHIFTS {
                    break 'pairs;
                }
            }
        }
    }
    if *tried >= MOST_SHIFTS {
        return None;
    }
    best.filter(|((gain, ..), _)| *gain > 0).map(|(_, words)| words)
}

/// The words with `length` of them from `start` put before `target`, counted in the words as they were; a target within the run counts in what
/// is left of the words.
fn moved(words: &[u32], start: usize, length: usize, target: usize) -> Vec<u32> {
    let end = start + length;
    let run = &words[start..end];
    let (before, between, after) = if target < start {
        (&words[..target], &words[target..start], &words[end..])
    } else if target > end {
        (&words[..start], &words[end..target], &words[target..])
    } else {
        let to = (length + target).min(words.len());
        let mut out = words[..start].to_vec();
        out.extend(&words[end..to]);
        out.extend(run);
        out.extend(&words[to..]);
        return out;
    };
    let mut out = before.to_vec();
    if target < start {
        out.extend(run);
        out.extend(between);
    } else {
        out.extend(between);
        out.extend(run);
    }
    out.extend(after);
    out
}
