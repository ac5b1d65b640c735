//! One word of a schedule file.

use crate::{Fill, Filler, Flow, Instruction, Pass, Place, ScheduleError};

/// A word and where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// From 1.
    pub(super) line: usize,
    /// From 1, in characters.
    pub(super) column: usize,
}

impl<'a> Token<'a> {
    /// The words of a line, from its `column`-th character on, without what follows `#`.
    pub(super) fn split(text: &'a str, line: usize) -> Vec<Self> {
        let text = text.split_once('#').map_or(text, |(before, _)| before);
        let mut tokens = Vec::new();
        let mut start = None;
        let ends = std::iter::once((text.len(), ' '));
        for (column, (at, character)) in text.char_indices().chain(ends).enumerate() {
            match start {
                None if !character.is_whitespace() => start = Some((at, column + 1)),
                Some((from, column)) if character.is_whitespace() => {
                    tokens.push(Self { text: &text[from..at], line, column });
                    start = None;
                }
                _ => {}
            }
        }
        tokens
    }

    /// Returns the error that this word is wrong.
    pub(super) fn error(&self, what: impl Into<String>) -> ScheduleError {
        ScheduleError::Text { line: self.line, column: self.column, what: what.into() }
    }

    /// A number that is the whole word.
    pub(super) fn number(self) -> Result<usize, ScheduleError> {
        let mut rest = Rest::new(self);
        let number = rest.number()?;
        rest.end()?;
        Ok(number)
    }

    /// `number` or `number*count`.
    pub(super) fn run(self) -> Result<(usize, usize), ScheduleError> {
        let mut rest = Rest::new(self);
        let number = rest.number()?;
        let count = if rest.take("*") { rest.number()? } else { 1 };
        rest.end()?;
        Ok((number, count))
    }

    /// `rank` or `rank.chunk`.
    pub(super) fn place(self) -> Result<Place, ScheduleError> {
        let mut rest = Rest::new(self);
        let place = rest.place()?;
        rest.end()?;
        Ok(place)
    }

    /// An instruction as [`Instruction`] is displayed.
    pub(super) fn instruction(self) -> Result<Instruction, ScheduleError> {
        let mut rest = Rest::new(self);
        let word = rest.word();
        let instruction = match word {
            "F" => {
                let forward = rest.pass()?;
                match rest.take("&B") {
                    true => Instruction::Together { forward, backward: rest.pass()? },
                    false => Instruction::Forward(forward),
                }
            }
            "B" => Instruction::Backward(rest.pass()?),
            "I" => Instruction::BackwardInput(rest.pass()?),
            "W" => Instruction::BackwardWeight(rest.pass()?),
            "sendA" | "sendG" => {
                let (flow, (micro, chunk)) = (flow(word), rest.numbered()?);
                rest.expect(">")?;
                Instruction::Send { flow, micro, chunk, to: rest.place()? }
            }
            "recvA" | "recvG" => {
                let (flow, (micro, chunk)) = (flow(word), rest.numbered()?);
                rest.expect("<")?;
                Instruction::Receive { flow, micro, chunk, from: rest.place()? }
            }
            "reduce" | "step" | "gather" => {
                let (update, chunk) = rest.numbered()?;
                match word {
                    "reduce" => Instruction::Reduce { chunk, update },
                    "step" => Instruction::Step { chunk, update },
                    _ => Instruction::Gather { chunk, update },
                }
            }
            _ => {
                let filler = Filler::ALL.into_iter().find(|filler| filler.name() == word);
                let filler = filler.ok_or_else(|| {
                    self.error(format!(
                        "unknown instruction {:?}; passes are F (forward), B (backward), I and W (its input \
                         and weight part), F&B, each with the number of a micro-batch",
                        shown(word)
                    ))
                })?;
                let (unit, chunk) = rest.numbered()?;
                Instruction::Fill(Fill { filler, chunk, unit })
            }
        };
        rest.end()?;
        Ok(instruction)
    }
}

fn flow(word: &str) -> Flow {
    if word.ends_with('A') { Flow::Activation } else { Flow::Gradient }
}

/// At most so much of somebody's text that an error stays one line.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The unread rest of a word.
struct Rest<'a> {
    token: Token<'a>,
    at: usize,
}

impl<'a> Rest<'a> {
    fn new(token: Token<'a>) -> Self {
        Self { token, at: 0 }
    }

    fn left(&self) -> &'a str {
        &self.token.text[self.at..]
    }

    fn error(&self, wanted: &str) -> ScheduleError {
        let before = self.token.text[..self.at].chars().count();
        let token = Token { column: self.token.column + before, ..self.token };
        match self.left() {
            "" => token.error(format!("expected {wanted} after {:?}", shown(self.token.text))),
            left => token.error(format!("expected {wanted}, found {:?}", shown(left))),
        }
    }

    /// Takes the characters before the first digit.
    fn word(&mut self) -> &'a str {
        let left = self.left();
        let length = left.find(|c: char| c.is_ascii_digit()).unwrap_or(left.len());
        self.at += length;
        &left[..length]
    }

    fn take(&mut self, text: &str) -> bool {
        let there = self.left().starts_with(text);
        self.at += if there { text.len() } else { 0 };
        there
    }

    fn expect(&mut self, text: &str) -> Result<(), ScheduleError> {
        if self.take(text) { Ok(()) } else { Err(self.error(&format!("{text:?}"))) }
    }

    fn number(&mut self) -> Result<usize, ScheduleError> {
        let left = self.left();
        let length = left.find(|c: char| !c.is_ascii_digit()).unwrap_or(left.len());
        if length == 0 {
            return Err(self.error("a number"));
        }
        // Nine digits are beyond every size that a program may have, and fit in every number.
        let number = left[..length].parse().ok().filter(|_| length <= 9);
        let number = number.ok_or_else(|| self.error("a number of at most nine digits"))?;
        self.at += length;
        Ok(number)
    }

    fn chunk(&mut self) -> Result<usize, ScheduleError> {
        if self.take(".") { self.number() } else { Ok(0) }
    }

    fn numbered(&mut self) -> Result<(usize, usize), ScheduleError> {
        Ok((self.number()?, self.chunk()?))
    }

    fn place(&mut self) -> Result<Place, ScheduleError> {
        Ok(Place { rank: self.number()?, chunk: self.chunk()? })
    }

    fn pass(&mut self) -> Result<Pass, ScheduleError> {
        let (micro, chunk) = self.numbered()?;
        let version = if self.take("@") { self.number()? } else { 0 };
        Ok(Pass { micro, chunk, version })
    }

    fn end(&self) -> Result<(), ScheduleError> {
        if self.left().is_empty() { Ok(()) } else { Err(self.error("the end of the word")) }
    }
}
