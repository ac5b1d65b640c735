//! Copies in peers' memory, made beside training (Gemini).
//!
//! ```text
//! training thread     a copy is complete in an own slot ─► PeerCopies::send
//! thread of this rank   header ─► pieces, a few on their way at a time ─► .. ─► every peer has answered the last piece: complete
//! thread of the peer    header: a slot is WRITING ─► pieces ─► hash compared, slot COMPLETE ─► answer
//! ```
//! A piece is sent when no collective of this rank is in flight and, by the last two steps, none begins before the piece has arrived (Gemini's idle spans,
//! of which a fifth is left because they vary), at most [`Pacing::patience`] later, and at the given rate. What a collective can wait for is the pieces on their way. What must never happen: the slot that is being sent is written to. Its rank makes the next copy in its other slot, and makes none
//! while one of all ranks is still on its way ([`PeerCopies::is_idle`], which the ranks must ask together), so that the copies
//! of one step are in all memories or the copies of the step before are.

use crate::message::{
    ArrivingCopy, PIECE, WORDS, from_words, header, piece, pieces, read_piece, received, to_words,
};
use crate::rate::TokenBucket;
use crate::slot::{CompleteCopy, Slot, SlotPair};
use crate::{MemoryError, Result};
use bessemer_collectives::{Communicator, InFlight};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pieces that are on their way to a peer at a time: those that travel while the answers to others come back.
const WINDOW: usize = 4;
/// Part of an idle span that is used, because spans vary (Gemini, section 5.3).
const DISCOUNT: f64 = 0.8;
/// Growth of the expected seconds of a piece with each one that takes longer: most of that is a thread that sleeps, not the network.
const GROWTH: f64 = 1.02;
/// How long a thread with nothing to do sleeps: what a peer's header may wait.
const NAP: Duration = Duration::from_millis(1);
/// How long a thread sleeps that waits for a piece, an answer or an idle network.
const SHORT_NAP: Duration = Duration::from_micros(100);

/// When pieces are sent.
#[derive(Debug, Clone)]
pub struct Pacing {
    /// Collectives of this rank's training.
    pub in_flight: InFlight,
    /// Longest time that a piece waits for an idle network.
    pub patience: Duration,
    /// Bytes a second; `None`: without a limit.
    pub rate: Option<f64>,
}

/// A rank of whose state this one holds copies.
#[derive(Debug)]
pub struct CopySource {
    /// The rank.
    pub rank: usize,
    /// Memory for them.
    pub pair: SlotPair,
}

/// Sums since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PeerTraffic {
    /// Copies that all peers have acknowledged.
    pub copies: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Pieces that were sent while a collective was in flight or about to begin, because patience had ended.
    pub impatient: u64,
}

#[derive(Debug, Default)]
struct Shared {
    /// Copies handed over and not acknowledged by all peers, and copies that arrive.
    busy: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
    traffic: Mutex<PeerTraffic>,
}

/// A copy that is to be sent.
type Outgoing = (Slot, CompleteCopy);

/// The thread of a rank that sends its copies and receives those of others. It ends when this is dropped.
#[derive(Debug)]
pub struct PeerCopies {
    in_flight: InFlight,
    shared: Arc<Shared>,
    commands: Option<Sender<Outgoing>>,
    thread: Option<JoinHandle<()>>,
}

