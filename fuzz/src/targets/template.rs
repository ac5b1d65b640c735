//! Jinja templates of models, tasks and judges, rendered for a short conversation.

use bessemer_jinja::{BoundedTemplate, WhiteSpace, environment};

/// Steps of one rendering: enough to get anywhere, few enough for many cases.
const STEPS: u64 = 20_000;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut environment = environment(WhiteSpace { trim_statements: true, keep_last_line_break: false });
    environment.set_fuel(Some(STEPS));
    let Ok(template) = BoundedTemplate::new(environment, text) else { return };
    let message = minijinja::context! { role => "user", content => "a question" };
    let messages = minijinja::Value::from(vec![message]);
    if let Ok(text) = template.render(minijinja::context! { messages, text => "x" }) {
        // A step pays for 64 bytes.
        assert!(text.len() as u64 <= 64 * STEPS);
    }
    assert!(template.undeclared().is_ok());
}
