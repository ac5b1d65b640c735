//! Elements by name, and the classes of them that the tree and the extraction ask about.

/// Begins and ends a line of text, and ends an open paragraph.
const BLOCK: u8 = 1;
/// Begins and ends a line of text, and leaves an open paragraph open: parts of tables, lists of choices and the page itself.
const PART: u8 = 1 << 1;
/// Has no content and no end tag.
const VOID: u8 = 1 << 2;
/// Has text as its content up to the end tag, whatever it looks like.
const RAW: u8 = 1 << 3;
/// Keeps end tags inside from closing what is outside (the standard's scope).
const SCOPE: u8 = 1 << 4;
/// Is no part of the text that a reader sees.
const UNSEEN: u8 = 1 << 5;

macro_rules! tags {
    ($($variant:ident $name:literal $($class:ident)*),* $(,)?) => {
        /// An element's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)] // the names of the standard
        pub enum Tag { $($variant,)* Other }

        impl Tag {
            /// Number of names.
            pub(crate) const COUNT: usize = Tag::Other as usize + 1;

            /// Classes of each element.
            const CLASSES: [u8; Tag::COUNT] = [$(0 $(| $class)*,)* 0];

            fn of_lower(name: &[u8]) -> Tag {
                match std::str::from_utf8(name).unwrap_or_default() {
                    $($name => Tag::$variant,)*
                    _ => Tag::Other,
                }
            }

            /// The name, `?` for one that is not in the list.
            pub fn name(self) -> &'static str {
                match self { $(Tag::$variant => $name,)* Tag::Other => "?" }
            }
        }
    };
}

tags! {
    A "a", Abbr "abbr", Address "address" BLOCK, Area "area" VOID, Article "article" BLOCK,
    Annotation "annotation xml" SCOPE, Applet "applet" SCOPE, Aside "aside" BLOCK, Audio "audio" UNSEEN, B "b", Base "base" VOID,
    Basefont "basefont" VOID, Bgsound "bgsound" VOID, Big "big", Blockquote "blockquote" BLOCK,
    Body "body" PART, Br "br" VOID, Button "button" UNSEEN, Canvas "canvas" UNSEEN,
    Caption "caption" PART SCOPE, Center "center" BLOCK, Cite "cite", Code "code", Col "col" VOID,
    Colgroup "colgroup", Datalist "datalist" UNSEEN, Dd "dd" BLOCK, Del "del", Details "details" BLOCK,
    Dialog "dialog" BLOCK UNSEEN, Dir "dir" BLOCK, Div "div" BLOCK, Dl "dl" BLOCK, Dt "dt" BLOCK, Em "em",
    Embed "embed" VOID UNSEEN, Fieldset "fieldset" BLOCK, Figcaption "figcaption" BLOCK,
    Figure "figure" BLOCK, Font "font", Footer "footer" BLOCK, Form "form" BLOCK, Frame "frame" VOID,
    Frameset "frameset" PART, H1 "h1" BLOCK, H2 "h2" BLOCK, H3 "h3" BLOCK, H4 "h4" BLOCK, H5 "h5" BLOCK,
    H6 "h6" BLOCK, Head "head" PART UNSEEN, Header "header" BLOCK, Hgroup "hgroup" BLOCK, Hr "hr" BLOCK VOID,
    Html "html" PART SCOPE, HtmlPoint "html point" SCOPE, I "i", Iframe "iframe" RAW UNSEEN, Image "image" VOID, Img "img" VOID, Input "input" VOID, Ins "ins",
    Kbd "kbd", Label "label", Legend "legend" PART, Li "li" BLOCK, Link "link" VOID, Listing "listing" BLOCK,
    Main "main" BLOCK, Map "map" UNSEEN, Mark "mark", Marquee "marquee" SCOPE, Math "math",
    MathPart "math part", MathText "math text" SCOPE, Menu "menu" BLOCK, Meta "meta" VOID,
    Nav "nav" BLOCK, Nobr "nobr", Noembed "noembed" RAW UNSEEN, Noframes "noframes" RAW UNSEEN, Noscript "noscript" RAW UNSEEN,
    Object "object" SCOPE UNSEEN, Ol "ol" BLOCK, Optgroup "optgroup" PART, Option_ "option" PART, P "p" BLOCK,
    Param "param" VOID, Picture "picture", Plaintext "plaintext" BLOCK RAW, Pre "pre" BLOCK, Q "q",
    Rb "rb", Rp "rp" UNSEEN, Rt "rt" UNSEEN, Rtc "rtc" UNSEEN, Ruby "ruby", S "s",
    Samp "samp", Script "script" RAW UNSEEN, Search "search" BLOCK, Section "section" BLOCK, Select "select" SCOPE UNSEEN, Small "small",
    Source "source" VOID, Span "span", Strike "strike", Strong "strong", Style "style" RAW UNSEEN, Sub "sub",
    Summary "summary" BLOCK, Sup "sup", Svg "svg" UNSEEN, SvgPart "svg part", Table "table" BLOCK SCOPE, Tbody "tbody" PART,
    Td "td" PART SCOPE, Template "template" SCOPE UNSEEN, Textarea "textarea" RAW UNSEEN, Tfoot "tfoot" PART,
    Th "th" PART SCOPE, Thead "thead" PART, Time "time", Title "title" PART RAW UNSEEN, Tr "tr" PART,
    Track "track" VOID, Tt "tt", U "u", Ul "ul" BLOCK, Var "var", Video "video" UNSEEN, Wbr "wbr" VOID,
    Xmp "xmp" BLOCK RAW,
}

