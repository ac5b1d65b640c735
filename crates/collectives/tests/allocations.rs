//! Once warm, collectives ask for no memory, in the call or overlapped; messages take theirs from a pool.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use bessemer_collectives::{
    Collective, CollectiveQueue, Communicator, HostBuffer, Ledger, Message, Parts, Pattern, Reduce,
    ThreadCommunicator, ThreadSettings,
};
use bessemer_counting_alloc::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Steps, and those of them after which the pool may be full.
const STEPS: usize = 44;
const WARM: usize = 4;
/// Requests that filling the pool may take: of two ranks 15 messages, a name, values and places in queues for each.
const POOL: u64 = 2 * 15 * 4;

fn step(c: &mut dyn Communicator, v: &mut [f32], parts: &Parts, halves: &Parts) {
    let other = 1 - c.rank();
    c.all_reduce("a", &mut *v, Reduce::Sum).unwrap();
    c.all_reduce("norm", &mut v[..1], Reduce::Max).unwrap();
    c.reduce_scatter("b", &mut *v, parts, Reduce::Sum).unwrap();
    c.all_gather("c", &mut *v, parts).unwrap();
    c.broadcast("d", 1, &mut *v).unwrap();
    let (send, receive) = v.split_at_mut(halves.len());
    c.all_to_all("e", (&*send, halves), (&mut *receive, halves)).unwrap();
    // Taken in another order than they were sent in.
    let message = |tag: u64| Message::new("f", tag, other);
    for (tag, part) in send.chunks(10_000).enumerate() {
        c.send(message(tag as u64), part).unwrap();
    }
    for (tag, part) in receive.chunks_mut(10_000).enumerate().rev() {
        c.receive(message(tag as u64), part).unwrap();
    }
    c.barrier("g").unwrap();
}

fn overlapped(o: &mut CollectiveQueue, v: HostBuffer, parts: &Parts) -> HostBuffer {
    let scatter = Collective::new("bucket", Pattern::ReduceScatter(parts, Reduce::Sum));
    let ticket = o.start(&scatter, v).unwrap();
    let v = o.finish(ticket).unwrap();
    let ticket = o.start(&Collective::new("unit", Pattern::AllGather(parts)), v).unwrap();
    o.finish(ticket).unwrap()
}

#[test]
fn a_warm_collective_asks_for_no_memory() {
    let len = 300_000;
    let settings = ThreadSettings { piece_bytes: 64 << 10, ..ThreadSettings::default() };
    let world = ThreadCommunicator::world("world", 2, &settings);
    std::thread::scope(|scope| {
        for c in world {
            scope.spawn(move || {
                let ledger = Ledger::new();
                let mut c = ledger.wrap(Box::new(c));
                let mut o =
                    CollectiveQueue::with_progress_thread(c.group("shard", &[0, 1]).unwrap()).unwrap();
                let parts = Parts::of([len / 3, len - len / 3]);
                let halves = Parts::even(len / 2, 2);
                let mut v = vec![1.0f32; len];
                let mut buffer = HostBuffer::of(&v);
                let mut counts = [0; STEPS];
                for count in &mut counts {
                    c.barrier("start").unwrap();
                    let before = allocations();
                    c.barrier("counted").unwrap();
                    step(c.as_mut(), &mut v, &parts, &halves);
                    buffer = overlapped(&mut o, buffer, &parts);
                    c.barrier("end").unwrap();
                    *count = allocations() - before;
                }
                // How many messages are under way at once, and so how many buffers the pool must hold, depends on timing: now
                // and then a late step needs one more than any before. What is asked for in each step, or ever again, is
                // memory that is not used again.
                let late = &counts[WARM..];
                let quiet = late.iter().filter(|count| **count == 0).count();
                assert!(
                    4 * quiet >= 3 * late.len(),
                    "{quiet} of {} steps ask for nothing: {counts:?}",
                    late.len()
                );
                assert!(late.iter().sum::<u64>() <= POOL, "the pool grows: {counts:?}");
            });
        }
    });
}
