use crate::setup::noise;
use crate::{Setup, Suite};
use bessemer_tensor::View;
use bessemer_tensor::op::{ActivationKind, Linear, LinearBackwardInput, LinearBackwardWeight, Op};
use bessemer_tensor::rng::RngKey;
use bessemer_units::DType;

/// (N, I, O): ones, odd and prime sizes, whole register tiles, several k blocks and several tiles.
const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 64, 100),
    (2, 5, 3),
    (4, 17, 65),
    (5, 17, 31),
    (14, 16, 32),
    (15, 385, 33),
    (28, 8, 64),
    (31, 127, 97),
    (64, 770, 48),
    (113, 40, 257),
    (130, 96, 65),
    (211, 13, 307),
    (257, 401, 129),
];

pub(crate) fn forward_agrees_with_the_reference(suite: &Suite<'_>) {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let (with_bias, with_activation, with_residual) = (i % 2 == 0, i % 3 == 0, i % 4 < 2);
        let kinds = [
            ActivationKind::GeluTanh,
            ActivationKind::Silu,
            ActivationKind::ReluSquared,
            ActivationKind::GeluErf,
            ActivationKind::Relu,
        ];
        let tolerance = 4e-6 * (inputs as f32).sqrt() + 2e-6;
        suite.check(&format!("linear {n}x{inputs}x{outputs}"), tolerance, &|s| {
            let gap = i % 3;
            Linear {
                x: s.act(n, inputs, gap),
                weight: s.param(outputs, inputs, 2 * gap),
                bias: with_bias.then(|| s.param(1, outputs, 0)),
                activation: with_activation.then(|| (kinds[i % 5], s.act(n, outputs, gap))),
                residual: with_residual.then(|| s.act(n, outputs, gap)),
                rowwise: false,
                out: s.act(n, outputs, gap + 1),
            }
            .into()
        });
    }
}

/// Rows of the product, each alone, in pairs or among many, have the same bits.
pub(crate) fn rows_of_a_rowwise_product_do_not_depend_on_their_number(suite: &Suite<'_>) {
    let (inputs, outputs) = (67, 133);
    let product = |first: usize, rows: usize, threads: usize| {
        let mut s = suite.setup(suite.fastest(), threads);
        let all = noise("x", 19 * inputs);
        let x = s.values(rows, inputs, &all[first * inputs..(first + rows) * inputs]);
        let (weight, bias) = (s.mat(outputs, inputs), s.mat(1, outputs));
        let (pre, out) = (s.mat(rows, outputs), s.mat(rows, outputs));
        let activation = Some((ActivationKind::GeluTanh, pre));
        let op = Linear { x, weight, bias: Some(bias), activation, residual: None, rowwise: true, out };
        s.launch(&op.into()).unwrap();
        s.read(out).iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    let together = product(0, 19, 2);
    for (first, rows) in [(0, 1), (18, 1), (3, 2), (5, 8), (2, 17), (0, 3)] {
        let wanted = &together[first * outputs..(first + rows) * outputs];
        assert!(product(first, rows, 1) == wanted, "rows {first} to {}", first + rows);
    }
}

pub(crate) fn input_gradient_agrees_with_the_reference(suite: &Suite<'_>) {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let tolerance = 4e-6 * (outputs as f32).sqrt() + 2e-6;
        suite.check(&format!("input gradient {n}x{inputs}x{outputs}"), tolerance, &|s| {
            let gap = (i + 1) % 3;
            LinearBackwardInput {
                dy: s.act(n, outputs, gap),
                weight: s.param(outputs, inputs, gap),
                activation: (i % 2 == 0).then(|| (ActivationKind::GeluTanh, s.act(n, inputs, gap))),
                dx: s.act(n, inputs, gap + 1),
                accumulate: i % 3 == 0,
            }
            .into()
        });
    }
}

pub(crate) fn weight_gradient_agrees_with_the_reference(suite: &Suite<'_>) {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let tolerance = 4e-6 * (n as f32).sqrt() + 2e-6;
        suite.check(&format!("weight gradient {n}x{inputs}x{outputs}"), tolerance, &|s| {
            let gap = i % 2;
            LinearBackwardWeight {
                x: s.act(n, inputs, gap),
                dy: s.act(n, outputs, gap),
                dweight: s.gradient(outputs, inputs, gap + 1),
                dbias: (i % 2 == 0).then(|| s.gradient(1, outputs, 0)),
                accumulate: i % 3 == 0,
            }
            .into()
        });
    }
}

