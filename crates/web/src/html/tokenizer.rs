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

/// Facts in the attributes of a start tag that only the tree asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagHints {
    /// A `color`, `face` or `size`, with which a `font` inside SVG is an element of HTML.
    pub styled: bool,
    /// An `encoding` that makes HTML of the content of MathML's `annotation-xml`.
    pub html_encoding: bool,
    /// A `shadowrootmode`: the template's content is shown.
    pub shadow_root: bool,
}

impl<'a> Attributes<'a> {
    fn set(&mut self, name: &[u8], value: &'a str, hints: &mut TagHints) {
        let mut lower = [0u8; 14];
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
            b"color" | b"face" | b"size" => return hints.styled = true,
            b"encoding" => {
                let html = ["text/html", "application/xhtml+xml"];
                hints.html_encoding |= html.iter().any(|kind| value.eq_ignore_ascii_case(kind));
                return;
            }
            b"shadowrootmode" => {
                hints.shadow_root |= ["open", "closed"].iter().any(|mode| value.eq_ignore_ascii_case(mode));
                return;
            }
            _ => return,
        };
        slot.get_or_insert(value);
    }
}

/// A start tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartTag<'a> {
    /// The element.
    pub tag: Tag,
    /// Its name as it is written.
    pub name: &'a str,
    /// Its attributes.
    pub attributes: Attributes<'a>,
    /// Facts in its attributes that the tree asks for.
    pub hints: TagHints,
    /// Ends in `/>`, which closes an element of SVG or MathML and has no effect in HTML.
    pub self_closing: bool,
}

/// A piece of a page. Text still holds its character references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a token lives on the stack, one at a time")]
pub enum Token<'a> {
    /// A start tag.
    Start(StartTag<'a>),
    /// An end tag.
    End {
        /// The element.
        tag: Tag,
        /// Its name as it is written.
        name: &'a str,
    },
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
    foreign: bool,
    /// False once no end of a comment follows any more.
    comments_end: bool,
}

impl<'a> Tokenizer<'a> {
    /// A tokenizer at the start of a page.
    pub fn new(text: &'a str) -> Self {
        Tokenizer { text, at: 0, raw: None, foreign: false, comments_end: true }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.at
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// Whether the next token is in an element of SVG or MathML: there is CDATA there. If the last token was a start tag of
    /// such an element, its content is no raw text.
    pub(super) fn set_foreign(&mut self, foreign: bool) {
        self.foreign = foreign;
        if foreign {
            self.raw = None;
        }
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
            if tag != Tag::Plaintext && is_named(&bytes[at + 2..], name) {
                break at;
            }
            from = at + 2;
        };
        self.at = end;
        &self.text[start..end]
    }

