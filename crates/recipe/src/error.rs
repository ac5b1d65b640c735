//! Errors of a recipe: what was wanted, what was found, where, what to try.

use crate::builtin::suggestion;
use crate::source::{Location, Place};
use std::fmt;
use std::path::PathBuf;

/// Errors shown at once; the rest is counted.
pub const SHOWN_ERRORS: usize = 10;

/// Longest message, in characters.
const LONGEST_MESSAGE: usize = 600;

/// One mistake in a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Fault, in one sentence.
    pub message: String,
    /// Where it stands; `None` when the value was not written by anyone (a default).
    pub location: Option<Location>,
    /// Advice.
    pub help: Option<String>,
}

impl Diagnostic {
    pub(crate) fn new(message: impl Into<String>, place: Option<&Place>) -> Diagnostic {
        let message = message.into();
        // A message may quote a hostile value whole; a screen has its limits.
        let end = message.char_indices().nth(LONGEST_MESSAGE).map(|(i, _)| i);
        let message = match end {
            Some(end) => format!("{}...", &message[..end]),
            None => message,
        };
        Diagnostic {
            message: message.replace(char::is_control, " "),
            location: place.map(Place::location),
            help: None,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            None => write!(f, "{}", self.message)?,
            Some(l) => {
                let number = if l.is_set { "--set".to_string() } else { l.line.to_string() };
                let gutter = " ".repeat(number.len());
                writeln!(f, "{l}: {}", self.message)?;
                writeln!(f, "{gutter} |")?;
                writeln!(f, "{number} | {}", l.shown)?;
                // Tabs are control characters, shown as one space, so the caret stays under its text.
                write!(f, "{gutter} | {}{}", " ".repeat(l.caret), "^".repeat(l.width))?;
            }
        }
        if let Some(help) = &self.help {
            write!(f, "\n  = {help}")?;
        }
        Ok(())
    }
}

/// Why a recipe could not be loaded or written.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// There is neither a file nor a built-in recipe of this name.
    #[error("there is no recipe {path}; {suggestion}", path = path.display(), suggestion = suggestion(path))]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read the recipe {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: std::io::Error,
    },
    /// The path is not a regular file, is too large, or is not text.
    #[error("cannot use {path} as a recipe: {reason}", path = path.display())]
    NotARecipe {
        /// The file.
        path: PathBuf,
        /// Fault.
        reason: String,
    },
    /// The recipe says something that is not allowed. Up to [`SHOWN_ERRORS`] mistakes are kept.
    #[error("{}", show(diagnostics, *more))]
    Invalid {
        /// The mistakes, in the order of the sources.
        diagnostics: Vec<Diagnostic>,
        /// How many more there were.
        more: usize,
    },
    /// A resolved value cannot be expressed in TOML (a defect of a config type, not of the recipe).
    #[error("the resolved recipe cannot be written as TOML: {0}")]
    Unwritable(String),
    /// The resolved recipe cannot be saved.
    #[error("cannot write {path}: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: std::io::Error,
    },
}

impl RecipeError {
    /// The mistakes of an invalid recipe; empty for other errors.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            RecipeError::Invalid { diagnostics, .. } => diagnostics,
            _ => &[],
        }
    }
}

fn show(diagnostics: &[Diagnostic], more: usize) -> String {
    let mut text = diagnostics.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n\n");
    if more > 0 {
        text += &format!("\n\n... and {more} more error{}", if more == 1 { "" } else { "s" });
    }
    text
}

/// Collects mistakes; past [`SHOWN_ERRORS`] it only counts, so that a hostile file costs no memory.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    kept: Vec<Diagnostic>,
    more: usize,
}

impl Sink {
    pub(crate) fn report(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.kept.len() < SHOWN_ERRORS {
            self.kept.push(make());
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.kept.len() + self.more
    }

    pub(crate) fn finish(self) -> Result<(), RecipeError> {
        if self.kept.is_empty() {
            return Ok(());
        }
        Err(RecipeError::Invalid { diagnostics: self.kept, more: self.more })
    }
}

/// A key or value as it may be shown: escaped, and cropped if long.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    format!("`{shown}`")
}
