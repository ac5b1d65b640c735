//! A worker on a UDP socket.

use super::packet::{MOST_BYTES, Packet, WorkerId};
use super::worker::{SlotWorker, WorkerCounts, WorkerSettings};
use crate::HostSliceMut;
use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How ranks reach a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchSettings {
    /// Address of the switch.
    pub address: SocketAddr,
    /// Slots that a job asks for.
    pub slots: u32,
    /// Values of a packet, at most those of a slot of the switch.
    pub values: u32,
    /// Time without an answer after which a packet is sent again.
    pub resend_after: Duration,
    /// Time without any progress after which a worker gives up.
    pub patience: Duration,
}

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The socket's error.
    #[error("socket to the switch at {address}: {source}")]
    Socket {
        /// Address of the switch.
        address: SocketAddr,
        /// The system's error.
        source: Error,
    },
    /// The switch does not serve the job.
    #[error("the switch at {address} refuses: {reason}")]
    Refused {
        /// Address of the switch.
        address: SocketAddr,
        /// Its reason.
        reason: String,
    },
    /// An answer that did not come for too long.
    #[error("no answer from the switch at {address} for {:.1} s: {what}", waited.as_secs_f64())]
    Silent {
        /// Address of the switch.
        address: SocketAddr,
        /// Time without progress.
        waited: Duration,
        /// Description of what was waited for.
        what: String,
    },
    /// Another thread ended the wait.
    #[error("broken off")]
    BrokenOff,
}

/// A worker of a job that has slots on a switch. Dropping it leaves the job.
#[derive(Debug)]
pub struct SwitchClient {
    settings: SwitchSettings,
    id: WorkerId,
    socket: UdpSocket,
    worker: SlotWorker,
    began: Instant,
    buffer: Vec<u8>,
}

/// Longest read after which a waiting worker looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// How often a worker says that it leaves before it goes without an answer.
const FAREWELLS: u32 = 5;

impl SwitchClient {
    /// Joins a job of `workers` workers; returns when the switch has granted slots, which it refuses while other jobs have them all.
    ///
    /// # Errors
    /// A socket that cannot be opened; a refusal, or no free slot for as long as the settings' patience.
    pub fn join(id: WorkerId, workers: u32, settings: &SwitchSettings) -> Result<SwitchClient, SwitchError> {
        let own: SocketAddr = match settings.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let address = settings.address;
        let failed = |source| SwitchError::Socket { address, source };
        let socket = UdpSocket::bind(own).map_err(failed)?;
        socket.connect(address).map_err(failed)?;
        let worker = WorkerSettings { workers, values: settings.values, resend_after: settings.resend_after };
        let mut client = SwitchClient {
            settings: *settings,
            id,
            socket,
            worker: SlotWorker::new(id, worker, 0),
            began: Instant::now(),
            buffer: vec![0; MOST_BYTES],
        };
        let join = Packet::Join { workers, slots: settings.slots, values: settings.values };
        let mut last = "it is unknown whether it runs".to_string();
        while client.began.elapsed() < settings.patience {
            client.send(join)?;
            let answer = client.receive(settings.resend_after.max(LOOK)).map_err(failed)?;
            match answer.and_then(|length| Packet::decode(&client.buffer[..length])).filter(|p| p.0 == id) {
                Some((_, Packet::Granted { slots })) => {
                    client.worker = SlotWorker::new(id, worker, slots);
                    return Ok(client);
                }
                Some((_, Packet::Refused { retry, reason })) => {
                    if !retry {
                        return Err(SwitchError::Refused { address, reason: reason.to_string() });
                    }
                    last = reason.to_string();
                    std::thread::sleep(settings.resend_after);
                }
                _ => {}
            }
        }
        Err(SwitchError::Silent { address, waited: client.began.elapsed(), what: format!("a join ({last})") })
    }

    /// Slots of the job.
    pub fn slots(&self) -> u32 {
        self.worker.slots()
    }

