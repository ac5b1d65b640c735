//! Times of a machine's operators: those of steps of small models on all ranks at once, as lines in their operations or bytes.

use crate::this_machine::bench;
use crate::{Effort, LayoutCase, MeasureError, Setup, launches, small_job};
use bessemer_plan::MeasuredOperator;
use bessemer_tensor::op::Op;
use bessemer_units::MatmulPrecision;
use std::collections::BTreeMap;

/// Lines of all operators but the products of linear maps, over the steps of small models in a few layouts.
pub(crate) fn operators(
    ranks: usize,
    threads: usize,
    matmul: MatmulPrecision,
    effort: &Effort,
    report: &mut dyn FnMut(&str),
) -> Result<Vec<MeasuredOperator>, MeasureError> {
    let mut found: BTreeMap<&'static str, Vec<Sample>> = BTreeMap::new();
    for architecture in &effort.architectures {
        for size in effort.models {
            let job = small_job(*size, architecture, matmul)?;
            let bench = bench(&job, ranks, threads);
            // Tensor- and context-parallel ranks have operators of their own.
            let layouts = if ranks > 1 { effort.layouts } else { &effort.layouts[..1] };
            for layout in layouts {
                let case = LayoutCase::named(layout, ranks as u64)?;
                // Ranks that a small model's heads or positions do not divide over.
                let Ok(setup) = Setup::new(&bench, &case) else { continue };
                for (op, seconds) in launches(&setup, effort.repeats)?.into_values() {
                    // Products have a grid.
                    if matches!(op, Op::Linear(_) | Op::LinearBackwardInput(_) | Op::LinearBackwardWeight(_))
                    {
                        continue;
                    }
                    let sample = Sample { flops: op.flops().0, bytes: op.bytes().0 as f64, seconds };
                    found.entry(op.name()).or_default().push(sample);
                }
            }
            report(&format!("{architecture} of width {}", size[0]));
        }
    }
    Ok(found.into_iter().map(|(name, samples)| line(name, &samples)).collect())
}

/// A measured operator.
#[derive(Debug, Clone, Copy)]
struct Sample {
    flops: f64,
    bytes: f64,
    seconds: f64,
}

/// Part of the determinant of a fit below which samples are taken to have one size.
const ALIKE: f64 = 1e-6;

/// The line in bytes or in operations, whichever is nearer to the samples: least squares of relative errors, nothing negative.
fn line(name: &str, samples: &[Sample]) -> MeasuredOperator {
    let fitted = |size: fn(&Sample) -> f64| {
        let sum = |term: &dyn Fn(&Sample) -> f64| samples.iter().map(term).sum::<f64>();
        // Of (fixed + slope size) / seconds - 1.
        let (aa, ab, bb) = (
            sum(&|s| (1.0 / s.seconds).powi(2)),
            sum(&|s| size(s) / s.seconds.powi(2)),
            sum(&|s| (size(s) / s.seconds).powi(2)),
        );
        let (a, b) = (sum(&|s| 1.0 / s.seconds), sum(&|s| size(s) / s.seconds));
        let determinant = aa * bb - ab * ab;
        let both = [(a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant];
        let of_size = if bb > 0.0 { [0.0, b / bb] } else { [a / aa, 0.0] };
        // Of samples of one size the time of another one can only be said in proportion.
        let sizes_differ = determinant > ALIKE * aa * bb;
        let [fixed, slope] = match both.map(|value| value.is_finite() && value >= 0.0) {
            _ if !sizes_differ => of_size,
            [true, true] => both,
            [_, false] => [a / aa, 0.0],
            [false, true] => of_size,
        };
        let error = sum(&|s| ((fixed + slope * size(s)) / s.seconds - 1.0).powi(2));
        (error, fixed, slope)
    };
    let (in_bytes, in_flops) = (fitted(|s| s.bytes), fitted(|s| s.flops));
    let name = name.to_owned();
    match in_bytes.0 <= in_flops.0 {
        true => MeasuredOperator { name, fixed: in_bytes.1, per_flop: 0.0, per_byte: in_bytes.2 },
        false => MeasuredOperator { name, fixed: in_flops.1, per_flop: in_flops.2, per_byte: 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines are found where there are such, in what they are lines of.
    #[test]
    fn lines_in_bytes_and_in_operations_are_told_apart() {
        let sample = |flops: f64, bytes: f64, seconds: f64| Sample { flops, bytes, seconds };
        let in_bytes = [(1e3, 1e6), (7e4, 1e5), (3e2, 1e7)].map(|(f, b)| sample(f, b, 1e-6 + 1e-10 * b));
        let found = line("copy", &in_bytes);
        assert!((found.fixed / 1e-6 - 1.0).abs() < 1e-6 && (found.per_byte / 1e-10 - 1.0).abs() < 1e-6);
        assert_eq!(found.per_flop, 0.0);
        let in_flops = [(1e6, 10.0), (5e8, 12.0), (2e7, 11.0)].map(|(f, b)| sample(f, b, 2e-6 + 1e-11 * f));
        let found = line("attention", &in_flops);
        assert!((found.per_flop / 1e-11 - 1.0).abs() < 1e-6 && found.per_byte == 0.0);
        // Samples of one size say nothing of a fixed part: half the size takes half the time.
        let same = [sample(1e8, 1e6, 4e-3), sample(1e8, 1e6, 4e-3), sample(1e8, 1e6, 4e-3)];
        let MeasuredOperator { fixed, per_flop, per_byte, .. } = line("logit_sums", &same);
        assert!(
            (fixed + per_flop * 5e7 + per_byte * 5e5 - 2e-3).abs() < 1e-9,
            "{fixed} {per_flop} {per_byte}"
        );
        // One sample, and samples that get faster: no negative time.
        for samples in [&in_bytes[..1], &[sample(1.0, 1.0, 5.0), sample(2.0, 2.0, 1.0)]] {
            let MeasuredOperator { fixed, per_flop, per_byte, .. } = line("x", samples);
            assert!([fixed, per_flop, per_byte].iter().all(|value| value.is_finite() && *value >= 0.0));
        }
    }
}
