//! What the ranks of a test do, over whatever connects them.

use bessemer_collectives::{CollectiveError, Communicator, Message, Parts, Reduce};
use half::{bf16, f16};
use xxhash_rust::xxh3::Xxh3;

/// Values whose sum depends on its order: magnitudes over six decades.
fn values(seed: u64, rank: usize, len: usize) -> Vec<f32> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (rank as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40
    };
    (0..len)
        .map(|_| (next() as f32 / (1u64 << 23) as f32 - 1.0) * 10f32.powi((next() % 7) as i32 - 3))
        .collect()
}

fn narrow(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|v| bf16::from_f32(*v)).collect()
}

fn take(digest: &mut Xxh3, values: &[f32]) {
    for value in values {
        digest.update(&value.to_bits().to_le_bytes());
    }
}

fn take_bf16(digest: &mut Xxh3, values: &[bf16]) {
    for value in values {
        digest.update(&value.to_bits().to_le_bytes());
    }
}

/// Every collective, on lengths from nothing to several frames; a digest of every bit that comes out.
pub(crate) fn every_collective(c: &mut dyn Communicator) -> Result<u64, CollectiveError> {
    let (rank, size) = (c.rank(), c.size());
    let mut digest = Xxh3::new();
    for (seed, len) in [0, 1, 7, 4099, 1_300_007].into_iter().enumerate() {
        let seed = seed as u64;
        let mut x = values(seed, rank, len);
        c.all_reduce("sum", &mut x, Reduce::Sum)?;
        take(&mut digest, &x);
        let mut x = values(seed, rank, len);
        c.all_reduce("max", &mut x, Reduce::Max)?;
        take(&mut digest, &x);
        let mut x = narrow(&values(seed, rank, len));
        c.all_reduce("sum of bf16", &mut x, Reduce::Sum)?;
        take_bf16(&mut digest, &x);

        let mut x: Vec<f16> = values(seed, rank, len).into_iter().map(f16::from_f32).collect();
        c.all_reduce("sum of f16", &mut x, Reduce::Sum)?;
        x.iter().for_each(|v| digest.update(&v.to_bits().to_le_bytes()));
        let mut x: Vec<u32> = values(seed, rank, len).into_iter().map(f32::to_bits).collect();
        c.all_reduce("sum of u32", &mut x, Reduce::Sum)?;
        x.iter().for_each(|v| digest.update(&v.to_le_bytes()));
        let mut x = vec![rank as u8 ^ 0x5a; len];
        c.broadcast("bytes", size - 1, &mut x)?;
        digest.update(&x);

        let even = Parts::even(len, size);
        // The first of several has nothing, the last most.
        let share = |r: usize| match r {
            _ if r + 1 == size => len - len / 9 * size.saturating_sub(2),
            0 => 0,
            _ => len / 9,
        };
        let odd = Parts::of((0..size).map(share));
        for parts in [&even, &odd] {
            let mut x = values(seed, rank, len);
            c.reduce_scatter("part", &mut x, parts, Reduce::Sum)?;
            take(&mut digest, &x[parts.range(rank)]);
            c.all_gather("whole", &mut x, parts)?;
            take(&mut digest, &x);
            let mut x = narrow(&values(seed, rank, len));
            c.all_gather("whole of bf16", &mut x, parts)?;
            take_bf16(&mut digest, &x);
        }
        // Rank s sends r + s + (a share of len) elements to rank r.
        let count = |s: usize, r: usize| s + r + len / (size * 8);
        let send = Parts::of((0..size).map(|r| count(rank, r)));
        let receive = Parts::of((0..size).map(|s| count(s, rank)));
        let out = values(seed, rank, send.len());
        let mut into = vec![0.0; receive.len()];
        c.all_to_all("tokens", (&out, &send), (&mut into, &receive))?;
        take(&mut digest, &into);

        let mut x = values(seed, rank, len);
        c.broadcast("start", size - 1, &mut x)?;
        take(&mut digest, &x);
        if size > 1 {
            // Taken in another order than they were sent in.
            let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
            for tag in 0..4 {
                let x = values(seed + tag, rank, len);
                c.send(Message::new("ring", tag, next), &x)?;
            }
            let mut y = vec![0.0; len];
            for tag in [2, 0, 3, 1] {
                c.receive(Message::new("ring", tag, previous), &mut y)?;
                take(&mut digest, &y);
            }
        }
        c.barrier("end of a length")?;
    }
    let mates: Vec<usize> = (0..size).filter(|r| r % 2 == rank % 2).collect();
    let mut group = c.group("mates", &mates)?;
    let mut x = values(99, rank, 70_001);
    group.all_reduce("sum of mates", &mut x, Reduce::Sum)?;
    take(&mut digest, &x);
    group.barrier("end of mates")?;
    c.barrier("end")?;
    Ok(digest.digest())
}
