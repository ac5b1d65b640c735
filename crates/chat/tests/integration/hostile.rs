//! Templates that loop, recurse, read files or print without end.

use crate::common::{chat, of_source, shipped};
use bessemer_chat::{Answers, ChatTemplate, TokenNames};
use std::time::{Duration, Instant};

#[test]
fn templates_that_take_too_much_are_refused() {
    let turns = chat(&[("u", "a"), ("a", "b")]);
    for (source, problem) in [
        ("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", "fuel"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "recursion"),
        ("{{ 'x' * 1000000000 }}", ""),
        (
            "{% set s = namespace(x='x') %}{% for i in range(40) %}{% set s.x = s.x ~ s.x %}{% endfor %}{{ s.x }}",
            "",
        ),
        (
            "{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% generation %}x{% endgeneration %}{% endfor %}",
            "fuel",
        ),
        ("{{ [messages] * 1000000 | tojson }}", ""),
        ("{% include '/etc/passwd' %}", ""),
        ("{% import '/etc/passwd' as p %}{{ p }}", ""),
        ("{% extends '/etc/passwd' %}", ""),
        ("{{ open('/etc/passwd') }}", "open"),
        ("{{ strftime_now('%Y') }}", "strftime_now"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages | tojson(indent=100000) }}", "indent"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", ""),
    ] {
        let begin = Instant::now();
        let template = ChatTemplate::new("test", source, TokenNames::default());
        let error = match template {
            Err(error) => error.to_string(),
            Ok(_) => of_source(source).encode(&turns, Answers::All).unwrap_err().to_string(),
        };
        assert!(error.starts_with("chat template test: ") && error.contains(problem), "{source}: {error}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{source}");
        assert!(error.len() < 2000, "{source}: {error}");
    }
}

#[test]
fn long_chats_and_long_texts_end() {
    let encoder = shipped("chatml");
    let long = "a <|im_end|> [b] ".repeat(100_000);
    let begin = Instant::now();
    let tokens = encoder.encode(&chat(&[("u", &long), ("a", "b")]), Answers::All).unwrap();
    assert_eq!(tokens.ids.iter().filter(|id| encoder.is_special(**id)).count(), 4);
    let turns: Vec<(&str, &str)> =
        (0..10_000).map(|i| if i % 2 == 0 { ("u", "q<") } else { ("a", "r") }).collect();
    let tokens = encoder.encode(&chat(&turns), Answers::All).unwrap();
    assert_eq!(tokens.scored.len(), 5_000);
    // Without the tag every answer is rendered with all before it.
    let prefixes = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let error = of_source(prefixes).encode(&chat(&turns), Answers::All).unwrap_err().to_string();
    assert!(error.contains("wanted the tag generation around answers"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(300));
}
