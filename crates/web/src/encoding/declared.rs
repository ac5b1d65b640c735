//! Encodings that a page or its transport declares: the prescan of the HTML standard (section 13.2.3.2) and the
//! `Content-Type` of the Fetch and MIME Sniffing standards.

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252, X_USER_DEFINED};

/// Bytes of a page in which it may declare its encoding anywhere.
const PRESCAN: usize = 1024;
/// Bytes in which its head may, as browsers read on to the end of a long one.
const LONGEST_HEAD: usize = 64 << 10;

/// The encoding that a `Content-Type` names. Of several values the last counts, and one without a charset keeps that
/// of a value before it for the same type.
pub(super) fn transport(content_type: &str) -> Option<&'static Encoding> {
    let outside = |separator: char| {
        let mut quoted = false;
        move |c: char| {
            quoted ^= c == '"';
            c == separator && !quoted
        }
    };
    let (mut found, mut kind) = (None, "");
    for value in content_type.split(outside(',')) {
        let mut parts = value.split(outside(';'));
        let essence = parts.next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case(kind) {
            (found, kind) = (None, essence);
        }
        let charset = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim_start().eq_ignore_ascii_case("charset").then_some(value)
        });
        if let Some(charset) = charset {
            let unquoted = charset.strip_prefix('"').map(|rest| rest.split('"').next().unwrap_or_default());
            found = Encoding::for_label(unquoted.unwrap_or(charset).as_bytes());
        }
    }
    found
}

/// The encoding that the first bytes of a page declare: by a `<meta>`, else by an XML declaration.
pub(super) fn page(bytes: &[u8]) -> Option<&'static Encoding> {
    let bytes = &bytes[..bytes.len().min(LONGEST_HEAD)];
    // An XML declaration in UTF-16 without a byte order mark.
    if bytes.starts_with(b"<\0?\0x\0") {
        return Some(UTF_16LE);
    }
    if bytes.starts_with(b"\0<\0?\0x") {
        return Some(UTF_16BE);
    }
    Prescan { bytes, at: 0, is_head: true }.meta().or_else(|| xml_declaration(bytes))
}

/// The scan for a `<meta>`. Where the bytes end early it gives none.
struct Prescan<'a> {
    bytes: &'a [u8],
    at: usize,
    is_head: bool,
}

impl Prescan<'_> {
    fn meta(mut self) -> Option<&'static Encoding> {
        loop {
            self.at += memchr::memchr(b'<', self.bytes.get(self.at..)?)?;
            if self.at >= PRESCAN && !self.is_head {
                return None;
            }
            let rest = &self.bytes[self.at..];
            let is_meta = rest.get(1..5).is_some_and(|name| name.eq_ignore_ascii_case(b"meta"))
                && rest.get(5).is_some_and(|byte| is_space(*byte) || *byte == b'/');
            let name = rest.get(1..)?.strip_prefix(b"/").unwrap_or(&rest[1..]);
            if rest.starts_with(b"<!--") {
                // The dashes of the end may be those of the begin.
                self.at += 2 + memchr::memmem::find(&rest[2..], b"-->")? + 2;
            } else if is_meta {
                self.at += 5;
                if let Some(encoding) = self.meta_attributes()? {
                    return Some(encoding);
                }
            } else if name.first()?.is_ascii_alphabetic() {
                let begins = |tag: &[u8]| rest.get(..tag.len()).is_some_and(|t| t.eq_ignore_ascii_case(tag));
                self.is_head &= !(begins(b"</head") || begins(b"<body"));
                self.at += rest.iter().position(|byte| is_space(*byte) || *byte == b'>')?;
                while self.attribute()?.is_some() {}
            } else if matches!(rest[1], b'!' | b'/' | b'?') {
                self.at += memchr::memchr(b'>', rest)?;
            }
            self.at += 1;
        }
    }

    /// The encoding that the attributes of a `<meta>` declare: in `charset`, or in `content` beside an `http-equiv` that says
    /// it is a content type. The outer option is none where the bytes end.
    fn meta_attributes(&mut self) -> Option<Option<&'static Encoding>> {
        let mut seen = Vec::new();
        let (mut is_content_type, mut needs_content_type) = (false, false);
        // A label that is none hides a `content` behind it.
        let mut charset: Option<Option<&'static Encoding>> = None;
        while let Some((name, value)) = self.attribute()? {
            if seen.contains(&name) {
                continue;
            }
            match &name[..] {
                b"http-equiv" => is_content_type = value == b"content-type",
                b"content" if charset.is_none() => {
                    if let Some(encoding) = charset_of_content(&value) {
                        (charset, needs_content_type) = (Some(Some(encoding)), true);
                    }
                }
                b"charset" => (charset, needs_content_type) = (Some(Encoding::for_label(&value)), false),
                _ => {}
            }
            seen.push(name);
        }
        let found = charset.flatten().filter(|_| !needs_content_type || is_content_type);
        Some(found.map(|encoding| match encoding {
            encoding if encoding == X_USER_DEFINED => WINDOWS_1252,
            encoding => readable(encoding),
        }))
    }

    /// The next attribute of a tag, in small letters: `Some(None)` at the end of the tag, none where the bytes end.
    fn attribute(&mut self) -> Option<Option<(Vec<u8>, Vec<u8>)>> {
        self.skip(|byte| is_space(byte) || byte == b'/');
        if self.byte()? == b'>' {
            return Some(None);
        }
        let begin = self.at;
        // An equals sign at the beginning is part of the name.
        self.at += 1;
        self.skip(|byte| !is_space(byte) && !matches!(byte, b'=' | b'/' | b'>'));
        let name = self.bytes[begin..self.at].to_ascii_lowercase();
        self.byte()?;
        self.skip(is_space);
        if self.byte()? != b'=' {
            return Some(Some((name, Vec::new())));
        }
        self.at += 1;
        self.skip(is_space);
        let value = match self.byte()? {
            quote @ (b'"' | b'\'') => {
                let begin = self.at + 1;
                let end = begin + memchr::memchr(quote, &self.bytes[begin..])?;
                self.at = end + 1;
                &self.bytes[begin..end]
            }
            _ => {
                let begin = self.at;
                self.skip(|byte| !is_space(byte) && byte != b'>');
                self.byte()?;
                &self.bytes[begin..self.at]
            }
        };
        Some(Some((name, value.to_ascii_lowercase())))
    }

    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip(&mut self, holds: impl Fn(u8) -> bool) {
        while self.byte().is_some_and(&holds) {
            self.at += 1;
        }
    }
}

