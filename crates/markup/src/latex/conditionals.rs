//! Conditionals of TeX (`\if… \else \or \fi`) and of LaTeX's packages (`\ifthenelse{…}{…}{…}`): their names and their extents.

use super::commands::{Environment, environment};
use super::files::VERBATIM;
use super::macros::definition;
use super::scan::{Finder, Grouped, delimited, name_in_braces, name_with_at, skip_space};
use std::collections::{HashMap, HashSet};

/// Conditionals that end with `\fi`, of TeX, e-TeX and pdfTeX.
pub(super) const PRIMITIVES: &[&str] = &[
    "if",
    "ifcase",
    "ifcat",
    "ifcsname",
    "ifdefined",
    "ifdim",
    "ifeof",
    "iffalse",
    "iffontchar",
    "ifhbox",
    "ifhmode",
    "ifincsname",
    "ifinner",
    "ifmmode",
    "ifnum",
    "ifodd",
    "ifpdfabsdim",
    "ifpdfabsnum",
    "iftrue",
    "ifvbox",
    "ifvmode",
    "ifvoid",
    "ifx",
];

/// Number of arguments before the branches of a command that takes its branches as arguments.
pub(super) fn tests_before_branches(name: &str) -> Option<usize> {
    Some(match name {
        "ifthispageodd" | "ifoddpage" | "@ifstar" => 0,
        "ifthenelse" | "ifbool" | "iftoggle" | "notbool" | "nottoggle" | "ifdef" | "ifundef" | "ifcsdef"
        | "ifcsundef" | "ifdefempty" | "ifcsempty" | "ifdefvoid" | "ifcsvoid" | "ifblank" | "notblank"
        | "ifstrempty" | "@ifundefined" | "@ifpackageloaded" | "@ifclassloaded" | "ifnumodd"
        | "iflanguage" | "ifboolexpr" | "ifboolexpe" | "ifdefmacro" | "IfFileExists" | "IfBooleanTF"
        | "IfValueTF" | "IfNoValueTF" | "IfBlankTF" | "IfBooleanT" | "IfBooleanF" | "IfValueT"
        | "IfNoValueT" => 1,
        "ifstrequal" | "ifdefstring" | "ifdefstrequal" | "ifcsstring" | "ifnumequal" | "ifnumgreater"
        | "ifnumless" | "ifdimequal" | "ifdimgreater" | "ifdimless" | "ifinlist" | "@ifpackagelater" => 2,
        "ifnumcomp" | "ifdimcomp" => 3,
        _ => return None,
    })
}

/// Names that a paper declares, wherever it does.
#[derive(Debug, Default)]
pub(super) struct Declared {
    /// Conditionals, with `if`: of `\newif`, `\newboolean`, `\newbool`, and other names of conditionals (`\let`).
    conditionals: HashSet<String>,
    /// Macros.
    macros: HashSet<String>,
    /// Other names of `\iftrue`, `\iffalse`, `\else` and `\fi`.
    aliases: HashMap<String, String>,
    /// Environments that are left out: `\excludecomment`.
    pub(super) excluded: HashSet<String>,
}

impl Declared {
    /// The declarations of a source.
    pub(super) fn of(source: &str) -> Declared {
        let mut declared = Declared::default();
        let mut letter = false;
        for at in memchr::memchr_iter(b'\\', source.as_bytes()) {
            let name = name_with_at(source, at, letter);
            let end = at + 1 + name.len();
            match name {
                "makeatletter" => letter = true,
                "makeatother" => letter = false,
                "newif" | "let" => {
                    let start = skip_space(source, end);
                    let first = control_sequence(source, start, letter).filter(|name| name.starts_with("if"));
                    let behind = end_of_command(source, end, letter);
                    if let Some(first) = first
                        && (name == "newif" || declared.is_conditional_behind_equals(source, behind, letter))
                    {
                        declared.conditionals.insert(first.to_string());
                    }
                    if name == "let" {
                        declared.alias(source, start, behind_equals(source, behind), letter);
                    }
                }
                "newboolean" | "provideboolean" | "newbool" | "providebool" => {
                    if let Some((name, _)) = name_in_braces(source, end) {
                        declared.conditionals.insert(format!("if{name}"));
                    }
                }
                "excludecomment" => {
                    if let Some((name, _)) = name_in_braces(source, end) {
                        declared.excluded.insert(name.to_string());
                    }
                }
                "newcommand" | "renewcommand" | "providecommand" | "def" | "DeclareRobustCommand" => {
                    let start = skip_space(source, end + usize::from(source[end..].starts_with('*')));
                    let start = start + usize::from(source[start..].starts_with('{'));
                    if source.as_bytes().get(start) == Some(&b'\\') {
                        let name = name_with_at(source, start, letter);
                        declared.macros.insert(name.to_string());
                        let behind = start + 1 + name.len();
                        let rest = source[behind..].trim_start_matches(['}', ' ']);
                        let body = source.len() - rest.len() + 1;
                        if rest.starts_with('{')
                            && source[end_of_command(source, body, letter)..].starts_with('}')
                        {
                            declared.alias(source, start, body, letter);
                        }
                    }
                }
                _ => {}
            }
        }
        declared
    }

