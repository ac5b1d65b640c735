//! Quantities with units: bytes, floating-point operations, seconds, tokens.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// A number of bytes. Displays in binary units ("1.50 GiB").
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number of floating-point operations (a multiply-add counts two). Displays in decimal units.
#[derive(Debug, Default, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Flops(pub f64);

/// A duration in seconds. Displays as "1.2 ms", "3.4 s", "5m06s", "2h05m", "3d04h".
#[derive(Debug, Default, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

/// A number of tokens. Displays in decimal units ("1.05M").
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

impl std::str::FromStr for Bytes {
    type Err = String;

    /// Reads "512 MiB", "1.5GB" or a number of bytes.
    fn from_str(text: &str) -> Result<Bytes, String> {
        const UNITS: [(&str, u64); 8] = [
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("TB", 1_000_000_000_000),
        ];
        let text = text.trim();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
            .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
        let bytes = number.trim().parse::<f64>().ok().map(|number| number * unit as f64);
        match bytes {
            Some(bytes) if (0.0..=(1u64 << 60) as f64).contains(&bytes) => Ok(Bytes(bytes as u64)),
            _ => Err(format!(
                "{text:?} is not a size in bytes: expected a size such as \"512 MiB\" or \"2GB\""
            )),
        }
    }
}

macro_rules! arithmetic {
    ($t:ident, $inner:ty) => {
        impl Add for $t {
            type Output = $t;
            fn add(self, other: $t) -> $t {
                $t(self.0 + other.0)
            }
        }
        impl AddAssign for $t {
            fn add_assign(&mut self, other: $t) {
                self.0 += other.0;
            }
        }
        impl Sub for $t {
            type Output = $t;
            fn sub(self, other: $t) -> $t {
                $t(self.0 - other.0)
            }
        }
        impl Sum for $t {
            fn sum<I: Iterator<Item = $t>>(iter: I) -> $t {
                $t(iter.map(|x| x.0).sum::<$inner>())
            }
        }
    };
}
arithmetic!(Bytes, u64);
arithmetic!(Flops, f64);
arithmetic!(Seconds, f64);
arithmetic!(Tokens, u64);

/// Three significant digits with the largest unit that keeps the number at least one.
fn scaled(f: &mut fmt::Formatter<'_>, value: f64, step: f64, units: &[&str]) -> fmt::Result {
    let mut value = value;
    let mut unit = 0;
    // 999.5 would round to "1000" with three digits: move on to the next unit before that.
    while value.abs() >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if (unit == 0 && value.fract() == 0.0) || value.abs() >= 99.95 {
        0
    } else if value.abs() >= 9.995 {
        1
    } else {
        2
    };
    f.pad(&format!("{value:.digits$}{}", units[unit]))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0 as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"])
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            f,
            self.0,
            1000.0,
            &[" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP", " ZFLOP"],
        )
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0 as f64, 1000.0, &["", "k", "M", "B", "T"])
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0;
        if !s.is_finite() {
            return f.pad("?");
        }
        let text = if s == 0.0 {
            "0 s".to_string()
        } else if s < 1e-3 {
            format!("{:.0} us", s * 1e6)
        } else if s < 1.0 {
            format!("{:.1} ms", s * 1e3)
        } else if s < 60.0 {
            format!("{s:.1} s")
        } else {
            let whole = s.round() as u64;
            let (d, h, m, sec) = (whole / 86400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
            if d > 0 {
                format!("{d}d{h:02}h")
            } else if h > 0 {
                format!("{h}h{m:02}m")
            } else {
                format!("{m}m{sec:02}s")
            }
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_in_binary_units() {
        let cases: [(u64, &str); 6] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (900, "900 B"),
            (1536, "1.50 KiB"),
            (3 << 30, "3.00 GiB"),
            (123 << 20, "123 MiB"),
        ];
        for (n, text) in cases {
            assert_eq!(Bytes(n).to_string(), text);
        }
    }

    #[test]
    fn bytes_are_read_in_binary_and_decimal_units() {
        for (text, bytes) in [
            ("512 MiB", 512 << 20),
            (" 1.5GB ", 1_500_000_000),
            ("7", 7),
            ("9 B", 9),
            ("1KiB", 1024),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1 MiB", "1 mib", "nan", "inf TiB", "1e30"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_and_flops_print_in_decimal_units() {
        assert_eq!(Tokens(1_048_576).to_string(), "1.05M");
        assert_eq!(Tokens(512).to_string(), "512");
        assert_eq!(Tokens(999_999).to_string(), "1.00M");
        assert_eq!(Flops(175e9).to_string(), "175 GFLOP");
    }

    #[test]
    fn seconds_pick_a_readable_unit() {
        let cases = [
            (0.0000005, "0 us"),
            (0.0123, "12.3 ms"),
            (3.42, "3.4 s"),
            (306.2, "5m06s"),
            (7500.0, "2h05m"),
            (273_600.0, "3d04h"),
        ];
        for (s, text) in cases {
            assert_eq!(Seconds(s).to_string(), text);
        }
        assert_eq!(Seconds(f64::INFINITY).to_string(), "?");
    }

    #[test]
    fn widths_pad_like_any_display() {
        assert_eq!(format!("{:>9}", Tokens(1_048_576)), "    1.05M");
    }
}
