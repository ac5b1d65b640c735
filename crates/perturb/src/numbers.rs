//! Numbers in words, in British English.

/// Digits that are written out: numbers below 10^15.
const MOST_DIGITS: usize = 15;
const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const THOUSANDS: [&str; 5] = ["", " thousand", " million", " billion", " trillion"];

/// A number below 1000.
fn hundreds(n: u64) -> String {
    let below = |n: u64| match n {
        0..20 => SMALL[n as usize].to_owned(),
        n if n % 10 == 0 => TENS[n as usize / 10].to_owned(),
        n => format!("{}-{}", TENS[n as usize / 10], SMALL[n as usize % 10]),
    };
    match (n / 100, n % 100) {
        (0, rest) => below(rest),
        (hundreds, 0) => format!("{} hundred", SMALL[hundreds as usize]),
        (hundreds, rest) => format!("{} hundred and {}", SMALL[hundreds as usize], below(rest)),
    }
}

/// A whole number below 10^15 in words.
pub fn cardinal(n: u64) -> String {
    if n < 1000 {
        return hundreds(n);
    }
    let mut words = String::new();
    for (power, name) in THOUSANDS.iter().enumerate().rev() {
        let group = n / 1000u64.pow(power as u32) % 1000;
        if group == 0 {
            continue;
        }
        if !words.is_empty() {
            words += if power == 0 && group < 100 { " and " } else { " " };
        }
        words += &hundreds(group);
        words += name;
    }
    words
}

/// The words of a number as it is written: digits, commas between groups of three, digits behind a point. None for anything else.
fn words(written: &str) -> Option<String> {
    let (whole, fraction) = match written.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (written, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().filter(|first| digits(first))?;
    let grouped = whole.contains(',');
    if grouped && (first.len() > 3 || !groups.all(|group| group.len() == 3 && digits(group))) {
        return None;
    }
    let plain = whole.replace(',', "");
    // Zeros at the beginning are a code, not a number.
    if plain.len() > MOST_DIGITS || plain.len() > 1 && plain.starts_with('0') {
        return None;
    }
    let mut words = cardinal(plain.parse().ok()?);
    if let Some(fraction) = fraction {
        if !digits(fraction) {
            return None;
        }
        words += " point";
        for digit in fraction.bytes() {
            words.push(' ');
            words += SMALL[usize::from(digit - b'0')];
        }
    }
    Some(words)
}

/// Numbers that stand alone in words, as NL-Augmenter's `numeric_to_word` writes them. Dates, times, ranges, codes, amounts of money and numbers within
/// words are left as they are.
pub(crate) fn number_to_word(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "_.,:/-+*^=$€£#'’\u{2212}\u{2013}".contains(c);
    let mut changed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let run = &rest[start..];
        let run = &run[..run.find(|c| !is_part(c)).unwrap_or(run.len())];
        // Points and commas at the end belong to the sentence.
        let written = run.trim_end_matches(['.', ',', ':']);
        changed += &rest[..start];
        match words(written) {
            Some(words) => changed += &words,
            None => changed += written,
        }
        changed += &run[written.len()..];
        rest = &rest[start + run.len()..];
    }
    changed + rest
}