    /// Counts of the worker so far.
    pub fn counts(&self) -> WorkerCounts {
        self.worker.counts()
    }

    /// Replaces f32 or u32 values by their sum over all workers. `collective` differs between different collectives;
    /// `stopped` is asked now and then.
    ///
    /// # Errors
    /// A refusal, a failed socket, no progress for as long as the settings' patience.
    pub fn all_reduce<'a>(
        &'a mut self,
        values: impl Into<HostSliceMut<'a>>,
        collective: u32,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), SwitchError> {
        let SwitchClient { settings, socket, worker, began, buffer, .. } = self;
        let address = settings.address;
        let mut failed = None;
        let mut send = |packet: &[u8]| {
            if let Err(e) = socket.send(packet).or_else(lost) {
                failed = Some(e);
            }
        };
        let mut values = values.into();
        worker.begin(&values, collective, began.elapsed(), &mut send);
        let mut progress = began.elapsed();
        while worker.in_flight() > 0 {
            let now = began.elapsed();
            let due = worker.next_due().unwrap_or(now);
            let before = worker.counts().sums;
            if due <= now {
                worker.resend(&values, now, &mut send);
            } else if let Some(length) = receive(socket, buffer, due - now)
                .map_err(|source| SwitchError::Socket { address, source })?
            {
                worker
                    .receive(&mut values, &buffer[..length], began.elapsed(), &mut send)
                    .map_err(|reason| SwitchError::Refused { address, reason })?;
            }
            if worker.counts().sums > before {
                progress = began.elapsed();
            }
            let waited = began.elapsed().saturating_sub(progress);
            if waited > settings.patience {
                let what = format!(
                    "slots without a sum, because a worker or the switch does not send: {}",
                    worker.in_flight()
                );
                return Err(SwitchError::Silent { address, waited, what });
            }
            if stopped() {
                return Err(SwitchError::BrokenOff);
            }
        }
        match failed {
            Some(source) => Err(SwitchError::Socket { address, source }),
            None => Ok(()),
        }
    }

    fn send(&self, packet: Packet<'_>) -> Result<(), SwitchError> {
        let mut bytes = Vec::new();
        packet.encode(self.id, &mut bytes);
        let failed = |source| SwitchError::Socket { address: self.settings.address, source };
        self.socket.send(&bytes).or_else(lost).map(drop).map_err(failed)
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<usize>, Error> {
        receive(&self.socket, &mut self.buffer, wait)
    }
}

impl Drop for SwitchClient {
    fn drop(&mut self) {
        for _ in 0..FAREWELLS {
            let until = Instant::now() + self.settings.resend_after;
            if self.send(Packet::Leave).is_err() {
                return;
            }
            while let Some(wait) = until.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
            {
                let Ok(Some(length)) = self.receive(wait) else { continue };
                if matches!(Packet::decode(&self.buffer[..length]), Some((id, Packet::Left)) if id == self.id)
                {
                    return;
                }
            }
        }
    }
}

/// An error of a socket that only means that a packet was lost: a switch that does not run yet, or no more.
fn lost(e: Error) -> Result<usize, Error> {
    use ErrorKind::{ConnectionRefused, ConnectionReset, Interrupted, WouldBlock};
    match e.kind() {
        ConnectionRefused | ConnectionReset | Interrupted | WouldBlock => Ok(0),
        _ => Err(e),
    }
}

/// Waits for a packet; `None` if none has come in time.
fn receive(socket: &UdpSocket, buffer: &mut [u8], wait: Duration) -> Result<Option<usize>, Error> {
    socket.set_read_timeout(Some(wait.clamp(Duration::from_micros(1), LOOK)))?;
    match socket.recv(buffer) {
        Ok(length) => Ok(Some(length)),
        Err(e) if e.kind() == ErrorKind::TimedOut => Ok(None),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            // The switch is not there, which the system says at once.
            std::thread::sleep(wait.min(LOOK));
            Ok(None)
        }
        Err(e) => lost(e).map(|_| None),
    }
}
