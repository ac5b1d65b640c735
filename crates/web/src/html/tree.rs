//! The tree of a page: nodes in the order of the page, each with its parent and the end of its subtree, so that
//! every walk is a loop over a vector.

use super::tag::Tag;
use super::tokenizer::{Attributes, StartTag, Token, Tokenizer};

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

/// An element whose end is not reached.
struct OpenElement<'a> {
    node: u32,
    tag: Tag,
    /// The name as it is written, which tells elements apart that have no tag of their own.
    name: &'a str,
}

struct Builder<'a> {
    nodes: Vec<Node<'a>>,
    /// Open elements, outermost first.
    stack: Vec<OpenElement<'a>>,
    /// How many of each are open.
    open: [u32; Tag::COUNT],
    /// Whether a `<head>` may still begin.
    before_head: bool,
    limits: HtmlLimits,
}

impl<'a> Builder<'a> {
    fn push(&mut self, kind: NodeKind<'a>) -> Result<u32, HtmlError> {
        if self.nodes.len() >= self.limits.max_nodes {
            return Err(HtmlError::TooMany(self.limits.max_nodes));
        }
        let at = self.nodes.len() as u32;
        let parent = self.stack.last().map_or(0, |open| open.node);
        self.nodes.push(Node { parent, end: at + 1, kind });
        Ok(at)
    }

    /// Adds an element without content.
    fn push_empty(&mut self, tag: Tag, attributes: Attributes<'a>) -> Result<(), HtmlError> {
        self.push(NodeKind::Element(tag, attributes)).map(drop)
    }

    /// Opens an element, which is `shown` in the tree and `tag` for the rules.
    fn open(&mut self, tag: Tag, shown: Tag, start: &StartTag<'a>) -> Result<(), HtmlError> {
        let node = self.push(NodeKind::Element(shown, start.attributes))?;
        if self.stack.len() >= self.limits.max_depth {
            return Err(HtmlError::TooDeep(self.limits.max_depth));
        }
        self.stack.push(OpenElement { node, tag, name: start.name });
        self.open[tag as usize] += 1;
        Ok(())
    }

    /// Closes elements until `depth` are open. The root stays.
    fn close_to(&mut self, depth: usize) {
        while self.stack.len() > depth.max(1) {
            if let Some(OpenElement { node, tag, .. }) = self.stack.pop() {
                self.nodes[node as usize].end = self.nodes.len() as u32;
                self.open[tag as usize] -= 1;
            }
        }
    }

    /// Index in the stack of the innermost open element that `wanted` accepts, unless one that `barrier` accepts
    /// lies further in.
    fn innermost(&self, wanted: impl Fn(Tag) -> bool, barrier: impl Fn(Tag) -> bool) -> Option<usize> {
        for (at, open) in self.stack.iter().enumerate().rev().take(REACH) {
            if wanted(open.tag) {
                return Some(at);
            }
            if barrier(open.tag) {
                return None;
            }
        }
        None
    }

    /// Closes the innermost open element that `wanted` accepts, unless one that `barrier` accepts lies further in.
    fn close(&mut self, wanted: impl Fn(Tag) -> bool, barrier: impl Fn(Tag) -> bool) {
        if let Some(at) = self.innermost(wanted, barrier) {
            self.close_to(at);
        }
    }

    fn is_open(&self, tag: Tag) -> bool {
        self.open[tag as usize] > 0
    }

    fn is_in_scope(&self, tag: Tag) -> bool {
        self.is_open(tag) && self.innermost(|t| t == tag, Tag::is_scope).is_some()
    }

    /// The innermost open element.
    fn current(&self) -> Tag {
        self.stack.last().map_or(Tag::Other, |open| open.tag)
    }

    /// Closes elements whose end tags may be left out.
    fn close_implied(&mut self, except: Option<Tag>) {
        while self.current().has_implied_end() && Some(self.current()) != except {
            self.close_to(self.stack.len() - 1);
        }
    }

    /// Closes SVG and MathML up to HTML or an element whose content is HTML.
    fn break_out(&mut self) {
        while self.current().holds_foreign() || self.current() == Tag::Annotation {
            self.close_to(self.stack.len() - 1);
        }
    }

