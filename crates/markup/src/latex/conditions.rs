//! Conditions, evaluated as far as macros, switches and counters of the paper itself decide them. Lengths, boxes, files and switches
//! of classes do not exist here: such a condition is undecided, and the caller keeps the first branch.

use super::commands::command;
use super::conditionals::PRIMITIVES;
use super::macros::Macro;
use super::scan::{Grouped, is_word, name_with_at, skip_space};
use std::collections::{HashMap, VecDeque};

/// Most tokens that one operand expands to.
const MOST_TOKENS: usize = 4096;
/// Most terms inside each other in a condition.
const MOST_OPERAND_DEPTH: usize = 32;

/// Values that conditions depend on.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) macros: HashMap<String, Macro>,
    /// Switches without `if`: of `\newif`, `\newboolean`, `\newtoggle`.
    pub(super) switches: HashMap<String, bool>,
    /// Counters and number registers.
    pub(super) numbers: HashMap<String, i64>,
    /// Whether the position is in a formula.
    pub(super) math: bool,
}

/// A token of an operand.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Char(char),
    Command(String),
}

/// Reads operands of conditions.
pub(super) struct Operands<'a> {
    values: &'a Values,
    grouped: &'a Grouped<'a>,
    /// Position behind what was read.
    pub(super) at: usize,
    letter: bool,
    /// Tokens of expanded macros, which come before the source.
    pending: VecDeque<Token>,
    expanded: usize,
}

impl<'a> Operands<'a> {
    pub(super) fn new(values: &'a Values, grouped: &'a Grouped<'a>, at: usize, letter: bool) -> Operands<'a> {
        Operands { values, grouped, at, letter, pending: VecDeque::new(), expanded: 0 }
    }

    /// The next token and the position behind it; tokens of expanded macros have none.
    fn peek(&self) -> Option<(Token, Option<usize>)> {
        if let Some(token) = self.pending.front() {
            return Some((token.clone(), None));
        }
        token(self.grouped.text, self.at, self.letter).map(|(token, end)| (token, Some(end)))
    }

    fn advance(&mut self, end: Option<usize>) {
        match end {
            Some(end) => self.at = end,
            None => drop(self.pending.pop_front()),
        }
    }

    fn next(&mut self) -> Option<Token> {
        let (token, end) = self.peek()?;
        self.advance(end);
        Some(token)
    }

    /// Expands the macros at the front.
    fn expand(&mut self) {
        while let Some((Token::Command(name), end)) = self.peek() {
            if matches!(name.as_str(), "expandafter" | "noexpand" | "protect" | "empty" | "@empty") {
                self.advance(end);
                continue;
            }
            let Some(found) = self.values.macros.get(&name).filter(|found| found.arguments == Some(0)) else {
                return;
            };
            self.expanded += 1 + found.body.len();
            if self.expanded > MOST_TOKENS {
                return;
            }
            self.advance(end);
            for token in tokens(&found.body, found.letter).into_iter().rev() {
                self.pending.push_front(token);
            }
        }
    }

    fn skip_spaces(&mut self) {
        self.expand();
        while let Some((Token::Char(' '), end)) = self.peek() {
            self.advance(end);
            self.expand();
        }
    }

    /// The next token if it is this character.
    fn accept(&mut self, wanted: impl Fn(char) -> bool) -> Option<char> {
        self.expand();
        match self.peek() {
            Some((Token::Char(c), end)) if wanted(c) => {
                self.advance(end);
                Some(c)
            }
            _ => None,
        }
    }

    /// The argument that follows in the source.
    fn argument(&mut self) -> Option<&'a str> {
        let (text, end) = self.grouped.argument(self.at).filter(|_| self.pending.is_empty())?;
        self.at = end;
        Some(text)
    }

