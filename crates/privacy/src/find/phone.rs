//! Phone numbers by the numbering plans of their countries.
//!
//! A number in international form has a country code that ITU-T E.164 assigns, as many digits as the country's plan has, and groups as
//! people write them. Lengths are those of the national plans that ITU publishes (Operational Bulletin, "National Numbering Plans").

use super::is_word;

/// Lengths of the national number by country code.
const PLANS: &str = "1:10 7:10 20:8-10 27:9 30:10 31:9 32:8-9 33:9 34:9 36:8-9 39:6-11 40:9 41:9 43:7-13 44:9-10 45:8 46:7-10 47:8 \
    48:9 49:7-12 51:8-9 52:10-11 53:6-8 54:10-11 55:10-11 56:9 57:8-10 58:10 60:8-10 61:9 62:8-12 63:8-10 64:8-10 65:8 66:8-9 81:9-10 \
    82:8-10 84:9-10 86:10-11 90:10 91:10 92:9-10 93:9 94:9 95:7-10 98:10 211:9 212:9 213:8-9 216:8 218:8-9 220:7 221:9 222:8 223:8 \
    224:9 225:10 226:8 227:8 228:8 229:8-10 230:7-8 231:7-9 232:8 233:9 234:8-10 235:8 236:8 237:9 238:7 239:7 240:9 241:7-8 242:9 \
    243:9 244:9 245:7-9 246:7 248:7 249:9 250:9 251:9 252:7-9 253:8 254:9 255:9 256:9 257:8 258:8-9 260:9 261:9 262:9 263:9 264:8-9 \
    265:7-9 266:8 267:7-8 268:8 269:7 291:7 297:7 298:6 299:6 350:8 351:9 352:6-9 353:7-9 354:7 355:8-9 356:8 357:8 358:7-10 359:7-9 \
    370:8 371:8 372:7-8 373:8 374:8 375:9 376:6 377:8-9 378:6-10 380:9 381:8-9 382:8 383:8 385:8-9 386:8 387:8 389:8 420:9 421:9 \
    423:7 501:7 502:8 503:8 504:8 505:8 506:8 507:7-8 508:6 509:8 590:9 591:8 592:7 593:8-9 594:9 595:9 596:9 597:6-7 598:8 599:7-8 \
    670:7-8 672:6 673:7 674:7 675:7-8 676:5-7 677:5-7 678:5-7 679:7 680:7 681:6 685:5-7 686:5-8 687:6 688:5-6 689:8 691:7 692:7 \
    800:8 852:8 853:8 855:8-9 856:8-10 880:10 886:8-9 960:7 961:7-8 962:8-9 963:8-9 964:8-10 965:8 966:9 967:7-9 968:8 970:8-9 \
    971:8-9 972:8-9 973:8 974:8 975:9 976:8 977:8-10 992:9 993:8 994:9 995:9 996:9 998:9";
/// Country codes after which an area code of one digit may stand by itself.
const SINGLE_DIGIT_AREAS: &[u16] = &[
    20, 31, 32, 33, 36, 43, 46, 51, 52, 53, 54, 55, 56, 57, 60, 61, 63, 64, 66, 81, 82, 95, 212, 213, 216,
    218, 234, 249, 263, 265, 353, 358, 359, 370, 385, 386, 389, 421, 591, 593, 880, 886, 961, 962, 964, 966,
    967, 970, 971, 972, 977,
];
/// Country codes whose national numbers may begin with 0.
const LEADING_ZERO: &[u16] = &[39, 225, 229, 241, 242, 378];
/// Most characters of a written number, from its first digit.
const LONGEST: usize = 24;
/// Most digits of a number (E.164).
const MOST_DIGITS: usize = 15;
/// Most groups of a written number behind the country code.
const MOST_GROUPS: usize = 6;

/// Least and most digits of national numbers by country code.
pub(super) struct NumberingPlans(Vec<(u8, u8)>);

impl NumberingPlans {
    pub(super) fn new() -> NumberingPlans {
        let mut plans = vec![(0, 0); 1000];
        for entry in PLANS.split_whitespace() {
            let Some((code, lengths)) = entry.split_once(':') else { continue };
            let (least, most) = lengths.split_once('-').unwrap_or((lengths, lengths));
            if let (Ok(code), Ok(least), Ok(most)) = (code.parse::<usize>(), least.parse(), most.parse())
                && let Some(plan) = plans.get_mut(code)
            {
                *plan = (least, most);
            }
        }
        NumberingPlans(plans)
    }

    /// The country code that digits begin with, and its length.
    fn country(&self, digits: &[u8]) -> Option<(u16, usize)> {
        let mut code = 0u16;
        for (index, digit) in digits.iter().take(3).enumerate() {
            code = code * 10 + u16::from(digit - b'0');
            // No code is the beginning of another one, and none begins with 0.
            if code > 0 && self.0.get(usize::from(code)).is_some_and(|plan| plan.1 > 0) {
                return Some((code, index + 1));
            }
        }
        None
    }

