//! A warm step of any optimizer allocates nothing. Alone in its file: another test's allocations would be counted too.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use bessemer_counting_alloc::{CountingAllocator, allocations};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::{KfacConfig, OptimConfig, OptimParam, Optimizer, OptimizerChoice, StateChoice};
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::DType;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn filled(b: &mut CpuBackend, rows: usize, cols: usize) -> View {
    let spec = BufferSpec { class: "test", name: "x", dtype: DType::F32, len: rows * cols };
    let view = b.alloc(spec).unwrap().matrix(rows, cols);
    let values: Vec<f32> = (0..rows * cols).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect();
    b.write_f32(view, &values).unwrap();
    view
}

#[test]
fn a_warm_step_allocates_nothing() {
    let mut b = CpuBackend::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
    let int8 = (OptimizerChoice::AdamW, StateChoice::Int8);
    for (optimizer, state) in [
        OptimizerChoice::AdamW,
        OptimizerChoice::Sgd,
        OptimizerChoice::Adafactor,
        OptimizerChoice::Lion,
        OptimizerChoice::Muon,
        OptimizerChoice::Kfac,
    ]
    .map(|optimizer| (optimizer, StateChoice::F32))
    .into_iter()
    .chain([int8])
    {
        let list: Vec<OptimParam> = [(48, 24, vec![24, 24]), (24, 48, vec![24]), (1, 24, vec![])]
            .into_iter()
            .map(|(rows, cols, blocks)| {
                let (value, grad) = (filled(&mut b, rows, cols), filled(&mut b, rows, cols));
                OptimParam { blocks, elements: 4096, ..OptimParam::new("w", value, grad, true) }
            })
            .collect();
        let kfac = KfacConfig { inverse_every: 2, ..Default::default() };
        let config = OptimConfig { optimizer, state, kfac, ..OptimConfig::default() };
        let mut o = Optimizer::new(&mut b, &list, &config).unwrap();
        o.plan_capture(&mut b, 20, DType::F32).unwrap();
        let at = [
            (filled(&mut b, 20, 24), filled(&mut b, 20, 48)),
            (filled(&mut b, 20, 48), filled(&mut b, 20, 24)),
        ];
        let mut t = 0;
        let mut step = || {
            t += 1;
            if o.captures(t) {
                for (i, at) in at.iter().enumerate() {
                    o.capture(&mut b, i, *at, false).unwrap();
                }
            }
            let norm = o.grad_norm(&mut b).unwrap();
            o.apply(&mut b, t, 1e-3, norm).unwrap();
        };
        step();
        // The least of a few: a thread that the system starts late allocates its name in one of them.
        let least = (0..4)
            .map(|_| {
                let before = allocations();
                step();
                step();
                allocations() - before
            })
            .min();
        assert_eq!(least, Some(0), "{optimizer:?} {state:?}");
    }
}