    /// Remembers that the control sequence at `first` means the one at `second`, where that is one of a few.
    fn alias(&mut self, source: &str, first: usize, second: usize, letter: bool) {
        if let (Some(first), Some(second)) =
            (control_sequence(source, first, letter), control_sequence(source, second, letter))
            && !first.starts_with("if")
            && matches!(second, "iftrue" | "iffalse" | "else" | "fi")
        {
            self.aliases.insert(first.to_string(), second.to_string());
        }
    }

    /// The name that a name stands for.
    pub(super) fn meaning<'n>(&'n self, name: &'n str) -> &'n str {
        self.aliases.get(name).map_or(name, String::as_str)
    }

    /// Whether the second operand of `\let`, whose first one ends at `behind`, is a conditional.
    fn is_conditional_behind_equals(&self, source: &str, behind: usize, letter: bool) -> bool {
        control_sequence(source, behind_equals(source, behind), letter)
            .is_some_and(|name| PRIMITIVES.contains(&name) || self.conditionals.contains(name))
    }

    /// Whether the command `name`, which ends at `end`, is a conditional that ends with `\fi`.
    pub(super) fn is_conditional(&self, grouped: &Grouped, name: &str, end: usize) -> bool {
        if PRIMITIVES.contains(&name) || self.conditionals.contains(name) {
            return true;
        }
        // A switch of a class, unless arguments follow it.
        self.may_be_switch(name) && branches_as_arguments(grouped, end).is_none()
    }

    /// Whether the name may be that of a switch that a class declares.
    pub(super) fn may_be_switch(&self, name: &str) -> bool {
        name.len() > 2
            && name.starts_with("if")
            && name != "iff"
            && tests_before_branches(name).is_none()
            && !self.macros.contains(name)
    }

    /// Whether an expansion that holds this name depends on a condition or changes one.
    pub(super) fn concerns_conditions(&self, name: &str) -> bool {
        let sets = |value| {
            name.strip_suffix(value).is_some_and(|stem| self.conditionals.contains(&format!("if{stem}")))
        };
        matches!(name, "else" | "or" | "fi" | "newif" | "unless")
            || PRIMITIVES.contains(&name)
            || self.conditionals.contains(name)
            || tests_before_branches(name).is_some()
            || self.may_be_switch(name)
            || sets("true")
            || sets("false")
    }
}

/// Number of arguments before the branches of a command of unknown name that ends at `end` and is followed by groups: two or more
/// groups without white space between them are arguments.
pub(super) fn branches_as_arguments(grouped: &Grouped, end: usize) -> Option<usize> {
    let (mut at, mut groups) = (end, 0);
    while groups < 5
        && let Some((_, behind)) = grouped.group(at)
    {
        at = behind;
        groups += 1;
    }
    usize::checked_sub(groups, 2)
}

/// Kind of the tokens that make up a conditional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkKind {
    If,
    Else,
    Or,
    Fi,
}

/// A token of a conditional.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConditionalMark {
    pub(super) kind: MarkKind,
    /// Position behind the name and the white space after it.
    pub(super) end: usize,
    /// Position of the next token of the same conditional; none where its `\fi` is missing.
    next: Option<usize>,
}

/// Tokens of all conditionals of a source by position.
#[derive(Debug, Default)]
pub(super) struct ConditionalMarks(HashMap<usize, ConditionalMark>);

