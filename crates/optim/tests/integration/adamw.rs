//! AdamW on the CPU backend.

use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{OptimConfig, OptimError, OptimParam, Optimizer, StateView};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::DType;

fn cpu() -> CpuBackend {
    crate::instruction_set::cpu(1)
}

fn tensor(b: &mut dyn Backend, name: &str, rows: usize, cols: usize, dtype: DType) -> View {
    b.alloc(BufferSpec { class: "test", name, dtype, len: rows * cols }).unwrap().matrix(rows, cols)
}

fn param(b: &mut dyn Backend, name: &str, rows: usize, cols: usize) -> OptimParam {
    let (value, grad) =
        (tensor(b, name, rows, cols, DType::F32), tensor(b, "gradient", rows, cols, DType::F32));
    OptimParam::new(name, value, grad, rows > 1)
}

fn read(b: &mut dyn Backend, view: View) -> Vec<f32> {
    let mut values = vec![0.0; view.len()];
    b.read_f32(view, &mut values).unwrap();
    values
}

fn read_state(b: &mut dyn Backend, state: StateView) -> Vec<f32> {
    let mut values = vec![0.0; state.len()];
    state.read(b, 0, &mut values).unwrap();
    values
}

fn plain() -> OptimConfig {
    OptimConfig { clip: 0.0, weight_decay: 0.0, ..Default::default() }
}

/// Least squares on four points of y = 3 x1 + x2 - 2, sum of squared errors, zero start, 100 steps of learning rate 0.1,
/// betas 0.9 and 0.999, decay 0.01 on everything: the published end of the trajectory.
#[test]
fn the_published_regression_ends_where_it_should() {
    let mut b = cpu();
    let w = OptimParam { decays: true, ..param(&mut b, "w", 1, 2) };
    let bias = OptimParam { decays: true, ..param(&mut b, "b", 1, 1) };
    let config =
        OptimConfig { lr: 0.1, beta2: 0.999, weight_decay: 0.01, clip: 0.0, ..OptimConfig::default() };
    let mut adamw = Optimizer::new(&mut b, &[w.clone(), bias.clone()], &config).unwrap();
    let points = [[2.0f64, 1.0], [7.0, 4.0], [-4.0, 12.0], [5.0, 8.0]];
    for t in 1..=100 {
        let (at, c) = (read(&mut b, w.value), read(&mut b, bias.value)[0]);
        let mut gradient = [0.0f64; 3];
        for [x1, x2] in points {
            let y = 3.0 * x1 + x2 - 2.0;
            let error = f64::from(at[0]) * x1 + f64::from(at[1]) * x2 + f64::from(c) - y;
            for (g, x) in gradient.iter_mut().zip([x1, x2, 1.0]) {
                *g += 2.0 * error * x;
            }
        }
        b.write_f32(w.grad, &[gradient[0] as f32, gradient[1] as f32]).unwrap();
        b.write_f32(bias.grad, &[gradient[2] as f32]).unwrap();
        adamw.step(&mut b, t, 0.1).unwrap();
    }
    let found = [read(&mut b, w.value), read(&mut b, bias.value)].concat();
    for (found, wanted) in found.iter().zip([2.725_688_61, 0.709_697_57, 0.787_256_49]) {
        assert!((f64::from(*found) - wanted).abs() < 5e-6, "{found}, wanted {wanted}");
    }
}

/// One parameter whose gradient is drawn from `stream`.
fn draw(b: &mut dyn Backend, p: &OptimParam, stream: u64, std: f32) {
    let mut values = vec![0.0; p.grad.len()];
    RngKey::new(stream, 0, &p.name).fill_normal(0, std, &mut values);
    b.write_f32(p.grad, &values).unwrap();
}

#[test]
fn the_norm_is_over_all_parameters_and_a_long_gradient_is_scaled_to_the_limit() {
    let mut b = cpu();
    let list = [param(&mut b, "a", 1, 3), param(&mut b, "b", 2, 1)];
    b.write_f32(list[0].grad, &[1.0, -2.0, 4.0]).unwrap();
    b.write_f32(list[1].grad, &[6.0, -8.0]).unwrap();
    // With b1 = 0 the first moment is the gradient that the update saw.
    let config = OptimConfig { clip: 2.0, beta1: 0.0, ..plain() };
    let mut adamw = Optimizer::new(&mut b, &list, &config).unwrap();
    let stats = adamw.step(&mut b, 1, 1e-3).unwrap();
    assert_eq!((stats.grad_norm, stats.skipped), (11.0, false));
    assert!((stats.clip_factor - 2.0 / (11.0 + 1e-6)).abs() < 1e-12);
    let states = adamw.states();
    let (name, m) = &states[2];
    assert_eq!(name, "m.b");
    assert!((read_state(&mut b, *m)[1] + 16.0 / 11.0).abs() < 1e-5);

    let mut short = Optimizer::new(&mut b, &list, &OptimConfig { clip: 11.5, ..plain() }).unwrap();
    assert_eq!(short.step(&mut b, 1, 1e-3).unwrap().clip_factor, 1.0);
    let mut off = Optimizer::new(&mut b, &list, &plain()).unwrap();
    assert_eq!(off.step(&mut b, 1, 1e-3).unwrap().clip_factor, 1.0);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_is_reported() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut b = cpu();
        let list = [param(&mut b, "a", 2, 2), param(&mut b, "b", 1, 2)];
        let mut adamw = Optimizer::new(&mut b, &list, &OptimConfig::default()).unwrap();
        for p in &list {
            draw(&mut b, p, 1, 1.0);
        }
        adamw.step(&mut b, 1, 1e-2).unwrap();
        let everything = |b: &mut CpuBackend, adamw: &Optimizer| -> Vec<f32> {
            let values = list.iter().map(|p| StateView::from(p.value));
            let views = values.chain(adamw.states().into_iter().map(|s| s.1));
            views.flat_map(|v| read_state(b, v)).collect()
        };
        let before = everything(&mut b, &adamw);
        b.write_f32(list[1].grad, &[1.0, bad]).unwrap();
        let stats = adamw.step(&mut b, 2, 1e-2).unwrap();
        assert!(stats.skipped && !stats.grad_norm.is_finite());
        assert_eq!(before, everything(&mut b, &adamw));
        draw(&mut b, &list[1], 2, 1.0);
        assert!(!adamw.step(&mut b, 2, 1e-2).unwrap().skipped);
        assert_ne!(before, everything(&mut b, &adamw));
    }
}

