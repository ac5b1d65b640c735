//! Parameters on the device: how layers hold them, and named copies in and out.

use crate::decoder::Decoder;
use crate::error::ModelError;
use bessemer_arch::ParamSpec;
use bessemer_tensor::host::HostTensor;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::DType;

/// One parameter tensor on the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Name, shape, initialisation.
    pub spec: ParamSpec,
    /// Values, `[rows, cols]` as in [`ParamSpec::matrix`].
    pub value: View,
    /// Gradient of the same shape, if the decoder trains the parameter.
    pub grad: Option<View>,
}

/// Allocates values of every parameter, in memory of a class.
pub(crate) fn alloc_in(
    backend: &mut dyn Backend,
    class: &'static str,
    specs: Vec<ParamSpec>,
) -> Result<Vec<Param>, ModelError> {
    let param = |spec: ParamSpec| {
        let (rows, cols) = spec.matrix();
        let buffer = BufferSpec { class, name: &spec.name, dtype: DType::F32, len: rows * cols };
        let value = backend.alloc(buffer)?.matrix(rows, cols);
        Ok(Param { spec, value, grad: None })
    };
    specs.into_iter().map(param).collect()
}

/// Allocates values ("weights") of every parameter and, if requested, gradients ("gradients") of those that can be trained.
pub(crate) fn alloc(
    backend: &mut dyn Backend,
    specs: Vec<ParamSpec>,
    gradients: bool,
) -> Result<Vec<Param>, ModelError> {
    let mut params = Vec::with_capacity(specs.len());
    for spec in specs {
        let (rows, cols) = spec.matrix();
        let mut tensor = |class| {
            let buffer = BufferSpec { class, name: &spec.name, dtype: DType::F32, len: rows * cols };
            backend.alloc(buffer).map(|b| b.matrix(rows, cols))
        };
        let value = tensor("weights")?;
        let trained = gradients && !spec.id.role().is_routing_state();
        let grad = if trained { Some(tensor("gradients")?) } else { None };
        params.push(Param { spec, value, grad });
    }
    Ok(params)
}

/// Errors unless these are the parameters of `specs`, placed in matrices of a float type.
pub(crate) fn check(params: &[Param], specs: &[ParamSpec]) -> Result<(), ModelError> {
    let wrong = |name: &str, wanted: String, found: String| {
        Err(ModelError::ParameterPlace { name: name.into(), wanted, found })
    };
    for (i, spec) in specs.iter().enumerate() {
        let Some(p) = params.get(i) else {
            return wrong(&spec.name, format!("it as number {i}"), format!("{i} parameters in all"));
        };
        if (&p.spec.name, &p.spec.shape) != (&spec.name, &spec.shape) {
            let (wanted, found) = (&spec.shape, &p.spec);
            let found = format!("{} of shape {:?}", found.name, found.shape);
            return wrong(&spec.name, format!("shape {wanted:?} as number {i}"), found);
        }
        let (rows, cols) = spec.matrix();
        let wanted = format!("an f32, bf16 or f16 matrix [{rows}, {cols}]");
        for (what, view) in [("values", Some(p.value)), ("gradients", p.grad)] {
            match view {
                Some(v) if (v.rows, v.cols) == (rows, cols) && v.dtype().is_float() => v.check()?,
                Some(v) => {
                    let found = format!("{what} [{}, {}] of {}", v.rows, v.cols, v.dtype());
                    return wrong(&spec.name, wanted, found);
                }
                // A frozen parameter has no gradient.
                None => {}
            }
        }
    }
    match params.get(specs.len()) {
        Some(p) => wrong(&p.spec.name, format!("{} parameters in all", specs.len()), "one more".into()),
        None => Ok(()),
    }
}

impl Decoder {
    /// All parameters, in the order of [`bessemer_arch::Model::params`].
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Copies every parameter to the host, in the order of [`Decoder::params`].
    pub fn read_params(&self, backend: &mut dyn Backend) -> Result<Vec<HostTensor>, ModelError> {
        let mut list = Vec::with_capacity(self.params.len());
        for p in &self.params {
            let mut values = vec![0.0; p.spec.len()];
            backend.read_f32(p.value, &mut values)?;
            list.push(HostTensor {
                name: p.spec.name.clone(),
                shape: p.spec.shape.clone(),
                dtype: p.value.dtype(),
                values,
            });
        }
        Ok(list)
    }

    /// Overwrites one parameter with row-major values.
    ///
    /// # Errors
    /// A name that the model does not have, or values of another number than its shape has.
    pub fn write_param(
        &self,
        backend: &mut dyn Backend,
        name: &str,
        values: &[f32],
    ) -> Result<(), ModelError> {
        let Some(p) = self.params.iter().find(|p| p.spec.name == name) else {
            return Err(ModelError::UnknownParameter { name: name.into(), hint: self.hint(name) });
        };
        if values.len() != p.spec.len() {
            return Err(ModelError::ParameterSize {
                name: name.into(),
                shape: p.spec.shape.clone(),
                wanted: p.spec.len(),
                found: values.len(),
            });
        }
        Ok(backend.write_f32(p.value, values)?)
    }

    /// The names that share the longest beginning with `name`.
    fn hint(&self, name: &str) -> String {
        let shared = |p: &Param| p.spec.name.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        let most = self.params.iter().map(shared).max().unwrap_or(0);
        let near: Vec<_> =
            self.params.iter().filter(|p| shared(p) == most).take(4).map(|p| p.spec.name.as_str()).collect();
        format!("nearest: {}", near.join(", "))
    }
}
