//! Templates that stand within sentences, by the names that they have in the English Wikipedia, and the text that they give.
//! Source: the documentation of each template there (`Template:NAME/doc`).

use super::templates::Arguments;

/// Meaning of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A fixed text.
    Is(&'static str),
    /// Its first argument.
    First,
    /// Its last argument without a name.
    Last,
    /// The last argument without a name in brackets: a pronunciation.
    Bracketed,
    /// Its arguments, one after the other, between two texts.
    Joined(&'static str, &'static str, &'static str),
    /// A quotation: its first argument, or that named text or quote.
    Quotation,
    /// This text and its first argument, or a range of two with a dash.
    Prefixed(&'static str),
    /// This text, its first argument and, in parentheses, the second one: a ship.
    Ship(&'static str),
    /// A quantity: numbers and their units up to those that it is converted to.
    Quantity,
    /// A number with uncertainty and unit.
    Value,
    /// A fraction.
    Fraction,
    /// The date of its first three arguments: year, month, day.
    Date,
    /// The date of its first three arguments and the age between that and the next three.
    DeathAge,
    /// The years between two dates.
    Age,
    /// "As of" and a date.
    AsOf,
    /// English, and in parentheses the Japanese and its transcription.
    Nihongo,
    /// A label and a link to another language.
    Interlanguage,
    /// A number with its thousands grouped.
    Grouped,
    /// A text in small letters, or in capital ones.
    Lower,
    Upper,
    /// The second argument where the first has text, else the third one.
    If,
    /// The third argument where the first two are equal, else the fourth one.
    IfEqual,
}

/// Meaning of a template's name in small letters; none where it stands for no text of a sentence.
pub(super) fn meaning(name: &str, function: bool) -> Option<Meaning> {
    use Meaning::{
        Age, AsOf, Bracketed, Date, DeathAge, First, Fraction, Grouped, If, IfEqual, Interlanguage, Is,
        Joined, Last, Lower, Nihongo, Prefixed, Quantity, Quotation, Ship, Upper, Value,
    };
    if function {
        return Some(match name {
            "formatnum" => Grouped,
            "lc" | "lcfirst" => Lower,
            "uc" => Upper,
            "ucfirst" => First,
            "#if" => If,
            "#ifeq" => IfEqual,
            _ => return None,
        });
    }
    Some(match name {
        "convert" | "cvt" | "conv" => Quantity,
        "val" => Value,
        "lang" | "transl" | "transliteration" | "translit" | "langx" | "script" | "rtl-lang" | "zh-tr"
        | "color" | "colour" | "font color" | "fontcolor" | "font colour" | "bg" | "text color"
        | "native name" | "wikt-lang" => Last,
        "ipa" | "pron" => Bracketed,
        "ipac-en" | "ipac" | "ipac-de" | "ipac-fr" => Joined("/", "", "/"),
        "respell" | "pronunciation respelling" => Joined("", "-", ""),
        "quote"
        | "blockquote"
        | "quotation"
        | "cquote"
        | "pull quote"
        | "centered pull quote"
        | "bquote"
        | "block quote"
        | "quote block"
        | "poemquote"
        | "poem quote"
        | "zitat"
        | "citation bloc" => Quotation,
        "nowrap" | "nobr" | "nobreak" | "no wrap" | "nwr" | "nobold" | "noitalic" | "normal" | "small"
        | "smaller" | "big" | "larger" | "large" | "resize" | "abbr" | "abbrv" | "abbreviation"
        | "abbrlink" | "tooltip" | "tt" | "hover title" | "define" | "sc" | "smallcaps" | "small caps"
        | "sc2" | "smcaps" | "allcaps" | "caps" | "nocaps" | "math" | "mvar" | "var" | "em" | "strong"
        | "bold" | "italic" | "italics" | "code" | "kbd" | "samp" | "mono" | "monospace" | "codett"
        | "key" | "keypress" | "button" | "u" | "underline" | "s" | "strike" | "del" | "ins"
        | "highlight" | "mark" | "sup" | "sub" | "sups" | "vanchor" | "visible anchor" | "not a typo"
        | "notatypo" | "typo" | "as written" | "proper name" | "text" | "angbr" | "angle bracket"
        | "chem2" | "ce" | "flag" | "flagu" | "flagcountry" | "flagicon name" | "birth-date"
        | "death-date" | "birth-date and age" | "start-date" | "end-date" | "year" | "linktext"
        | "section link" | "midsize" | "serif" | "sans-serif" | "script/hebrew" | "hebrew" | "unicode"
        | "music" | "polytonic" | "wrap" | "title" | "vr" | "block indent" | "noitalics" => First,
        "sic" => Prefixed(""),
        "nbsp" | "space" | "spaces" | "sp" | "hsp" | "hair space" | "thinsp" | "thin space" | "nnbsp"
        | "ensp" | "emsp" => Is(" "),
        "zwnj" => Is("\u{200c}"),
        "zwj" => Is("\u{200d}"),
        "ndash" | "en dash" | "endash" | "–" | "nsndns" => Is("–"),
        "snd" | "spnd" | "spaced ndash" | "spaced en dash" | "sndash" | "dash" | "spndash" | "s–" => {
            Is(" – ")
        }
        "mdash" | "em dash" | "emdash" | "—" => Is("—"),
        "smd" | "spaced mdash" | "spaced em dash" | "smdash" => Is(" — "),
        "minus" | "−" => Is("−"),
        "times" => Is("×"),
        "pi" => Is("π"),
        "degree" | "degrees" => Is("°"),
        "'" => Is("'"),
        "ellipsis" | "..." | "…" => Is("…"),
        "dot" | "·" | "middot" | "•" | "bull" | "bullet" | "," => Is(" · "),
        "!" => Is("|"),
        "=" => Is("="),
        "'s" => Is("'s"),
        "\"" | "quot" => Is("\""),
        "pb" | "paragraph break" | "paragraph" => Is("\n\n"),
        "br" | "break" | "crlf" | "line break" => Is("\n"),
        "frac" | "fraction" | "sfrac" | "fract" | "tfrac" | "broken" => Fraction,
        "circa" | "c." | "ca." | "c" | "ca" | "circ" | "approx" => Prefixed("c. "),
        "floruit" | "fl." | "fl" => Prefixed("fl. "),
        "reign" | "r." => Prefixed("r. "),
        "born" | "b." => Prefixed("b. "),
        "died" | "d." => Prefixed("d. "),
        "£" | "gbp" => Prefixed("£"),
        "€" | "eur" | "euro" => Prefixed("€"),
        "us$" | "usd" => Prefixed("US$"),
        "us dollar" => Prefixed("$"),
        "inr" | "indian rupee" | "₹" => Prefixed("₹"),
        "jpy" | "¥" | "cny" | "yen" => Prefixed("¥"),
        "au$" | "a$" | "aud" => Prefixed("A$"),
        "c$" | "cad" => Prefixed("C$"),
        "e" => Prefixed("×10^"),
        "10^" => Prefixed("10^"),
        "uss" => Ship("USS "),
        "hms" => Ship("HMS "),
        "ss" => Ship("SS "),
        "rms" => Ship("RMS "),
        "mv" => Ship("MV "),
        "hmas" => Ship("HMAS "),
        "hmcs" => Ship("HMCS "),
        "sms" => Ship("SMS "),
        "ship" => Joined("", " ", ""),
        "chem" => Joined("", "", ""),
        "hlist" | "flatlist" => Joined("", " · ", ""),
        "birth date" | "birth date and age" | "bda" | "dob" | "birth year and age" | "birth year"
        | "death date" | "death year" | "start date" | "start date and age" | "end date"
        | "end date and age" | "date" | "dts" | "film date" | "release date" | "founded date"
        | "launch date" | "opening date" | "ymd" | "mdy" | "dmy" => Date,
        "death date and age" | "dda" | "death date and given age" | "death year and age" => DeathAge,
        "age" | "age in years" | "age nts" => Age,
        "as of" | "asof" => AsOf,
        "nihongo" => Nihongo,
        "nihongo2" | "nihongo3" => First,
        "ill" | "interlanguage link" | "illm" | "link-interwiki" => Interlanguage,
        "formatnum" | "number" | "nts" | "gaps" => Grouped,
        // `{{lang-de|…}}`, `{{IPA-de|…}}`.
        _ if is_of_language(name, "lang-") => First,
        _ if is_of_language(name, "ipa-") => Bracketed,
        _ => return None,
    })
}

/// Whether a name is a prefix and a code of a language.
fn is_of_language(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|code| {
        (2..=16).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    })
}

impl Meaning {
    /// Appends the text of a template with these arguments.
    pub(super) fn write(self, arguments: &Arguments, out: &mut String) {
        let first = arguments.at(1);
        match self {
            Meaning::Is(text) => out.push_str(text),
            Meaning::First => {
                out.push_str(first.or_else(|| arguments.named(&["text", "content"])).unwrap_or(""))
            }
            Meaning::Last => {
                out.push_str(arguments.named(&["text"]).or_else(|| arguments.last()).unwrap_or(""));
            }
            Meaning::Bracketed => {
                // A language may come before the sounds, and a file after them.
                let text =
                    first.filter(|first| !is_code(first)).or_else(|| arguments.at(2)).or(first).unwrap_or("");
                let bracketed = text.starts_with(['/', '[', '(', '⟨']);
                if !text.is_empty() {
                    out.extend([if bracketed { "" } else { "[" }, text, if bracketed { "" } else { "]" }]);
                }
            }
            Meaning::Joined(before, between, after) => {
                let all: Vec<&str> = arguments.all().collect();
                if !all.is_empty() {
                    out.extend([before, &all.join(between), after]);
                }
            }
            Meaning::Quotation => {
                let text = arguments.named(&["text", "quote", "content", "zitat", "t", "1"]);
                out.push_str(text.or(first).unwrap_or(""));
            }
            Meaning::Prefixed(prefix) => prefixed(prefix, arguments, out),
            Meaning::Ship(prefix) => {
                let Some(name) = first else { return };
                out.extend([prefix, name]);
                // The third argument hides the number or the name.
                if let (Some(number), None) = (arguments.at(2), arguments.at(3)) {
                    out.extend([" (", number, ")"]);
                }
            }
            Meaning::Quantity => quantity(arguments, out),
            Meaning::Value => value(arguments, out),
            Meaning::Fraction => {
                let all: Vec<&str> = arguments.all().collect();
                match all[..] {
                    [denominator] => out.extend(["1/", denominator]),
                    [numerator, denominator] => out.extend([numerator, "/", denominator]),
                    [whole, numerator, denominator] => out.extend([whole, " ", numerator, "/", denominator]),
                    _ => {}
                }
            }
            Meaning::Date => out.push_str(&date(arguments, 1)),
            Meaning::DeathAge => {
                out.push_str(&date(arguments, 1));
                if let Some(age) = years_between(arguments, 4, 1) {
                    out.push_str(&format!(" (aged {age})"));
                }
            }
            Meaning::Age => {
                if let Some(age) = years_between(arguments, 1, 4) {
                    out.push_str(&age.to_string());
                }
            }
            Meaning::AsOf => {
                let alternative = arguments.named(&["alt"]);
                let small = arguments.named(&["lc"]).is_some();
                out.push_str(alternative.unwrap_or(if small { "as of " } else { "As of " }));
                if alternative.is_none() {
                    out.push_str(&date(arguments, 1));
                }
            }
            Meaning::Nihongo => {
                let rest: Vec<&str> = (2..=3).filter_map(|number| arguments.at(number)).collect();
                match first {
                    Some(first) if !rest.is_empty() => out.extend([first, " (", &rest.join(", "), ")"]),
                    Some(first) => out.push_str(first),
                    None => out.push_str(&rest.join(", ")),
                }
            }
            Meaning::Interlanguage => out.push_str(arguments.named(&["lt", "label"]).or(first).unwrap_or("")),
            Meaning::Grouped => grouped(first.unwrap_or(""), out),
            Meaning::Lower => out.push_str(&first.unwrap_or("").to_lowercase()),
            Meaning::Upper => out.push_str(&first.unwrap_or("").to_uppercase()),
            Meaning::If => out.push_str(arguments.at(if first.is_some() { 2 } else { 3 }).unwrap_or("")),
            Meaning::IfEqual => {
                let equal = first == arguments.at(2);
                out.push_str(arguments.at(if equal { 3 } else { 4 }).unwrap_or(""));
            }
        }
    }
}

/// Whether an argument is a code of a language such as `de` or `pt-br`.
fn is_code(text: &str) -> bool {
    let mut parts = text.split('-');
    parts
        .next()
        .is_some_and(|code| matches!(code.len(), 2 | 3) && code.bytes().all(|byte| byte.is_ascii_lowercase()))
        && parts.all(|part| part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

fn prefixed(prefix: &str, arguments: &Arguments, out: &mut String) {
    let Some(first) = arguments.at(1) else {
        // `{{circa}} 1850`, `{{sic}}`
        out.push_str(if prefix.is_empty() { "[sic]" } else { prefix });
        return;
    };
    out.extend([prefix, first]);
    if let Some(second) = arguments.at(2) {
        match prefix {
            // `{{sic|misspelt|word}}`
            "" if second != "hide" => out.push_str(second),
            "r. " => out.extend(["–", second]),
            "c. " | "fl. " => out.extend([" – ", prefix, second]),
            _ => {}
        }
    }
}

/// Words between the numbers of a range, and what is written for them.
fn range_word(text: &str) -> Option<&'static str> {
    Some(match text {
        "to" | "to(-)" => " to ",
        "-" | "–" | "&ndash;" | "to-" => "–",
        "and" | "and(-)" | "&" => " and ",
        "or" => " or ",
        "by" => " by ",
        "x" | "×" | "*" | "xx" => " × ",
        "+/-" | "±" | "+-" => " ± ",
        "," => ", ",
        _ => return None,
    })
}

/// Units whose codes differ from their symbols.
fn unit_symbol(code: &str) -> &str {
    match code {
        "C" => "°C",
        "F" => "°F",
        "R" => "°R",
        "m2" => "m²",
        "km2" => "km²",
        "cm2" => "cm²",
        "mm2" => "mm²",
        "m3" => "m³",
        "km3" => "km³",
        "cm3" | "cc" => "cm³",
        "sqmi" => "sq mi",
        "sqft" | "ft2" => "sq ft",
        "sqin" | "in2" => "sq in",
        "sqyd" => "sq yd",
        "cuft" | "ft3" => "cu ft",
        "cuyd" => "cu yd",
        "cuin" => "cu in",
        "cumi" => "cu mi",
        "usgal" | "USgal" => "US gal",
        "impgal" => "imp gal",
        "usoz" | "USoz" => "US fl oz",
        "LT" => "long tons",
        "ST" => "short tons",
        "kph" | "kmh" => "km/h",
        other => other,
    }
}

/// `{{convert|5|to|10|km|mi}}` gives `5 to 10 km`; `{{convert|5|ft|10|in|cm}}` gives `5 ft 10 in`.
fn quantity(arguments: &Arguments, out: &mut String) {
    let is_number = |text: &str| {
        let rest = text.trim_start_matches(['-', '+', '−', '~']);
        rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    };
    let all: Vec<&str> = arguments.all().collect();
    let mut at = 0;
    while at < all.len() && is_number(all[at]) {
        if at > 0 {
            out.push(' ');
        }
        out.push_str(all[at]);
        at += 1;
        while at + 1 < all.len()
            && let Some(word) = range_word(all[at])
            && is_number(all[at + 1])
        {
            out.extend([word, all[at + 1]]);
            at += 2;
        }
        let Some(unit) = all.get(at).copied() else { return };
        out.extend([" ", unit_symbol(unit)]);
        at += 1;
        // Only feet and inches, pounds and ounces and their like continue.
        if !matches!(unit, "ft" | "yd" | "mi" | "lb" | "st" | "LT" | "h" | "in") {
            return;
        }
    }
}

fn value(arguments: &Arguments, out: &mut String) {
    let Some(first) = arguments.at(1) else { return };
    out.push_str(first);
    if let Some(uncertainty) = arguments.at(2) {
        out.extend(["±", uncertainty]);
    }
    if let Some(exponent) = arguments.named(&["e"]) {
        out.extend(["×10^", exponent]);
    }
    if let Some(unit) = arguments.named(&["u", "ul", "end"]) {
        out.extend([" ", unit]);
    }
}

/// `1234567.5` gives `1,234,567.5`.
fn grouped(text: &str, out: &mut String) {
    let start = text.find(|c: char| c.is_ascii_digit()).unwrap_or(text.len());
    let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
    out.push_str(&text[..start]);
    for (index, digit) in text[start..start + digits].chars().enumerate() {
        if index > 0 && (digits - index) % 3 == 0 && !text.contains(',') {
            out.push(',');
        }
        out.push(digit);
    }
    out.push_str(&text[start + digits..]);
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Number of a month, from one.
fn month(text: &str) -> Option<usize> {
    match text.parse() {
        Ok(number) => Some(number).filter(|number| (1..=12).contains(number)),
        Err(_) if text.len() >= 3 => {
            let small = text.to_lowercase();
            MONTHS.iter().position(|month| month.to_lowercase().starts_with(&small)).map(|index| index + 1)
        }
        Err(_) => None,
    }
}

/// Year, month and day from argument `from` on.
fn parts_of_date(arguments: &Arguments, from: usize) -> (Option<&str>, Option<usize>, Option<u32>) {
    let day = arguments.at(from + 2).and_then(|text| text.parse().ok()).filter(|day| (1..=31).contains(day));
    (arguments.at(from), arguments.at(from + 1).and_then(month), day)
}

/// The date that begins with argument `from`: year, month and day, each of which may be missing, or a date in one argument.
fn date(arguments: &Arguments, from: usize) -> String {
    let (year, month, day) = parts_of_date(arguments, from);
    let Some(year) = year else { return String::new() };
    let day_first = arguments.named(&["df"]).is_some() || arguments.at(from + 1) == Some("dmy");
    let iso: Vec<&str> = year.split('-').collect();
    let (year, month, day) = match iso[..] {
        [year, text, day] if month.is_none() && year.len() == 4 => {
            (year, self::month(text), day.parse::<u32>().ok())
        }
        _ => (year, month, day),
    };
    match (month, day) {
        (Some(month), Some(day)) if day_first => format!("{day} {} {year}", MONTHS[month - 1]),
        (Some(month), Some(day)) => format!("{} {day}, {year}", MONTHS[month - 1]),
        (Some(month), None) => format!("{} {year}", MONTHS[month - 1]),
        (None, _) => year.to_string(),
    }
}

/// Full years between the dates that begin with two arguments. Without the second date there are none: the page gives those of today.
fn years_between(arguments: &Arguments, from: usize, to: usize) -> Option<i64> {
    let (year, month, day) = parts_of_date(arguments, from);
    let (later, later_month, later_day) = parts_of_date(arguments, to);
    let years = later?.parse::<i64>().ok()? - year?.parse::<i64>().ok()?;
    let before_birthday = (later_month?, later_day?) < (month?, day?);
    Some(years - i64::from(before_birthday)).filter(|age| (0..1000).contains(age))
}
