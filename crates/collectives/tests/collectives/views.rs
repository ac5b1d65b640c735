//! Collectives over views of a device.

use crate::world::{ENGINES, LONG, each, values, world};
use bessemer_collectives::{
    Collective, CollectiveQueue, DeviceCommunicator, HostStaging, Message, Parts, Pattern, Reduce,
    StagedCommunicator,
};
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::{Bytes, DType};
use half::{bf16, f16};

/// A device that holds values of 16 or 32 bits and computes nothing.
#[derive(Default)]
struct Memory(Vec<Vec<u32>>);

impl Memory {
    fn each(&mut self, view: View, mut work: impl FnMut(usize, &mut u32)) -> Result<(), TensorError> {
        for r in 0..view.rows {
            let from = view.offset + r * view.stride;
            let row = &mut self.0[view.buffer.id as usize][from..from + view.cols];
            row.iter_mut().enumerate().for_each(|(c, word)| work(r * view.cols + c, word));
        }
        Ok(())
    }

    /// Sets a view from f32 values.
    fn set(&mut self, view: View, values: &[f32]) {
        let bits = |x: f32| match view.dtype() {
            DType::Bf16 => bf16::from_f32(x).to_bits().into(),
            DType::F16 => f16::from_f32(x).to_bits().into(),
            _ => x.to_bits(),
        };
        self.each(view, |i, word| *word = bits(values[i])).unwrap();
    }

    fn get(&mut self, view: View) -> Vec<f32> {
        let mut values = Vec::new();
        self.each(view, |_, word| {
            values.push(match view.dtype() {
                DType::Bf16 => bf16::from_bits(*word as u16).to_f32(),
                DType::F16 => f16::from_bits(*word as u16).to_f32(),
                _ => f32::from_bits(*word),
            });
        })
        .unwrap();
        values
    }
}

impl Backend for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.0.push(vec![0; spec.len]);
        Ok(Buffer { id: self.0.len() as u32 - 1, len: spec.len, dtype: spec.dtype })
    }

    fn workspace(&self, _: &Op) -> Result<Bytes, TensorError> {
        Ok(Bytes(0))
    }

    fn reserve_workspace(&mut self, _: Bytes) -> Result<(), TensorError> {
        Ok(())
    }

    fn launch(&mut self, _: Stream, _: &Op) -> Result<(), TensorError> {
        unreachable!("collectives over views launch nothing")
    }

    fn record(&mut self, _: Stream) -> Result<Event, TensorError> {
        Ok(Event(0))
    }

    fn wait(&mut self, _: Stream, _: Event) -> Result<(), TensorError> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        Ok(())
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        assert_eq!(dst.dtype(), DType::F32, "values travel in their own type");
        self.each(dst, |i, word| *word = values[i].to_bits())
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.each(dst, |i, word| *word = values[i])
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        assert_eq!(src.dtype(), DType::F32, "values travel in their own type");
        self.each(src, |i, word| values[i] = f32::from_bits(*word))
    }

    fn read_bytes(&mut self, _: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        let size = src.dtype().size();
        self.each(src, |i, word| bytes[i * size..][..size].copy_from_slice(&word.to_le_bytes()[..size]))
    }

    fn write_bytes(&mut self, _: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        let size = dst.dtype().size();
        self.each(dst, |i, word| {
            let mut whole = [0; 4];
            whole[..size].copy_from_slice(&bytes[i * size..][..size]);
            *word = u32::from_le_bytes(whole);
        })
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }
}

const STREAM: Stream = Stream::Axis(1);

fn staged(queue: CollectiveQueue) -> StagedCommunicator {
    let staging = HostStaging::default();
    StagedCommunicator::new(queue, &staging, &staging)
}

/// Small whole numbers, whose sums are exact in every type.
fn whole_numbers(rank: usize, len: usize) -> Vec<f32> {
    values(rank as u64, rank, len).iter().map(|x| (x.to_bits() % 16) as f32).collect()
}

/// Two columns of a matrix of seven, and a vector: views with gaps, of 3 * 2 + 5 elements.
fn views(device: &mut Memory, dtype: DType) -> [View; 2] {
    let mut alloc = |len| device.alloc(BufferSpec { class: "test", name: "x", dtype, len }).unwrap();
    [alloc(21).matrix(3, 7).columns(4, 2), alloc(5).vector()]
}

