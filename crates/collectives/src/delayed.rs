//! A link with latency and bandwidth, for tests of overlap and for models of time.

use crate::call::Call;
use crate::wrap::{Around, Run, Wrapped};
use crate::{CollectiveError, Communicator, Kind};
use std::time::{Duration, Instant};

/// Makes calls take at least as long as a ring over such links takes:
///
/// ```text
/// t = steps * latency + bytes sent / bandwidth        steps: n - 1; all-reduce 2 (n - 1); a message 1
/// ```
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
        Wrapped::boxed(inner, self)
    }

    fn time(&self, call: &Call<'_>, rank: usize, size: usize) -> Duration {
        let steps = match call.kind {
            Kind::AllReduce => 2 * (size - 1),
            Kind::Send | Kind::Receive => 1,
            _ => size - 1,
        };
        // Who receives a message waits for it anyway; who is the last of a broadcast, for what the others send.
        let volume = call.ring(rank, size);
        let bytes = volume.sent.max(volume.received);
        self.latency * steps as u32 + Duration::from_secs_f64(bytes as f64 / self.bandwidth)
    }
}

impl Around for Delayed {
    fn around(
        &mut self,
        call: &Call<'_>,
        inner: &mut Box<dyn Communicator>,
        run: &mut Run<'_>,
    ) -> Result<(), CollectiveError> {
        let start = Instant::now();
        run(inner.as_mut())?;
        let time = self.time(call, inner.rank(), inner.size());
        std::thread::sleep(time.saturating_sub(start.elapsed()));
        Ok(())
    }

    fn of_group(&self, _: &dyn Communicator) -> Delayed {
        *self
    }
}
