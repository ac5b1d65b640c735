//! The executor from outside: every stage, threads, budgets, failures.

#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bessemer_dataflow::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Rows (file, row, text) in batches of `size`.
fn rows(count: u64, size: usize) -> Vec<RecordBatch> {
    let all: Vec<u64> = (0..count).collect();
    let batch = |part: &[u64]| {
        let texts: StringArray = part.iter().map(|row| Some(format!("word{} {}", row % 7, row))).collect();
        RecordBatch::try_from_iter([
            ("file", Arc::new(UInt32Array::from(vec![0; part.len()])) as ArrayRef),
            ("row", Arc::new(UInt64Array::from(part.to_vec())) as ArrayRef),
            ("text", Arc::new(texts) as ArrayRef),
        ])
        .unwrap()
    };
    all.chunks(size).map(batch).collect()
}

#[derive(Default)]
struct Collect(Vec<String>);

impl Sink for Collect {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for row in 0..batch.num_rows() {
            let values = batch.columns().iter().map(|column| {
                let any = column.as_any();
                if column.is_null(row) {
                    "null".to_string()
                } else if let Some(array) = any.downcast_ref::<StringArray>() {
                    array.value(row).to_string()
                } else if let Some(array) = any.downcast_ref::<UInt64Array>() {
                    array.value(row).to_string()
                } else {
                    any.downcast_ref::<UInt32Array>().unwrap().value(row).to_string()
                }
            });
            self.0.push(values.collect::<Vec<String>>().join("|"));
        }
        Ok(())
    }
}

fn run(batches: Vec<RecordBatch>, stages: &[Stage], threads: usize, memory: usize) -> Result<Vec<String>> {
    let spill = tempfile::TempDir::new().unwrap();
    let stop = AtomicBool::new(false);
    let executor = Executor::new(threads, memory, spill.path(), &stop, &|| {});
    let plan = Plan { source: Arc::new(Batches::new("rows", batches)), stages: stages.to_vec() };
    let mut sink = Collect::default();
    executor.run(&plan, &mut sink)?;
    assert_eq!(std::fs::read_dir(spill.path()).unwrap().count(), 0, "spill files are removed");
    Ok(sink.0)
}

