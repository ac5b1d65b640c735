//! `bessemer judge`: people compare or rate texts.

use crate::cli::{
    JudgeCommand, JudgeCreateArgs, JudgeReadArgs, JudgeResultsArgs, JudgeServeArgs, JudgeSheetArgs,
};
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::signals;
use bessemer_http::{Limits, Server};
use bessemer_judge::{Page, Question, Results, Store, Study, exchange};
use serde_json::json;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest request of a judge: a name and a choice.
const LARGEST_REQUEST: usize = 64 << 10;

pub(crate) fn run(command: &JudgeCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        JudgeCommand::Create(args) => create(args, as_json, console),
        JudgeCommand::Serve(args) => serve(args, console),
        JudgeCommand::Results(args) => results(args, as_json),
        JudgeCommand::Sheet(args) => sheet(args, console),
        JudgeCommand::Read(args) => read(args, console),
    }
}

fn create(args: &JudgeCreateArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let name = args.texts.display().to_string();
    let text = bessemer_durable::read_to_string(&args.texts)
        .map_err(|e| Failure::new(format!("--texts {name}: {e}")))?;
    let ask = |usual: &str| args.question.clone().unwrap_or_else(|| usual.to_owned());
    let question = match args.scale.is_empty() {
        true => Question::Pairs { text: ask("Which text is better?") },
        false => Question::Scale { text: ask("How good is this text?"), labels: args.scale.clone() },
    };
    let items = Study::read_items(&name, &text).map_err(Failure::new)?;
    let study = Study { question, judgements: args.judgements, seed: args.seed, items };
    let store = Store::create(&args.study, study).map_err(Failure::new)?;
    let nothing = Results::of(store.study(), &[], None, 0, 0);
    let systems = store.study().systems();
    if as_json {
        let value = json!({ "systems": systems, "items": store.study().items.len(), "tasks": nothing.tasks, "wanted": nothing.wanted });
        return Ok(print(&value.to_string())?);
    }
    console.say(&format!(
        "wrote {}: {} items of {} systems ({}), {} tasks, {} judgements wanted; next: bessemer judge serve {0}",
        args.study.display(),
        store.study().items.len(),
        systems.len(),
        systems.join(", "),
        nothing.tasks,
        nothing.wanted
    ));
    Ok(())
}

fn open(path: &std::path::Path) -> Result<Store, Failure> {
    Store::open(path).map_err(Failure::new)
}

fn serve(args: &JudgeServeArgs, console: &mut Console) -> Result<(), Failure> {
    let store = open(&args.study)?;
    let stop = signals::stop_flag()?;
    let limits = Limits { body_bytes: LARGEST_REQUEST, ..Limits::default() };
    let server = Server::bind(&args.listen, limits).map_err(|e| Failure::new(format!("--listen: {e}")))?;
    // On standard output, for whoever started it with a free port.
    print(&format!("http://{}/", server.address()))?;
    console.say("judges open this address; Ctrl-C ends it, nothing is lost");
    Ok(server.serve(Arc::new(Page::new(store)), &stop)?)
}

fn results(args: &JudgeResultsArgs, as_json: bool) -> Result<(), Failure> {
    let store = open(&args.study)?;
    let judgements = store.judgements().map_err(Failure::new)?;
    let systems = store.study().systems();
    if let Some(human) = args.human.as_deref().filter(|human| !systems.contains(human)) {
        return Err(Failure::usage(format!("--human: no system {human:?}; known: {}", systems.join(", "))));
    }
    let results =
        Results::of(store.study(), &judgements, args.human.as_deref(), args.samples as usize, args.seed);
    Ok(print(&if as_json { serde_json::to_string_pretty(&results)? } else { shown(&results) })?)
}

fn interval(band: Option<[f64; 2]>, digits: usize) -> String {
    band.map_or(String::new(), |[low, high]| format!("{low:.digits$} to {high:.digits$}"))
}

fn shown(results: &Results) -> String {
    let mut text = format!(
        "{} of {} judgements on {} tasks by {} judges\n",
        results.judgements,
        results.wanted,
        results.tasks,
        results.judges.len()
    );
    if !results.ratings.is_empty() {
        let _ = writeln!(text, "\n{:<24}  comparisons     won  rating  95 %             Elo", "system");
        for one in &results.ratings {
            let rating = one.rating.map_or("–".into(), |r| format!("{r:.0}"));
            let band = interval(one.interval, 0);
            let _ = writeln!(
                text,
                "{:<24}  {:>11}  {:>5.1}%  {rating:>6}  {band:<13}  {:>6.0}",
                one.system,
                one.comparisons,
                100.0 * one.won,
                one.elo
            );
        }
        if results.ratings.iter().all(|one| one.rating.is_none()) {
            text += "no ratings: a system has won, or lost, all its comparisons with the others, or was never compared\n";
        }
    }
    if !results.scale.is_empty() {
        let _ = writeln!(text, "\n{:<24}  judgements   mean  95 %          of each point", "system");
        for one in &results.scale {
            let counts: Vec<String> = one.counts.iter().map(ToString::to_string).collect();
            let _ = writeln!(
                text,
                "{:<24}  {:>10}  {:>5.2}  {:<12}  {}",
                one.system,
                one.judgements,
                one.mean,
                interval(one.interval, 2),
                counts.join(" ")
            );
        }
    }
    for (system, h) in &results.huse {
        let _ = writeln!(
            text,
            "{system}: HUSE {:.3}, quality {:.3}, diversity {:.3}",
            h.huse, h.quality, h.diversity
        );
    }
    let agreement =
        results.agreement.map_or("unknown: no task was judged twice".into(), |a| format!("{a:.3}"));
    let _ = writeln!(text, "\nagreement (Krippendorff's alpha) {agreement}");
    for judge in &results.judges {
        let _ = write!(text, "{}: {} judgements", judge.judge, judge.judgements);
        let share = |x: f64| format!("{:.0} %", 100.0 * x);
        if let Some(constancy) = judge.constancy {
            let _ = write!(text, "; {} of {} that came again judged alike", share(constancy), judge.repeated);
        }
        if let Some(left) = judge.left {
            let _ = write!(text, "; the left one won {}", share(left));
        }
        if let Some(seconds) = judge.seconds {
            let _ = write!(text, "; {seconds:.1} s each");
        }
        text.push('\n');
    }
    text
}

fn sheet(args: &JudgeSheetArgs, console: &mut Console) -> Result<(), Failure> {
    let store = open(&args.study)?;
    let mut sheet = Vec::new();
    let tasks = exchange::write_sheet(&store, &args.judge, args.tasks, &mut sheet).map_err(Failure::new)?;
    bessemer_durable::write(&args.out, &sheet)
        .map_err(|e| Failure::new(format!("--out {}: {e}", args.out.display())))?;
    console.say(&format!(
        "wrote {}: {tasks} tasks for {}; filled in, bessemer judge read takes it back",
        args.out.display(),
        args.judge
    ));
    Ok(())
}

fn read(args: &JudgeReadArgs, console: &mut Console) -> Result<(), Failure> {
    let mut store = open(&args.study)?;
    let sheet = bessemer_durable::open_regular(&args.sheet)
        .map_err(|e| Failure::new(format!("{}: {e}", args.sheet.display())))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let (added, empty) = exchange::read_sheet(&mut store, &args.judge, now, sheet)
        .map_err(|e| Failure::new(format!("{}: {e}", args.sheet.display())))?;
    console.say(&format!("{added} judgements of {}; {empty} rows left open", args.judge));
    Ok(())
}
