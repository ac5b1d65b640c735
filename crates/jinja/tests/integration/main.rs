//! Templates that would take the stack, the memory or the time of the program.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod growth;

use bessemer_jinja::{BoundedTemplate, WhiteSpace, environment};
use minijinja::value::{Serde, Value};
use serde_json::json;
use std::time::{Duration, Instant};

const AS_WRITTEN: WhiteSpace = WhiteSpace { trim_statements: false, keep_last_line_break: true };

fn render(source: &str) -> Result<String, String> {
    let template = BoundedTemplate::new(environment(AS_WRITTEN), source).map_err(|e| format!("{e:#}"))?;
    let context =
        Value::from(Serde(json!({"messages": [{"role": "user", "content": "hello"}], "text": "x"})));
    template.render(context).map_err(|e| format!("{e:#}"))
}

/// Repeats a body more often than the steps allow.
fn looped(before: &str, body: &str, after: &str) -> String {
    format!(
        "{before}{{% for i in range(99999) %}}{{% for j in range(99999) %}}{body}{{% endfor %}}{{% endfor %}}{after}"
    )
}

/// Templates that must end soon with an error or a text of bounded length. Those of `fuzz/seeds/template` are the same,
/// with fewer repetitions in their text.
fn hostile() -> Vec<(&'static str, String)> {
    let nested = |open: &str, close: &str, times: usize| {
        format!("{{{{ {}1{} }}}}", open.repeat(times), close.repeat(times))
    };
    let shared = |after: &str| {
        let grow = "{% set a = [a, a] %}{% set b = [b, b] %}".repeat(60);
        format!("{{% set a = [] %}}{{% set b = [] %}}{grow}{after}")
    };
    vec![
        ("sum of 30,000 terms", format!("{{{{ 1{} }}}}", "+1".repeat(30_000))),
        ("sum in a statement", format!("{{% set x = 1{} %}}", "~1".repeat(30_000))),
        ("parentheses", nested("(", ")", 30_000)),
        ("lists", nested("[", "]", 30_000)),
        ("minus signs", nested("-", "", 30_000)),
        ("nots", nested("not ", "", 30_000)),
        ("powers", format!("{{{{ 1{} }}}}", "**1".repeat(30_000))),
        ("filters", format!("{{{{ text{} }}}}", "|upper".repeat(30_000))),
        ("attributes", format!("{{{{ text{} }}}}", ".x".repeat(30_000))),
        ("conditions", format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(30_000))),
        ("branches", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(30_000))),
        ("statements", "{% if 1 %}".repeat(30_000) + &"{% endif %}".repeat(30_000)),
        ("nesting of values", looped("{% set s = namespace(x=[]) %}", "{% set s.x = [s.x] %}", "{{ s.x }}")),
        ("macros that call themselves", "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}".into()),
        ("recursive loop", "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}".into()),
        ("repeated text", "{{ 'x' * 1000000000 }}".into()),
        ("doubled text", looped("{% set s = namespace(x='x') %}", "{% set s.x = s.x ~ s.x %}", "")),
        ("doubled list", looped("{% set s = namespace(x=[1]) %}", "{% set s.x = (s.x + s.x)|list %}", "")),
        (
            "joined text",
            looped("{% set s = namespace(x='xx') %}", "{% set s.x = [s.x, s.x]|join(s.x) %}", ""),
        ),
        ("replaced text", "{% set x = 'x' * 1000000 %}{{ x|replace('x', x) }}".into()),
        ("replaced by the method", "{% set x = 'x' * 1000000 %}{{ x.replace('', x) }}".into()),
        ("centred text", "{{ 'x'|center(1000000000) }}{{ 'x'.center(1000000000) }}".into()),
        ("indented text", "{{ ('\\n' * 100000)|indent(1000000) }}".into()),
        ("format width", "{{ '%1000000000d'|format(1) }}{{ '{:1000000000}'.format(1) }}".into()),
        ("long range", "{{ range(1000000000000)|list }}".into()),
        ("slices", "{{ range(9)|slice(1000000000)|list }}".into()),
        ("batches", "{{ range(9)|batch(1000000000, 'x')|list }}".into()),
        ("output", looped("", "{{ 'x' * 100000 }}", "")),
        ("captured output", looped("", "{% set x %}{{ 'x' * 100000 }}{% endset %}", "")),
        ("escaped output", looped("{% set x = '<' * 100000 %}", "{{ x|escape|tojson }}", "")),
        ("shared lists printed", shared("{{ a }}")),
        ("shared lists as text", shared("{{ a|string|length }}")),
        ("shared lists as JSON", shared("{{ a|tojson }}")),
        ("shared lists shown", shared("{{ a|pprint }}")),
        ("shared lists joined", shared("{{ [a]|join }}")),
        ("shared lists compared", shared("{{ a == b }}")),
        ("shared lists as keys", shared("{{ {a: 1}[b] }}")),
        ("shared lists sorted", shared("{{ [a, b]|sort }}")),
        ("shared lists once each", shared("{{ [a, b]|unique|list|length }}")),
        ("shared lists concatenated", shared("{{ a ~ b }}")),
        (
            "shared lists of loops",
            format!("{}{{{{ a == 1 }}}}{}", "{% for a in [[a, a]] %}".repeat(60), "{% endfor %}".repeat(60)),
        ),
        (
            "shared lists of blocks",
            format!("{}{{{{ [a] == 1 }}}}{}", "{% with a = [a, a] %}".repeat(60), "{% endwith %}".repeat(60)),
        ),
        ("shared lists of macros", "{% macro f(a) %}{{ f([a, a]) }}{% endmacro %}{{ f([]) }}".into()),
        (
            "shared lists of captures",
            "{% set a = [] %}".to_owned()
                + &"{% set a | default([a, a], true) %}{% endset %}".repeat(60)
                + "{{ [a] == [[a]] }}",
        ),
        ("a namespace in itself, printed", "{% set n = namespace() %}{% set n.n = n %}{{ n }}".into()),
        (
            "a namespace in itself, as JSON",
            "{% set n = namespace() %}{% set n.n = [n] %}{{ n|tojson }}".into(),
        ),
        (
            "a namespace in itself, compared",
            "{% set n = namespace() %}{% set n.n = n %}{{ n.n == n.n.n }}".into(),
        ),
        (
            "two namespaces in each other",
            "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ [a] == [b] }}".into(),
        ),
        ("repeated list of long texts", "{{ ['a' * 1000000] * 1000000 }}".into()),
        ("repeated list, joined", "{{ (['a' * 1000000] * 1000000)|join }}".into()),
        ("indent of JSON", "{{ [[1]]|tojson(indent=1000000000) }}".into()),
        ("indent of JSON by place", "{{ [[1]]|tojson(1000000000) }}".into()),
        ("format precision", "{{ '{:.999999999f}'.format(1.0) }}".into()),
        ("numbers", looped("{% set s = namespace(x=9) %}", "{% set s.x = s.x * s.x %}", "")),
    ]
}

