use bessemer_markup::stack_exchange::{Post, PostKind};
use bessemer_markup::wikipedia::{Namespaces, WikiPage, plain_text};
use bessemer_markup::{MarkupError, MarkupLimits};

fn text_of(wikitext: &str) -> String {
    let namespaces = Namespaces::of_head(
        "<siteinfo><namespaces><namespace key=\"6\">Datei</namespace></namespaces></siteinfo>",
    );
    plain_text(wikitext, &namespaces, &MarkupLimits::default()).unwrap()
}

#[test]
fn a_page_is_its_prose_with_headings_and_lists() {
    let wikitext = "{{Infobox metal\n| name = Steel {{small|x}}\n}}\n'''Steel''' is an [[alloy]] of [[iron|Iron]]<ref name=\"a\">{{cite}}</ref> \
        and ''carbon''.<!-- hidden --> Its<ref name=a /> price&nbsp;fell.\n\
        [[File:Converter.jpg|thumb|A [[Bessemer]] converter]]\n\
        {| class=\"wikitable\"\n|-\n| cell || {{x}}\n|}\n\
        == History ==\nIn [http://a.b 1856] it &amp; others<br/>began.\n* one\n* two [http://x.y]\n\n<math>x^2 < 3</math> stays.\n\
        === Empty ===\n{{empty}}\n== See also ==\n* [[Iron]]\n=== Deeper ===\nx\n== Uses ==\nRails.\n== References ==\n{{reflist}}\n\
        [[Category:Metals]]\n[[de:Stahl]]\n[[Datei:x.png]]__NOTOC__";
    let wanted = "Steel is an alloy of Iron and carbon. Its price fell.\n\nHistory\n\nIn 1856 it & others\nbegan.\n- one\n- two\n\nx^2 < 3 stays.\n\nUses\n\nRails.";
    assert_eq!(text_of(wikitext), wanted);
}

#[test]
fn sentences_stay_whole_around_templates_and_arguments() {
    for (wikitext, wanted) in [
        ("{{{1|A default text}}} stands.", "A default text stands."),
        ("A {{{name|}}}b {{{none}}} c {{{a|{{{b|inner}}}}}} d", "A b c inner d"),
        ("{{{{{1|x}}}}}y {{x|{{{1|}}}}} z {{{1|a|b}}}", "y z a"),
        (
            "It is {{convert|93|m|ft}} long and {{cvt|5|to|10|km2|sqmi|abbr=on}} wide.",
            "It is 93 m long and 5 to 10 km² wide.",
        ),
        (
            "Tall {{convert|6|ft|2|in|m}}, {{convert|-3|C|F}}, {{convert|3|x|4|m|ft}}",
            "Tall 6 ft 2 in, -3 °C, 3 × 4 m",
        ),
        (
            "{{lang|de|Alte Mühle}} ({{lang-fr|vieux ''moulin''}}, {{transl|ru|ISO|mel'nica}})",
            "Alte Mühle (vieux moulin, mel'nica)",
        ),
        (
            "They wrote {{quote|We saw it burn.|author=X}} that night.",
            "They wrote We saw it burn. that night.",
        ),
        ("{{Blockquote|text=We saw = it.|author=X}} {{quote|1=a=b}}", "We saw = it. a=b"),
        ("{{nowrap|[[Old mill|the mill]] 1}} {{abbr|km|kilometre}} {{small|(low)}}", "the mill 1 km (low)"),
        ("1914{{ndash}}1918, a{{snd}}b,{{nbsp}}c {{'}}d{{!}}", "1914–1918, a – b, c 'd|"),
        ("{{frac|1|2}} {{frac|3|1|2}} {{frac|4}}", "1/2 3 1/2 1/4"),
        (
            "({{circa|1850}}; {{c.|1850|1900}}; {{circa}} 1700; {{fl.|1720}})",
            "(c. 1850; c. 1850 – c. 1900; c. 1700; fl. 1720)",
        ),
        (
            "Born {{birth date and age|df=yes|1950|1|2}}, {{Birth date|1879|3|14}}",
            "Born 2 January 1950, March 14, 1879",
        ),
        (
            "{{death date and age|1955|4|18|1879|3|14}} {{start date|2004|07}} {{date|2012-03-04}}",
            "April 18, 1955 (aged 76) July 2004 March 4, 2012",
        ),
        (
            "aged {{age|1950|1|2|2000|1|1}}, {{as of|2012|3}}, {{As of|2012|lc=y}}",
            "aged 49, As of March 2012, as of 2012",
        ),
        ("{{formatnum:1234567.5}} {{lc:ABC}} {{#if:x|yes|no}} {{#if: |yes|no}}", "1,234,567.5 abc yes no"),
        ("{{IPA|/mɪl/}} {{IPA-fr|mulɛ̃}} {{IPA|fr|mulɛ̃}} {{IPAc-en|m|ɪ|l}}", "/mɪl/ [mulɛ̃] [mulɛ̃] /mɪl/"),
        (
            "{{USS|Enterprise|CV-6}}, {{US$|5 million}}, {{val|1.2|0.3|u=kg}}",
            "USS Enterprise (CV-6), US$5 million, 1.2±0.3 kg",
        ),
        ("{{lang|de|{{nowrap|a{{snd}}{{lang|fr|b}}}}}}", "a – b"),
        ("{{Unknown|x}} stays out. {{cite web|url=a|title={{lang|de|b}}}}", "stays out."),
        // Braces in code, comments and references close nothing.
        ("{{small|<nowiki>}}</nowiki> a}} <!-- {{ --> b<ref>{{</ref> c", "}} a b c"),
        ("<math>\\frac{{1}}{{2}}</math> {{nowrap|<math>a|b</math>}}", "\\frac{{1}}{{2}} a|b"),
        ("one\n{{unknown}}\ntwo", "one\ntwo"),
        ("== {{lang|de|Mühle}} ==\nx", "Mühle\n\nx"),
        ("{|\n| {{small|a}}\n|}\nafter {{{a|{{b}}}}}", "after"),
    ] {
        assert_eq!(text_of(wikitext), wanted, "{wikitext}");
    }
    let deep = format!("{}x{}", "{{small|".repeat(10_000), "}}".repeat(10_000));
    assert_eq!(text_of(&deep), "");
}

