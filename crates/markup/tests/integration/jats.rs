use bessemer_markup::jats::{article, is_article};
use bessemer_markup::{MarkupError, MarkupLimits};

fn text_of(xml: &str) -> Result<String, MarkupError> {
    article(xml, &MarkupLimits::default()).map(|paper| paper.text)
}

const ARTICLE: &str = r#"<?xml version="1.0"?>
<!DOCTYPE article PUBLIC "-//NLM//DTD JATS" "JATS-archivearticle1.dtd">
<article xmlns:mml="http://www.w3.org/1998/Math/MathML">
<front><journal-meta><journal-title>Iron</journal-title></journal-meta>
<article-meta><title-group><article-title>Steel &amp; <italic>iron</italic></article-title></title-group>
<contrib-group><contrib><name><surname>Doe</surname></name></contrib></contrib-group>
<abstract><p>Cheap&nbsp;steel &#8212; at last.</p></abstract>
<kwd-group><kwd>steel</kwd></kwd-group></article-meta></front>
<body><sec><label>1</label><title>Method</title><p>Air is blown <xref ref-type="bibr">[1]</xref> through
<inline-formula><alternatives><tex-math>\begin{document}$x^2$\end{document}</tex-math><mml:math><mml:mi>x</mml:mi></mml:math></alternatives></inline-formula> iron.</p>
<list><list-item><p>ore</p></list-item><list-item><p>coke</p></list-item></list>
<fig><label>Figure 1</label><caption><title>The converter</title><p>In 1856.</p></caption><graphic/></fig>
<table-wrap><caption><p>Heats</p></caption><table><tr><td>cell</td></tr></table></table-wrap>
</sec></body>
<back><ref-list><ref><mixed-citation><article-title>Other</article-title></mixed-citation></ref></ref-list></back></article>"#;

#[test]
fn an_article_is_title_abstract_body_and_captions() {
    let paper = article(ARTICLE, &MarkupLimits::default()).unwrap();
    assert_eq!(paper.title.as_deref(), Some("Steel & iron"));
    let wanted = "Steel & iron\n\nCheap steel — at last.\n\nMethod\n\nAir is blown [1] through $x^2$ iron.\n\n- ore\n- coke\n\nThe converter\n\nIn 1856.\n\nHeats";
    assert_eq!(paper.text, wanted);
}

#[test]
fn articles_are_recognised_by_their_document_type_or_root() {
    assert!(is_article(ARTICLE));
    assert!(is_article("<!-- x --><article dtd-version='1'>"));
    assert!(!is_article("<html><article>"));
    assert!(!is_article("<!DOCTYPE book><article>"));
    assert!(!is_article("<articles>"));
    assert!(!is_article(""));
}

#[test]
fn a_billion_laughs_costs_its_own_bytes() {
    let mut xml = String::from("<!DOCTYPE article [<!ENTITY a \"lol\">");
    let names: Vec<char> = ('a'..='z').collect();
    for pair in names.windows(2) {
        xml += &format!("<!ENTITY {} \"{}\">", pair[1], format!("&{};", pair[0]).repeat(10));
    }
    xml += "]><article><body><p>ha &z; ha</p></body></article>";
    assert_eq!(text_of(&xml).unwrap(), "ha ha");
}

#[test]
fn damaged_and_deep_documents_are_refused() {
    for cut in 0..ARTICLE.len() {
        let Some(xml) = ARTICLE.get(..cut) else { continue };
        assert!(text_of(xml).is_err(), "cut at {cut}");
    }
    let deep = format!("<article><body>{}", "<p>".repeat(100_000));
    assert!(matches!(text_of(&deep), Err(MarkupError::TooDeep { .. })));
    assert!(matches!(
        text_of("<article><body><p>a</b></p></body></article>"),
        Err(MarkupError::Malformed(_))
    ));
    assert!(matches!(text_of("<article><front/></article>"), Err(MarkupError::NoDocument(_))));
    let limits = MarkupLimits { max_bytes: 10, ..MarkupLimits::default() };
    assert!(matches!(article(ARTICLE, &limits), Err(MarkupError::TooLarge { .. })));
}
