//! Initial values: every element a pure function of (seed, parameter name, element), made on the host, so that every
//! backend and every layout starts from the same bits. The distributions are those of [`bessemer_arch::Init`].

use crate::decoder::Decoder;
use crate::error::ModelError;
use bessemer_arch::Init;
use bessemer_tensor::Backend;
use bessemer_tensor::rng::RngKey;

impl Decoder {
    /// Sets every parameter to its initial value under `seed`.
    pub fn init(&self, backend: &mut dyn Backend, seed: u64) -> Result<(), ModelError> {
        let largest = self.params.iter().map(|p| p.spec.len()).max().unwrap_or(0);
        let mut values = vec![0.0; largest];
        for p in &self.params {
            let values = &mut values[..p.spec.len()];
            match p.spec.init {
                Init::Normal(std) => {
                    RngKey::new(seed, 0, &p.spec.name).fill_normal(0, std as f32, values);
                }
                Init::Constant(c) => values.fill(c as f32),
            }
            backend.write_f32(p.value, values)?;
        }
        Ok(())
    }
}
