//! Elements by name, and the classes of them that the tree and the extraction ask about.

macro_rules! tags {
    ($($variant:ident $name:literal),* $(,)?) => {
        /// An element's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)] // the names of the standard
        pub enum Tag { $($variant,)* Other }

        impl Tag {
            /// Number of names.
            pub(crate) const COUNT: usize = Tag::Other as usize + 1;

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
    A "a", Abbr "abbr", Address "address", Area "area", Article "article", Aside "aside", Audio "audio", B "b",
    Base "base", Blockquote "blockquote", Body "body", Br "br", Button "button", Canvas "canvas",
    Caption "caption", Center "center", Cite "cite", Code "code", Col "col", Colgroup "colgroup", Datalist "datalist",
    Dd "dd", Del "del", Details "details", Dialog "dialog", Dir "dir", Div "div", Dl "dl", Dt "dt", Em "em",
    Embed "embed", Fieldset "fieldset", Figcaption "figcaption", Figure "figure", Font "font", Footer "footer",
    Form "form", Frame "frame", Frameset "frameset", H1 "h1", H2 "h2", H3 "h3", H4 "h4", H5 "h5", H6 "h6",
    Head "head", Header "header", Hgroup "hgroup", Hr "hr", Html "html", I "i", Iframe "iframe", Img "img",
    Input "input", Ins "ins", Kbd "kbd", Label "label", Legend "legend", Li "li", Link "link", Listing "listing",
    Main "main", Map "map", Mark "mark", Math "math", Menu "menu", Meta "meta", Nav "nav", Noembed "noembed",
    Noframes "noframes", Noscript "noscript", Object "object", Ol "ol", Optgroup "optgroup", Option_ "option",
    P "p", Param "param", Picture "picture", Plaintext "plaintext", Pre "pre", Q "q", S "s", Samp "samp",
    Script "script", Section "section", Select "select", Small "small", Source "source", Span "span",
    Strike "strike", Strong "strong", Style "style", Sub "sub", Summary "summary", Sup "sup", Svg "svg",
    Table "table", Tbody "tbody", Td "td", Template "template", Textarea "textarea", Tfoot "tfoot", Th "th",
    Thead "thead", Time "time", Title "title", Tr "tr", Track "track", Tt "tt", U "u", Ul "ul", Var "var",
    Video "video", Wbr "wbr", Xmp "xmp",
}

impl Tag {
    /// The element of a name in any case.
    pub fn of(name: &[u8]) -> Tag {
        let mut lower = [0u8; 10];
        let Some(lower) = lower.get_mut(..name.len()) else { return Tag::Other };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        Tag::of_lower(lower)
    }

    /// Elements without content and end tag.
    pub fn is_void(self) -> bool {
        use Tag::*;
        matches!(
            self,
            Area | Base
                | Br
                | Col
                | Embed
                | Frame
                | Hr
                | Img
                | Input
                | Link
                | Meta
                | Param
                | Source
                | Track
                | Wbr
        )
    }

    /// Elements whose content is text up to their end tag, whatever it looks like.
    pub fn is_raw(self) -> bool {
        use Tag::*;
        matches!(self, Script | Style | Textarea | Title | Xmp | Iframe | Noembed | Noframes | Plaintext)
    }

    /// Elements that begin and end a line of text.
    pub fn is_block(self) -> bool {
        use Tag::*;
        matches!(
            self,
            Address
                | Article
                | Aside
                | Blockquote
                | Body
                | Caption
                | Center
                | Dd
                | Details
                | Dialog
                | Dir
                | Div
                | Dl
                | Dt
                | Fieldset
                | Figcaption
                | Figure
                | Footer
                | Form
                | Frameset
                | H1
                | H2
                | H3
                | H4
                | H5
                | H6
                | Header
                | Hgroup
                | Hr
                | Html
                | Legend
                | Li
                | Listing
                | Main
                | Menu
                | Nav
                | Ol
                | Optgroup
                | Option_
                | P
                | Plaintext
                | Pre
                | Section
                | Summary
                | Table
                | Tbody
                | Td
                | Tfoot
                | Th
                | Thead
                | Tr
                | Ul
                | Xmp
                | Head
                | Title
        )
    }

    /// Block elements whose start tag ends an open paragraph.
    pub(crate) fn ends_paragraph(self) -> bool {
        use Tag::*;
        self.is_block()
            && !matches!(
                self,
                Body | Caption
                    | Html
                    | Head
                    | Title
                    | Legend
                    | Optgroup
                    | Option_
                    | Tbody
                    | Td
                    | Tfoot
                    | Th
                    | Thead
                    | Tr
                    | Frameset
            )
    }

    /// The level of a heading.
    pub fn heading(self) -> Option<u8> {
        use Tag::*;
        match self {
            H1 => Some(1),
            H2 => Some(2),
            H3 => Some(3),
            H4 => Some(4),
            H5 => Some(5),
            H6 => Some(6),
            _ => None,
        }
    }

    /// Elements that keep end tags inside them from closing what is outside.
    pub(crate) fn is_scope(self) -> bool {
        use Tag::*;
        matches!(self, Caption | Html | Table | Td | Th | Object | Template | Button)
    }

    /// Elements that are no part of the text that a reader sees.
    pub fn is_invisible(self) -> bool {
        use Tag::*;
        matches!(
            self,
            Script
                | Style
                | Template
                | Noscript
                | Svg
                | Iframe
                | Object
                | Embed
                | Canvas
                | Audio
                | Video
                | Map
                | Select
                | Datalist
                | Button
                | Textarea
                | Noembed
                | Noframes
                | Head
                | Title
                | Dialog
        )
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
    }
}
