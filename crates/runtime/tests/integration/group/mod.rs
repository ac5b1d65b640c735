//! Tensor shards as threads of one process.
#![allow(dead_code, reason = "every test file uses another part")]

use bessemer_arch::TensorShardParam;
use bessemer_mesh::{Axis, Mesh};
use bessemer_program::CollectiveKind;
use bessemer_runtime::{Collective, Ranks, StageRanks};
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::DType;
use std::collections::{HashMap, VecDeque};
use std::sync::{Barrier, Condvar, Mutex};
use std::time::Duration;

/// Values of a message with their name.
type Named = (String, Vec<f32>);

/// Shared memory through which t threads exchange values.
pub(crate) struct Group {
    values: Mutex<Vec<Vec<f32>>>,
    barrier: Barrier,
    /// Indexed by sender and receiver: messages in the order in which they were sent.
    messages: Mutex<HashMap<(usize, usize), VecDeque<Named>>>,
    came: Condvar,
}

impl Group {
    pub(crate) fn new(degree: usize) -> Group {
        let (values, barrier) = (Mutex::new(vec![Vec::new(); degree]), Barrier::new(degree));
        Group { values, barrier, messages: Mutex::default(), came: Condvar::new() }
    }

    fn send(&self, from: usize, to: usize, name: &str, values: Vec<f32>) {
        let mut messages = self.messages.lock().unwrap();
        messages.entry((from, to)).or_default().push_back((name.to_owned(), values));
        self.came.notify_all();
    }

    fn receive(&self, from: usize, to: usize, name: &str) -> Vec<f32> {
        let mut messages = self.messages.lock().unwrap();
        loop {
            if let Some((found, values)) = messages.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
                assert_eq!(found, name, "from {from} to {to}");
                return values;
            }
            let (guard, late) = self.came.wait_timeout(messages, Duration::from_secs(60)).unwrap();
            assert!(!late.timed_out(), "{name}: nothing from {from} to {to}");
            messages = guard;
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.values.lock().unwrap().len()
    }

    /// Returns the values of every member, in the order of the members.
    pub(crate) fn all(&self, index: usize, mine: Vec<f32>) -> Vec<Vec<f32>> {
        self.values.lock().unwrap()[index] = mine;
        self.barrier.wait();
        let all = self.values.lock().unwrap().clone();
        self.barrier.wait();
        all
    }
}

pub(crate) fn sum(terms: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = vec![0.0; terms[0].len()];
    for term in terms {
        sum.iter_mut().zip(term).for_each(|(s, t)| *s += t);
    }
    sum
}

fn read(b: &mut dyn Backend, view: View) -> Result<Vec<f32>, TensorError> {
    if view.dtype() == DType::U32 {
        let mut bytes = vec![0; 4 * view.len()];
        b.read_bytes(Stream::Compute, view, &mut bytes)?;
        return Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word) as f32).collect());
    }
    let mut values = vec![0.0; view.len()];
    b.read_f32(view, &mut values)?;
    Ok(values)
}

/// Values, or small counts.
fn write(b: &mut dyn Backend, view: View, values: &[f32]) -> Result<(), TensorError> {
    match view.dtype() {
        DType::U32 => b.write_u32(view, &values.iter().map(|value| *value as u32).collect::<Vec<_>>()),
        _ => b.write_f32(view, values),
    }
}

/// The groups along one axis, each with its ranks.
type AlongAxis = Vec<(Vec<usize>, Group)>;

/// The groups of ranks that share layers, along each axis.
pub(crate) struct Groups {
    mesh: Mesh,
    of: Vec<(Axis, AlongAxis)>,
}

impl Groups {
    pub(crate) fn new(mesh: &Mesh) -> Groups {
        let along = |axis: Axis| {
            let all = mesh.groups(&[axis]).into_iter();
            (axis, all.map(|ranks| (ranks.clone(), Group::new(ranks.len()))).collect())
        };
        Groups { mesh: mesh.clone(), of: Axis::LAYER.into_iter().map(along).collect() }
    }