/// The same rows for any cut into batches, any threads, any budget.
fn same(count: u64, stages: &[Stage]) -> Vec<String> {
    let mut expected = None;
    for size in [1, 7, 64, 5000] {
        for threads in [1, 2, 5] {
            for memory in [0, 4000, 1 << 30] {
                let found = run(rows(count, size), stages, threads, memory).unwrap();
                let expected = expected.get_or_insert_with(|| found.clone());
                assert!(*expected == found, "batches of {size}, {threads} threads, {memory} bytes");
            }
        }
    }
    expected.unwrap()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// Keeps rows whose number is divisible by 3, those divisible by 6 twice.
struct Thirds;

impl FlatMap for Thirds {
    fn name(&self) -> &str {
        "thirds"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let ids: &UInt64Array = column(self.name(), &batch, "row")?;
        let mut taken: Vec<u64> = Vec::new();
        for (index, id) in ids.values().iter().enumerate() {
            taken.extend(vec![index as u64; usize::from(id % 3 == 0) + usize::from(id % 6 == 0)]);
        }
        let taken = UInt64Array::from(taken);
        Ok(arrow_select::take::take_record_batch(&batch, &taken)?)
    }
}

/// For each row: (file, row, sum of all row numbers up to it), through a state that sees all rows.
struct RunningSum;

impl PipelineBreaker for RunningSum {
    fn name(&self) -> &str {
        "running-sum"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        // The directory is there, empty, and its own.
        assert_eq!(std::fs::read_dir(context.spill).unwrap().count(), 0);
        std::fs::write(context.spill.join("own"), b"x").unwrap();
        let mut sum = 0;
        while let Some(batch) = input()? {
            let ids: &UInt64Array = column(self.name(), &batch, "row")?;
            let sums: UInt64Array = ids
                .values()
                .iter()
                .map(|id| {
                    sum += id;
                    sum
                })
                .collect();
            let field = Field::new("sum", DataType::UInt64, true);
            let ids = batch.project(&[0, 1])?;
            output(with_columns(&ids, vec![(field, Arc::new(sums))])?)?;
        }
        Ok(())
    }
}

/// Counts the rows of a run.
struct CountRun;

impl Reducer for CountRun {
    fn name(&self) -> &str {
        "count"
    }

    fn fold(&self) -> Box<dyn Fold> {
        Box::new(Counting { rows: 0 })
    }
}

struct Counting {
    rows: u64,
}

impl Counting {
    fn row(&mut self) -> Option<RecordBatch> {
        let rows = std::mem::take(&mut self.rows);
        let column = Arc::new(UInt64Array::from(vec![rows])) as ArrayRef;
        (rows > 0).then(|| RecordBatch::try_from_iter([("rows", column)]).unwrap())
    }
}

impl Fold for Counting {
    fn take(&mut self, _: &RecordBatch, rows: Range<usize>, first: bool) -> Result<Option<RecordBatch>> {
        let result = if first { self.row() } else { None };
        self.rows += rows.len() as u64;
        Ok(result)
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        Ok(self.row())
    }
}

#[test]
fn rows_vanish_and_multiply_in_order() {
    let found = same(100, &[Stage::FlatMap(Arc::new(Thirds))]);
    let mut expected = Vec::new();
    for row in (0..100).step_by(3) {
        let line = format!("0|{row}|word{} {row}", row % 7);
        expected.extend(vec![line; if row % 6 == 0 { 2 } else { 1 }]);
    }
    assert_eq!(found, expected);
}

#[test]
fn an_operator_sees_all_rows_in_order_also_in_a_side_plan() {
    let found = same(200, &[Stage::PipelineBreaker(Arc::new(RunningSum))]);
    let sums = |row: u64| row * (row + 1) / 2;
    let expected: Vec<String> = (0..200).map(|row| format!("0|{row}|{}", sums(row))).collect();
    assert_eq!(found, expected);

    let side = vec![Stage::FlatMap(Arc::new(Odd)), Stage::PipelineBreaker(Arc::new(RunningSum))];
    let side_join = Stage::SideJoin {
        name: "sums".into(),
        project: names(&["file", "row"]),
        side,
        adds: Arc::new(Schema::new(vec![Field::new("sum", DataType::UInt64, true)])),
    };
    let found = same(60, &[side_join]);
    for (row, line) in found.iter().enumerate() {
        // The sum of the odd numbers up to 2k + 1 is (k + 1)².
        let sum = if row % 2 == 1 { (row / 2 + 1).pow(2).to_string() } else { "null".into() };
        assert_eq!(*line, format!("0|{row}|word{} {row}|{sum}", row % 7));
    }
}

/// Rows of odd number.
struct Odd;

impl FlatMap for Odd {
    fn name(&self) -> &str {
        "odd"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let ids: &UInt64Array = column(self.name(), &batch, "row")?;
        let odd: UInt64Array =
            (0..ids.len() as u64).filter(|&row| ids.value(row as usize) % 2 == 1).collect();
        Ok(arrow_select::take::take_record_batch(&batch, &odd)?)
    }
}

#[test]
fn operators_behind_partitions_and_behind_each_other() {
    let stages = [
        Stage::Shuffle { key: names(&["row"]), partitions: 5 },
        Stage::Sort { by: names(&["row"]) },
        Stage::PipelineBreaker(Arc::new(RunningSum)),
        Stage::Shuffle { key: Vec::new(), partitions: 1 },
        Stage::Sort { by: names(&["row"]) },
        Stage::PipelineBreaker(Arc::new(RunningSum)),
    ];
    let found = same(300, &stages);
    assert_eq!(found.len(), 300);
    assert_eq!(found[299], format!("0|299|{}", 299 * 300 / 2));
}

#[test]
fn a_breaker_of_each_partition_sees_its_partition_alone() {
    let key = names(&["row"]);
    let stages = [
        Stage::Shuffle { key: key.clone(), partitions: 5 },
        Stage::Sort { by: key.clone() },
        Stage::PerPartition(Arc::new(RunningSum)),
        // What is behind it still is a partition.
        Stage::PerPartition(Arc::new(RunningSum)),
        Stage::Shuffle { key: Vec::new(), partitions: 1 },
        Stage::Sort { by: key.clone() },
    ];
    let found = same(300, &stages);
    let mut sums = [0; 5];
    for (row, partition) in partitions_of(&rows(300, 300)[0], &key, 5).unwrap().into_iter().enumerate() {
        sums[partition as usize] += row;
        assert_eq!(found[row], format!("0|{row}|{}", sums[partition as usize]));
    }
    assert!(sums.iter().all(|&sum| sum > 0));
}

#[test]
fn runs_are_folded_and_empty_input_passes_every_stage() {
    let stages = [
        Stage::FlatMap(Arc::new(Thirds)),
        Stage::Shuffle { key: names(&["row"]), partitions: 3 },
        Stage::Sort { by: names(&["row"]) },
        Stage::Reduce { key: names(&["row"]), reducer: Arc::new(CountRun) },
    ];
    let found = same(100, &stages);
    assert_eq!(found.len(), 34);
    assert_eq!(found.iter().filter(|count| *count == "2").count(), 17);
    let mut stages = stages.to_vec();
    stages.insert(1, Stage::PipelineBreaker(Arc::new(RunningSum)));
    stages.insert(3, Stage::PerPartition(Arc::new(RunningSum)));
    for threads in [1, 3] {
        assert!(run(Vec::new(), &stages, threads, 1 << 20).unwrap().is_empty());
    }
}

/// Takes `after` batches and then fails, panics or answers early.
struct Ends {
    after: usize,
    how: &'static str,
}

impl PipelineBreaker for Ends {
    fn name(&self) -> &str {
        "ends"
    }

    fn run(&self, input: &mut Input<'_>, _: &BreakerContext<'_>, output: &mut Output<'_>) -> Result<()> {
        for _ in 0..self.after {
            if let Some(batch) = input()? {
                output(batch)?;
            }
        }
        match self.how {
            "panics" => panic!("a defect"),
            "fails" => Err(Error::other(std::io::Error::other("own words"))),
            _ => Ok(()),
        }
    }
}

#[test]
fn an_operator_may_answer_early_fail_or_panic_and_nothing_hangs() {
    let partitions = Stage::Shuffle { key: names(&["row"]), partitions: 7 };
    for threads in [1, 4] {
        for after in [0, 1, 3] {
            let whole: fn(_) -> Stage = Stage::PipelineBreaker;
            for (before, breaker) in [
                (vec![], whole),
                (vec![partitions.clone()], whole),
                (vec![partitions.clone()], Stage::PerPartition),
            ] {
                let with = |how| {
                    let mut stages = before.clone();
                    stages.push(breaker(Arc::new(Ends { after, how })));
                    run(rows(500, 10), &stages, threads, 2000)
                };
                if before.is_empty() {
                    assert_eq!(with("answers").unwrap().len(), 10 * after);
                }
                assert!(matches!(with("panics"), Err(Error::Panicked { stage: "pipeline breaker", .. })));
                let Err(Error::Other(own)) = with("fails") else { panic!("its own error comes out") };
                assert_eq!(own.downcast::<std::io::Error>().unwrap().to_string(), "own words");
            }
        }
    }
}

/// A map that loses a row.
struct Loses;

impl BatchMap for Loses {
    fn name(&self) -> &str {
        "loses"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        Ok(batch.slice(0, batch.num_rows() - 1))
    }
}

#[test]
fn a_map_that_loses_rows_and_a_missing_column_are_named() {
    let message = run(rows(10, 5), &[Stage::Map(Arc::new(Loses))], 2, 0).unwrap_err().to_string();
    assert!(message.contains("loses") && message.contains("5 rows gave 4"), "{message}");
    let message = run(rows(10, 5), &[Stage::Sort { by: names(&["age"]) }], 2, 0).unwrap_err().to_string();
    assert!(message.contains("age") && message.contains("sort"), "{message}");
}

/// Keeps the rows; the batch with `row` is an error, the others take their time.
struct FailsAtRow {
    row: u64,
}

impl FlatMap for FailsAtRow {
    fn name(&self) -> &str {
        "fails-at-row"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let ids: &UInt64Array = column(self.name(), &batch, "row")?;
        std::thread::sleep(std::time::Duration::from_millis(2));
        if ids.values().contains(&self.row) {
            return Err(Error::other(std::io::Error::other("the disk is full")));
        }
        Ok(batch)
    }
}

#[test]
fn the_error_of_a_partition_is_reported_whichever_partition_is_waited_for() {
    let key = names(&["row"]);
    let all = rows(400, 400).remove(0);
    let partition = partitions_of(&all, &key, 4).unwrap();
    for wanted in 0..4 {
        let row = partition.iter().position(|&partition| partition == wanted).unwrap() as u64;
        let stages = [
            Stage::Shuffle { key: key.clone(), partitions: 4 },
            Stage::FlatMap(Arc::new(FailsAtRow { row })),
        ];
        let error = run(rows(400, 4), &stages, 4, 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), "the disk is full", "partition {wanted}");
    }
}

