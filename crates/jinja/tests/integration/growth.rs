//! Values that operators and literals make: the text is that of minijinja alone, and large values are refused.

use crate::render;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn variables() -> Value {
    context! {
        a => 7, b => -3, c => 2, big => i128::MAX, wide => u128::MAX, f => 2.5, t => true,
        l => vec![1, 2], s => "ab", m => context! { k => vec![1, 2, 3], n => 4 },
        text => "x < y",
        messages => vec![
            context! { role => "system", content => "Be brief." },
            context! { role => "user", content => " hello " },
            context! { role => "assistant", content => "Hi." },
            context! { role => "user", content => "2 * 3?" },
        ],
        bos_token => "<s>", eos_token => "</s>", add_generation_prompt => true,
    }
}

/// Text, or kind, detail and line of the error. The tokens are read first here: of two errors in the syntax another may be found.
fn outcome(source: &str, rendered: Result<String, minijinja::Error>) -> String {
    match rendered {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::SyntaxError => format!("{source}: {:?} {:?}", e.kind(), e.line()),
        Err(e) => format!("{source}: {:?} {:?} {:?}", e.kind(), e.detail(), e.line()),
    }
}

fn with_minijinja(source: &str) -> String {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(bessemer_jinja::MOST_STEPS));
    let mut syntax = minijinja::syntax::SyntaxConfig::builder();
    environment.set_syntax(syntax.keep_trailing_newline(true).build().unwrap());
    outcome(source, environment.render_named_str("template", source, variables()))
}

fn with_bounds(source: &str) -> String {
    let template =
        bessemer_jinja::BoundedTemplate::new(bessemer_jinja::environment(crate::AS_WRITTEN), source);
    outcome(source, template.and_then(|template| template.render(variables())))
}