    /// A control sequence, as it is or between `\csname` and `\endcsname`.
    fn name_or_char(&mut self) -> Option<Token> {
        match self.next()? {
            Token::Command(name) if name == "csname" => {
                let mut spelled = String::new();
                while let Some(token) = self.next() {
                    match token {
                        Token::Char(c) => spelled.push(c),
                        Token::Command(name) if name == "endcsname" => break,
                        Token::Command(_) => return None,
                    }
                }
                Some(Token::Command(spelled))
            }
            Token::Command(name) if name == "expandafter" => self.name_or_char(),
            token => Some(token),
        }
    }

    /// A number; none where it depends on something else than the paper's macros and counters.
    pub(super) fn number(&mut self) -> Option<i64> {
        self.skip_spaces();
        let mut negative = false;
        while let Some(sign) = self.accept(|c| matches!(c, '-' | '+' | ' ')) {
            negative ^= sign == '-';
        }
        let value = match self.peek()? {
            (Token::Char('`'), end) => {
                self.advance(end);
                match self.next()? {
                    Token::Char(c) => Some(i64::from(u32::from(c))),
                    Token::Command(name) => name.chars().next().map(|c| i64::from(u32::from(c))),
                }
            }
            (Token::Char('"'), end) => {
                self.advance(end);
                self.digits(16)
            }
            (Token::Char('\''), end) => {
                self.advance(end);
                self.digits(8)
            }
            (Token::Char(_), _) => self.digits(10),
            (Token::Command(name), end) => {
                self.advance(end);
                self.named_number(&name)
            }
        }?;
        Some(if negative { -value } else { value })
    }

    fn digits(&mut self, base: u32) -> Option<i64> {
        let mut value = None;
        while let Some(digit) = self.accept(|c| c.is_digit(base)).and_then(|c| c.to_digit(base)) {
            value =
                Some(i64::checked_mul(value.unwrap_or(0), i64::from(base))?.checked_add(i64::from(digit))?);
        }
        // TeX takes one space after a number.
        if value.is_some()
            && let Some((Token::Char(' '), end)) = self.peek()
        {
            self.advance(end);
        }
        value
    }

    fn named_number(&mut self, name: &str) -> Option<i64> {
        match name {
            "value" | "arabic" => {
                self.argument().and_then(|name| self.values.numbers.get(name.trim()).copied())
            }
            "the" | "number" => self.number(),
            "pdfstrcmp" | "strcmp" => {
                let (first, second) = (self.argument()?, self.argument()?);
                Some(self.text_of(first).cmp(&self.text_of(second)) as i64)
            }
            _ => {
                let known = self.values.numbers.get(name).copied();
                // Arguments of a macro that is not read.
                while known.is_none() && self.argument().is_some() {}
                known
            }
        }
    }

