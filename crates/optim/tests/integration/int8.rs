//! AdamW's moments in 8 bits.

use bessemer_arch::ParamClass;
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, StateChoice, StateView};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::quantise::{SIGNED, UNSIGNED};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::DType;

const SHAPE: (usize, usize) = (48, 100);

fn cpu() -> CpuBackend {
    crate::instruction_set::cpu(2)
}

fn tensor(b: &mut dyn Backend, rows: usize, cols: usize, dtype: DType) -> View {
    let spec = BufferSpec { class: "test", name: "x", dtype, len: rows * cols };
    b.alloc(spec).unwrap().matrix(rows, cols)
}

fn param(b: &mut dyn Backend, name: &str, shape: (usize, usize)) -> OptimParam {
    let (rows, cols) = shape;
    let (value, grad) = (tensor(b, rows, cols, DType::F32), tensor(b, rows, cols, DType::F32));
    OptimParam::new(name, value, grad, rows > 1)
}

fn config(state: StateChoice) -> OptimConfig {
    OptimConfig { state, clip: 0.0, ..OptimConfig::default() }
}

/// Gradients of step `t`: rows of sizes from 1 to 1e-5, and a value of 0.
fn draw(b: &mut dyn Backend, grad: View, t: u64) {
    let mut values = vec![0.0; grad.len()];
    RngKey::new(t, 0, "gradient").fill_normal(0, 1.0, &mut values);
    let scaled = values.iter().enumerate().map(|(i, x)| x * 0.1f32.powi((i / 97 % 6) as i32));
    let mut values: Vec<f32> = scaled.collect();
    values[7] = 0.0;
    b.write_f32(grad, &values).unwrap();
}

fn read(b: &mut dyn Backend, state: impl Into<StateView>) -> Vec<f32> {
    let state = state.into();
    let mut values = vec![0.0; state.len()];
    state.read(b, 0, &mut values).unwrap();
    values
}

fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |most, x| f64::from(x.abs()).max(most))
}

/// Both optimizers see the same gradients, which do not depend on the parameter. Each update adds to a moment's error at most
/// the code's bound times the block's scale, and keeps beta of what was there: after T updates it is at most
/// `bound S (1 - beta^T) / (1 - beta)` with S the largest scale so far. Second moments that the table would take for zero are above
/// their value by at most its least one, 3.25e-7 of the scale, which is within the bound.
#[test]
fn moments_stay_within_the_sum_of_what_each_update_rounds_by() {
    let mut b = cpu();
    let [exact, short] = [StateChoice::F32, StateChoice::Int8].map(|state| {
        let p = param(&mut b, "w", SHAPE);
        let optimizer = Optimizer::new(&mut b, std::slice::from_ref(&p), &config(state)).unwrap();
        (p, optimizer)
    });
    let ((p, mut exact), (q, mut short)) = (exact, short);
    let c = config(StateChoice::F32);
    let mut scales = [0.0f64; 2];
    for t in 1..=60 {
        draw(&mut b, p.grad, t);
        draw(&mut b, q.grad, t);
        exact.step(&mut b, t, 1e-3).unwrap();
        short.step(&mut b, t, 1e-3).unwrap();
        if t == 1 {
            assert_eq!(read(&mut b, p.value), read(&mut b, q.value), "the first update is that in f32");
        }
        let codes = [(c.beta1, SIGNED.bound()), (c.beta2, UNSIGNED.bound())];
        for (i, (beta, bound)) in codes.into_iter().enumerate() {
            let (x, y) = (read(&mut b, exact.states()[i].1), read(&mut b, short.states()[i].1));
            scales[i] = scales[i].max(largest(&y));
            let most = f64::from(bound) * scales[i] * (1.0 - beta.powi(t as i32)) / (1.0 - beta);
            let off = x.iter().zip(&y).fold(0.0, |most, (x, y)| f64::from((x - y).abs()).max(most));
            // What f32 rounds by besides, in each of t updates of a few operations.
            let rounding = 4.0 * t as f64 * scales[i] / 16_777_216.0;
            assert!(off <= most + rounding, "update {t}, moment {i}: {off}, bound {most}");
            assert!(t < 10 || off > 0.0);
        }
    }
    assert!(read(&mut b, q.value).iter().all(|x| x.is_finite()));
}

