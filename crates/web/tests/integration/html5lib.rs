//! The tests of html5lib as a measurement: how many pages give the letters of the standard's tree, and its encoding.

use bessemer_web::encoding::{EncodingSource, decode};
use bessemer_web::html::{Document, HtmlLimits, NodeKind, Tag, decode_references};
use std::path::{Path, PathBuf};

/// Letters that a reader sees, in the order of the tree and sorted.
fn letters(text: &str) -> (String, Vec<char>) {
    let seen = |c: &char| !c.is_whitespace() && !matches!(c, '\0' | '\u{fffd}');
    let text: String = text.chars().filter(seen).collect();
    let mut sorted: Vec<char> = text.chars().collect();
    sorted.sort_unstable();
    (text, sorted)
}

fn is_hidden(tag: Tag) -> bool {
    tag.is_invisible() || tag == Tag::Title
}

fn found(page: &str) -> String {
    let document = Document::parse(page, &HtmlLimits::default()).unwrap();
    let (mut text, mut at) = (String::new(), 0);
    while let Some(node) = document.nodes.get(at) {
        at += 1;
        match node.kind {
            NodeKind::Text(part) => text.push_str(&decode_references(part)),
            NodeKind::Element(tag, _) if is_hidden(tag) => at = node.end as usize,
            NodeKind::Element(..) => {}
        }
    }
    text
}

/// The text of a tree as the files write it: a node on each line, two blanks for each level.
fn wanted(tree: &str) -> String {
    let (mut text, mut hidden, mut quoted) = (String::new(), usize::MAX, false);
    for line in tree.lines() {
        let Some(node) = line.strip_prefix("| ").filter(|_| !quoted || line.starts_with("| ")) else {
            // Further lines of a text.
            text.push_str(if quoted { line.trim_end_matches('"') } else { "" });
            quoted &= !line.ends_with('"');
            continue;
        };
        let depth = node.len() - node.trim_start().len();
        let node = node.trim_start();
        if depth <= hidden {
            hidden = usize::MAX;
        }
        if let Some(begun) = node.strip_prefix('"') {
            quoted = hidden == usize::MAX && (begun.is_empty() || !begun.ends_with('"'));
            text.push_str(if hidden == usize::MAX { begun.trim_end_matches('"') } else { "" });
        } else if let Some(name) = node.strip_prefix('<').and_then(|name| name.strip_suffix('>'))
            && hidden == usize::MAX
        {
            let foreign = name.starts_with("svg ") || name.starts_with("math ");
            if !foreign && is_hidden(Tag::of(name.as_bytes())) || name == "svg svg" {
                hidden = depth;
            }
        }
    }
    text
}

/// Files of html5lib-tests, which the source package of html5lib ships: `BESSEMER_HTML5LIB_TESTS` is its folder
/// html5lib/tests/testdata.
fn files(folder: &str) -> Vec<(String, String)> {
    let root = std::env::var_os("BESSEMER_HTML5LIB_TESTS").expect("BESSEMER_HTML5LIB_TESTS: a folder");
    let listed = std::fs::read_dir(Path::new(&root).join(folder)).unwrap();
    let mut files: Vec<_> = listed.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "dat"));
    files.sort();
    let read = |file: &PathBuf| String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
    files.iter().map(|file| (file.display().to_string(), read(file))).collect()
}

#[test]
#[ignore = "a measurement: needs BESSEMER_HTML5LIB_TESTS"]
fn encodings_of_the_tests_of_declarations() {
    let (mut all, mut equal) = (0, 0);
    for (file, text) in files("encoding") {
        for test in format!("\n{text}").split("\n#data\n").skip(1) {
            let Some((page, wanted)) = test.split_once("\n#encoding\n") else { continue };
            let wanted = wanted.split('\n').next().unwrap_or_default();
            let decoded = decode(page.as_bytes(), None, None);
            // Without a declaration the tests expect windows-1252, and this crate looks at the bytes.
            let declared = matches!(decoded.source, EncodingSource::Meta | EncodingSource::Bom);
            let found = if declared { decoded.encoding } else { "windows-1252" };
            all += 1;
            equal += u32::from(found.eq_ignore_ascii_case(wanted));
            if !found.eq_ignore_ascii_case(wanted) {
                let shown: String = page.chars().take(300).collect();
                println!("{file}: {shown:?}\n  wanted {wanted}, found {found}");
            }
        }
    }
    println!("{all} pages: {equal} equal");
    // A declaration that a script writes, one behind 64 KiB, and one that the bytes, which are UTF-8, refute.
    assert!(all > 50 && all - equal <= 3);
}

/// Pages with frames, and tests of fragments and of pages without scripts, are left out.
#[test]
#[ignore = "a measurement: needs BESSEMER_HTML5LIB_TESTS"]
fn letters_of_the_tests_of_tree_construction() {
    let (mut all, mut equal, mut moved) = (0, 0, 0);
    for (file, text) in files("tree-construction") {
        for test in format!("\n{text}").split("\n#data\n").skip(1) {
            let test = format!("\n{test}");
            let Some((page, rest)) = test[1..].split_once("#errors\n") else { continue };
            let Some((head, tree)) = rest.split_once("#document\n") else { continue };
            let page = page.strip_suffix('\n').unwrap_or(page);
            if head.contains("#document-fragment")
                || head.contains("#script-off")
                || page.contains("<frameset")
            {
                continue;
            }
            let ((a, a_sorted), (b, b_sorted)) = (letters(&found(page)), letters(&wanted(tree)));
            all += 1;
            equal += u32::from(a == b);
            moved += u32::from(a != b && a_sorted == b_sorted);
            if a_sorted != b_sorted {
                println!("{file}: {page:?}\n  wanted {b:?}\n  found  {a:?}");
            }
        }
    }
    println!("{all} pages: {equal} equal, {moved} in another order, {} differ", all - equal - moved);
    assert!(all > 1000 && all - equal - moved <= all / 100);
}
