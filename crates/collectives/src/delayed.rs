//! A link with latency and bandwidth, for tests of overlap and for models of time.

use crate::call::Call;
use crate::wrap::{Wrapped, Wrapper};
use crate::{Collective, CollectiveError, CollectiveKind, Communicator, Memory, Pattern};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Makes collectives take at least as long as a ring over such links takes:
///
/// ```text
/// t = steps * latency + bytes sent / bandwidth        steps: n - 1; all-reduce 2 (n - 1)
/// ```
/// counted from when the last rank has come: the ranks meet in a barrier before.
///
/// A message delays only who waits for it: it arrives `latency + bytes / bandwidth` after it was sent, or after the last
/// byte of the message before it in the group has left this rank. Both ends read the wall clock, so the clocks of several
/// machines must agree.
#[derive(Debug, Clone, Copy)]
pub struct Delayed {
    /// Latency of each step.
    pub latency: Duration,
    /// Bandwidth of each rank, in bytes per second.
    pub bandwidth: f64,
}

impl Delayed {
    /// Wraps a communicator that becomes as slow, with all groups made from it.
    pub fn wrap(self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, LinkEnd { link: self, free: Duration::ZERO })
    }

    fn time(&self, call: &Call<'_>, rank: usize, size: usize) -> Duration {
        let steps = match call.kind() {
            CollectiveKind::AllReduce => 2 * (size - 1),
            _ => size - 1,
        };
        // The last rank of a broadcast sends nothing and waits for the others.
        let volume = call.ring(rank, size);
        let bytes = volume.sent.max(volume.received);
        self.latency * steps as u32 + Duration::from_secs_f64(bytes as f64 / self.bandwidth)
    }
}

/// A rank's end of the link.
#[derive(Debug)]
struct LinkEnd {
    link: Delayed,
    /// Time at which the last message has left, since 1970.
    free: Duration,
}

impl Wrapper for LinkEnd {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        let call = Call::new(collective, &memory);
        if call.kind() == CollectiveKind::Send {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.free =
                self.free.max(now) + Duration::from_secs_f64(call.bytes() as f64 / self.link.bandwidth);
            let not_before = (self.free + self.link.latency).as_nanos() as u64;
            return inner.run(&Collective { not_before, ..*collective }, memory);
        }
        if call.kind() == CollectiveKind::Receive {
            return inner.run(collective, memory);
        }
        inner.run(&Collective::new(collective.name, Pattern::Barrier), Memory::Empty)?;
        let start = Instant::now();
        inner.run(collective, memory)?;
        let time = self.link.time(&call, inner.rank(), inner.size());
        std::thread::sleep(time.saturating_sub(start.elapsed()));
        Ok(())
    }

    fn for_group(&self) -> LinkEnd {
        LinkEnd { link: self.link, free: Duration::ZERO }
    }
}