    /// Whether groups of digits behind a `+` are a number of a country.
    fn is_number(&self, groups: &[&[u8]]) -> bool {
        let Some((code, length)) = groups.first().and_then(|first| self.country(first)) else { return false };
        let national: Vec<u8> = groups.concat().split_off(length);
        let (least, most) = self.0[usize::from(code)];
        if !(usize::from(least)..=usize::from(most)).contains(&national.len())
            || length + national.len() > MOST_DIGITS
            || (national.first() == Some(&b'0') && !LEADING_ZERO.contains(&code))
        {
            return false;
        }
        let mut sizes: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        sizes[0] -= length;
        if sizes[0] == 0 {
            sizes.remove(0);
        }
        if code == 1 {
            return is_nanp(&national) && matches!(sizes[..], [10] | [3, 7] | [3, 3, 4] | [6, 4]);
        }
        let single = SINGLE_DIGIT_AREAS.contains(&code);
        // In Brazil and Argentina a 9 that marks mobile numbers may stand by itself.
        let mobile = matches!(code, 54 | 55);
        sizes.len() <= MOST_GROUPS
            && sizes.iter().enumerate().all(|(index, &size)| {
                size >= 2 || sizes.len() > 1 && (index == 0 && single || index == 1 && mobile)
            })
    }
}

/// Whether ten digits are a number of the North American plan that may be given to somebody: area and exchange begin
/// with 2 to 9, neither is a service (N11), and the line is not one of those kept for fiction (555-01xx).
fn is_nanp(digits: &[u8]) -> bool {
    let [a, b, c, d, e, f, g, h, _, _] = digits else { return false };
    let fiction = [d, e, f, g, h] == [&b'5', &b'5', &b'5', &b'0', &b'1'];
    (b'2'..=b'9').contains(a)
        && (b'2'..=b'9').contains(d)
        && *b != b'9'
        && (b, c) != (&b'1', &b'1')
        && (e, f) != (&b'1', &b'1')
        && !fiction
}

fn digits_from(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// A number in international form (`+` before the first digit at `start`), or a North American one with brackets or two
/// equal separators.
pub(super) fn international(
    plans: &NumberingPlans,
    text: &str,
    start: usize,
    run: usize,
) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let plus = start > 0 && bytes[start - 1] == b'+';
    let begin = if plus { start - 1 } else { start };
    if begin > 0 && (is_word(bytes[begin - 1]) || plus && matches!(bytes[begin - 1], b'+' | b'.')) {
        return None;
    }
    if !plus {
        return north_american(bytes, start, run);
    }
    // Groups of digits as far as they may belong to one number; the longest beginning that is one counts.
    let (mut groups, mut digits, mut at): (Vec<&[u8]>, usize, usize) = (Vec::new(), 0, start);
    // A full stop separates all groups or none.
    let dotted = bytes.get(start + run) == Some(&b'.');
    let mut found = None;
    while at < bytes.len().min(start + LONGEST) {
        let group = digits_from(&bytes[at..]);
        digits += group;
        if group == 0 || digits > MOST_DIGITS {
            break;
        }
        groups.push(&bytes[at..at + group]);
        at += group;
        let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        let alone = bytes.get(at).is_none_or(|&byte| !is_word(byte));
        // More digits behind a separator that no end of a sentence is belong to another kind of number.
        let continues = matches!(bytes.get(at), Some(b'.' | b'-' | b'/' | b'+')) && digit_at(at + 1);
        if alone && plans.is_number(&groups) {
            found = (!continues).then_some((begin, at));
        }
        // The trunk prefix of the country itself, in parentheses: `+44 (0)20 …`.
        if let Some(prefix) = ["(0)", " (0)", " (0) ", "(0) "]
            .iter()
            .filter(|prefix| bytes[at..].starts_with(prefix.as_bytes()) && digit_at(at + prefix.len()))
            .map(|prefix| prefix.len())
            .max()
        {
            at += prefix;
            continue;
        }
        at += match (bytes.get(at), bytes.get(at + 1)) {
            (Some(b'.'), _) if dotted && digit_at(at + 1) => 1,
            _ if dotted => break,
            (Some(b'('), _) if digit_at(at + 1) => 1,
            (Some(b' '), Some(b'(')) if digit_at(at + 2) => 2,
            (Some(b')'), Some(b' ' | b'-')) if digit_at(at + 2) => 2,
            (Some(b')' | b' ' | b'-' | b'/'), _) if digit_at(at + 1) => 1,
            _ => break,
        };
    }
    found
}

/// `415-555-2671`, `415.555.2671`, `(415) 555-2671`, `1-415-555-2671`.
fn north_american(bytes: &[u8], start: usize, run: usize) -> Option<(usize, usize)> {
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
