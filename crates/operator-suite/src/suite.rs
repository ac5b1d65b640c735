//! [`Suite`]: a device under test, and the comparisons of its results.

use crate::{Devices, Kernels, Setup, Tolerance};
use bessemer_tensor::op::Op;
use bessemer_units::DType;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Stored types of activations, parameters and gradients.
pub(crate) type Types = [DType; 3];

/// Types that [`Suite::check`] runs.
pub(crate) const TYPES: [Types; 6] = [
    [DType::F32; 3],
    [DType::Bf16, DType::F32, DType::F32],
    [DType::F32, DType::Bf16, DType::F32],
    [DType::Bf16; 3],
    [DType::F32, DType::F16, DType::F16],
    [DType::F32, DType::Bf16, DType::Bf16],
];

/// The [`TYPES`] with activations in f32.
pub(crate) fn types_of_parameters() -> Vec<Types> {
    TYPES.into_iter().filter(|types| types[0] == DType::F32).collect()
}

/// Makes the operands of an operator, with the same values for every backend.
pub(crate) type Build<'a> = &'a dyn Fn(&mut Setup) -> Op;

/// A device under test, and the comparisons of its results.
pub(crate) struct Suite<'a> {
    pub(crate) devices: &'a dyn Devices,
    tolerance: Tolerance,
    launched: Rc<RefCell<BTreeSet<&'static str>>>,
}

impl<'a> Suite<'a> {
    pub(crate) fn new(devices: &'a dyn Devices) -> Suite<'a> {
        Suite { devices, tolerance: devices.tolerance(), launched: Rc::default() }
    }

    /// Names of the operators that [`Setup::launch`] has launched.
    pub(crate) fn launched(&self) -> BTreeSet<&'static str> {
        self.launched.borrow().clone()
    }

    /// The variants under test.
    pub(crate) fn variants(&self) -> impl Iterator<Item = Kernels> + use<> {
        let names = self.devices.variants().into_iter();
        names.enumerate().map(|(number, name)| Kernels::Variant { number, name })
    }

