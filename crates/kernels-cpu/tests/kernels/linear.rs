use crate::gradients::noise;
use crate::harness::{Setup, check, fast_rungs};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};
use bessemer_tensor::op::{ActivationKind, Linear, LinearBackwardInput, LinearBackwardWeight, Op};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
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

#[test]
fn forward_agrees_with_the_reference() {
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
        check(&format!("linear {n}x{inputs}x{outputs}"), tolerance, &|s| {
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
#[test]
fn rows_of_a_rowwise_product_do_not_depend_on_their_number() {
    let (inputs, outputs) = (67, 133);
    let product = |first: usize, rows: usize, threads: usize| {
        let mut s = Setup::new(Rung::detect(), threads);
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

#[test]
fn input_gradient_agrees_with_the_reference() {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let tolerance = 4e-6 * (outputs as f32).sqrt() + 2e-6;
        check(&format!("input gradient {n}x{inputs}x{outputs}"), tolerance, &|s| {
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

#[test]
fn weight_gradient_agrees_with_the_reference() {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let tolerance = 4e-6 * (n as f32).sqrt() + 2e-6;
        check(&format!("weight gradient {n}x{inputs}x{outputs}"), tolerance, &|s| {
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

/// A matrix times its own transpose, of which engines may compute one half: the bits of a product with a copy.
#[test]
fn products_with_oneself_have_the_bits_of_products_with_a_copy() {
    for (rows, k) in [(1, 40), (7, 40), (48, 64), (65, 1100), (97, 33), (200, 192)] {
        let engines = fast_rungs().flat_map(|rung| Engine::ALL.into_iter().map(move |engine| (engine, rung)));
        for (engine, rung) in engines.filter(|(engine, rung)| engine.available(*rung)) {
            for (threads, dtype) in [(1, DType::F32), (2, DType::F32), (3, DType::F32), (2, DType::Bf16)] {
                let config = CpuConfig { threads, ..CpuConfig::default() };
                let mut b = CpuBackend::with_engine(config, rung, engine).unwrap();
                let mut matrix = |rows: usize, cols: usize, values: &[f32]| -> View {
                    let len = rows * (cols + 3);
                    let buffer = b.alloc(BufferSpec { class: "test", name: "x", dtype, len }).unwrap();
                    b.write_f32(buffer.matrix(rows, cols + 3).columns(0, cols), values).unwrap();
                    buffer.matrix(rows, cols + 3).columns(0, cols)
                };
                let mut values = vec![0.0; rows * k];
                RngKey::new(7, 0, "values").fill_normal(0, 1.0, &mut values);
                let (wide, copy) = (matrix(rows, k, &values), matrix(rows, k, &values));
                let (tall, tall_copy) = (matrix(k, rows, &values), matrix(k, rows, &values));
                let outs: Vec<View> =
                    (0..4).map(|_| matrix(rows, rows, &vec![f32::NAN; rows * rows])).collect();
                let linear = |weight, out| Linear {
                    x: wide,
                    weight,
                    bias: None,
                    activation: None,
                    residual: None,
                    rowwise: false,
                    out,
                };
                let gradient = |dy, dweight| LinearBackwardWeight {
                    x: tall,
                    dy,
                    dweight,
                    dbias: None,
                    accumulate: false,
                };
                let ops: [Op; 4] = [
                    linear(wide, outs[0]).into(),
                    linear(copy, outs[1]).into(),
                    gradient(tall, outs[2]).into(),
                    gradient(tall_copy, outs[3]).into(),
                ];
                for op in &ops {
                    let bytes = b.workspace(op).unwrap();
                    b.reserve_workspace(bytes).unwrap();
                    b.launch(Stream(0), op).unwrap();
                }
                let bits: Vec<Vec<u32>> = outs
                    .iter()
                    .map(|out| {
                        let mut values = vec![0.0; out.len()];
                        b.read_f32(*out, &mut values).unwrap();
                        values.into_iter().map(f32::to_bits).collect()
                    })
                    .collect();
                let what =
                    format!("{rows} x {k} {dtype} on {rung} with {}, {threads} threads", engine.name());
                assert_eq!(bits[0], bits[1], "rows: {what}");
                assert_eq!(bits[2], bits[3], "columns: {what}");
            }
        }
    }
}

/// The product, forward and backward, of f32 activations with weights of a type, all rounded to `values_of` before.
fn with_weights(
    mut b: CpuBackend,
    dtype: DType,
    values_of: DType,
    (n, i, o): (usize, usize, usize),
) -> Vec<f32> {
    let mut alloc = |dtype, rows: usize, cols: usize, seed| -> View {
        let view = b
            .alloc(BufferSpec { class: "test", name: "x", dtype, len: rows * cols })
            .unwrap()
            .matrix(rows, cols);
        let mut values = vec![0.0; view.len()];
        RngKey::new(seed, 0, "values").fill_normal(0, 1.0, &mut values);
        let rounded =
            b.alloc(BufferSpec { class: "test", name: "r", dtype: values_of, len: values.len() }).unwrap();
        b.write_f32(rounded.vector(), &values).unwrap();
        b.read_f32(rounded.vector(), &mut values).unwrap();
        b.write_f32(view, &values).unwrap();
        view
    };
    let (x, weight, bias) = (alloc(DType::F32, n, i, 1), alloc(dtype, o, i, 2), alloc(dtype, 1, o, 3));
    let (out, dx) = (alloc(DType::F32, n, o, 4), alloc(DType::F32, n, i, 5));
    let forward =
        Linear { x, weight, bias: Some(bias), activation: None, residual: None, rowwise: false, out };
    let backward = LinearBackwardInput { dy: out, weight, activation: None, dx, accumulate: false };
    for op in [forward.into(), backward.into()] {
        let bytes = b.workspace(&op).unwrap();
        b.reserve_workspace(bytes).unwrap();
        b.launch(Stream(0), &op).unwrap();
    }
    let mut values = vec![0.0; out.len() + dx.len()];
    let (first, second) = values.split_at_mut(out.len());
    b.read_f32(out, first).unwrap();
    b.read_f32(dx, second).unwrap();
    values
}

#[test]
fn weights_of_fewer_bits_are_as_good_as_their_values_in_f32() {
    let config = CpuConfig { threads: 2, ..CpuConfig::default() };
    for shape in [(3, 70, 33), (40, 130, 65), (33, 600, 48)] {
        for dtype in [DType::Bf16, DType::F16] {
            for rung in fast_rungs() {
                for engine in Engine::ALL.into_iter().filter(|e| e.available(rung)) {
                    let backend = || CpuBackend::with_engine(config.clone(), rung, engine).unwrap();
                    let narrow = with_weights(backend(), dtype, dtype, shape);
                    let wide = with_weights(backend(), DType::F32, dtype, shape);
                    // The tile unit takes fewer parts of a narrow operand, and k in longer stretches.
                    let exact = !matches!(engine, Engine::Amx3 | Engine::Amx6) && dtype == DType::Bf16
                        || matches!(engine, Engine::Fma | Engine::Fp16);
                    let near = if engine == Engine::Amx { 0.0 } else { 2e-5 };
                    for (a, b) in narrow.iter().zip(&wide) {
                        let fine = if exact {
                            a.to_bits() == b.to_bits()
                        } else {
                            (a - b).abs() <= near * b.abs().max(10.0)
                        };
                        assert!(fine, "{shape:?} {dtype} on {rung} with {}: {a} {b}", engine.name());
                    }
                }
            }
        }
    }
}