/// Values after five steps; the state moves to a fresh optimizer after `moved_after` of them, by way of f32 values.
fn five_steps(moved_after: u64, choice: StateChoice) -> (Vec<f32>, Vec<f32>) {
    let mut b = cpu();
    let p = param(&mut b, "w", SHAPE);
    let make =
        |b: &mut CpuBackend| Optimizer::new(b, std::slice::from_ref(&p), &config(StateChoice::Int8)).unwrap();
    let mut optimizer = make(&mut b);
    for t in 1..=5 {
        draw(&mut b, p.grad, t);
        optimizer.step(&mut b, t, 1e-2).unwrap();
        if t == moved_after {
            // Through an optimizer of that choice, and back.
            let mut other = Optimizer::new(&mut b, std::slice::from_ref(&p), &config(choice)).unwrap();
            let mut next = make(&mut b);
            for (name, view) in optimizer.states() {
                let values = read(&mut b, view);
                other.restore(&mut b, &name, &values).unwrap();
            }
            for (name, view) in other.states() {
                let values = read(&mut b, view);
                next.restore(&mut b, &name, &values).unwrap();
            }
            optimizer = next;
        }
    }
    let moments = optimizer.states().into_iter().flat_map(|s| read(&mut b, s.1)).collect();
    (read(&mut b, p.value), moments)
}

#[test]
fn a_state_in_8_bits_that_went_through_f32_goes_on_with_the_same_bits() {
    let straight = five_steps(99, StateChoice::Int8);
    for moved_after in [1, 2, 4] {
        for choice in [StateChoice::F32, StateChoice::Int8, StateChoice::Int8Embeddings] {
            assert_eq!(straight, five_steps(moved_after, choice), "{moved_after} {choice:?}");
        }
    }
}

/// As data-parallel ranks see it: stretches that end between blocks.
#[test]
fn stretches_of_whole_blocks_have_the_bits_of_the_whole() {
    let mut b = cpu();
    let whole = param(&mut b, "w", SHAPE);
    let mut all = Optimizer::new(&mut b, std::slice::from_ref(&whole), &config(StateChoice::Int8)).unwrap();
    let other = param(&mut b, "w", (1, 4800));
    let stretches = [(0, 1024), (1024, 256), (1280, 3520)].map(|(first, len)| OptimParam {
        elements: 4800,
        ..OptimParam::new("w", other.value.columns(first, len), other.grad.columns(first, len), true)
    });
    let mut parts: Vec<_> = stretches
        .iter()
        .map(|p| Optimizer::new(&mut b, std::slice::from_ref(p), &config(StateChoice::Int8)).unwrap())
        .collect();
    for t in 1..=4 {
        draw(&mut b, whole.grad, t);
        draw(&mut b, other.grad, t);
        all.step(&mut b, t, 1e-2).unwrap();
        for part in &mut parts {
            part.step(&mut b, t, 1e-2).unwrap();
        }
    }
    assert_eq!(read(&mut b, whole.value), read(&mut b, other.value));
    for i in 0..2 {
        let of_parts: Vec<f32> = parts.iter().flat_map(|p| read(&mut b, p.states()[i].1)).collect();
        assert_eq!(read(&mut b, all.states()[i].1), of_parts);
        // From the middle of one block into another.
        let mut some = [0.0; 300];
        all.states()[i].1.read(&mut b, 1000, &mut some).unwrap();
        assert_eq!(some[..], of_parts[1000..1300]);
    }
}