#[test]
fn hostile_templates_end_soon_and_within_memory() {
    for (name, source) in hostile() {
        let begun = Instant::now();
        // The stack of a test's thread, a fourth of the main thread's.
        let found = render(&source);
        assert!(begun.elapsed() < Duration::from_secs(20), "{name}: {:?}", begun.elapsed());
        if let Ok(text) = &found {
            assert!(text.len() < 64_000_000, "{name}: {} bytes", text.len());
        }
        let ends = ["nots", "minus signs", "slices", "escaped output"];
        assert!(found.is_err() || ends.contains(&name), "{name}: {:.100}", found.unwrap());
    }
}

#[test]
fn values_as_deep_as_the_steps_allow_can_be_printed_compared_and_dropped() {
    // Each takes fewer steps than there are.
    let grow = "{% set s = namespace(x=[], y=[]) %}{% for i in range(40000) %}{% set s.x = [s.x] %}{% set s.y = [s.y] %}{% endfor %}";
    for (after, wanted) in [
        ("{{ 1 }}", "1"),
        ("{{ s.x == s.y }}", ""),
        ("{{ s.x|string|length }}", ""),
        ("{{ s.x|tojson|length }}", ""),
    ] {
        let found = render(&format!("{grow}{after}"));
        assert!(found.is_err() || wanted.is_empty() || found.as_deref() == Ok(wanted), "{after}: {found:?}");
    }
}

