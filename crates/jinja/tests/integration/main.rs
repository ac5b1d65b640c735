//! Templates that would take the stack, the memory or the time of the program.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

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
}
