//! Collectives over messages between pairs of ranks.
//!
//! Every collective is a few steps; in each, every rank sends one frame to every other, perhaps an empty one, and takes
//! one from every other. So at most four frames wait in each direction of a pair, every rank sees every other rank's
//! call, and a lost or stale frame is noticed. Sums are formed in the order of the ranks by the rank that owns the part: the bits are those
//! of [`crate::ThreadCommunicator`]. Frames and states: the README of this crate.

mod frame;
mod p2p;
mod steps;

use crate::call::{Call, Signature};
use crate::engine::Engine;
use crate::error::CallSite;
use crate::{
    Breaker, Collective, CollectiveError, CollectiveKind, Communicator, Memory, Message, Pattern, Transport,
    TransportError,
};
use frame::Header;
use p2p::P2pQueue;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Settings of a message communicator.
#[derive(Debug, Clone)]
pub struct MessageSettings {
    /// Time that a rank waits for others before it gives up.
    pub patience: Duration,
    /// Bytes of values in a frame.
    pub piece_bytes: usize,
}

impl Default for MessageSettings {
    fn default() -> MessageSettings {
        MessageSettings { patience: Duration::from_secs(600), piece_bytes: 1 << 20 }
    }
}

/// Interval at which a waiting rank looks whether another of its threads ended the group.
const LOOK: Duration = Duration::from_millis(50);

/// Last frame of a peer.
#[derive(Debug, Clone, Default)]
struct LastFrame {
    sequence: u64,
    step: u32,
    call: String,
}

/// Communicator of one rank whose collectives are sent as messages over a [`Transport`].
#[derive(Debug)]
pub struct MessageCommunicator {
    transport: Arc<dyn Transport>,
    settings: MessageSettings,
    label: String,
    /// Ranks of the transport, by position.
    members: Vec<usize>,
    rank: usize,
    /// Hash of how the group came to be, the same on every member.
    id: u64,
    /// Channels in use on this rank, and by which group.
    channels: Arc<Mutex<HashMap<u32, String>>>,
    sequence: u64,
    /// Number of messages sent to each peer.
    sent: Vec<u64>,
    /// Messages from each peer.
    p2p: Vec<P2pQueue>,
    last_frames: Vec<LastFrame>,
    failed: Option<CollectiveError>,
    broken: Arc<Mutex<Option<String>>>,
    groups: HashMap<(String, Vec<usize>), u64>,
    /// Accumulator of the part that this rank reduces ([`crate::reduce`]).
    sums: Vec<u32>,
}

impl MessageCommunicator {
    /// Makes the communicator of all ranks of the transport, which no other communicator uses. Sends no message.
    pub fn world(
        label: &str,
        transport: Arc<dyn Transport>,
        settings: &MessageSettings,
    ) -> MessageCommunicator {
        let (rank, members) = (transport.rank(), (0..transport.size()).collect());
        let channels = HashMap::from([(0, label.to_string()), (1, label.to_string())]);
        let channels = Arc::new(Mutex::new(channels));
        MessageCommunicator::of(transport, settings.clone(), label, members, rank, 0, channels)
    }

    /// Sets the time that this rank waits for others from now on, here and in groups that it makes from now on.
    pub fn set_patience(&mut self, patience: Duration) {
        self.settings.patience = patience;
    }

    fn of(
        transport: Arc<dyn Transport>,
        settings: MessageSettings,
        label: &str,
        members: Vec<usize>,
        rank: usize,
        id: u64,
        channels: Arc<Mutex<HashMap<u32, String>>>,
    ) -> MessageCommunicator {
        let size = members.len();
        MessageCommunicator {
            transport,
            settings,
            label: label.into(),
            members,
            rank,
            id,
            channels,
            sequence: 0,
            sent: vec![0; size],
            p2p: std::iter::repeat_with(P2pQueue::default).take(size).collect(),
            last_frames: vec![LastFrame::default(); size],
            failed: None,
            broken: Arc::default(),
            groups: HashMap::new(),
            sums: Vec::new(),
        }
    }