    /// The content of a script. In what begins with `<!--` and has no `-->` yet, a `<script` begins a part in which
    /// `</script` ends that part only (the standard's escaped and double escaped script data).
    fn script_text(&mut self) -> &'a str {
        #[derive(PartialEq)]
        enum Script {
            Plain,
            Escaped,
            DoubleEscaped,
        }
        let start = self.at;
        let bytes = self.bytes();
        let (mut at, mut state) = (start, Script::Plain);
        let end = loop {
            let rest = &bytes[at..];
            let found = match state {
                Script::Plain => memchr::memchr(b'<', rest),
                _ => memchr::memchr2(b'<', b'-', rest),
            };
            let Some(found) = found else { break bytes.len() };
            at += found;
            let rest = &bytes[at..];
            if state != Script::Plain && rest.starts_with(b"-->") {
                state = Script::Plain;
            } else if state == Script::Plain && rest.starts_with(b"<!--") {
                // The dashes may be those of the end: `<!-->`.
                state = Script::Escaped;
                at += 1;
            } else if rest.starts_with(b"</") && is_named(&rest[2..], b"script") {
                if state != Script::DoubleEscaped {
                    break at;
                }
                state = Script::Escaped;
            } else if state == Script::Escaped && rest[0] == b'<' && is_named(&rest[1..], b"script") {
                state = Script::DoubleEscaped;
            }
            at += 1;
        };
        self.at = end;
        &self.text[start..end]
    }

    /// Passes over `<!...>`: a comment or a declaration. Returns the content of CDATA, which there is in SVG and MathML only.
    fn declaration(&mut self) -> Option<&'a str> {
        let bytes = self.bytes();
        let rest = &bytes[self.at..];
        if rest.starts_with(b"<!--") {
            // `<!-->` and `<!--->` are whole comments.
            for short in [&b"<!-->"[..], b"<!--->"] {
                if rest.starts_with(short) {
                    self.at += short.len();
                    return None;
                }
            }
            // Looking for an end that is not there once is enough.
            let end = if self.comments_end { comment_end(&rest[4..]) } else { None };
            self.comments_end &= end.is_some();
            self.at = end.map_or(bytes.len(), |e| self.at + 4 + e);
            return None;
        }
        if self.foreign && rest.starts_with(b"<![CDATA[") {
            let start = self.at + 9;
            let end = memchr::memmem::find(&bytes[start..], b"]]>");
            self.at = end.map_or(bytes.len(), |e| start + e + 3);
            return Some(&self.text[start..end.map_or(bytes.len(), |e| start + e)]);
        }
        self.at = memchr::memchr(b'>', rest).map_or(bytes.len(), |e| self.at + e + 1);
        None
    }

    /// Reads a start tag behind its `<`, or an end tag behind its `</`: None at the end of the page.
    fn tag(&mut self, start: usize) -> Option<StartTag<'a>> {
        let bytes = self.bytes();
        let mut at = run_end(bytes, start, |b| !ends_name(b));
        let name = &self.text[start..at];
        let tag = Tag::of(name.as_bytes());
        let mut attributes = Attributes::default();
        let mut hints = TagHints::default();
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
                    return Some(StartTag { tag, name, attributes, hints, self_closing });
                }
                Some(b'/') => {
                    self_closing = true;
                    at += 1;
                    continue;
                }
                Some(_) => self_closing = false,
            }
            let key = at;
            at = run_end(bytes, at + 1, |b| !ends_name(b) && b != b'=');
            let key = &bytes[key..at];
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
            attributes.set(key, value, &mut hints);
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

/// Whether bytes begin with a whole name, given in small letters.
fn is_named(bytes: &[u8], name: &[u8]) -> bool {
    bytes.get(..name.len()).is_some_and(|n| n.eq_ignore_ascii_case(name))
        && bytes.get(name.len()).is_none_or(|b| ends_name(*b))
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
            let text = if tag == Tag::Script { self.script_text() } else { self.raw_text(tag) };
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
                b'!' => {
                    if let Some(text) = self.declaration() {
                        return Some(Token::Text(text));
                    }
                }
                b'/' if bytes[start + 2].is_ascii_alphabetic() => {
                    let StartTag { tag, name, .. } = self.tag(start + 2)?;
                    return Some(Token::End { tag, name });
                }
                b'?' | b'/' => {
                    self.at = memchr::memchr(b'>', &bytes[start..]).map_or(bytes.len(), |e| start + e + 1)
                }
                _ => {
                    let start = self.tag(start + 1)?;
                    self.raw = Some(start.tag).filter(|tag| tag.is_raw());
                    return Some(Token::Start(start));
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
                Token::Start(StartTag { tag, attributes, .. }) => {
                    let class = attributes.class.map(|c| format!(".{c}")).unwrap_or_default();
                    let href = attributes.href.map(|c| format!("@{c}")).unwrap_or_default();
                    format!("<{}{class}{href}>", tag.name())
                }
                Token::End { tag, .. } => format!("</{}>", tag.name()),
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
            ("a<![CDATA[x]]>b<![CDATA[", "[a][b]"),
            ("<script><!--<script></script>--></script>x", "<script>(<!--<script></script>-->)</script>[x]"),
            ("<script><!--<script>--></script>x", "<script>(<!--<script>-->)</script>[x]"),
            ("<script><!--></script>x", "<script>(<!-->)</script>[x]"),
            ("<script><!-- <scripts> </script>x", "<script>(<!-- <scripts> )</script>[x]"),
            ("<script><!-- <script> </script>x", "<script>(<!-- <script> </script>x)"),
            ("<p a=\"unclosed>x</p>", ""),
        ] {
            assert_eq!(shown(page), wanted, "{page}");
        }
    }
}