#[test]
fn expressions_give_the_text_of_minijinja_alone() {
    let expressions = "
        a * b|a * b * c|a / c * b|a * b / c|a // c * c|a % c * c|a * c % b|a * c ** 3|c ** 2 * a|c ** 3 ** 2 * a
        -a * b|a * -b|-a * -b|- (a * b)|-(-a) * c|a + b * c|a * b + c|a - b * c - a * c|(a + b) * c|a * (b + c)
        (a + b) * (c + a)|((a)) * ((b))|a ~ b * c|a * b ~ c|a ~ b ~ c * c|a * b == c|a * b < c * a|a < b * c < a
        a * b in l|4 in [a, 2 * c]|not a * b|a * 0 or c|a * 0 and c|a * b if t else c|a if a * 0 else b * c
        a * b if a * c > 3 else c * c|l * 2|2 * l|l * 0|l * -1|(l * 2)[3]|(l * 2)[1:3]|(l * 2 * 2)|[l * 2, l]
        l * 2 + l|l + l * 2|(l + l) * 2|s * 3|3 * s|s * 0|s * b|s * c + s|'-' * 5 ~ '>'|'*' * 3|'a * b' * c
        a * c is odd|a * c is divisibleby 2|a is divisibleby c * 2
        a * l.0|a * l[1]|a * m.k[1] * m.n|m['k'] * 2|m.k[0 * 1]|m.k[c * 1:]|m.k[:c * 1]|m.k[::c * 1]|m.k[1:][0]
        m.k[1:][1:]|(m.k)[1:]|((m.k))[1:][0]|m['k'][1:]|s[1:] * 2|s[::-1]|s[1:].upper()|s.upper()[1:]|s.split('b')[0][0:]
        (s ~ s)[1:]|(s * 2)[1:]|-m.k[1:][0]|[a, b][c - 1]|[a, b, c][1:][0]|(a, b)[0]|(a, b, c)[1:]|(a, b) * 2
        [a, [b, [c, a]]]|{'x': a, 'y': b * c}|{'x': a, 'y': b}.x|{a: b, b: c}[a]|[a, b] + [c]
        range(*l)|dict(**m).n|range(1, a * 1)|range(c * 2, a)|dict(x=a * b).x
        7 is in [a, b]|7 is in ([a, b])|7 is in [[a, b], c][0]|2 is in m.k[1:]|2 is in [m.k[1:], l][0]|2 is in(l * 2)
        a is eq -b|a is not in [b, c]|[a, b, c, a, b, c, a, b, c, a, b]|[[a, b, c, a, b, c, a, b, c, a, b], c][0][1]
        {'a': a, 'b': b, 'c': c, 'd': a, 'e': b, 'f': c, 'g': a, 'h': b, 'i': c, 'j': a, 'k': b}.k
        7 is in [[a, b, c, a, b, c, a, b, c, a], l][0]|a + b + c + a + b + c + a + b + c + a + b + c + a + b + c + a + b + c
        [a] + l + l + [b] + l + [c] + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l|s + s + s
        f * a|f * f|t * a|t * t|wide * 1|wide * 2|wide * b|big * c|big * big|big * -2|f * big|nothing * a|a * nothing
        a * none|none * none|s * s|l * l|s * f|l * f|m * c|c * m|l + s|l + a|m + m|a +|* a|a *|a * * b|(a * b|[a, b|l[1:
        a *\n b *\n\n nothing|'%s' % a|'é' ~ s * 2|'é' ~ l * 2|\"'\" * 2 ~ l * 2|1 * 2.0e3|0x10 * 2|l * 2 == l + l";
    // Expressions with the separator.
    let filters = [
        "(l * 2)|length",
        "a|float * c",
        "s|upper * 2",
        "a * b|abs",
        "(a * b)|abs",
        "a * l|length",
        "l|length * a * l|first",
        "m.k|map('string')|list * 2",
        "[a, b]|join(',') * 2",
        "(a, b)|join(',' * 2)",
        "m.k[1:]|join(s * 2)",
        "m.k[1:]|reverse|list",
        "l|map('abs')|list + [a, b, c] * 2",
        "'%d-%s'|format(a * c, s * 2)",
        "[l * 2, l, l, l, l, l, l, l, l, l]|map('length')|join(' ')",
        "7 is in [a, b]|list",
        "m.k|batch(2)|list|length * 2",
        "m.k|batch(2, s * 2)|map('join', ',')|join(';')",
        "m.k|slice(2)|map('list')|list",
        "[m, m]|groupby('n')|map('first')|list",
        "[m, m]|map(attribute='n')|sum * c",
        "m.k|map('string')|map('length')|list",
        "6 is in m.k|map('abs')|list",
        "dict(x=a, y=b, z=c, w=l, k=dict(x=a, y=b, z=c, w=a, v=b, u=c)).k.x",
        "7 is eq dict(x=a, y=b, z=c, w=l, v=a, u=b, t=c, s=l, r=a, q=b, p=c).x",
        "(l * 2)|tojson",
        "l * 2 is sequence",
    ];
    let expressions = expressions.split("\n        ").flat_map(|line| line.split('|'));
    let mut table: Vec<String> = expressions.map(str::to_owned).chain(filters.map(Into::into)).collect();
    // All pairs of operands, and all operators in a row.
    let operands = [
        "a",
        "b",
        "c",
        "0",
        "big",
        "-big",
        "wide",
        "f",
        "-f",
        "1e300",
        "t",
        "false",
        "none",
        "nothing",
        "s",
        "l",
        "(l, l)",
        "m",
        "''",
        "[]",
        "9223372036854775807",
        "true",
        "l[1:]",
        "'q'",
    ];
    for left in operands {
        table.extend(operands.iter().map(|right| format!("{left} * {right}")));
    }
    let operators = ["*", "/", "//", "%", "**", "+", "-", "~", "==", "in", "is eq", "and"];
    for (first, second) in operators.iter().flat_map(|first| operators.map(|second| (first, second))) {
        table.push(format!("a {first} c * b {second} a"));
        table.push(format!("a * c {first} b {second} c"));
        table.push(format!("l {first} l * c {second} l"));
        table.extend(operators.map(|third| format!("a {first} -c {second} (b) {third} f")));
    }
    assert!(table.len() > 2500, "{}", table.len());
    let mut different = Vec::new();
    for expression in table {
        for source in [
            format!("\n{{{{ {expression} }}}}"),
            format!("{{% set x = {expression} %}}\n{{{{ x }}}}"),
            format!(
                "{{% if {expression} %}}1{{% endif %}}{{% raw %}}{{{{ a * b }}}}{{% endraw %}}{{# a * b #}} l * 2"
            ),
        ] {
            let (found, wanted) = (with_bounds(&source), with_minijinja(&source));
            if found != wanted {
                different.push(format!("{source}\n  found {found}\n  wanted {wanted}"));
            }
        }
    }
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
}

#[test]
fn statements_give_the_text_of_minijinja_alone() {
    for source in [
        "{% for x in l * 2 %}{{ x * c }},{% else %}{{ a * b }}{% endfor %}",
        "{% for x in m.k[1:] if x * 2 > 4 %}{{ loop.index * x }}{% endfor %}",
        "{% with x = a * b, y = l * 2 %}{{ x }}{{ y }}{% endwith %}",
        "{% set x, y = a * b, l * 2 %}{{ x }}{{ y }}",
        "{% set x, y = (a * b, l * 2) %}{{ x }}{{ y }}",
        "{% set x | replace('a' * 1, s * 2) %}aa{% endset %}{{ x }}",
        "{% filter replace('a', s * 2) %}a * b{% endfilter %}",
        "{% macro f(x, y=l * 2) %}{{ x * 2 }}{{ y }}{% endmacro %}{{ f(a * b) }}{{ f(*[a, b * c]) }}{{ f(**{'x': a * b}) }}",
        "{% macro f(x) %}{{ caller(x * 2) }}{% endmacro %}{% call(u) f(a * b) %}{{ u * c }}{% endcall %}",
        "{% do range(a * c) %}{% do l[1:] %}",
        "{% set n = namespace(x=l) %}{% for i in range(3) %}{% set n.x = n.x[1:] + l * 2 %}{% endfor %}{{ n.x }}",
        "{% if a * b > 0 %}1{% elif l * 0 %}2{% else %}{{ a * c }}{% endif %}",
        "é\n{{ 'é' * 2 }}\n{{ l * 2 }}\n{{ a *\nl.x }}",
        "{% for x in l %}\n{% set y = x * 2 %}\n{{ y * none }}{% endfor %}",
        // Chat templates of the families.
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}",
        "{{ bos_token }}{% for message in messages[1:] %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ 'wrong' }}{% endif %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}",
        "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.multi_step_tool and message.role == 'user' and message.content is string %}{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}{{ ns.last_query_index }}{{ messages[ns.last_query_index:][0].content.split('</think>')[-1].lstrip('\n') }}",
    ] {
        assert_eq!(with_bounds(source), with_minijinja(source), "{source}");
    }
}

#[test]
fn names_of_the_checks_are_reserved() {
    for name in ["__check_variables", "__bounded", "__repeated", "__sliced", "__join", "__format"] {
        let error = render(&format!("\n{{% set {name} = dict %}}")).unwrap_err();
        assert!(error.contains(&format!("the name {name} at line 2 is reserved")), "{error}");
        assert!(render(&format!("{{{{ 'a'|{name} }}}}")).is_err());
        assert_eq!(render(&format!("{name}{{{{ '{name}' }}}}")).unwrap(), name.repeat(2));
    }
}

/// Most of them took minutes or all of the memory before their operands were bounded.
#[test]
fn large_lists_are_refused_soon() {
    let texts = "(['a' * 1000000] * 1000000)";
    let numbers = "([1] * 100000000)";
    let mut sources = BTreeMap::new();
    for expression in [
        "L ~ ''",
        "'' ~ L",
        "L ~ L",
        "L|upper",
        "L|lower",
        "L|title",
        "L|capitalize",
        "L|trim",
        "L|replace('b', 'c')",
        "L|escape",
        "L|safe",
        "L|string",
        "L|indent",
        "L|join",
        "''.join(L)",
        "L|tojson",
        "'%s'|format(L)",
        "'{}'.format(L)",
        "L|map('upper')|list",
        "dict(a=L)|string",
        "[L, L]|upper",
        "L|pprint",
        "N == N",
        "N != N",
        "N < N",
        "1 != N != N",
        "N is eq(N)",
        "2 in N",
        "N in [N]",
        "N not in [N]",
        "{N: 1}",
        "{1: 1}[N]",
        "N|sort",
        "N|unique|list",
        "N|list",
        "N|min",
        "N|max",
        "N|sum",
        "N|last",
        "N|reverse|list",
        "N|select|list",
        "N|batch(2)|list",
        "N|slice(2)|list",
        "N.index(2)",
        "N.count(2)",
        "N[1:]|list",
        "N[::-1]|list",
        "range(*N)",
        "{'a': N}|dictsort(by='value')",
        "[{'a': N}, {'a': N}]|groupby('a')",
        "N if true else 1",
        "(none or N) == N",
        "nothing|default(N) == N",
        "dict(a=N) == dict(a=N)",
        "((1, 2) * 100000000) == 1",
        "(range(99999) * 900) ~ ''",
        "([1] + [2]) * 50000000 == N",
        "[1] * 1000 * 1000 * 100 == N",
        "([[[['a' * 1000] * 1000] * 1000] * 1000]) ~ ''",
        "N[1:] == N[1:]",
        "[N, N]|sort",
    ] {
        let source = format!("{{{{ ({expression})|length }}}}");
        sources.insert(expression.to_owned(), source.replace('L', texts).replace('N', numbers));
    }
    for statement in
        ["{% for x in N %}{% endfor %}", "{% set a, b = N %}", "{% filter replace(L, 'a') %}{% endfilter %}"]
    {
        sources.insert(statement.to_owned(), statement.replace('L', texts).replace('N', numbers));
    }
    let lists = "{% set x = [1] * 250000 %}{% set y = [1] * 250000 %}{% set z = ['a' * 1000000] * 15 %}";
    for (expression, repeated, separator) in [
        ("[@] == [@, 1]", "x", ","),
        ("[@] == [@]", "x", ","),
        ("[@]|sort", "x,y", ","),
        ("{[@]: 1}", "x", ","),
        ("[@] ~ ''", "z", ","),
        ("(@) ~ ''", "z", ","),
        ("[@]|upper", "z", ","),
        ("([@] + []) ~ ''", "z", ","),
        ("(@) == (@)", "x", "+"),
        ("(@)|upper", "z", "+"),
        ("('%s' * 220)|format(@)", "z", ","),
        ("dict(a=[@]) == dict(a=[@])", "x", ","),
    ] {
        let many = vec![repeated; if repeated.contains(',') { 110 } else { 220 }].join(separator);
        sources.insert(
            expression.to_owned(),
            format!("{lists}{{{{ ({})|length }}}}", expression.replace('@', &many)),
        );
    }
    let keywords: Vec<String> = (0..110).map(|i| format!("a{i}=x")).collect();
    let keywords = keywords.join(",");
    for expression in [
        format!("dict({keywords}) == dict({})", keywords.replace('x', "y")),
        format!("namespace({}) ~ ''", keywords.replace('x', "z")),
        "([1]|batch(10000, z)|list) ~ ''".into(),
        "([1]|slice(10000, z)|list) ~ ''".into(),
        "(range(90000)|map('default', z, true)|list) ~ ''".into(),
        "(range(90000)|map(attribute='k', default=z)|list) ~ ''".into(),
        "([[1]]|map('batch', 10000, z)|list) ~ ''".into(),
    ] {
        sources.insert(expression.clone(), format!("{lists}{{{{ ({expression})|length }}}}"));
    }
    for body in ["s.x * 1", "s.x[0:]", "s.x + []", "s.x[::1] * 1 + []"] {
        let set = format!("{{% set s.x = {body} %}}");
        let source = "{% set s = namespace(x=[1]) %}{% for i in range(90000) %}@{% endfor %}{{ s.x|length }}";
        sources.insert(set.clone(), source.replace('@', &set));
    }
    assert!(sources.len() > 70, "{}", sources.len());
    for (name, source) in sources {
        let begun = Instant::now();
        let found = render(&source);
        // A second and less on an idle machine.
        let taken = begun.elapsed();
        assert!(taken < Duration::from_secs(10), "{name}: {taken:?}");
        let error = found.expect_err(&name);
        assert!(
            error.contains("at most") || error.contains("out of fuel") || error.contains("too large"),
            "{name}: {error}"
        );
    }
}

/// Expressions of a grammar, chosen by a linear congruential generator.
struct Expressions(u64);

impl Expressions {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn one(&mut self, depth: usize) -> String {
        let leaves = [
            "a", "b", "c", "f", "l", "s", "m", "m.k", "m['k']", "l[0]", "m.k.1", "2", "0.5", "'x'", "(l, s)",
            "true",
        ];
        if depth == 0 {
            return leaves[self.below(leaves.len())].to_owned();
        }
        let operators =
            ["*", "*", "+", "+", "-", "/", "//", "%", "~", "==", "<", "in", "not in", "and", "or"];
        let (operator, first) = (operators[self.below(operators.len())], self.one(depth - 1));
        match self.below(16) {
            0..=5 => format!("{first} {operator} {}", self.one(depth - 1)),
            6 | 7 => format!("({first})"),
            8 => format!("({first})[1:]"),
            9 => format!(
                "{first}[{}:{}]",
                ["", "1", "-2", "c * 0"][self.below(4)],
                ["", "2", ":-1"][self.below(3)]
            ),
            10 => format!("[{first}, {}, {}]", self.one(depth - 1), self.one(depth - 1)),
            11 => format!("{{'x': {first}, 'y': {}}}.x", self.one(depth - 1)),
            12 => format!("{first}|map('string')|join({})", self.one(depth - 1)),
            13 => format!("{first} is in {}", self.one(depth - 1)),
            14 => format!("{first} if {} else {}", self.one(depth - 1), self.one(depth - 1)),
            _ => format!("dict(x={first}, y={}).x", self.one(depth - 1)),
        }
    }
}

#[test]
fn random_expressions_give_the_text_of_minijinja_alone() {
    let mut expressions = Expressions(1);
    let mut texts = 0;
    for index in 0..6_000 {
        let source = format!("\n{{{{ {} }}}}", expressions.one(1 + index % 4));
        let wanted = with_minijinja(&source);
        assert_eq!(with_bounds(&source), wanted, "{source}");
        texts += usize::from(!wanted.starts_with(&source));
    }
    assert!(texts > 1500, "{texts}");
}
