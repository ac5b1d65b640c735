//! The progress thread over a network of queues that can be cut, and that can lie.

use crate::engine::{Arrival, Engine, Fault, Lane};
use crate::world::{self, MpiWorld};
use crate::{MpiError, Settings};
use bessemer_collectives::{Transport, TransportError};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Messages between ranks, and what is wrong with them.
#[derive(Debug, Default)]
struct Net {
    queues: HashMap<(usize, usize, bool), VecDeque<Vec<u8>>>,
    /// Ranks that are cut off.
    cut: Vec<usize>,
    /// Long messages of this rank arrive with success, but nothing is written.
    stale: Option<usize>,
    /// The next control message of this rank is lost.
    drop_one: Option<usize>,
    /// Sends to this rank fail.
    refuse: Option<usize>,
    finalized: usize,
}

#[derive(Debug)]
struct Queues {
    net: Arc<Mutex<Net>>,
    rank: usize,
    size: usize,
}

struct Flying {
    from: usize,
    long: bool,
    buffer: Vec<u8>,
    order: usize,
}

impl Engine for Queues {
    type Outgoing = Vec<u8>;
    type Incoming = Flying;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn host(&self) -> String {
        format!("host{}", self.rank)
    }

    fn library(&self) -> String {
        "queues".into()
    }

    fn send(&mut self, to: usize, lane: Lane, message: Vec<u8>) -> Result<Vec<u8>, Fault> {
        let mut net = self.net.lock().unwrap();
        if net.refuse == Some(to) {
            return Err(Fault { call: "send", text: "refused".into() });
        }
        if lane == Lane::Control && net.drop_one == Some(self.rank) && message[4] == 2 {
            net.drop_one = None;
        } else if !net.cut.contains(&to) && !net.cut.contains(&self.rank) {
            let long = lane == Lane::Payload;
            net.queues.entry((self.rank, to, long)).or_default().push_back(message.clone());
        }
        Ok(message)
    }

