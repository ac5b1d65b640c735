//! HTML pieces. Every text that comes from outside goes through [`escape`].

use crate::text::escape;

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table: a head (may be empty) and rows of plain text, which is escaped.
pub fn table(head: &[&str], align: &[Align], rows: &[Vec<String>]) -> String {
    let class = |i: usize| if align.get(i) == Some(&Align::Right) { " class=\"n\"" } else { "" };
    let mut text = String::from("<div class=\"scroll\"><table>\n");
    if !head.is_empty() {
        text += "<thead><tr>";
        for (i, cell) in head.iter().enumerate() {
            text += &format!("<th scope=\"col\"{}>{}</th>", class(i), escape(cell));
        }
        text += "</tr></thead>\n";
    }
    text += "<tbody>\n";
    for row in rows {
        text += "<tr>";
        for (i, cell) in row.iter().enumerate() {
            let (open, close) = if i == 0 { ("th scope=\"row\"", "th") } else { ("td", "td") };
            text += &format!("<{open}{}>{}</{close}>", class(i), escape(cell));
        }
        text += "</tr>\n";
    }
    text + "</tbody></table></div>\n"
}

/// A section with a heading; nothing if it would be empty.
pub(crate) fn section(id: &str, heading: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<section id=\"{id}\">\n<h2>{}</h2>\n{body}</section>\n", escape(heading))
}

/// A picture with its heading and a sentence below (may be empty).
pub(crate) fn figure(heading: &str, svg: &str, note: &str) -> String {
    let note =
        if note.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>", escape(note)) };
    format!("<figure><figcaption>{}</figcaption>\n{svg}{note}</figure>\n", escape(heading))
}

/// Figures or tables beside each other where there is space.
pub(crate) fn grid(items: &[String]) -> String {
    if items.is_empty() { String::new() } else { format!("<div class=\"grid\">\n{}</div>\n", items.concat()) }
}

/// Something that the reader opens by a click.
pub(crate) fn details(summary: &str, body: &str, open: bool) -> String {
    let open = if open { " open" } else { "" };
    format!("<details{open}><summary>{}</summary>\n{body}</details>\n", escape(summary))
}
