//! A scheduler and two executors as processes of their own, on this machine: the plan's rows must be those of the local executor,
//! also when an executor is killed in the middle. This executable is the test and, started with a role, the processes.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::type_complexity,
    reason = "a test with a harness of its own, whose result is what it prints"
)]

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bessemer_corpus_cluster::{
    ClusterRun, ExecutorOptions, Parts, Planner, run, serve_executor, serve_scheduler,
};
use bessemer_dataflow::{
    BatchMap, Batches, BreakerContext, Error, Executor, Fold, Input, Output, PipelineBreaker, Plan, Reducer,
    Result, Scan, Sink, Source, Stage, column, with_columns,
};
use bessemer_durable::ConfinedDir;
use std::collections::VecDeque;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PARTS: usize = 24;
const ROWS: u64 = 50;

/// Time for all tests.
const PATIENCE: Duration = Duration::from_secs(600);

/// Rows of one part: a key that repeats across parts, and a text.
fn part(number: usize) -> RecordBatch {
    let file = number as u32;
    let keys = (0..ROWS).map(|row| (u64::from(file) * 31 + row * 7) % 97);
    let texts = (0..ROWS).map(|row| format!("text {file} {row} {}", "x".repeat((row as usize * 37) % 900)));
    RecordBatch::try_from_iter([
        ("file", Arc::new(UInt32Array::from(vec![file; ROWS as usize])) as ArrayRef),
        ("row", Arc::new(UInt64Array::from_iter_values(0..ROWS)) as ArrayRef),
        ("key", Arc::new(UInt64Array::from_iter_values(keys)) as ArrayRef),
        ("text", Arc::new(StringArray::from_iter_values(texts)) as ArrayRef),
    ])
    .unwrap()
}

/// Doubles the column `key`, slowly, so that there is a middle to be killed in.
struct Double(Duration);

impl BatchMap for Double {
    fn name(&self) -> &str {
        "double"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        std::thread::sleep(self.0);
        let keys: &UInt64Array = column(self.name(), &batch, "key")?;
        let doubled: UInt64Array = keys.values().iter().map(|key| key * 2).collect();
        with_columns(&batch, vec![(Field::new("key", DataType::UInt64, false), Arc::new(doubled))])
    }
}

/// Says of every row but the first of a key where the first is.
struct First;
struct FirstFold(Option<(u32, u64)>);

impl Reducer for First {
    fn name(&self) -> &str {
        "first"
    }

    fn fold(&self) -> Box<dyn Fold> {
        Box::new(FirstFold(None))
    }
}

impl Fold for FirstFold {
    fn take(
        &mut self,
        batch: &RecordBatch,
        mut rows: Range<usize>,
        first: bool,
    ) -> Result<Option<RecordBatch>> {
        let files: &UInt32Array = column("first", batch, "file")?;
        let ids: &UInt64Array = column("first", batch, "row")?;
        if first {
            self.0 = Some((files.value(rows.start), ids.value(rows.start)));
            rows.start += 1;
        }
        let (file, row) = self.0.unwrap();
        let count = rows.len();
        Ok(Some(RecordBatch::try_from_iter([
            (
                "file",
                Arc::new(UInt32Array::from_iter_values(rows.clone().map(|r| files.value(r)))) as ArrayRef,
            ),
            ("row", Arc::new(UInt64Array::from_iter_values(rows.map(|r| ids.value(r)))) as ArrayRef),
            ("first_file", Arc::new(UInt32Array::from(vec![file; count])) as ArrayRef),
            ("first_row", Arc::new(UInt64Array::from(vec![row; count])) as ArrayRef),
        ])?))
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        Ok(None)
    }
}

/// Numbers all rows that it sees, in the order in which it sees them: any difference of order shows. Takes its time and leaves a
/// file named by its process, where it is given a folder.
#[derive(Default)]
struct Number {
    delay: Duration,
    processes: Option<PathBuf>,
}

impl PipelineBreaker for Number {
    fn name(&self) -> &str {
        "number"
    }

    fn run(&self, input: &mut Input<'_>, _: &BreakerContext<'_>, output: &mut Output<'_>) -> Result<()> {
        std::thread::sleep(self.delay);
        if let Some(folder) = &self.processes {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(std::process::id().to_string()), b"").unwrap();
        }
        let mut next = 0;
        while let Some(batch) = input()? {
            let end = next + batch.num_rows() as u64;
            let numbers = Arc::new(UInt64Array::from_iter_values(next..end));
            next = end;
            let batch = with_columns(&batch, vec![(Field::new("number", DataType::UInt64, true), numbers)])?;
            output(batch.project(&[0, 1, batch.num_columns() - 1])?)?;
        }
        Ok(())
    }
}

/// Passes rows on under another name of the last column.
struct Last;

impl PipelineBreaker for Last {
    fn name(&self) -> &str {
        "last"
    }

