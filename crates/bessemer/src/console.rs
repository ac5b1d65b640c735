//! Terminal output of a command: results on standard output, everything else on standard error.
//!
//! Everything that the program prints passes here, so that a stream that is full or closed is an error and never a panic.

use crate::cli::Verbosity;
use crate::escape;
use crate::failure::{Failure, code};
use crate::uploads::Uploads;
use anstream::{AutoStream, ColorChoice};
use bessemer_report::terminal;
use bessemer_runlog::{MixtureShare, Plan, Record, Step, Training};
use bessemer_train::Observer;
use bessemer_units::{Bytes, Tokens};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// Plain progress lines come this often when standard error is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The terminal of a command.
pub struct Console {
    verbosity: Verbosity,
    terminal: bool,
    log_every: u64,
    training: Training,
    /// The plan that measurements are held against.
    plan: Option<Plan>,
    work: Option<Work>,
    /// The line at the bottom of a terminal that follows a training.
    status: Option<ProgressBar>,
    /// Uploads of the checkpoints of the run that is watched.
    uploads: Option<Uploads>,
    /// Name of the run that is watched, if it is one of many: then only its progress and its warnings are shown.
    trial: Option<String>,
}

/// A piece of work with progress.
struct Work {
    name: String,
    begun: Instant,
    reported: Instant,
    bar: Option<ProgressBar>,
}

impl Console {
    pub(crate) fn new(verbosity: Verbosity) -> Console {
        Console {
            verbosity,
            terminal: io::stderr().is_terminal(),
            log_every: 1,
            training: Training::default(),
            plan: None,
            work: None,
            status: None,
            uploads: None,
            trial: None,
        }
    }

    /// From now on only progress, under this name, and warnings of a training; everything again with `None`.
    pub(crate) fn trial(&mut self, name: Option<String>) {
        self.finish_work();
        self.trial = name;
    }

    /// A line on standard error for those who asked for details.
    pub(crate) fn detail(&mut self, text: &str) {
        if self.verbosity == Verbosity::Verbose {
            self.say(text);
        }
    }

    /// Prints a training line every so many steps.
    pub(crate) fn log_every(&mut self, steps: u64) {
        self.log_every = if self.verbosity == Verbosity::Verbose { 1 } else { steps.max(1) };
    }

    /// Holds what is measured against an earlier plan.
    pub(crate) fn hold_against(&mut self, plan: Plan) {
        self.plan = Some(plan);
    }

    /// Uploads what is saved from now on.
    pub(crate) fn upload(&mut self, uploads: Uploads) {
        self.uploads = Some(uploads);
    }

    /// Waits until what was saved last is uploaded, or cannot be; calls `waits` meanwhile.
    pub(crate) fn finish_uploads(&mut self, waits: &mut dyn FnMut()) {
        if self.uploads.as_mut().is_some_and(Uploads::is_busy) {
            self.say("uploading the last checkpoint");
        }
        if let Some(uploads) = &mut self.uploads {
            uploads.finish(waits);
        }
    }

    /// A line on standard error.
    pub fn say(&mut self, text: &str) {
        self.finish_work();
        if self.verbosity == Verbosity::Quiet {
            return;
        }
        // A closed or full standard error is no reason to lose a run.
        let write = || drop(writeln!(io::stderr(), "{}", painted(&escape::message(text))));
        match &self.status {
            Some(status) => status.suspend(write),
            None => write(),
        }
    }

    /// Shows a step at the bottom of the terminal until something else is shown there.
    fn follow(&mut self, step: &Step) {
        if self.verbosity == Verbosity::Quiet || !self.terminal {
            return;
        }
        self.finish_work();
        let total = self.training.steps.max(step.step);
        let status = self.status.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
            bar.with_style(bar_style("[{bar:24}] {msg}"))
        });
        status.set_position(step.step);
        status.set_message(terminal::status_line(step, total));
        if step.step == total {
            self.unfollow();
        }
    }

    fn unfollow(&mut self) {
        if let Some(status) = self.status.take() {
            status.finish_and_clear();
        }
    }

    fn finish_work(&mut self) {
        if let Some(bar) = self.work.take().and_then(|w| w.bar) {
            bar.finish_and_clear();
        }
    }

    fn bar(&self, name: &str, total: u64) -> ProgressBar {
        let style = if total > 0 { "{msg} [{bar:32}] {percent}% {eta}" } else { UNKNOWN_TOTAL };
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
        bar.with_style(bar_style(style)).with_message(name.to_owned())
    }
}

/// Form of a bar whose total is not known.
const UNKNOWN_TOTAL: &str = "{msg} {spinner} {pos}";

