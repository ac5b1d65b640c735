//! Suggestions for mistyped verbs, flags and values.

use bessemer_units::nearest;
use clap::error::{ContextKind, ContextValue};
use clap::{Command, Error};
use std::ffi::OsString;

/// Adds the verb, flag or value to a usage error that was probably meant. `arguments` begin with the name of the program.
pub(crate) fn with_suggestion(mut error: Error, program: &Command, arguments: &[OsString]) -> Error {
    let command = command_of(program, arguments);
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let found = if let Some(verb) = text(ContextKind::InvalidSubcommand) {
        let below = verbs_below(command, &verb);
        let near = || nearest(&verb, verbs(command).map(Command::get_name)).map(|near| vec![near.to_owned()]);
        let found = if below.is_empty() { near() } else { Some(below) };
        found.map(|near| (ContextKind::SuggestedSubcommand, ContextValue::Strings(near)))
    } else if let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue) {
        text(ContextKind::InvalidValue)
            .and_then(|typed| nearest(&typed, values.iter().map(String::as_str)))
            .map(|near| (ContextKind::SuggestedValue, ContextValue::String(near.to_owned())))
    } else if let Some(flag) = text(ContextKind::InvalidArg).filter(|flag| flag.starts_with("--")) {
        let flags = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long());
        let typed = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
        nearest(typed, flags)
            .map(|near| (ContextKind::SuggestedArg, ContextValue::String(format!("--{near}"))))
    } else {
        None
    };
    if let Some((kind, near)) = found
        && (kind == ContextKind::SuggestedSubcommand || error.get(kind).is_none())
    {
        error.insert(kind, near);
    }
    error
}

/// The deepest verb of a command line that exists.
fn command_of<'c>(program: &'c Command, arguments: &[OsString]) -> &'c Command {
    let mut command = program;
    for argument in arguments.iter().skip(1).filter_map(|argument| argument.to_str()) {
        match command.find_subcommand(argument) {
            Some(verb) => command = verb,
            None if argument.starts_with('-') => {}
            None => break,
        }
    }
    command
}

/// Verbs of a command that help lists.
fn verbs(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set())
}

/// Verbs of this name in groups: `corpus export` and `checkpoint export` for `export`.
fn verbs_below(command: &Command, name: &str) -> Vec<String> {
    let groups = verbs(command).filter(|group| verbs(group).any(|verb| verb.get_name() == name));
    groups.map(|group| format!("{} {name}", group.get_name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Message for a wrong command line.
    fn message(line: &str) -> String {
        let arguments: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let error = Cli::command().try_get_matches_from(&arguments).unwrap_err();
        with_suggestion(error, &Cli::command(), &arguments).to_string()
    }

    #[test]
    fn mistyped_verbs_flags_and_values_are_followed_by_the_nearest() {
        for (line, wanted) in [
            ("bessemer rnu quickstart", "'run'"),
            ("bessemer chekpoint ls", "'checkpoint'"),
            ("bessemer --json corpus biuld my.toml", "'build'"),
            ("bessemer checkpoint lst runs/quickstart", "'ls'"),
            ("bessemer export runs/quickstart", "'corpus export', 'checkpoint export'"),
            ("bessemer reshard runs/quickstart", "'checkpoint reshard'"),
            ("bessemer generate runs/quickstart --temprature 1", "'--temperature'"),
            ("bessemer generate runs/quickstart --prmpt=x", "'--prompt'"),
            ("bessemer metric rouge-1 a.txt b.txt", "'rouge1'"),
            ("bessemer plan my.toml --devices 8 --method mmcc", "'mcmc'"),
            ("bessemer checkpoint export runs/quickstart --to ggfu --out x", "'gguf'"),
        ] {
            let message = message(line);
            let tip = message.lines().find(|line| line.contains("tip:"));
            assert!(tip.is_some_and(|tip| tip.contains(wanted)), "{line}: {message}");
            assert_eq!(message.matches("tip:").count(), 1, "{message}");
        }
    }

    #[test]
    fn distant_names_are_followed_by_no_suggestion() {
        for line in ["bessemer zzzzzz", "bessemer generate runs/quickstart --zzzzzz"] {
            assert!(!message(line).contains("similar"), "{line}: {}", message(line));
        }
    }
}
