//! Verdicts and values that the tests of the origins state, and edges on which the profiles differ.

use bessemer_rules::{DocumentView, Outcome, Profile, RuleVerdict, Scratch, Verdict};

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

fn explain(profile: &Profile, text: &str) -> Outcome {
    profile.explain(&DocumentView::of(text), &mut Scratch::new())
}

fn dropped(profile: &Profile, text: &str) -> Option<String> {
    match profile.evaluate(&DocumentView::of(text)).verdict {
        Verdict::Drop(label) => Some(label),
        _ => None,
    }
}

/// Label, least and most, of every rule with a limit.
type Limits = &'static [(&'static str, Option<f64>, Option<f64>)];

const fn most(label: &'static str, max: f64) -> (&'static str, Option<f64>, Option<f64>) {
    (label, None, Some(max))
}

const fn least(label: &'static str, min: f64) -> (&'static str, Option<f64>, Option<f64>) {
    (label, Some(min), None)
}

const fn within(label: &'static str, min: f64, max: f64) -> (&'static str, Option<f64>, Option<f64>) {
    (label, Some(min), Some(max))
}

/// The published limits of each profile, in the order of its checks. A rule with two labels has that of its least here.
const PUBLISHED: &[(&str, Limits)] = &[
    (
        "gopher-repetition",
        &[
            least("empty", 1.0),
            most("dup_para_frac", 0.3),
            most("dup_para_char_frac", 0.2),
            most("dup_line_frac", 0.3),
            most("dup_line_char_frac", 0.2),
            most("top_2_gram", 0.2),
            most("top_3_gram", 0.18),
            most("top_4_gram", 0.16),
            most("duplicated_5_n_grams", 0.15),
            most("duplicated_6_n_grams", 0.14),
            most("duplicated_7_n_grams", 0.13),
            most("duplicated_8_n_grams", 0.12),
            most("duplicated_9_n_grams", 0.11),
            most("duplicated_10_n_grams", 0.1),
        ],
    ),
    (
        "gopher-quality",
        &[
            within("gopher_short_doc", 50.0, 100_000.0),
            within("gopher_below_avg_threshold", 3.0, 10.0),
            most("gopher_too_many_hashes", 0.1),
            most("gopher_too_many_ellipsis", 0.1),
            most("gopher_too_many_bullets", 0.9),
            most("gopher_too_many_end_ellipsis", 0.3),
            least("gopher_below_alpha_threshold", 0.8),
            least("gopher_enough_stop_words", 2.0),
        ],
    ),
    (
        "fineweb-quality",
        &[
            least("empty", 1.0),
            least("line_punct_ratio", 0.12),
            most("short_line_ratio", 0.67),
            most("char_dup_ratio", 0.01),
            most("list_ratio", 0.3),
        ],
    ),
    (
        "refinedweb",
        &[
            within("page_length_filter", 50.0, 100_000.0),
            within("word_length_filter", 3.0, 10.0),
            most("symbol_ratio_filter", 0.1),
            most("bullet_count_filter", 0.9),
            most("ellipsis_count_filter", 0.3),
            most("alphabetic_word_ratio_filter", 0.2),
            least("stop_word_filter", 2.0),
            most("repeated_lines", 0.3),
            most("repeated_paragraphs", 0.3),
            most("repeated_line_chars", 0.2),
            most("repeated_paragraph_chars", 0.2),
            most("top_2_gram", 0.2),
            most("top_3_gram", 0.18),
            most("top_4_gram", 0.16),
            most("repeated_5_grams", 0.15),
            most("repeated_6_grams", 0.14),
            most("repeated_7_grams", 0.13),
            most("repeated_8_grams", 0.12),
            most("repeated_9_grams", 0.11),
            most("repeated_10_grams", 0.1),
            most("word_removal_ratio_filter", 0.05),
        ],
    ),
    (
        "nemo",
        &[
            within("word_count", 50.0, 100_000.0),
            most("alpha_numeric", 0.25),
            most("symbol_to_word", 0.1),
            most("numbers_ratio", 0.15),
            most("urls_ratio", 0.2),
            most("white_space", 0.25),
            most("parentheses_ratio", 0.1),
            most("boilerplate_string_ratio", 0.4),
            within("mean_word_length", 3.0, 10.0),
            most("max_word_length", 1000.0),
            most("punctuation", 0.85),
            most("ellipsis", 0.3),
            most("bullet_ratio", 0.9),
            least("common_english_words", 2.0),
            least("words_without_alphabets", 0.8),
            least("repeated_lines", 0.7),
            least("repeated_paragraphs", 0.7),
            least("repeated_lines_char", 0.8),
            least("repeated_paragraphs_char", 0.8),
            most("repeating_top_2grams", 0.2),
            most("repeating_top_3grams", 0.18),
            most("repeating_top_4grams", 0.16),
            most("repeating_dup_5gram", 0.15),
            most("repeating_dup_6gram", 0.14),
            most("repeating_dup_7gram", 0.13),
            most("repeating_dup_8gram", 0.12),
            most("repeating_dup_9gram", 0.11),
            most("repeating_dup_10gram", 0.1),
        ],
    ),
    (
        "code",
        &[
            most("max_line_length", 1000.0),
            most("avg_line_length", 100.0),
            least("alphanumeric_ratio", 0.25),
            most("xml_header", 0.0),
        ],
    ),
    (
        "santacoder",
        &[
            most("line_max", 1000.0),
            most("line_mean", 100.0),
            least("alpha_frac", 0.25),
            within("min_threshold_comments", 0.01, 0.8),
        ],
    ),
];

