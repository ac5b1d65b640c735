//! The executor from outside: every stage, threads, budgets, failures.

#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bessemer_dataflow::*;
use bessemer_durable::ConfinedDir;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
    let executor = Executor::new(threads, memory, &ConfinedDir::open(spill.path()).unwrap(), &stop, &|| {});
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
        assert_eq!(std::fs::read_dir(context.spill.path()).unwrap().count(), 0);
        std::fs::write(context.spill.path().join("own"), b"x").unwrap();
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
        let executor =
            Executor::new(threads, 1 << 20, &ConfinedDir::open(spill.path()).unwrap(), &stop, &|| {});
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

/// Rows that can be read again; each scan is noted with its columns.
struct Kept {
    batches: Vec<RecordBatch>,
    scans: Mutex<Vec<Option<Vec<String>>>>,
}

impl KeptRows for Kept {
    fn scan(&self, columns: Option<&[String]>) -> Result<Box<dyn Scan>> {
        self.scans.lock().unwrap().push(columns.map(<[String]>::to_vec));
        let batches = self.batches.iter().map(|batch| match columns {
            Some(columns) => select(batch, columns),
            None => Ok(batch.clone()),
        });
        Batches::new("kept", batches.collect::<Result<Vec<_>>>()?).scan()
    }
}

struct KeptSource(Arc<Kept>);

impl Source for KeptSource {
    fn describe(&self) -> String {
        "kept rows".into()
    }

    fn scan(&self) -> Result<Box<dyn Scan>> {
        self.0.scan(None)
    }

    fn kept(&self) -> Option<Arc<dyn KeptRows>> {
        Some(self.0.clone())
    }
}

/// Adds the column `next` = row + 1, and counts the rows that it sees.
struct Next {
    states_columns: bool,
    rows: AtomicUsize,
}

impl BatchMap for Next {
    fn name(&self) -> &str {
        "next"
    }

    fn reads(&self) -> Option<&[&str]> {
        if self.states_columns { Some(&["row"]) } else { None }
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        self.rows.fetch_add(batch.num_rows(), Ordering::Relaxed);
        let rows: &UInt64Array = column(self.name(), &batch, "row")?;
        let next: UInt64Array = rows.values().iter().map(|row| row + 1).collect();
        with_columns(&batch, vec![(Field::new("next", DataType::UInt64, false), Arc::new(next))])
    }
}

fn running_sums(project: &[&str]) -> Stage {
    Stage::SideJoin {
        name: "sums".into(),
        project: names(project),
        side: vec![Stage::FlatMap(Arc::new(Odd)), Stage::PipelineBreaker(Arc::new(RunningSum))],
        adds: Arc::new(Schema::new(vec![Field::new("sum", DataType::UInt64, true)])),
    }
}

#[test]
fn kept_rows_are_read_again_by_columns_and_other_maps_run_once() {
    let count = 500;
    for states_columns in [true, false] {
        let next = || Arc::new(Next { states_columns, rows: AtomicUsize::new(0) });
        let stages = |next: &Arc<Next>| {
            let [first, second] =
                [running_sums(&["file", "row"]), running_sums(&["file", "row", "next", "none"])];
            [first, Stage::Map(next.clone()), second]
        };
        let expected = run(rows(count, 64), &stages(&next()), 1, 1 << 30).unwrap();
        assert_eq!(expected[3], "0|3|word3 3|4|4");
        for threads in [1, 3] {
            let (kept, next) = (Kept { batches: rows(count, 7), scans: Mutex::default() }, next());
            let kept = Arc::new(kept);
            let (spill, stop) = (tempfile::TempDir::new().unwrap(), AtomicBool::new(false));
            let plan = Plan { source: Arc::new(KeptSource(kept.clone())), stages: stages(&next).to_vec() };
            let (executor, mut sink) = (
                Executor::new(threads, 1 << 30, &ConfinedDir::open(spill.path()).unwrap(), &stop, &|| {}),
                Collect::default(),
            );
            executor.run(&plan, &mut sink).unwrap();
            assert!(sink.0 == expected, "{threads} threads");
            let scans = kept.scans.lock().unwrap();
            let whole = scans.iter().filter(|columns| columns.is_none()).count();
            assert_eq!(
                whole, 1,
                "texts are read once, for the result or to keep the rows behind the map: {scans:?}"
            );
            let narrow = scans.iter().flatten().flatten();
            assert!(narrow.clone().count() > 0 && narrow.clone().all(|name| name != "text"), "{scans:?}");
            // Behind the side join once more, where it may.
            let times = if states_columns { 2 } else { 1 };
            assert_eq!(next.rows.load(Ordering::Relaxed), times * count as usize);
        }
    }
}

