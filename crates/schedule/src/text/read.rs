//! From text to a program.

use super::token::{Token, shown};
use super::{MAGIC, VERSION};
use crate::{Instruction, Limits, Place, Program, ScheduleError, communicate, verify};

/// Reads a schedule file. Messages and updates are inserted where it has none at all; the program is verified.
///
/// # Errors
/// [`ScheduleError::Text`] with line and column for what is not the format, and everything that [`verify`] finds.
pub fn parse(text: &str) -> Result<Program, ScheduleError> {
    let mut file = File::default();
    let mut lines = text.lines().enumerate().map(|(i, line)| Token::split(line, i + 1));
    let head = lines.by_ref().find(|tokens| !tokens.is_empty()).unwrap_or_default();
    first_line(&head)?;
    let mut last = head.first().map_or(1, |token| token.line);
    for (number, tokens) in lines.enumerate() {
        if let Some((word, rest)) = tokens.split_first() {
            file.line(*word, rest)?;
        }
        last = last.max(number + 2);
    }
    let bare = file.bare;
    let program = file.program(last)?;
    let program = if bare { communicate(program)? } else { program };
    verify(&program, &Limits::default())?;
    Ok(program)
}

fn first_line(tokens: &[Token]) -> Result<(), ScheduleError> {
    let wanted = format!("a schedule file begins with \"{MAGIC} {VERSION}\"");
    match tokens {
        [magic, version] if magic.text == MAGIC => {
            match version.text {
                VERSION => Ok(()),
                other => Err(version
                    .error(format!("version {:?} of the format is not supported; {wanted}", shown(other)))),
            }
        }
        [other, ..] => Err(other.error(format!("{wanted}, found {:?}", shown(other.text)))),
        [] => Err(ScheduleError::Text { line: 1, column: 1, what: format!("{wanted}, found nothing") }),
    }
}

/// The entries of a file, as far as it has been read.
struct File<'a> {
    name: Option<String>,
    micro_batches: Option<(Token<'a>, usize)>,
    routes: Vec<Vec<Place>>,
    route_of: Option<Runs<'a>>,
    update_of: Option<Runs<'a>>,
    lists: Vec<Vec<Instruction>>,
    /// No communication so far.
    bare: bool,
}

impl Default for File<'_> {
    fn default() -> Self {
        Self {
            name: None,
            micro_batches: None,
            routes: Vec::new(),
            route_of: None,
            update_of: None,
            lists: Vec::new(),
            bare: true,
        }
    }
}

/// Numbers and how often each stands, and the word before them.
type Runs<'a> = (Token<'a>, Vec<(usize, usize)>);

impl<'a> File<'a> {
    fn line(&mut self, word: Token<'a>, rest: &[Token<'a>]) -> Result<(), ScheduleError> {
        let once = |there: bool| match there {
            true => Err(word.error(format!("{:?} occurs twice", word.text))),
            false => Ok(()),
        };
        match word.text {
            "name" => {
                once(self.name.is_some())?;
                let name: Vec<&str> = rest.iter().map(|token| token.text).collect();
                let name = name.join(" ");
                if name.is_empty() || name.chars().count() > 80 || name.chars().any(char::is_control) {
                    return Err(word.error("a name has 1 to 80 characters, none of them a control character"));
                }
                self.name = Some(name);
            }
            "micro-batches" => {
                once(self.micro_batches.is_some())?;
                let [number] = rest else {
                    return Err(word.error("expected one number after micro-batches"));
                };
                self.micro_batches = Some((*number, number.number()?));
            }
            "route" => {
                let places = rest.iter().map(|token| token.place()).collect::<Result<Vec<_>, _>>()?;
                if places.is_empty() {
                    return Err(word.error("a route has a rank, or rank.chunk, for each stage"));
                }
                self.routes.push(places);
            }
            "routes" => {
                once(self.route_of.is_some())?;
                self.route_of = Some((word, rest.iter().map(|token| token.run()).collect::<Result<_, _>>()?));
            }
            "updates" => {
                once(self.update_of.is_some())?;
                self.update_of =
                    Some((word, rest.iter().map(|token| token.run()).collect::<Result<_, _>>()?));
            }
            "rank" => self.rank(word, rest)?,
            other => {
                return Err(word.error(format!(
                    "unknown line {:?}; expected name, micro-batches, route, routes, updates, rank",
                    shown(other)
                )));
            }
        }
        Ok(())
    }

    fn rank(&mut self, word: Token<'a>, rest: &[Token<'a>]) -> Result<(), ScheduleError> {
        let Some((number, instructions)) = rest.split_first() else {
            return Err(word.error("expected the rank's number and a colon, as in \"rank 0: F0 B0\""));
        };
        let Some(digits) = number.text.strip_suffix(':') else {
            return Err(
                number.error(format!("expected a colon after the rank, found {:?}", shown(number.text)))
            );
        };
        let rank = Token { text: digits, ..*number }.number()?;
        let next = self.lists.len();
        if rank > next {
            return Err(number.error(format!("wanted rank {next}: ranks are listed in order, from 0")));
        }
        if rank == next {
            self.lists.push(Vec::new());
        }
        // A rank may go on in another line.
        for token in instructions {
            let instruction = token.instruction()?;
            self.bare &= matches!(instruction, Instruction::Fill(_)) || instruction.passes().next().is_some();
            self.lists[rank].push(instruction);
        }
        Ok(())
    }

    /// The program, `last` being the file's last line.
    fn program(self, last: usize) -> Result<Program, ScheduleError> {
        let missing = |what: &str| ScheduleError::Text {
            line: last,
            column: 1,
            what: format!("the file ends without {what}"),
        };
        let name = self.name.ok_or_else(|| missing("a name"))?;
        let (token, micro_batches) = self.micro_batches.ok_or_else(|| missing("micro-batches"))?;
        let stages = self.routes.first().ok_or_else(|| missing("a route"))?.len();
        if self.lists.is_empty() {
            return Err(missing("the list of a rank"));
        }
        // Everything below is as large as micro-batches times stages; what is written must be as large too.
        let passes: usize = self.lists.iter().flatten().map(|i| i.passes().count()).sum();
        let needed = micro_batches.checked_mul(stages).and_then(|passes| passes.checked_mul(2));
        if needed.is_none_or(|needed| needed > passes) {
            return Err(token.error(format!(
                "{micro_batches} micro-batches through {stages} stages are at least 2 x {micro_batches} x {stages} \
                 passes, and the ranks have {passes}"
            )));
        }
        let route_of = expand(self.route_of, micro_batches)?;
        let update_of = expand(self.update_of, micro_batches)?;
        let updates = update_of.iter().max().map_or(1, |last| last + 1);
        Ok(Program { name, stages, updates, routes: self.routes, route_of, update_of, lists: self.lists })
    }
}

/// One number for each micro-batch; 0 where nothing is said.
fn expand(runs: Option<Runs>, micro_batches: usize) -> Result<Vec<usize>, ScheduleError> {
    let Some((word, runs)) = runs else { return Ok(vec![0; micro_batches]) };
    let total = runs.iter().try_fold(0_usize, |sum, run| sum.checked_add(run.1));
    if total != Some(micro_batches) {
        let found = total.map_or("too many".to_owned(), |total| total.to_string());
        return Err(word.error(format!("expected {micro_batches} numbers, one a micro-batch, found {found}")));
    }
    Ok(runs.into_iter().flat_map(|(number, count)| std::iter::repeat_n(number, count)).collect())
}
