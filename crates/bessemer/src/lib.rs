//! Bessemer: raw text in, trained and evaluated language model out.
//!
//! The program reads the command line, picks the backend, handles signals, prints, and chooses the exit code; everything else
//! happens in the libraries. It is a library for the sake of the build: the code of a library is made while those that it calls
//! are still being compiled, the code of a program only afterwards. `bessemer-bench` uses its command line, console and failures.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod chat_stage;
mod cli;
mod commands;
mod console;
mod escape;
mod failure;
mod help;
mod limits;
mod recipes;
mod run_dir;
mod signals;
mod stages;
mod task_data;
mod uploads;
mod working_tree;

pub use cli::{HostArgs, Matmul, OutputArgs, Verbosity, WaitingArgs, threads};
pub use console::{Console, print};
pub use failure::Failure;
pub use recipes::load_recipe;

use bessemer_collectives::launch;
use bessemer_measure::machine;
use clap::error::{ContextKind, ContextValue};
use clap::{FromArgMatches, Parser};
use cli::{Cli, Command};
use limits::RefusedThreads;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

/// The whole program: does what the command line says and returns the exit code.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(text) = if words.is_empty() { Some(help::FIRST_STEPS) } else { help::topic(&words) } {
        return work(Verbosity::Quiet, |_| Ok(print(text.trim_end())?));
    }
    let (program, arguments) = (help::command(), recipes::arguments(std::env::args_os()));
    let parsed = program.clone().try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed.map_err(|e| misused(cli::with_suggestion(e, &program, &arguments))) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // Before anything that starts a thread: namespaces are those of a process with one.
    if let Command::Confined { arguments } = &cli.command {
        return commands::confined::run(arguments);
    }
    work(cli.output.verbosity(), |console| dispatch(&cli, console))
}

/// Reads the command line of a program.
///
/// # Errors
/// The exit code, after the message: the command line is wrong or asks for help.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse_from(recipes::arguments(std::env::args_os())).map_err(misused)
}

/// Runs a command of a program; reports its failure and returns its exit code.
pub fn work(verbosity: Verbosity, command: impl FnOnce(&mut Console) -> Result<(), Failure>) -> ExitCode {
    // Without the handler a file that grows too long ends the process, as it always did.
    let _ = signals::report_file_limit();
    let refused_threads = RefusedThreads::watch();
    let mut console = Console::new(verbosity);
    let worked = catch_unwind(AssertUnwindSafe(|| command(&mut console)));
    let panicked = |_| Err(refused_threads.error().map_or_else(Failure::panicked, Failure::from));
    match worked.unwrap_or_else(panicked) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(console);
            console::complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Prints clap's message about a wrong command line, or the help. If a launcher started several processes,
/// only the first one prints.
fn misused(mut e: clap::Error) -> ExitCode {
    if e.get(ContextKind::InvalidSubcommand) == Some(&ContextValue::String("bench".into())) {
        let program = "`bessemer-bench` measures speed; `cargo build --release -p bessemer-bench` builds it";
        e.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![program.into()]));
    }
    let launch = launch::resolve(&|name| std::env::var(name).ok());
    match launch {
        // A launcher that ends all processes when one has left must not end the first before it has spoken.
        Ok(launch) if launch.rank > 0 => std::thread::sleep(Duration::from_millis(500)),
        _ => {
            // Help and version are results: if they cannot be written, the command has failed.
            if let Err(error) = e.print()
                && !e.use_stderr()
            {
                let failure = Failure::from(console::unwritten(error));
                console::complain(&failure);
                return ExitCode::from(failure.code);
            }
        }
    }
    ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(failure::code::USAGE))
}

fn dispatch(cli: &Cli, console: &mut Console) -> Result<(), Failure> {
    match &cli.command {
        Command::Run(recipe) => commands::run::run(recipe, cli.output.json, console),
        Command::Corpus(command) => commands::corpus::run(command, cli.output.json, console),
        Command::Tokenizer(command) => commands::tokenizer::run(command, cli.output.json, console),
        Command::Chat(command) => commands::chat::run(command, cli.output.json, console),
        Command::Train(recipe) => commands::run::train(recipe, cli.output.json, console),
        Command::Supervise(args) => commands::supervise::run(args, cli.output.json, console),
        Command::Eval(args) => commands::eval::run(args, cli.output.json, console),
        Command::Generate(args) => commands::generate::run(args, cli.output.json, console),
        Command::Serve(args) => commands::serve::run(args, cli.output.json, console),
        Command::Recipes { command } => commands::recipes::run(command.as_ref(), cli.output.json),
        Command::Init(args) => commands::init::run(args, cli.output.json, console),
        Command::Checkpoint(command) => commands::checkpoint::run(command, cli.output.json, console),
        Command::Config(command) => commands::config::run(command, cli.output.json, console),
        Command::Report { run } => commands::report::run(run, cli.output.json, console),
        Command::Compare(args) => commands::compare::compare(args, cli.output.json, console),
        Command::Runs { directory } => commands::compare::list(directory, cli.output.json, console),
        Command::Doctor(args) => commands::doctor::run(args, cli.output.json, console),
        Command::Parity(args) => commands::parity::run(args, cli.output.json, console),
        Command::Plan(args) => commands::plan::run(args, cli.output.json, console),
        Command::Program(command) => commands::program::run(command, cli.output.json),
        Command::Schedule(command) => commands::schedule::run(command, cli.output.json, console),
        Command::Network(command) => commands::network::run(command, cli.output.json, console),
        Command::Metric(args) => commands::metric::run(args, cli.output.json, console),
        Command::Judge(command) => commands::judge::run(command, cli.output.json, console),
        Command::Scaling(command) => commands::scaling::run(command, cli.output.json, console),
        Command::Study(command) => commands::study::run(command, cli.output.json, console),
        Command::Completions { shell } => commands::completions::run(*shell),
        Command::Confined { .. } => unreachable!("main runs it"),
        Command::Man { out } => commands::completions::man(out, console),
    }
}
