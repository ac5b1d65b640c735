//! Scales and ticks.

use crate::text::number;

/// How a coordinate is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Equal distances for equal differences.
    #[default]
    Linear,
    /// Equal distances for equal ratios; values that are not positive are left out.
    Log,
}

impl Scale {
    /// Whether a value has a place on this scale.
    pub fn shows(self, x: f64) -> bool {
        // Beyond this, differences or ratios of two values could overflow; nothing that is measured comes near.
        let (least, most) = if self == Scale::Linear { (-1e300, 1e300) } else { (1e-150, 1e150) };
        (least..=most).contains(&x)
    }
}

/// A range of values on a scale, with its ticks.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Scale.
    pub scale: Scale,
    /// Smallest value shown.
    pub low: f64,
    /// Largest value shown; always above `low`.
    pub high: f64,
    /// Ticks in increasing order, within the range.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// The axis for `values` with about `wanted` ticks. With `snap` the range grows to whole ticks, so that the
    /// curve does not touch the frame. Values without a place on the scale are ignored; with none left, the axis
    /// runs from 0 to 1 (1 to 10).
    pub fn new(scale: Scale, values: impl Iterator<Item = f64>, wanted: usize, snap: bool) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| scale.shows(*v)) {
            low = low.min(v);
            high = high.max(v);
        }
        if low > high {
            (low, high) = if scale == Scale::Log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        match scale {
            Scale::Linear => Axis::linear(low, high, wanted.max(2), snap),
            Scale::Log => Axis::log(low, high, wanted.max(2), snap),
        }
    }

    fn linear(low: f64, high: f64, wanted: usize, snap: bool) -> Axis {
        let (mut low, mut high) = widen(low, high);
        let step = nice_step((high - low) / wanted as f64);
        if snap {
            // By rounding, a multiple of the step can fall on the wrong side of what it was made from.
            low = low.min((low / step).floor() * step);
            high = high.max((high / step).ceil() * step);
        }
        // A hair of slack: multiples of a step such as 0.1 miss the end by rounding.
        let first = (low / step - 1e-9).ceil();
        let last = (high / step + 1e-9).floor();
        let count = (last - first).max(0.0) as usize;
        let ticks = (0..=count).map(|i| ((first + i as f64) * step).clamp(low, high));
        Axis { scale: Scale::Linear, low, high, ticks: ticks.collect() }
    }

    fn log(low: f64, high: f64, wanted: usize, snap: bool) -> Axis {
        let (mut low, mut high) = if high / low < 1.001 { (low / 2.0, high * 2.0) } else { (low, high) };
        if snap {
            (low, high) = (low.min(nice_below(low)), high.max(1.0 / nice_below(1.0 / high)));
        }
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let decades = (last - first).max(1) as usize;
        let mantissas: &[f64] = match decades {
            1..=2 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let every = decades.div_ceil(wanted.max(2)).max(1) as i32;
        let powers = (first..=last).filter(|p| (p - first) % every == 0 || mantissas.len() > 1);
        let ticks = powers.flat_map(|p| mantissas.iter().map(move |m| m * 10f64.powi(p)));
        let slack = 1e-9;
        let inside = ticks.filter(|t| *t >= low * (1.0 - slack) && *t <= high * (1.0 + slack));
        let mut ticks: Vec<f64> = inside.map(|t| t.clamp(low, high)).collect();
        if ticks.len() < 2 {
            // Less than a step of 1, 2, 5: over so short a way a logarithm is nearly straight.
            ticks = Axis::linear(low, high, wanted, false).ticks;
        }
        Axis { scale: Scale::Log, low, high, ticks }
    }

    /// Where `x` lies between `low` (0) and `high` (1); `None` if it is not finite or not on the scale. Values
    /// outside the range lie outside 0 to 1.
    pub fn place(&self, x: f64) -> Option<f64> {
        if !self.scale.shows(x) {
            return None;
        }
        let at = match self.scale {
            Scale::Linear => (x - self.low) / (self.high - self.low),
            Scale::Log => (x / self.low).ln() / (self.high / self.low).ln(),
        };
        at.is_finite().then_some(at)
    }

    /// The ticks as text, all with the digits that tell neighbours apart.
    pub fn labels(&self) -> Vec<String> {
        let step = self.ticks.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min);
        let largest = self.ticks.iter().fold(0.0f64, |m, t| m.max(t.abs()));
        if self.scale == Scale::Log || !step.is_finite() || !(1e-3..9999.5).contains(&largest) {
            return self.ticks.iter().map(|t| number(*t)).collect();
        }
        let digits = (0..=6).find(|d| {
            let unit = 10f64.powi(*d);
            (step * unit - (step * unit).round()).abs() < 1e-6 * step * unit
        });
        let digits = digits.unwrap_or(6) as usize;
        let plain = |t: &f64| if *t == 0.0 { "0".to_string() } else { format!("{t:.digits$}") };
        self.ticks.iter().map(plain).collect()
    }
}

/// A range that is not empty: a single value gets space on both sides. Ranges near the smallest doubles, where
/// steps could not be distinguished, count as a single value.
fn widen(low: f64, high: f64) -> (f64, f64) {
    let largest = low.abs().max(high.abs());
    if high - low > (largest * 1e-9).max(1e-290) {
        return (low, high);
    }
    let room = if largest < 1e-290 { 0.5 } else { largest * 0.1 };
    (low - room, high + room)
}

