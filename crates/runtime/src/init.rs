//! Initial values, made on the host and written to this rank's parameters.

use crate::decoder::Decoder;
use crate::error::ModelError;
use bessemer_model::{initial_matrix, initial_values};
use bessemer_tensor::Backend;

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
            initial_matrix(&p.spec.init, seed, &p.spec.name, columns, values);
            backend.write_f32(p.value, values)?;
        }
        Ok(())
    }
}
