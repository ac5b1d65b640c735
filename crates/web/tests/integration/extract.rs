//! Main text and plain text of pages, and pages made to break an extractor.

use bessemer_web::extract::{Extractor, Main, Plain};
use bessemer_web::html::{HtmlError, HtmlLimits};
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn text(e: &dyn Extractor, page: &str) -> String {
    e.extract(page, &HtmlLimits::default()).unwrap().text
}

const LOREM: &str = "The blast furnace had been standing cold since autumn, and the men who once fed it had gone to \
    the mills downriver, where the new process turned pig iron to steel in twenty minutes of roaring air.";

fn article() -> String {
    format!(
        "<!DOCTYPE html><html lang=en><head><title>Steel &amp;\n Air</title><style>p {{}}</style></head><body>
        <header><a href=/>Home</a> <a href=/x>Shop</a></header><nav><ul><li><a href=/a>News</a><li><a href=/b>Sport</a></ul></nav>
        <div class=wrapper><div class='story'><h1>A cold furnace</h1><p class=byline>By A. Writer</p>
        <p>{LOREM} First.</p><p>{LOREM} With <b>bold</b>, <a href=/l>a link</a> and caf&eacute;.</p>
        <h2>Figures</h2><table><tr><th>Year</th><th>Tons</th></tr><tr><td>1860</td><td>12</td></tr></table>
        <ul><li>one</li><li>two <i>items</i></li></ul><pre>fn main() {{\n    println!(\"hi\");\n}}</pre><p>{LOREM} Last.</p></div>
        <div class='share-buttons'>Share this on everything</div><div id=comments><p>{LOREM} I disagree.</p></div></div>
        <aside><p>{LOREM} Aside.</p></aside><footer>Copyright</footer><script>var x = '<p>no</p>';</script></body></html>"
    )
}

#[test]
fn the_main_text_keeps_structure_and_leaves_what_is_around() {
    let e = Main.extract(&article(), &HtmlLimits::default()).unwrap();
    assert_eq!((e.title.as_deref(), e.language.as_deref()), (Some("Steel & Air"), Some("en")));
    let wanted = format!(
        "A cold furnace\n\n{LOREM} First.\n\n{LOREM} With bold, a link and café.\n\nFigures\n\nYear | Tons\n1860 | 12\n\n\
         - one\n- two items\n\nfn main() {{\n    println!(\"hi\");\n}}\n\n{LOREM} Last."
    );
    assert_eq!(e.text.replace("By A. Writer\n\n", ""), wanted);
}

#[test]
fn plain_text_keeps_all_but_navigation() {
    let t = text(&Plain, &article());
    assert!(t.contains("By A. Writer") && t.contains("1860 | 12") && t.contains("Last."), "{t}");
    assert!(!t.contains("Sport") && !t.contains("Copyright") && !t.contains("<p>no"), "{t}");
}

#[test]
fn small_cases() {
    for (page, wanted) in [
        ("", ""),
        ("just text", "just text"),
        ("<p>a<br>b<br><br>c", "a\nb\n\nc"),
        ("<p>a <span> b</span>c&nbsp;d", "a bc d"),
        ("<div>a<div>b</div>c</div>", "a\n\nb\n\nc"),
        ("<p hidden>x<p style='Display : none'>y<p aria-hidden=true>z<p>seen", "seen"),
        ("<noscript>x</noscript><select><option>y</select><button>z</button>seen", "seen"),
        ("<pre>  a\n   b</pre>", "  a\n   b"),
        ("<ol><li><p>one</p></li><li>two</li></ol>", "- one\n- two"),
        ("<p>He said <q>so</q>.", "He said \u{201c}so\u{201d}."),
        ("<table><tr><td><p>layout one</p><div>x</div></td></tr></table>", "layout one\n\nx"),
        ("a\0b&#0;c", "ab\u{fffd}c"),
        ("<svg><title/><style/></svg>seen", "seen"),
        ("<svg><g><p>seen", "seen"),
        ("<noscript><div hidden></noscript>seen", "seen"),
        ("<head><a href=x hidden>x</a>seen", "seen"),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</ruby>です<rt>seen", "漢字ですseen"),
        ("<template><td>x</template>seen", "seen"),
    ] {
        assert_eq!(text(&Plain, page), wanted, "{page}");
        assert_eq!(text(&Main, page), wanted, "{page}");
    }
}

#[test]
fn a_name_that_holds_most_of_the_page_is_not_believed() {
    let page = format!("<body><div class=sidebar><p>{LOREM}</p><p>{LOREM}</p></div><p>short</p></body>");
    assert!(text(&Main, &page).contains("furnace"));
}

/// An article of four paragraphs in an element of a name, and more text in comments.
fn named(wrapper: &str) -> String {
    let paragraphs = |word: &str, count: usize| -> String {
        (0..count).map(|i| format!("<p>{LOREM} {word}{i}.</p>")).collect()
    };
    let comments: String = (0..6)
        .map(|i| format!("<li class=comment><p>{LOREM} remark{i}.</p><a href=#>Reply</a></li>"))
        .collect();
    format!(
        "<body><nav><a href=/>Home</a></nav><section><h1>Steel</h1><{wrapper}>{}</div></section>
        <div class=sidebar><p>{LOREM} beside0.</p></div><div id=comments><ol>{comments}</ol></div></body>",
        paragraphs("para", 4)
    )
}

#[test]
fn names_decide_nothing_about_what_holds_the_text() {
    for wrapper in [
        "div class='entry themeform share'",
        "div class='c-fixed-sidebar-layout--140--left@lg'",
        "div class='node node-promoted'",
        "div id=content-sidebar-wrap",
        "div class='related banner popup'",
        "div class=widget",
        "div class='author vcard'",
        "div class='post-meta-menu'",
        "div class='share'><div class='promo'><div class='ad'",
        "div class='noprint skip'",
        "div class='comment-piece'",
        "div role=dialog",
        "div style='color: red' class='cookie newsletter footer'",
    ] {
        for (name, text) in [("main", text(&Main, &named(wrapper))), ("plain", text(&Plain, &named(wrapper)))]
        {
            for i in 0..4 {
                assert!(
                    text.contains(&format!("para{i}.")),
                    "{name} of {wrapper} lost paragraph {i}: {text}"
                );
            }
            assert!(!text.contains("remark"), "{name} of {wrapper} has comments: {text}");
            assert!(!text.contains("beside"), "{name} of {wrapper} has the sidebar: {text}");
        }
    }
}

#[test]
fn the_only_paragraph_near_the_heading_is_the_text() {
    let parts: String =
        (0..5).map(|i| format!("<div class='widget'><p>{LOREM} part{i}.</p></div>")).collect();
    let side = format!("<div class=sidebar><p>{LOREM} {LOREM} beside0.</p></div>");
    // One short text in an element of a name; one element of a name for each paragraph.
    for (body, wanted) in [
        (format!("<div><h1>Steel</h1><div class=share><p>{LOREM} part0.</p></div></div>{side}{side}"), 1),
        (format!("<div><h1>Steel</h1>{parts}</div>{side}{side}"), 5),
    ] {
        let text = text(&Main, &format!("<body>{body}</body>"));
        let found = (0..5).filter(|i| text.contains(&format!("part{i}."))).count();
        assert_eq!((found, text.contains("beside")), (wanted, false), "{text}");
    }
    // Where there is prose without a name near the heading, names are believed.
    let page = format!(
        "<body><div><h1>Steel</h1><p>{LOREM} part0.</p></div>{side}<div class=related>{parts}</div></body>"
    );
    let text = text(&Main, &page);
    assert!(text.contains("part0.") && !text.contains("beside") && !text.contains("part1."), "{text}");
}

#[test]
fn a_page_with_prose_is_never_empty() {
    for body in [
        format!("<nav><div>{}</div>", format!("<p>{LOREM}</p>").repeat(3)),
        format!("<aside><p>{LOREM}</p></aside><footer><p>{LOREM}</p></footer>"),
        format!("<div style='display: none'><p>{LOREM}</p></div>"),
        format!(
            "<div aria-hidden=true><div class=comment><div class=comment><p>{LOREM}</p></div></div></div>"
        ),
        format!("<div class=sidebar><p>{LOREM}</p></div><div class=related><p>{LOREM}</p></div>"),
    ] {
        for extractor in [&Main as &dyn Extractor, &Plain] {
            let text = text(extractor, &format!("<body>{body}</body>"));
            assert!(text.contains("furnace"), "{} of {body}: {text}", extractor.name());
        }
    }
}

/// Pages that are large, deep, wide or looping in some way.
fn hostile() -> Vec<(&'static str, String)> {
    vec![
        ("deep div", "<div>".repeat(100_000) + "end"),
        ("deep div closed", "<div>".repeat(100_000) + "end" + &"</div>".repeat(100_000)),
        ("deep b", "<b>".repeat(100_000) + &"</i>".repeat(100_000) + &"</b></p>".repeat(50_000)),
        ("deep lists", "<ul><li>".repeat(50_000)),
        ("deep tables", "<table><tr><td>".repeat(30_000) + &"</div>".repeat(100_000)),
        ("deep a and b", "<p><a href=x><b><i>".repeat(25_000)),
        ("open i in div of b", "<i><div>".to_string() + &"<b>".repeat(60_000) + &"</i>".repeat(60_000)),
        ("a million attributes", format!("<p {}>text</p>", "a=b ".repeat(1_000_000))),
        ("a long class", format!("<p class='{}'>text</p>", "comment-x ".repeat(500_000))),
        ("a long style", format!("<p style='{}'>text</p>", "color: red; ".repeat(300_000))),
        ("entities", "&amp;&lt;&#x41;&bogus;&CounterClockwiseContourIntegral".repeat(50_000)),
        ("ampersands", "&".repeat(3_000_000)),
        ("digits", format!("&#{};", "9".repeat(2_000_000))),
        ("open comments", "<!--".repeat(500_000)),
        ("comment dashes", format!("<!--{}", "-".repeat(2_000_000))),
        ("many comments", "<!-- x -->".repeat(200_000)),
        ("open scripts", "<script>".repeat(300_000)),
        ("script ends", format!("<script>{}", "</scrip ".repeat(300_000))),
        ("titles", "<title>x</title>".repeat(150_000)),
        ("angle brackets", "<".repeat(3_000_000)),
        ("open quotes", "<a b=\"".repeat(400_000)),
        ("bogus", "</ ".repeat(500_000)),
        ("declarations", "<!x".repeat(500_000)),
        ("end tags", "</p></div></table>".repeat(150_000)),
        ("breaks", "<br>".repeat(500_000)),
        ("headers", "<header>x".repeat(9_000)),
        ("rows", format!("<table>{}", "<tr><td>a<td>b".repeat(80_000))),
        ("one word", "x".repeat(10_000_000)),
        ("spaces", " \n".repeat(5_000_000)),
        ("open drawings", "<svg><g>".repeat(100_000) + "<p>end"),
        ("ends in drawings", "<svg>".to_string() + &"<g>".repeat(100_000) + &"</x>".repeat(100_000)),
        ("drawings in drawings", "<svg><desc><math><mi>".repeat(20_000) + &"<tr>".repeat(100_000)),
        ("scripts in scripts", format!("<script><!--{}", "<script>--".repeat(200_000))),
        ("readings", "<ruby><rt>".repeat(80_000)),
        ("templates", "<template>".repeat(80_000) + &"</template>".repeat(100_000)),
        ("options", "<select>".repeat(500) + &"<option>".repeat(300_000)),
        ("body in body", "<body><html>".repeat(200_000) + "x"),
    ]
}

#[test]
fn hostile_pages_end_soon_and_without_overflow() {
    // A tenth of the usual stack: nothing may be recursive in the page, dropping included.
    let limits = HtmlLimits { max_depth: 1_000_000, ..HtmlLimits::default() };
    let run = move || {
        for (name, page) in hostile() {
            let begun = Instant::now();
            for extractor in [&Main as &dyn Extractor, &Plain] {
                match extractor.extract(&page, &limits) {
                    Ok(_) | Err(HtmlError::TooMany(_)) => {}
                    Err(e) => panic!("{name}: {e}"),
                }
            }
            // Quadratic work on these sizes takes minutes; a busy machine a few seconds.
            assert!(begun.elapsed() < Duration::from_secs(30), "{name}: {:?}", begun.elapsed());
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}

#[test]
fn limits_have_their_verdicts() {
    let verdict = |page: &str, limits| Main.extract(page, &limits).unwrap_err().verdict();
    let usual = HtmlLimits::default();
    assert_eq!(verdict(&"<div>".repeat(100_000), usual), "extract-too-deep");
    assert_eq!(verdict("<p>", HtmlLimits { max_bytes: 2, ..usual }), "extract-too-large");
}

proptest! {
    #[test]
    fn fuzz_extract_soup(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<p>", "</p>", "<div class='comment'>", "<div id=content>", "</div>", "<article>", "</article>", "<table>",
            "<tr>", "<td>", "</td>", "</tr>", "</table>", "<li>", "<ul>", "</ul>", "<a href=x>", "</a>", "<br>", "<pre>",
            "</pre>", "<h1>", "</h1>", "<q>", "</q>", "<script>", "</script>", "<nav>", "</nav>", "<header>", "</header>",
            "some words of text here", " ", "\n", "&nbsp;", "&#9;", LOREM, "日本語", "<", "|", "<title>", "</title>",
        ]), 0..80),
    ) {
        let page = pieces.concat();
        let a = text(&Main, &page);
        prop_assert_eq!(&a, &text(&Main, &page));
        let b = text(&Plain, &page);
        for t in [&a, &b] {
            prop_assert!(!t.starts_with('\n') && !t.ends_with(char::is_whitespace), "{:?}", t);
        }
    }
}