/// Share of a work that is done; the amount where the total is unknown, or was an estimate that is exceeded.
fn share(done: u64, total: u64) -> String {
    match u128::from(done) * 100 {
        hundredfold if total > 0 && done <= total => format!("{}%", hundredfold / u128::from(total)),
        _ => done.to_string(),
    }
}

fn bar_style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant").progress_chars("=> ")
}

/// Share of the samples that a run takes from a component, as a line.
fn mixture_line(share: &MixtureShare) -> String {
    let (percent, tokens) = (100.0 * share.weight, Tokens(share.tokens));
    format!(
        "\n  {} {percent:.1} % of the samples, {:.2} passes over {tokens} tokens",
        share.name, share.epochs
    )
}

impl Observer for Console {
    fn remarks(&mut self) -> Vec<String> {
        self.uploads.as_mut().map_or_else(Vec::new, Uploads::poll)
    }

    fn record(&mut self, record: &Record) {
        if let (Record::Save(_), Some(uploads)) = (record, &mut self.uploads) {
            uploads.saved();
        }
        if let Some(name) = self.trial.clone() {
            match record {
                Record::Training(training) => self.training = training.clone(),
                Record::Step(step) => self.progress(&name, step.step, self.training.steps.max(step.step)),
                Record::Warning(warning) => self.say(&format!("warning: {name}: {}", warning.message)),
                Record::Fault(fault) => self.say(&format!("warning: {name}: {}", fault.message)),
                _ => {}
            }
            return;
        }
        let text = match record {
            Record::Training(t) => {
                self.training = t.clone();
                let mut layout = if t.ranks > 1 { format!("; {}", t.layout) } else { String::new() };
                if !t.sequences.is_empty() {
                    layout.push_str(&format!("; {}", t.sequences));
                }
                let mixture: String = t.mixture.iter().map(mixture_line).collect();
                format!(
                    "training {} steps of {} tokens ({} in all; {} tokens an epoch); {}; {}{layout}{mixture}",
                    t.steps,
                    Tokens(t.batch_tokens),
                    Tokens(t.tokens),
                    Tokens(t.samples_per_epoch * t.seq_len),
                    t.optimizer,
                    t.schedule
                )
            }
            Record::Model(m) => format!(
                "model: {}, {} layers x {}, {} heads ({} kv), vocabulary {}, {} parameters{}",
                m.name,
                m.layers,
                m.width,
                m.heads,
                m.kv_heads,
                m.vocab_size,
                Tokens(m.parameters),
                m.initial.as_ref().map_or_else(String::new, |text| format!("; {text}"))
            ),
            Record::Run(r) => match terminal::mfu_legend(r) {
                Some(legend) => legend,
                None => return,
            },
            Record::Plan(plan) => {
                self.plan = Some(plan.clone());
                bessemer_report::plan_line(plan)
            }
            Record::Measured(measured) => match &self.plan {
                Some(plan) => bessemer_report::measured_lines(plan, measured),
                None => return,
            },
            Record::Step(s) => {
                self.follow(s);
                // A terminal has the status line.
                let follows = self.terminal && self.verbosity != Verbosity::Verbose;
                let is_due = !follows && (s.step.is_multiple_of(self.log_every) || s.step == 1);
                if !is_due && s.step != self.training.steps {
                    return;
                }
                terminal::step_line(s, self.training.steps)
            }
            Record::Eval(e) => terminal::eval_line(e),
            Record::EarlyStop(stop) => terminal::early_stop_line(stop),
            Record::Save(s) => terminal::save_line(s),
            Record::SaveInterval(i) => terminal::save_interval_line(i),
            Record::Sample(s) => terminal::sample_block(s),
            Record::Task(t) => terminal::task_line(t),
            Record::Resume(r) => format!("resuming after step {} from {}", r.step, r.path),
            Record::Change(c) => terminal::change_lines(c),
            Record::Baseline(b) => format!(
                "  baseline: {} fitted on the {} that the model saw: {:.4} bits/byte",
                b.name,
                Bytes(b.bytes_fitted),
                b.bits_per_byte
            ),
            Record::Warning(w) => format!("warning: {}", w.message),
            Record::Fault(f) => format!("warning: {}", f.message),
            _ => return,
        };
        self.say(&text);
    }

    fn message(&mut self, text: &str) {
        self.say(text);
    }