/// A matrix of some type with values that follow from `seed`, rounded to `values_of` before, and `gap` elements between rows.
fn matrix(
    s: &mut Setup,
    dtype: DType,
    values_of: DType,
    rows: usize,
    cols: usize,
    gap: usize,
    seed: u64,
) -> View {
    let mut values = vec![0.0; rows * cols];
    RngKey::new(seed, 0, "values").fill_normal(0, 1.0, &mut values);
    let rounded = s.buffer(values_of, values.len()).vector();
    s.backend.write_f32(rounded, &values).unwrap();
    let values = s.read(rounded);
    let view = s.buffer(dtype, rows * (cols + gap)).matrix(rows, cols + gap).columns(0, cols);
    s.backend.write_f32(view, &values).unwrap();
    view
}

/// A matrix times its own transpose, of which engines may compute one half: the bits of a product with a copy.
pub(crate) fn products_with_oneself_have_the_bits_of_products_with_a_copy(suite: &Suite<'_>) {
    for (rows, k) in [(1, 40), (7, 40), (48, 64), (65, 1100), (97, 33), (200, 192)] {
        for (number, engine) in suite.devices.engines().iter().enumerate() {
            for (workers, dtype) in [(1, DType::F32), (2, DType::F32), (3, DType::F32), (2, DType::Bf16)] {
                let mut s = suite.engine_setup(number, workers);
                let [wide, copy] = [0, 1].map(|_| matrix(&mut s, dtype, dtype, rows, k, 3, 7));
                let [tall, tall_copy] = [0, 1].map(|_| matrix(&mut s, dtype, dtype, k, rows, 3, 7));
                let mut product = |op: &dyn Fn(View) -> Op| {
                    let out = matrix(&mut s, dtype, dtype, rows, rows, 3, 8);
                    s.backend.write_f32(out, &vec![f32::NAN; rows * rows]).unwrap();
                    s.launch(&op(out)).unwrap();
                    let values = s.read(out);
                    assert!(values.iter().all(|x| x.is_finite()));
                    values
                };
                let linear = |weight, out| {
                    let (bias, activation, residual) = (None, None, None);
                    Linear { x: wide, weight, bias, activation, residual, rowwise: false, out }.into()
                };
                let gradient = |dy, dweight| {
                    LinearBackwardWeight { x: tall, dy, dweight, dbias: None, accumulate: false }.into()
                };
                let what = format!("{rows} x {k} {dtype} by {}, {workers} workers", engine.name);
                let [one, two] = [wide, copy].map(|weight| product(&|out| linear(weight, out)));
                suite.same(&format!("rows: {what}"), &one, &two);
                let [one, two] = [tall, tall_copy].map(|dy| product(&|out| gradient(dy, out)));
                suite.same(&format!("columns: {what}"), &one, &two);
            }
        }
    }
}

/// The product, forward and backward, of f32 activations with weights of a type, all rounded to `values_of` before.
fn with_weights(mut s: Setup, dtype: DType, values_of: DType, (n, i, o): (usize, usize, usize)) -> Vec<f32> {
    let mut new = |dtype, rows, cols, seed| matrix(&mut s, dtype, values_of, rows, cols, 0, seed);
    let (x, weight, bias) = (new(DType::F32, n, i, 1), new(dtype, o, i, 2), Some(new(dtype, 1, o, 3)));
    let (out, dx) = (new(DType::F32, n, o, 4), new(DType::F32, n, i, 5));
    let forward = Linear { x, weight, bias, activation: None, residual: None, rowwise: false, out };
    let backward = LinearBackwardInput { dy: out, weight, activation: None, dx, accumulate: false };
    s.launch(&forward.into()).unwrap();
    s.launch(&backward.into()).unwrap();
    [s.read(out), s.read(dx)].concat()
}

pub(crate) fn weights_of_fewer_bits_are_as_good_as_their_values_in_f32(suite: &Suite<'_>) {
    for shape in [(3, 70, 33), (40, 130, 65), (33, 600, 48)] {
        for (number, engine) in suite.devices.engines().iter().enumerate() {
            for (dtype, bound) in [DType::Bf16, DType::F16].into_iter().zip(engine.reduced_parameters) {
                let product = |stored| with_weights(suite.engine_setup(number, 2), stored, dtype, shape);
                for (a, b) in product(dtype).iter().zip(&product(DType::F32)) {
                    let fine = a.to_bits() == b.to_bits()
                        || bound > 0.0 && (a - b).abs() <= bound * b.abs().max(10.0);
                    assert!(fine, "{shape:?} {dtype} by {}: {a} {b}", engine.name);
                }
            }
        }
    }
}