#[test]
fn limits_say_what_was_found() {
    let error = render(&format!("\n{{{{ 1{} }}}}", "+1".repeat(30_000))).unwrap_err();
    assert!(error.contains("at most 1000 tokens in a tag") && error.contains("line 2"), "{error}");
    let error = render(&"x".repeat(2 << 20)).unwrap_err();
    assert!(error.contains("at most 1048576 bytes, found 2097152"), "{error}");
    let error = render(&format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(501))).unwrap_err();
    assert!(error.contains("at most 500 branches of elif, found 501"), "{error}");
    // Quotes, comments and raw text hide no tag, and are none.
    let long = "+1".repeat(30_000);
    assert!(render(&format!("{{# \" #}}{{{{ 1{long} }}}}{{# \" #}}")).is_err());
    assert_eq!(render(&format!("{{# {{{{ 1{long} #}}a{{% raw %}}{{{{{{% endraw %}}")).unwrap(), "a{{");
    assert_eq!(render(&format!("{{{{ '{long}'|length }}}}")).unwrap(), "60000");
}

/// Checks that are written into a template change no text. Right: what Jinja2 gives.
#[test]
fn checks_of_variables_leave_the_text_as_it_is() {
    let trimmed = WhiteSpace { trim_statements: true, keep_last_line_break: false };
    for (source, wanted, wanted_trimmed) in [
        ("{% set a = 1 %}\n {{ a }}", "\n 1", " 1"),
        ("{% set a = 1 -%}\n {{ a }}", "1", "1"),
        ("{% set a = 1 +%}\n {{ a }}", "\n 1", "\n 1"),
        ("a \n {%- set a = 1 %}\n{{ a }}", "a\n1", "a1"),
        ("{% set a, b = 1, [2] %}{{ a }}{{ b[0] }}", "12", "12"),
        ("{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}\n{{ n.x }}", "\n2", "2"),
        ("{% set a %}\nx{% endset %}\n{{ a }}", "\n\nx", "x"),
        ("{% set a | upper %}x=1{% endset -%}\n{{ a }}", "X=1", "X=1"),
        ("{% for a, b in {'k': 1}|items %}\n{{ a }}{{ b }}{% else %}none{% endfor %}", "\nk1", "k1"),
        ("{% for m in messages if m.role == 'user' -%}\n {{ m.content }}\n{%- endfor %}", "hello", "hello"),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none", "none"),
        (
            "{% for x in [[1, [2]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
            "(1(2))",
            "(1(2))",
        ),
        ("{% with a = 1, b = [a, 2] %}\n{{ a }}{{ b[1] }}{% endwith %}", "\n12", "12"),
        ("{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "12", "12"),
        (
            "{% macro f(a, b=g(1, 2), c=[1, 2]) -%}\n{{ a }}{{ b }}{{ c[1] }}{%- endmacro %}{{ f(1, 3) }}",
            "132",
            "132",
        ),
        ("{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}", "False", "False"),
        (
            "{% macro f() %}<{{ caller('x') }}>{% endmacro %}{% call(u) f() %}{{ u }}{% endcall %}",
            "<x>",
            "<x>",
        ),
        (
            "{% set set = 1 %}{{ set }}{% raw %}{% set a = 1 %}{% endraw %}",
            "1{% set a = 1 %}",
            "1{% set a = 1 %}",
        ),
        ("{% set a = '%}' %}{{ a }}", "%}", "%}"),
        ("{% set a = x if x else {'b': 1} %}{{ a.b }}", "1", "1"),
        (
            "{{ [{'b': 'c'}]|tojson(indent=2)|length }}{{ '{:5.2f} {}'.format(1.5, 123456) }}",
            "24 1.50 123456",
            "24 1.50 123456",
        ),
    ] {
        assert_eq!(render(source).as_deref(), Ok(wanted), "{source}");
        let template = BoundedTemplate::new(environment(trimmed), source).unwrap();
        let context = json!({"messages": [{"role": "user", "content": "hello"}]});
        assert_eq!(template.render(Value::from(Serde(context))).unwrap(), wanted_trimmed, "{source}");
    }
    let mut strict = environment(AS_WRITTEN);
    strict.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    let source = "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{% set b = nothing %}{% for c in [nothing] %}{{ c is defined }}{% endfor %}";
    assert_eq!(BoundedTemplate::new(strict, source).unwrap().render(Value::from(())).unwrap(), "FalseFalse");
}

/// Right: what apply_chat_template of Transformers gives for the same templates (its `AssistantTracker` renders the body).
#[test]
fn the_tag_generation_renders_its_body() {
    for (source, wanted) in [
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "hello"),
        (
            "{% set generation = 'x' %}{{ generation }}{% raw %}{% generation %}{% endraw %}",
            "x{% generation %}",
        ),
        ("é{% generation %}ü{% endgeneration %}", "éü"),
    ] {
        assert_eq!(render(source).unwrap(), wanted, "{source}");
    }
    assert!(render("{% generation %}a").is_err());
}

