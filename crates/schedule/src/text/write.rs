//! From a program to text.

use std::fmt::Write;

use super::{MAGIC, VERSION};
use crate::{Instruction, Place, Program};

impl Program {
    /// The program as a schedule file, communication included. [`parse`](crate::parse) gives it back, if its name is one
    /// that a file can hold: one line of at most 80 characters without `#`.
    pub fn to_text(&self) -> String {
        let mut text =
            format!("{MAGIC} {VERSION}\nname {}\nmicro-batches {}\n", self.name, self.micro_batches());
        for route in &self.routes {
            text.push_str("route");
            for place in route {
                text.push(' ');
                push_place(&mut text, *place);
            }
            text.push('\n');
        }
        if self.routes.len() > 1 {
            push_runs(&mut text, "routes", &self.route_of);
        }
        if self.updates > 1 {
            push_runs(&mut text, "updates", &self.update_of);
        }
        for (rank, list) in self.lists.iter().enumerate() {
            // Writing to a string cannot fail, here and below.
            let _ = write!(text, "rank {rank}:");
            for instruction in list {
                let _ = write!(text, " {instruction}");
            }
            text.push('\n');
        }
        text
    }

    /// The program without messages and updates: what [`communicate`](crate::communicate) takes, and what is short enough
    /// to edit by hand.
    pub fn without_communication(&self) -> Self {
        let own = |instruction: &&Instruction| {
            matches!(instruction, Instruction::Fill(_)) || instruction.passes().next().is_some()
        };
        let lists = self.lists.iter().map(|list| list.iter().filter(own).copied().collect()).collect();
        Self {
            name: self.name.clone(),
            stages: self.stages,
            updates: self.updates,
            routes: self.routes.clone(),
            route_of: self.route_of.clone(),
            update_of: self.update_of.clone(),
            lists,
        }
    }
}

fn push_place(text: &mut String, place: Place) {
    let _ = match place.chunk {
        0 => write!(text, "{}", place.rank),
        chunk => write!(text, "{}.{chunk}", place.rank),
    };
}

/// Equal numbers in a row as `number*count`.
fn push_runs(text: &mut String, word: &str, numbers: &[usize]) {
    text.push_str(word);
    for run in numbers.chunk_by(|a, b| a == b) {
        let _ = match run.len() {
            1 => write!(text, " {}", run[0]),
            count => write!(text, " {}*{count}", run[0]),
        };
    }
    text.push('\n');
}
