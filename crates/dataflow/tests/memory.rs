//! What a sort holds beside the budget. Alone in its file: allocations of other tests would be counted too.

#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use bessemer_counting_alloc::{CountingAllocator, live_bytes, peak_bytes, reset_peak};
use bessemer_dataflow::*;
use bessemer_durable::ConfinedDir;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Rows with a number and a wide text, made while they are read.
struct WideRows {
    batches: u64,
    rows: u64,
    width: usize,
}

struct WideScan {
    rows: WideRows,
    next: u64,
}

impl Source for WideRows {
    fn describe(&self) -> String {
        "wide rows".into()
    }

    fn scan(&self) -> Result<Box<dyn Scan>> {
        let rows = WideRows { ..*self };
        Ok(Box::new(WideScan { rows, next: 0 }))
    }
}

impl Scan for WideScan {
    fn next(&mut self) -> Result<Option<Morsel>> {
        if self.next == self.rows.batches {
            return Ok(None);
        }
        let (from, rows, width) = (self.next * self.rows.rows, self.rows.rows, self.rows.width);
        self.next += 1;
        Ok(Some(Box::new(move || {
            let numbers: Vec<u64> =
                (from..from + rows).map(|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let texts: StringArray = numbers.iter().map(|_| Some("x".repeat(width))).collect();
            let columns: [(&str, ArrayRef); 2] =
                [("number", Arc::new(UInt64Array::from(numbers))), ("text", Arc::new(texts))];
            Ok(RecordBatch::try_from_iter(columns)?)
        })))
    }
}

/// Checks the order and counts the rows.
#[derive(Default)]
struct Ordered {
    last: u64,
    rows: u64,
}

impl Sink for Ordered {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let numbers: &UInt64Array = column("sink", batch, "number")?;
        for &number in numbers.values() {
            assert!(number >= self.last);
            self.last = number;
            self.rows += 1;
        }
        Ok(())
    }
}

#[test]
fn a_sort_of_wide_rows_stays_near_the_budget() {
    const BUDGET: usize = 16 << 20;
    // 256 MiB: the merge of their runs once held most of it.
    let (batches, rows, width) = (256, 32, 32 << 10);
    let spill = tempfile::TempDir::new().unwrap();
    let stop = AtomicBool::new(false);
    for threads in [1, 2] {
        let executor =
            Executor::new(threads, BUDGET, &ConfinedDir::open(spill.path()).unwrap(), &stop, &|| {});
        let by = vec!["number".to_string()];
        let plan =
            Plan { source: Arc::new(WideRows { batches, rows, width }), stages: vec![Stage::Sort { by }] };
        let mut sink = Ordered::default();
        let before = live_bytes();
        reset_peak();
        executor.run(&plan, &mut sink).unwrap();
        assert_eq!(sink.rows, batches * rows);
        assert!(executor.spilled_bytes() > 200 << 20);
        // Beside the budget lie a run of an eighth of it, twice while it is sorted, and batches ahead of the consumer.
        let peak = peak_bytes() - before;
        assert!(peak < (BUDGET + (8 << 20)) as u64, "{} MiB with {threads} threads", peak >> 20);
    }
}