#[test]
fn names_that_a_template_reads() {
    let template = BoundedTemplate::new(environment(AS_WRITTEN), "{% set b = a %}{{ b }}{{ c.d }}").unwrap();
    assert_eq!(Vec::from_iter(template.undeclared().unwrap()), ["a", "c"]);
    // A long conversation, copied turn by turn.
    let source = "{% set n = namespace(all=[]) %}{% for m in messages %}{% set n.all = n.all + [m] %}{% endfor %}{{ n.all|length }}";
    let template = BoundedTemplate::new(environment(AS_WRITTEN), source).unwrap();
    let messages = vec![json!({"role": "user", "content": "hello"}); 2000];
    assert_eq!(template.render(Value::from(Serde(json!({ "messages": messages })))).unwrap(), "2000");
}

/// The text with marks, and without; `None` for a template without the tag.
fn marked(source: &str) -> Option<(String, String)> {
    let trims = WhiteSpace { trim_statements: true, keep_last_line_break: false };
    let template = BoundedTemplate::with_answer_marks(environment(trims), source).unwrap();
    let context = |begin: &str, end: &str| {
        let all = json!({"x": "a", "list": [1, 2], "__answer_begin": begin, "__answer_end": end});
        Value::from(Serde(all))
    };
    let text = template.render(context("<", ">")).unwrap();
    let plain = BoundedTemplate::new(environment(trims), source).unwrap().render(context("", "")).unwrap();
    assert_eq!(template.render(context("", "")).unwrap(), plain, "{source}");
    assert_eq!(
        template.undeclared().unwrap(),
        BoundedTemplate::new(environment(trims), source).unwrap().undeclared().unwrap()
    );
    template.has_answer_tag().then_some((text, plain))
}

/// Right: what Jinja2 3.1 renders with the tag of Transformers 5 around the same bodies.
#[test]
fn marks_of_answers_keep_white_space() {
    for (source, wanted) in [
        ("p {% generation %}{{ x }}{% endgeneration %} q", "p <a> q"),
        ("p {%- generation -%} {{ x }} {%- endgeneration -%} q", "p<a>q"),
        ("p {%- generation %} {{ x }} {% endgeneration -%} q", "p< a >q"),
        ("p\n  {% generation %}\n{{ x }}\n  {% endgeneration %}\nq", "p\n<a\n>q"),
        ("{% for i in list %}\n{% generation %}{{ i }}{% endgeneration %}\n{% endfor %}", "<1><2>"),
        ("{% macro f(y) %}{% generation %}{{ y }}{% endgeneration %}{% endmacro %}-{{ f(x) }}-", "-<a>-"),
        ("{% if x %}{% generation %}\n\n b{% endgeneration %}{% endif %}", "<\n b>"),
    ] {
        let (text, plain) = marked(source).unwrap();
        assert_eq!(text, wanted, "{source:?}");
        assert_eq!(plain, wanted.replace(['<', '>'], ""), "{source:?}");
    }
    assert_eq!(marked("{{ x }} {% raw %}{% generation %}{% endraw %}"), None);
}

#[test]
fn names_of_marks_are_reserved() {
    for source in ["{{ __answer_begin }}", "{% set __answer_end = 1 %}"] {
        assert!(render(source).unwrap_err().contains("reserved"), "{source}");
    }
    for source in
        ["{% generation %}", "a{% endgeneration %}", "{% generation %}{% endif %}{% endgeneration %}"]
    {
        assert!(BoundedTemplate::with_answer_marks(environment(AS_WRITTEN), source).is_err(), "{source}");
    }
}