/// Memory of a batch that panics when it is freed while `armed`.
struct Trap(&'static AtomicBool);

impl AsRef<[u8]> for Trap {
    fn as_ref(&self) -> &[u8] {
        &[1; 8]
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        assert!(!self.0.swap(false, Ordering::SeqCst), "a defect while a batch is freed");
    }
}

/// Gives each batch a column whose memory is a trap.
struct SetsTrap(&'static AtomicBool);

impl FlatMap for SetsTrap {
    fn name(&self) -> &str {
        "sets-trap"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let memory = arrow_buffer::Buffer::from(bytes::Bytes::from_owner(Trap(self.0)));
        let values = UInt64Array::new(arrow_buffer::ScalarBuffer::new(memory, 0, 1), None);
        let first = batch.slice(0, 1);
        self.0.store(true, Ordering::SeqCst);
        with_columns(&first, vec![(Field::new("trap", DataType::UInt64, false), Arc::new(values))])
    }
}

#[test]
fn a_panic_while_a_worker_spools_is_an_error_and_no_hang() {
    static ARMED: AtomicBool = AtomicBool::new(false);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let stages = [
            Stage::Shuffle { key: names(&["row"]), partitions: 4 },
            Stage::FlatMap(Arc::new(SetsTrap(&ARMED))),
        ];
        sender.send(run(rows(400, 40), &stages, 4, 0).map_err(|error| error.to_string())).ok();
    });
    let ended = receiver.recv_timeout(std::time::Duration::from_secs(30)).expect("the run ends");
    assert!(ended.unwrap_err().contains("a defect while a batch is freed"));
}

