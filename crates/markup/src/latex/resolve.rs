//! Definitions taken out of the source, and one branch of each conditional kept, in the order in which TeX reads them: a definition
//! in a branch that is not taken does not count, and a switch has the value that was set last.

use super::conditionals::{
    ConditionalMark, ConditionalMarks, Declared, MarkKind, behind_equals, branches_as_arguments,
    control_sequence, end_of_command, end_of_opaque, is_formula, is_left_out, tests_before_branches,
};
use super::conditions::{Operands, Values};
use super::macros::{MOST_MACRO_BYTES, MOST_MACRO_DEPTH, MOST_MACROS, Macro, definition};
use super::scan::{Finder, Grouped, command_name, is_word, name_in_braces, name_with_at, skip_space};
use crate::error::{MarkupError, MarkupLimits};
use std::collections::HashMap;

/// Most expansions of macros that hold conditionals.
const MOST_EXPANSIONS: usize = 100_000;

/// The source without definitions and conditionals, and the macros without arguments by name.
pub(super) fn resolved(
    source: &str,
    limits: &MarkupLimits,
) -> Result<(String, HashMap<String, String>), MarkupError> {
    let mut resolver = Resolver {
        declared: Declared::of(source),
        values: Values::default(),
        out: String::with_capacity(source.len()),
        letter: false,
        after_word: false,
        expansions: 0,
        expanded_bytes: 0,
        limits,
    };
    resolver.source(source, 0)?;
    let plain = |(name, found): (String, Macro)| {
        (found.arguments == Some(0) && !found.conditional).then_some((name, found.body))
    };
    Ok((resolver.out, resolver.values.macros.into_iter().filter_map(plain).collect()))
}

struct Resolver<'l> {
    declared: Declared,
    values: Values,
    out: String,
    /// `@` is a letter.
    letter: bool,
    /// The text ends with a control word.
    after_word: bool,
    expansions: usize,
    expanded_bytes: usize,
    limits: &'l MarkupLimits,
}

/// The end of a branch in braces, and the position at which reading continues.
struct BranchEnd {
    at: usize,
    next: usize,
}

/// A source that is being read.
struct Reading<'a> {
    grouped: Grouped<'a>,
    marks: ConditionalMarks,
    finder: Finder,
    branches: Vec<BranchEnd>,
    /// `\unless` precedes.
    inverted: bool,
    depth: usize,
}

