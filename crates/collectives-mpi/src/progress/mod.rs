//! The progress thread, which owns MPI: it moves messages and watches the other ranks.

mod peer;
mod shutdown;
#[cfg(test)]
mod tests;
mod watch;

use crate::MpiError;
use crate::engine::{Arrival, Engine, Fault, Lane};
use crate::exchange::{Command, Exchange};
use crate::marks;
use crate::wire::{ControlKind, HEADER, Header, INLINE, notice, read_notice};
use bessemer_collectives::TransportError;
use bessemer_supervise::ProcessIdentity;
use peer::{Due, Peer};
use shutdown::Exit;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time without news after which the thread sleeps between polls while something is awaited.
const SPIN: Duration = Duration::from_micros(100);
/// Most control messages taken in one round.
const TAKEN: usize = 64;
/// Most long messages to one rank that the engine has at once.
const ON_THEIR_WAY: usize = 4;

/// State of the thread.
pub(crate) struct ProgressThread<E: Engine> {
    engine: E,
    own: ProcessIdentity,
    exchange: Arc<Exchange>,
    silence: Duration,
    peers: Vec<Peer<E>>,
    exit: Exit,
    /// Copy of whether the exchange is broken.
    broken: bool,
    /// Commands that are being carried out.
    commands: VecDeque<Command>,
    looked: Instant,
    checked: Instant,
    idle_since: Option<Instant>,
}

impl<E: Engine> ProgressThread<E> {
    pub(crate) fn new(
        engine: E,
        own: ProcessIdentity,
        exchange: Arc<Exchange>,
        silence: Duration,
    ) -> ProgressThread<E> {
        let now = Instant::now();
        let (rank, size) = (engine.rank(), engine.size());
        {
            let mut state = exchange.lock();
            state.done = vec![false; size];
            state.here = vec![None; size];
            state.here[rank] = Some(own.to_string());
        }
        ProgressThread {
            peers: (0..size).map(|_| Peer::new(now)).collect(),
            engine,
            own,
            exchange,
            silence,
            exit: Exit::No,
            broken: false,
            commands: VecDeque::new(),
            looked: now,
            checked: now,
            idle_since: None,
        }
    }

    /// Ranks other than this one.
    fn others(&self) -> impl Iterator<Item = usize> + use<E> {
        let own = self.engine.rank();
        (0..self.peers.len()).filter(move |r| *r != own)
    }

    /// Runs until the world ends or is given up.
    pub(crate) fn run(mut self) -> Result<(), MpiError> {
        let hello = self.own.to_bytes();
        for rank in self.others() {
            self.notify(rank, ControlKind::Hello, &hello);
        }
        loop {
            self.exchange.beat_pulse();
            let now = Instant::now();
            let mut busy = self.take_commands();
            busy |= self.take_control(now);
            for rank in self.others() {
                busy |= self.land(rank, now);
                busy |= self.push(rank);
            }
            self.watch(now);
            if let Some(end) = self.step_out(now) {
                return match end {
                    Ok(()) => self.engine.finalize().map_err(|f| MpiError::Finalize(f.to_string())),
                    Err(()) => Ok(()),
                };
            }
            self.rest(busy);
        }
    }

    /// Makes the world unusable with its first error, and notifies the others.
    fn break_world(&mut self, error: TransportError) {
        if std::mem::replace(&mut self.broken, true) {
            return;
        }
        let body = {
            let mut state = self.exchange.lock();
            let first = state.broken.get_or_insert(error);
            match &*first {
                TransportError::PeerLost { peer, problem } => notice(*peer, problem),
                other => notice(self.engine.rank(), &other.to_string()),
            }
        };
        self.exchange.announce();
        for rank in self.others() {
            if !self.peers[rank].left {
                self.notify(rank, ControlKind::GiveUp, &body);
            }
        }
    }

    /// Gives up a rank, and the world with it.
    fn lose(&mut self, rank: usize, problem: &str) {
        let peer = &mut self.peers[rank];
        peer.lost = true;
        let who = peer.name(rank);
        self.break_world(TransportError::PeerLost { peer: rank, problem: format!("{who}: {problem}") });
    }

    /// Handles a failed call for this rank.
    fn fault(&mut self, rank: usize, fault: &Fault) {
        if !self.peers[rank].lost && !self.peers[rank].left {
            self.lose(rank, &format!("MPI fails: {fault}"));
        }
    }