#[test]
fn a_gradient_that_is_not_finite_leaves_codes_and_scales() {
    let mut b = cpu();
    let p = param(&mut b, "w", SHAPE);
    let mut optimizer = Optimizer::new(&mut b, std::slice::from_ref(&p), &config(StateChoice::Int8)).unwrap();
    draw(&mut b, p.grad, 1);
    optimizer.step(&mut b, 1, 1e-2).unwrap();
    let all = |b: &mut CpuBackend, o: &Optimizer| -> Vec<Vec<f32>> {
        let states = o.states().into_iter().map(|s| s.1);
        [p.value.into()].into_iter().chain(states).map(|s| read(b, s)).collect()
    };
    let before = all(&mut b, &optimizer);
    b.write_f32(p.grad.rows(3, 1).columns(2, 1), &[f32::NAN]).unwrap();
    assert!(optimizer.step(&mut b, 2, 1e-2).unwrap().skipped);
    assert_eq!(before, all(&mut b, &optimizer));
}

/// 2 bytes a value and 8 a block of 256 for what is kept in 8 bits, 8 a value for the rest, 4 a value for masters, 24 a tensor.
#[test]
fn bytes_are_those_of_the_formula() {
    let classes = [
        ((64, 101), ParamClass::Matrix),
        ((63, 65), ParamClass::Matrix),
        ((100, 64), ParamClass::Embedding),
        ((1, 8192), ParamClass::Bias),
        ((1, 8192), ParamClass::Norm),
    ];
    let short = |n: usize| 2 * n + 8 * n.div_ceil(256);
    for (state, in_8_bits) in
        [(StateChoice::F32, vec![]), (StateChoice::Int8, vec![0]), (StateChoice::Int8Embeddings, vec![0, 2])]
    {
        for dtype in [DType::F32, DType::Bf16] {
            let mut b = NullBackend::new();
            let list = classes.map(|((rows, cols), class)| {
                let value = tensor(&mut b, rows, cols, dtype);
                OptimParam { value, class, ..param(&mut b, "w", (rows, cols)) }
            });
            let mut optimizer = Optimizer::new(&mut b, &list, &config(state)).unwrap();
            let bytes = |(i, p): (usize, &OptimParam)| {
                let n = p.value.len();
                let master = if dtype == DType::F32 { 0 } else { 4 * n };
                24 + master + if in_8_bits.contains(&i) { short(n) } else { 8 * n }
            };
            let wanted: usize = list.iter().enumerate().map(bytes).sum();
            let found = b.memory().classes.iter().find(|c| c.0 == "optimizer").unwrap().1.0;
            assert_eq!(found, wanted as u64, "{state:?} {dtype}");
            b.reset_counts();
            optimizer.step(&mut b, 1, 1e-3).unwrap();
            let launches = b.counts().get("adamw_int8").map_or(0, |c| c.launches);
            assert_eq!(launches, in_8_bits.len() as u64);
        }
    }
}

/// Moments that are written in stretches of whole blocks are those that are written at once; a part of a block is refused.
#[test]
fn moments_are_written_in_whole_blocks() {
    let mut b = cpu();
    let p = param(&mut b, "w", SHAPE);
    let optimizer = Optimizer::new(&mut b, std::slice::from_ref(&p), &config(StateChoice::Int8)).unwrap();
    let moments: Vec<StateView> = optimizer.states().into_iter().map(|(_, view)| view).collect();
    let len = SHAPE.0 * SHAPE.1;
    let mut values = vec![0.0; len];
    RngKey::new(1, 0, "moment").fill_normal(0, 1.0, &mut values);
    values.iter_mut().for_each(|x| *x = x.abs());
    let mut seen = 0;
    for moment in moments.iter().filter(|m| matches!(m, StateView::Int8(_))) {
        moment.write(&mut b, 0, &values).unwrap();
        let whole = read(&mut b, *moment);
        moment.write(&mut b, 0, &vec![0.0; len]).unwrap();
        for first in (0..len).step_by(1024) {
            moment.write(&mut b, first, &values[first..len.min(first + 1024)]).unwrap();
        }
        assert_eq!(read(&mut b, *moment), whole);
        for wrong in [1..257, 256..300] {
            let refused = moment.write(&mut b, wrong.start, &values[wrong.clone()]);
            assert!(refused.unwrap_err().to_string().contains("not whole blocks of 256"));
        }
        assert_eq!(read(&mut b, *moment), whole);
        seen += 1;
    }
    assert_eq!(seen, 2);
}