impl Resolver<'_> {
    /// Reads a source, or an expansion at a depth.
    fn source(&mut self, source: &str, depth: usize) -> Result<(), MarkupError> {
        let grouped = Grouped::new(source);
        let marks = ConditionalMarks::of(&grouped, &self.declared, self.letter);
        let mut reading = Reading {
            grouped,
            marks,
            finder: Finder::default(),
            branches: Vec::new(),
            inverted: false,
            depth,
        };
        let mut at = 0;
        loop {
            while reading.branches.last().is_some_and(|branch| branch.at < at) {
                reading.branches.pop();
            }
            let next = memchr::memchr(b'\\', &source.as_bytes()[at..]).map(|found| at + found);
            if let Some(branch) = reading.branches.pop_if(|branch| next.is_none_or(|next| next >= branch.at))
            {
                self.copy(&source[at..branch.at]);
                at = branch.next;
                continue;
            }
            let Some(start) = next else { break };
            self.copy(&source[at..start]);
            at = self.command(&mut reading, start)?;
        }
        self.copy(&source[at..]);
        self.limits.check_bytes(self.out.len())
    }

    /// Adds text, and follows the formulas in it.
    fn copy(&mut self, text: &str) {
        // A command before a conditional must not become the beginning of a longer name.
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.after_word) && text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            self.out.push(' ');
        }
        let mut until = 0;
        for at in memchr::memchr2_iter(b'$', b'\n', text.as_bytes()) {
            if at < until {
                continue;
            }
            let rest = &text[at..];
            match rest.as_bytes() {
                [b'$', b'$', ..] => {
                    self.values.math = !self.values.math;
                    until = at + 2;
                }
                [b'$', ..] => self.values.math = !self.values.math,
                // A formula ends with its paragraph.
                [b'\n', b'\n', ..] => self.values.math = false,
                _ => {}
            }
        }
        self.out.push_str(text);
    }

    /// Reads the command at `start`; the position behind it.
    fn command(&mut self, reading: &mut Reading, start: usize) -> Result<usize, MarkupError> {
        let source = reading.grouped.text;
        let name = name_with_at(source, start, self.letter);
        let end = start + 1 + name.len();
        if let Some(behind) = end_of_opaque(&reading.grouped, end, name, &self.declared, &mut reading.finder)
        {
            let left_out = name == "begin"
                && name_in_braces(source, end).is_some_and(|(name, _)| is_left_out(name, &self.declared));
            if !left_out {
                self.out.push_str(&source[start..behind]);
            }
            return Ok(behind);
        }
        if let Some(found) = definition(&reading.grouped, end, name, self.letter) {
            self.define(found.name, found.defined, name == "providecommand");
            return Ok(found.end);
        }
        if let Some(mark) = reading.marks.get(start) {
            return Ok(self.mark(reading, mark, self.declared.meaning(name)));
        }
        if self.declared.is_conditional(&reading.grouped, name, end) {
            // Its end is missing: the condition goes, the text stays.
            let start = skip_space(source, end);
            let mut operands = Operands::new(&self.values, &reading.grouped, start, self.letter);
            let _ = operands.branch(name);
            return Ok(operands.at);
        }
        if let Some(behind) = self.setting(&reading.grouped, name, end) {
            return Ok(behind);
        }
        match name {
            "unless" => {
                reading.inverted = true;
                return Ok(skip_space(source, end));
            }
            "else" | "fi" | "or" => return Ok(skip_space(source, end)),
            "makeatletter" | "makeatother" => self.letter = name == "makeatletter",
            "(" | "[" => self.values.math = true,
            ")" | "]" => self.values.math = false,
            "begin" | "end"
                if name_in_braces(source, end).is_some_and(|(environment, _)| is_formula(environment)) =>
            {
                self.values.math = name == "begin";
            }
            _ => {}
        }
        let tests = tests_before_branches(name).or_else(|| {
            self.declared.may_be_switch(name).then(|| branches_as_arguments(&reading.grouped, end)).flatten()
        });
        if let Some(tests) = tests {
            return Ok(self.branches_in_braces(reading, name, end, tests));
        }
        if let Some(found) = self.values.macros.get(name).filter(|found| found.conditional)
            && let Some((expansion, behind)) = expansion(found, &reading.grouped, name, end)
            && reading.depth < MOST_MACRO_DEPTH
            && self.expansions < MOST_EXPANSIONS
        {
            let (inner, outer) = (found.letter, self.letter);
            self.expansions += 1;
            self.expanded_bytes += expansion.len();
            self.limits.check_bytes(self.expanded_bytes)?;
            self.letter = inner;
            self.source(&expansion, reading.depth + 1)?;
            self.letter = outer;
            return Ok(behind);
        }
        self.out.push_str(&source[start..end]);
        self.after_word = is_word(name);
        Ok(end)
    }

    fn define(&mut self, name: &str, mut found: Macro, only_new: bool) {
        if only_new && self.values.macros.contains_key(name) {
            return;
        }
        if found.body.len() > MOST_MACRO_BYTES || self.values.macros.len() >= MOST_MACROS {
            self.values.macros.remove(name);
            return;
        }
        found.conditional = memchr::memchr_iter(b'\\', found.body.as_bytes()).any(|at| {
            let inner = name_with_at(&found.body, at, self.letter);
            self.declared.concerns_conditions(inner)
                || self.values.macros.get(inner).is_some_and(|found| found.conditional)
        });
        self.values.macros.insert(name.to_string(), found);
    }

    /// Reads a token of a conditional; the position at which reading continues.
    fn mark(&self, reading: &mut Reading, mark: ConditionalMark, name: &str) -> usize {
        let marks = &reading.marks;
        if mark.kind != MarkKind::If {
            // The end of the branch that was taken.
            return marks.behind(mark).unwrap_or(mark.end);
        }
        let mut operands = Operands::new(&self.values, &reading.grouped, mark.end, self.letter);
        let branch = operands.branch(name);
        let inverted = std::mem::take(&mut reading.inverted);
        let branch = match branch {
            Some(branch) if inverted => usize::from(branch == 0),
            Some(branch) => branch,
            None => 0,
        };
        if branch > 0
            && let Some(begin) = marks.branch(mark, branch)
        {
            return begin;
        }
        operands.at
    }

    /// Enters one of the branches that are arguments.
    fn branches_in_braces(&self, reading: &mut Reading, name: &str, end: usize, tests: usize) -> usize {
        let grouped = &reading.grouped;
        let source = grouped.text;
        let mut at = end + usize::from(source[end..].starts_with('*'));
        let mut arguments = Vec::new();
        for _ in 0..tests {
            let Some((argument, behind)) = grouped.argument(at) else { return at };
            arguments.push(argument);
            at = behind;
        }
        let first = skip_space(source, at);
        let Some((_, first_end)) = grouped.group(first) else { return at };
        let operands = Operands::new(&self.values, grouped, end, self.letter);
        let holds = operands.holds(name, &arguments).unwrap_or(true);
        let second = skip_space(source, first_end);
        let has_second = !matches!(name, "IfBooleanT" | "IfBooleanF" | "IfValueT" | "IfNoValueT");
        let second_end = grouped.group(second).filter(|_| has_second).map(|(_, behind)| behind);
        let next = second_end.unwrap_or(first_end);
        match second_end {
            _ if holds => {
                reading.branches.push(BranchEnd { at: first_end - 1, next });
                first + 1
            }
            Some(second_end) => {
                reading.branches.push(BranchEnd { at: second_end - 1, next });
                second + 1
            }
            None => next,
        }
    }

    /// Reads a command that sets a switch or a counter; the position behind it.
    fn setting(&mut self, grouped: &Grouped, name: &str, end: usize) -> Option<usize> {
        let source = grouped.text;
        match name {
            "newif" => {
                let start = skip_space(source, end);
                let switch = control_sequence(source, start, self.letter)?.strip_prefix("if")?;
                self.values.switches.insert(switch.to_string(), false);
                Some(skip_space(source, end_of_command(source, end, self.letter)))
            }
            "let" => {
                let first = control_sequence(source, skip_space(source, end), self.letter)?;
                let second_at = behind_equals(source, end_of_command(source, end, self.letter));
                let second = control_sequence(source, second_at, self.letter)?;
                let value = match second {
                    "iftrue" => Some(true),
                    "iffalse" => Some(false),
                    _ => second.strip_prefix("if").and_then(|name| self.values.switches.get(name).copied()),
                };
                if let (Some(switch), Some(value)) = (first.strip_prefix("if"), value) {
                    self.values.switches.insert(switch.to_string(), value);
                } else if let Some(found) = self.values.macros.get(second).cloned() {
                    self.values.macros.insert(first.to_string(), found);
                } else if matches!(second, "relax" | "empty" | "@empty" | "undefined" | "@undefined") {
                    self.values.macros.remove(first);
                }
                Some(skip_space(source, end_of_command(source, second_at, self.letter)))
            }
            "newboolean" | "provideboolean" | "newbool" | "providebool" | "newtoggle" | "providetoggle"
            | "booltrue" | "boolfalse" | "toggletrue" | "togglefalse" => {
                let (argument, behind) = grouped.argument(end)?;
                self.values.switches.insert(argument.trim().to_string(), name.ends_with("true"));
                Some(behind)
            }
            "setboolean" | "setbool" | "settoggle" => {
                let (argument, behind) = grouped.argument(end)?;
                let (value, behind) = grouped.argument(behind)?;
                self.values.switches.insert(argument.trim().to_string(), value.trim() == "true");
                Some(behind)
            }
            "excludecomment" | "includecomment" => Some(grouped.argument(end)?.1),
            "newcounter" => {
                let (argument, behind) = grouped.argument(end)?;
                self.values.numbers.insert(argument.trim().to_string(), 0);
                Some(grouped.skip_options(behind))
            }
            "setcounter" | "addtocounter" => {
                let (counter, behind) = grouped.argument(end)?;
                let (value, behind) = grouped.argument(behind)?;
                let inner = Grouped::new(value);
                let value = Operands::new(&self.values, &inner, 0, self.letter).number();
                self.set_number(counter.trim(), value, name == "addtocounter");
                Some(behind)
            }
            "stepcounter" | "refstepcounter" => {
                let (counter, behind) = grouped.argument(end)?;
                self.set_number(counter.trim(), Some(1), true);
                Some(behind)
            }
            "newcount" => {
                let register = control_sequence(source, skip_space(source, end), self.letter)?;
                self.values.numbers.insert(register.to_string(), 0);
                Some(skip_space(source, end_of_command(source, end, self.letter)))
            }
            "advance" => {
                let start = skip_space(source, end);
                let register = control_sequence(source, start, self.letter)?;
                self.values.numbers.contains_key(register).then_some(())?;
                let at = skip_space(source, end_of_command(source, end, self.letter));
                let at = if source[at..].starts_with("by") { at + 2 } else { at };
                self.assign(grouped, register, at, true)
            }
            _ if self.values.numbers.contains_key(name) => {
                let at = skip_space(source, end);
                source[at..].starts_with('=').then(|| self.assign(grouped, name, at + 1, false)).flatten()
            }
            _ => {
                let (switch, value) = name
                    .strip_suffix("true")
                    .map(|stem| (stem, true))
                    .or_else(|| name.strip_suffix("false").map(|stem| (stem, false)))?;
                *self.values.switches.get_mut(switch)? = value;
                Some(skip_space(source, end))
            }
        }
    }

    fn assign(&mut self, grouped: &Grouped, register: &str, at: usize, add: bool) -> Option<usize> {
        let mut operands = Operands::new(&self.values, grouped, at, self.letter);
        let value = operands.number();
        let behind = operands.at;
        self.set_number(register, value, add);
        Some(behind)
    }

    /// Sets a counter, or forgets it where its value is not known.
    fn set_number(&mut self, name: &str, value: Option<i64>, add: bool) {
        let old = self.values.numbers.get(name).copied();
        let new = if add { old.zip(value).and_then(|(old, value)| old.checked_add(value)) } else { value };
        match new {
            Some(new) => drop(self.values.numbers.insert(name.to_string(), new)),
            None => drop(self.values.numbers.remove(name)),
        }
    }
}