    /// Closes what a start tag ends without saying so.
    fn imply(&mut self, tag: Tag) {
        use Tag::*;
        if tag.ends_paragraph() && self.is_open(P) {
            self.close(|t| t == P, |t| t.is_scope() || t == Button);
        }
        // A list's own items end the item before, through what is no part of a list.
        let in_item = |t: Tag| t.is_special() && !matches!(t, Address | Div | P);
        match tag {
            Li if self.is_open(Li) => self.close(|t| t == Li, in_item),
            Dd | Dt => self.close(|t| matches!(t, Dd | Dt), in_item),
            Caption | Colgroup | Tbody | Thead | Tfoot | Tr | Td | Th => self.imply_table(tag),
            // A table right in a table, outside of its cells, ends it.
            Table if self.is_open(Table) => {
                self.close(|t| t == Table, |t| matches!(t, Td | Th | Caption | Template))
            }
            Option_ if self.is_in_scope(Select) => self.close_implied(Some(Optgroup)),
            Optgroup | Hr if self.is_in_scope(Select) => self.close_implied(None),
            Option_ | Optgroup if self.current() == Option_ => self.close_to(self.stack.len() - 1),
            Input if self.is_in_scope(Select) => self.close(|t| t == Select, |_| false),
            Rb | Rtc if self.is_in_scope(Ruby) => self.close_implied(None),
            Rp | Rt if self.is_in_scope(Ruby) => self.close_implied(Some(Rtc)),
            Button if self.is_open(Button) => self.close(|t| t == Button, Tag::is_scope),
            H1 | H2 | H3 | H4 | H5 | H6 if self.current().heading().is_some() => {
                self.close_to(self.stack.len() - 1)
            }
            A | Nobr if self.is_open(tag) => self.close(|t| t == tag, Tag::is_special),
            _ => {}
        }
    }

    /// Closes what a part of a table ends: everything up to the part of the table that holds it.
    fn imply_table(&mut self, part: Tag) {
        use Tag::*;
        let outside = |t: Tag| matches!(t, Table | Template);
        let group = |t: Tag| matches!(t, Tbody | Thead | Tfoot);
        let holder = match part {
            Td | Th => self.innermost(|t| t == Tr || group(t) || outside(t), |_| false),
            Tr => self.innermost(|t| group(t) || outside(t), |_| false),
            _ => self.innermost(outside, |_| false),
        };
        match holder {
            Some(at) => self.close_to(at + 1),
            // Cells and rows without a table.
            None if matches!(part, Td | Th) => self.close(|t| matches!(t, Td | Th), |_| false),
            None => self.close(|t| t == part, |_| false),
        }
    }

    fn text(&mut self, text: &'a str) -> Result<(), HtmlError> {
        let is_blank = || text.bytes().all(|byte| byte.is_ascii_whitespace());
        if (self.before_head || self.current() == Tag::Head) && !is_blank() {
            self.end_head();
        }
        self.push(NodeKind::Text(text)).map(drop)
    }

    /// Closes an open head.
    fn end_head(&mut self) {
        self.before_head = false;
        if self.current() == Tag::Head {
            self.close_to(self.stack.len() - 1);
        }
    }

    fn start(&mut self, start: &StartTag<'a>) -> Result<(), HtmlError> {
        let current = self.current();
        if current.is_foreign() {
            let glyph = ["mglyph", "malignmark"].iter().any(|name| start.name.eq_ignore_ascii_case(name));
            let foreign = match current {
                Tag::MathText => glyph,
                Tag::HtmlPoint => false,
                Tag::Annotation => start.tag != Tag::Svg,
                _ => true,
            };
            if foreign && !(start.tag.breaks_out() || start.tag == Tag::Font && start.hints.styled) {
                return self.start_foreign(start);
            }
            if foreign {
                self.break_out();
            }
        }
        self.start_html(start)
    }

    /// Adds an element of SVG or MathML, which a `/` in its tag closes.
    fn start_foreign(&mut self, start: &StartTag<'a>) -> Result<(), HtmlError> {
        let is = |names: &[&str]| names.iter().any(|name| start.name.eq_ignore_ascii_case(name));
        let tag = match self.current() {
            Tag::Svg | Tag::SvgPart if is(&["foreignobject", "desc", "title"]) => Tag::HtmlPoint,
            Tag::Svg | Tag::SvgPart => Tag::SvgPart,
            _ if is(&["mi", "mo", "mn", "ms", "mtext"]) => Tag::MathText,
            _ if is(&["annotation-xml"]) && start.hints.html_encoding => Tag::HtmlPoint,
            _ if is(&["annotation-xml"]) => Tag::Annotation,
            _ => Tag::MathPart,
        };
        match start.self_closing {
            true => self.push_empty(tag, start.attributes),
            false => self.open(tag, tag, start),
        }
    }

