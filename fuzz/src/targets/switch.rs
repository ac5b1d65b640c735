//! Packets of a switch that sums: as they come, and as commands of 16 bytes that are written as packets. A job beside them has its sums.

use bessemer_collectives::HostBuffer;
use bessemer_collectives::switch::{
    Aggregator, Packet, SlotUse, SlotWorker, SwitchMemory, WorkerId, WorkerSettings,
};
use std::time::Duration;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let mut switch = Aggregator::new(SwitchMemory { slots: 6, values: 8 });
    let mut answers = Vec::new();
    let now = Duration::ZERO;
    switch.receive(0, data, now, &mut answers);
    let mut bytes = Vec::new();
    // The job that must not be harmed: one worker at address 9.
    let own = WorkerId { job: 1 << 40, worker: 0 };
    let settings = WorkerSettings { workers: 1, values: 8, resend_after: Duration::from_secs(1) };
    Packet::Join { workers: 1, slots: 2, values: 8 }.encode(own, &mut bytes);
    switch.receive(9, &bytes, now, &mut answers);
    for command in data.chunks_exact(16) {
        let word = |at: usize| u32::from_le_bytes(command[at..at + 4].try_into().expect("four bytes"));
        let at = SlotUse {
            slot: word(4) % 8,
            phase: word(8),
            collective: word(12) % 3,
            exponent: word(12) as i32,
        };
        let body = &command[4..4 + usize::from(command[3] % 13)];
        let packet = match command[0] % 8 {
            0 => Packet::Join { workers: word(4) % 5, slots: word(8) % 9, values: word(12) % 10 },
            1 => Packet::Granted { slots: word(4) },
            2 | 3 => Packet::Values(at, body),
            4 => Packet::Sum(at, body),
            5 => Packet::Leave,
            6 => Packet::Left,
            _ => Packet::Refused { retry: command[1] % 2 == 0, reason: "no" },
        };
        let id = if command[1] == 255 {
            own
        } else {
            WorkerId { job: u64::from(command[1] % 3), worker: u16::from(command[2] % 5) }
        };
        packet.encode(id, &mut bytes);
        switch.receive(command[2] % 4, &bytes, now, &mut answers);
        assert!(switch.granted() <= 6 && switch.counts().held <= 12);
    }
    let mut worker = SlotWorker::new(own, settings, 2);
    let mut values = HostBuffer::of(&[7u32; 50]);
    let mut sent = Vec::new();
    worker.begin(&values.lend(), 5, now, &mut |packet| sent.push(packet.to_vec()));
    while let Some(packet) = sent.pop() {
        answers.clear();
        switch.receive(9, &packet, now, &mut answers);
        for (_, answer) in &answers {
            let taken =
                worker.receive(&mut values.lend(), answer, now, &mut |packet| sent.push(packet.to_vec()));
            taken.expect("the job is not refused");
        }
    }
    assert!(worker.in_flight() == 0 && values.as_slice::<u32>() == [7; 50]);
    // What comes from a switch that nobody knows is dropped or refused.
    let _ = worker.receive(&mut values.lend(), data, now, &mut |_| {});
}