/// The expansion of a macro whose name ends at `end`, and the position behind its arguments.
fn expansion(found: &Macro, grouped: &Grouped, name: &str, end: usize) -> Option<(String, usize)> {
    let source = grouped.text;
    let count = found.arguments?;
    let (mut arguments, mut at) = (Vec::new(), end);
    if let Some(default) = &found.default {
        let start = skip_space(source, at);
        match grouped.skip_option(start) {
            Some(behind) => {
                arguments.push(&source[start + 1..behind - 1]);
                at = behind;
            }
            None => arguments.push(default),
        }
    }
    while arguments.len() < count {
        let start = skip_space(source, at);
        let (argument, behind) = grouped.group(start).or_else(|| {
            let c = source[start..].chars().next()?;
            let length = if c == '\\' { 1 + command_name(source, start).len() } else { c.len_utf8() };
            Some((&source[start..start + length], start + length))
        })?;
        arguments.push(argument);
        at = behind;
    }
    let keeps_space = found.body.contains("\\xspace");
    let body = found.body.replace("\\xspace", "");
    let mut expanded = String::with_capacity(body.len());
    let mut rest = body.as_str();
    while let Some(mark) = rest.find('#') {
        expanded.push_str(&rest[..mark]);
        let number = rest.as_bytes().get(mark + 1).filter(|byte| byte.is_ascii_digit());
        match number.and_then(|digit| arguments.get(usize::from(digit - b'0').wrapping_sub(1))) {
            Some(argument) => {
                // A command before it must not become the beginning of a longer name.
                let last = expanded.rfind('\\').map_or("", |at| command_name(&expanded, at));
                if argument.starts_with(|c: char| c.is_ascii_alphabetic())
                    && is_word(last)
                    && expanded.ends_with(last)
                {
                    expanded.push(' ');
                }
                expanded.push_str(argument);
                rest = &rest[mark + 2..];
            }
            None => {
                expanded.push('#');
                rest = &rest[mark + 1..];
            }
        }
    }
    expanded.push_str(rest);
    if at == end {
        if source[end..].starts_with("{}") {
            at += 2;
        } else if is_word(name) && !keeps_space {
            at = skip_space(source, end);
        }
    }
    Some((expanded, at))
}