    fn run(&self, input: &mut Input<'_>, _: &BreakerContext<'_>, output: &mut Output<'_>) -> Result<()> {
        while let Some(batch) = input()? {
            let mut columns = batch.columns().to_vec();
            let numbers = columns.pop().unwrap();
            let fields = ["file", "row", "of_partition"].into_iter();
            output(RecordBatch::try_from_iter(fields.zip(columns.into_iter().chain([numbers])))?)?;
        }
        Ok(())
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

fn stages(delay: Duration, processes: Option<PathBuf>) -> Vec<Stage> {
    let field = |name: &str, kind| Field::new(name, kind, true);
    vec![
        Stage::Map(Arc::new(Double(delay))),
        Stage::SideJoin {
            name: "firsts".into(),
            project: names(&["file", "row", "key"]),
            side: vec![
                Stage::Shuffle { key: names(&["key"]), partitions: 5 },
                // Not by (file, row): rows of equal key must come in the order of the source anyway.
                Stage::Sort { by: names(&["key"]) },
                Stage::Reduce { key: names(&["key"]), reducer: Arc::new(First) },
            ],
            adds: Arc::new(Schema::new(vec![
                field("first_file", DataType::UInt32),
                field("first_row", DataType::UInt64),
            ])),
        },
        Stage::Map(Arc::new(Double(delay))),
        Stage::SideJoin {
            name: "numbers".into(),
            project: names(&["file", "row", "key", "first_row"]),
            side: vec![
                Stage::Shuffle { key: names(&["first_row"]), partitions: 3 },
                Stage::PipelineBreaker(Arc::new(Number::default())),
            ],
            adds: Arc::new(Schema::new(vec![field("number", DataType::UInt64)])),
        },
        Stage::SideJoin {
            name: "numbers of partitions".into(),
            project: names(&["file", "row", "key", "text"]),
            side: vec![
                Stage::Shuffle { key: names(&["key"]), partitions: 8 },
                Stage::Sort { by: names(&["text"]) },
                Stage::PerPartition(Arc::new(Number { delay, processes })),
                Stage::PipelineBreaker(Arc::new(Last)),
            ],
            adds: Arc::new(Schema::new(vec![field("of_partition", DataType::UInt64)])),
        },
    ]
}

struct TestParts(Vec<Stage>);

impl Parts for TestParts {
    fn count(&self) -> usize {
        PARTS
    }

    fn scan(&self, number: usize) -> Result<Box<dyn Scan>> {
        Batches::new("part", vec![part(number)]).scan()
    }

    fn stages(&self) -> &[Stage] {
        &self.0
    }
}

/// The text of a plan is the delay of its maps and partitions in milliseconds, perhaps with a folder after it where the processes
/// that number partitions leave their own numbers.
struct TestPlanner;

impl Planner for TestPlanner {
    fn plan(&self, text: &str) -> Result<Arc<dyn Parts>> {
        let (delay, folder) =
            text.split_once(' ').map_or((text, None), |(delay, folder)| (delay, Some(folder)));
        let delay = delay.parse().map_err(|_| Error::Plan {
            stage: "test".into(),
            problem: format!("{text:?} is no number of milliseconds"),
        })?;
        Ok(Arc::new(TestParts(stages(Duration::from_millis(delay), folder.map(PathBuf::from)))))
    }
}

#[derive(Default)]
struct Collect(Vec<RecordBatch>);

impl Sink for Collect {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.0.push(batch.clone());
        Ok(())
    }
}

impl Collect {
    fn whole(&self) -> RecordBatch {
        arrow_select::concat::concat_batches(&self.0[0].schema(), &self.0).unwrap()
    }
}

fn embedded(folder: &Path) -> RecordBatch {
    let batches: Vec<RecordBatch> = (0..PARTS).map(part).collect();
    let plan = Plan { source: Arc::new(Batches::new("all", batches)), stages: stages(Duration::ZERO, None) };
    let mut rows = Collect::default();
    let stop = AtomicBool::new(false);
    Executor::new(2, 64 << 20, &ConfinedDir::open(folder).unwrap(), &stop, &|| ())
        .run(&plan, &mut rows)
        .unwrap();
    rows.whole()
}

/// A process that is killed with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(role: &str, arguments: &[&str]) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    Process(command.env("BESSEMER_CLUSTER_ROLE", role).args(arguments).spawn().unwrap())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wait_for(port: u16) {
    for _ in 0..300 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("nobody listens at port {port} after 30 s");
}

/// Starts an executor with a work folder of its own.
fn executor(scheduler: &str, folder: &Path, number: usize) -> Process {
    let port = free_port();
    let work = folder.join(format!("executor-{number}"));
    let process = start("executor", &[scheduler, &format!("127.0.0.1:{port}"), work.to_str().unwrap()]);
    wait_for(port);
    process
}

/// A scheduler and two executors.
fn cluster(folder: &Path) -> (String, Process, VecDeque<Process>) {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let scheduler = start("scheduler", &[&address, folder.to_str().unwrap()]);
    wait_for(port);
    let executors = (0..2).map(|number| executor(&address, folder, number)).collect();
    (address, scheduler, executors)
}

