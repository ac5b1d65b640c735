//! Initial values: every element a pure function of (seed, parameter name, element), made on the host, so that every
//! backend and every layout starts from the same bits. The distributions are those of [`bessemer_arch::Init`].

use crate::decoder::Decoder;
use crate::error::ModelError;
use bessemer_arch::Init;
use bessemer_tensor::Backend;
use bessemer_tensor::rng::RngKey;

impl Decoder {
    /// Sets every parameter to its initial value under `seed`; those of a tensor shard to the elements of the whole model's that
    /// are here.
    pub fn init(&self, backend: &mut dyn Backend, seed: u64) -> Result<(), ModelError> {
        if let Some(tensor_shard) = self.tensor_shard() {
            let mut parts = tensor_shard.params();
            parts.retain(|part| self.stage.span.uses(&self.model, part.id()));
            for (p, part) in self.params.iter().zip(parts) {
                let mut values = vec![0.0; part.len()];
                for (run, init) in part.initial_runs() {
                    initial_values(init, seed, part.name(), run.whole, &mut values[run.locals()]);
                }
                backend.write_f32(p.value, &values)?;
            }
            return Ok(());
        }
        let largest = self.params.iter().map(|p| p.spec.len()).max().unwrap_or(0);
        let mut values = vec![0.0; largest];
        for p in &self.params {
            let values = &mut values[..p.spec.len()];
            let (_, columns) = p.spec.matrix();
            fill(&p.spec.init, &RngKey::new(seed, 0, &p.spec.name), 0, columns, values);
            backend.write_f32(p.value, values)?;
        }
        Ok(())
    }
}

/// Elements `first`, `first + 1`, ... of the initial values of parameter `name` under `seed`, for stretches of a parameter
/// that are drawn from one distribution: an [`Init::Rows`] is to be taken apart before.
pub fn initial_values(init: &Init, seed: u64, name: &str, first: usize, values: &mut [f32]) {
    fill(init, &RngKey::new(seed, 0, name), first, 1, values);
}

/// Draws the elements from `first` on of a tensor with so many columns.
fn fill(init: &Init, key: &RngKey, first: usize, columns: usize, values: &mut [f32]) {
    match init {
        Init::Normal(std) => key.fill_normal(first as u64, *std as f32, values),
        Init::Uniform(bound) => key.fill_uniform(first as u64, *bound as f32, values),
        Init::Constant(c) => values.fill(*c as f32),
        Init::Rows(stretches) => {
            let mut at = 0;
            for (rows, init) in stretches {
                let len = rows * columns;
                fill(init, key, first + at, columns, &mut values[at..at + len]);
                at += len;
            }
        }
    }
}
