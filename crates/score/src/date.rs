//! When a document was written: from its URL, its text, or when it was fetched.

/// A day of the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    /// Year, 1990 to 2100: before there was hardly a web.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month; 0 where only the month is known.
    pub day: u8,
}

impl std::fmt::Display for Date {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)?;
        if self.day > 0 { write!(f, "-{:02}", self.day) } else { Ok(()) }
    }
}

/// Places in which a date can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DateSource {
    /// In the path of the URL, as blogs and newspapers write it.
    Url,
    /// At the beginning of the text.
    Text,
    /// The day on which the page was fetched: written then or earlier.
    Fetched,
}

impl DateSource {
    /// `url`, `text` or `fetched`.
    pub fn name(self) -> &'static str {
        match self {
            DateSource::Url => "url",
            DateSource::Text => "text",
            DateSource::Fetched => "fetched",
        }
    }
}

/// Characters of a text that are searched for a date: by-lines stand at the top.
const HEAD: usize = 1000;

impl Date {
    /// The day, if there is one and it is in the range of years.
    pub fn new(year: u32, month: u32, day: u32) -> Option<Date> {
        let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let days = match month {
            2 => 28 + u32::from(leap),
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        let fits = (1990..=2100).contains(&year) && day <= days;
        fits.then_some(Date { year: year as u16, month: month as u8, day: day as u8 })
    }

    /// The day at the beginning of an ISO 8601 time such as `2021-05-17T08:30:00Z`, or of the 14 digits of an ARC
    /// record.
    pub fn from_warc(time: &str) -> Option<Date> {
        let digits: String = time.chars().filter(|&c| c != '-').take(8).collect();
        if digits.len() != 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let number = |range: std::ops::Range<usize>| digits[range].parse().ok();
        Date::new(number(0..4)?, number(4..6)?, number(6..8)?).filter(|d| d.day > 0)
    }

    /// `/2021/05/17/`, `/2021/05/` or `2021-05-17` in the path of a URL.
    pub fn from_url(url: &str) -> Option<Date> {
        let path = url.split_once("://").map_or(url, |(_, rest)| rest);
        let path = path.split(['?', '#']).next()?;
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        for window in 0..segments.len() {
            let number = |i: usize, digits: usize| {
                let segment = *segments.get(window + i)?;
                let plain = segment.len() <= digits && segment.bytes().all(|b| b.is_ascii_digit());
                if plain { segment.parse::<u32>().ok() } else { None }
            };
            if let (Some(year @ 1990..=2100), Some(month @ 1..=12)) = (number(0, 4), number(1, 2)) {
                let day = number(2, 2).filter(|&d| d > 0 && Date::new(year, month, d).is_some());
                return Date::new(year, month, day.unwrap_or(0));
            }
        }
        segments.iter().find_map(|segment| first_in(segment))
    }

    /// The first day in the first 1000 characters: `2021-05-17`, `17 May 2021`, `May 17, 2021`.
    pub fn from_text(text: &str) -> Option<Date> {
        let end = text.char_indices().nth(HEAD).map_or(text.len(), |(at, _)| at);
        first_in(&text[..end])
    }
}

/// A run of ASCII digits or of letters.
#[derive(Debug, Clone, Copy)]
enum Token<'t> {
    /// Value and number of digits.
    Number(u32, usize),
    Word(&'t str),
}

/// Tokens with the character before each.
fn tokens(text: &str) -> impl Iterator<Item = (Token<'_>, char)> {
    let mut rest = text;
    let mut before = ' ';
    std::iter::from_fn(move || {
        loop {
            let first = rest.chars().next()?;
            let end = |of: fn(char) -> bool| rest.find(|c| !of(c)).unwrap_or(rest.len());
            let (token, length) = if first.is_ascii_digit() {
                let length = end(|c| c.is_ascii_digit());
                (Some(Token::Number(rest[..length].parse().unwrap_or(u32::MAX), length)), length)
            } else if first.is_alphabetic() {
                let length = end(char::is_alphabetic);
                (Some(Token::Word(&rest[..length])), length)
            } else {
                (None, first.len_utf8())
            };
            let preceding = before;
            before = rest[..length].chars().next_back().unwrap_or(' ');
            rest = &rest[length..];
            if let Some(token) = token {
                return Some((token, preceding));
            }
        }
    })
}

fn month_named(word: &str) -> Option<u32> {
    Some(match word.to_lowercase().as_str() {
        "january" | "jan" => 1,
        "february" | "feb" => 2,
        "march" | "mar" => 3,
        "april" | "apr" => 4,
        "may" => 5,
        "june" | "jun" => 6,
        "july" | "jul" => 7,
        "august" | "aug" => 8,
        "september" | "sept" | "sep" => 9,
        "october" | "oct" => 10,
        "november" | "nov" => 11,
        "december" | "dec" => 12,
        _ => return None,
    })
}

fn first_in(text: &str) -> Option<Date> {
    use Token::{Number, Word};
    let all: Vec<(Token<'_>, char)> = tokens(text).collect();
    let is_day = |token: Option<&(Token<'_>, char)>| match token {
        Some((Word(w), _)) => matches!(*w, "st" | "nd" | "rd" | "th"),
        _ => false,
    };
    for i in 0..all.len() {
        // `17th`: the ending belongs to the number before.
        let after = |mut at: usize| {
            at += 1;
            if is_day(all.get(at)) {
                at += 1;
            }
            at
        };
        let second = after(i);
        let third = after(second);
        let (Some(a), Some(b), Some(c)) = (all.get(i), all.get(second), all.get(third)) else { continue };
        let found = match (a.0, b.0, c.0) {
            (Number(year, 4), Number(month, 2), Number(day, 2)) if b.1 == '-' && c.1 == '-' => {
                Some((year, month, day))
            }
            (Number(day, 1 | 2), Word(month), Number(year, 4))
            | (Word(month), Number(day, 1 | 2), Number(year, 4)) => {
                month_named(month).map(|month| (year, month, day))
            }
            _ => None,
        };
        if let Some(date) = found.and_then(|(y, m, d)| Date::new(y, m, d)).filter(|date| date.day > 0) {
            return Some(date);
        }
    }
    None
}

/// The best guess: the URL, then the text, neither later than the day of fetching (`warc_date`, ISO 8601), then that.
pub fn date_of(url: Option<&str>, text: &str, warc_date: Option<&str>) -> Option<(Date, DateSource)> {
    let fetched = warc_date.and_then(Date::from_warc);
    let plausible = |date: &Date| fetched.is_none_or(|fetched| *date <= fetched);
    let url = url.and_then(Date::from_url).filter(plausible).map(|d| (d, DateSource::Url));
    let text = || Date::from_text(text).filter(plausible).map(|d| (d, DateSource::Text));
    url.or_else(text).or(fetched.map(|d| (d, DateSource::Fetched)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_found_where_they_stand() {
        let text = |t: &str| Date::from_text(t).map(|d| d.to_string());
        assert_eq!(text("Posted on May 17th, 2021 by A").as_deref(), Some("2021-05-17"));
        assert_eq!(text("17 Sept. 2004, Paris").as_deref(), Some("2004-09-17"));
        assert_eq!(text("updated 2020-02-29T10:00").as_deref(), Some("2020-02-29"));
        assert_eq!(text("on 2021-02-29 and 31 June 2020"), None);
        assert_eq!(text("May 2021 was warm; 2021 5 17"), None);
        assert_eq!(text("call 555-12-34, room 17 May"), None);
        let url = |u: &str| Date::from_url(u).map(|d| d.to_string());
        assert_eq!(url("https://a.org/2019/07/04/title").as_deref(), Some("2019-07-04"));
        assert_eq!(url("https://a.org/blog/2019/7/title").as_deref(), Some("2019-07"));
        assert_eq!(url("https://a.org/x-2018-01-31-y.html").as_deref(), Some("2018-01-31"));
        assert_eq!(url("https://2019.org/13/99?d=2018-01-31"), None);
        assert_eq!(Date::from_warc("2021-05-17T08:30:00Z"), Date::new(2021, 5, 17));
        assert_eq!(Date::from_warc("20210517083000"), Date::new(2021, 5, 17));
        assert_eq!(Date::from_warc("yesterday"), None);
    }

    #[test]
    fn no_document_is_younger_than_its_fetching() {
        let of = |url, text, warc| date_of(url, text, warc).map(|(d, s)| (d.to_string(), s.name()));
        let warc = Some("2020-01-01T00:00:00Z");
        assert_eq!(
            of(Some("http://a.b/2019/01/02/"), "May 5, 2018", warc),
            Some(("2019-01-02".into(), "url"))
        );
        assert_eq!(
            of(Some("http://a.b/2021/01/02/"), "May 5, 2018", warc),
            Some(("2018-05-05".into(), "text"))
        );
        assert_eq!(of(None, "May 5, 2024", warc), Some(("2020-01-01".into(), "fetched")));
        assert_eq!(of(None, "nothing", None), None);
    }
}
