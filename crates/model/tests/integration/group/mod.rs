//! Tensor-parallel portions as threads of one process.
#![allow(dead_code, reason = "every test file uses another part")]

use bessemer_arch::PortionParam;
use bessemer_model::{Product, SeamAt, SeamPlace, Seams, Stream};
use bessemer_tensor::{Backend, TensorError, View};
use std::sync::{Barrier, Mutex};

/// Where t threads hand each other their values.
pub(crate) struct Group {
    values: Mutex<Vec<Vec<f32>>>,
    barrier: Barrier,
}

impl Group {
    pub(crate) fn new(degree: usize) -> Group {
        Group { values: Mutex::new(vec![Vec::new(); degree]), barrier: Barrier::new(degree) }
    }

    /// What every member has brought, in their order.
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
    let mut values = vec![0.0; view.len()];
    b.read_f32(view, &mut values)?;
    Ok(values)
}

/// One portion's seams.
pub(crate) struct Member<'a> {
    pub(crate) index: usize,
    pub(crate) group: &'a Group,
    pub(crate) stream: Stream,
}

impl Member<'_> {
    pub(crate) fn all(&self, b: &mut dyn Backend, view: View) -> Result<Vec<Vec<f32>>, TensorError> {
        Ok(self.group.all(self.index, read(b, view)?))
    }

    fn all_reduce(&self, b: &mut dyn Backend, view: View) -> Result<(), TensorError> {
        let sum = sum(&self.all(b, view)?);
        b.write_f32(view, &sum)
    }
}

/// True at a *g*.
fn leaves(at: SeamAt) -> bool {
    matches!(at.place, SeamPlace::EmbeddingOut | SeamPlace::AttentionOut | SeamPlace::MlpOut)
}

impl Seams for Member<'_> {
    fn product(&self) -> Product {
        Product::Partial { adds_bias: self.index == 0 }
    }
    fn forward(&mut self, b: &mut dyn Backend, at: SeamAt, value: View) -> Result<(), TensorError> {
        assert_eq!(self.stream, Stream::Whole);
        if leaves(at) { self.all_reduce(b, value) } else { Ok(()) }
    }
    fn backward(&mut self, b: &mut dyn Backend, at: SeamAt, gradient: View) -> Result<(), TensorError> {
        assert_eq!(self.stream, Stream::Whole);
        if leaves(at) { Ok(()) } else { self.all_reduce(b, gradient) }
    }
    fn gather(
        &mut self,
        b: &mut dyn Backend,
        _: SeamAt,
        local: View,
        whole: View,
    ) -> Result<(), TensorError> {
        assert_eq!(self.stream, Stream::Rows);
        let all = self.all(b, local)?.concat();
        b.write_f32(whole, &all)
    }
    fn reduce_scatter(
        &mut self,
        b: &mut dyn Backend,
        _: SeamAt,
        whole: View,
        local: View,
    ) -> Result<(), TensorError> {
        assert_eq!(self.stream, Stream::Rows);
        let sum = sum(&self.all(b, whole)?);
        // Nobody may count on what is left behind.
        b.write_f32(whole, &vec![f32::NAN; sum.len()])?;
        b.write_f32(local, &sum[self.index * local.len()..][..local.len()])
    }
    fn loss_sums(&mut self, b: &mut dyn Backend, lse: View, target_logit: View) -> Result<(), TensorError> {
        let all = self.all(b, lse)?;
        let together = |n: usize| all.iter().map(|l| f64::from(l[n]).exp()).sum::<f64>().ln() as f32;
        let combined: Vec<f32> = (0..lse.len()).map(together).collect();
        b.write_f32(lse, &combined)?;
        self.all_reduce(b, target_logit)
    }
}

/// The elements of a part, from those of the whole.
pub(crate) fn part_of(param: &PortionParam, whole: &[f32]) -> Vec<f32> {
    let mut part = vec![0.0; param.len()];
    for run in param.runs() {
        part[run.locals()].copy_from_slice(&whole[run.wholes()]);
    }
    part
}