    /// A rank that does its part in the collectives over every axis.
    pub(crate) fn member(&self, rank: usize) -> Member<'_> {
        Member { rank, groups: self }
    }
}

/// One rank of several that share layers.
pub(crate) struct Member<'a> {
    rank: usize,
    groups: &'a Groups,
}

impl Ranks for Member<'_> {
    fn collective(
        &mut self,
        b: &mut dyn Backend,
        c: &Collective,
        src: View,
        dst: View,
    ) -> Result<(), TensorError> {
        let (_, along) = self.groups.of.iter().find(|(axis, _)| *axis == c.axis).unwrap();
        let (_, group) = along.iter().find(|(ranks, _)| ranks.contains(&self.rank)).unwrap();
        let index = self.groups.mesh.position(self.rank, &[c.axis]);
        AxisMember { index, group }.collective(b, c, src, dst)
    }
}

impl StageRanks for Member<'_> {}

/// One rank of the group along an axis.
struct AxisMember<'a> {
    index: usize,
    group: &'a Group,
}

impl AxisMember<'_> {
    fn all(&self, b: &mut dyn Backend, view: View) -> Result<Vec<Vec<f32>>, TensorError> {
        Ok(self.group.all(self.index, read(b, view)?))
    }

    fn all_reduce(&self, b: &mut dyn Backend, view: View) -> Result<(), TensorError> {
        let sum = sum(&self.all(b, view)?);
        write(b, view, &sum)
    }

    fn collective(
        &self,
        b: &mut dyn Backend,
        c: &Collective,
        src: View,
        dst: View,
    ) -> Result<(), TensorError> {
        match c.kind {
            CollectiveKind::AllReduce => self.all_reduce(b, src),
            CollectiveKind::AllGather => {
                let all = self.all(b, src)?.concat();
                let mut at = 0;
                c.parts(dst, self.group.size()).try_for_each(|part| {
                    at += part.len();
                    write(b, part, &all[at - part.len()..at])
                })
            }
            CollectiveKind::Permute => {
                if let Some(to) = c.to(self.index) {
                    self.group.send(self.index, to, &c.name, read(b, src)?);
                }
                let Some(from) = c.from(self.index) else { return Ok(()) };
                b.write_f32(dst, &self.group.receive(from, self.index, &c.name))
            }
            CollectiveKind::AllToAll => {
                let ranks = self.group.size();
                let mut mine = Vec::new();
                for part in c.exchange(src, ranks, self.index) {
                    mine.extend(read(b, part)?);
                }
                let mut all = Vec::new();
                for (from, sent) in self.group.all(self.index, mine).iter().enumerate() {
                    let at: usize = (0..self.index).map(|to| c.exchanged(ranks, from, to)).sum();
                    all.extend_from_slice(&sent[at..at + c.exchanged(ranks, from, self.index)]);
                }
                let mut at = 0;
                c.exchange(dst, ranks, self.index).try_for_each(|part| {
                    at += part.len();
                    b.write_f32(part, &all[at - part.len()..at])
                })?;
                assert_eq!(at, all.len());
                Ok(())
            }
            CollectiveKind::ReduceScatter => {
                let mut terms = Vec::new();
                for part in c.parts(src, self.group.size()) {
                    terms.extend(read(b, part)?);
                }
                let sum = sum(&self.group.all(self.index, terms));
                // Overwrites the source: its contents are undefined after the call.
                b.write_f32(src, &vec![f32::NAN; sum.len()])?;
                b.write_f32(dst, &sum[self.index * dst.len()..][..dst.len()])
            }
        }
    }
}

/// The elements of a part, from those of the whole.
pub(crate) fn part_of(param: &TensorShardParam, whole: &[f32]) -> Vec<f32> {
    let mut part = vec![0.0; param.len()];
    for run in param.runs() {
        part[run.locals()].copy_from_slice(&whole[run.wholes()]);
    }
    part
}
