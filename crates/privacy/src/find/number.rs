//! Numbers with a shape and a check: payment cards, bank accounts; and phone numbers as Dolma finds them.

use super::is_word;

/// Digits of a card number.
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;
/// How card numbers are written in groups.
const CARD_GROUPS: [&[usize]; 4] = [&[4, 4, 4, 4, 3], &[4, 4, 4, 4], &[4, 6, 5], &[4, 6, 4]];

/// Luhn's check (ISO/IEC 7812-1): every second digit from the right doubled, digit sums added, a multiple of ten.
pub fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, &digit)| {
            let value = u32::from(digit - b'0') << (place % 2);
            value / 10 + value % 10
        })
        .sum();
    sum.is_multiple_of(10)
}

/// Whether an issuer gives out numbers that begin and are as long as this one.
fn has_issuer(digits: &[u8]) -> bool {
    let head = digits[..6].iter().fold(0u32, |value, &digit| value * 10 + u32::from(digit - b'0'));
    let length = digits.len();
    match head {
        400_000..=499_999 => matches!(length, 13 | 16 | 19), // Visa
        510_000..=559_999 | 222_100..=272_099 => length == 16, // Mastercard
        340_000..=349_999 | 370_000..=379_999 => length == 15, // American Express
        300_000..=305_999 | 360_000..=369_999 | 380_000..=399_999 => length == 14, // Diners Club
        352_800..=358_999 => length >= 16,                   // JCB
        601_100..=601_199 | 644_000..=659_999 => length >= 16, // Discover
        620_000..=629_999 => length >= 16,                   // UnionPay
        _ => false,
    }
}

fn digits_from(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn is_card(digits: &[u8]) -> bool {
    CARD_DIGITS.contains(&digits.len()) && has_issuer(digits) && luhn(digits)
}

/// The end of a card number that begins at `start`, where a run of `run` digits begins.
pub(super) fn card(bytes: &[u8], start: usize, run: usize) -> Option<usize> {
    if start > 0 && (is_word(bytes[start - 1]) || bytes[start - 1] == b'.') {
        return None;
    }
    // What a decimal point, a letter or one more group follows is another number.
    let ends = |at: usize, separator: Option<u8>| {
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        let next = bytes.get(at).copied();
        let goes_on = next.is_some_and(is_word) || (next == Some(b'.') && digit(at + 1));
        !(goes_on || separator.is_some() && next == separator && digit(at + 1))
    };
    if CARD_DIGITS.contains(&run) {
        let end = start + run;
        return (ends(end, None) && is_card(&bytes[start..end])).then_some(end);
    }
    let separator = *bytes.get(start + run).filter(|_| run == 4)?;
    if !matches!(separator, b' ' | b'-') {
        return None;
    }
    CARD_GROUPS.into_iter().find_map(|groups| {
        let (mut at, mut digits) = (start, Vec::with_capacity(19));
        for (index, &group) in groups.iter().enumerate() {
            if index > 0 {
                bytes.get(at).filter(|&&byte| byte == separator)?;
                at += 1;
            }
            let part = bytes.get(at..at + group)?;
            digits.extend(part.iter().filter(|byte| byte.is_ascii_digit()));
            at += group;
        }
        let whole = digits.len() == groups.iter().sum::<usize>();
        (whole && ends(at, Some(separator)) && is_card(&digits)).then_some(at)
    })
}

/// Length of an IBAN by country (SWIFT IBAN registry).
const IBAN_LENGTHS: &str = "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 \
    EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 \
    LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 \
    RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30";

/// Lengths by both letters.
pub(super) struct Countries([u8; 26 * 26]);

impl Countries {
    pub(super) fn new() -> Countries {
        let mut table = [0; 26 * 26];
        for entry in IBAN_LENGTHS.split_whitespace() {
            let (country, length) = entry.split_at(2);
            if let Some(place) = Countries::place(country.as_bytes()) {
                table[place] = length.parse().unwrap_or_default();
            }
        }
        Countries(table)
    }

    fn place(country: &[u8]) -> Option<usize> {
        match country {
            [a @ b'A'..=b'Z', b @ b'A'..=b'Z'] => Some(usize::from(a - b'A') * 26 + usize::from(b - b'A')),
            _ => None,
        }
    }

    /// The end of an IBAN whose country code begins at `start`: together, or in groups of four.
    pub(super) fn iban(&self, bytes: &[u8], start: usize) -> Option<usize> {
        if start > 0 && is_word(bytes[start - 1]) {
            return None;
        }
        let length = usize::from(self.0[Countries::place(bytes.get(start..start + 2)?)?]);
        if length == 0 {
            return None;
        }
        let spaced = bytes.get(start + 4) == Some(&b' ');
        let (mut at, mut count, mut remainder) = (start, 0, 0u32);
        let mut head = [0u8; 4];
        let mut shift = |symbol: u8| {
            remainder = match symbol {
                b'0'..=b'9' => (remainder * 10 + u32::from(symbol - b'0')) % 97,
                _ => (remainder * 100 + u32::from(symbol - b'A') + 10) % 97,
            };
        };
        while count < length {
            if spaced && count > 0 && count % 4 == 0 {
                bytes.get(at).filter(|&&byte| byte == b' ')?;
                at += 1;
            }
            let symbol = *bytes.get(at).filter(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())?;
            match head.get_mut(count) {
                Some(place) => *place = symbol,
                None => shift(symbol),
            }
            at += 1;
            count += 1;
        }
        // ISO 13616: the first four characters go behind the others, letters count from 10, remainder 1 modulo 97.
        head.into_iter().for_each(&mut shift);
        let alone = bytes.get(at).is_none_or(|&byte| !is_word(byte));
        (alone && remainder == 1).then_some(at)
    }
}

/// A number as Dolma's pattern `\s+\(?(\d{3})\)?[-\. ]*(\d{3})[-. ]?(\d{4})` takes it, behind white space; `start` is its first
/// digit. Returns where it begins (the bracket included) and ends.
pub(super) fn phone_us(text: &str, start: usize, run: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let begin = if start > 0 && bytes[start - 1] == b'(' { start - 1 } else { start };
    if !text[..begin].ends_with(char::is_whitespace) || run < 3 {
        return None;
    }
    let mut at = start + 3;
    if bytes.get(at) == Some(&b')') {
        at += 1;
    }
    at += bytes[at..].iter().take_while(|byte| b"-. ".contains(byte)).count();
    if digits_from(bytes.get(at..at + 3)?) < 3 {
        return None;
    }
    at += 3;
    if bytes.get(at).is_some_and(|byte| b"-. ".contains(byte)) {
        at += 1;
    }
    (digits_from(bytes.get(at..at + 4)?) == 4).then_some((begin, at + 4))
}

/// Bytes around a phone number that Dolma searches for what makes it none.
const PHONE_CONTEXT: usize = 100;
/// Question marks beyond which Dolma looks for no phone numbers.
pub(super) const MOST_QUESTION_MARKS: usize = 10_000;

/// Whether `isbn`, `doi` or `#` stands near: Dolma takes the number for something else then.
pub(super) fn is_reference(bytes: &[u8], start: usize, end: usize) -> bool {
    let around = &bytes[start.saturating_sub(PHONE_CONTEXT)..bytes.len().min(end + PHONE_CONTEXT)];
    let word = |word: &[u8]| around.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    around.contains(&b'#') || word(b"isbn") || word(b"doi")
}