/// Raises the stop flag and goes on.
struct Stops<'a>(&'a AtomicBool, AtomicUsize);

impl Sink for Stops<'_> {
    fn write(&mut self, _: &RecordBatch) -> Result<()> {
        self.0.store(true, Ordering::Relaxed);
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_raised_flag_ends_the_run_after_the_batch() {
    for threads in [1, 3] {
        let stop = AtomicBool::new(false);
        let spill = tempfile::TempDir::new().unwrap();
        let executor = Executor::new(threads, 1 << 20, spill.path(), &stop, &|| {});
        let plan = Plan { source: Arc::new(Batches::new("rows", rows(1000, 1))), stages: Vec::new() };
        let mut sink = Stops(&stop, AtomicUsize::new(0));
        assert!(matches!(executor.run(&plan, &mut sink), Err(Error::Stopped)));
        assert_eq!(sink.1.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_plan_says_what_it_does() {
    let side_join = Stage::SideJoin {
        name: "sums".into(),
        project: names(&["file", "row"]),
        side: vec![Stage::PipelineBreaker(Arc::new(RunningSum))],
        adds: Arc::new(Schema::empty()),
    };
    let plan = Plan {
        source: Arc::new(Batches::new("rows", rows(2, 1))),
        stages: vec![Stage::FlatMap(Arc::new(Thirds)), side_join],
    };
    let expected = "source rows (2 batches)\nflat-map thirds\nside join sums from (file, row)\n  pipeline breaker running-sum\n";
    assert_eq!(plan.explain(), expected);
}
