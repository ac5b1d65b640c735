//! Untrusted Jinja templates of models, tasks and judges: [`environment`] is the one place in
//! which an environment is made, and [`BoundedTemplate`] the one way to render with it.
//!
//! Limits, each an error and none a crash:
//!
//! | limit | value | holds |
//! |---|---|---|
//! | [`MOST_BYTES`] | 1 MiB | length of a template |
//! | [`MOST_TOKENS`] | 1,000 | tokens of one tag, which bounds the depth of an expression before it is parsed |
//! | [`MOST_BRANCHES`] | 500 | `elif` branches of a template, whose parser is recursive |
//! | [`MOST_STEPS`] | 1,000,000 | steps of one rendering; each 64 bytes of a text that is made cost one, so that values and output together stay below 64 MB |
//! | [`MOST_DEPTH`], [`MOST_ITEMS`] | 256 levels, 2^18 items | size of a value that a variable has, that is printed, or that `*`, long sums and long literals make |
//! | [`STACK`] | 256 MiB | stack of the thread that parses a template and renders it if it has statements; only touched pages take memory |
//!
//! Behind each tag that binds variables a check of their values is written into the template: without it a value could be part of
//! itself (`set n.x = n`), or of another as often as there are atoms (`set a = [a, a]`, sixty times).
//!
//! minijinja repeats, joins and slices lists lazily and takes no steps for it. Filters with the same check are therefore written
//! around products, around long sums, literals and calls, and around slices (module `growth`). Their names are reserved.
//!
//! Not limited: the time of operations that take few steps for a large value, such as comparisons of nested lists in a loop.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bindings;
mod filters;
mod growth;
mod size;

pub use filters::method;
pub use size::{MOST_DEPTH, MOST_ITEMS, bounded};

use bindings::{bound_names, is_block_set};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use std::collections::BTreeSet;

/// Longest template, in bytes.
pub const MOST_BYTES: usize = 1 << 20;
/// Most tokens of one tag.
pub const MOST_TOKENS: usize = 1_000;
/// Most `elif` branches of a template.
pub const MOST_BRANCHES: usize = 500;
/// Steps that one rendering may take.
pub const MOST_STEPS: u64 = 1_000_000;
/// Stack for parsing and rendering, in bytes.
pub const STACK: usize = 256 << 20;

/// Name of the template in its environment.
const NAME: &str = "template";
/// Name of the function that checks variables.
const CHECK: &str = "__check_variables";

/// Variable that is printed where the body of the tag `generation` begins ([`BoundedTemplate::with_answer_marks`]).
pub const ANSWER_BEGIN: &str = "__answer_begin";
/// Variable that is printed where it ends.
pub const ANSWER_END: &str = "__answer_end";

/// Names that are written into templates, and that those may not contain.
const RESERVED: [&str; 8] = [
    CHECK,
    ANSWER_BEGIN,
    ANSWER_END,
    filters::FORMAT,
    filters::JOIN,
    growth::REPEATED,
    growth::BOUNDED,
    growth::SLICED,
];

/// Treatment of the tag `generation` of Transformers, which marks the answers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerTag {
    /// Its body is rendered as it is.
    Ignored,
    /// The variables [`ANSWER_BEGIN`] and [`ANSWER_END`] are printed around its body.
    Marked,
}

/// How a kind of templates treats white space around tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WhiteSpace {
    /// Removes blanks before and a line break after a statement (`lstrip_blocks`, `trim_blocks`).
    pub trim_statements: bool,
    /// Keeps a line break at the end of the template.
    pub keep_last_line_break: bool,
}

/// An environment with the limits of this crate, the methods of Python's values, and no escaping of HTML.
pub fn environment(white_space: WhiteSpace) -> Environment<'static> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(white_space.trim_statements).lstrip_blocks(white_space.trim_statements);
    syntax.keep_trailing_newline(white_space.keep_last_line_break);
    // Without delimiters of its own a syntax cannot fail.
    environment.set_syntax(syntax.build().unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(MOST_STEPS));
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        bounded(state, value)?;
        minijinja::escape_formatter(out, state, value)
    });
    environment.add_function(CHECK, size::check_variables);
    filters::add(&mut environment);
    growth::add(&mut environment);
    environment
}

/// A template in an environment of its own.
pub struct BoundedTemplate {
    environment: Environment<'static>,
    /// Without statements nothing nests deeper than the template is long.
    has_statements: bool,
    has_answer_tag: bool,
}

impl std::fmt::Debug for BoundedTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BoundedTemplate")
    }
}

impl BoundedTemplate {
    /// Reads a template. The tag `generation` of Transformers, which marks the answers of a model, has no effect.
    ///
    /// # Errors
    /// A limit or the syntax.
    pub fn new(environment: Environment<'static>, source: &str) -> Result<BoundedTemplate, Error> {
        BoundedTemplate::read(environment, source, AnswerTag::Ignored)
    }

    /// Reads a template in which the tag `generation` prints the variables [`ANSWER_BEGIN`] and [`ANSWER_END`] of the context around
    /// its body. White space around the tag is treated as without them.
    ///
    /// # Errors
    /// Errors of [`BoundedTemplate::new`].
    pub fn with_answer_marks(
        environment: Environment<'static>,
        source: &str,
    ) -> Result<BoundedTemplate, Error> {
        BoundedTemplate::read(environment, source, AnswerTag::Marked)
    }

