//! Numbers with a shape and a check: payment cards, bank accounts, phones.

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

/// Country calling codes (ITU-T E.164): all of one and two digits; of three digits those that begin so.
const CODES_1: &[u8] = b"17";
const CODES_2: [&[u8; 2]; 43] = [
    b"20", b"27", b"30", b"31", b"32", b"33", b"34", b"36", b"39", b"40", b"41", b"43", b"44", b"45", b"46",
    b"47", b"48", b"49", b"51", b"52", b"53", b"54", b"55", b"56", b"57", b"58", b"60", b"61", b"62", b"63",
    b"64", b"65", b"66", b"81", b"82", b"84", b"86", b"90", b"91", b"92", b"93", b"94", b"95",
];
const CODES_3: [&[u8; 2]; 23] = [
    b"21", b"22", b"23", b"24", b"25", b"26", b"29", b"35", b"37", b"38", b"42", b"50", b"59", b"67", b"68",
    b"69", b"80", b"85", b"87", b"88", b"96", b"97", b"99",
];

/// Length of the calling code that these digits begin with.
fn calling_code(digits: &[u8]) -> Option<usize> {
    let two = digits.get(..2)?;
    let among = |codes: &[&[u8; 2]]| codes.iter().any(|code| code.as_slice() == two);
    if CODES_1.contains(&digits[0]) {
        Some(1)
    } else if among(&CODES_2) || two == b"98" {
        Some(2)
    } else {
        // Of the nineties the first two and the last are not given out.
        let spare = two == b"99" && !digits.get(2).is_some_and(|digit| (b'2'..=b'8').contains(digit));
        (among(&CODES_3) && !spare).then_some(3)
    }
}

/// Whether ten digits are a number of the North American plan that may be given to somebody: area and exchange begin
/// with 2 to 9, neither is a service (N11), and the line is not one of those kept for fiction (555-01xx).
fn is_nanp(digits: &[u8]) -> bool {
    let [a, b, c, d, e, f, g, h, _, _] = digits else { return false };
    let fiction = [d, e, f, g, h] == [&b'5', &b'5', &b'5', &b'0', &b'1'];
    (b'2'..=b'9').contains(a)
        && (b'2'..=b'9').contains(d)
        && (b, c) != (&b'1', &b'1')
        && (e, f) != (&b'1', &b'1')
        && !fiction
}

/// Most characters of a written number, from its first digit.
const LONGEST_PHONE: usize = 24;

/// A number in international form (`+` before the first digit at `start`), or a North American one with brackets or two
/// equal separators.
pub(super) fn phone_international(text: &str, start: usize, run: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let plus = start > 0 && bytes[start - 1] == b'+';
    let begin = if plus { start - 1 } else { start };
    if begin > 0 && is_word(bytes[begin - 1]) {
        return None;
    }
    if !plus {
        return phone_nanp(bytes, start, run);
    }
    // Groups of digits as far as they may belong to one number; the longest beginning that is one counts.
    let (mut digits, mut at) = (Vec::with_capacity(16), start);
    let mut found = None;
    while at < bytes.len().min(start + LONGEST_PHONE) {
        let group = digits_from(&bytes[at..]);
        if group > MOST_DIGITS - digits.len() {
            break;
        }
        digits.extend_from_slice(&bytes[at..at + group]);
        at += group;
        let alone = bytes.get(at).is_none_or(|&byte| !is_word(byte));
        if group > 0 && alone && is_international(&digits) {
            found = Some((begin, at));
        }
        let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        at += match (bytes.get(at), bytes.get(at + 1)) {
            (Some(b'('), _) if digit_at(at + 1) => 1,
            (Some(b' '), Some(b'(')) if digit_at(at + 2) => 2,
            (Some(b')'), Some(b' ' | b'-')) if digit_at(at + 2) => 2,
            (Some(b')' | b' ' | b'-' | b'.' | b'/'), _) if digit_at(at + 1) => 1,
            _ => break,
        };
    }
    found
}

/// Most digits of a number (E.164).
const MOST_DIGITS: usize = 15;

/// Whether digits behind a `+` are a number of a country.
fn is_international(digits: &[u8]) -> bool {
    match calling_code(digits) {
        Some(1) if digits[0] == b'1' => is_nanp(&digits[1..]),
        Some(code) => (8..=MOST_DIGITS).contains(&digits.len()) && digits.len() >= code + 5,
        None => false,
    }
}

/// `415-555-2671`, `415.555.2671`, `(415) 555-2671`, `1-415-555-2671`.
fn phone_nanp(bytes: &[u8], start: usize, run: usize) -> Option<(usize, usize)> {
    let (begin, start) = match (run, bytes.get(start + 1)) {
        (3, _) => (start, start),
        (1, Some(b'-' | b'.' | b' ')) if bytes[start] == b'1' => (start, start + 2),
        _ => return None,
    };
    let open = start > 0 && bytes[start - 1] == b'(';
    let mut at = start + 3;
    if digits_from(bytes.get(start..at)?) != 3 {
        return None;
    }
    let separator = if open {
        bytes.get(at).filter(|&&byte| byte == b')')?;
        at += 1 + usize::from(bytes.get(at + 1) == Some(&b' '));
        None
    } else {
        let separator = *bytes.get(at).filter(|byte| b"-.".contains(byte))?;
        at += 1;
        Some(separator)
    };
    let exchange = at;
    let line = at + 4;
    let second = *bytes.get(at + 3)?;
    if separator.map_or(!b"-. ".contains(&second), |separator| separator != second) {
        return None;
    }
    let digits =
        [bytes.get(start..start + 3)?, bytes.get(exchange..exchange + 3)?, bytes.get(line..line + 4)?]
            .concat();
    let alone = bytes.get(line + 4).is_none_or(|&byte| !is_word(byte) && byte != b'-');
    let begin = if open && begin == start { begin - 1 } else { begin };
    let before = begin == 0 || !(is_word(bytes[begin - 1]) || b"-.".contains(&bytes[begin - 1]));
    (alone && before && digits.iter().all(u8::is_ascii_digit) && is_nanp(&digits))
        .then_some((begin, line + 4))
}