    fn start_html(&mut self, start: &StartTag<'a>) -> Result<(), HtmlError> {
        let tag = start.tag;
        match tag {
            // A second <html>, <head> or <body> opens nothing.
            Tag::Html | Tag::Body if self.is_open(tag) => return Ok(()),
            Tag::Head if !self.before_head => return Ok(()),
            // A <select> in another ends it.
            Tag::Select if self.is_in_scope(Tag::Select) => {
                self.close(|t| t == Tag::Select, |_| false);
                return Ok(());
            }
            _ => {}
        }
        if !tag.is_head() {
            self.end_head();
        } else if tag != Tag::Html {
            self.before_head = false;
        }
        self.imply(tag);
        // In HTML only void elements have no content, whatever their tag ends with.
        if tag.is_void() || start.self_closing && matches!(tag, Tag::Svg | Tag::Math) {
            return self.push_empty(tag, start.attributes);
        }
        let shown = match tag {
            // The content of a shadow tree is shown in place of the element's own.
            Tag::Template if start.hints.shadow_root => Tag::Other,
            Tag::Rp | Tag::Rt | Tag::Rtc if !self.is_open(Tag::Ruby) => Tag::Other,
            _ => tag,
        };
        self.open(tag, shown, start)
    }

    fn end(&mut self, tag: Tag, name: &str) -> Result<(), HtmlError> {
        if self.current().is_foreign() {
            if matches!(tag, Tag::Br | Tag::P) {
                self.break_out();
            } else {
                // The innermost of the name, as far as SVG and MathML go; then it is the end tag of HTML around it.
                for (at, open) in self.stack.iter().enumerate().rev().take(REACH) {
                    if !open.tag.is_foreign() {
                        return self.end_html(tag, name);
                    }
                    if open.name.eq_ignore_ascii_case(name) {
                        self.close_to(at);
                        return Ok(());
                    }
                }
                return Ok(());
            }
        }
        self.end_html(tag, name)
    }