#[test]
fn limits_are_the_published_ones_in_the_published_order() {
    for (name, published) in PUBLISHED {
        let profile = profile(name);
        let steps = profile.file().step.iter().filter(|step| step.min.is_some() || step.max.is_some());
        let found: Vec<_> = steps
            .map(|step| (step.below.as_deref().or(step.label.as_deref()).unwrap_or(""), step.min, step.max))
            .collect();
        assert_eq!(found, *published, "{name}");
    }
}

/// C4's line rules beyond the orders that c4.rs tests: the limits, by what just passes and what just does not.
#[test]
fn c4_limits() {
    let sentence = "One more sentence stands here, and it says little.";
    let text = |lines: &[&str]| [lines, &[sentence; 5]].concat().join("\n");
    let kept = |lines: &[&str]| match profile("c4").evaluate(&DocumentView::of(&text(lines))).verdict {
        Verdict::Keep => text(lines),
        Verdict::Edit(text) => text,
        Verdict::Drop(label) => label,
    };
    let rest = text(&[]);
    let word = |length: usize| format!("A line with {}.", "x".repeat(length - 1));
    assert_eq!(kept(&[&word(1000)]), text(&[&word(1000)]));
    assert_eq!(kept(&[&word(1001)]), rest);
    // Three words, and words of citations count.
    assert_eq!(kept(&["Two words."]), rest);
    assert_eq!(kept(&["Three words here."]), text(&["Three words here."]));
    assert_eq!(kept(&["Two [1] words."]), text(&["Two  words."]));
    for line in [
        "No mark at the end",
        "It goes on and on...",
        "We use cookies on this page.",
        "Enable JavaScript to go on.",
    ] {
        assert_eq!(kept(&[line]), rest, "{line}");
    }
    for line in ["Is it so?", "It is so!", "He said \"yes it is\"", "He said 'yes it is'"] {
        assert_eq!(kept(&[line]), text(&[line]), "{line}");
    }
    assert_eq!(kept(&["A line with Lorem ipsum in it."]), "lorem_ipsum");
    assert_eq!(kept(&["A line with { in it."]), "curly_bracket");
    // Document rules see only lines that came so far.
    assert_eq!(kept(&["No mark, but lorem ipsum and {"]), rest);
    let four = [sentence; 4].join("\n");
    assert_eq!(dropped(&profile("c4"), &four).as_deref(), Some("too_few_sentences"));
}

