//! Ranks for tests: each on a thread of its own.

use bessemer_collectives::{
    ChannelTransport, Communicator, MessageCommunicator, MessageSettings, ThreadCommunicator, ThreadSettings,
};
use half::bf16;
use std::sync::Arc;
use std::time::Duration;

/// What the ranks talk through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Threads,
    Messages,
}

pub(crate) const ENGINES: [Engine; 2] = [Engine::Threads, Engine::Messages];

/// A world whose ranks lose patience soon and show small pieces, so that short values take several rounds.
pub(crate) fn world(engine: Engine, ranks: usize, patience: Duration) -> Vec<Box<dyn Communicator>> {
    match engine {
        Engine::Threads => {
            let settings = ThreadSettings { patience, piece_bytes: 4096, ..ThreadSettings::default() };
            let boxed = |c| Box::new(c) as Box<dyn Communicator>;
            ThreadCommunicator::world("world", ranks, &settings).into_iter().map(boxed).collect()
        }
        Engine::Messages => {
            let settings = MessageSettings { patience, piece_bytes: 2048 };
            let over = |transport: ChannelTransport| -> Box<dyn Communicator> {
                Box::new(MessageCommunicator::world("world", Arc::new(transport), &settings))
            };
            ChannelTransport::world(ranks).into_iter().map(over).collect()
        }
    }
}

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Runs `work` on every rank; results by rank. A panicking rank is `None`.
pub(crate) fn on_each<C: Send, R: Send>(ranks: Vec<C>, work: impl Fn(C) -> R + Sync) -> Vec<Option<R>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks.into_iter().map(|c| scope.spawn(move || work(c))).collect();
        threads.into_iter().map(|t| t.join().ok()).collect()
    })
}

/// The same, where no rank may panic.
pub(crate) fn each<C: Send, R: Send>(ranks: Vec<C>, work: impl Fn(C) -> R + Sync) -> Vec<R> {
    on_each(ranks, work).into_iter().map(|r| r.expect("a rank panicked")).collect()
}

/// Values whose sum depends on its order: magnitudes over six decades.
pub(crate) fn values(seed: u64, rank: usize, len: usize) -> Vec<f32> {
    let mut state =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (rank as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40
    };
    let mut value = || {
        let mantissa = next() as f32 / (1u64 << 23) as f32 - 1.0;
        mantissa * 10f32.powi((next() % 7) as i32 - 3)
    };
    (0..len).map(|_| value()).collect()
}

pub(crate) fn narrow(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|v| bf16::from_f32(*v)).collect()
}

/// Bits, which unlike values compare as NaN and zero are.
pub(crate) fn bits<T: Bits>(values: &[T]) -> Vec<u32> {
    values.iter().map(|v| v.bits()).collect()
}

pub(crate) trait Bits: Copy {
    fn bits(self) -> u32;
}

impl Bits for f32 {
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Bits for bf16 {
    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}