    fn poll_send(&mut self, out: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Fault> {
        Ok(Some(std::mem::take(out)))
    }

    fn handed_over(_: &Vec<u8>) -> bool {
        true
    }

    fn probe(&mut self) -> Result<Option<(usize, usize)>, Fault> {
        let net = self.net.lock().unwrap();
        let first = |from| net.queues.get(&(from, self.rank, false)).and_then(VecDeque::front).map(Vec::len);
        Ok((0..self.size).find_map(|from| Some((from, first(from)?))))
    }

    fn receive(&mut self, from: usize, lane: Lane, mut buffer: Vec<u8>) -> Result<Flying, Fault> {
        let long = lane == Lane::Payload;
        let mut order = 0;
        if !long {
            let mut net = self.net.lock().unwrap();
            let queue = net.queues.entry((from, self.rank, false)).or_default();
            buffer = queue.pop_front().expect("it was probed");
            order = 1;
        }
        Ok(Flying { from, long, buffer, order })
    }

    fn poll_receive(&mut self, into: &mut Flying) -> Result<Arrival, Fault> {
        if into.order == 1 {
            return Ok(Arrival::Whole(std::mem::take(&mut into.buffer)));
        }
        let mut net = self.net.lock().unwrap();
        let stale = net.stale == Some(into.from);
        match net.queues.entry((into.from, self.rank, into.long)).or_default().pop_front() {
            Some(_) if stale => Ok(Arrival::Whole(std::mem::take(&mut into.buffer))),
            Some(message) => Ok(Arrival::Whole(message)),
            None => Ok(Arrival::Nothing),
        }
    }

    fn finalize(self) -> Result<(), Fault> {
        self.net.lock().unwrap().finalized += 1;
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

/// Worlds of all ranks over one network, and the network. The test's own process stands for every rank's.
fn worlds(size: usize, silence: Duration) -> (Vec<MpiWorld>, Arc<Mutex<Net>>) {
    let net = Arc::new(Mutex::new(Net::default()));
    let settings = Settings { silence, join: PATIENCE, launch: None };
    let open = |rank| {
        let (net, settings) = (Arc::clone(&net), settings.clone());
        std::thread::spawn(move || world::open(&settings, move || Ok(Queues { net, rank, size })).unwrap())
    };
    let threads: Vec<_> = (0..size).map(open).collect();
    (threads.into_iter().map(|t| t.join().unwrap()).collect(), net)
}

/// Every rank finishes.
fn finish(worlds: Vec<MpiWorld>) -> Vec<Result<(), MpiError>> {
    let threads: Vec<_> =
        worlds.into_iter().map(|w| std::thread::spawn(move || w.finish(PATIENCE))).collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn lost(result: Result<Vec<u8>, TransportError>) -> (usize, String) {
    match result {
        Err(TransportError::PeerLost { peer, problem }) => (peer, problem),
        other => panic!("wanted a lost peer, found {other:?}"),
    }
}

#[test]
fn messages_arrive_whole_in_order_and_the_world_ends_together() {
    let (worlds, net) = worlds(3, PATIENCE);
    let transports: Vec<Arc<dyn Transport>> = worlds.iter().map(MpiWorld::transport).collect();
    let lengths = [0, 1, 16 << 10, (16 << 10) + 1, 3 << 20, 5, 1 << 20];
    for (from, transport) in transports.iter().enumerate() {
        for to in 0..3 {
            for (i, length) in lengths.iter().enumerate() {
                transport.send(to, (i % 2) as u32, bytes(*length, (from * 16 + i) as u8)).unwrap();
            }
        }
    }
    for transport in &transports {
        for from in 0..3 {
            for channel in [1, 0] {
                for (i, length) in lengths.iter().enumerate().filter(|(i, _)| i % 2 == channel) {
                    let message = transport.receive(from, channel as u32, PATIENCE).unwrap();
                    assert!(message == bytes(*length, (from * 16 + i) as u8), "message {i} of rank {from}");
                }
            }
        }
    }
    let began = Instant::now();
    let nothing = transports[0].receive(1, 9, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(nothing, TransportError::Timeout { from: 1, .. }), "{nothing}");
    assert!(began.elapsed() >= Duration::from_millis(50));
    assert_eq!(worlds[0].ranks().len(), 3);
    assert!(worlds[0].ranks()[2].starts_with("host host2, pid "), "{:?}", worlds[0].ranks());
    assert!(finish(worlds).iter().all(Result::is_ok));
    assert_eq!(net.lock().unwrap().finalized, 3);
    let after = transports[1].receive(0, 0, PATIENCE).unwrap_err().to_string();
    assert!(after.contains("MPI has ended"), "{after}");
}

#[test]
fn a_rank_that_is_cut_off_is_named_by_all_others_and_suspects_itself() {
    let silence = Duration::from_millis(800);
    // Silence counts from the last heartbeat before the cut, and none is before this.
    let began = Instant::now();
    let (worlds, net) = worlds(3, silence);
    let transports: Vec<Arc<dyn Transport>> = worlds.iter().map(MpiWorld::transport).collect();
    net.lock().unwrap().cut.push(2);
    // Rank 0 waits for rank 1, which has done nothing wrong.
    let (peer, problem) = lost(transports[0].receive(1, 0, PATIENCE));
    assert_eq!(peer, 2);
    assert!(problem.contains("rank 2 (host host2, pid ") && problem.contains("no message"), "{problem}");
    assert_eq!(lost(transports[1].receive(2, 0, PATIENCE)).0, 2);
    let (_, problem) = lost(transports[2].receive(0, 0, PATIENCE));
    assert!(problem.contains("may be this rank that is cut off: rank 2 (host host2"), "{problem}");
    let took = began.elapsed();
    assert!(took >= silence && took < PATIENCE / 2, "{took:?}");
    assert!(transports[0].send(1, 0, vec![1]).is_err());
    let ends = finish(worlds);
    assert!(ends.iter().all(Result::is_err));
    assert_eq!(net.lock().unwrap().finalized, 0);
}

#[test]
fn a_rank_that_gives_up_is_named_with_its_reason() {
    let (mut worlds, _net) = worlds(3, PATIENCE);
    let transports: Vec<Arc<dyn Transport>> = worlds.iter().map(MpiWorld::transport).collect();
    worlds.remove(1).abandon("the disk is full");
    for rank in [0, 2] {
        let (peer, problem) = lost(transports[rank].receive(2 - rank, 0, PATIENCE));
        assert_eq!(peer, 1);
        assert!(problem.contains("rank 1 (host host1") && problem.contains("the disk is full"), "{problem}");
    }
    drop(worlds);
}

#[test]
fn a_rank_that_only_leaves_is_an_error_for_who_waits() {
    let (mut worlds, _net) = worlds(2, PATIENCE);
    let transports: Vec<Arc<dyn Transport>> = worlds.iter().map(MpiWorld::transport).collect();
    let early = worlds.remove(1);
    let thread = std::thread::spawn(move || early.finish(PATIENCE));
    let (peer, problem) = lost(transports[0].receive(1, 0, PATIENCE));
    assert!(peer == 1 && problem.contains("it has finished"), "{problem}");
    assert!(worlds.remove(0).finish(PATIENCE).is_ok());
    assert!(thread.join().unwrap().is_ok());
}

#[test]
fn ranks_that_do_not_come_to_the_end_are_named() {
    let (mut worlds, _net) = worlds(2, PATIENCE);
    let error = worlds.remove(0).finish(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(&error, MpiError::Finish { missing, .. } if *missing == [1]), "{error}");
    drop(worlds);
}

#[test]
fn a_lost_message_and_a_failed_call_are_noticed() {
    let (worlds, net) = worlds(2, PATIENCE);
    let transports: Vec<Arc<dyn Transport>> = worlds.iter().map(MpiWorld::transport).collect();
    net.lock().unwrap().drop_one = Some(0);
    transports[0].send(1, 0, vec![1]).unwrap();
    transports[0].send(1, 0, vec![2]).unwrap();
    let (peer, problem) = lost(transports[1].receive(0, 0, PATIENCE));
    assert!(peer == 0 && problem.contains("it is number 1, due was number 0"), "{problem}");
    drop(worlds);

    let (worlds, net) = self::worlds(2, PATIENCE);
    let transport = worlds[0].transport();
    net.lock().unwrap().refuse = Some(1);
    transport.send(1, 0, vec![1]).unwrap();
    let (peer, problem) = lost(transport.receive(1, 0, PATIENCE));
    assert!(peer == 1 && problem.contains("send: refused"), "{problem}");
}

#[test]
fn a_message_that_was_never_written_is_no_message() {
    let (worlds, net) = worlds(2, PATIENCE);
    let transports: Vec<Arc<dyn Transport>> = worlds.iter().map(MpiWorld::transport).collect();
    // Whole first, so that the memory of a good message is there to be used again.
    for transport in &transports {
        transport.send(1 - transport.rank(), 0, bytes(1 << 20, 1)).unwrap();
    }
    for transport in &transports {
        assert!(transport.receive(1 - transport.rank(), 0, PATIENCE).unwrap() == bytes(1 << 20, 1));
    }
    net.lock().unwrap().stale = Some(0);
    transports[0].send(1, 0, bytes(1 << 20, 2)).unwrap();
    let (peer, problem) = lost(transports[1].receive(0, 0, PATIENCE));
    assert!(peer == 0 && problem.contains("did not write byte 0"), "{problem}");
    drop(worlds);
}

#[test]
fn a_world_that_differs_from_the_launchers_is_refused() {
    let net = Arc::new(Mutex::new(Net::default()));
    let variables = |name: &str| match name {
        "RANK" => Some("0".to_owned()),
        "WORLD_SIZE" => Some("4".to_owned()),
        _ => None,
    };
    let launch = bessemer_collectives::launch::resolve(&variables).unwrap();
    let settings = Settings { launch: Some(launch), ..Settings::default() };
    let error = world::open(&settings, move || Ok(Queues { net, rank: 0, size: 1 })).unwrap_err().to_string();
    assert!(
        error.contains("rank 0 of 1") && error.contains("torchrun") && error.contains("mpirun"),
        "{error}"
    );
}