/// White space of the standard.
fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | 12 | b'\r' | b' ')
}

/// A declaration that could be read byte by byte is not in UTF-16.
fn readable(encoding: &'static Encoding) -> &'static Encoding {
    if encoding == UTF_16LE || encoding == UTF_16BE { UTF_8 } else { encoding }
}

/// The encoding in the `content` of a `<meta>`, in small letters ("extracting a character encoding from a meta element").
fn charset_of_content(mut content: &[u8]) -> Option<&'static Encoding> {
    loop {
        content = &content[memchr::memmem::find(content, b"charset")? + 7..];
        let Some(value) = content.trim_ascii_start().strip_prefix(b"=") else { continue };
        let value = value.trim_ascii_start();
        let label = match value.first()? {
            quote @ (b'"' | b'\'') => &value[1..][..memchr::memchr(*quote, &value[1..])?],
            _ => value.split(|byte| is_space(*byte) || *byte == b';').next()?,
        };
        return Encoding::for_label(label);
    }
}

/// The encoding of an XML declaration at the first byte.
fn xml_declaration(bytes: &[u8]) -> Option<&'static Encoding> {
    let declaration = bytes.strip_prefix(b"<?xml")?;
    let declaration = &declaration[..memchr::memchr(b'>', declaration)?];
    let blank = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte <= b' ').count();
    let rest = &declaration[memchr::memmem::find(declaration, b"encoding")? + 8..];
    let rest = rest[blank(rest)..].strip_prefix(b"=")?;
    let (quote, rest) = rest[blank(rest)..].split_first()?;
    if !matches!(quote, b'"' | b'\'') {
        return None;
    }
    let label = &rest[..memchr::memchr(*quote, rest)?];
    if label.iter().any(|byte| *byte <= b' ') {
        return None;
    }
    Encoding::for_label(label).map(readable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Declarations and what they mean, as the HTML standard has it. An empty name: none.
    const PAGES: &[(&str, &str)] = &[
        // `charset` and how it is written.
        ("<meta charset=koi8-r>", "KOI8-R"),
        ("<META CHARSET=KOI8-R>", "KOI8-R"),
        ("<meta charset='koi8-r'>", "KOI8-R"),
        ("<meta charset=\"koi8-r\">", "KOI8-R"),
        ("<meta charset = koi8-r >", "KOI8-R"),
        ("<meta charset=\n\t' koi8-r '>", "KOI8-R"),
        ("<meta/charset=koi8-r/>", ""),
        ("<meta/charset=koi8-r />", "KOI8-R"),
        ("<meta\x0ccharset=koi8-r>", "KOI8-R"),
        ("<meta\ncharset=koi8-r>", "KOI8-R"),
        ("<meta charset='koi8-r", ""),
        ("<meta charset=koi8-r", ""),
        ("<meta charset='koi8-r'", ""),
        ("<meta charset>", ""),
        ("<meta charset=>", ""),
        ("<meta charset=''>", ""),
        ("<meta charset=unheard-of>", ""),
        ("<meta charset=unheard-of><meta charset=koi8-r>", "KOI8-R"),
        ("<meta charset=koi8-r><meta charset=shift_jis>", "KOI8-R"),
        ("<meta charset=koi8-r charset=shift_jis>", "KOI8-R"),
        ("<meta charset=unheard-of charset=koi8-r>", ""),
        ("<meta name=x charset=koi8-r>", "KOI8-R"),
        ("<meta name='a>b' charset=koi8-r>", "KOI8-R"),
        ("<meta name=a>b charset=koi8-r>", ""),
        ("<meta =charset=koi8-r>", ""),
        ("<meta xcharset=koi8-r>", ""),
        ("<metas charset=koi8-r>", ""),
        ("<meta>charset=koi8-r>", ""),
        ("< meta charset=koi8-r>", ""),
        ("<p><b><meta charset=koi8-r>", "KOI8-R"),
        // Encodings that a page read byte by byte cannot be in.
        ("<meta charset=utf-16>", "UTF-8"),
        ("<meta charset=utf-16be>", "UTF-8"),
        ("<meta charset=x-user-defined>", "windows-1252"),
        ("<meta http-equiv=content-type content='text/html; charset=utf-16le'>", "UTF-8"),
        // `content` counts beside `http-equiv` only, in any order.
        ("<meta http-equiv=content-type content='text/html; charset=koi8-r'>", "KOI8-R"),
        ("<meta content='text/html; charset=koi8-r' http-equiv=Content-Type>", "KOI8-R"),
        ("<meta content='text/html; charset=koi8-r' name=x http-equiv='CONTENT-TYPE'/>", "KOI8-R"),
        ("<meta content='text/html; charset=koi8-r'>", ""),
        ("<meta http-equiv=refresh content='0; url=/?charset=koi8-r'>", ""),
        ("<meta http-equiv=content-language content='text/html; charset=koi8-r'>", ""),
        ("<meta http-equiv='content-type ' content='text/html; charset=koi8-r'>", ""),
        ("<meta http-equiv=refresh http-equiv=content-type content='text/html; charset=koi8-r'>", ""),
        ("<meta name=description content='the history of charset=koi8-r'>", ""),
        (
            "<meta name=description content='charset=koi8-r'><meta http-equiv=content-type content='charset=shift_jis'>",
            "Shift_JIS",
        ),
        ("<meta http-equiv=content-type content='charset=koi8-r' charset=shift_jis>", "Shift_JIS"),
        ("<meta charset=shift_jis http-equiv=content-type content='charset=koi8-r'>", "Shift_JIS"),
        ("<meta content='charset=koi8-r' charset=shift_jis>", "Shift_JIS"),
        ("<meta content='charset=koi8-r' charset=unheard-of http-equiv=content-type>", ""),
        // The charset inside `content`.
        ("<meta http-equiv=content-type content='charset=\"koi8-r\"'>", "KOI8-R"),
        ("<meta http-equiv=content-type content=\"charset='koi8-r'\">", "KOI8-R"),
        ("<meta http-equiv=content-type content='charset=\"koi8-r'>", ""),
        ("<meta http-equiv=content-type content='text/html; charset koi8-r; CHARSET = koi8-r'>", "KOI8-R"),
        ("<meta http-equiv=content-type content='text/html;charset=koi8-r;x=y'>", "KOI8-R"),
        ("<meta http-equiv=content-type content='charset=koi8-r, text/html'>", ""),
        ("<meta http-equiv=content-type content='text/htmlcharset=koi8-r'>", "KOI8-R"),
        ("<meta http-equiv=content-type content='charset='>", ""),
        ("<meta http-equiv=content-type content='charset=x; charset=koi8-r'>", ""),
        ("<meta http-equiv=content-type content='text/html' content='charset=koi8-r'>", ""),
        // Comments, declarations and other tags hide what is in them.
        ("<!-- <meta charset=koi8-r> --><meta charset=shift_jis>", "Shift_JIS"),
        ("<!--><meta charset=koi8-r>", "KOI8-R"),
        ("<!---><meta charset=koi8-r>", "KOI8-R"),
        ("<!-- --!><meta charset=koi8-r>-->", ""),
        ("<!-- <meta charset=koi8-r>", ""),
        ("<!DOCTYPE html><meta charset=koi8-r>", "KOI8-R"),
        ("<!x <meta charset=koi8-r><meta charset=shift_jis>", "Shift_JIS"),
        ("<?php <meta charset=koi8-r><meta charset=shift_jis>", "Shift_JIS"),
        ("</ <meta charset=koi8-r><meta charset=shift_jis>", "Shift_JIS"),
        ("<a title='<meta charset=koi8-r>'><meta charset=shift_jis>", "Shift_JIS"),
        ("<a title=\"<meta charset=koi8-r>", ""),
        ("</a title='<meta charset=koi8-r>'><meta charset=shift_jis>", "Shift_JIS"),
        ("<a<meta charset=koi8-r><meta charset=shift_jis>", "Shift_JIS"),
        ("<script>'<meta charset=koi8-r>'</script><meta charset=shift_jis>", "KOI8-R"),
        ("<title><meta charset=koi8-r></title>", "KOI8-R"),
        ("<1 <meta charset=koi8-r>", "KOI8-R"),
        // The XML declaration, where no <meta> counts.
        ("<?xml version='1.0' encoding='koi8-r'?>", "KOI8-R"),
        ("<?xml version=\"1.0\" encoding = \"koi8-r\" ?>", "KOI8-R"),
        ("<?xmlencoding='koi8-r'>", "KOI8-R"),
        ("<?xml version='1.0' encoding='koi8-r'?><meta charset=shift_jis>", "Shift_JIS"),
        ("<?xml version='1.0' encoding='koi8-r'?><meta charset=unheard-of>", "KOI8-R"),
        ("<?xml version='1.0' encoding='utf-16'?>", "UTF-8"),
        ("<?xml version='1.0' encoding=koi8-r?>", ""),
        ("<?xml version='1.0' encoding=' koi8-r'?>", ""),
        ("<?xml version='1.0' encoding='koi8-r?>'", ""),
        ("<?xml version='1.0' Encoding='koi8-r'?>", ""),
        ("<?XML version='1.0' encoding='koi8-r'?>", ""),
        (" <?xml version='1.0' encoding='koi8-r'?>", ""),
        ("<?xml version='1.0'?> encoding='koi8-r'", ""),
        ("<\0?\0x\0m\0l\0", "UTF-16LE"),
        ("\0<\0?\0x\0m\0l", "UTF-16BE"),
    ];

    #[test]
    fn a_page_declares_its_encoding_as_the_standard_has_it() {
        for (text, wanted) in PAGES {
            let found = page(text.as_bytes()).map_or("", Encoding::name);
            assert_eq!(found, *wanted, "{text}");
            // A declaration that is whole in the first kilobyte counts wherever it stands there.
            if !wanted.is_empty() && !text.starts_with("<?") && !text.contains('\0') {
                let moved = |bytes: usize| format!("{}{text}", " ".repeat(bytes - text.len()));
                assert_eq!(page(moved(1024).as_bytes()).map_or("", Encoding::name), *wanted, "{text}");
            }
        }
        // Behind it only in the head.
        let late = |before: &str| format!("{before}{}<meta charset=koi8-r>", "<link rel=x>".repeat(200));
        assert_eq!(page(late("<head>").as_bytes()).map(Encoding::name), Some("KOI8-R"));
        assert_eq!(page(late("<head></HEAD>").as_bytes()), None);
        assert_eq!(page(late("<Body>").as_bytes()), None);
        let far = format!("{}<meta charset=koi8-r>", " ".repeat(64 << 10));
        assert_eq!(page(far.as_bytes()), None);
    }

    #[test]
    fn a_content_type_names_the_encoding_in_its_own_parameter() {
        for (header, wanted) in [
            ("text/html;charset=koi8-r", "KOI8-R"),
            ("text/html; Charset=\"KOI8-R\"", "KOI8-R"),
            ("text/html; x=y;charset=koi8-r ", "KOI8-R"),
            ("text/html; x=\"; charset=shift_jis\"; charset=koi8-r", "KOI8-R"),
            ("text/html; charset=koi8-r; charset=shift_jis", "KOI8-R"),
            ("text/html; xcharset=koi8-r", ""),
            ("text/html charset=koi8-r", ""),
            ("text/html; charset", ""),
            ("text/html; charset=", ""),
            ("text/html; charset=unheard-of", ""),
            ("text/html; charset=koi8-r, text/html", "KOI8-R"),
            ("text/html; charset=koi8-r, text/plain", ""),
            ("text/html; charset=koi8-r, text/html; charset=shift_jis", "Shift_JIS"),
        ] {
            assert_eq!(transport(header).map_or("", Encoding::name), wanted, "{header}");
        }
    }
}