    /// The reference and the variants.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = Kernels> + use<> {
        [Kernels::Reference].into_iter().chain(self.variants())
    }

    pub(crate) fn fastest(&self) -> Kernels {
        self.variants().last().expect("a device has at least one variant")
    }

    /// The reference and the fastest variant, for cases that test other variants by comparison with the reference.
    pub(crate) fn reference_and_fastest(&self) -> [Kernels; 2] {
        [Kernels::Reference, self.fastest()]
    }

    pub(crate) fn setup(&self, kernels: Kernels, workers: usize) -> Setup {
        let backend = match kernels {
            Kernels::Reference => self.devices.reference(),
            Kernels::Variant { number, .. } => self.devices.backend(number, workers),
        };
        Setup { launched: Rc::clone(&self.launched), ..Setup::over(backend) }
    }

    /// A setup whose backend multiplies by an engine of [`Devices::engines`].
    pub(crate) fn engine_setup(&self, engine: usize, workers: usize) -> Setup {
        let backend = self.devices.engine_backend(engine, workers);
        Setup { launched: Rc::clone(&self.launched), ..Setup::over(backend) }
    }

    fn typed_setup(&self, types: Types, kernels: Kernels, workers: usize) -> Setup {
        Setup { types, ..self.setup(kernels, workers) }
    }

    /// Every float buffer after the operator.
    pub(crate) fn run(&self, kernels: Kernels, workers: usize, build: Build<'_>) -> Vec<Vec<f32>> {
        self.run_in(TYPES[0], kernels, workers, build)
    }

    /// Every float buffer after the operator, with matrices of some types.
    pub(crate) fn run_in(
        &self,
        types: Types,
        kernels: Kernels,
        workers: usize,
        build: Build<'_>,
    ) -> Vec<Vec<f32>> {
        let mut s = self.typed_setup(types, kernels, workers);
        let op = build(&mut s);
        s.launch(&op).unwrap();
        s.all()
    }

    /// The device's bound where the suite has `bound`.
    pub(crate) fn bound(&self, bound: f32) -> f32 {
        if bound == 0.0 { self.tolerance.same_as_reference } else { bound * self.tolerance.factor }
    }

    /// Compares every variant with the reference, and two and three workers with one bit for bit.
    ///
    /// `tolerance` is absolute for values below one and relative above. Values stored in fewer bits may differ by a unit in
    /// their last place more. Operators on matrices made by [`Setup::act`], [`Setup::param`] and [`Setup::gradient`] are run with all types.
    pub(crate) fn check(&self, what: &str, tolerance: f32, build: Build<'_>) {
        let mut seen: Vec<Vec<DType>> = Vec::new();
        for types in TYPES {
            let mut s = self.typed_setup(types, Kernels::Reference, 1);
            let op = build(&mut s);
            let made: Vec<DType> = s.buffers.iter().map(|b| b.dtype).collect();
            if seen.contains(&made) {
                continue;
            }
            s.launch(&op).unwrap();
            let [storage, param, gradient] = types;
            let what = format!("{what} in {storage}, {param}, {gradient}");
            self.check_in(types, &what, self.bound(tolerance), &s.all(), &made, build);
            seen.push(made);
        }
    }

    fn check_in(
        &self,
        types: Types,
        what: &str,
        bound: f32,
        reference: &[Vec<f32>],
        made: &[DType],
        build: Build<'_>,
    ) {
        for kernels in self.variants() {
            let one = self.run_in(types, kernels, 1, build);
            for (b, (fast, truth)) in one.iter().zip(reference).enumerate() {
                // A unit in the last place, and of the subnormal numbers.
                let (rounding, least) = match made[b] {
                    DType::Bf16 => (1.0 / 128.0, 0.0),
                    DType::F16 => (1.0 / 1024.0, 6e-8),
                    _ => (0.0, 0.0),
                };
                for (i, (f, t)) in fast.iter().zip(truth).enumerate() {
                    let fine = (f - t).abs() <= bound * t.abs().max(1.0) + rounding * t.abs() + least
                        || (f.is_nan() && t.is_nan())
                        || f == t;
                    assert!(
                        fine,
                        "{what} on {kernels}: buffer {b} element {i} is {f}, the reference has {t}"
                    );
                }
            }
            for workers in [2, 3] {
                let more = self.run_in(types, kernels, workers, build);
                let what = format!("{what} on {kernels}, {workers} workers and one");
                self.same(&what, &more.concat(), &one.concat());
            }
        }
    }

    /// Compares every variant with the reference bit for bit, for several numbers of workers.
    pub(crate) fn same_bits(&self, what: &str, types: &[Types], build: Build<'_>) {
        for types in types {
            let reference = self.run_in(*types, Kernels::Reference, 1, build);
            for kernels in self.variants() {
                for workers in [1, 2, 3] {
                    let fast = self.run_in(*types, kernels, workers, build);
                    let what = format!("{what} on {kernels}, {workers} workers, {types:?}");
                    self.equal(&what, &fast.concat(), &reference.concat());
                }
            }
        }
    }

    /// Compares with values that every f32 arithmetic gives: the same bits, or what the device states.
    pub(crate) fn equal(&self, what: &str, found: &[f32], wanted: &[f32]) {
        compare(what, found, wanted, self.tolerance.same_as_reference);
    }

    /// Compares two results of the device: the same bits, or what the device states.
    pub(crate) fn same(&self, what: &str, found: &[f32], wanted: &[f32]) {
        compare(what, found, wanted, self.tolerance.same_as_itself);
    }

    /// Compares values within a bound that is absolute below one and relative above.
    pub(crate) fn close(&self, what: &str, found: &[f32], wanted: &[f32], tolerance: f32) {
        assert_eq!(found.len(), wanted.len(), "{what}");
        let bound = self.bound(tolerance);
        for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
            assert!((f - w).abs() <= bound * w.abs().max(1.0), "{what}: element {i} is {f}, wanted {w}");
        }
    }
}

fn compare(what: &str, found: &[f32], wanted: &[f32], bound: f32) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        let near = bound > 0.0 && (f - w).abs() <= bound * w.abs().max(1.0);
        assert!(f.to_bits() == w.to_bits() || near, "{what}: element {i} is {f:e}, wanted {w:e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_tensor::Backend;
    use bessemer_tensor::null::NullBackend;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Computes nothing.
    struct Nothing;

    impl Devices for Nothing {
        fn reference(&self) -> Box<dyn Backend> {
            Box::new(NullBackend::default())
        }

        fn variants(&self) -> Vec<&'static str> {
            vec!["nothing"]
        }

        fn backend(&self, _: usize, _: usize) -> Box<dyn Backend> {
            self.reference()
        }

        fn tolerance(&self) -> Tolerance {
            Tolerance { factor: 2.0, same_as_reference: 1e-6, same_as_itself: 0.0 }
        }
    }

    #[test]
    fn a_device_states_its_own_bounds() {
        let suite = Suite::new(&Nothing);
        assert_eq!((suite.bound(1e-3), suite.bound(0.0)), (2e-3, 1e-6));
        suite.equal("near", &[1.0], &[1.0 + 5e-7]);
        assert!(catch_unwind(AssertUnwindSafe(|| suite.same("bits", &[0.0], &[-0.0]))).is_err());
    }
}
