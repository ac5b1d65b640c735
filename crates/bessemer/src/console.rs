//! What a person sees while a command works: results on standard output, everything else on standard error.

use crate::escape;
use bessemer_report::terminal;
use bessemer_runlog::{MixtureShare, Record, Training};
use bessemer_train::Observer;
use bessemer_units::{Bytes, Tokens};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// Plain progress lines come this often when standard error is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The terminal of a command.
pub(crate) struct Console {
    quiet: bool,
    terminal: bool,
    log_every: u64,
    training: Training,
    work: Option<Work>,
}

/// A piece of work with progress.
struct Work {
    name: String,
    begun: Instant,
    told: Instant,
    bar: Option<ProgressBar>,
}

impl Console {
    pub(crate) fn new(quiet: bool) -> Console {
        Console {
            quiet,
            terminal: std::io::stderr().is_terminal(),
            log_every: 1,
            training: Training::default(),
            work: None,
        }
    }

    /// Prints a training line every so many steps.
    pub(crate) fn log_every(&mut self, steps: u64) {
        self.log_every = steps.max(1);
    }

    /// A line on standard error.
    pub(crate) fn say(&mut self, text: &str) {
        self.finish_work();
        if !self.quiet {
            // A closed standard error is no reason to lose a run.
            let _ = writeln!(std::io::stderr(), "{}", escape::message(text));
        }
    }

    fn finish_work(&mut self) {
        if let Some(bar) = self.work.take().and_then(|w| w.bar) {
            bar.finish_and_clear();
        }
    }

    fn bar(&self, name: &str, total: u64) -> ProgressBar {
        let style = if total > 0 { "{msg} [{bar:32}] {percent}% {eta}" } else { "{msg} {spinner} {pos}" };
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
        bar.set_style(
            ProgressStyle::with_template(style).expect("the template is a constant").progress_chars("=> "),
        );
        bar.set_message(name.to_owned());
        bar
    }
}

/// What a run takes of a component, on a line of its own.
fn mixture_line(share: &MixtureShare) -> String {
    let (percent, tokens) = (100.0 * share.weight, Tokens(share.tokens));
    format!(
        "\n  {} {percent:.1} % of the samples, {:.2} passes over {tokens} tokens",
        share.name, share.epochs
    )
}

impl Observer for Console {
    fn record(&mut self, record: &Record) {
        let text = match record {
            Record::Training(t) => {
                self.training = t.clone();
                let layout = if t.ranks > 1 { format!("; {}", t.layout) } else { String::new() };
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
                "model: {}, {} layers x {}, {} heads ({} kv), vocabulary {}, {} parameters",
                m.name,
                m.layers,
                m.width,
                m.heads,
                m.kv_heads,
                m.vocab_size,
                Tokens(m.parameters)
            ),
            Record::Run(r) => match terminal::mfu_legend(r) {
                Some(legend) => legend,
                None => return,
            },
            Record::Step(s) => {
                if !s.step.is_multiple_of(self.log_every) && s.step != 1 && s.step != self.training.steps {
                    return;
                }
                terminal::step_line(s, self.training.steps)
            }
            Record::Eval(e) => terminal::eval_line(e),
            Record::Save(s) => terminal::save_line(s),
            Record::Sample(s) => terminal::sample_block(s),
            Record::Resume(r) => format!("going on after step {} from {}", r.step, r.path),
            Record::Baseline(b) => format!(
                "  baseline: {} fitted on the {} that the model saw: {:.4} bits/byte",
                b.name,
                Bytes(b.bytes_fitted),
                b.bits_per_byte
            ),
            Record::Warning(w) => format!("warning: {}", w.message),
            _ => return,
        };
        self.say(&text);
    }

    fn message(&mut self, text: &str) {
        self.say(text);
    }

    fn progress(&mut self, what: &str, done: u64, total: u64) {
        if self.quiet {
            return;
        }
        if self.work.as_ref().is_none_or(|w| w.name != what) {
            self.finish_work();
            let now = Instant::now();
            self.work = Some(Work { name: what.to_owned(), begun: now, told: now, bar: None });
        }
        let terminal = self.terminal;
        let needs_bar = self.work.as_ref().is_some_and(|w| w.bar.is_none() && w.begun.elapsed() >= PATIENCE);
        let bar = (terminal && needs_bar).then(|| self.bar(what, total));
        let Some(work) = &mut self.work else { return };
        work.bar = work.bar.take().or(bar);
        if let Some(bar) = &work.bar {
            bar.set_position(done);
        } else if !terminal && work.told.elapsed() >= PLAIN_EVERY {
            work.told = Instant::now();
            let share = (100 * done).checked_div(total).map_or_else(|| done.to_string(), |s| format!("{s}%"));
            let _ = writeln!(std::io::stderr(), "{what}: {share}");
        }
    }

    fn resident_bytes(&mut self) -> Option<u64> {
        crate::machine::resident_bytes()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.finish_work();
    }
}

/// Columns of a picture where standard output is no terminal.
const PLAIN_WIDTH: usize = 120;

/// Columns of the terminal that standard output is.
pub(crate) fn width() -> usize {
    let size = console::Term::stdout().size_checked();
    size.map_or(PLAIN_WIDTH, |(_, columns)| usize::from(columns).max(40))
}

/// Whether standard output shows colours: it is a terminal, and nobody asked for none (<https://no-color.org>).
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    std::io::stdout().is_terminal() && !refused && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Writes a line of results to standard output. Control characters are escaped; see [`escape::controls`].
///
/// # Errors
/// If standard output is closed, for example by `head`.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    write_line(&escape::controls(text))
}

/// As [`print`], with colours, which only the program writes: see [`escape::controls_but_colours`].
///
/// # Errors
/// If standard output is closed.
pub(crate) fn print_coloured(text: &str) -> std::io::Result<()> {
    write_line(&escape::controls_but_colours(text))
}

fn write_line(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}