    /// A length in points.
    fn length(&mut self) -> Option<f64> {
        self.skip_spaces();
        let mut number = String::new();
        while let Some(c) = self.accept(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '+' | ' ')) {
            match c {
                ' ' if !number.is_empty() => break,
                ' ' | '+' => {}
                ',' => number.push('.'),
                c => number.push(c),
            }
        }
        let mut unit = String::new();
        while unit.len() < 2
            && let Some(c) = self.accept(|c| c.is_ascii_alphabetic() || c == ' ')
        {
            if c != ' ' {
                unit.push(c);
            }
        }
        if unit.is_empty()
            && let Some((Token::Command(_), end)) = self.peek()
        {
            // A length register.
            self.advance(end);
        }
        let points = match unit.as_str() {
            "pt" => 1.0,
            "pc" => 12.0,
            "in" => 72.27,
            "bp" => 72.27 / 72.0,
            "cm" => 72.27 / 2.54,
            "mm" => 72.27 / 25.4,
            "dd" => 1238.0 / 1157.0,
            "cc" => 12.0 * 1238.0 / 1157.0,
            "sp" => 1.0 / 65536.0,
            _ => return None,
        };
        if let Some((Token::Char(' '), end)) = self.peek() {
            self.advance(end);
        }
        number.parse::<f64>().ok().map(|number| number * points)
    }

    /// The relation `<`, `=` or `>` between two operands that `read` reads.
    fn comparison<T: PartialOrd>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<bool> {
        let first = read(self);
        self.skip_spaces();
        let relation = self.accept(|c| matches!(c, '<' | '=' | '>'));
        let Some(relation) = relation else {
            self.pending.clear();
            return None;
        };
        let second = read(self);
        let (first, second) = (first?, second?);
        Some(match relation {
            '<' => first < second,
            '=' => first == second,
            _ => first > second,
        })
    }

    /// A text with its macros expanded and its white space made single.
    fn text_of(&self, text: &str) -> String {
        let grouped = Grouped::new(text);
        let mut inner = Operands::new(self.values, &grouped, 0, self.letter);
        let mut found = String::new();
        loop {
            inner.expand();
            match inner.next() {
                None => break,
                Some(Token::Char('{' | '}')) => {}
                Some(Token::Char(' ')) if found.ends_with(' ') || found.is_empty() => {}
                Some(Token::Char(c)) => found.push(c),
                Some(Token::Command(name)) => {
                    found.push('\\');
                    found.push_str(&name);
                }
            }
        }
        found.truncate(found.trim_end().len());
        found
    }

    /// Whether two control sequences or characters mean the same.
    fn same_meaning(&self, first: &Token, second: &Token) -> Option<bool> {
        #[derive(PartialEq)]
        enum Meaning<'m> {
            Character(char),
            Defined(Option<usize>, &'m str),
            Known(&'m str),
            Undefined,
        }
        let meaning = |token: &'_ Token| match token {
            Token::Char(c) => Meaning::Character(*c),
            Token::Command(name) => match self.values.macros.get(name) {
                Some(found) => Meaning::Defined(found.arguments, &found.body),
                None if matches!(name.as_str(), "empty" | "@empty") => Meaning::Defined(Some(0), ""),
                None if self.is_defined(name) => Meaning::Known(match name.as_str() {
                    "relax" => "relax",
                    _ => "",
                }),
                None => Meaning::Undefined,
            },
        };
        match (meaning(first), meaning(second)) {
            // Two commands of LaTeX itself.
            (Meaning::Known(one), Meaning::Known(other)) if one.is_empty() || other.is_empty() => {
                (first == second).then_some(true)
            }
            // An undefined `\csname` is made equal to `\relax`.
            (Meaning::Undefined, Meaning::Known("relax")) | (Meaning::Known("relax"), Meaning::Undefined) => {
                Some(true)
            }
            (one, other) => Some(one == other),
        }
    }

    /// Whether a control sequence is defined in the paper or known to be LaTeX's.
    fn is_defined(&self, name: &str) -> bool {
        self.values.macros.contains_key(name)
            || self.values.switches.contains_key(name.strip_prefix("if").unwrap_or(""))
            || self.values.numbers.contains_key(name)
            || command(name).is_some()
            || PRIMITIVES.contains(&name)
            || matches!(
                name,
                "relax"
                    | "def"
                    | "let"
                    | "newcommand"
                    | "begin"
                    | "end"
                    | "pdfoutput"
                    | "pdfoptionpdfminorversion"
                    | "pdftexversion"
                    | "documentclass"
                    | "textbf"
                    | "emph"
                    | "textit"
                    | "today"
            )
    }

    /// Branch of the conditional `name`, whose operands follow; none where it is undecided. The first branch has number 0.
    pub(super) fn branch(&mut self, name: &str) -> Option<usize> {
        if name == "ifcase" {
            return self.number().map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        }
        let holds = match name {
            "iftrue" | "ifpdf" | "ifPDFTeX" | "ifpdftex" | "ifhmode" => {
                Some(!(name == "ifhmode" && self.values.math))
            }
            "iffalse" | "ifxetex" | "ifXeTeX" | "ifluatex" | "ifLuaTeX" | "iftutex" | "ifTUTeX"
            | "ifvmode" | "ifinner" | "ifincsname" => Some(false),
            "ifmmode" => Some(self.values.math),
            "ifnum" | "ifpdfabsnum" => self.comparison(Operands::number),
            "ifdim" | "ifpdfabsdim" => self.comparison(Operands::length),
            "ifodd" => self.number().map(|number| number % 2 != 0),
            "ifvoid" | "ifeof" => self.number().map(|_| true).or(Some(true)),
            "ifhbox" | "ifvbox" => self.number().map(|_| false).or(Some(false)),
            "iffontchar" => None,
            "ifx" => match (self.name_or_char(), self.name_or_char()) {
                (Some(first), Some(second)) => self.same_meaning(&first, &second),
                _ => None,
            },
            "if" | "ifcat" => self.equal_characters(name == "ifcat"),
            "ifdefined" => match self.name_or_char()? {
                Token::Command(name) => Some(self.is_defined(&name)),
                Token::Char(_) => Some(true),
            },
            "ifcsname" => {
                let mut spelled = String::new();
                loop {
                    self.expand();
                    match self.next()? {
                        Token::Char(c) => spelled.push(c),
                        Token::Command(name) if name == "endcsname" => break Some(self.is_defined(&spelled)),
                        Token::Command(_) => {}
                    }
                }
            }
            _ => self.values.switches.get(name.strip_prefix("if").unwrap_or("")).copied(),
        }?;
        Some(usize::from(!holds))
    }

    /// `\if` and `\ifcat`: the next two tokens, expanded.
    fn equal_characters(&mut self, by_category: bool) -> Option<bool> {
        self.expand();
        let first = self.next()?;
        self.expand();
        let second = self.next()?;
        match (first, second) {
            (Token::Char(first), Token::Char(second)) if by_category => {
                let category = |c: char| (c.is_alphabetic(), if c.is_alphanumeric() { ' ' } else { c });
                Some(first == second || category(first).0 && category(second).0)
            }
            (Token::Char(first), Token::Char(second)) => Some(first == second),
            (Token::Command(first), Token::Command(second)) => (first == second).then_some(true),
            // A control sequence that does not expand equals no character, but macros of classes do expand.
            (Token::Command(name), _) | (_, Token::Command(name)) => {
                (self.is_defined(&name) && !self.values.macros.contains_key(&name)).then_some(false)
            }
        }
    }

    /// Whether the condition of a command holds that takes its branches as arguments: `tests` are the arguments before them.
    pub(super) fn holds(&self, name: &str, tests: &[&str]) -> Option<bool> {
        let switch = |name: &str| self.values.switches.get(name.trim()).copied();
        let control = |text: &str| text.trim().strip_prefix('\\').map(str::to_string);
        let body =
            |text: &str| self.values.macros.get(&control(text)?).map(|found| self.text_of(&found.body));
        let number = |text: &str| {
            let grouped = Grouped::new(text);
            Operands::new(self.values, &grouped, 0, self.letter).number()
        };
        let compare = |relation: &str, first: &str, second: &str| {
            let (first, second) = (number(first)?, number(second)?);
            Some(match relation.trim() {
                "<" => first < second,
                "=" => first == second,
                ">" => first > second,
                _ => return None,
            })
        };
        match (name, tests) {
            ("ifthenelse", [test]) => {
                let grouped = Grouped::new(test);
                Operands::new(self.values, &grouped, 0, self.letter).disjunction(0)
            }
            ("ifbool" | "iftoggle", [test]) => switch(test),
            ("notbool" | "nottoggle", [test]) => switch(test).map(|value| !value),
            ("ifdef" | "ifdefmacro", [test]) => Some(self.is_defined(&control(test)?)),
            ("ifundef", [test]) => Some(!self.is_defined(&control(test)?)),
            ("ifcsdef", [test]) => Some(self.is_defined(test.trim())),
            ("ifcsundef" | "@ifundefined", [test]) => Some(!self.is_defined(&self.text_of(test))),
            ("ifdefempty", [test]) => Some(body(test)?.is_empty()),
            ("ifdefvoid", [test]) => Some(body(test).is_none_or(|body| body.is_empty())),
            ("ifblank" | "ifstrempty" | "IfBlankTF", [test]) => Some(test.trim().is_empty()),
            ("notblank", [test]) => Some(!test.trim().is_empty()),
            ("ifnumodd", [test]) => Some(number(test)? % 2 != 0),
            ("ifstrequal", [first, second]) => Some(first == second),
            ("ifdefstring", [first, second]) => Some(body(first)? == self.text_of(second)),
            ("ifdefstrequal", [first, second]) => Some(body(first)? == body(second)?),
            ("ifnumequal", [first, second]) => compare("=", first, second),
            ("ifnumgreater", [first, second]) => compare(">", first, second),
            ("ifnumless", [first, second]) => compare("<", first, second),
            ("ifnumcomp", [first, relation, second]) => compare(relation, first, second),
            _ => None,
        }
    }

    /// A test of `\ifthenelse`: terms joined by `\or`.
    fn disjunction(&mut self, depth: usize) -> Option<bool> {
        let mut value = self.conjunction(depth);
        while self.accept_command(&["or", "OR"]) {
            let other = self.conjunction(depth);
            value = match (value, other) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            };
        }
        value
    }

    fn conjunction(&mut self, depth: usize) -> Option<bool> {
        let mut value = self.condition(depth);
        while self.accept_command(&["and", "AND"]) {
            let other = self.condition(depth);
            value = match (value, other) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            };
        }
        value
    }

    fn condition(&mut self, depth: usize) -> Option<bool> {
        if depth > MOST_OPERAND_DEPTH {
            return None;
        }
        if self.accept_command(&["not", "NOT"]) {
            return self.condition(depth + 1).map(|value| !value);
        }
        if self.accept_command(&["("]) {
            let value = self.disjunction(depth + 1);
            self.accept_command(&[")"]);
            return value;
        }
        if self.accept_command(&["equal"]) {
            let (first, second) = (self.argument()?, self.argument()?);
            return Some(self.text_of(first) == self.text_of(second));
        }
        if self.accept_command(&["boolean"]) {
            let name = self.argument()?;
            return self.values.switches.get(name.trim()).copied();
        }
        if self.accept_command(&["isodd"]) {
            let grouped = Grouped::new(self.argument()?);
            let number = Operands::new(self.values, &grouped, 0, self.letter).number();
            return number.map(|number| number % 2 != 0);
        }
        if self.accept_command(&["isundefined"]) {
            let name = self.argument()?;
            return Some(!self.is_defined(name.trim().strip_prefix('\\')?));
        }
        if self.accept_command(&["lengthtest"]) {
            let grouped = Grouped::new(self.argument()?);
            return Operands::new(self.values, &grouped, 0, self.letter).comparison(Operands::length);
        }
        self.comparison(Operands::number)
    }

    fn accept_command(&mut self, names: &[&str]) -> bool {
        self.skip_spaces();
        match self.peek() {
            Some((Token::Command(name), end)) if names.contains(&name.as_str()) => {
                self.advance(end);
                true
            }
            _ => false,
        }
    }
}

/// The token at a position and the position behind it; white space after a control word belongs to it.
fn token(source: &str, at: usize, letter: bool) -> Option<(Token, usize)> {
    let c = source.get(at..)?.chars().next()?;
    if c == '\\' {
        let name = name_with_at(source, at, letter);
        let end = at + 1 + name.len();
        let end = if is_word(name) || name.len() > 1 { skip_space(source, end) } else { end };
        return Some((Token::Command(name.to_string()), end));
    }
    if c.is_whitespace() {
        return Some((Token::Char(' '), skip_space(source, at).max(at + c.len_utf8())));
    }
    Some((Token::Char(c), at + c.len_utf8()))
}

fn tokens(text: &str, letter: bool) -> Vec<Token> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some((next, end)) = token(text, at, letter) {
        found.push(next);
        at = end;
    }
    found
}