#[test]
fn what_is_not_closed_is_text_and_nothing_is_quadratic() {
    assert_eq!(text_of("a {{b c"), "a {{b c");
    assert_eq!(text_of("a {{b}} c }} d"), "a c }} d");
    assert_eq!(text_of("don't [[open\n\nnext"), "don't open\n\nnext");
    assert_eq!(text_of("1 < 2 and 3 > 2"), "1 < 2 and 3 > 2");
    assert_eq!(text_of("<nowiki>[[x]]</nowiki> <b>bold</b>"), "[[x]] bold");
    assert_eq!(text_of("[[a|b]] [[Talk:a]] [x]"), "b Talk:a [x]");
    for piece in [
        "{{",
        "}}",
        "{{{",
        "{{small|",
        "{{{a|",
        "{{a|{{b}}",
        "{{lang|de|<nowiki>",
        "{|\n",
        "[[",
        "<ref>",
        "<!--",
        "== a ==\n",
        "''",
        "[http://",
        "<x",
        "\n",
        "|",
        "__",
    ] {
        let limits = MarkupLimits { max_depth: usize::MAX, ..MarkupLimits::default() };
        plain_text(&piece.repeat(100_000), &Namespaces::default(), &limits).unwrap();
    }
    let deep = plain_text(&"[[".repeat(1000), &Namespaces::default(), &MarkupLimits::default());
    assert!(matches!(deep, Err(MarkupError::TooDeep { .. })));
}

#[test]
fn pages_of_a_dump_are_read_with_what_decides_about_them() {
    let page = |xml: &str| WikiPage::parse(xml, &MarkupLimits::default());
    let xml = "<page><title>Steel &amp; iron</title><ns>0</ns><id>7</id><revision><id>9</id><timestamp>2026-01-02T03:04:05Z</timestamp>\
        <model>wikitext</model><text xml:space=\"preserve\">'''Steel''' &lt;ref&gt;</text></revision></page>";
    let found = page(xml).unwrap();
    assert_eq!(
        (found.title.as_str(), found.namespace.as_str(), found.id.as_str()),
        ("Steel & iron", "0", "7")
    );
    assert_eq!((found.wikitext.as_str(), found.model.as_str()), ("'''Steel''' <ref>", "wikitext"));
    assert_eq!(found.timestamp.as_deref(), Some("2026-01-02T03:04:05Z"));
    assert_eq!(page("<page><redirect title=\"A\" /></page>").unwrap().redirect.as_deref(), Some("A"));
    for cut in 1..xml.len() {
        assert!(page(&xml[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn posts_are_questions_and_answers() {
    let post = |line: &str| Post::parse(line, &MarkupLimits::default());
    let question = r#"  <row Id="4" PostTypeId="1" AcceptedAnswerId="7" Score="-3" Title="A &lt;b&gt;?" Body="&lt;p&gt;x&amp;amp;y&lt;/p&gt;" CreationDate="2008-07-31" />"#;
    let found = post(question).unwrap().unwrap();
    assert_eq!((found.id, found.score, found.kind), (4, -3, PostKind::Question { accepted: Some(7) }));
    assert_eq!((found.title.as_str(), found.body.as_str()), ("A <b>?", "<p>x&amp;y</p>"));
    let answer = post(r#"<row Id="7" PostTypeId="2" ParentId="4" Body="" />"#).unwrap().unwrap();
    assert_eq!(answer.kind, PostKind::Answer { question: 4 });
    assert_eq!(post(r#"<row Id="8" PostTypeId="5"/>"#).unwrap().unwrap().kind, PostKind::Other);
    assert_eq!(post("<posts>"), Ok(None));
    assert!(post(r#"<row Id="x" PostTypeId="1" />"#).is_err());
    assert!(post(r#"<row Id="4" Body="cut"#).is_err());
}
