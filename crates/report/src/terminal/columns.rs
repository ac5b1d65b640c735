//! Tables of several columns in a terminal.

use super::plain;

/// Widest cell of a table, in characters; longer ones are cropped.
const WIDEST: usize = 44;

/// Formats rows below a head, each column as wide as its widest cell. Cells lose their control characters.
pub fn listing(head: &[String], rows: &[Vec<String>]) -> String {
    let all = || std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
    let width = |i: usize| all().filter_map(|r| r.get(i)).map(|c| cell(c).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(c, width)| format!("{:<width$}", cell(c)));
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_string() + "\n"
    };
    all().map(line).collect()
}

/// Formats rows that begin with their name and go on with a cell per column. Where the table is wider than `width`, columns
/// move into a further table below.
pub fn columns(head: &[String], rows: &[Vec<String>], width: usize) -> String {
    let widest = |i: usize| {
        let cells = rows.iter().filter_map(|r| r.get(i + 1)).chain(head.get(i));
        cells.map(|c| cell(c).chars().count() + 2).max().unwrap_or(0)
    };
    let names = 2 + rows.iter().filter_map(|r| r.first()).map(|c| cell(c).chars().count()).max().unwrap_or(0);
    let mut tables = Vec::new();
    let mut from = 0;
    while from < head.len() {
        let mut to = from + 1;
        while to < head.len() && names + (from..=to).map(widest).sum::<usize>() <= width {
            to += 1;
        }
        let pick = |name: &String, cells: &[String]| {
            let picked = cells.get(from..to.min(cells.len())).unwrap_or_default();
            std::iter::once(name.clone()).chain(picked.iter().cloned()).collect::<Vec<String>>()
        };
        let some: Vec<Vec<String>> =
            rows.iter().filter_map(|r| r.split_first()).map(|(n, c)| pick(n, c)).collect();
        tables.push(listing(&pick(&String::new(), head), &some));
        from = to;
    }
    tables.join("\n")
}

fn cell(text: &str) -> String {
    let text = plain(text);
    match text.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|t| (*t).to_string()).collect()
    }

    #[test]
    fn columns_that_do_not_fit_go_below() {
        let rows = [texts(&["loss", "1.5", "2.25"]), texts(&["host\u{1b}", "a", "b"])];
        let head = texts(&["first", "second"]);
        assert_eq!(
            columns(&head, &rows, 80),
            "         first  second\n  loss   1.5    2.25\n  host   a      b\n"
        );
        let narrow =
            "         first\n  loss   1.5\n  host   a\n\n         second\n  loss   2.25\n  host   b\n";
        assert_eq!(columns(&head, &rows, 10), narrow);
        assert_eq!(columns(&[], &rows, 10), "");
    }
}
