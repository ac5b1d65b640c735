//! Messages that are changed, lost, repeated or reordered on their way: an error that says so, never a wrong sum.

use crate::world::{each, values};
use bessemer_collectives::{
    ChannelTransport, CollectiveError, Communicator, FaultyTransport, MessageCommunicator, MessageFault,
    MessageSettings, Parts, Reduce, Transport,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Three ranks, of which rank 1 sends through `fault`.
fn faulty(fault: MessageFault, at: u64) -> Vec<Box<dyn Communicator>> {
    let settings = MessageSettings { patience: Duration::from_millis(300), piece_bytes: 4096 };
    let over = |transport: ChannelTransport| -> Box<dyn Communicator> {
        let mut transport: Arc<dyn Transport> = Arc::new(transport);
        if transport.rank() == 1 {
            transport = Arc::new(FaultyTransport::new(transport, fault, at));
        }
        Box::new(MessageCommunicator::world("world", transport, &settings))
    };
    ChannelTransport::world(3).into_iter().map(over).collect()
}

/// The error of every rank in a run of all-reduces whose results are checked as long as there is none.
fn errors(fault: MessageFault, at: u64) -> Vec<CollectiveError> {
    each(faulty(fault, at), |mut c| {
        let len = 6000;
        for k in 0..8 {
            let mut v = values(k, c.rank(), len);
            if let Err(error) = c.all_reduce("sum", &mut v, Reduce::Sum) {
                return error;
            }
            let terms: Vec<Vec<f32>> = (0..3).map(|r| values(k, r, len)).collect();
            let want = (0..len).map(|i| (terms[0][i] + terms[1][i]) + terms[2][i]);
            assert!(v.iter().zip(want).all(|(v, w)| v.to_bits() == w.to_bits()), "{fault:?} {at}: wrong sum");
        }
        panic!("{fault:?} {at}: nobody noticed");
    })
}

#[test]
fn no_fault_of_the_wires_makes_a_wrong_sum() {
    // Frames of the first and of later steps, to either peer, bits of values and of the header.
    let faults = [
        (MessageFault::FlipBit(0), 0, "checksum"),
        (MessageFault::FlipBit(4096), 5, "checksum"),
        (MessageFault::FlipBit(1 << 20), 6, "begins with"),
        (MessageFault::Lose, 0, "lost"),
        (MessageFault::Lose, 7, "lost"),
        (MessageFault::Repeat, 1, "repeated"),
        (MessageFault::Repeat, 4, "repeated"),
        (MessageFault::Swap, 2, "reordered"),
        (MessageFault::Swap, 9, "reordered"),
    ];
    for (fault, at, says) in faults {
        let errors = errors(fault, at);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(texts.iter().any(|t| t.contains(says)), "{fault:?} {at}: {texts:#?}");
    }
}

/// What a rank has received and not looked at is bounded, however large the values are and whoever is slow.
#[test]
fn large_values_go_in_pieces_and_nobody_runs_ahead() {
    #[derive(Debug)]
    struct Counting {
        inner: ChannelTransport,
        under_way: Arc<AtomicU64>,
        most: Arc<AtomicU64>,
    }
    impl Transport for Counting {
        fn rank(&self) -> usize {
            self.inner.rank()
        }
        fn size(&self) -> usize {
            self.inner.size()
        }
        fn send(
            &self,
            to: usize,
            channel: u32,
            m: Vec<u8>,
        ) -> Result<(), bessemer_collectives::TransportError> {
            let length = m.len() as u64;
            let now = self.under_way.fetch_add(length, Ordering::SeqCst) + length;
            self.most.fetch_max(now, Ordering::SeqCst);
            self.inner.send(to, channel, m)
        }
        fn receive(
            &self,
            from: usize,
            channel: u32,
            patience: Duration,
        ) -> Result<Vec<u8>, bessemer_collectives::TransportError> {
            let m = self.inner.receive(from, channel, patience)?;
            self.under_way.fetch_sub(m.len() as u64, Ordering::SeqCst);
            Ok(m)
        }
    }
    let (under_way, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let settings = MessageSettings { patience: Duration::from_secs(60), piece_bytes: 4096 };
    let over = |inner| {
        let transport = Counting { inner, under_way: Arc::clone(&under_way), most: Arc::clone(&most) };
        Box::new(MessageCommunicator::world("world", Arc::new(transport), &settings)) as Box<dyn Communicator>
    };
    let len = 200_000;
    each(ChannelTransport::world(3).into_iter().map(over).collect(), |mut c| {
        // Everything belongs to rank 0, which has nothing to wait for but what the others say.
        let mut v = vec![1.0f32; len];
        c.all_gather("weights", &mut v, &Parts::of([len, 0, 0])).unwrap();
        c.broadcast("all", 2, &mut v).unwrap();
        c.all_reduce("sum", &mut v, Reduce::Sum).unwrap();
        assert!(v.iter().all(|v| *v == 3.0));
    });
    // Six directed pairs, at most four frames each.
    let bound = 6 * 4 * (4096 + 200);
    assert!(most.load(Ordering::SeqCst) <= bound, "{} of {bound}", most.load(Ordering::SeqCst));
}

/// Bytes that a rank really sends are those of the ring formulas, headers apart.
#[test]
fn direct_exchange_sends_what_a_ring_sends() {
    #[derive(Debug)]
    struct Weighing {
        inner: ChannelTransport,
        values: AtomicU64,
    }
    impl Transport for Weighing {
        fn rank(&self) -> usize {
            self.inner.rank()
        }
        fn size(&self) -> usize {
            self.inner.size()
        }
        fn send(
            &self,
            to: usize,
            channel: u32,
            m: Vec<u8>,
        ) -> Result<(), bessemer_collectives::TransportError> {
            // The header is 96 bytes; only first frames carry the name, here of one byte.
            let first = u32::from_le_bytes([m[24], m[25], m[26], m[27]]) == 0;
            self.values.fetch_add((m.len() - 96 - usize::from(first)) as u64, Ordering::SeqCst);
            self.inner.send(to, channel, m)
        }
        fn receive(
            &self,
            from: usize,
            channel: u32,
            patience: Duration,
        ) -> Result<Vec<u8>, bessemer_collectives::TransportError> {
            self.inner.receive(from, channel, patience)
        }
    }
    let (n, len) = (4, 80_000);
    each(ChannelTransport::world(n), |inner| {
        let transport = Arc::new(Weighing { inner, values: AtomicU64::new(0) });
        let sent = || transport.values.swap(0, Ordering::SeqCst);
        let settings = MessageSettings::default();
        let wire = Arc::clone(&transport) as Arc<dyn Transport>;
        let mut c: Box<dyn Communicator> = Box::new(MessageCommunicator::world("world", wire, &settings));
        let mut v = vec![half::bf16::ONE; len];
        let share = (len * (n - 1) / n) as u64;
        c.all_reduce("a", &mut v, Reduce::Sum).unwrap();
        assert_eq!(sent(), 2 * 2 * share);
        c.reduce_scatter("b", &mut v, &Parts::even(len, n), Reduce::Sum).unwrap();
        assert_eq!(sent(), 2 * share);
        c.all_gather("c", &mut vec![0.0; len], &Parts::even(len, n)).unwrap();
        assert_eq!(sent(), 4 * share);
    });
}