#[test]
fn decay_touches_only_parameters_that_ask_for_it() {
    let mut b = cpu();
    let list = [param(&mut b, "matrix", 2, 2), param(&mut b, "vector", 1, 4)];
    for p in &list {
        b.write_f32(p.value, &[1.0, -2.0, 3.0, -4.0]).unwrap();
    }
    let mut adamw = Optimizer::new(&mut b, &list, &OptimConfig { weight_decay: 0.5, ..plain() }).unwrap();
    adamw.step(&mut b, 1, 0.1).unwrap();
    // No gradient: the update is decay alone.
    assert_eq!(read(&mut b, list[0].value), [0.95, -1.9, 2.85, -3.8]);
    assert_eq!(read(&mut b, list[1].value), [1.0, -2.0, 3.0, -4.0]);
}

/// Values after five steps; the state moves to a fresh optimizer after `moved_after` steps.
fn five_steps(moved_after: u64) -> Vec<f32> {
    let mut b = cpu();
    let list = [param(&mut b, "a.b.weight", 5, 7), param(&mut b, "c", 1, 3)];
    let mut adamw = Optimizer::new(&mut b, &list, &OptimConfig::default()).unwrap();
    for t in 1..=5 {
        for p in &list {
            draw(&mut b, p, t, 0.3);
        }
        adamw.step(&mut b, t, 1e-2).unwrap();
        if t == moved_after {
            let mut next = Optimizer::new(&mut b, &list, &OptimConfig::default()).unwrap();
            for (name, view) in adamw.states() {
                let values = read_state(&mut b, view);
                next.restore(&mut b, &name, &values).unwrap();
            }
            adamw = next;
        }
    }
    list.iter().flat_map(|p| read(&mut b, p.value)).collect()
}

#[test]
fn a_restored_state_goes_on_with_the_same_bits() {
    let straight = five_steps(99);
    assert_eq!(straight, five_steps(2));
    assert_eq!(straight, five_steps(4));
}

#[test]
fn unknown_states_wrong_sizes_step_zero_and_bad_configurations_are_refused() {
    let mut b = NullBackend::new();
    let list = [param(&mut b, "layers.0.w", 2, 3)];
    let mut adamw = Optimizer::new(&mut b, &list, &OptimConfig::default()).unwrap();
    let e = adamw.restore(&mut b, "n.layers.0.w", &[0.0; 6]).unwrap_err().to_string();
    assert!(e.contains("n.layers.0.w") && e.contains("m.layers.0.w"), "{e}");
    // Values in f32 are their own master.
    assert!(matches!(
        adamw.restore(&mut b, "master.layers.0.w", &[0.0; 6]),
        Err(OptimError::UnknownState { .. })
    ));
    let e = adamw.restore(&mut b, "v.layers.0.w", &[0.0; 5]).unwrap_err().to_string();
    assert!(e.contains("wanted 6 values, found 5"), "{e}");
    assert!(matches!(adamw.step(&mut b, 0, 1e-3), Err(OptimError::StepZero)));
    let bad = OptimConfig { beta1: 1.0, ..Default::default() };
    assert!(matches!(Optimizer::new(&mut b, &list, &bad), Err(OptimError::Config(_))));
}

#[test]
fn state_takes_eight_bytes_a_value_and_twelve_where_the_value_is_stored_in_two() {
    let mut b = NullBackend::new();
    let narrow = OptimParam { value: tensor(&mut b, "n", 10, 10, DType::Bf16), ..param(&mut b, "n", 10, 10) };
    let list = [narrow, param(&mut b, "w", 7, 3)];
    let mut adamw = Optimizer::new(&mut b, &list, &OptimConfig::default()).unwrap();
    let memory = b.memory();
    let bytes = memory.classes.iter().find(|c| c.0 == "optimizer").unwrap().1.0;
    assert_eq!(bytes, 12 * 100 + 8 * 21 + 24 * 2);
    let names: Vec<_> = adamw.states().into_iter().map(|s| s.0).collect();
    assert_eq!(names, ["m.n", "v.n", "master.n", "m.w", "v.w"]);
    b.reset_counts();
    adamw.adopt_values(&mut b).unwrap();
    adamw.step(&mut b, 1, 1e-3).unwrap();
    let launches = |name: &str| b.counts()[name].launches;
    assert_eq!((launches("copy"), launches("sum_squares"), launches("adamw")), (1, 2, 2));
}

#[test]
fn the_table_is_read_as_written_and_unknown_keys_are_refused() {
    let text = r#"{"optimizer": "adamw", "lr": 3e-4, "schedule": "wsd", "decay_shape": "sqrt"}"#;
    let config: OptimConfig = serde_json::from_str(text).unwrap();
    assert_eq!((config.lr, config.beta1), (3e-4, 0.9));
    let e = serde_json::from_str::<OptimConfig>(r#"{"learning_rate": 1}"#).unwrap_err().to_string();
    assert!(e.contains("unknown field"), "{e}");
}
