//! Sums between ranks, checked against the sums of their terms.
//!
//! A reduction makes `y[i]` of the terms `x_r[i]` of ranks r. Summed over the elements in f64, both sides agree but for the rounding of each
//! element (algorithm-based fault tolerance: Huang and Abraham 1984):
//!
//! ```text
//! | sum_i y[i] - sum_r sum_i x_r[i] |  <=  (n 2^-24 + u + N 2^-52) sum_r sum_i | x_r[i] |
//! ```
//! for n ranks and N elements; sums are formed in f32 and rounded to the type of the elements, with unit roundoff u. What is off by more
//! is wrong: a sum that was not formed, a term that is missing or stale, a flipped bit of some weight. A million gradients in f32 of about one
//! size show an element that is off by a tenth of that size; in bf16, whose roundoff is 2^-9, only gross errors show. Each checked collective
//! carries one more all-gather of a few numbers, with the number of the step, so that ranks at different steps are found too. The values
//! stay as they are.

use crate::wrap::{Wrapped, Wrapper};
use crate::{
    Collective, CollectiveError, Communicator, ElementType, HostSlice, HostSliceMut, Memory, Parts, Pattern,
    Reduce,
};
use half::{bf16, f16};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shorter sums are not checked: control messages, and sums whose own values are checked by others.
const SHORTEST: usize = 64;

/// Words of a rank's message: the step, and the sums.
const WORDS: usize = 8;

/// Checks the sums that go through the communicators that it wraps and through groups made from them, while it is switched on. Clones
/// share their findings. All ranks switch it at the same collective.
#[derive(Debug, Clone, Default)]
pub struct SumCheck {
    /// The step plus one; 0 while nothing is checked.
    step: Arc<AtomicU64>,
    found: Arc<Mutex<Option<String>>>,
}

impl SumCheck {
    /// Wraps a communicator whose sums are checked.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, CheckedGroup { check: self.clone(), words: Vec::new(), parts: Parts::none() })
    }

    /// Checks from now on, in this step, or no longer.
    pub fn switch(&self, step: Option<u64>) {
        self.step.store(step.map_or(0, |step| step + 1), Ordering::Relaxed);
    }

    /// The first finding since the last call: a sentence.
    pub fn take(&self) -> Option<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, text: impl FnOnce() -> String) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(text);
    }
}

#[derive(Debug)]
struct CheckedGroup {
    check: SumCheck,
    words: Vec<u32>,
    parts: Parts,
}

/// A rank's numbers of one collective.
#[derive(Debug, Clone, Copy)]
struct RankSums {
    step: u64,
    /// Sum of its terms, and of their absolute values.
    terms: f64,
    absolute: f64,
    /// Sum of its results.
    results: f64,
}

impl RankSums {
    fn to_words(self) -> [u32; WORDS] {
        let numbers = [self.step, self.terms.to_bits(), self.absolute.to_bits(), self.results.to_bits()];
        let mut words = [0; WORDS];
        for (pair, number) in words.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
            *pair = [number as u32, (number >> 32) as u32];
        }
        words
    }

    fn of_words(words: &[u32; WORDS]) -> RankSums {
        let number = |at: usize| u64::from(words[2 * at]) | u64::from(words[2 * at + 1]) << 32;
        let float = |at: usize| f64::from_bits(number(at));
        RankSums { step: number(0), terms: float(1), absolute: float(2), results: float(3) }
    }
}

impl Wrapper for CheckedGroup {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        let step = self.check.step.load(Ordering::Relaxed);
        let memory = match memory {
            Memory::InPlace(values)
                if step > 0 && inner.size() > 1 && is_checked(collective, values.as_slice()) =>
            {
                values
            }
            memory => return inner.run(collective, memory),
        };
        let HostSliceMut { element, bytes } = memory;
        let (terms, absolute) = sums(element, bytes);
        inner.run(collective, Memory::InPlace(HostSliceMut { element, bytes: &mut *bytes }))?;
        let here = match collective.parts() {
            Some(parts) => parts.range(inner.rank()),
            None => 0..bytes.len() / element.size(),
        };
        let (results, _) = sums(element, &bytes[here.start * element.size()..here.end * element.size()]);
        let own = RankSums { step, terms, absolute, results };
        self.parts.set((0..inner.size()).map(|_| WORDS));
        self.words.resize(self.parts.len(), 0);
        self.words[self.parts.range(inner.rank())].copy_from_slice(&own.to_words());
        inner.all_gather(collective.name, &mut self.words, &self.parts)?;
        let all = self.words.as_chunks::<WORDS>().0;
        if let Some(problem) = problem(all, collective, element, bytes.len() / element.size()) {
            let (kind, name, label) = (collective.kind().name(), collective.name, inner.label());
            self.check.note(|| format!("{kind} of {name:?} in {label}: {problem}"));
        }
        Ok(())
    }

    fn for_group(&self) -> CheckedGroup {
        CheckedGroup { check: self.check.clone(), words: Vec::new(), parts: Parts::none() }
    }
}

