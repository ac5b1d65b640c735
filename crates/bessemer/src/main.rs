//! Bessemer: raw text in, trained and evaluated language model out.
//!
//! The only program of the workspace. It reads the command line, picks the backend, handles signals, prints, and chooses
//! the exit code; everything else happens in the libraries.

mod cli;
mod commands;
mod console;
mod escape;
mod failure;
mod machine;
mod run_dir;
mod signals;
mod stages;
mod working_tree;

use bessemer_collectives::launch::{self, LaunchFlags};
use clap::Parser;
use cli::{Cli, Command};
use console::Console;
use failure::Failure;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return misused(&e),
    };
    let mut console = Console::new(cli.quiet);
    match dispatch(&cli, &mut console) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(console);
            complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Tells what clap says of the command line, which is wrong or asks for help. Of several processes that were started alike
/// the first one tells.
fn misused(e: &clap::Error) -> ExitCode {
    let launch = launch::resolve(LaunchFlags::default(), &|name| std::env::var(name).ok());
    match launch {
        // A launcher that ends all processes when one has left must not end the first before it has spoken.
        Ok(launch) if launch.rank > 0 => std::thread::sleep(Duration::from_millis(500)),
        // Where the output cannot be written there is nobody to tell.
        _ => drop(e.print()),
    }
    ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(failure::code::USAGE))
}

#[allow(clippy::print_stderr)] // the one place where the program reports its failure
pub(crate) fn complain(failure: &Failure) {
    let message = escape::message(&failure.message);
    match failure.code {
        failure::code::DONE => {}
        // Another process of the job tells.
        _ if message.is_empty() => {}
        failure::code::CONTINUE => eprintln!("{message}"),
        _ => eprintln!("error: {message}"),
    }
}

fn dispatch(cli: &Cli, console: &mut Console) -> Result<(), Failure> {
    match &cli.command {
        Command::Run(recipe) => commands::run::run(recipe, cli.json, console),
        Command::Corpus(command) => commands::corpus::run(command, cli.json, console),
        Command::Tokenizer(command) => commands::tokenizer::run(command, cli.json, console),
        Command::Train(recipe) => commands::run::train(recipe, cli.json, console),
        Command::Eval(args) => commands::eval::run(args, cli.json, console),
        Command::Generate(args) => commands::generate::run(args, cli.json),
        Command::Checkpoint(command) => commands::checkpoint::run(command, cli.json, console),
        Command::Config(command) => commands::config::run(command, cli.json),
        Command::Report { run } => commands::report::run(run, console),
        Command::Compare(args) => commands::compare::compare(args, cli.json, console),
        Command::Runs { directory } => commands::compare::list(directory, cli.json, console),
        Command::Doctor => commands::doctor::run(cli.json),
        Command::Bench(command) => commands::bench::run(command, cli.json, console),
        Command::Parity(args) => commands::parity::run(args, cli.json, console),
        Command::Schedule(command) => commands::schedule::run(command, cli.json, console),
        Command::Study(command) => commands::study::run(command, cli.json, console),
    }
}
