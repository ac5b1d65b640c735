//! Every optimizer: trajectories of PyTorch and transformers, memory, exact continuation, threads.

use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{
    AdafactorConfig, KfacConfig, MuonConfig, MuonMethod, MuonScale, OptimConfig, OptimError, OptimParam,
    Optimizer, OptimizerChoice, SgdConfig, StateView, is_state_name,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::DType;

const ALL: [OptimizerChoice; 6] = [
    OptimizerChoice::AdamW,
    OptimizerChoice::Sgd,
    OptimizerChoice::Adafactor,
    OptimizerChoice::Lion,
    OptimizerChoice::Muon,
    OptimizerChoice::Kfac,
];

fn cpu(threads: usize) -> CpuBackend {
    crate::instruction_set::cpu(threads)
}

fn tensor(b: &mut dyn Backend, rows: usize, cols: usize) -> View {
    let spec = BufferSpec { class: "test", name: "x", dtype: DType::F32, len: rows * cols };
    b.alloc(spec).unwrap().matrix(rows, cols)
}

fn param(b: &mut dyn Backend, name: &str, rows: usize, cols: usize, blocks: &[usize]) -> OptimParam {
    let (value, grad) = (tensor(b, rows, cols), tensor(b, rows, cols));
    OptimParam { blocks: blocks.to_vec(), ..OptimParam::new(name, value, grad, rows > 1) }
}

fn read_state(b: &mut dyn Backend, state: StateView) -> Vec<f32> {
    let mut values = vec![0.0; state.len()];
    state.read(b, 0, &mut values).unwrap();
    values
}

fn read(b: &mut dyn Backend, view: View) -> Vec<f32> {
    let mut values = vec![0.0; view.len()];
    b.read_f32(view, &mut values).unwrap();
    values
}

fn config(optimizer: OptimizerChoice) -> OptimConfig {
    OptimConfig { optimizer, weight_decay: 0.0, clip: 0.0, ..OptimConfig::default() }
}

fn close(what: &str, found: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (f, w) in found.iter().zip(wanted) {
        assert!((f64::from(*f) - w).abs() < tolerance, "{what}: {found:?}, wanted {wanted:?}");
    }
}

/// Least squares on four points of y = 3 x1 + x2 - 2, sum of squared errors, zero start; w1, w2, b at the end.
fn regression(config: &OptimConfig, steps: u64) -> Vec<f32> {
    let mut b = cpu(1);
    let list = ["w", "b"].map(|name| {
        let p = param(&mut b, name, 1, if name == "w" { 2 } else { 1 }, &[]);
        OptimParam { decays: true, ..p }
    });
    let mut optimizer = Optimizer::new(&mut b, &list, config).unwrap();
    for t in 1..=steps {
        let at = [read(&mut b, list[0].value), read(&mut b, list[1].value)].concat();
        let mut gradient = [0.0f64; 3];
        for [x1, x2] in [[2.0f64, 1.0], [7.0, 4.0], [-4.0, 12.0], [5.0, 8.0]] {
            let inputs = [x1, x2, 1.0];
            let y: f64 = inputs.iter().zip(&at).map(|(x, w)| x * f64::from(*w)).sum();
            let error = y - (3.0 * x1 + x2 - 2.0);
            gradient.iter_mut().zip(inputs).for_each(|(g, x)| *g += 2.0 * error * x);
        }
        let gradient = gradient.map(|g| g as f32);
        b.write_f32(list[0].grad, &gradient[..2]).unwrap();
        b.write_f32(list[1].grad, &gradient[2..]).unwrap();
        optimizer.step(&mut b, t, config.lr).unwrap();
    }
    [read(&mut b, list[0].value), read(&mut b, list[1].value)].concat()
}

/// Ends of the trajectories of torch.optim.SGD (PyTorch 2.15, f64), and the published one of Lion.
#[test]
fn regressions_end_where_pytorch_ends() {
    let sgd = |lr, momentum, nesterov| OptimConfig {
        lr,
        sgd: SgdConfig { momentum, nesterov },
        ..config(OptimizerChoice::Sgd)
    };
    let plain = regression(&sgd(0.004, 0.0, false), 1000);
    close("sgd", &plain, &[2.998_319_83, 0.997_902_15, -1.979_690_30], 2e-5);
    let momentum = regression(&sgd(0.0005, 0.9, false), 20);
    close("momentum", &momentum, &[1.986_538_06, 1.277_805_77, 0.131_467_01], 2e-5);
    let nesterov = regression(&sgd(0.0005, 0.9, true), 20);
    close("nesterov", &nesterov, &[2.474_920_39, 0.859_583_34, 0.118_564_25], 2e-5);
    let lion = OptimConfig { lr: 0.01, beta2: 0.99, weight_decay: 0.01, ..config(OptimizerChoice::Lion) };
    close("lion", &regression(&lion, 100), &[0.995_066_13; 3], 1e-5);
}

/// Values of a 2 x 3 matrix and a vector of two after `steps` steps with gradients cos(3i + 5j + t) and sin(2i + t).
fn waves(config: &OptimConfig, steps: u64) -> [Vec<f32>; 2] {
    let mut b = cpu(2);
    let list = [param(&mut b, "p", 2, 3, &[2]), param(&mut b, "v", 1, 2, &[])];
    let list = list.map(|p| OptimParam { decays: true, ..p });
    b.write_f32(list[0].value, &[0.5, -1.0, 2.0, 1.5, 0.25, -0.75]).unwrap();
    b.write_f32(list[1].value, &[0.3, -0.6]).unwrap();
    let mut optimizer = Optimizer::new(&mut b, &list, config).unwrap();
    for t in 1..=steps {
        let matrix: Vec<f32> =
            (0..6).map(|e| ((3 * (e / 3) + 5 * (e % 3)) as f64 + t as f64).cos() as f32).collect();
        let vector: Vec<f32> = (0..2).map(|i| (2.0 * f64::from(i) + t as f64).sin() as f32).collect();
        b.write_f32(list[0].grad, &matrix).unwrap();
        b.write_f32(list[1].grad, &vector).unwrap();
        optimizer.step(&mut b, t, config.lr).unwrap();
    }
    list.map(|p| read(&mut b, p.value))
}

/// transformers' Adafactor in f64, five steps.
#[test]
fn adafactor_follows_transformers() {
    let base = |adafactor| OptimConfig { lr: 0.05, adafactor, ..config(OptimizerChoice::Adafactor) };
    let scaled = OptimConfig { weight_decay: 0.1, ..base(AdafactorConfig::default()) };
    let [p, v] = waves(&scaled, 5);
    let gold = [0.583_454_498, -0.942_390_445, 1.848_561_210, 1.367_818_890, 0.227_422_454, -0.699_223_956];
    close("scaled by size", &p, &gold, 2e-6);
    close("scaled by size, vector", &v, &[0.294_382_953, -0.571_766_098], 2e-6);

    let own = AdafactorConfig { scale_parameter: false, momentum: 0.9, ..Default::default() };
    let [p, v] = waves(&base(own), 5);
    let gold = [0.519_858_911, -1.015_983_083, 1.964_407_826, 1.486_174_893, 0.269_447_419, -0.742_353_800];
    close("with momentum", &p, &gold, 2e-6);
    close("with momentum, vector", &v, &[0.277_234_128, -0.584_730_716], 2e-6);

    let [p, v] = waves(&base(AdafactorConfig { relative_step: true, ..Default::default() }), 5);
    let gold = [0.519_705_693, -0.992_941_641, 1.981_411_540, 1.481_639_458, 0.245_735_869, -0.744_653_618];
    close("relative steps", &p, &gold, 2e-6);
    close("relative steps, vector", &v, &[0.300_192_205, -0.595_724_003], 2e-6);
}

/// The test of transformers: mean squared distance from [0.4, 0.2, -0.5], 1000 steps of 1e-2.
#[test]
fn adafactor_finds_the_target_of_the_transformers_test() {
    let mut b = cpu(1);
    let list = [param(&mut b, "w", 1, 3, &[])];
    b.write_f32(list[0].value, &[0.1, -0.2, -0.1]).unwrap();
    let adafactor = AdafactorConfig { scale_parameter: false, ..Default::default() };
    let config = OptimConfig { adafactor, ..config(OptimizerChoice::Adafactor) };
    let mut optimizer = Optimizer::new(&mut b, &list, &config).unwrap();
    let target = [0.4, 0.2, -0.5];
    for t in 1..=1000 {
        let w = read(&mut b, list[0].value);
        let grad: Vec<f32> = w.iter().zip(target).map(|(w, t)| 2.0 * (w - t as f32) / 3.0).collect();
        b.write_f32(list[0].grad, &grad).unwrap();
        optimizer.step(&mut b, t, 1e-2).unwrap();
    }
    close("target", &read(&mut b, list[0].value), &target, 1e-2);
}

/// The published iteration in f64 (NumPy), three steps of rate 0.02 and decay 0.1. torch.optim.Muon, whose iteration is
/// in bf16, ends within 4e-4 of the first.
#[test]
fn muon_follows_its_formula() {
    let of = |scale| OptimConfig {
        lr: 0.02,
        weight_decay: 0.1,
        muon: MuonConfig { scale, ..Default::default() },
        ..config(OptimizerChoice::Muon)
    };
    let gold = [0.521_050_368, -1.002_609_058, 1.959_102_287, 1.514_752_025, 0.281_963_759, -0.750_259_926];
    close("jordan", &waves(&of(MuonScale::Jordan), 3)[0], &gold, 1e-5);
    let gold = [0.505_335_211, -0.996_990_103, 1.978_005_214, 1.499_239_699, 0.260_094_145, -0.747_154_765];
    close("moonlight", &waves(&of(MuonScale::Moonlight), 3)[0], &gold, 1e-5);
    // A rate of its own for the matrix leaves the vector to AdamW at the common one.
    let own =
        OptimConfig { muon: MuonConfig { lr: 0.05, ..of(MuonScale::Jordan).muon }, ..of(MuonScale::Jordan) };
    let (a, b) = (waves(&own, 3), waves(&of(MuonScale::Jordan), 3));
    assert!(a[1] == b[1] && a[0] != b[0]);
}

/// Gradients of step t.
fn draw(b: &mut dyn Backend, list: &[OptimParam], t: u64) {
    for p in list {
        let mut values = vec![0.0; p.grad.len()];
        RngKey::new(t, 0, &p.name).fill_normal(0, 0.1, &mut values);
        b.write_f32(p.grad, &values).unwrap();
    }
}

/// A fused matrix of three blocks, a tall and a wide one, a table and a vector; starts at normal values.
fn model(b: &mut dyn Backend) -> Vec<OptimParam> {
    let list = vec![
        param(b, "table", 50, 24, &[]),
        param(b, "layers.0.qkv.weight", 48, 24, &[24, 12, 12]),
        param(b, "layers.0.up.weight", 96, 24, &[96]),
        param(b, "layers.0.down.weight", 24, 96, &[24]),
        param(b, "norm", 1, 24, &[]),
    ];
    for p in &list {
        let mut values = vec![0.0; p.value.len()];
        RngKey::new(77, 0, &p.name).fill_normal(0, 0.3, &mut values);
        b.write_f32(p.value, &values).unwrap();
    }
    list
}

/// Inputs and output gradients of every hidden matrix for the step, in two micro-batches of 40 tokens.
fn capture(b: &mut dyn Backend, optimizer: &mut Optimizer, list: &[OptimParam], at: &[(View, View)], t: u64) {
    if !optimizer.captures(t) {
        return;
    }
    for micro in 0..2u64 {
        for (i, (x, dy)) in at.iter().enumerate().filter(|(i, _)| !list[*i].blocks.is_empty()) {
            for (what, view, std) in [("x", x, 1.0), ("dy", dy, 0.01)] {
                let mut values = vec![0.0; view.len()];
                RngKey::new(100 * t + micro, 0, &format!("{what} {i}")).fill_normal(0, std, &mut values);
                b.write_f32(*view, &values).unwrap();
            }
            optimizer.capture(b, i, (*x, *dy), micro > 0).unwrap();
        }
    }
}

/// Values after nine steps, whose state moves to a fresh optimizer after `moved_after`.
fn nine_steps(choice: OptimizerChoice, threads: usize, moved_after: u64) -> Vec<u32> {
    let mut b = cpu(threads);
    let list = model(&mut b);
    let at: Vec<_> =
        list.iter().map(|p| (tensor(&mut b, 40, p.value.cols), tensor(&mut b, 40, p.value.rows))).collect();
    let config = OptimConfig {
        optimizer: choice,
        adafactor: AdafactorConfig { momentum: 0.9, ..Default::default() },
        kfac: KfacConfig { curvature_every: 2, inverse_every: 3, ..Default::default() },
        ..OptimConfig::default()
    };
    let make = |b: &mut CpuBackend| {
        let mut optimizer = Optimizer::new(b, &list, &config).unwrap();
        optimizer.plan_capture(b, 40, DType::F32).unwrap();
        optimizer
    };
    let mut optimizer = make(&mut b);
    for t in 1..=9 {
        capture(&mut b, &mut optimizer, &list, &at, t);
        draw(&mut b, &list, t);
        assert!(!optimizer.step(&mut b, t, 1e-2).unwrap().skipped);
        if t == moved_after {
            let mut next = make(&mut b);
            let wanted: Vec<_> =
                optimizer.states().into_iter().map(|s| (s.0, read_state(&mut b, s.1))).collect();
            for (name, values) in wanted {
                next.restore(&mut b, &name, &values).unwrap();
            }
            next.adopt_state(&mut b).unwrap();
            optimizer = next;
        }
    }
    let values: Vec<u32> = list
        .iter()
        .flat_map(|p| read(&mut b, p.value))
        .map(|v| if v.is_finite() { v.to_bits() } else { 0 })
        .collect();
    assert!(!values.contains(&0), "{choice:?} made a value that is not finite");
    values
}

#[test]
fn state_moves_to_another_optimizer_and_threads_come_and_go_without_a_bit_changing() {
    for choice in ALL {
        let straight = nine_steps(choice, 1, 99);
        for (threads, moved) in [(2, 99), (3, 4), (1, 5)] {
            assert!(straight == nine_steps(choice, threads, moved), "{choice:?} {threads} {moved}");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_whatever_the_optimizer() {
    for choice in ALL {
        let mut b = cpu(1);
        let list = model(&mut b);
        let at: Vec<_> = list
            .iter()
            .map(|p| (tensor(&mut b, 40, p.value.cols), tensor(&mut b, 40, p.value.rows)))
            .collect();
        let mut optimizer = Optimizer::new(&mut b, &list, &config(choice)).unwrap();
        optimizer.plan_capture(&mut b, 40, DType::F32).unwrap();
        for t in 1..=3 {
            capture(&mut b, &mut optimizer, &list, &at, t);
            draw(&mut b, &list, t);
            let all = |b: &mut CpuBackend, optimizer: &Optimizer| -> Vec<f32> {
                let values = list.iter().map(|p| StateView::from(p.value));
                let views = values.chain(optimizer.states().into_iter().map(|s| s.1));
                views.flat_map(|v| read_state(b, v)).collect()
            };
            let before = all(&mut b, &optimizer);
            let broken = t == 2;
            if broken {
                let mut grad = read(&mut b, list[2].grad);
                grad[17] = f32::NAN;
                b.write_f32(list[2].grad, &grad).unwrap();
            }
            let stats = optimizer.step(&mut b, t, 1e-2).unwrap();
            assert_eq!(stats.skipped, broken, "{choice:?}");
            assert_eq!(before == all(&mut b, &optimizer), broken, "{choice:?} step {t}");
        }
    }
}

/// K-FAC on one linear layer with squared loss and exact statistics (inputs as they are, unit covariance of the output
/// gradients of the model's own distribution) is Newton's method: one step ends at the least-squares solution.
#[test]
fn kfac_solves_least_squares_in_one_step() {
    let (n, i, o) = (64, 5, 3);
    let mut b = cpu(2);
    let list = [param(&mut b, "w", o, i, &[o])];
    let normal = |what: &str, len: usize| {
        let mut values = vec![0.0f32; len];
        RngKey::new(3, 0, what).fill_normal(0, 1.0, &mut values);
        values
    };
    let (inputs, start, truth) = (normal("x", n * i), normal("w", o * i), normal("truth", o * i));
    // Unit covariance: row t is sqrt(n) / n times a unit vector, the three in turn, so that n sum dy dy^T = c I.
    let mut outputs = vec![0.0f32; n * o];
    (0..n).for_each(|t| outputs[t * o + t % o] = (o as f32).sqrt() / n as f32);
    let (x, dy) = (tensor(&mut b, n, i), tensor(&mut b, n, o));
    b.write_f32(x, &inputs).unwrap();
    b.write_f32(dy, &outputs).unwrap();
    b.write_f32(list[0].value, &start).unwrap();
    let kfac = KfacConfig { momentum: 0.0, damping: 0.0, kl_clip: 0.0, ..Default::default() };
    let config = OptimConfig { lr: 1.0, kfac, ..config(OptimizerChoice::Kfac) };
    let mut optimizer = Optimizer::new(&mut b, &list, &config).unwrap();
    assert!(matches!(optimizer.step(&mut b, 1, 1.0), Err(OptimError::NoCurvature)));
    optimizer.plan_capture(&mut b, n, DType::F32).unwrap();
    optimizer.capture(&mut b, 0, (x, dy), false).unwrap();
    // Mean over rows of (W - truth) x x^T.
    let mut grad = vec![0.0f32; o * i];
    for row in inputs.chunks(i) {
        for out in 0..o {
            let error: f32 = (0..i).map(|k| (start[out * i + k] - truth[out * i + k]) * row[k]).sum();
            (0..i).for_each(|k| grad[out * i + k] += error * row[k] / n as f32);
        }
    }
    b.write_f32(list[0].grad, &grad).unwrap();
    optimizer.step(&mut b, 1, 1.0).unwrap();
    // n = 64 is no multiple of three: the covariance is 22/64, 21/64, 21/64 times 3.
    for (out, (found, (w, t))) in
        read(&mut b, list[0].value).chunks(i).zip(start.chunks(i).zip(truth.chunks(i))).enumerate()
    {
        let c = 3.0 * if out == 0 { 22.0 } else { 21.0 } / 64.0;
        for k in 0..i {
            let wanted = w[k] - (w[k] - t[k]) / c;
            assert!((found[k] - wanted).abs() < 2e-4, "({out}, {k}): {}, wanted {wanted}", found[k]);
        }
    }
}

/// The limit on the change of the distribution shortens a step by a factor, and does not turn it.
#[test]
fn kfac_steps_are_cut_to_the_trust_region() {
    let step = |kl_clip: f64| {
        let mut b = cpu(1);
        let list = model(&mut b);
        let at: Vec<_> = list
            .iter()
            .map(|p| (tensor(&mut b, 40, p.value.cols), tensor(&mut b, 40, p.value.rows)))
            .collect();
        let kfac = KfacConfig { kl_clip, momentum: 0.0, ..Default::default() };
        let config = OptimConfig { kfac, ..config(OptimizerChoice::Kfac) };
        let mut optimizer = Optimizer::new(&mut b, &list, &config).unwrap();
        optimizer.plan_capture(&mut b, 40, DType::F32).unwrap();
        capture(&mut b, &mut optimizer, &list, &at, 1);
        draw(&mut b, &list, 1);
        let before = read(&mut b, list[2].value);
        optimizer.step(&mut b, 1, 1.0).unwrap();
        let after = read(&mut b, list[2].value);
        before.iter().zip(after).map(|(x, y)| f64::from(*x - y)).collect::<Vec<_>>()
    };
    let (free, cut, shorter) = (step(0.0), step(1e-4), step(1e-6));
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!(norm(&cut) < 0.5 * norm(&free));
    assert!((norm(&cut) / norm(&shorter) - 10.0).abs() < 0.05, "{} {}", norm(&cut), norm(&shorter));
    let cosine = free.iter().zip(&cut).map(|(a, b)| a * b).sum::<f64>() / norm(&free) / norm(&cut);
    assert!(cosine > 0.999, "{cosine}");
}

#[test]
fn blocks_of_a_fused_matrix_are_stepped_as_if_they_were_matrices_of_their_own() {
    for method in [MuonMethod::NewtonSchulz, MuonMethod::PolarExpress] {
        let muon = MuonConfig { method, ..Default::default() };
        let config = OptimConfig { muon, ..config(OptimizerChoice::Muon) };
        let mut b = cpu(1);
        let fused = param(&mut b, "fused", 48, 24, &[24, 12, 12]);
        let parts = [24, 12, 12].map(|rows| param(&mut b, "part", rows, 24, &[rows]));
        draw(&mut b, std::slice::from_ref(&fused), 1);
        let values = read(&mut b, fused.grad);
        let mut at = 0;
        for p in &parts {
            b.write_f32(p.grad, &values[at..at + p.grad.len()]).unwrap();
            at += p.grad.len();
        }
        for list in [&[fused.clone()][..], &parts] {
            Optimizer::new(&mut b, list, &config).unwrap().step(&mut b, 1, 0.1).unwrap();
        }
        let together = read(&mut b, fused.value);
        let apart: Vec<f32> = parts.iter().flat_map(|p| read(&mut b, p.value)).collect();
        assert_eq!(together, apart);
    }
}

#[test]
fn a_scale_of_the_rate_scales_the_update_and_leaves_decay_alone() {
    for choice in [OptimizerChoice::AdamW, OptimizerChoice::Sgd, OptimizerChoice::Lion, OptimizerChoice::Muon]
    {
        let moved = |lr_scale: f64, gradient: bool| {
            let mut b = cpu(1);
            let list = [OptimParam { lr_scale, decays: true, ..param(&mut b, "w", 8, 8, &[8]) }];
            b.write_f32(list[0].value, &[1.0; 64]).unwrap();
            if gradient {
                draw(&mut b, &list, 1);
            }
            let config = OptimConfig { weight_decay: if gradient { 0.0 } else { 0.5 }, ..config(choice) };
            Optimizer::new(&mut b, &list, &config).unwrap().step(&mut b, 1, 0.1).unwrap();
            read(&mut b, list[0].value)
        };
        for (whole, quarter) in moved(1.0, true).iter().zip(moved(0.25, true)) {
            assert!(((1.0 - whole) * 0.25 - (1.0 - quarter)).abs() < 1e-6, "{choice:?} {whole} {quarter}");
        }
        for value in moved(0.25, false) {
            assert!((value - 0.95).abs() < 1e-6, "{choice:?} {value}");
        }
    }
}

#[test]
fn states_are_told_from_parameters_by_name() {
    for choice in ALL {
        let mut b = NullBackend::new();
        let list = model(&mut b);
        let states = Optimizer::new(&mut b, &list, &config(choice)).unwrap().states();
        assert!(!states.is_empty());
        assert!(states.iter().all(|s| is_state_name(&s.0)), "{states:?}");
    }
    for name in ["gpt2", "llama"] {
        let model = bessemer_arch::named(name).unwrap();
        assert!(model.params().iter().all(|p| !is_state_name(&p.name)), "{name}");
    }
}

/// What each optimizer's file says, on the matrices of `model`: P values in all, H of them in hidden matrices.
#[test]
fn state_takes_the_bytes_that_the_formulas_say() {
    let (table, qkv, up, down, norm) = (50 * 24, 48 * 24, 96 * 24, 24 * 96, 24);
    let hidden = qkv + up + down;
    let all = hidden + table + norm;
    // For each of the 5 parameters: the sum of its squares, and 5 numbers of the step.
    let numbers = 6 * 5;
    let muon_scratch = 2 * up + 2 * 24 * 24 + 1;
    // Two factors and the batch at hand: inputs once, outputs by block.
    let squares =
        |inputs: usize, blocks: &[usize]| 3 * (inputs * inputs + blocks.iter().map(|b| b * b).sum::<usize>());
    let factors = squares(24, &[24, 12, 12]) + squares(24, &[96]) + squares(96, &[24]);
    // A sum for each factor, two counts, three numbers of the step.
    let kfac_scratch = 2 * 96 * 96 + 2 * up + 8 + 2 + 3;
    let wanted = |choice| match choice {
        OptimizerChoice::AdamW => 2 * all,
        OptimizerChoice::Sgd | OptimizerChoice::Lion => all,
        OptimizerChoice::Adafactor => (50 + 24) + (48 + 24) + (96 + 24) + (24 + 96) + norm + 2,
        OptimizerChoice::Muon => hidden + 2 * (table + norm) + muon_scratch,
        OptimizerChoice::Kfac => factors + hidden + 2 * (table + norm) + kfac_scratch,
    };
    for choice in ALL {
        let mut b = NullBackend::new();
        let list = model(&mut b);
        let mut optimizer = Optimizer::new(&mut b, &list, &config(choice)).unwrap();
        let bytes = b.memory().classes.iter().find(|c| c.0 == "optimizer").unwrap().1.0;
        assert_eq!(bytes as usize, 4 * (wanted(choice) + numbers), "{choice:?}");
        if choice != OptimizerChoice::Kfac {
            optimizer.step(&mut b, 1, 1e-3).unwrap();
        }
    }
    let mut b = NullBackend::new();
    let list = model(&mut b);
    let plain =
        OptimConfig { sgd: SgdConfig { momentum: 0.0, nesterov: false }, ..config(OptimizerChoice::Sgd) };
    assert!(Optimizer::new(&mut b, &list, &plain).unwrap().states().is_empty());
}
