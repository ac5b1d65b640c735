//! Verdicts and values that the tests of the origins state, and edges on which the profiles differ.

use bessemer_rules::{DocumentView, Judgement, Profile, RuleVerdict, Scratch, Verdict};

fn profile(name: &str) -> Profile {
    Profile::named(name).unwrap_or_else(|error| panic!("{error}"))
}

fn own(steps: &str) -> Profile {
    Profile::parse(&format!("name = \"own\"\nwords = \"whitespace\"\n{steps}"), None)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The value of the only rule of a profile.
fn value(steps: &str, text: &str) -> Option<f64> {
    explain(&own(&format!("[[step]]\n{steps}")), text).rules[0].value
}

fn explain(profile: &Profile, text: &str) -> Judgement {
    profile.explain(&DocumentView::of(text), &mut Scratch::new())
}

fn dropped(profile: &Profile, text: &str) -> Option<String> {
    match profile.judge(&DocumentView::of(text)).verdict {
        Verdict::Drop(label) => Some(label),
        _ => None,
    }
}

#[test]
fn datatrove_repetition() {
    let repetition = profile("gopher-repetition");
    for (text, label) in [
        ("I am your father.\n".repeat(4), "dup_line_frac"),
        ("I am your father.\n\n".repeat(4), "dup_para_frac"),
        ("I am Frank, I am Frank, I am Frank".into(), "top_2_gram"),
        (String::new(), "empty"),
    ] {
        assert_eq!(dropped(&repetition, &text).as_deref(), Some(label), "{text}");
    }
}

#[test]
fn datatrove_quality() {
    let mut file = profile("gopher-quality").file().clone();
    file.step[0].min = Some(10.0);
    let quality = Profile::compile(file, None).unwrap_or_else(|error| panic!("{error}"));
    for (text, label) in [
        ("I am too small...".to_owned(), "gopher_short_doc"),
        ("I am ".repeat(20), "gopher_below_avg_threshold"),
        ("interconnection ".repeat(20), "gopher_above_avg_threshold"),
        ("# comment ".repeat(20), "gopher_too_many_hashes"),
        ("comment ... ".repeat(20), "gopher_too_many_ellipsis"),
        ("• bullet line here\n".repeat(20), "gopher_too_many_bullets"),
        (
            "these lines about the people of that town never end ...\n".repeat(20),
            "gopher_too_many_end_ellipsis",
        ),
        ("word 1111 2222 3333 ".repeat(10), "gopher_below_alpha_threshold"),
        ("word after word ".repeat(20), "gopher_enough_stop_words"),
        ("THE word BE after word ".repeat(20), "gopher_enough_stop_words"),
    ] {
        assert_eq!(dropped(&quality, &text).as_deref(), Some(label), "{text}");
    }
    assert_eq!(dropped(&quality, &"the word to be after word ".repeat(20)), None);
    assert_eq!(dropped(&profile("gopher-quality"), "").as_deref(), Some("gopher_short_doc"));
}

#[test]
fn dolma_attributes() {
    // dolma tests: "This is a test." has 13 spans; n-grams of more than 4 words have none.
    let result = explain(&profile("dolma"), "This is a test.");
    let of = |label: &str| result.rules.iter().find(|rule| rule.label == label).and_then(|rule| rule.value);
    assert_eq!(of("word_count"), Some(4.0));
    assert_eq!(of("median_word_length"), Some(3.0));
    assert_eq!(of("symbol_to_word_ratio"), Some(0.0));
    assert_eq!(of("fraction_of_words_with_alpha_character"), Some(1.0));
    assert_eq!(of("required_word_count"), Some(0.0));
    assert_eq!(of("fraction_of_characters_in_most_common_2grams"), Some(0.5));
    assert_eq!(of("fraction_of_characters_in_most_common_4grams"), Some(1.0));
    assert_eq!(of("fraction_of_characters_in_duplicate_5grams"), None);
    assert_eq!(value("rule = \"chars\"", "This is a test."), Some(15.0));
}

#[test]
fn dclm_repetition() {
    let line = "rule = \"repeated-lines\"\nlines = \"stripped\"";
    let chars = "rule = \"repeated-line-chars\"\nlines = \"stripped\"";
    let text = "Hello, World.\nHello, World.\n\nHello";
    assert_eq!(value(line, text), Some(2.0 / 3.0));
    assert_eq!(value(chars, text), Some(26.0 / 31.0));
    assert_eq!(value(line, "Hello\nHello\n\n\n\nHello"), Some(1.0));
    assert_eq!(value(line, "Hello, World."), None);
    let paragraphs = "rule = \"repeated-line-chars\"\nlines = \"stripped-paragraphs\"";
    assert_eq!(
        value(paragraphs, "Hello, World.\n\nHello, World.\n\nHello, World.\nHello"),
        Some(26.0 / 45.0)
    );
}

#[test]
fn variants_differ_on_short_texts() {
    let top = |variant: &str, text: &str| {
        value(&format!("rule = \"top-ngram-chars\"\nn = 2\nvariant = \"{variant}\""), text)
    };
    // Every window comes once: datatrove and Dolma count it all the same, DCLM and RedPajama v2 do not.
    let text = "one two three";
    assert_eq!(top("datatrove", text), Some(7.0 / 13.0));
    assert_eq!(top("dolma", text), Some(6.0 / 11.0));
    assert_eq!(top("dclm", text), Some(0.0));
    assert_eq!(top("rpv2", text), Some(0.0));
    // Ties: the first seen, or the longest.
    let text = "a b a b long words long words";
    assert_eq!(top("dolma", text), Some(4.0 / 22.0));
    assert_eq!(top("dclm", text), Some(18.0 / 22.0));
    assert_eq!(top("rpv2", text), Some(4.0 / 22.0));
    // No window at all.
    assert_eq!((top("datatrove", "one"), top("dclm", "one"), top("rpv2", "one")), (None, None, Some(0.0)));
    // A single line repeats nothing for DCLM, and has a value for Dolma.
    assert_eq!(value("rule = \"repeated-lines\"\nlines = \"newlines\"", "x\n"), Some(0.0));
    let later = |text: &str| value("rule = \"later-duplicates\"\nlines = \"newline-runs\"", text);
    assert_eq!((later("x\nx"), later("x"), later("")), (Some(0.5), Some(0.0), Some(0.0)));
}

#[test]
fn fineweb_quality_edges() {
    let quality = profile("fineweb-quality");
    assert_eq!(dropped(&quality, " \n\t\n").as_deref(), Some("empty"));
    let line =
        |n: usize| format!("This line number {n} is long enough for the rule and it ends with a mark.");
    let good: Vec<String> = (0..10).map(line).collect();
    assert_eq!(dropped(&quality, &good.join("\n")), None);
    assert_eq!(dropped(&quality, &good.join("\n").replace('.', "")).as_deref(), Some("line_punct_ratio"));
    // Trailing white space is not passed over: the mark is no longer at the end.
    assert_eq!(dropped(&quality, &good.join(" \n")).as_deref(), Some("line_punct_ratio"));
    assert_eq!(dropped(&quality, &good.join("\r\n")).as_deref(), Some("line_punct_ratio"));
    let hindi: Vec<String> = (0..10).map(|n| format!("{} {n}।", "शब्द".repeat(12))).collect();
    assert_eq!(dropped(&quality, &hindi.join("\n")), None);
    assert_eq!(dropped(&quality, &"Short.\n".repeat(3)).as_deref(), Some("short_line_ratio"));
    let twice = [good.clone(), good.clone()].concat().join("\n");
    assert_eq!(dropped(&quality, &twice).as_deref(), Some("char_dup_ratio"));
    assert_eq!(dropped(&quality, &format!("{}\n", good[0]).replace(' ', "")).as_deref(), Some("list_ratio"));
}

#[test]
fn refinedweb_cuts_lines_and_counts_what_it_cut() {
    let sentence =
        "The people of the town have to be with the others and that is good for them all every day";
    let text: Vec<String> = (0..12).map(|n| format!("{n} {}{sentence}.", "x".repeat(n))).collect();
    let mut lines = text.clone();
    lines.insert(3, "15 likes".into());
    let refinedweb = profile("refinedweb");
    let relaxed = {
        let mut file = refinedweb.file().clone();
        file.step.retain(|step| step.rule.as_deref().is_none_or(|rule| !rule.ends_with("ngram-chars")));
        Profile::compile(file, None).unwrap_or_else(|error| panic!("{error}"))
    };
    let judged = relaxed.judge(&DocumentView::of(&lines.join("\n"))).verdict;
    assert_eq!(judged, Verdict::Edit(text.join("\n")));
    // More than 5 % of the words go with the loud lines.
    lines.insert(5, "THIS IS SHOUTED AND SHOUTED AND SHOUTED OVER AND OVER AND OVER AGAIN".into());
    assert_eq!(dropped(&relaxed, &lines.join("\n")).as_deref(), Some("word_removal_ratio_filter"));
    assert_eq!(dropped(&relaxed, "").as_deref(), Some("page_length_filter"));
}

#[test]
fn code_rules() {
    let code = profile("code");
    assert_eq!(dropped(&code, "fn main() {}\n"), None);
    assert_eq!(dropped(&code, &"a".repeat(1001)).as_deref(), Some("max_line_length"));
    assert_eq!(dropped(&code, &"a".repeat(101)).as_deref(), Some("avg_line_length"));
    assert_eq!(dropped(&code, "{}()[];").as_deref(), Some("alphanumeric_ratio"));
    assert_eq!(
        dropped(&code, "<?xml version=\"1.0\"?>\n<a>text and text</a>").as_deref(),
        Some("xml_header")
    );
    assert_eq!(dropped(&code, &format!("{}\n<?xml version=", "word ".repeat(20))), None);
}

#[test]
fn explaining_and_judging_agree() {
    let texts = [
        String::new(),
        "I am Frank, I am Frank, I am Frank".into(),
        "A line with a {bracket} and [1] more.\n".repeat(3),
        include_str!("goldens.rs").into(),
        include_str!("../../../ARCHITECTURE.md").into(),
        include_str!("../../../README.md").replace("```", ""),
    ];
    let mut scratch = Scratch::new();
    for name in Profile::names() {
        let profile = profile(name);
        for text in &texts {
            let document = DocumentView::of(text);
            let judged = profile.judge_with(&document, &mut scratch);
            let explained = profile.explain(&document, &mut scratch);
            assert_eq!(judged.verdict, explained.verdict, "{name}");
            assert_eq!(judged.verdict, profile.judge(&document).verdict);
            assert!(judged.rules.is_empty() && explained.rules.len() >= profile.len(), "{name}");
            let first = explained.rules.iter().find(|rule| rule.verdict == RuleVerdict::Fail);
            match judged.verdict {
                Verdict::Drop(label) => assert_eq!(first.map(|rule| rule.label.clone()), Some(label)),
                _ => assert_eq!(first, None, "{name}"),
            }
        }
    }
}

#[test]
fn hostile_texts_are_judged_in_linear_time() {
    let mut scratch = Scratch::new();
    for piece in [
        "a", " ", "\n", "[", "{", "<", "...", "…", "\u{301}", "-\n", "a b ", "http://", "\r", "漢", "1 ",
        "\u{0}", "lorem", "<script>", "\u{200b}", "a.", "\n\n",
    ] {
        let text = piece.repeat(200_000 / piece.len());
        for name in Profile::names() {
            profile(name).explain(&DocumentView::of(&text), &mut scratch);
        }
    }
}