#[test]
fn every_pattern_over_views_gives_what_it_gives_over_slices() {
    const LEN: usize = 11;
    for engine in ENGINES {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            each(world(engine, 3, LONG), |c| {
                let (rank, mut group) = (c.rank(), staged(CollectiveQueue::blocking(c)));
                let all: Vec<Vec<f32>> = (0..3).map(|r| whole_numbers(r, LEN)).collect();
                let sum: Vec<f32> = (0..LEN).map(|i| all.iter().map(|v| v[i]).sum()).collect();
                let mut device = Memory::default();
                let list = views(&mut device, dtype);
                let set = |device: &mut Memory| {
                    device.set(list[0], &all[rank][..6]);
                    device.set(list[1], &all[rank][6..]);
                };
                let get = |device: &mut Memory| [device.get(list[0]), device.get(list[1])].concat();

                set(&mut device);
                let reduce = Collective::new("sum", Pattern::AllReduce(Reduce::Sum));
                group.run(&mut device, STREAM, &reduce, &list, &list).unwrap();
                assert_eq!(get(&mut device), sum, "{engine:?} {dtype}");

                set(&mut device);
                let root = Collective::new("root", Pattern::Broadcast { root: 2 });
                group.run(&mut device, STREAM, &root, &list, &list).unwrap();
                assert_eq!(get(&mut device), all[2], "{engine:?} {dtype}");

                // Parts of 11, 0 and 11 elements: those of ranks 0 and 2 are what they have in their views.
                let parts = Parts::of([LEN, 0, LEN]);
                let [mine, other] = [(); 2].map(|()| views(&mut device, dtype));
                let own: &[View] = if rank == 1 { &[] } else { &list };
                set(&mut device);
                let gather = Collective::new("gather", Pattern::AllGather(&parts));
                let both = [mine, other].concat();
                group.run(&mut device, STREAM, &gather, own, &both).unwrap();
                assert_eq!(
                    both.iter().flat_map(|v| device.get(*v)).collect::<Vec<_>>(),
                    [&all[0][..], &all[2]].concat()
                );

                let scatter = Collective::new("scatter", Pattern::ReduceScatter(&parts, Reduce::Sum));
                group.run(&mut device, STREAM, &scatter, &both, own).unwrap();
                let tripled = |r: usize| all[r].iter().map(|x| 3.0 * x).collect::<Vec<_>>();
                if rank != 1 {
                    assert_eq!(get(&mut device), tripled(rank), "{engine:?} {dtype}");
                }

                set(&mut device);
                let (next, before) = ((rank + 1) % 3, (rank + 2) % 3);
                let send = Collective::send(Message::new("ring", 5, next));
                group.run(&mut device, STREAM, &send, &list, &[]).unwrap();
                let receive = Collective::receive(Message::new("ring", 5, before));
                group.run(&mut device, STREAM, &receive, &[], &mine).unwrap();
                assert_eq!(mine.iter().flat_map(|v| device.get(*v)).collect::<Vec<_>>(), all[before]);

                // Rank r sends its vector, of five elements, to the next rank.
                let only = |to: usize| Parts::of((0..3).map(|r| if r == to { 5 } else { 0 }));
                let (sent, received) = (only(next), only(before));
                let exchange =
                    Collective::new("pairs", Pattern::AllToAll { send: &sent, receive: &received });
                set(&mut device);
                group.run(&mut device, STREAM, &exchange, &list[1..], &mine[1..]).unwrap();
                assert_eq!(device.get(mine[1]), all[before][6..]);
            });
        }
    }
}

#[test]
fn views_that_do_not_fit_are_refused() {
    let mut group = staged(CollectiveQueue::blocking(world(ENGINES[0], 1, LONG).remove(0)));
    let mut device = Memory::default();
    let list = views(&mut device, DType::F32);
    let parts = Parts::of([4]);
    let gather = Collective::new("gather", Pattern::AllGather(&parts));
    let error = group.run(&mut device, STREAM, &gather, &list, &list).unwrap_err().to_string();
    assert!(error.contains("found 11 elements to read and 11 to write"), "{error}");
}

/// Two sums and a message are on their way at once, and finish in any order.
#[test]
fn several_collectives_are_in_flight() {
    each(world(ENGINES[0], 2, LONG), |c| {
        let (rank, mut device) = (c.rank(), Memory::default());
        let mut group = staged(CollectiveQueue::with_progress_thread(c).unwrap());
        let [first, second] = [(); 2].map(|()| views(&mut device, DType::F32)[1]);
        let sum = Collective::new("sum", Pattern::AllReduce(Reduce::Sum));
        for _ in 0..3 {
            device.set(first, &[rank as f32; 5]);
            device.set(second, &[10.0; 5]);
            let sent = Collective::send(Message::new("ring", 0, 1 - rank));
            let sent = group.start(&mut device, STREAM, &sent, &[first], &[]).unwrap();
            let sums = [first, second].map(|v| group.start(&mut device, STREAM, &sum, &[v], &[v]).unwrap());
            for started in sums.into_iter().rev() {
                group.finish(&mut device, started).unwrap();
            }
            assert_eq!((device.get(first), device.get(second)), (vec![1.0; 5], vec![20.0; 5]));
            let come = Collective::receive(Message::new("ring", 0, 1 - rank));
            group.run(&mut device, STREAM, &come, &[], &[first]).unwrap();
            assert_eq!(device.get(first), [1.0 - rank as f32; 5]);
            group.finish(&mut device, sent).unwrap();
        }
    });
}

/// Nothing is reduced, so types do not matter: parts count bytes.
#[test]
fn views_of_several_types_travel_as_bytes() {
    each(world(ENGINES[0], 2, LONG), |c| {
        let (rank, mut device) = (c.rank(), Memory::default());
        let mut group = staged(CollectiveQueue::blocking(c));
        let [wide, half] = [DType::F32, DType::Bf16].map(|dtype| views(&mut device, dtype)[1]);
        let to = [DType::F32, DType::Bf16].map(|dtype| views(&mut device, dtype)[1]);
        device.set(wide, &[rank as f32 + 0.1; 5]);
        device.set(half, &[rank as f32 + 0.5; 5]);
        let parts = Parts::of((0..2).map(|r| if r == rank { 0 } else { 30 }));
        let exchange = Collective::new("pairs", Pattern::AllToAll { send: &parts, receive: &parts });
        group.run(&mut device, STREAM, &exchange, &[wide, half], &to).unwrap();
        let other = 1.0 - rank as f32;
        assert_eq!((device.get(to[0]), device.get(to[1])), (vec![other + 0.1; 5], vec![other + 0.5; 5]));
        let sum = Collective::new("sum", Pattern::AllReduce(Reduce::Sum));
        let error = group.run(&mut device, STREAM, &sum, &[wide, half], &[wide, half]).unwrap_err();
        assert!(error.to_string().contains("wanted views of one type"), "{error}");
    });
}