fn on_cluster(scheduler: &str, plan: &str, folder: &Path, progress: &dyn Fn(&str, usize)) -> RecordBatch {
    let mut rows = Collect::default();
    let stop = AtomicBool::new(false);
    let planner = Arc::new(TestPlanner);
    let options = ClusterRun { scheduler, planner, plan, folder, memory: 1 << 20, stop: &stop, progress };
    run(&options, &mut rows).unwrap();
    rows.whole()
}

fn the_rows_are_those_of_the_embedded_executor(scheduler: &str, folder: &Path, expected: &RecordBatch) {
    let jobs = AtomicUsize::new(0);
    let rows = on_cluster(scheduler, "0", &folder.join("plain"), &|_, _| {
        jobs.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(rows, *expected);
    assert_eq!(jobs.load(Ordering::Relaxed), 7, "three side joins: four jobs of rows, three of side plans");
}

fn partitions_are_worked_on_by_all_executors(scheduler: &str, folder: &Path, expected: &RecordBatch) {
    let processes = folder.join("processes");
    let plan = format!("50 {}", processes.display());
    assert_eq!(on_cluster(scheduler, &plan, &folder.join("spread"), &|_, _| ()), *expected);
    assert_eq!(std::fs::read_dir(&processes).unwrap().count(), 2, "both executors numbered partitions");
}

fn an_error_of_a_step_reaches_the_client(scheduler: &str, folder: &Path) {
    struct Nothing;
    impl Sink for Nothing {
        fn write(&mut self, _: &RecordBatch) -> Result<()> {
            Ok(())
        }
    }
    // The client makes the plan "0"; executors are handed one that they cannot make.
    struct Liar;
    impl Planner for Liar {
        fn plan(&self, _: &str) -> Result<Arc<dyn Parts>> {
            TestPlanner.plan("0")
        }
    }
    let stop = AtomicBool::new(false);
    let options = ClusterRun {
        scheduler,
        planner: Arc::new(Liar),
        plan: "soon",
        folder: &folder.join("error"),
        memory: 1 << 20,
        stop: &stop,
        progress: &|_, _| (),
    };
    let message = run(&options, &mut Nothing).unwrap_err().to_string();
    assert!(message.contains("is no number of milliseconds"), "{message}");
}

/// In each of the jobs an executor is killed when it has worked for a while, and another one comes.
fn an_executor_killed_in_every_job_changes_nothing(
    scheduler: &str,
    executors: VecDeque<Process>,
    folder: &Path,
    expected: &RecordBatch,
) {
    let executors = Mutex::new(executors);
    let killed = AtomicUsize::new(0);
    let rows = std::thread::scope(|scope| {
        on_cluster(scheduler, "150", &folder.join("killed"), &|_, _| {
            scope.spawn(|| {
                let number = 2 + killed.fetch_add(1, Ordering::Relaxed);
                let next = executor(scheduler, folder, number);
                let mut executors = executors.lock().unwrap();
                executors.push_back(next);
                std::thread::sleep(Duration::from_millis(300));
                drop(executors.pop_front());
            });
        })
    });
    assert_eq!(rows, *expected);
    assert_eq!(killed.load(Ordering::Relaxed), 7);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let planner = Arc::new(TestPlanner);
    match std::env::var("BESSEMER_CLUSTER_ROLE").as_deref() {
        Ok("scheduler") => serve_scheduler(&arguments[0], planner, Path::new(&arguments[1])).unwrap(),
        Ok("executor") => {
            let work_dir = arguments[2].clone().into();
            let options = ExecutorOptions {
                scheduler: arguments[0].clone(),
                listen: arguments[1].clone(),
                slots: 1,
                work_dir,
            };
            serve_executor(&options, planner).unwrap();
        }
        _ => {
            // A job that the scheduler has lost never ends: the test fails instead.
            std::thread::spawn(|| {
                std::thread::sleep(PATIENCE);
                eprintln!("no end after {PATIENCE:?}: a job hangs");
                std::process::exit(1);
            });
            let folder = tempfile::tempdir().unwrap();
            let spill = folder.path().join("spill");
            std::fs::create_dir(&spill).unwrap();
            let expected = embedded(&spill);
            let (scheduler, _scheduler, executors) = cluster(folder.path());
            the_rows_are_those_of_the_embedded_executor(&scheduler, folder.path(), &expected);
            println!("test the_rows_are_those_of_the_embedded_executor ... ok");
            an_error_of_a_step_reaches_the_client(&scheduler, folder.path());
            println!("test an_error_of_a_step_reaches_the_client ... ok");
            partitions_are_worked_on_by_all_executors(&scheduler, folder.path(), &expected);
            println!("test partitions_are_worked_on_by_all_executors ... ok");
            an_executor_killed_in_every_job_changes_nothing(&scheduler, executors, folder.path(), &expected);
            println!("test an_executor_killed_in_every_job_changes_nothing ... ok");
            println!(
                "\ntest result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished"
            );
        }
    }
}