impl PeerCopies {
    /// Starts the thread. `group` has all ranks and is used by nothing else; `peers` hold copies of this rank's state.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        group: Box<dyn Communicator>,
        peers: Vec<usize>,
        sources: Vec<CopySource>,
        pacing: Pacing,
    ) -> std::io::Result<PeerCopies> {
        let shared = Arc::new(Shared::default());
        let (commands, outgoing) = channel();
        let in_flight = pacing.in_flight.clone();
        let for_thread = Arc::clone(&shared);
        let run = move || {
            let mut group = group;
            let link = Link {
                group: &mut *group,
                shared: &for_thread,
                pacing: &pacing,
                bytes: vec![0; PIECE],
                piece: None,
            };
            if let Err(e) = link.run(&peers, &sources, &outgoing) {
                *for_thread.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
            }
        };
        let thread = std::thread::Builder::new().name("peer copies".into()).spawn(run)?;
        Ok(PeerCopies { in_flight, shared, commands: Some(commands), thread: Some(thread) })
    }

    /// Hands over a complete copy for all peers. The slot may not be written to until [`PeerCopies::is_idle`].
    pub fn send(&self, slot: Slot, copy: CompleteCopy) {
        self.shared.busy.fetch_add(1, Ordering::SeqCst);
        if let Some(commands) = &self.commands {
            // A thread that has failed takes none; `failure` says why.
            let _ = commands.send((slot, copy));
        }
    }

    /// A step of the training begins: its collectives come as those of the steps before.
    pub fn begin_step(&self) {
        self.in_flight.begin_step();
    }

    /// Whether all copies that were handed over are complete at all peers, and none is arriving.
    pub fn is_idle(&self) -> bool {
        self.shared.busy.load(Ordering::SeqCst) == 0
    }

    /// Why the thread has ended, if it has: copies of this rank's state are then no longer sent.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sums so far.
    pub fn traffic(&self) -> PeerTraffic {
        *self.shared.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PeerCopies {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Link<'a> {
    group: &'a mut dyn Communicator,
    shared: &'a Shared,
    pacing: &'a Pacing,
    bytes: Vec<u8>,
    /// Seconds that a piece occupies the network: about the least that were seen of late.
    piece: Option<f64>,
}

/// A copy on its way to one peer after the other.
struct Sending {
    slot: Slot,
    copy: CompleteCopy,
    /// Position in the list of peers.
    peer: usize,
    /// Number of the next piece.
    next: usize,
    /// When the pieces that have no answer were sent.
    unanswered: VecDeque<Instant>,
    /// When the last answer came.
    answered: Option<Instant>,
    /// Since when the next piece waits for an idle network.
    waits_since: Option<Instant>,
    /// When the bucket lets the next piece go.
    not_before: Instant,
    refused: bool,
}

impl Link<'_> {
    fn run(mut self, peers: &[usize], sources: &[CopySource], commands: &Receiver<Outgoing>) -> Result<()> {
        let begun = Instant::now();
        let rate = self.pacing.rate.unwrap_or(f64::INFINITY);
        let mut bucket = TokenBucket::new(rate.min(1e18), (WINDOW * PIECE) as f64);
        let mut arriving: Vec<Option<ArrivingCopy<'_>>> = sources.iter().map(|_| None).collect();
        let mut sending: Option<Sending> = None;
        while !self.shared.stop.load(Ordering::SeqCst) {
            let mut moved = false;
            for (source, arriving) in sources.iter().zip(&mut arriving) {
                moved |= self.receive(source, arriving)?;
            }
            if let Some(now) = &mut sending {
                moved |= self.send_piece(peers, now, &mut bucket, begun)?;
                if now.peer == peers.len() {
                    let done = sending.take().is_some_and(|done| !done.refused);
                    self.shared.traffic.lock().unwrap_or_else(PoisonError::into_inner).copies +=
                        u64::from(done);
                    self.shared.busy.fetch_sub(1, Ordering::SeqCst);
                }
            }
            let is_busy = sending.is_some() || arriving.iter().any(Option::is_some);
            let nap = match (moved, is_busy) {
                (true, _) => Duration::ZERO,
                (false, true) => SHORT_NAP,
                (false, false) => NAP,
            };
            match &sending {
                Some(_) => std::thread::sleep(nap),
                None => match commands.recv_timeout(nap) {
                    Ok((slot, copy)) => {
                        let not_before = Instant::now();
                        let (waits_since, refused) = (None, false);
                        sending = Some(Sending {
                            slot,
                            copy,
                            peer: 0,
                            next: 0,
                            unanswered: VecDeque::with_capacity(WINDOW),
                            answered: None,
                            waits_since,
                            not_before,
                            refused,
                        });
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                },
            }
        }
        Ok(())
    }

    /// Takes what has arrived of a source's copy; true if something has.
    fn receive<'a>(
        &mut self,
        source: &'a CopySource,
        arriving: &mut Option<ArrivingCopy<'a>>,
    ) -> Result<bool> {
        let from = source.rank;
        let Some(now) = arriving else {
            if !self.group.arrived(header(from))? {
                return Ok(false);
            }
            let mut words = [0u32; WORDS];
            self.group.receive(header(from), &mut words)?;
            self.shared.busy.fetch_add(1, Ordering::SeqCst);
            *arriving = Some(ArrivingCopy::begin(source.pair.next(), from_words(&words))?);
            return Ok(true);
        };
        if !self.group.arrived(piece(from))? {
            return Ok(false);
        }
        let here = &mut self.bytes[..now.next_length()];
        self.group.receive(piece(from), &mut *here)?;
        let mut answer = [1u32];
        if now.push(here)?
            && let Some(whole) = arriving.take()
        {
            // Bytes that were damaged on their way: the sender does not count this copy as complete.
            answer[0] = match whole.finish() {
                Ok(_) => 1,
                Err(MemoryError::Damaged { .. }) => 0,
                Err(e) => return Err(e),
            };
            self.shared.busy.fetch_sub(1, Ordering::SeqCst);
        }
        self.group.send(received(from), &answer)?;
        Ok(true)
    }

    /// Takes the answers of the present peer, and sends it the next piece if it may go.
    fn send_piece(
        &mut self,
        peers: &[usize],
        now: &mut Sending,
        bucket: &mut TokenBucket,
        begun: Instant,
    ) -> Result<bool> {
        let Some(&to) = peers.get(now.peer) else { return Ok(false) };
        let end = pieces(now.slot.key(), &now.copy);
        let mut moved = false;
        while !now.unanswered.is_empty() && self.group.arrived(received(to))? {
            let mut answer = [0u32];
            self.group.receive(received(to), &mut answer)?;
            now.refused |= answer[0] == 0;
            moved = true;
            let time = Instant::now();
            if let Some(sent) = now.unanswered.pop_front() {
                // The piece before was on its way until its answer came.
                let begun = now.answered.map_or(sent, |answered| answered.max(sent));
                let seconds = time.duration_since(begun).as_secs_f64();
                self.piece = Some(self.piece.map_or(seconds, |least| seconds.min(GROWTH * least)));
            }
            now.answered = Some(time);
        }
        if now.next == end {
            if now.unanswered.is_empty() {
                (now.peer, now.next) = (now.peer + 1, 0);
            }
            return Ok(moved);
        }
        let time = Instant::now();
        if now.unanswered.len() >= WINDOW || time < now.not_before {
            return Ok(moved);
        }
        let since = *now.waits_since.get_or_insert(time);
        let one = self.piece.unwrap_or(0.0);
        let seconds = (now.unanswered.len() + 1) as f64 * one;
        let fits = self.pacing.in_flight.idle().is_some_and(|span| {
            let Some(expected) = span.expected else { return true };
            let room = DISCOUNT * expected.as_secs_f64();
            // Where no span has room for a piece, one at a time goes all the same: it only gives way.
            span.since.elapsed().as_secs_f64() + seconds <= room || (room < one && now.unanswered.is_empty())
        });
        if !fits && time.duration_since(since) < self.pacing.patience {
            return Ok(moved);
        }
        if now.next == 0 {
            self.group.send(header(to), &to_words(&now.copy))?;
        }
        let here = read_piece(&now.slot, &now.copy, now.next, &mut self.bytes)?;
        self.group.send(piece(to), here)?;
        now.next += 1;
        now.unanswered.push_back(time);
        now.waits_since = None;
        if self.pacing.rate.is_some() {
            let wait = bucket.take(time.duration_since(begun).as_secs_f64(), here.len() as f64);
            now.not_before = time + Duration::from_secs_f64(wait);
        }
        let mut traffic = self.shared.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.bytes += here.len() as u64;
        traffic.impatient += u64::from(!fits);
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;
    use crate::{CHUNK, NOTES_ROOM, RankPlacement, SlotDirectory, SlotKey, receive_copy, send_copy};
    use bessemer_collectives::{ThreadCommunicator, ThreadSettings};

    const RANKS: usize = 5;

    fn key(rank: usize) -> SlotKey {
        let bytes = 3 * CHUNK as u64 + 1000 * rank as u64;
        SlotKey { run: 7, part: rank as u32, parts: RANKS as u32, layout: 1, bytes, notes: NOTES_ROOM }
    }

    fn state(rank: usize, step: u64) -> Vec<u8> {
        (0..key(rank).bytes).map(|i| (i * 31 + step * 7 + rank as u64) as u8).collect()
    }

    /// Runs `act` as every rank of a job, each with a directory of its own, as on hosts of their own.
    fn as_ranks(
        bases: &[tempfile::TempDir],
        act: &(dyn Fn(usize, Box<dyn Communicator>, SlotDirectory) + Sync),
    ) {
        let worlds = ThreadCommunicator::world("world", RANKS, &ThreadSettings::default());
        std::thread::scope(|scope| {
            for (rank, world) in worlds.into_iter().enumerate() {
                let directory = SlotDirectory::open(bases[rank].path(), 7, bases[rank].path()).unwrap();
                scope.spawn(move || act(rank, Box::new(world), directory));
            }
        });
    }

    fn write(slot: &Slot, rank: usize, step: u64) -> CompleteCopy {
        let writer = slot.begin(step, 1).unwrap();
        for (number, chunk) in state(rank, step).chunks(CHUNK).enumerate() {
            writer.write_chunk(number, chunk).unwrap();
        }
        writer.finish(format!("notes of {rank}").as_bytes()).unwrap()
    }

    /// Groups {0, 1} and the ring {2, 3, 4}: every rank's copies are complete in its peer's memory, and a rank that has lost its own
    /// memory gets them back.
    #[test]
    fn copies_reach_the_peers_and_come_back() {
        let bases: Vec<_> = (0..RANKS).map(|_| tempfile::tempdir().unwrap()).collect();
        let placement = RankPlacement::new(&[0, 1, 2, 3, 4], 2);
        as_ranks(&bases, &|rank, mut world, directory| {
            let all: Vec<usize> = (0..RANKS).collect();
            let group = world.group("copies", &all).unwrap();
            let source =
                |rank_of| CopySource { rank: rank_of, pair: directory.pair(rank, key(rank_of)).unwrap() };
            let sources = placement.sources(rank).into_iter().map(source).collect();
            let (patience, rate) = (Duration::from_millis(5), Some(1e9));
            let pacing = Pacing { in_flight: InFlight::new(), patience, rate };
            let peers = PeerCopies::start(group, placement.peers(rank), sources, pacing).unwrap();
            let own = directory.pair(rank, key(rank)).unwrap();
            for step in 1..=3 {
                let slot = own.next();
                let copy = write(slot, rank, step);
                peers.send(slot.try_clone().unwrap(), copy);
                while !peers.is_idle() {
                    assert_eq!(peers.failure(), None);
                    std::thread::sleep(NAP);
                }
                world.barrier("step").unwrap();
            }
            let traffic = peers.traffic();
            assert_eq!((traffic.copies, traffic.impatient), (3, 0));
            assert_eq!(traffic.bytes, 3 * (key(rank).bytes + 10));
            world.barrier("end").unwrap();
        });
        // Host 3 is lost.
        std::fs::remove_dir_all(bases[3].path()).unwrap();
        std::fs::create_dir(bases[3].path()).unwrap();
        as_ranks(&bases, &|rank, mut world, directory| {
            let found = directory.copies(key(3));
            assert_eq!(found.len(), if rank == 4 { 2 } else { 0 });
            if rank == 4 {
                let newest = found.iter().max_by_key(|found| found.copy.step).unwrap();
                newest.slot.verify(&newest.copy, 1).unwrap();
                send_copy(&mut *world, 3, &newest.slot, &newest.copy).unwrap();
            }
            if rank == 3 {
                let own = directory.pair(3, key(3)).unwrap();
                let copy = receive_copy(&mut *world, 4, own.next()).unwrap();
                assert_eq!(copy.step, 3);
                let slot = own.slots().iter().find(|slot| slot.complete() == Some(copy)).unwrap();
                slot.verify(&copy, 1).unwrap();
                let mut data = vec![0; key(3).bytes as usize];
                slot.read_at(&mut data, 0).unwrap();
                assert!(data == state(3, 3) && slot.notes(&copy).unwrap() == b"notes of 3");
            }
            world.barrier("end").unwrap();
        });
    }

    /// While a collective is in flight nothing is sent before patience ends.
    #[test]
    fn pieces_wait_for_collectives() {
        let bases: Vec<_> = (0..RANKS).map(|_| tempfile::tempdir().unwrap()).collect();
        // Rank 0 comes to the collective when the others have seen that nothing was sent.
        let seen = std::sync::Barrier::new(RANKS);
        as_ranks(&bases, &|rank, mut world, directory| {
            let all: Vec<usize> = (0..RANKS).collect();
            let group = world.group("copies", &all).unwrap();
            let in_flight = InFlight::new();
            let counted = in_flight.clone();
            let mut training = in_flight.wrap(world.group("training", &all).unwrap());
            let pacing = Pacing { in_flight, patience: Duration::from_secs(60), rate: None };
            let placement = RankPlacement::new(&[0, 1, 2, 3, 4], 2);
            let source = |of| CopySource { rank: of, pair: directory.pair(rank, key(of)).unwrap() };
            let sources = placement.sources(rank).into_iter().map(source).collect();
            let peers = PeerCopies::start(group, placement.peers(rank), sources, pacing).unwrap();
            let own = directory.pair(rank, key(rank)).unwrap();
            let sender = rank != 0;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if !sender {
                        seen.wait();
                    }
                    training.broadcast("values", 0, &mut [1.0f32][..]).unwrap();
                });
                if sender {
                    while counted.count() == 0 {
                        std::thread::sleep(NAP);
                    }
                    let copy = write(own.next(), rank, 1);
                    peers.send(own.slots()[0].try_clone().unwrap(), copy);
                    std::thread::sleep(Duration::from_millis(20));
                    assert_eq!(peers.traffic().bytes, 0, "rank {rank}");
                    seen.wait();
                }
            });
            while !peers.is_idle() {
                std::thread::sleep(NAP);
            }
            assert_eq!(peers.traffic().copies, u64::from(sender));
            assert_eq!(peers.traffic().impatient, 0);
            world.barrier("end").unwrap();
        });
    }
}