// Names with a space are no names of the page. They stand for the elements of SVG and MathML inside `svg` and `math`: HtmlPoint
// and MathText for those whose content is HTML again (the standard's integration points), Annotation for an
// `annotation-xml` of another kind, SvgPart and MathPart for all others.

impl Tag {
    /// The element of a name in any case.
    pub fn of(name: &[u8]) -> Tag {
        let mut lower = [0u8; 10];
        let Some(lower) = lower.get_mut(..name.len()) else { return Tag::Other };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        Tag::of_lower(lower)
    }

    fn is(self, classes: u8) -> bool {
        Tag::CLASSES[self as usize] & classes != 0
    }

    /// Elements without content and end tag.
    pub fn is_void(self) -> bool {
        self.is(VOID)
    }

    /// Elements whose content is text up to their end tag, whatever it looks like.
    pub fn is_raw(self) -> bool {
        self.is(RAW)
    }

    /// Elements that begin and end a line of text.
    pub fn is_block(self) -> bool {
        self.is(BLOCK | PART)
    }

    /// Block elements whose start tag ends an open paragraph.
    pub(crate) fn ends_paragraph(self) -> bool {
        self.is(BLOCK)
    }

    /// The level of a heading.
    pub fn heading(self) -> Option<u8> {
        (Tag::H1..=Tag::H6).contains(&self).then(|| self as u8 - Tag::H1 as u8 + 1)
    }

    /// Elements that keep end tags inside them from closing what is outside.
    pub(crate) fn is_scope(self) -> bool {
        self.is(SCOPE)
    }

    /// Elements that keep the end tags of inline elements from closing what is outside (the standard's special elements).
    pub(crate) fn is_special(self) -> bool {
        use Tag::*;
        self.is(BLOCK | PART | SCOPE) && !matches!(self, Dialog | Legend | Optgroup | Option_)
            || matches!(self, Button | Colgroup)
    }

    /// Elements of SVG and MathML.
    pub(crate) fn is_foreign(self) -> bool {
        use Tag::*;
        matches!(self, Svg | SvgPart | Math | MathPart | MathText | HtmlPoint | Annotation)
    }

    /// Elements of SVG and MathML whose start tags are those of SVG and MathML too.
    pub(crate) fn holds_foreign(self) -> bool {
        matches!(self, Tag::Svg | Tag::SvgPart | Tag::Math | Tag::MathPart)
    }

    /// Elements of HTML whose start tag ends SVG and MathML that was never closed; `font` only with attributes of its own.
    pub(crate) fn breaks_out(self) -> bool {
        use Tag::*;
        self.heading().is_some()
            || matches!(
                self,
                B | Big
                    | Blockquote
                    | Body
                    | Br
                    | Center
                    | Code
                    | Dd
                    | Div
                    | Dl
                    | Dt
                    | Em
                    | Embed
                    | Head
                    | Hr
                    | I
                    | Img
                    | Li
                    | Listing
                    | Menu
                    | Meta
                    | Nobr
                    | Ol
                    | P
                    | Pre
                    | Ruby
                    | S
                    | Small
                    | Span
                    | Strike
                    | Strong
                    | Sub
                    | Sup
                    | Table
                    | Tt
                    | U
                    | Ul
                    | Var
            )
    }

    /// Elements that stay in the head of a page.
    pub(crate) fn is_head(self) -> bool {
        use Tag::*;
        matches!(
            self,
            Base | Basefont
                | Bgsound
                | Head
                | Html
                | Link
                | Meta
                | Noframes
                | Noscript
                | Script
                | Style
                | Template
                | Title
        )
    }

    /// Elements whose end tag may be left out before the end of what holds them.
    pub(crate) fn has_implied_end(self) -> bool {
        use Tag::*;
        matches!(self, Dd | Dt | Li | Optgroup | Option_ | P | Rb | Rp | Rt | Rtc)
    }

    /// Elements that are no part of the text that a reader sees.
    pub fn is_invisible(self) -> bool {
        self.is(UNSEEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_case_and_long_ones_are_other() {
        assert_eq!(Tag::of(b"BlockQuote"), Tag::Blockquote);
        assert_eq!(Tag::of(b"figcaption").name(), "figcaption");
        assert_eq!(Tag::of(b"figcaptions"), Tag::Other);
        assert_eq!(Tag::of(b"\xff"), Tag::Other);
        assert_eq!(
            [Tag::H1, Tag::H6, Tag::Head, Tag::Other].map(Tag::heading),
            [Some(1), Some(6), None, None]
        );
    }
}