    fn progress(&mut self, what: &str, done: u64, total: u64) {
        // Pieces of a trial, such as its evaluation, are not distinguished from it.
        if self.verbosity == Verbosity::Quiet || self.trial.as_ref().is_some_and(|name| name != what) {
            return;
        }
        if self.work.as_ref().is_none_or(|w| w.name != what) {
            self.finish_work();
            let now = Instant::now();
            self.work = Some(Work { name: what.to_owned(), begun: now, reported: now, bar: None });
        }
        let terminal = self.terminal;
        let needs_bar = self.work.as_ref().is_some_and(|w| w.bar.is_none() && w.begun.elapsed() >= PATIENCE);
        if terminal && needs_bar {
            self.unfollow();
        }
        let bar = (terminal && needs_bar).then(|| self.bar(what, total));
        let Some(work) = &mut self.work else { return };
        work.bar = work.bar.take().or(bar);
        if let Some(bar) = &work.bar {
            if done > total && bar.length() != Some(0) {
                // The total was an estimate, such as the bytes of compressed files.
                bar.set_length(0);
                bar.set_style(bar_style(UNKNOWN_TOTAL));
            }
            bar.set_position(done);
        } else if !terminal && work.reported.elapsed() >= PLAIN_EVERY {
            work.reported = Instant::now();
            let _ = writeln!(io::stderr(), "{what}: {}", share(done, total));
        }
    }

    fn resident_bytes(&mut self) -> Option<u64> {
        bessemer_measure::machine::resident_bytes()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.finish_work();
        self.unfollow();
    }
}

/// Columns of a picture where standard output is no terminal.
const PLAIN_WIDTH: usize = 120;

/// Columns of the terminal that standard output is.
pub(crate) fn width() -> usize {
    let size = console::Term::stdout().size_checked();
    size.map_or(PLAIN_WIDTH, |(_, columns)| usize::from(columns).max(40))
}

/// Whether standard output shows colours, by the rules that clap follows: it is a terminal that can, and neither `NO_COLOR`
/// (<https://no-color.org>) nor `CLICOLOR=0` refuses them; `CLICOLOR_FORCE` asks for them.
pub(crate) fn colours() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// The text with its "error:" or "warning:" in colour, where standard error shows colours.
fn painted(text: &str) -> String {
    if AutoStream::choice(&io::stderr()) == ColorChoice::Never {
        return text.to_owned();
    }
    // Red and yellow, bold: clap's own.
    for (word, colour) in [("error:", "\u{1b}[1m\u{1b}[31m"), ("warning:", "\u{1b}[1m\u{1b}[33m")] {
        if let Some(rest) = text.strip_prefix(word) {
            return format!("{colour}{word}\u{1b}[0m{rest}");
        }
    }
    text.to_owned()
}

/// Reports on standard error why a command failed. A closed or full standard error changes nothing about the exit code.
pub(crate) fn complain(failure: &Failure) {
    let text = match failure.code {
        code::DONE => return,
        // Another process of the job reports it.
        _ if failure.message.is_empty() => return,
        code::CONTINUE => escape::error(&failure.message),
        _ => painted(&format!("error: {}", escape::error(&failure.message))),
    };
    let _ = writeln!(io::stderr(), "{text}");
}

/// Warns on standard error, from a thread that has no console.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "{}", painted(&format!("warning: {}", escape::message(text))));
}

/// An error of standard output, with its name. A reader that has left keeps its kind, which is no failure.
pub(crate) fn unwritten(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))
}

/// Writes a line of results to standard output. Control characters are escaped.
///
/// # Errors
/// If standard output is full or closed, for example by `head`.
pub fn print(text: &str) -> io::Result<()> {
    write_line(&escape::controls(text))
}

/// Writes a line of results with colours ([`escape::controls_but_colours`]).
///
/// # Errors
/// Errors of [`print()`].
pub(crate) fn print_coloured(text: &str) -> io::Result<()> {
    write_line(&escape::controls_but_colours(text))
}

fn write_line(text: &str) -> io::Result<()> {
    let mut output = Output::lock();
    output.write_bytes(text.as_bytes())?;
    if !text.ends_with('\n') {
        output.write_bytes(b"\n")?;
    }
    Ok(())
}

/// Standard output for results that come piece by piece.
pub(crate) struct Output(StdoutLock<'static>);

impl Output {
    pub(crate) fn lock() -> Output {
        Output(io::stdout().lock())
    }

    /// Writes text, which is visible when this returns. On a terminal control characters are escaped, see
    /// [`escape::controls`]; a file or another program gets the text as it is.
    ///
    /// # Errors
    /// Errors of [`print()`].
    pub(crate) fn write(&mut self, text: &str) -> io::Result<()> {
        match self.0.is_terminal() {
            true => self.write_bytes(escape::controls(text).as_bytes()),
            false => self.write_bytes(text.as_bytes()),
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// Errors of [`print()`].
    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).and_then(|()| self.0.flush()).map_err(unwritten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_beyond_an_estimated_total_is_an_amount() {
        assert_eq!([share(0, 8), share(5, 8), share(8, 8)], ["0%", "62%", "100%"]);
        assert_eq!([share(9, 8), share(9, 0), share(u64::MAX, u64::MAX)], ["9", "9", "100%"]);
    }
}