    fn end_html(&mut self, tag: Tag, name: &str) -> Result<(), HtmlError> {
        use Tag::*;
        match tag {
            Br => {
                self.end_head();
                return self.push_empty(Br, Attributes::default());
            }
            // What follows </body> still belongs to the page.
            Html | Body => return Ok(()),
            // The end of a paragraph that is not open is an empty one.
            P if !self.is_open(P) && !self.before_head && self.current() != Head => {
                return self.push_empty(P, Attributes::default());
            }
            _ => {}
        }
        if !self.is_open(tag) && tag.heading().is_none() {
            return Ok(());
        }
        match tag {
            P => self.close(|t| t == P, |t| t.is_scope() || t == Button),
            Li => self.close(|t| t == Li, |t| t.is_scope() || matches!(t, Ul | Ol)),
            Template => {
                if let Some(at) = self.stack.iter().rposition(|open| open.tag == Template) {
                    self.close_to(at);
                }
            }
            Table | Tbody | Thead | Tfoot | Tr | Td | Th | Caption => {
                self.close(|t| t == tag, |t| matches!(t, Table | Template))
            }
            _ if tag.heading().is_some() => self.close(|t| t.heading().is_some(), Tag::is_scope),
            _ if tag.is_block() || tag.is_scope() || tag == Button => self.close(|t| t == tag, Tag::is_scope),
            // Elements without a tag of their own have to have the same name.
            Other => {
                for (at, open) in self.stack.iter().enumerate().rev().take(REACH) {
                    if open.tag == Other && open.name.eq_ignore_ascii_case(name) {
                        self.close_to(at);
                        break;
                    }
                    if open.tag.is_special() {
                        break;
                    }
                }
            }
            // The end of a <b> does not close the paragraph that was begun inside it.
            _ => self.close(|t| t == tag, Tag::is_special),
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
            before_head: true,
            limits: *limits,
        };
        builder.nodes.push(Node {
            parent: 0,
            end: 1,
            kind: NodeKind::Element(Tag::Other, Attributes::default()),
        });
        builder.stack.push(OpenElement { node: 0, tag: Tag::Other, name: "" });
        builder.open[Tag::Other as usize] += 1;
        let mut title = None;
        let mut tokens = Tokenizer::new(page);
        while let Some(token) = tokens.next() {
            match token {
                Token::Start(start) => {
                    builder.start(&start)?;
                    tokens.set_foreign(builder.current().is_foreign());
                }
                Token::End { tag, name } => {
                    builder.end(tag, name)?;
                    tokens.set_foreign(builder.current().is_foreign());
                }
                Token::Text(text) => builder.text(text)?,
                Token::Raw(text) => {
                    let inside = builder.current();
                    if inside == Tag::Title && !builder.is_open(Tag::Svg) && title.is_none() {
                        title = Some(text);
                    }
                    if matches!(inside, Tag::Xmp | Tag::Plaintext) {
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
            ("<head><a>b</a></head><title>c</title>", "head()a(b)title()"),
            ("<head> a<head>b", "head()ab"),
            ("<p>a<head>b", "p(ab)"),
            ("a</p>b", "ap()b"),
            ("<table><tr><td>a<table><tr><td>b</table>c</table>d", "table(tr(td(atable(tr(td(b)))c)))d"),
            ("<table><tr><b>a<tr><td>b<tbody><tr>", "table(tr(b(a))tr(td(b))tbody(tr()))"),
            ("<table><table><tr><td>a", "table()table(tr(td(a)))"),
            ("<li>a<div><li>b<section><li>c", "li(adiv())li(bsection(li(c)))"),
            ("<address><button>a</address>b", "address(button(a))b"),
            ("<b><button>a</b>b", "b(button(ab))"),
            ("<x-a><x-b>a</x-a>b", "?(?(a))b"),
            ("a<image>b", "aimage()b"),
        ] {
            assert_eq!(shown(page), wanted, "{page}");
        }
    }

    /// The HTML standard, sections 13.2.6.5 and 13.2.6.4.7.
    #[test]
    fn foreign_elements_scripts_templates_choices_and_readings() {
        for (page, wanted) in [
            // `/>` closes, and there is no raw text.
            (
                "<svg><title/><style/><script/><textarea/></svg>a",
                "svg(html point()svg part()svg part()svg part())a",
            ),
            ("<svg><style><a>b</a></style></svg>c", "svg(svg part(svg part(b)))c"),
            ("<math><mi/>a</math>b", "math(math text()a)b"),
            ("<svg/>a<math/>b", "svg()amath()b"),
            ("<svg><title><b>a</b></title></svg>b", "svg(html point(b(a)))b"),
            // Elements of HTML break out, but not from where the content is HTML.
            ("<svg><g><p>a", "svg(svg part())p(a)"),
            ("<svg><g></p>a", "svg(svg part())p()a"),
            ("<svg><font>a<font size=1>b", "svg(svg part(a))font(b)"),
            ("<svg><a>b</a><section>c", "svg(svg part(b)svg part(c))"),
            ("<svg><foreignObject><p>a<div>b</div></foreignObject></svg>c", "svg(html point(p(a)div(b)))c"),
            ("<svg><desc><style><a></style></desc></svg>b", "svg(html point(style()))b"),
            ("<math><mtext><b>a</b></mtext></math>b", "math(math text(b(a)))b"),
            ("<math><mi><mglyph><b>a", "math(math text(math part()b(a)))"),
            ("<math><annotation-xml><svg><p>a", "math(annotation xml(svg()))p(a)"),
            ("<math><annotation-xml encoding='Text/HTML'><p>a", "math(html point(p(a)))"),
            // End tags close through them.
            ("<div><svg><g></div>a", "div(svg(svg part()))a"),
            ("<svg><g><path></g>a</svg>b", "svg(svg part(svg part())a)b"),
            ("<div><svg><foreignObject></div>a", "div(svg(html point(a)))"),
            ("<table><tr><td><svg><desc><td>a", "table(tr(td(svg(html point()))td(a)))"),
            ("<svg><![CDATA[</svg>]]>a</svg>b<![CDATA[c]]>d", "svg(</svg>a)bd"),
            // Visitors see no `noscript`.
            ("<noscript><div></noscript>a<head><noscript><p></noscript>", "noscript()anoscript()"),
            // Nothing inside of a template keeps it open.
            ("<template><table></template>a", "template(table())a"),
            ("<template><td><div></template>a", "template(td(div()))a"),
            ("a</template>b", "ab"),
            ("<div><template shadowrootmode=open>a</template>b", "div(?(a)b)"),
            ("<select><option>a<select>b", "select(option(a))b"),
            (
                "<select><optgroup><option>a<optgroup><input>b",
                "select(optgroup(option(a))optgroup())input()b",
            ),
            ("<select><option>a<hr><option>b</select>c", "select(option(a)hr()option(b))c"),
            ("<table><select><option>a<tr><td>b", "table(select(option(a))tr(td(b)))"),
            ("<datalist><option>a</datalist>b", "datalist(option(a))b"),
            ("<ruby>a<rt>b<rt>c</ruby>d", "ruby(art(b)rt(c))d"),
            ("<ruby><rb>a<rt>b<rp>c<rb>d<rtc>e<rt>f", "ruby(rb(a)rt(b)rp(c)rb(d)rtc(ert(f)))"),
            ("<rt>a", "?(a)"),
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
                "<a b=\"", "<template>", "</template>", "<svg>", "</svg>", "<math>", "<mi>", "<desc>", "<![CDATA[", "]]>",
                "<noscript>", "</noscript>", "<button>", "<ruby>", "<rt>", "<head>",
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
