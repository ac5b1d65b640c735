//! Main text of manuals and references: short lines, definitions and links that belong to the text.

use bessemer_web::extract::{Extractor, Main};
use bessemer_web::html::HtmlLimits;

fn text(page: &str) -> String {
    Main.extract(page, &HtmlLimits::default()).unwrap().text
}

/// Asserts that the main text of a page has every line of `kept` and none of `left`.
fn check(page: &str, kept: &[&str], left: &[&str]) {
    let text = text(page);
    let lines: Vec<&str> = text.lines().map(|l| l.strip_prefix("- ").unwrap_or(l)).collect();
    for line in kept {
        assert!(lines.contains(line), "lost: {line}\n{text}");
    }
    for line in left {
        assert!(!text.contains(line), "kept: {line}\n{text}");
    }
}

const PROSE: &str = "The ladle holds the melt while its slag is skimmed, and every call waits until the temperature \
    that was asked for is reached or the furnace reports that it cannot be reached at all.";

/// A reference page without any class, identifier or element that names its parts.
fn reference() -> String {
    format!(
        "<html><body><div><a href=/>Home</a> <a href=/guide>Guide</a> <a href=/api>Reference</a></div>
        <div><ul><li><a href=cast.html>cast</a><li><a href=ladle.html>ladle</a><li><a href=mould.html>mould</a></ul></div>
        <div><h1>ladle</h1><p>Since 1.2</p>
        <ul><li><a href=#options>Options of the ladle</a><li><a href=#errors>Errors of the ladle</a></ul>
        <pre>fn ladle(tons: <a href=u32.html>u32</a>) -> <a href=melt.html>Melt</a></pre><p>{PROSE} See <code>tap</code>.</p>
        <h2 id=options>Options</h2><dl><dt><code>tons</code></dt><dd>Its size.</dd><dt><code>lid</code></dt><dd>Closed.</dd></dl>
        <p>Used with:</p><ul><li><a href=tap.html>tap</a><li><a href=pour.html>pour into a mould</a></ul>
        <h2 id=errors>Errors</h2><p>None.</p><p><code><a href=cold.html>ColdMelt</a></code></p>
        <h3>impl Vessel for Ladle</h3><h3>impl Drop for Ladle</h3>
        <h2>See also</h2><ul><li><a href=crane.html>The crane that moves it</a><li><a href=slag.html>slag</a></ul></div>
        <div>Made by a generator</div><div><a href=kiln.html>Previous: kiln</a> | <a href=mould.html>Next: mould</a></div></body></html>"
    )
}

#[test]
fn short_lines_of_a_reference_stay() {
    let kept = [
        "ladle",
        "Since 1.2",
        "Options",
        "tons",
        "Its size.",
        "lid",
        "Closed.",
        "Errors",
        "None.",
        "ColdMelt",
    ];
    check(&reference(), &kept, &["Made by a generator"]);
    check(&reference(), &["impl Vessel for Ladle", "impl Drop for Ladle"], &[]);
}

#[test]
fn short_lines_before_the_title_of_a_manual_are_left_out() {
    let help =
        "<div><h2>Keys</h2><p>Press <kbd>S</kbd> to search</p><p>Press <kbd>?</kbd> for help</p></div>";
    let text = format!(
        "<div><h1>Lid</h1><p>Closes a <code>ladle</code>.</p><pre>lid(ladle)</pre><p>{PROSE}</p></div>"
    );
    let page = format!("<body>{help}<div>{text}</div></body>");
    check(&page, &["Lid", "Closes a ladle.", "lid(ladle)"], &["Keys", "Press"]);
    // Beside the title, and in the element that says it is the text, they stay.
    let page = format!("<body>{help}<div><p>Package ladle</p>{}</body>", &text["<div>".len()..]);
    check(&page, &["Package ladle", "Lid"], &["Press"]);
    let page = format!("<body>{help}<main><p>Package ladle</p>{text}<p>{PROSE}</p></main></body>");
    check(&page, &["Package ladle", "Lid"], &["Press"]);
    // A heading of level 1 behind prose is no title.
    let page =
        format!("<body><div><div><p>Package <kbd>ladle</kbd></p><p>{PROSE}</p></div>{text}</div></body>");
    check(&page, &["Package ladle", PROSE, "Lid"], &[]);
}