    fn read(
        mut environment: Environment<'static>,
        source: &str,
        answer_tag: AnswerTag,
    ) -> Result<BoundedTemplate, Error> {
        let checked = check(source, environment.syntax(), answer_tag)?;
        let environment = on_own_stack(move || {
            let source = growth::with_bounds(&checked.source, NAME, environment.syntax())?;
            environment.add_template_owned(NAME, source)?;
            Ok(environment)
        })?;
        let Checked { has_statements, has_answer_tag, .. } = checked;
        Ok(BoundedTemplate { environment, has_statements, has_answer_tag })
    }

    /// Whether the template contains the tag `generation`.
    pub fn has_answer_tag(&self) -> bool {
        self.has_answer_tag
    }

    /// The text of the template for a context.
    ///
    /// # Errors
    /// An undefined value, an operation that does not go with its operands, a limit.
    pub fn render(&self, context: Value) -> Result<String, Error> {
        let render = move || self.environment.get_template(NAME)?.render(context);
        if self.has_statements { on_own_stack(render) } else { render() }
    }

    /// Names that the template reads and does not define, in their order.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn undeclared(&self) -> Result<BTreeSet<String>, Error> {
        on_own_stack(|| {
            let template = self.environment.get_template(NAME)?;
            let names = template.undeclared_variables(false).into_iter();
            Ok(names.filter(|name| !RESERVED.contains(&name.as_str())).collect())
        })
    }
}

/// A template within the limits on its text.
struct Checked {
    source: String,
    has_statements: bool,
    has_answer_tag: bool,
}

fn limit(what: String) -> Error {
    Error::new(ErrorKind::SyntaxError, what)
}

/// Counts the tokens of a template before it is parsed, with the lexer of the parser, and writes checks of variables into it.
fn check(source: &str, syntax: &SyntaxConfig, answer_tag: AnswerTag) -> Result<Checked, Error> {
    if source.len() > MOST_BYTES {
        return Err(limit(format!(
            "wanted a template of at most {MOST_BYTES} bytes, found {}",
            source.len()
        )));
    }
    let (mut checked, mut copied) = (String::with_capacity(source.len()), 0);
    let (mut in_tag, mut branches, mut has_statements, mut begins) = (0, 0, false, false);
    let mut has_answer_tag = false;
    // Tokens of the tag that is read, if it may bind variables, and variables of blocks that end with `endset`.
    let (mut tag, mut blocks): (Vec<Token<'_>>, Vec<Vec<&str>>) = (Vec::new(), Vec::new());
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        in_tag += 1;
        let first = std::mem::take(&mut begins);
        match &token {
            Token::TemplateData(_) | Token::VariableStart => in_tag = 0,
            Token::BlockStart => {
                (in_tag, has_statements, begins) = (0, true, true);
                tag.clear();
            }
            Token::BlockEnd => {
                let names = match tag.first() {
                    Some(Token::Ident("endset")) => blocks.pop().unwrap_or_default(),
                    _ if is_block_set(&tag) => {
                        blocks.push(bound_names(&tag));
                        Vec::new()
                    }
                    _ => bound_names(&tag),
                };
                let begins_answer = answer_tag == AnswerTag::Marked
                    && matches!(tag.first(), Some(Token::Ident("generation")));
                let added = match begins_answer {
                    true => format!("{{{{ {ANSWER_BEGIN} }}}}{{% if true %}}"),
                    false => format!("{{% if {CHECK}({}) %}}", names.join(", ")),
                };
                if begins_answer || !names.is_empty() {
                    let end = span.end_offset as usize;
                    let written = source.get(copied..end).unwrap_or_default();
                    // White space behind the tag is treated as before.
                    let trims = match written.as_bytes() {
                        [.., sign @ (b'-' | b'+'), b'%', b'}'] => char::from(*sign).to_string(),
                        _ => String::new(),
                    };
                    checked.push_str(written);
                    checked.push_str(&format!("{added}{{% endif {trims}%}}"));
                    copied = end;
                }
                tag.clear();
            }
            Token::Ident("elif") if first => branches += 1,
            // They become a condition that holds; the sign before the keyword, and the one after it, keep their places.
            Token::Ident(name @ ("generation" | "endgeneration")) if first => {
                let (begin, end) = (span.start_offset as usize, span.end_offset as usize);
                checked.push_str(source.get(copied..begin).unwrap_or_default());
                checked.push_str(&match (*name, answer_tag) {
                    ("generation", _) => "if true".to_owned(),
                    (_, AnswerTag::Ignored) => "endif".to_owned(),
                    (_, AnswerTag::Marked) => {
                        format!("if true %}}{{% endif %}}{{{{ {ANSWER_END} }}}}{{% endif")
                    }
                });
                has_answer_tag = true;
                copied = end;
            }
            Token::Ident(name) if RESERVED.contains(name) => {
                let line = span.start_line;
                return Err(limit(format!("the name {name} at line {line} is reserved; use another")));
            }
            _ => {}
        }
        if !matches!(token, Token::BlockStart | Token::BlockEnd) {
            tag.push(token);
        }
        if in_tag > MOST_TOKENS {
            let line = span.start_line;
            return Err(limit(format!(
                "wanted at most {MOST_TOKENS} tokens in a tag, found more at line {line}; set parts of it as variables"
            )));
        }
    }
    if branches > MOST_BRANCHES {
        return Err(limit(format!("wanted at most {MOST_BRANCHES} branches of elif, found {branches}")));
    }
    checked.push_str(source.get(copied..).unwrap_or_default());
    Ok(Checked { source: checked, has_statements, has_answer_tag })
}

/// Runs `work` on a thread with the stack of this crate.
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(e) => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!(
                    "cannot start a thread for the template ({e}); raise the limit on processes (ulimit -u)"
                ),
            )),
        }
    })
}