    /// Channels of the group with this id: that of its collectives, and that of its messages.
    fn channels_of(id: u64) -> [u32; 2] {
        // The world has the first two.
        if id == 0 { [0, 1] } else { [id as u32 & !1, id as u32 | 1] }
    }

    fn unbroken(&self, call: &Call<'_>) -> Result<(), CollectiveError> {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match broken {
            None => Ok(()),
            Some(problem) => {
                let site = call.site(&self.label, self.rank);
                Err(CollectiveError::BrokenOff { site, problem: problem.into() })
            }
        }
    }

    /// Tells every peer that no frame will follow, and why.
    fn send_shutdown(&mut self, blame: usize, why: &str) {
        let mut signature = Call::look(&Collective::new("", Pattern::Barrier)).signature();
        signature.root = blame as u32;
        for (messages, channel) in MessageCommunicator::channels_of(self.id).into_iter().enumerate() {
            for peer in (0..self.members.len()).filter(|p| *p != self.rank) {
                let sequence = if messages == 1 { self.sent[peer] } else { self.sequence };
                let sender = self.rank as u32;
                let (step, tag, not_before) = (0, 0, 0);
                let header =
                    Header { shutdown: true, signature, channel, sender, sequence, step, tag, not_before };
                let mut bytes = Vec::new();
                frame::write(&header, "", &mut bytes, why.as_bytes());
                // Whoever cannot be told is gone, or will notice by itself.
                let _ = self.transport.send(self.members[peer], channel, bytes);
            }
        }
    }

    fn transport_error(&self, call: &Call<'_>, error: TransportError) -> CollectiveError {
        let site = call.site(&self.label, self.rank);
        match error {
            TransportError::PeerLost { peer, problem } => {
                let peer = self.members.iter().position(|m| *m == peer).unwrap_or(peer);
                CollectiveError::PeerLost { site, peer, problem: problem.into() }
            }
            other => CollectiveError::Engine { site, problem: other.to_string().into() },
        }
    }

    /// Sends one frame. A first frame carries the name of the call.
    fn post(
        &mut self,
        call: &Call<'_>,
        to: usize,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), CollectiveError> {
        let name = if header.step == 0 { call.name } else { "" };
        let mut bytes = self.transport.buffer(frame::HEADER + name.len() + payload.len());
        frame::write(header, name, &mut bytes, payload);
        let sent = self.transport.send(self.members[to], header.channel, bytes);
        sent.map_err(|e| self.transport_error(call, e))
    }

    /// Header of a frame of the current collective.
    fn header(&self, signature: Signature, step: u32) -> Header {
        let [channel, _] = MessageCommunicator::channels_of(self.id);
        let (sender, sequence) = (self.rank as u32, self.sequence);
        Header { shutdown: false, signature, channel, sender, sequence, step, tag: 0, not_before: 0 }
    }

    /// Takes the next frame of a rank, which must be this one; `work` gets its values.
    fn take(
        &mut self,
        call: &Call<'_>,
        wanted: Signature,
        (from, channel, sequence, step): (usize, u32, u64, u32),
        work: impl FnOnce(&mut [u32], &[u8]) -> Result<(), String>,
    ) -> Result<(), CollectiveError> {
        let bytes = self.wait(call, from, channel)?;
        let header = self.admit(call, (from, channel, sequence, step), &bytes)?;
        if header.signature != wanted {
            let mut there = header.signature.describe(&self.last_frames[from].call);
            if (header.signature.kind, wanted.kind) == (call.kind(), call.kind())
                && header.signature.name == wanted.name
                && header.signature.element == wanted.element
                && call.kind() == CollectiveKind::AllToAll
            {
                let (sent, expected, rank) = (header.signature.len, wanted.len, self.rank);
                there += &format!(
                    ", where rank {from} sends {sent} elements to rank {rank}, which expects {expected}"
                );
            }
            let site = call.site(&self.label, self.rank);
            return Err(CollectiveError::Mismatch { site, peer: from, there: there.into() });
        }
        work(&mut self.sums, frame::parts(&bytes).1).map_err(|problem| {
            let (site, problem) = (call.site(&self.label, self.rank), problem.into());
            CollectiveError::Engine { site, problem }
        })?;
        self.transport.keep(bytes);
        Ok(())
    }

    /// Reads a frame, which must be this one and no shutdown.
    fn admit(
        &mut self,
        call: &Call<'_>,
        (from, channel, sequence, step): (usize, u32, u64, u32),
        bytes: &[u8],
    ) -> Result<Header, CollectiveError> {
        let site = || call.site(&self.label, self.rank);
        let engine = |problem: String| CollectiveError::Engine {
            site: site(),
            problem: format!("from rank {from} came {problem}").into(),
        };
        let frame = frame::read(bytes).map_err(engine)?;
        let header = frame.header;
        if header.channel != channel || header.sender as usize != from {
            let (c, s) = (header.channel, header.sender);
            return Err(engine(format!("a frame of rank {s} on channel {c:#x}, not on {channel:#x}")));
        }
        if header.shutdown {
            let (blame, problem) = (header.signature.root as usize, String::from_utf8_lossy(frame.payload));
            let peer = if blame == self.rank { from } else { blame };
            return Err(CollectiveError::PeerLost { site: site(), peer, problem: Box::from(&*problem) });
        }
        if (header.sequence, header.step) != (sequence, step) {
            let (s, k) = (header.sequence, header.step);
            return Err(engine(format!(
                "frame {k} of its collective {s}, not frame {step} of collective {sequence}: frames were \
                 lost, repeated or reordered in transit"
            )));
        }
        let heard = &mut self.last_frames[from];
        if step == 0 {
            heard.call.clear();
            heard.call.push_str(frame.name);
        }
        (heard.sequence, heard.step) = (sequence, step);
        Ok(header)
    }

    fn wait(&self, call: &Call<'_>, from: usize, channel: u32) -> Result<Vec<u8>, CollectiveError> {
        let mut waited = Duration::ZERO;
        loop {
            let left = self.settings.patience.saturating_sub(waited).min(LOOK);
            let look = Instant::now();
            match self.transport.receive(self.members[from], channel, left) {
                Ok(bytes) => return Ok(bytes),
                Err(TransportError::Timeout { .. }) => {}
                Err(error) => return Err(self.transport_error(call, error)),
            }
            self.unbroken(call)?;
            // Who was stopped in between (SIGSTOP, a machine that slept) has waited for nobody in that time.
            waited += look.elapsed().min(left + LOOK);
            if waited >= self.settings.patience {
                let (site, missing) = (call.site(&self.label, self.rank), vec![from]);
                let report = [Some(self.report()), self.unread(from)].into_iter().flatten();
                let report = report.collect::<Vec<_>>().join(" ").into();
                return Err(CollectiveError::Timeout { site, missing, waited, report });
            }
        }
    }

    /// Describes the last frame of each peer.
    fn report(&self) -> String {
        let peers = (0..self.members.len()).filter(|p| *p != self.rank);
        let of = |p: usize| {
            let LastFrame { sequence, step, call } = &self.last_frames[p];
            match call.is_empty() {
                true => format!("rank {p}: nothing yet"),
                false => format!("rank {p}: frame {step} of collective {sequence}, {call:?}"),
            }
        };
        let said: Vec<String> = peers.map(of).collect();
        format!("This rank is in collective {}; last heard of {}.", self.sequence, said.join("; "))
    }
}