    fn take_commands(&mut self) -> bool {
        std::mem::swap(&mut self.exchange.lock().commands, &mut self.commands);
        let some = !self.commands.is_empty();
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Send { to, channel, message } => self.dispatch(to, channel, message),
                Command::Finish if self.exit == Exit::No => self.exit = Exit::Asked,
                Command::Finish => {}
                Command::GiveUp(why) => {
                    self.break_world(TransportError::Engine(why));
                    self.exit = Exit::GivenUp(Instant::now());
                }
            }
        }
        some
    }

    /// Sends a control message that has no number.
    fn notify(&mut self, rank: usize, kind: ControlKind, body: &[u8]) {
        self.control(rank, &Header { length: body.len() as u64, ..Header::bare(kind) }, body);
    }

    fn control(&mut self, rank: usize, header: &Header, body: &[u8]) {
        if self.peers[rank].lost {
            return;
        }
        let Ok(mut message) = self.exchange.take(HEADER + body.len()) else {
            return self.lose(rank, "there is no memory for a message to it");
        };
        header.write(body, &mut message);
        match self.engine.send(rank, Lane::Control, message) {
            Ok(out) => self.peers[rank].small.push_back(out),
            Err(fault) => self.fault(rank, &fault),
        }
    }

    fn dispatch(&mut self, to: usize, channel: u32, message: Vec<u8>) {
        let number = self.peers[to].sent;
        self.peers[to].sent += 1;
        let length = message.len() as u64;
        if message.len() <= INLINE {
            self.control(to, &Header { kind: ControlKind::Short, channel, number, length }, &message);
            self.exchange.give(message);
        } else {
            self.control(to, &Header { kind: ControlKind::Long, channel, number, length }, &[]);
            self.peers[to].payloads.push_back(message);
        }
    }

    /// Advances the outgoing messages to a rank.
    fn push(&mut self, rank: usize) -> bool {
        let mut busy = false;
        if self.peers[rank].lost {
            return false;
        }
        // Each control message is polled on its own: a long one does not hold up those behind it.
        for _ in 0..self.peers[rank].small.len() {
            let Some(mut out) = self.peers[rank].small.pop_front() else { break };
            match self.engine.poll_send(&mut out) {
                Ok(Some(buffer)) => {
                    busy = true;
                    self.exchange.give(buffer);
                }
                Ok(None) => self.peers[rank].small.push_back(out),
                Err(fault) => self.fault(rank, &fault),
            }
        }
        while let Some(out) = self.peers[rank].sending.front_mut() {
            match self.engine.poll_send(out) {
                Ok(Some(buffer)) => {
                    busy = true;
                    self.peers[rank].sending.pop_front();
                    self.exchange.give(buffer);
                }
                Ok(None) => break,
                Err(fault) => {
                    self.fault(rank, &fault);
                    return busy;
                }
            }
        }
        // They start in their order, and only few at once, so that MPI's own buffers stay small.
        while self.peers[rank].sending.len() < ON_THEIR_WAY
            && self.peers[rank].sending.back().is_none_or(E::handed_over)
            && let Some(message) = self.peers[rank].payloads.pop_front()
        {
            busy = true;
            match self.engine.send(rank, Lane::Payload, message) {
                Ok(out) => self.peers[rank].sending.push_back(out),
                Err(fault) => {
                    self.fault(rank, &fault);
                    return busy;
                }
            }
        }
        busy
    }

    /// Begins to receive what other ranks have sent on the control lane.
    fn take_control(&mut self, now: Instant) -> bool {
        for taken in 0..TAKEN {
            match self.engine.probe() {
                Ok(Some((from, length))) => {
                    // A length that no control message has is refused when it is read.
                    match self.exchange.take(length.min(HEADER + INLINE + 1)) {
                        Ok(mut buffer) => {
                            // An engine that calls it received without writing it must not show an old message.
                            let head = buffer.len().min(HEADER);
                            buffer[..head].fill(0);
                            match self.engine.receive(from, Lane::Control, buffer) {
                                Ok(incoming) => self.peers[from].control.push_back(incoming),
                                Err(fault) => self.fault(from, &fault),
                            }
                        }
                        Err(problem) => self.lose(from, &problem),
                    }
                    self.peers[from].heard = now;
                }
                Ok(None) => return taken > 0,
                Err(fault) => {
                    self.break_world(TransportError::Engine(fault.to_string()));
                    return false;
                }
            }
        }
        true
    }

    /// Advances the incoming messages of a rank.
    fn land(&mut self, rank: usize, now: Instant) -> bool {
        let mut busy = false;
        while let Some(incoming) = self.peers[rank].control.front_mut() {
            match self.engine.poll_receive(incoming) {
                Ok(Arrival::Whole(message)) => {
                    self.peers[rank].control.pop_front();
                    busy = true;
                    if let Err(problem) = self.read(rank, &message) {
                        self.lose(
                            rank,
                            &format!("its message of {} bytes is refused: {problem}", message.len()),
                        );
                    }
                    self.exchange.give(message);
                }
                Ok(_) => break,
                Err(fault) => {
                    self.peers[rank].control.pop_front();
                    self.fault(rank, &fault);
                }
            }
        }
        for at in 0..self.peers[rank].due.len() {
            let Due { body, incoming, number, .. } = &mut self.peers[rank].due[at];
            let Some(flying) = incoming else { continue };
            match self.engine.poll_receive(flying) {
                Ok(Arrival::Whole(message)) => {
                    if let Some(at) = marks::left(&message, rank, *number) {
                        let length = message.len();
                        let problem = format!(
                            "MPI called a message of {length} bytes received, but did not write byte {at}"
                        );
                        self.lose(rank, &problem);
                        break;
                    }
                    *body = message;
                    *incoming = None;
                    self.peers[rank].heard = now;
                    busy = true;
                }
                Ok(Arrival::Piece) => {
                    self.peers[rank].heard = now;
                    busy = true;
                    break;
                }
                // Pieces come in order, so nothing behind this one is here either.
                Ok(Arrival::Nothing) => break,
                Err(fault) => {
                    self.fault(rank, &fault);
                    break;
                }
            }
        }
        self.deliver(rank);
        busy
    }

    /// Hands over whole messages, in the order in which they were sent.
    fn deliver(&mut self, rank: usize) {
        let peer = &mut self.peers[rank];
        let whole = peer.due.iter().take_while(|d| d.incoming.is_none()).count();
        let ends = peer.done && !peer.reported && whole == peer.due.len();
        if whole == 0 && !ends {
            return;
        }
        let mut state = self.exchange.lock();
        for due in peer.due.drain(..whole) {
            state.inbox.entry((rank, due.channel)).or_default().push_back(due.body);
        }
        if ends {
            peer.reported = true;
            state.done[rank] = true;
        }
        drop(state);
        self.exchange.announce();
    }

    /// Handles a control message.
    fn read(&mut self, rank: usize, message: &[u8]) -> Result<(), String> {
        let (header, body) = Header::read(message)?;
        if self.peers[rank].lost {
            return Ok(());
        }
        match header.kind {
            ControlKind::Beat => {}
            ControlKind::Hello => {
                let who = ProcessIdentity::from_bytes(body).ok_or(
                    "its first message does not identify the \
                                                                   process",
                )?;
                if who.version != self.own.version {
                    let (theirs, ours) = (&who.version, &self.own.version);
                    return Err(format!("it is of version {theirs}, this rank of {ours}"));
                }
                self.exchange.lock().here[rank] = Some(who.to_string());
                self.peers[rank].who = Some(who);
                self.exchange.announce();
            }
            ControlKind::Short | ControlKind::Long => {
                let expected = self.peers[rank].received;
                if header.number != expected {
                    return Err(format!("it is number {}, due was number {expected}", header.number));
                }
                self.peers[rank].received += 1;
                self.expect(rank, &header, body)?;
            }
            // Waiting threads see it once everything before it has been handed over.
            ControlKind::Done => self.peers[rank].done = true,
            ControlKind::Leave => self.peers[rank].left = true,
            ControlKind::GiveUp => self.hear_notice(rank, body)?,
        }
        Ok(())
    }

    /// Queues an announced message; starts to receive a long one.
    fn expect(&mut self, rank: usize, header: &Header, body: &[u8]) -> Result<(), String> {
        let (body, incoming) = if header.kind == ControlKind::Short {
            let mut own = self.exchange.take(body.len())?;
            own.copy_from_slice(body);
            (own, None)
        } else {
            let mut buffer = self.exchange.take(header.length as usize)?;
            marks::set(&mut buffer, rank, header.number);
            match self.engine.receive(rank, Lane::Payload, buffer) {
                Ok(incoming) => (Vec::new(), Some(incoming)),
                Err(fault) => return Err(fault.to_string()),
            }
        };
        self.peers[rank].due.push_back(Due {
            channel: header.channel,
            number: header.number,
            body,
            incoming,
        });
        Ok(())
    }

    /// Handles the notice of a rank that gives up.
    fn hear_notice(&mut self, rank: usize, body: &[u8]) -> Result<(), String> {
        let Some((culprit, text)) = read_notice(body) else {
            return Err("its notice cannot be read".to_owned());
        };
        if culprit >= self.peers.len() {
            return Err(format!("it blames rank {culprit} of {}", self.peers.len()));
        }
        // That rank ends now, which is no further error.
        self.peers[rank].left = true;
        let who = self.peers[rank].name(rank);
        self.break_world(if culprit == rank {
            TransportError::PeerLost { peer: rank, problem: format!("{who}: it gave up: {text}") }
        } else if culprit == self.engine.rank() {
            TransportError::Engine(format!(
                "{who} and the ranks that it notified treat this rank as lost: \
                                            {text}"
            ))
        } else {
            TransportError::PeerLost { peer: culprit, problem: format!("{text} (noticed by rank {rank})") }
        });
        Ok(())
    }

    /// Pauses if nothing happened: briefly if something is awaited, else until a command comes or a millisecond has passed,
    /// so that the computation keeps its cores.
    fn rest(&mut self, busy: bool) {
        if busy {
            self.idle_since = None;
            return;
        }
        let now = Instant::now();
        let idle = now.duration_since(*self.idle_since.get_or_insert(now));
        let awaited = self.exit != Exit::No
            || self.peers.iter().any(|p| !p.sending.is_empty() || !p.due.is_empty())
            || self.exchange.lock().waiting > 0;
        if !awaited {
            std::thread::park_timeout(Duration::from_millis(1));
        } else if idle < SPIN {
            std::thread::yield_now();
        } else if idle < 20 * SPIN {
            std::thread::park_timeout(Duration::from_micros(20));
        } else {
            std::thread::park_timeout(Duration::from_micros(200));
        }
    }
}