#[test]
fn columns_of_a_file_are_read_apart_and_come_back_as_they_were() {
    use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder, UInt64Builder};
    use arrow_array::{BinaryArray, BooleanArray, FixedSizeBinaryArray, StructArray};
    let batch = |count: u64| {
        let some = |row: u64| (!row.is_multiple_of(3)).then_some(row);
        let mut lists = ListBuilder::new(UInt64Builder::new());
        let mut maps = MapBuilder::new(None, StringBuilder::new(), UInt64Builder::new());
        for row in 0..count {
            (0..row % 4).for_each(|value| lists.values().append_option(some(value)));
            lists.append(row % 5 > 0);
            (0..row % 2).for_each(|value| maps.keys().append_value(format!("key {value}")));
            (0..row % 2).for_each(|value| maps.values().append_value(value));
            maps.append(row % 7 > 0).unwrap();
        }
        let numbers: ArrayRef = Arc::new((0..count).map(some).collect::<UInt64Array>());
        let fixed = (0..count).map(|row| some(row).map(|row| row.to_be_bytes()));
        let texts: StringArray = (0..count).map(|row| some(row).map(|row| format!("é {row}"))).collect();
        let pairs =
            StructArray::from(vec![(Arc::new(Field::new("inner", DataType::UInt64, true)), numbers.clone())]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("number", numbers),
            ("text", Arc::new(texts)),
            ("bytes", Arc::new(BinaryArray::from_iter((0..count).map(|row| some(row).map(|_| b"x"))))),
            (
                "flag",
                Arc::new((0..count).map(|row| some(row).map(|row| row % 2 == 0)).collect::<BooleanArray>()),
            ),
            ("fixed", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 8).unwrap())),
            ("list", Arc::new(lists.finish())),
            ("map", Arc::new(maps.finish())),
            ("pair", Arc::new(pairs)),
            ("last", Arc::new(UInt32Array::from_iter_values(0..count as u32))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
            .unwrap()
    };
    let batches = [batch(40), batch(0), batch(90).slice(11, 33), batch(1)];
    let folder = tempfile::TempDir::new().unwrap();
    let (dir, name) = (ConfinedDir::open(folder.path()).unwrap(), std::path::PathBuf::from("batches"));
    let path = folder.path().join(&name);
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(file, &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    let read = |columns: Option<&[&str]>| {
        let columns = columns.map(names);
        let mut scan = scan_files(&dir, [name.clone(), name.clone()], columns.as_deref());
        let mut found = Vec::new();
        while let Some(morsel) = scan.next().unwrap() {
            found.push(morsel().unwrap());
        }
        found
    };
    assert_eq!(read(None), [batches.clone(), batches.clone()].concat());
    for name in ["number", "text", "bytes", "flag", "fixed", "list", "map", "pair", "last"] {
        let wanted: Vec<RecordBatch> =
            batches.iter().map(|batch| select(batch, &names(&[name, "last"])).unwrap()).collect();
        let found: Vec<RecordBatch> = read(Some(&["last", name, "absent"]))
            .iter()
            .map(|batch| select(batch, &names(&[name, "last"])).unwrap())
            .collect();
        assert_eq!(found, [wanted.clone(), wanted].concat(), "{name}");
    }
    // A file that is cut off is an error, not a short result.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let mut scan = scan_files(&dir, [name.clone()], None);
    let mut batches = std::iter::from_fn(|| match scan.next() {
        Ok(morsel) => morsel.map(|morsel| morsel()),
        Err(error) => Some(Err(error)),
    });
    assert!(batches.any(|batch| batch.is_err()));
}