/// mC4's rule: three lines of at least 200 characters.
#[test]
fn c4_paragraphs() {
    let text =
        |length: usize| ["x".repeat(length), "short".into(), "y".repeat(300), "z".repeat(200)].join("\n");
    let paragraphs = profile("c4-paragraphs");
    assert_eq!(dropped(&paragraphs, &text(200)), None);
    assert!(dropped(&paragraphs, &text(199)).is_some());
    assert!(dropped(&paragraphs, &["x".repeat(900), "y".repeat(900)].join("\n")).is_some());
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
    let third = of("fraction_of_characters_in_most_common_3grams").unwrap_or_default();
    assert!((third - 0.583_333).abs() < 1e-6, "{third}");
    assert_eq!(of("fraction_of_characters_in_most_common_4grams"), Some(1.0));
    assert_eq!(of("fraction_of_characters_in_duplicate_5grams"), None);
    assert_eq!(value("rule = \"chars\"", "This is a test."), Some(15.0));
}

/// The other texts of dolma's test_gopher.py.
#[test]
fn dolma_attributes_of_several_lines() {
    let text = "This is a sentence. \n  \n This is another sentence.\n\n  This is a third sentence.";
    let result = explain(&profile("dolma"), text);
    for (label, wanted) in [
        ("fraction_of_characters_in_most_common_2grams", 0.305_084_745_762_711_9),
        ("fraction_of_characters_in_most_common_3grams", 0.237_288_135_593_220_35),
        ("fraction_of_characters_in_most_common_4grams", 0.271_186_440_677_966_1),
        ("fraction_of_characters_in_duplicate_5grams", 0.0),
        ("fraction_of_characters_in_duplicate_6grams", 0.0),
        ("fraction_of_characters_in_duplicate_7grams", 0.0),
        ("fraction_of_characters_in_duplicate_8grams", 0.0),
        ("fraction_of_characters_in_duplicate_9grams", 0.0),
        ("fraction_of_characters_in_duplicate_10grams", 0.0),
        ("word_count", 13.0),
        ("median_word_length", 4.0),
        ("symbol_to_word_ratio", 0.0),
        ("fraction_of_words_with_alpha_character", 1.0),
        ("required_word_count", 0.0),
        ("fraction_of_lines_starting_with_bullet_point", 0.0),
        ("fraction_of_lines_ending_with_ellipsis", 0.0),
        ("fraction_of_duplicate_lines", 0.0),
        ("fraction_of_characters_in_duplicate_lines", 0.0),
    ] {
        let found = result.rules.iter().find(|rule| rule.label == label).and_then(|rule| rule.value);
        let found = found.unwrap_or_else(|| panic!("{label} has no value"));
        assert!((found - wanted).abs() < 1e-15, "{label}: {found}");
    }
    assert_eq!(value("rule = \"chars\"", text), Some(79.0));
    let of = |text: &str, label: &str| {
        let rules = explain(&profile("dolma"), text).rules;
        rules.into_iter().find(|rule| rule.label == label).and_then(|rule| rule.value)
    };
    assert_eq!(of("T h i s \n    \n\n\n    isoneword !!!", "word_count"), Some(6.0));
    assert_eq!(of("The.and.that", "required_word_count"), Some(0.0));
    assert_eq!(of("The and that", "required_word_count"), Some(2.0));
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
    let evaluated = relaxed.evaluate(&DocumentView::of(&lines.join("\n"))).verdict;
    assert_eq!(evaluated, Verdict::Edit(text.join("\n")));
    // More than 5 % of the words go with the loud lines.
    lines.insert(5, "THIS IS SHOUTED AND SHOUTED AND SHOUTED OVER AND OVER AND OVER AGAIN".into());
    assert_eq!(dropped(&relaxed, &lines.join("\n")).as_deref(), Some("word_removal_ratio_filter"));
    // Nothing is left without its URLs.
    assert_eq!(dropped(&relaxed, "http://example.com/").as_deref(), Some("empty"));
    assert_eq!(dropped(&relaxed, "A few words.").as_deref(), Some("page_length_filter"));
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

/// The limits of SantaCoder: 1 % to 80 % of the characters are comment.
#[test]
fn santacoder_comment_shares() {
    let (c, python) = (profile("santacoder"), profile("santacoder-python"));
    let code = "int sum(int a, int b) { return a + b; }\n";
    assert_eq!(dropped(&c, code).as_deref(), Some("min_threshold_comments"));
    assert_eq!(dropped(&c, &format!("// Adds.\n{code}")), None);
    let prose = "// Adds two numbers that are small enough, and says nothing of others.\n".repeat(8);
    assert_eq!(dropped(&c, &format!("{prose}{code}")).as_deref(), Some("max_threshold_comments"));
    assert_eq!(dropped(&c, &format!("{}\n// x", "a".repeat(1001))).as_deref(), Some("line_max"));
    assert_eq!(dropped(&c, &format!("{}\n// x", "a b ".repeat(60))).as_deref(), Some("line_mean"));
    let code = "def add(a, b):\n    return a + b\n";
    assert_eq!(dropped(&python, code).as_deref(), Some("min_threshold_comments"));
    assert_eq!(dropped(&python, "def add(a, b):\n    \"\"\"Adds.\"\"\"\n    return a + b\n"), None);
    assert_eq!(dropped(&python, &format!("{code}# added\n")), None);
    assert_eq!(value("rule = \"comment-chars\"\nsyntax = \"hash\"", "ab # cd\n"), Some(0.5));
}

/// URLs go before words are counted: neither are they words of the document, nor do they count as cut by the line rules.
#[test]
fn refinedweb_cuts_urls_first() {
    let sentence =
        "The people of the town have to be with the others and that is good for them all every day";
    let refinedweb = profile("refinedweb");
    let relaxed = {
        let mut file = refinedweb.file().clone();
        file.step.retain(|step| step.rule.as_deref().is_none_or(|rule| !rule.ends_with("ngram-chars")));
        Profile::compile(file, None).unwrap_or_else(|error| panic!("{error}"))
    };
    let plain: Vec<String> = (0..12).map(|n| format!("{n} {}{sentence}.", "x".repeat(n))).collect();
    let linked: Vec<String> =
        plain.iter().map(|line| format!("{line} https://example.com/{}", line.len())).collect();
    let evaluated = relaxed.evaluate(&DocumentView::of(&linked.join("\n"))).verdict;
    assert_eq!(evaluated, Verdict::Edit(plain.join("\n")));
    let explained = explain(&relaxed, &linked.join("\n"));
    let of = |rule: &str| {
        explained.rules.iter().find(|result| result.rule == rule).and_then(|result| result.value)
    };
    assert_eq!((of("correct.urls"), of("removed-words")), (Some(12.0), Some(0.0)));
}

#[test]
fn explaining_and_evaluating_agree() {
    let texts = [
        String::new(),
        "I am Frank, I am Frank, I am Frank".into(),
        "A line with a {bracket} and [1] more.\n".repeat(3),
        include_str!("goldens.rs").into(),
        include_str!("../../../../ARCHITECTURE.md").into(),
        include_str!("../../../../README.md").replace("```", ""),
    ];
    let mut scratch = Scratch::new();
    for name in Profile::names().into_iter().chain(["fineweb2-deu_Latn", "fineweb2-cmn_Hani"]) {
        let profile = profile(name);
        for text in &texts {
            let document = DocumentView::of(text);
            let evaluated = profile.evaluate_with(&document, &mut scratch);
            let explained = profile.explain(&document, &mut scratch);
            assert_eq!(evaluated.verdict, explained.verdict, "{name}");
            assert_eq!(evaluated.verdict, profile.evaluate(&document).verdict);
            assert!(evaluated.rules.is_empty() && explained.rules.len() >= profile.len(), "{name}");
            let first = explained.rules.iter().find(|rule| rule.verdict == RuleVerdict::Fail);
            match evaluated.verdict {
                Verdict::Drop(label) => assert_eq!(first.map(|rule| rule.label.clone()), Some(label)),
                _ => assert_eq!(first, None, "{name}"),
            }
        }
    }
}

#[test]
fn hostile_texts_are_evaluated_in_linear_time() {
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