#[test]
fn lists_of_links_stay_where_a_heading_or_a_sentence_introduces_them() {
    let kept = ["Used with:", "tap", "pour into a mould", "See also", "The crane that moves it", "slag"];
    check(&reference(), &kept, &["Guide", "cast", "Previous", "Next", "Options of the ladle"]);
}

#[test]
fn a_list_of_definitions_is_not_taken_without_what_stands_around_it() {
    let entries =
        "<dt><code>size</code></dt><dd>How many tons it holds when the melt stands at the mark that \
        the founder has cut into the lining, or at its rim where there is none.</dd>"
            .repeat(20);
    let page =
        format!("<body><div><h2>Keys of a mould</h2><p>Written once.</p><dl>{entries}</dl></div></body>");
    check(&page, &["Keys of a mould", "Written once.", "size"], &[]);
}

#[test]
fn links_in_a_list_that_explains_them_stay_in_an_article() {
    let page = format!(
        "<body><div><h1>Steel</h1><p>{PROSE}</p><ul><li><a href=b>Bessemer's converter and its linings of clay</a>
        <li><a href=o>The open hearth</a>: slower, with samples taken from the bath through all the hours of a heat
        until the carbon is right, and therefore the process of better steels.</ul><p>{PROSE}</p>
        <ul><li><a href=x>Ten photographs of furnaces that nobody may enter</a></ul><p>{PROSE}</p></div></body>"
    );
    check(&page, &["Bessemer's converter and its linings of clay"], &["Ten photographs"]);
}

#[test]
fn a_possible_break_separates_two_elements_and_not_the_pieces_of_a_word() {
    let page = format!(
        "<body><p>{PROSE}</p><dl><dt><a href=tap>TAP_<wbr>HOLE</a><wbr><span>Experimental</span></dt>
        <dd>A hole in <code>std</code>::<wbr><code>ladle</code>, <b>see</b><wbr>n from below.</dd></dl><pre>tap()</pre></body>"
    );
    check(&page, &["TAP_HOLE Experimental", "A hole in std::ladle, seen from below."], &[]);
}

#[test]
fn a_heading_that_links_to_itself_is_no_link() {
    let page = format!(
        "<body><article><h2><a href='#air'>Air and oxygen</a></h2><p>{PROSE}</p>
        <h2><a href=/other>Another page of ours</a></h2><p>{PROSE}</p></article></body>"
    );
    check(&page, &["Air and oxygen"], &["Another page of ours"]);
}

#[test]
fn a_section_named_after_its_heading_is_part_of_the_text() {
    let page = format!(
        "<body><main><h1>Pipes</h1><p>{PROSE}</p><p>{PROSE}</p>
        <section id=how-related-valves-open><h2>How related valves open</h2><p>By hand, in pairs.</p></section>
        <section id=related-posts><h2>More of us</h2><p>A post.</p></section><p>{PROSE}</p></main></body>"
    );
    check(&page, &["How related valves open", "By hand, in pairs."], &["More of us"]);
}

#[test]
fn a_table_of_links_to_neighbouring_pages_is_navigation() {
    let table = "<table><tr><th colspan=3>12.4. Tapping</th></tr><tr><td><a href=p>Prev</a></td>
        <th>Chapter 12. The Open Hearth Furnace</th><td><a href=n>Next</a></td></tr></table>";
    let data =
        "<table><tr><td><a href=a>Alpha</a></td><td>the first of the furnaces</td></tr><tr><td>Beta</td>
        <td>the second</td></tr></table>";
    let page = format!("<body>{table}<h2>Tapping</h2><p>{PROSE}</p>{data}<p>{PROSE}</p>{table}</body>");
    check(
        &page,
        &["Tapping", "Alpha | the first of the furnaces", "Beta | the second"],
        &["Chapter 12", "Prev"],
    );
}

#[test]
fn definitions_alone_do_not_make_an_article_a_reference() {
    let facts = "<dl><dt>Author</dt><dd>A. Writer</dd><dt>Place</dt><dd>Sheffield</dd></dl>";
    let page = format!("<body><div>{facts}<p>Subscribe now</p><p>{PROSE}</p><p>{PROSE}</p></div></body>");
    check(&page, &[PROSE], &["Subscribe now"]);
}