impl Drop for MessageCommunicator {
    fn drop(&mut self) {
        if self.failed.is_none() {
            let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner).take();
            let why = broken.unwrap_or_else(|| {
                if std::thread::panicking() { "it panicked" } else { "it left" }.to_string()
            });
            self.send_shutdown(self.rank, &why);
        }
    }
}

impl Engine for MessageCommunicator {
    fn label(&self) -> &str {
        &self.label
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn breaker(&self) -> Breaker {
        let broken = Arc::clone(&self.broken);
        Breaker::new(move |problem| {
            let mut broken = broken.lock().unwrap_or_else(PoisonError::into_inner);
            broken.get_or_insert_with(|| problem.to_string());
        })
    }

    fn failed(&mut self) -> &mut Option<CollectiveError> {
        &mut self.failed
    }

    fn obstacle(&self, call: &Call<'_>) -> Result<(), CollectiveError> {
        self.unbroken(call)
    }

    fn announce_failure(&mut self, error: &CollectiveError) {
        let (blame, why) = match error {
            CollectiveError::PeerLost { peer, problem, .. } => (*peer, problem.to_string()),
            CollectiveError::BrokenOff { problem, .. } => (self.rank, problem.to_string()),
            _ => (self.rank, format!("it stopped in {error}")),
        };
        self.send_shutdown(blame, &why);
    }

    fn perform(&mut self, call: &Call<'_>, memory: Memory<'_>) -> Result<(), CollectiveError> {
        let size = call.element_bytes();
        let bytes = |range: Range<usize>| range.start * size..range.end * size;
        match (call.pattern, memory) {
            (Pattern::Send { peer, .. }, Memory::Read(values)) => {
                return self.send_to(call, peer, values.bytes);
            }
            (Pattern::Receive { peer, .. }, Memory::InPlace(values)) => {
                return self.receive_from(call, peer, values.bytes);
            }
            (Pattern::AllReduce(reduce), Memory::InPlace(values)) => {
                self.reduce_all(call, values.bytes, reduce)?;
            }
            (Pattern::ReduceScatter(parts, reduce), Memory::InPlace(values)) => {
                self.scatter(call, values.bytes, |q| bytes(parts.range(q)), 0, reduce)?;
            }
            (Pattern::AllGather(parts), Memory::InPlace(values)) => {
                self.gather(call, values.bytes, |q| bytes(parts.range(q)), 0)?;
            }
            (Pattern::AllToAll { send, receive }, Memory::Exchange { send: from, receive: to }) => {
                let (sent, received) = (|q| bytes(send.range(q)), |q| bytes(receive.range(q)));
                self.exchange(call, (from.bytes, sent), (to.bytes, received))?;
            }
            // A gather of a whole that belongs to the root.
            (Pattern::Broadcast { root }, Memory::InPlace(values)) => {
                let len = values.bytes.len();
                self.gather(call, values.bytes, |q| if q == root { 0..len } else { 0..0 }, 0)?;
            }
            // A barrier; the check of the call has refused everything else.
            _ => self.gather(call, &mut [], |_| 0..0, 0).map(drop)?,
        }
        self.sequence += 1;
        Ok(())
    }

    fn arrived(&mut self, call: &Call<'_>, message: Message<'_>) -> Result<bool, CollectiveError> {
        self.look_for(call, message.peer)
    }

    fn join(
        &mut self,
        label: &str,
        ranks: &[usize],
        rank: usize,
    ) -> Result<Box<dyn Communicator>, CollectiveError> {
        let members: Vec<usize> = ranks.iter().map(|r| self.members[*r]).collect();
        let count = self.groups.entry((label.into(), ranks.into())).or_default();
        // Every member hashes the same: the parent, the label, who, and how many of these came before.
        let words = format!("{:016x} {count} {label:?} {members:?}", self.id);
        *count += 1;
        let id = xxh3_64(words.as_bytes());
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        for channel in MessageCommunicator::channels_of(id) {
            if let Some(other) = channels.insert(channel, label.to_string()) {
                let site = CallSite {
                    group: self.label.clone(),
                    rank: self.rank,
                    collective: "group",
                    name: label.into(),
                };
                let problem = format!("its channel is that of group {other:?}: choose another label");
                return Err(CollectiveError::Call { site: Box::new(site), problem: problem.into() });
            }
        }
        let (transport, settings) = (Arc::clone(&self.transport), self.settings.clone());
        let channels = Arc::clone(&self.channels);
        let group = MessageCommunicator::of(transport, settings, label, members, rank, id, channels);
        Ok(Box::new(group))
    }
}
