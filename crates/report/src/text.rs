//! Text for people: escaping for HTML and SVG (of `units`), numbers in few digits.

pub use bessemer_units::escape_xml as escape;

/// A number with about four significant digits: "1.234", "0.0003", "12.3k", "1.50M", "3e-7".
pub fn number(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let size = x.abs();
    if size == 0.0 {
        return "0".into();
    }
    if size < 1e-4 {
        return trim_mantissa(&format!("{x:.2e}"));
    }
    // The limits are those of the rounded value: 9999.6 has four digits only as "10k".
    for (least, unit, name) in
        [(999.95e9, 1e12, "T"), (999.95e6, 1e9, "B"), (999.95e3, 1e6, "M"), (9999.5, 1e3, "k")]
    {
        if size >= least {
            let scaled = x / unit;
            if scaled.abs() >= 1e5 {
                return trim_mantissa(&format!("{x:.2e}"));
            }
            let digits = if scaled.abs() >= 99.95 { 0 } else { 1 };
            return format!("{}{name}", trim_zeros(&format!("{scaled:.digits$}")));
        }
    }
    let digits = match size {
        s if s >= 999.95 => 0,
        s if s >= 99.995 => 1,
        s if s >= 9.9995 => 2,
        s if s >= 0.1 => 3,
        s if s >= 0.01 => 4,
        _ => 5,
    };
    trim_zeros(&format!("{x:.digits$}"))
}

/// A number with this many digits behind the point; what rounds to zero has no sign.
pub(crate) fn decimals(x: f64, digits: usize) -> String {
    let text = format!("{x:.digits$}");
    match text.strip_prefix('-') {
        Some(size) if size.bytes().all(|b| matches!(b, b'0' | b'.')) => size.into(),
        _ => text,
    }
}

/// A difference in percent with its sign and one digit behind the point: "+3.1 %", "-0.4 %", "0.0 %".
pub fn signed_percent(share: f64) -> String {
    let text = decimals(100.0 * share, 1);
    let sign = if text.starts_with('-') || text == "0.0" || share.is_nan() { "" } else { "+" };
    format!("{sign}{text} %")
}

/// An integer with thin spaces between groups of three digits.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}

fn trim_zeros(text: &str) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text.into()
    }
}

fn trim_mantissa(text: &str) -> String {
    match text.split_once('e') {
        Some((mantissa, exponent)) => format!("{}e{exponent}", trim_zeros(mantissa)),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_has_no_sign_however_it_came_about() {
        for (share, text) in [
            (0.031, "+3.1 %"),
            (-0.004, "-0.4 %"),
            (-0.0004, "0.0 %"),
            (-0.0, "0.0 %"),
            (0.0004, "0.0 %"),
            (-0.0006, "-0.1 %"),
            (f64::NAN, "NaN %"),
            (f64::NEG_INFINITY, "-inf %"),
        ] {
            assert_eq!(signed_percent(share), text);
        }
        assert_eq!((decimals(-0.00001, 4), decimals(-0.5, 0)), ("0.0000".into(), "0".into()));
    }

    #[test]
    fn numbers_keep_about_four_digits() {
        for (x, text) in [
            (0.0, "0"),
            (1.23456, "1.235"),
            (0.0003, "0.0003"),
            (0.000_012_3, "1.23e-5"),
            (-0.5, "-0.5"),
            (42.0, "42"),
            (99.999, "100"),
            (1234.5, "1234"),
            (9999.9, "10k"),
            (12_345.0, "12.3k"),
            (999_990.0, "1M"),
            (1.5e6, "1.5M"),
            (2.5e12, "2.5T"),
            (1e30, "1e30"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
            (5e-324, "4.94e-324"),
        ] {
            assert_eq!(number(x), text);
        }
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!((grouped(999), grouped(0)), ("999".into(), "0".into()));
    }
}
