//! The stopwatch: what is noted, when, and of whom.

use bessemer_collectives::{
    CallSpan, Collective, CollectiveKind, CollectiveQueue, Communicator, HostBuffer, Message, Pattern,
    Reduce, Stopwatch, ThreadCommunicator, ThreadSettings,
};

fn calls(spans: &[CallSpan]) -> Vec<(&str, CollectiveKind, &str, u64)> {
    spans.iter().map(|s| (s.group.as_str(), s.kind, s.name.as_str(), s.bytes)).collect()
}

#[test]
fn calls_are_noted_while_it_is_on_in_groups_and_on_other_threads() {
    let worlds = ThreadCommunicator::world("world", 2, &ThreadSettings::default());
    let of_rank = |world: ThreadCommunicator| {
        let watch = Stopwatch::new();
        let mut world = watch.wrap(Box::new(world) as Box<dyn Communicator>);
        let (rank, peer) = (world.rank(), 1 - world.rank());
        world.barrier("before").unwrap();
        assert!(watch.take().is_empty());
        watch.switch(true);
        let mut alone = world.group("alone", &[rank]).unwrap();
        alone.barrier("nobody").unwrap();
        let group = world.group("pair", &[0, 1]).unwrap();
        let mut ahead = CollectiveQueue::with_progress_thread(group).unwrap();
        let ticket = ahead
            .start(&Collective::new("sum", Pattern::AllReduce(Reduce::Sum)), HostBuffer::of(&[1.0; 8]))
            .unwrap();
        ahead.finish(ticket).unwrap();
        world.send(Message::new("message", 3, peer), &[1.0, 2.0]).unwrap();
        world.receive(Message::new("message", 3, peer), &mut [0.0; 2]).unwrap();
        watch.switch(false);
        world.barrier("after").unwrap();
        let spans = watch.take();
        assert_eq!(
            calls(&spans),
            [
                ("pair", CollectiveKind::AllReduce, "sum", 32),
                ("world", CollectiveKind::Send, "message", 8),
                ("world", CollectiveKind::Receive, "message", 8)
            ]
        );
        let here = std::thread::current().id();
        assert_eq!(spans.iter().map(|s| s.thread == here).collect::<Vec<_>>(), [false, true, true]);
        assert!(spans.iter().all(|s| s.start <= s.end) && spans[0].end <= spans[1].start);
        assert!(watch.take().is_empty());
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = worlds.into_iter().map(|w| scope.spawn(move || of_rank(w))).collect();
        ranks.into_iter().for_each(|r| r.join().unwrap());
    });
}
