//! Help that clap does not make by itself: verbs in groups, topics, and the commands to try first.

use crate::cli::{Cli, with_examples};
use clap::{Command, CommandFactory};
use std::ffi::OsString;
use std::fmt::Write;

/// Verbs as `bessemer --help` lists them.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Start", &["init", "run", "recipes"]),
    ("Data", &["corpus", "tokenizer", "chat"]),
    ("Train", &["train", "supervise", "checkpoint", "runs", "compare", "report"]),
    ("Evaluate", &["eval", "metric", "judge"]),
    ("Serve", &["generate", "serve"]),
    ("Plan", &["plan", "scaling", "study", "network", "schedule", "program", "parity", "doctor"]),
    ("Tools", &["config", "completions", "man", "help"]),
];

/// Topics of `bessemer help`: name and text.
const TOPICS: [(&str, &str); 4] = [
    ("recipes", include_str!("help/recipes.txt")),
    ("layouts", include_str!("help/layouts.txt")),
    ("exit-codes", include_str!("help/exit-codes.txt")),
    ("files", include_str!("help/files.txt")),
];

/// Printed by `bessemer` alone.
pub(crate) const FIRST_STEPS: &str = "\
Bessemer turns text into a trained language model.

Try first:
  bessemer run quickstart                            train a small model
  bessemer generate runs/quickstart --prompt \"def \"  continue a text with it
  bessemer init my-texts                             a recipe for your own text

`bessemer --help` lists all verbs, `bessemer VERB --help` explains one.";

/// The command line with its verbs in groups.
pub(crate) fn command() -> Command {
    let command = with_examples(Cli::command());
    let groups = groups(&command);
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}\nOptions:\n{{options}}{{after-help}}"
    ))
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (name, verbs) in GROUPS {
        let _ = writeln!(text, "{name}:");
        for verb in verbs {
            // clap adds the verb `help` only when it builds the command.
            let about = command.find_subcommand(verb).and_then(Command::get_about).map(ToString::to_string);
            let about = about.unwrap_or_else(|| format!("Explain a verb, or a topic: {}", topics()));
            let _ = writeln!(text, "  {verb:<12} {about}");
        }
    }
    text
}

/// The text of a topic of `bessemer help`, for the words of a command line. A plural or singular, and spaces, are accepted.
pub(crate) fn topic(words: &[OsString]) -> Option<&'static str> {
    let [verb, words @ ..] = words else { return None };
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let named = words?.join("-").to_lowercase();
    let same = |name: &str| named == name || format!("{named}s") == name;
    (verb == "help").then(|| TOPICS.iter().find(|(name, _)| same(name)).map(|(_, text)| *text)).flatten()
}

/// Names of the topics.
pub(crate) fn topics() -> String {
    TOPICS.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_verb_is_in_one_group_and_help_fits_a_screen() {
        let command = command();
        let verbs: BTreeSet<&str> =
            command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name).collect();
        let listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, verbs)| *verbs).copied().filter(|v| *v != "help").collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<&str>>(), verbs);
        assert_eq!(listed.len(), verbs.len());
        let help = command.clone().render_help().to_string();
        assert!(help.lines().count() <= 48, "{help}");
        for text in [&*help, FIRST_STEPS].into_iter().chain(TOPICS.map(|(_, text)| text)) {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn command_lines_of_the_topics_are_right() {
        let lines = TOPICS.iter().flat_map(|(_, text)| text.lines()).chain(FIRST_STEPS.lines());
        let shown: Vec<&str> = lines.filter_map(|line| line.strip_prefix("  bessemer ")).collect();
        for line in &shown {
            // Two blanks separate a command from its purpose.
            let words = line.split("  ").next().unwrap_or_default().replace('"', "");
            let words: Vec<&str> =
                ["bessemer"].into_iter().chain(words.split(' ').filter(|w| !w.is_empty())).collect();
            assert!(command().try_get_matches_from(&words).is_ok(), "{line}");
        }
        assert!(shown.len() > 10);
    }

    #[test]
    fn topics_are_found_by_their_words() {
        let found = |words: &str| topic(&words.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(found("help exit codes").unwrap().starts_with("Exit codes"));
        assert!(found("help layout").unwrap().starts_with("Layouts"));
        assert_eq!(found("help corpus"), None);
        assert_eq!(found("run recipes"), None);
    }
}
