//! The switch on a UDP socket.

use super::aggregator::{Aggregator, SwitchCounts, SwitchMemory};
use super::packet::MOST_BYTES;
use bessemer_units::splitmix::unit;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a network does to packets, added by the server: for tests and measurements on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Injected {
    /// Time by which every answer is later.
    pub round_trip: Duration,
    /// Share of packets that are lost, in each direction.
    pub loss: f64,
    /// Share of packets that arrive at the switch twice.
    pub doubled: f64,
    /// Seed of the choice.
    pub seed: u64,
}

/// A switch that serves workers over UDP.
#[derive(Debug)]
pub struct SwitchServer {
    socket: UdpSocket,
    aggregator: Aggregator<SocketAddr>,
    injected: Injected,
    idle: Duration,
    began: Instant,
    packets: u64,
    /// Answers on their way, with the time at which they leave.
    delayed: VecDeque<(Duration, SocketAddr, Vec<u8>)>,
}

/// Longest sleep while answers are on their way.
const NAP: Duration = Duration::from_micros(100);
/// Time after which an idle server looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);

impl SwitchServer {
    /// A switch on a socket. A job from which nothing comes for `idle` loses its slots.
    pub fn new(socket: UdpSocket, memory: SwitchMemory, injected: Injected, idle: Duration) -> SwitchServer {
        SwitchServer {
            socket,
            aggregator: Aggregator::new(memory),
            injected,
            idle,
            began: Instant::now(),
            packets: 0,
            delayed: VecDeque::new(),
        }
    }

    /// Counts of the switch so far.
    pub fn counts(&self) -> SwitchCounts {
        self.aggregator.counts()
    }

    /// Jobs that have slots.
    pub fn jobs(&self) -> usize {
        self.aggregator.jobs()
    }

    /// Serves until `stop` is set, and what has arrived by then.
    ///
    /// # Errors
    /// Those of the socket, but for answers to workers that are gone.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let mut buffer = vec![0; MOST_BYTES];
        let mut answers = Vec::new();
        let mut expired = Duration::ZERO;
        let mut stopping: Option<Instant> = None;
        self.socket.set_read_timeout(Some(LOOK))?;
        loop {
            if stop.load(Ordering::Relaxed) && stopping.is_none() {
                stopping = Some(Instant::now());
            }
            let received = self.receive(&mut buffer, stopping.is_none())?;
            if stopping.is_some_and(|since| received.is_none() || since.elapsed() > LOOK) {
                return Ok(());
            }
            let now = self.began.elapsed();
            if let Some((length, from)) = received {
                let copies = u32::from(!self.strikes(self.injected.loss))
                    * (1 + u32::from(self.strikes(self.injected.doubled)));
                for _ in 0..copies {
                    self.aggregator.receive(from, &buffer[..length], now, &mut answers);
                }
                for (to, bytes) in answers.drain(..) {
                    self.packets += 1;
                    if !chosen(self.injected.seed, self.packets, self.injected.loss) {
                        self.delayed.push_back((now + self.injected.round_trip, to, bytes));
                    }
                }
            }
            self.send_due()?;
            if now > expired + self.idle / 4 {
                expired = now;
                self.aggregator.expire(now.saturating_sub(self.idle));
            }
        }
    }

    /// Decides over the next packet.
    fn strikes(&mut self, share: f64) -> bool {
        self.packets += 1;
        chosen(self.injected.seed, self.packets, share)
    }

    /// The next packet; `None` if none has come and something else is to be done.
    fn receive(&mut self, buffer: &mut [u8], serving: bool) -> Result<Option<(usize, SocketAddr)>, Error> {
        // A blocking read wakes up by the clock of the scheduler, far too late for answers that are to leave soon.
        let waits = serving && self.delayed.is_empty();
        self.socket.set_nonblocking(!waits)?;
        match self.socket.recv_from(buffer) {
            Ok(received) => Ok(Some(received)),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                if let Some((due, ..)) = self.delayed.front() {
                    std::thread::sleep(due.saturating_sub(self.began.elapsed()).min(NAP));
                }
                Ok(None)
            }
            // An answer to a socket that is closed comes back as an error of the next call.
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn send_due(&mut self) -> Result<(), Error> {
        while self.delayed.front().is_some_and(|(due, ..)| *due <= self.began.elapsed()) {
            let Some((_, to, bytes)) = self.delayed.pop_front() else { break };
            match self.socket.send_to(&bytes, to) {
                Ok(_) => {}
                // What cannot be sent is lost, and the worker asks again.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock
                            | ErrorKind::Interrupted
                            | ErrorKind::ConnectionRefused
                            | ErrorKind::ConnectionReset
                    ) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Whether packet number `packet` is among a share of all, by a hash.
fn chosen(seed: u64, packet: u64, share: f64) -> bool {
    share > 0.0 && unit(xxh3_64_with_seed(&packet.to_le_bytes(), seed)) < share
}
