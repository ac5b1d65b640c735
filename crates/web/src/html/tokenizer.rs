//! Tags and text, one after another, as slices of the page.

use super::tag::Tag;

/// The attributes that extraction asks for; the first of a name counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the standard
pub struct Attributes<'a> {
    pub class: Option<&'a str>,
    pub id: Option<&'a str>,
    pub role: Option<&'a str>,
    pub style: Option<&'a str>,
    pub href: Option<&'a str>,
    pub hidden: Option<&'a str>,
    pub aria_hidden: Option<&'a str>,
    pub itemprop: Option<&'a str>,
    pub lang: Option<&'a str>,
    pub name: Option<&'a str>,
    pub property: Option<&'a str>,
    pub content: Option<&'a str>,
    pub rel: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    fn set(&mut self, name: &[u8], value: &'a str) {
        let mut lower = [0u8; 11];
        let Some(lower) = lower.get_mut(..name.len()) else { return };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let slot = match &*lower {
            b"class" => &mut self.class,
            b"id" => &mut self.id,
            b"role" => &mut self.role,
            b"style" => &mut self.style,
            b"href" => &mut self.href,
            b"hidden" => &mut self.hidden,
            b"aria-hidden" => &mut self.aria_hidden,
            b"itemprop" => &mut self.itemprop,
            b"lang" => &mut self.lang,
            b"name" => &mut self.name,
            b"property" => &mut self.property,
            b"content" => &mut self.content,
            b"rel" => &mut self.rel,
            _ => return,
        };
        slot.get_or_insert(value);
    }
}

/// A piece of a page. Text still holds its character references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// A start tag.
    Start {
        /// The element.
        tag: Tag,
        /// Its attributes.
        attributes: Attributes<'a>,
        /// Whether it ends in `/>`, which means something only in SVG and MathML.
        self_closing: bool,
    },
    /// An end tag.
    End(Tag),
    /// Text with references.
    Text(&'a str),
    /// The content of an element that holds no markup; references count in `title` and `textarea` only.
    Raw(&'a str),
}

/// Cuts a page into tokens. Comments and declarations are left out.
#[derive(Debug, Clone)]
pub struct Tokenizer<'a> {
    text: &'a str,
    at: usize,
    raw: Option<Tag>,
    /// False once no end of a comment follows any more.
    comments_end: bool,
}

impl<'a> Tokenizer<'a> {
    /// A tokenizer at the start of a page.
    pub fn new(text: &'a str) -> Self {
        Tokenizer { text, at: 0, raw: None, comments_end: true }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.at
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// The content of a raw element: up to `</name` and a character that ends a name.
    fn raw_text(&mut self, tag: Tag) -> &'a str {
        let start = self.at;
        let bytes = self.bytes();
        let name = tag.name().as_bytes();
        let mut from = start;
        let end = loop {
            let Some(found) = memchr::memmem::find(&bytes[from..], b"</") else { break bytes.len() };
            let at = from + found;
            let after = &bytes[at + 2..];
            if tag != Tag::Plaintext
                && after.get(..name.len()).is_some_and(|n| n.eq_ignore_ascii_case(name))
                && after.get(name.len()).is_none_or(|b| ends_name(*b))
            {
                break at;
            }
            from = at + 2;
        };
        self.at = end;
        &self.text[start..end]
    }

    /// Passes over `<!...>`: a comment, a declaration, or CDATA, whose content is markup here.
    fn declaration(&mut self) {
        let bytes = self.bytes();
        let rest = &bytes[self.at..];
        if rest.starts_with(b"<!--") {
            // `<!-->` and `<!--->` are whole comments.
            for short in [&b"<!-->"[..], b"<!--->"] {
                if rest.starts_with(short) {
                    self.at += short.len();
                    return;
                }
            }
            // Looking for an end that is not there once is enough.
            let end = if self.comments_end { comment_end(&rest[4..]) } else { None };
            self.comments_end &= end.is_some();
            self.at = end.map_or(bytes.len(), |e| self.at + 4 + e);
            return;
        }
        if rest.starts_with(b"<![CDATA[") {
            self.at += 9;
            return;
        }
        self.at = memchr::memchr(b'>', rest).map_or(bytes.len(), |e| self.at + e + 1);
    }

    /// Reads a tag behind its `<` or `</`: None at the end of the page.
    fn tag(&mut self, start: usize) -> Option<(Tag, Attributes<'a>, bool)> {
        let bytes = self.bytes();
        let mut at = run_end(bytes, start, |b| !ends_name(b));
        let tag = Tag::of(&bytes[start..at]);
        let mut attributes = Attributes::default();
        let mut self_closing = false;
        loop {
            at = run_end(bytes, at, is_space);
            match bytes.get(at) {
                None => {
                    self.at = bytes.len();
                    return None;
                }
                Some(b'>') => {
                    self.at = at + 1;
                    return Some((tag, attributes, self_closing));
                }
                Some(b'/') => {
                    self_closing = true;
                    at += 1;
                    continue;
                }
                Some(_) => self_closing = false,
            }
            let name = at;
            at = run_end(bytes, at + 1, |b| !ends_name(b) && b != b'=');
            let name = &bytes[name..at];
            at = run_end(bytes, at, is_space);
            let mut value = "";
            if bytes.get(at) == Some(&b'=') {
                at = run_end(bytes, at + 1, is_space);
                match bytes.get(at) {
                    Some(quote @ (b'"' | b'\'')) => {
                        at += 1;
                        let Some(end) = memchr::memchr(*quote, &bytes[at..]) else {
                            self.at = bytes.len();
                            return None;
                        };
                        value = &self.text[at..at + end];
                        at += end + 1;
                    }
                    Some(b'>') | None => {}
                    Some(_) => {
                        let start = at;
                        at = run_end(bytes, at, |b| !is_space(b) && b != b'>');
                        value = &self.text[start..at];
                    }
                }
            }
            attributes.set(name, value);
        }
    }
}