fn is_checked(collective: &Collective<'_>, values: HostSlice<'_>) -> bool {
    let floats = matches!(values.element, ElementType::F32 | ElementType::Bf16 | ElementType::F16);
    floats && values.len() >= SHORTEST && collective.reduce() == Some(Reduce::Sum)
}

/// What is wrong with a sum of `count` elements, if anything. The same on every rank.
fn problem(
    all: &[[u32; WORDS]],
    collective: &Collective<'_>,
    element: ElementType,
    count: usize,
) -> Option<String> {
    let ranks: Vec<RankSums> = all.iter().map(RankSums::of_words).collect();
    if let Some(rank) = ranks.iter().position(|r| r.step != ranks[0].step) {
        let [first, other] = [ranks[0].step, ranks[rank].step].map(|step| step.saturating_sub(1));
        return Some(format!("rank 0 of the group is at step {first}, rank {rank} at step {other}"));
    }
    let terms: f64 = ranks.iter().map(|r| r.terms).sum();
    let absolute: f64 = ranks.iter().map(|r| r.absolute).sum();
    // What overflows is no finding: gradients may.
    if !absolute.is_finite() {
        return None;
    }
    let roundoff = match element {
        ElementType::Bf16 => (-9f64).exp2(),
        ElementType::F16 => (-12f64).exp2(),
        _ => 0.0,
    };
    // Of f16 there is an absolute error too where numbers are subnormal.
    let smallest = if element == ElementType::F16 { count as f64 * (-25f64).exp2() } else { 0.0 };
    let relative = ranks.len() as f64 * (-24f64).exp2() + roundoff + count as f64 * (-52f64).exp2();
    let bound = relative * absolute + smallest;
    let off = |results: f64| !results.is_finite() || (results - terms).abs() > bound;
    let text = |who: &str, results: f64| {
        Some(format!(
            "the sum of its elements is {results:e}{who}, that of the terms {terms:e}: the difference \
             exceeds the rounding bound of {bound:e}"
        ))
    };
    if let Pattern::ReduceScatter(..) = collective.pattern {
        let results = ranks.iter().map(|r| r.results).sum();
        return if off(results) { text("", results) } else { None };
    }
    let wrong = ranks.iter().position(|r| off(r.results))?;
    text(&format!(" on rank {wrong} of the group"), ranks[wrong].results)
}

/// The sum of some values, and that of their absolute values.
fn sums(element: ElementType, bytes: &[u8]) -> (f64, f64) {
    match element {
        ElementType::Bf16 => {
            lanes(bytes.as_chunks::<2>().0, |b| bf16::from_bits(u16::from_ne_bytes(b)).to_f32())
        }
        ElementType::F16 => {
            lanes(bytes.as_chunks::<2>().0, |b| f16::from_bits(u16::from_ne_bytes(b)).to_f32())
        }
        _ => lanes(bytes.as_chunks::<4>().0, f32::from_ne_bytes),
    }
}

fn lanes<T: Copy>(values: &[T], read: impl Fn(T) -> f32) -> (f64, f64) {
    let (mut sum, mut absolute) = ([0f64; 8], [0f64; 8]);
    let (whole, rest) = values.as_chunks::<8>();
    for eight in whole {
        for ((sum, absolute), value) in sum.iter_mut().zip(&mut absolute).zip(eight) {
            let value = f64::from(read(*value));
            *sum += value;
            *absolute += value.abs();
        }
    }
    for value in rest {
        let value = f64::from(read(*value));
        sum[0] += value;
        absolute[0] += value.abs();
    }
    (sum.iter().sum(), absolute.iter().sum())
}
