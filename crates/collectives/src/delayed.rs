//! A link with latency and bandwidth, for tests of overlap and for models of time.

use crate::call::Call;
use crate::wrap::{Around, Run, Wrapped};
use crate::{CollectiveError, Communicator, Kind, Message};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Makes collectives take at least as long as a ring over such links takes:
///
/// ```text
/// t = steps * latency + bytes sent / bandwidth        steps: n - 1; all-reduce 2 (n - 1)
/// ```
/// A message delays nobody who does not wait for it: it arrives `latency + bytes / bandwidth` after it was sent, or after
/// the last byte of the message that this rank sent before it in the group has left. Both ends read the clock of the day, so
/// ranks on several machines need theirs to agree.
#[derive(Debug, Clone, Copy)]
pub struct Delayed {
    /// Of each step.
    pub latency: Duration,
    /// Bytes per second that a rank sends.
    pub bandwidth: f64,
}

impl Delayed {
    /// A communicator that is as slow, and so are groups made from it.
    pub fn wrap(self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, Line { link: self, free: Duration::ZERO })
    }

    fn time(&self, call: &Call<'_>, rank: usize, size: usize) -> Duration {
        let steps = match call.kind {
            Kind::AllReduce => 2 * (size - 1),
            Kind::Send | Kind::Receive => return Duration::ZERO,
            _ => size - 1,
        };
        // Who is the last of a broadcast waits for what the others send.
        let volume = call.ring(rank, size);
        let bytes = volume.sent.max(volume.received);
        self.latency * steps as u32 + Duration::from_secs_f64(bytes as f64 / self.bandwidth)
    }
}

/// A rank's end of the link.
#[derive(Debug)]
struct Line {
    link: Delayed,
    /// When the last message has left, since 1970.
    free: Duration,
}

impl Around for Line {
    fn around(
        &mut self,
        call: &Call<'_>,
        inner: &mut Box<dyn Communicator>,
        run: &mut Run<'_>,
    ) -> Result<(), CollectiveError> {
        let start = Instant::now();
        run(inner.as_mut())?;
        let time = self.link.time(call, inner.rank(), inner.size());
        std::thread::sleep(time.saturating_sub(start.elapsed()));
        Ok(())
    }

    fn address<'a>(&mut self, message: Message<'a>, bytes: u64) -> Message<'a> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.free = self.free.max(now) + Duration::from_secs_f64(bytes as f64 / self.link.bandwidth);
        Message { not_before: (self.free + self.link.latency).as_nanos() as u64, ..message }
    }

    fn of_group(&self, _: &dyn Communicator) -> Line {
        Line { link: self.link, free: Duration::ZERO }
    }
}
