//! `corpus.memory`: its value, and the budget of threads and rows that follows from it.

use crate::CorpusConfig;
use bessemer_units::Bytes;

/// Memory of the stage where none is stated.
const AUTO_MEMORY: usize = 512 << 20;
/// Memory of the program beside rows: its code, tables, and buffers of the files that it writes.
const PROGRAM_MEMORY: usize = 100 << 20;
/// Memory of the batches of a thread.
const THREAD_MEMORY: usize = 25 << 20;
/// Rows that stay in memory at least.
const LEAST_ROWS: usize = 16 << 20;
/// The smallest memory in which one thread can work.
const LEAST_MEMORY: usize = 144 << 20;

/// Threads and memory of the stages before training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageBudget {
    /// Worker threads, at most as many as were offered.
    pub threads: usize,
    /// Bytes of rows to hold in memory.
    pub row_bytes: usize,
}

impl CorpusConfig {
    /// Bytes that `memory` states; none for "auto".
    ///
    /// # Errors
    /// The text is no size, or one in which no thread could work.
    pub fn memory_bytes(&self) -> Result<Option<usize>, String> {
        let text = self.memory.trim();
        if text == "auto" {
            return Ok(None);
        }
        match text.parse::<Bytes>() {
            Ok(Bytes(bytes)) if (LEAST_MEMORY as u64..=1 << 50).contains(&bytes) => Ok(Some(bytes as usize)),
            _ => Err(format!(
                "corpus.memory = {text:?}: expected \"auto\" or a size of at least {}MiB, such as \"2GiB\" (the program takes about \
                 {} MiB and each thread {} MiB)",
                LEAST_MEMORY >> 20,
                PROGRAM_MEMORY >> 20,
                THREAD_MEMORY >> 20
            )),
        }
    }

    /// What the stage may use of `threads` threads within `memory`: what is left beside the program and the batches that its
    /// threads work on is for rows.
    ///
    /// # Errors
    /// The errors of [`CorpusConfig::memory_bytes`].
    pub fn budget(&self, threads: usize) -> Result<StageBudget, String> {
        let threads = threads.max(1);
        let wanted = PROGRAM_MEMORY + LEAST_ROWS + threads.saturating_mul(THREAD_MEMORY);
        let memory = self.memory_bytes()?.unwrap_or_else(|| wanted.max(AUTO_MEMORY));
        let fitting = memory.saturating_sub(PROGRAM_MEMORY + LEAST_ROWS) / THREAD_MEMORY;
        let threads = threads.min(fitting.max(1));
        Ok(StageBudget {
            threads,
            row_bytes: memory.saturating_sub(PROGRAM_MEMORY + threads * THREAD_MEMORY),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        let bytes = |text: &str| CorpusConfig { memory: text.into(), ..Default::default() }.memory_bytes();
        assert_eq!(bytes("2GiB"), Ok(Some(2 << 30)));
        assert_eq!(bytes("1.5 GB"), Ok(Some(1_500_000_000)));
        assert_eq!(bytes("268435456"), Ok(Some(256 << 20)));
        assert_eq!(bytes("auto"), Ok(None));
        assert!(bytes("-2GiB").is_err() && bytes("GiB").is_err() && bytes("infTiB").is_err());
        assert!(bytes("64MiB").unwrap_err().contains("at least 144MiB"));
    }

    #[test]
    fn threads_that_do_not_fit_into_the_stated_memory_do_not_work() {
        let budget = |text: &str, threads| {
            let config = CorpusConfig { memory: text.into(), ..Default::default() };
            let budget = config.budget(threads).unwrap();
            (budget.threads, budget.row_bytes >> 20)
        };
        assert_eq!(budget("144MiB", 8), (1, 19));
        assert_eq!(budget("256MiB", 8), (5, 31));
        assert_eq!(budget("2GiB", 8), (8, 1748));
        assert_eq!(budget("auto", 2), (2, 362));
        assert_eq!(budget("auto", 64), (64, 16), "what is not stated grows with the machine");
        for memory in 144..600 {
            let (threads, rows) = budget(&format!("{memory}MiB"), 12);
            assert!(100 + 25 * threads + rows <= memory && rows >= 15, "{memory}: {threads} {rows}");
        }
    }
}
