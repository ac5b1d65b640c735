//! Identity of the base that adapters belong to.

use crate::error::SourceError;
use crate::source::TensorSource;
use bessemer_arch::Model;
use std::collections::HashMap;

/// Key of [`base_hash`] in the metadata of a file of adapters.
pub(crate) const BASE_HASH: &str = "base_blake3";

/// BLAKE3 of the parameters of a model without its adapters, in hexadecimal: of each, in the order of [`Model::params`], the bytes of its name, a zero
/// byte, its dims as u64 and its values as f32, both little-endian.
///
/// # Errors
/// A parameter that the source lacks or has in another shape; an error of the source.
pub fn base_hash(model: &Model, source: &mut dyn TensorSource) -> Result<String, SourceError> {
    let specs = source.specs().iter().enumerate();
    let found: HashMap<String, (usize, Vec<usize>)> =
        specs.map(|(number, spec)| (spec.name.clone(), (number, spec.shape.clone()))).collect();
    let (mut hash, mut values, mut bytes) = (blake3::Hasher::new(), Vec::new(), Vec::new());
    for param in (Model { adapters: None, ..model.clone() }).params() {
        let number = match found.get(&param.name) {
            Some((number, shape)) if *shape == param.shape => *number,
            found => {
                let found = found.map_or("none".into(), |(_, shape)| format!("shape {shape:?}"));
                return Err(format!("{}: wanted shape {:?}, found {found}", param.name, param.shape).into());
            }
        };
        values.resize(param.len(), 0.0f32);
        source.fill(number, &mut values)?;
        hash.update(param.name.as_bytes()).update(&[0]);
        param.shape.iter().for_each(|dim| {
            hash.update(&(*dim as u64).to_le_bytes());
        });
        for block in values.chunks(1 << 16) {
            bytes.clear();
            bytes.extend(block.iter().flat_map(|value| value.to_le_bytes()));
            hash.update(&bytes);
        }
    }
    Ok(hash.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::HostTensors;
    use bessemer_arch::{Adapters, ModelConfig};
    use bessemer_tensor::host::HostTensor;
    use bessemer_units::DType;

    fn tensors(model: &Model) -> Vec<HostTensor> {
        let tensor = |spec: bessemer_arch::ParamSpec| HostTensor {
            values: (0..spec.len()).map(|i| (i % 7) as f32).collect(),
            name: spec.name,
            shape: spec.shape,
            dtype: DType::F32,
        };
        model.params().into_iter().map(tensor).collect()
    }

    #[test]
    fn a_hash_is_of_the_base_alone_whatever_the_order_and_changes_with_a_bit() {
        let config =
            ModelConfig { layers: Some(1), width: Some(8), heads: Some(2), ..ModelConfig::default() };
        let model = config.resolve(Some(20)).expect("a small model");
        let hash = |model: &Model, tensors: &[HostTensor]| {
            base_hash(model, &mut HostTensors::new(tensors)).map_err(|e| e.to_string())
        };
        let base = tensors(&model);
        let wanted = hash(&model, &base);
        assert_eq!(wanted.as_ref().map(String::len), Ok(64));
        let adapted = Model { adapters: Some(Adapters { rank: 2, ..Adapters::default() }), ..model.clone() };
        let mut all = tensors(&adapted);
        all.reverse();
        assert_eq!(hash(&adapted, &all), wanted);
        let mut other = base.clone();
        other[3].values[0] = -0.0;
        assert_ne!(hash(&model, &other), wanted);
        let problem = hash(&model, &base[1..]).expect_err("a missing tensor");
        assert!(problem.contains(&base[0].name) && problem.contains("found none"), "{problem}");
    }
}
