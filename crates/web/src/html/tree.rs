//! The tree of a page: nodes in the order of the page, each with its parent and the end of its subtree, so that
//! every walk is a loop over a vector.

use super::tag::Tag;
use super::tokenizer::{Attributes, Token, Tokenizer};

/// Limits on the cost of a page. All work is linear in bytes and nodes, and results never depend on how busy a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HtmlLimits {
    /// Bytes of the page.
    pub max_bytes: usize,
    /// Elements inside each other.
    pub max_depth: usize,
    /// Elements and texts.
    pub max_nodes: usize,
}

impl Default for HtmlLimits {
    fn default() -> Self {
        HtmlLimits { max_bytes: 16 << 20, max_depth: 10_000, max_nodes: 2_000_000 }
    }
}

/// Why a page has no tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HtmlError {
    /// More bytes than allowed.
    #[error("the page has {0} bytes; at most {1} are read")]
    TooLarge(usize, usize),
    /// Elements nested deeper than allowed.
    #[error("elements are nested more than {0} deep")]
    TooDeep(usize),
    /// More nodes than allowed.
    #[error("the page has more than {0} elements and texts")]
    TooMany(usize),
}

impl HtmlError {
    /// The verdict under which such a page is counted.
    pub fn verdict(self) -> &'static str {
        match self {
            HtmlError::TooLarge(..) | HtmlError::TooMany(_) => "extract-too-large",
            HtmlError::TooDeep(_) => "extract-too-deep",
        }
    }
}

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind<'a> {
    /// An element and its attributes.
    Element(Tag, Attributes<'a>),
    /// Text with its character references.
    Text(&'a str),
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node<'a> {
    /// The element it is in; the root is its own parent.
    pub parent: u32,
    /// One past the last node inside it.
    pub end: u32,
    /// Element or text.
    pub kind: NodeKind<'a>,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document<'a> {
    /// All nodes in the order of the page; the first is the root.
    pub nodes: Vec<Node<'a>>,
    /// The text of the first `<title>`, with its references.
    pub title: Option<&'a str>,
}

/// How far up an end tag looks for its element past others that it must not close.
const REACH: usize = 512;

struct Builder<'a> {
    nodes: Vec<Node<'a>>,
    /// Open elements, outermost first.
    stack: Vec<(u32, Tag)>,
    /// How many of each are open.
    open: [u32; Tag::COUNT],
    limits: HtmlLimits,
}

impl<'a> Builder<'a> {
    fn push(&mut self, kind: NodeKind<'a>) -> Result<u32, HtmlError> {
        if self.nodes.len() >= self.limits.max_nodes {
            return Err(HtmlError::TooMany(self.limits.max_nodes));
        }
        let at = self.nodes.len() as u32;
        let parent = self.stack.last().map_or(0, |(node, _)| *node);
        self.nodes.push(Node { parent, end: at + 1, kind });
        Ok(at)
    }

    fn open(&mut self, tag: Tag, attributes: Attributes<'a>) -> Result<(), HtmlError> {
        let node = self.push(NodeKind::Element(tag, attributes))?;
        if self.stack.len() >= self.limits.max_depth {
            return Err(HtmlError::TooDeep(self.limits.max_depth));
        }
        self.stack.push((node, tag));
        self.open[tag as usize] += 1;
        Ok(())
    }

    /// Closes elements until `depth` are open. The root stays.
    fn close_to(&mut self, depth: usize) {
        while self.stack.len() > depth.max(1) {
            if let Some((node, tag)) = self.stack.pop() {
                self.nodes[node as usize].end = self.nodes.len() as u32;
                self.open[tag as usize] -= 1;
            }
        }
    }

    /// Index in the stack of the innermost open element that `wanted` accepts, unless one that `barrier` accepts
    /// lies further in.
    fn innermost(&self, wanted: impl Fn(Tag) -> bool, barrier: impl Fn(Tag) -> bool) -> Option<usize> {
        for (at, (_, tag)) in self.stack.iter().enumerate().rev().take(REACH) {
            if wanted(*tag) {
                return Some(at);
            }
            if barrier(*tag) {
                return None;
            }
        }
        None
    }

    fn is_open(&self, tag: Tag) -> bool {
        self.open[tag as usize] > 0
    }

    /// Closes what a start tag ends without saying so.
    fn imply(&mut self, tag: Tag) {
        use Tag::*;
        if tag.ends_paragraph()
            && self.is_open(P)
            && let Some(at) = self.innermost(|t| t == P, Tag::is_scope)
        {
            self.close_to(at);
        }
        let found = match tag {
            Li if self.is_open(Li) => {
                self.innermost(|t| t == Li, |t| t.is_scope() || matches!(t, Ul | Ol | Menu | Dir))
            }
            Dd | Dt => self.innermost(|t| matches!(t, Dd | Dt), |t| t.is_scope() || t == Dl),
            Td | Th => self.innermost(|t| matches!(t, Td | Th), |t| matches!(t, Tr | Table | Template)),
            Tr => self.innermost(|t| t == Tr, |t| matches!(t, Table | Template)),
            Tbody | Thead | Tfoot => self.innermost(
                |t| matches!(t, Tbody | Thead | Tfoot | Caption | Colgroup),
                |t| matches!(t, Table | Template),
            ),
            Option_ | Optgroup => {
                self.innermost(|t| t == Option_, |t| t == Select || t.is_block() && t != Option_)
            }
            H1 | H2 | H3 | H4 | H5 | H6 => {
                let top = self.stack.len() - 1;
                self.stack[top].1.heading().map(|_| top)
            }
            A if self.is_open(A) => self.innermost(|t| t == A, Tag::is_block),
            Body => self.innermost(|t| t == Head, |_| false),
            _ => None,
        };
        if let Some(at) = found {
            self.close_to(at);
        }
    }

    fn start(&mut self, tag: Tag, attributes: Attributes<'a>, self_closing: bool) -> Result<(), HtmlError> {
        // A second <html> or <body> opens nothing.
        if matches!(tag, Tag::Html | Tag::Body) && self.is_open(tag) {
            return Ok(());
        }
        // Content ends a head that nobody closed.
        if self.is_open(Tag::Head)
            && tag.is_block()
            && !matches!(tag, Tag::Head | Tag::Title)
            && let Some(at) = self.innermost(|t| t == Tag::Head, |_| false)
        {
            self.close_to(at);
        }
        self.imply(tag);
        // `<svg .../>` and what is inside it may close themselves; in HTML only void elements do.
        if tag.is_void() || self_closing && matches!(tag, Tag::Svg | Tag::Math | Tag::Other) {
            self.push(NodeKind::Element(tag, attributes))?;
            return Ok(());
        }
        self.open(tag, attributes)
    }

    fn end(&mut self, tag: Tag) -> Result<(), HtmlError> {
        if tag == Tag::Br {
            self.push(NodeKind::Element(Tag::Br, Attributes::default()))?;
            return Ok(());
        }
        // What follows </body> still belongs to the page.
        let open = self.is_open(tag) || tag.heading().is_some();
        if !open || matches!(tag, Tag::Html | Tag::Body) {
            return Ok(());
        }
        let found = if tag.heading().is_some() {
            self.innermost(|t| t.heading().is_some(), Tag::is_scope)
        } else if matches!(
            tag,
            Tag::Table | Tag::Tbody | Tag::Thead | Tag::Tfoot | Tag::Tr | Tag::Td | Tag::Th
        ) {
            self.innermost(|t| t == tag, |t| t == Tag::Table || t == Tag::Template)
        } else if tag.is_block() || tag.is_scope() || tag == Tag::Select {
            self.innermost(|t| t == tag, |t| t.is_scope() && t != tag)
        } else {
            // The end of a <b> does not close the paragraph that was begun inside it.
            self.innermost(|t| t == tag, |t| t.is_block())
        };
        if let Some(at) = found {
            self.close_to(at);
        }
        Ok(())
    }
}

impl<'a> Document<'a> {
    /// Builds the tree.
    ///
    /// # Errors
    /// The page exceeds a limit.
    pub fn parse(page: &'a str, limits: &HtmlLimits) -> Result<Document<'a>, HtmlError> {
        // Node numbers are u32, and a page has at most one node a byte.
        let most = limits.max_bytes.min(u32::MAX as usize - 1);
        if page.len() > most {
            return Err(HtmlError::TooLarge(page.len(), most));
        }
        let mut builder = Builder {
            nodes: Vec::with_capacity(page.len() / 48 + 1),
            stack: Vec::new(),
            open: [0; Tag::COUNT],
            limits: *limits,
        };
        builder.nodes.push(Node {
            parent: 0,
            end: 1,
            kind: NodeKind::Element(Tag::Other, Attributes::default()),
        });
        builder.stack.push((0, Tag::Other));
        builder.open[Tag::Other as usize] += 1;
        let mut title = None;
        for token in Tokenizer::new(page) {
            match token {
                Token::Start { tag, attributes, self_closing } => {
                    builder.start(tag, attributes, self_closing)?
                }
                Token::End(tag) => builder.end(tag)?,
                Token::Text(text) => {
                    builder.push(NodeKind::Text(text))?;
                }
                Token::Raw(text) => {
                    let inside = builder.stack.last().map(|(_, tag)| *tag);
                    if inside == Some(Tag::Title) && !builder.is_open(Tag::Svg) && title.is_none() {
                        title = Some(text);
                    }
                    if matches!(inside, Some(Tag::Xmp | Tag::Plaintext)) {
                        builder.push(NodeKind::Text(text))?;
                    }
                }
            }
        }
        builder.close_to(1);
        builder.nodes[0].end = builder.nodes.len() as u32;
        Ok(Document { nodes: builder.nodes, title })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The tree as nested names and texts.
    fn shown(page: &str) -> String {
        let d = Document::parse(page, &HtmlLimits::default()).unwrap();
        let mut out = String::new();
        let mut ends: Vec<u32> = Vec::new();
        for (i, n) in d.nodes.iter().enumerate().skip(1) {
            while ends.last().is_some_and(|e| *e <= i as u32) {
                out.push(')');
                ends.pop();
            }
            match n.kind {
                NodeKind::Element(tag, _) => {
                    out.push_str(tag.name());
                    out.push('(');
                    ends.push(n.end);
                }
                NodeKind::Text(t) => out.push_str(t.trim()),
            }
        }
        out.extend(ends.iter().map(|_| ')'));
        out
    }

    #[test]
    fn tags_that_are_left_out_are_implied() {
        for (page, wanted) in [
            ("<p>a<p>b<div>c</div>d", "p(a)p(b)div(c)d"),
            ("<ul><li>a<li>b<ul><li>c</ul></ul>d", "ul(li(a)li(bul(li(c))))d"),
            ("<table><tr><td>a<td>b<tr><th>c</table>d", "table(tr(td(a)td(b))tr(th(c)))d"),
            ("<table><tr><td><div>a</table>b", "table(tr(td(div(a))))b"),
            ("<dl><dt>a<dd>b<dt>c</dl>", "dl(dt(a)dd(b)dt(c))"),
            ("<b>a<p>b</b>c</p>d", "b(ap(bc)d)"),
            ("<div><span>a</div>b</span>c", "div(span(a))bc"),
            ("<td></div>a</td>b", "td(a)b"),
            ("<div><table><tr><td></div>a</td></table>b</div>", "div(table(tr(td(a)))b)"),
            ("<head><title>t</title><p>a", "head(title())p(a)"),
            ("<h1>a<h2>b</h3>c", "h1(a)h2(b)c"),
            ("<a href=x>a<a href=y>b</a>c", "a(a)a(b)c"),
            ("<br/>a</br>b<div/>c</div>", "br()abr()bdiv(c)"),
            ("<select><option>a<option>b</select>c", "select(option(a)option(b))c"),
            ("<html><body>a</body></html>b<body>c", "html(body(abc))"),
        ] {
            assert_eq!(shown(page), wanted, "{page}");
        }
    }

    #[test]
    fn depth_bytes_and_nodes_are_bounded() {
        let deep = "<div>".repeat(100_000);
        let at_most = |depth| HtmlLimits { max_depth: depth, ..HtmlLimits::default() };
        assert_eq!(Document::parse(&deep, &at_most(5000)), Err(HtmlError::TooDeep(5000)));
        let d = Document::parse(&deep, &at_most(200_000)).unwrap();
        assert_eq!((d.nodes.len(), d.nodes[1].end), (100_001, 100_001));
        let few = HtmlLimits { max_nodes: 10, ..HtmlLimits::default() };
        assert_eq!(Document::parse(&"<br>".repeat(10), &few), Err(HtmlError::TooMany(10)));
        let small = HtmlLimits { max_bytes: 10, ..HtmlLimits::default() };
        assert_eq!(Document::parse("12345678901", &small), Err(HtmlError::TooLarge(11, 10)));
    }

    /// Any order of tags and scraps of markup.
    pub(crate) fn soup() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            3 => prop::sample::select(vec![
                "<p>", "</p>", "<div class='x'>", "</div>", "<table>", "<tr>", "<td>", "</table>", "<li>", "<ul>",
                "</ul>", "<a href='y'>", "</a>", "<b>", "</b>", "<br>", "<pre>", "</pre>", "<h2>", "</h1>", "<script>",
                "</script>", "<!--", "-->", "<", ">", "&", "&amp;", "&#", "\"", "'", "<article>", "</article>",
                "<body>", "</html>", "<svg/>", "<title>", "</title>", "<select>", "<option>", "\0", "é", "日本", "<!",
                "<a b=\"", "<template>", "</template>",
            ])
            .prop_map(String::from),
            1 => "[ -~\\PC]{0,12}",
        ];
        prop::collection::vec(piece, 0..60).prop_map(|v| v.concat())
    }

    proptest! {
        #[test]
        fn subtrees_are_ranges(page in soup()) {
            let d = Document::parse(&page, &HtmlLimits::default()).unwrap();
            for (i, n) in d.nodes.iter().enumerate().skip(1) {
                prop_assert!(n.parent < i as u32);
                prop_assert!(n.end > i as u32 && n.end <= d.nodes[n.parent as usize].end);
            }
            prop_assert_eq!(d.nodes[0].end as usize, d.nodes.len());
        }

        #[test]
        fn fuzz_html_arbitrary_text(page in "\\PC{0,300}") {
            let _ = Document::parse(&page, &HtmlLimits::default());
            super::super::decode_references(&page);
        }
    }
}
