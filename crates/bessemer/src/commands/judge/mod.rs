//! `bessemer judge`: people and models compare or rate texts.

mod model;
mod power;
mod results;
mod run_model;

use crate::cli::{JudgeCommand, JudgeCreateArgs, JudgeReadArgs, JudgeSheetArgs};
use crate::console::{Console, print, warn};
use crate::failure::Failure;
use crate::signals;
use bessemer_durable::NewFile;
use bessemer_http::{Access, Limits, Server};
use bessemer_judge::{Page, Question, Results, Store, Study, exchange};
use bessemer_units::counted;
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest request of a judge: a name and a choice.
const LARGEST_REQUEST: usize = 64 << 10;

pub(crate) fn run(command: &JudgeCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        JudgeCommand::Create(args) => create(args, as_json, console),
        JudgeCommand::Serve(args) => {
            serve(open(&args.study)?, &args.listen, &args.hosts.allow_hosts, console)
        }
        JudgeCommand::Model(args) => model::run(args, as_json, console),
        JudgeCommand::Results(args) => results::run(args, as_json),
        JudgeCommand::Sheet(args) => sheet(args, console),
        JudgeCommand::Read(args) => read(args, console),
        JudgeCommand::Power(args) => power::run(args, as_json),
        #[cfg(feature = "migrate")]
        JudgeCommand::Migrate(args) => migrate(&args.old, &args.new, console),
    }
}

fn create(args: &JudgeCreateArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let name = args.texts.display().to_string();
    let text = bessemer_durable::read_input_to_string(&args.texts)
        .map_err(|e| Failure::new(format!("--texts {name}: {e}")))?;
    let ask = |usual: &str| args.question.clone().unwrap_or_else(|| usual.to_owned());
    let question = match args.scale.is_empty() {
        true => Question::Pairs { text: ask("Which text is better?") },
        false => Question::Scale { text: ask("How good is this text?"), labels: args.scale.clone() },
    };
    let mut items = Study::read_items(&name, &text).map_err(Failure::new)?;
    if let Some(run) = &args.probabilities_of {
        run_model::add_probabilities(run, &args.between, args.threads, &mut items, console)?;
    }
    let study = Study { question, judgements: args.judgements, seed: args.seed, items };
    let store = Store::create(&args.study, study).map_err(Failure::new)?;
    let nothing = Results::of(store.study(), &[], None, 0, 0);
    let systems = store.study().systems();
    if as_json {
        let value = json!({ "systems": systems, "items": store.study().items.len(), "tasks": nothing.tasks, "wanted": nothing.wanted });
        return Ok(print(&value.to_string())?);
    }
    console.say(&format!(
        "wrote {}: {} of {} ({}), {}, {} wanted; next: bessemer judge serve {0}",
        args.study.display(),
        counted(store.study().items.len(), "item"),
        counted(systems.len(), "system"),
        systems.join(", "),
        counted(nothing.tasks, "task"),
        nothing.wanted
    ));
    Ok(())
}

/// Opens a study; warns about lines that were left out.
pub(crate) fn open(path: &Path) -> Result<Store, Failure> {
    let store = Store::open(path).map_err(Failure::new)?;
    store.warnings().iter().for_each(|text| warn(text));
    Ok(store)
}

/// Writes the study of an older program into a new file.
#[cfg(feature = "migrate")]
fn migrate(old: &Path, new: &Path, console: &mut Console) -> Result<(), Failure> {
    let store = bessemer_judge::migrate(old, new).map_err(Failure::new)?;
    let (judgements, verdicts) = (store.judgements(), store.verdicts());
    console.say(&format!(
        "wrote {}: {}, {}, {}; {} is unchanged",
        new.display(),
        counted(store.study().items.len(), "item"),
        counted(judgements.map_err(Failure::new)?.len(), "judgement"),
        counted(verdicts.map_err(Failure::new)?.len(), "verdict"),
        old.display()
    ));
    Ok(())
}

/// Serves the page of a study until the program is stopped.
pub(crate) fn serve(
    store: Store,
    listen: &str,
    hosts: &[String],
    console: &mut Console,
) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let limits = Limits { body_bytes: LARGEST_REQUEST, ..Limits::default() };
    let server = Server::bind(listen, limits).map_err(|e| Failure::new(format!("--listen: {e}")))?;
    let access = Access { hosts: hosts.to_vec(), ..Access::default() };
    let server = server.with_access(access);
    // On standard output, for whoever started it with a free port.
    print(&format!("http://{}/", server.address()))?;
    console.say("open this address to judge; Ctrl-C stops the server, judgements are saved");
    Ok(server.serve(Arc::new(Page::new(store)), &stop)?)
}

fn sheet(args: &JudgeSheetArgs, console: &mut Console) -> Result<(), Failure> {
    let store = open(&args.study)?;
    let mut sheet = Vec::new();
    let tasks = exchange::write_sheet(&store, &args.judge, args.tasks, &mut sheet).map_err(Failure::new)?;
    write_new(&args.out, &sheet).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Failure::new(format!(
            "--out {0}: the file exists and may hold judgements: export them with bessemer judge read {1} \
             {0} --judge {2:?}, then remove it or name another file",
            args.out.display(),
            args.study.display(),
            args.judge
        )),
        _ => Failure::new(format!("--out {}: {e}", args.out.display())),
    })?;
    console.say(&format!(
        "wrote {}: {} for {}; when it is filled in, import it with bessemer judge read",
        args.out.display(),
        counted(tasks, "task"),
        args.judge
    ));
    Ok(())
}

/// Writes a file that does not exist yet.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes)?;
    file.commit_new()
}

fn read(args: &JudgeReadArgs, console: &mut Console) -> Result<(), Failure> {
    let mut store = open(&args.study)?;
    let sheet = bessemer_durable::open_input(&args.sheet)
        .map_err(|e| Failure::new(format!("{}: {e}", args.sheet.display())))?;
    let (added, empty) = exchange::read_sheet(&mut store, &args.judge, now(), sheet)
        .map_err(|e| Failure::new(format!("{}: {e}", args.sheet.display())))?;
    console.say(&format!(
        "{} of {}; {} left open",
        counted(added, "judgement"),
        args.judge,
        counted(empty, "row")
    ));
    Ok(())
}

/// Seconds since 1970, UTC.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}
