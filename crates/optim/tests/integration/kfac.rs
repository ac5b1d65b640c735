//! K-FAC's work in units.

use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{
    Alone, KfacConfig, KfacWork, OptimConfig, OptimError, OptimParam, Optimizer, OptimizerChoice, StateView,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::DType;

const TOKENS: usize = 40;
const MICRO_BATCHES: usize = 2;

fn tensor(b: &mut dyn Backend, rows: usize, cols: usize) -> View {
    let spec = BufferSpec { class: "test", name: "x", dtype: DType::F32, len: rows * cols };
    b.alloc(spec).unwrap().matrix(rows, cols)
}

/// A fused matrix, a tall one, a vector.
fn model(b: &mut dyn Backend) -> Vec<OptimParam> {
    let shapes: [(&str, (usize, usize), &[usize]); 3] =
        [("qkv", (48, 24), &[24, 12, 12]), ("norm", (1, 24), &[]), ("up", (96, 24), &[96])];
    shapes
        .into_iter()
        .map(|(name, (rows, cols), blocks)| {
            let (value, grad) = (tensor(b, rows, cols), tensor(b, rows, cols));
            OptimParam { blocks: blocks.to_vec(), ..OptimParam::new(name, value, grad, rows > 1) }
        })
        .collect()
}

/// Something to train on: gradients, inputs and output gradients of every micro-batch.
struct Rig {
    b: CpuBackend,
    params: Vec<OptimParam>,
    at: Vec<Vec<(View, View)>>,
    optimizer: Optimizer,
}

fn config(every: u64) -> OptimConfig {
    let kfac = KfacConfig { curvature_every: every, inverse_every: every, ..KfacConfig::default() };
    OptimConfig { optimizer: OptimizerChoice::Kfac, kfac, ..OptimConfig::default() }
}

impl Rig {
    fn new() -> Rig {
        let mut b = crate::instruction_set::cpu(2);
        let params = model(&mut b);
        let pair = |b: &mut CpuBackend, p: &OptimParam| {
            (tensor(b, TOKENS, p.value.cols), tensor(b, TOKENS, p.value.rows))
        };
        let at = (0..MICRO_BATCHES).map(|_| params.iter().map(|p| pair(&mut b, p)).collect()).collect();
        let mut optimizer = Optimizer::new(&mut b, &params, &config(1)).unwrap();
        optimizer.plan_capture(&mut b, TOKENS, DType::F32).unwrap();
        let mut rig = Rig { b, params, at, optimizer };
        for i in 0..rig.params.len() {
            let value = rig.params[i].value;
            rig.draw("value", i as u64, value, 0.5);
        }
        rig
    }

    fn draw(&mut self, what: &str, number: u64, view: View, size: f32) {
        let mut values = vec![0.0; view.len()];
        RngKey::new(5, number, what).fill_normal(0, size, &mut values);
        self.b.write_f32(view, &values).unwrap();
    }

    /// New gradients, inputs and output gradients.
    fn step_begins(&mut self, t: u64) {
        for i in 0..self.params.len() {
            let number = 100 * t + i as u64;
            let grad = self.params[i].grad;
            self.draw("grad", number, grad, 0.1);
            for micro in 0..MICRO_BATCHES {
                let (x, dy) = self.at[micro][i];
                self.draw("x", 10 * number + micro as u64, x, 1.0);
                self.draw("dy", 10 * number + micro as u64, dy, 0.01);
            }
        }
    }

    fn units_of(&mut self, wanted: impl Fn(KfacWork) -> bool) {
        for unit in self.optimizer.kfac_units(MICRO_BATCHES, TOKENS) {
            match unit.work {
                work if !wanted(work) => {}
                KfacWork::Curvature { factor, param, outputs, micro } => {
                    let (x, dy) = self.at[micro][param];
                    let of = if outputs { dy } else { x };
                    self.optimizer.kfac_curvature(&mut self.b, factor, of, micro > 0).unwrap();
                }
                work => self.optimizer.kfac_work(&mut self.b, &mut Alone, work).unwrap(),
            }
        }
    }

    fn values(&mut self) -> Vec<u32> {
        let views: Vec<_> = self.params.iter().map(|p| p.value.into()).collect();
        self.read(&views)
    }

    fn inverses(&mut self) -> Vec<u32> {
        let states = self.optimizer.states();
        let views: Vec<_> = states.iter().filter(|s| s.0.contains("_inverse.")).map(|s| s.1).collect();
        self.read(&views)
    }

    fn read(&mut self, views: &[StateView]) -> Vec<u32> {
        let mut all = Vec::new();
        for view in views {
            let mut values = vec![0.0; view.len()];
            view.read(&mut self.b, 0, &mut values).unwrap();
            all.extend(values.iter().map(|v| v.to_bits()));
        }
        all
    }
}

#[test]
fn units_done_one_by_one_make_the_step() {
    let (mut whole, mut pieces) = (Rig::new(), Rig::new());
    pieces.optimizer.refresh_by_units();
    for t in 1..=4 {
        whole.step_begins(t);
        for micro in 0..MICRO_BATCHES {
            for i in 0..whole.params.len() {
                let seen = whole.at[micro][i];
                assert!(whole.optimizer.captures(t) && !pieces.optimizer.captures(t));
                whole.optimizer.capture(&mut whole.b, i, seen, micro > 0).unwrap();
            }
        }
        whole.optimizer.step(&mut whole.b, t, 1e-2).unwrap();
        pieces.step_begins(t);
        // The norm is that of the gradient, so it comes before directions are put in its place.
        let norm = pieces.optimizer.grad_norm(&mut pieces.b).unwrap();
        pieces.units_of(|_| true);
        pieces.optimizer.apply(&mut pieces.b, t, 1e-2, norm).unwrap();
        assert!(whole.values() == pieces.values(), "step {t}");
        assert!(whole.inverses() == pieces.inverses(), "step {t}");
    }
}

/// A refresh that takes several steps: until an inverse is finished, steps use the one before.
#[test]
fn steps_use_the_last_finished_inverses() {
    let mut rig = Rig::new();
    rig.optimizer.refresh_by_units();
    rig.step_begins(1);
    assert!(matches!(rig.optimizer.step(&mut rig.b, 1, 1e-2), Err(OptimError::NoCurvature)));
    let early = rig.optimizer.kfac_work(&mut rig.b, &mut Alone, KfacWork::Precondition { layer: 0 });
    assert!(matches!(early, Err(OptimError::NoCurvature)));
    rig.units_of(|work| !matches!(work, KfacWork::Precondition { .. }));
    rig.optimizer.step(&mut rig.b, 1, 1e-2).unwrap();
    let first = rig.inverses();
    for t in 2..=3 {
        rig.step_begins(t);
        match t {
            2 => rig.units_of(|work| matches!(work, KfacWork::Curvature { .. })),
            _ => rig.units_of(|work| matches!(work, KfacWork::Sync { .. })),
        }
        let before = rig.values();
        rig.optimizer.step(&mut rig.b, t, 1e-2).unwrap();
        assert!(rig.inverses() == first, "step {t}");
        assert!(rig.values() != before, "step {t}");
    }
    rig.step_begins(4);
    rig.units_of(|work| work == KfacWork::Invert { factor: 0 });
    let second = rig.inverses();
    let inverse = 24 * 24;
    assert!(second[..inverse] != first[..inverse] && second[inverse..] == first[inverse..]);
}

#[test]
fn costs_and_dependencies_are_those_of_the_work() {
    let mut b = NullBackend::new();
    let params = model(&mut b);
    let mut optimizer = Optimizer::new(&mut b, &params, &config(1)).unwrap();
    let x = tensor(&mut b, TOKENS, 96);
    let units = optimizer.kfac_units(MICRO_BATCHES, TOKENS);
    // Six factors: of the inputs of both, of three blocks, of one.
    let count = |wanted: fn(&KfacWork) -> bool| units.iter().filter(|u| wanted(&u.work)).count();
    assert_eq!(count(|w| matches!(w, KfacWork::Curvature { .. })), 6 * MICRO_BATCHES);
    assert_eq!(count(|w| matches!(w, KfacWork::Sync { .. })), 6);
    assert_eq!(count(|w| matches!(w, KfacWork::Invert { .. })), 6);
    assert_eq!(count(|w| matches!(w, KfacWork::Spread { .. })), 0);
    assert_eq!(count(|w| matches!(w, KfacWork::Precondition { .. })), 2);
    for (number, unit) in units.iter().enumerate() {
        assert!(unit.after.iter().all(|before| *before < number), "{unit:?}");
        b.reset_counts();
        match unit.work {
            KfacWork::Curvature { factor, outputs, micro, param } => {
                let width = if outputs { params[param].value.rows } else { params[param].value.cols };
                optimizer.kfac_curvature(&mut b, factor, x.columns(0, width), micro > 0).unwrap();
            }
            work => optimizer.kfac_work(&mut b, &mut Alone, work).unwrap(),
        }
        assert!((b.flops().0 / unit.flops - 1.0).abs() < 1e-9, "{unit:?}: {:?}", b.flops());
        let needs =
            |wanted: fn(&KfacWork) -> bool| unit.after.iter().filter(|i| wanted(&units[**i].work)).count();
        match unit.work {
            KfacWork::Curvature { micro, .. } => assert_eq!(unit.after.len(), micro.min(1)),
            KfacWork::Sync { .. } => assert_eq!(needs(|w| matches!(w, KfacWork::Curvature { .. })), 1),
            KfacWork::Invert { .. } => assert!(needs(|w| matches!(w, KfacWork::Sync { .. })) >= 2),
            _ => assert!(unit.after.is_empty()),
        }
    }
    let missing = optimizer.kfac_work(&mut b, &mut Alone, KfacWork::Invert { factor: 6 }).unwrap_err();
    assert!(missing.to_string().contains("kfac_units"), "{missing}");
    let other = OptimConfig::default();
    assert!(Optimizer::new(&mut b, &params, &other).unwrap().kfac_units(1, 8).is_empty());
}
