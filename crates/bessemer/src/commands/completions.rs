//! `bessemer completions` and `bessemer man`: shell completions and manual pages of the command line.

use crate::cli::{Cli, with_examples};
use crate::console::{Console, Output};
use crate::failure::Failure;
use bessemer_units::counted;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::path::Path;

/// Prints the completion script of a shell.
pub(crate) fn run(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bessemer", &mut script);
    Ok(Output::lock().write_bytes(&script)?)
}

/// Writes a page for the program and one for each verb.
pub(crate) fn man(out: &Path, console: &mut Console) -> Result<(), Failure> {
    bessemer_durable::create_dir_all(out)
        .map_err(|e| Failure::new(format!("--out {}: {e}", out.display())))?;
    let mut command = with_examples(Cli::command());
    command.build();
    let mut pages = 0;
    page(&command, "bessemer", out, &mut pages)?;
    console.say(&format!("wrote {} to {}", counted(pages, "page"), out.display()));
    Ok(())
}

fn page(command: &Command, name: &str, out: &Path, pages: &mut usize) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut text)?;
    bessemer_durable::write(&out.join(format!("{name}.1")), &text)?;
    *pages += 1;
    let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set());
    verbs.into_iter().try_for_each(|verb| page(verb, &format!("{name}-{}", verb.get_name()), out, pages))
}