impl ConditionalMarks {
    /// Finds the conditionals; those in definitions, code and left-out environments do not count.
    pub(super) fn of(grouped: &Grouped, declared: &Declared, mut letter: bool) -> ConditionalMarks {
        let source = grouped.text;
        let mut marks: HashMap<usize, ConditionalMark> = HashMap::new();
        // Positions of the marks of each open conditional.
        let mut open: Vec<Vec<usize>> = Vec::new();
        let mut finder = Finder::default();
        let mut at = 0;
        while let Some(found) = memchr::memchr(b'\\', &source.as_bytes()[at..]) {
            let start = at + found;
            let name = name_with_at(source, start, letter);
            let end = start + 1 + name.len();
            at = end;
            if let Some(behind) = end_of_opaque(grouped, end, name, declared, &mut finder) {
                at = behind;
                continue;
            }
            let mark = |kind| ConditionalMark { kind, end: skip_space(source, end), next: None };
            match declared.meaning(name) {
                "makeatletter" => letter = true,
                "makeatother" => letter = false,
                "newif" => at = end_of_command(source, end, letter),
                "let" => {
                    let first = end_of_command(source, end, letter);
                    at = end_of_command(source, behind_equals(source, first), letter);
                }
                "else" | "or" => {
                    if let Some(tokens) = open.last_mut() {
                        tokens.push(start);
                        marks.insert(start, mark(if name == "or" { MarkKind::Or } else { MarkKind::Else }));
                    }
                }
                "fi" => {
                    if let Some(tokens) = open.pop() {
                        marks.insert(start, mark(MarkKind::Fi));
                        let following = tokens.iter().skip(1).copied().chain([start]);
                        for (token, next) in tokens.iter().zip(following) {
                            if let Some(mark) = marks.get_mut(token) {
                                mark.next = Some(next);
                            }
                        }
                    }
                }
                name => {
                    if let Some(behind) = definition(grouped, end, name, letter).map(|found| found.end) {
                        at = behind;
                    } else if declared.is_conditional(grouped, name, end) {
                        open.push(vec![start]);
                        marks.insert(start, mark(MarkKind::If));
                    }
                }
            }
        }
        ConditionalMarks(marks)
    }

    /// The token at a position.
    pub(super) fn get(&self, at: usize) -> Option<ConditionalMark> {
        self.0.get(&at).copied()
    }

    /// The token after another one of the same conditional.
    pub(super) fn next(&self, mark: ConditionalMark) -> Option<ConditionalMark> {
        self.get(mark.next?)
    }

    /// Position behind the `\fi` of a token.
    pub(super) fn behind(&self, mut mark: ConditionalMark) -> Option<usize> {
        while mark.kind != MarkKind::Fi {
            mark = self.next(mark)?;
        }
        Some(mark.end)
    }

    /// Position at which branch `number` of the conditional begins; behind its `\fi` where it has none.
    pub(super) fn branch(&self, mark: ConditionalMark, mut number: usize) -> Option<usize> {
        let mut mark = self.next(mark)?;
        loop {
            match mark.kind {
                MarkKind::Or if number > 1 => number -= 1,
                _ => return Some(mark.end),
            }
            mark = self.next(mark)?;
        }
    }
}

/// Name of the control sequence at `at`.
pub(super) fn control_sequence(source: &str, at: usize, letter: bool) -> Option<&str> {
    (source.as_bytes().get(at) == Some(&b'\\')).then(|| name_with_at(source, at, letter))
}

/// Position behind the command that follows white space at `at`.
pub(super) fn end_of_command(source: &str, at: usize, letter: bool) -> usize {
    let start = skip_space(source, at);
    control_sequence(source, start, letter).map_or(at, |name| start + 1 + name.len())
}

/// Position behind white space, an equals sign and white space.
pub(super) fn behind_equals(source: &str, at: usize) -> usize {
    let equals = skip_space(source, at);
    skip_space(source, equals + usize::from(source[equals..].starts_with('=')))
}

/// Position behind code, an environment that is left out, or the definition of an environment, which the command `name` begins.
pub(super) fn end_of_opaque(
    grouped: &Grouped,
    end: usize,
    name: &str,
    declared: &Declared,
    finder: &mut Finder,
) -> Option<usize> {
    let source = grouped.text;
    match name {
        "verb" | "lstinline" | "mintinline" => {
            delimited(source, grouped.skip_options(end)).map(|(_, end)| end)
        }
        "newenvironment" | "renewenvironment" => {
            let mut at = end;
            for _ in 0..3 {
                at = grouped.argument(grouped.skip_options(at))?.1;
            }
            Some(at)
        }
        "begin" => {
            let (environment, body) = name_in_braces(source, end)?;
            let opaque = VERBATIM.contains(&environment) || is_left_out(environment, declared);
            let close = opaque.then(|| finder.find_end(source, body, environment)).flatten()?;
            Some(close + environment.len() + "\\end{}".len())
        }
        _ => None,
    }
}

/// Whether an environment is a comment.
pub(super) fn is_left_out(name: &str, declared: &Declared) -> bool {
    name == "comment" || declared.excluded.contains(name)
}

/// Whether an environment of this name holds a formula.
pub(super) fn is_formula(name: &str) -> bool {
    environment(name) == Environment::Math
}