/// White space of the standard.
fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | 12 | b'\r' | b' ')
}

/// Whether a byte ends the name of an element.
fn ends_name(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b'/' | b'>')
}

/// The end of the run of bytes from `at` that `holds` accepts.
fn run_end(bytes: &[u8], at: usize, holds: impl Fn(u8) -> bool) -> usize {
    at + bytes[at..].iter().take_while(|byte| holds(**byte)).count()
}

/// Bytes up to behind the end of a comment: `-->` or `--!>`.
fn comment_end(rest: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr::memmem::find(&rest[from..], b"--")?;
        match rest.get(at + 2) {
            Some(b'>') => return Some(at + 3),
            Some(b'!') if rest.get(at + 3) == Some(&b'>') => return Some(at + 4),
            _ => from = at + 1,
        }
    }
}

impl<'a> Iterator for Tokenizer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        if let Some(tag) = self.raw.take() {
            let text = self.raw_text(tag);
            if !text.is_empty() {
                return Some(Token::Raw(text));
            }
        }
        let bytes = self.bytes();
        while self.at < bytes.len() {
            let start = self.at;
            let mut from = start;
            // The next `<` that begins markup.
            let markup = loop {
                let Some(found) = memchr::memchr(b'<', &bytes[from..]) else { break bytes.len() };
                let at = from + found;
                let begins = match bytes.get(at + 1) {
                    Some(b) if b.is_ascii_alphabetic() => true,
                    Some(b'!' | b'?') => true,
                    Some(b'/') => bytes.get(at + 2).is_some(),
                    _ => false,
                };
                if begins {
                    break at;
                }
                from = at + 1;
            };
            if markup > start {
                self.at = markup;
                return Some(Token::Text(&self.text[start..markup]));
            }
            match bytes[start + 1] {
                b'!' => self.declaration(),
                b'/' if bytes[start + 2].is_ascii_alphabetic() => {
                    let (tag, _, _) = self.tag(start + 2)?;
                    return Some(Token::End(tag));
                }
                b'?' | b'/' => {
                    self.at = memchr::memchr(b'>', &bytes[start..]).map_or(bytes.len(), |e| start + e + 1)
                }
                _ => {
                    let (tag, attributes, self_closing) = self.tag(start + 1)?;
                    if tag.is_raw() {
                        self.raw = Some(tag);
                    }
                    return Some(Token::Start { tag, attributes, self_closing });
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(page: &str) -> String {
        Tokenizer::new(page)
            .map(|t| match t {
                Token::Start { tag, attributes, .. } => {
                    let class = attributes.class.map(|c| format!(".{c}")).unwrap_or_default();
                    let href = attributes.href.map(|c| format!("@{c}")).unwrap_or_default();
                    format!("<{}{class}{href}>", tag.name())
                }
                Token::End(tag) => format!("</{}>", tag.name()),
                Token::Text(t) => format!("[{t}]"),
                Token::Raw(t) => format!("({t})"),
            })
            .collect()
    }

    #[test]
    fn tags_text_and_what_only_looks_so() {
        for (page, wanted) in [
            ("a<b>c</b>", "[a]<b>[c]</b>"),
            ("<!DOCTYPE html><P CLASS=x>1 < 2 &lt; 3<5</P >", "<p.x>[1 < 2 &lt; 3<5]</p>"),
            ("<a href='x>y' class=\"b c\" href=z/>t", "<a.b c@x>y>[t]"),
            ("<a href = q class>", "<a.@q>"),
            ("<a/class=x/href=y>", "<a.x/href=y>"),
            ("<script>if (a</b>) '</scrip>' </SCRIPT >x", "<script>(if (a</b>) '</scrip>' )</script>[x]"),
            ("<title></title>x", "<title></title>[x]"),
            ("a<!-- <b> -- > -->b<!-->c<!--->d<!-- --!>e<!-- x", "[a][b][c][d][e]"),
            ("<?php ?>a</ b>c</>d<", "[a][c][d<]"),
            ("x<b y", "[x]"),
            ("<textarea><b></textarea", "<textarea>(<b>)"),
            ("<my-tag>x</my-tag>", "<?>[x]</?>"),
            ("<![CDATA[x]]>", "[x]]>]"),
            ("<p a=\"unclosed>x</p>", ""),
        ] {
            assert_eq!(shown(page), wanted, "{page}");
        }
    }
}