/// The largest of 1, 2, 5 times a power of ten that is at most `x`.
fn nice_below(x: f64) -> f64 {
    let power = 10f64.powf(x.log10().floor());
    let nice = [5.0, 2.0, 1.0].into_iter().map(|m| m * power).find(|t| *t <= x * (1.0 + 1e-9));
    nice.unwrap_or(x)
}

/// The nearest of 1, 2, 2.5, 5 times a power of ten that is at least `raw`.
fn nice_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    for factor in [1.0, 2.0, 2.5, 5.0, 10.0] {
        if factor * power >= raw * (1.0 - 1e-9) {
            return factor * power;
        }
    }
    10.0 * power
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::splitmix;

    /// Numbers of many magnitudes.
    fn values() -> impl Iterator<Item = f64> {
        (0..)
            .map(|i| splitmix::nth(3, i))
            .map(|z| (splitmix::unit(z) * 2.0 - 1.0) * 10f64.powi((z % 40) as i32 - 20))
    }

    #[test]
    fn ticks_are_few_increasing_even_and_inside_for_any_range() {
        let special = [0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, 5e-324, 1e15, 1e15 + 1.0];
        let pairs: Vec<(f64, f64)> = values()
            .zip(values().skip(1))
            .take(5000)
            .chain(special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b))))
            .collect();
        for (a, b) in pairs {
            for wanted in [3, 5, 8] {
                for snap in [false, true] {
                    let axis = Axis::new(Scale::Linear, [a, b].into_iter(), wanted, snap);
                    assert!(
                        axis.low < axis.high && axis.low.is_finite() && axis.high.is_finite(),
                        "{a} {b} {axis:?}"
                    );
                    assert!(axis.low <= a.min(b) && axis.high >= a.max(b), "{a} {b} {axis:?}");
                    let n = axis.ticks.len();
                    assert!((1..=2 * wanted + 3).contains(&n), "{a} {b} {axis:?}");
                    assert!(axis.ticks.windows(2).all(|w| w[0] < w[1]), "{a} {b} {axis:?}");
                    assert!(axis.ticks.iter().all(|t| *t >= axis.low && *t <= axis.high));
                    if n > 2 {
                        let step = (axis.ticks[n - 1] - axis.ticks[0]) / (n - 1) as f64;
                        assert!(
                            axis.ticks.windows(2).all(|w| ((w[1] - w[0]) / step - 1.0).abs() < 1e-3),
                            "{axis:?}"
                        );
                    }
                    let labels = axis.labels();
                    assert_eq!(labels.len(), n);
                    for v in [a, b] {
                        let at = axis.place(v).unwrap();
                        assert!((-1e-9..=1.0 + 1e-9).contains(&at), "{v} at {at} in {axis:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn log_ticks_are_increasing_and_inside() {
        let special = [5e-324, 1e-200, 1e-150, 1.0, 1e150, 1e200, f64::MAX];
        let special = special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b)));
        for (a, b) in values().zip(values().skip(1)).take(3000).chain(special) {
            let (a, b) = (a.abs(), b.abs());
            let shown: Vec<f64> = [a, b].into_iter().filter(|v| Scale::Log.shows(*v)).collect();
            let axis = Axis::new(Scale::Log, [a, b, -1.0, 0.0].into_iter(), 5, a < b);
            assert!(axis.low > 0.0 && axis.low < axis.high && !axis.ticks.is_empty(), "{axis:?}");
            assert!(shown.iter().all(|v| axis.low <= *v && *v <= axis.high), "{axis:?}");
            assert!(axis.ticks.windows(2).all(|w| w[0] < w[1]), "{axis:?}");
            assert!(axis.ticks.iter().all(|t| *t >= axis.low && *t <= axis.high), "{axis:?}");
            assert!(axis.ticks.len() <= 12, "{axis:?}");
            assert_eq!(axis.place(0.0), None);
        }
    }

    #[test]
    fn labels_read_like_written_by_hand() {
        let labels =
            |a: f64, b: f64| Axis::new(Scale::Linear, [a, b].into_iter(), 5, false).labels().join(" ");
        assert_eq!(labels(0.0, 1.0), "0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(labels(1.1, 2.9), "1.5 2.0 2.5");
        assert_eq!(labels(0.0, 2000.0), "0 500 1000 1500 2000");
        assert_eq!(labels(0.0, 40_000.0), "0 10k 20k 30k 40k");
        assert_eq!(labels(0.0, 3e-4), "0 0.0001 0.0002 0.0003");
        let log = Axis::new(Scale::Log, [1.0, 20_000.0].into_iter(), 5, false);
        assert_eq!(log.labels().join(" "), "1 10 100 1000 10k");
    }

    #[test]
    fn nothing_to_show_gives_a_usable_axis() {
        for scale in [Scale::Linear, Scale::Log] {
            for values in [vec![], vec![f64::NAN], vec![f64::INFINITY, f64::NEG_INFINITY]] {
                let axis = Axis::new(scale, values.into_iter(), 5, true);
                assert!(axis.low < axis.high && !axis.ticks.is_empty());
            }
        }
    }
}
