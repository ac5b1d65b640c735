//! Low-rank adapters beside a linear map: `out = x W^T + b + (s x A^T) B^T` (Hu et al. 2021, LoRA).
//!
//! Backward, with u = s x A^T and du = s dout B: `dB = dout^T u`, `dA = du^T x`, `dx += du A`.
//!
//! Cost forward: 2 n r (inputs + outputs) FLOPs for each adapter.
//!
//! With magnitudes m (Liu et al. 2024, DoRA): `out = (p - b) f + b` with `p = x W^T + b + (s x A^T) B^T` and f = m / |W + s B A|, a factor for each
//! output, whose norm is a constant in the backward pass: `dp = dout f` takes the place of dout above and for W,
//! `dm = sum_n dout (p - b) / |W + s B A|`. Cost forward: 2 inputs outputs (r + 1) FLOPs for the norms, whatever n is.
//!
//! Dropout (PEFT's): A reads `mask(x)`, with a mask for each adapter; W reads x.

use super::Writer;
use bessemer_arch::AdapterTarget;
use bessemer_mesh::Dim;
use bessemer_program::{Class, Phase};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    AdaptedSquares, Add, Copy, Dropout, DropoutMask, Linear, LinearBackwardInput, LinearBackwardWeight,
    Magnitudes, MagnitudesBackward, Noise, Scale,
};
use bessemer_units::DType;
use std::ops::Range;

/// An adapter of a map of the layer.
struct Adapter {
    name: &'static str,
    /// r.
    width: usize,
    factor: f32,
    /// Outputs of the map that it adapts.
    columns: Range<usize>,
    inputs: usize,
    /// The map's outputs are rows of the residual stream; otherwise its inputs are.
    is_last: bool,
}

/// Operands of a scaling to magnitudes.
struct Scaling {
    /// The product that is scaled.
    product: View,
    bias: Option<View>,
    magnitude: View,
    squares: View,
}

impl Adapter {
    fn of(&self, view: View) -> View {
        view.columns(self.columns.start, self.columns.len())
    }

    /// Name of u: that of x A^T, if nothing scales it.
    fn low_rank_input(&self) -> &'static str {
        if self.factor == 1.0 { "lora.in" } else { "lora" }
    }
}

/// Columns of `all` that no adapter changes.
fn beside(adapters: &[Adapter], all: usize) -> Vec<Range<usize>> {
    let mut taken: Vec<Range<usize>> = adapters.iter().map(|adapter| adapter.columns.clone()).collect();
    taken.push(all..all);
    taken.sort_by_key(|columns| columns.start);
    let mut from = 0;
    let before = |columns: Range<usize>| std::mem::replace(&mut from, columns.end)..columns.start;
    taken.into_iter().map(before).filter(|columns| !columns.is_empty()).collect()
}

impl Writer<'_> {
    fn adapters(&self, map: &str) -> Vec<Adapter> {
        let model = self.model();
        let Some(adapters) = &model.adapters else { return Vec::new() };
        let of_map = |target: &&AdapterTarget| target.map(model) == map;
        let adapter = |target: &AdapterTarget| Adapter {
            name: target.part(),
            width: adapters.rank_of(*target),
            factor: adapters.scale_of(*target) as f32,
            columns: target.outputs(model),
            inputs: target.inputs(model),
            is_last: matches!(target, AdapterTarget::Out | AdapterTarget::Down),
        };
        adapters.targets.iter().filter(of_map).map(adapter).collect()
    }

    pub(super) fn is_adapted(&self, map: &str) -> bool {
        !self.adapters(map).is_empty()
    }

    fn has_magnitudes(&self) -> bool {
        self.model().adapters.as_ref().is_some_and(|adapters| adapters.magnitude)
    }

    /// What the magnitudes of an adapter scale: its outputs with what it has added.
    fn scaling(&mut self, map: &str, adapter: &Adapter) -> Scaling {
        let name = adapter.name;
        let magnitude = self.weight(&format!("{name}.magnitude"));
        let outputs = self.columns_of(&format!("{name}.magnitude"));
        let product = self.activation(&format!("{name}.product"), outputs.clone());
        let product = if adapter.is_last { self.recorder.residual(product) } else { product };
        let dims = [Dim::plain(1), outputs];
        let squares = self.recorder.value(&format!("{name}.squares"), Class::Local, DType::F32, dims);
        let bias = self.parameter(&format!("{map}.bias")).map(|bias| adapter.of(bias));
        Scaling { product, bias, magnitude, squares }
    }

    /// Columns of a parameter.
    fn columns_of(&self, name: &str) -> Dim {
        let ([_, columns], _) = self.spec(name).expect("the model lists the parameters of its adapters");
        columns
    }

    /// Probability with which elements of the inputs of adapters are dropped, in passes that drop some.
    fn adapter_dropout(&self) -> Option<f64> {
        let rate = self.model().adapters.as_ref().map_or(0.0, |adapters| adapters.dropout);
        (rate > 0.0 && self.recorder.phase() != Phase::Score).then_some(rate)
    }

    /// A value like the inputs of an adapter, and what the mask makes of `x` there.
    fn masked(&mut self, adapter: &Adapter, (x, name): (Option<View>, &str), rate: f64) -> (View, Dropout) {
        let inputs = self.columns_of(&format!("{}.lora_a", adapter.name));
        let out = self.activation(&format!("{}.{name}", adapter.name), inputs);
        let out = if adapter.is_last { out } else { self.recorder.residual(out) };
        let (place, global_cols) = (format!("{}.lora.dropout", adapter.name), adapter.inputs);
        let mask = DropoutMask { p: rate as f32, ..self.mask(&place, self.recording.seq * global_cols) };
        (out, Dropout { x: x.unwrap_or(out), out, mask, noise: Noise::Bernoulli, global_cols })
    }

    /// The rows that A of an adapter reads, as the forward pass left them or records them now.
    fn adapter_input(&mut self, adapter: &Adapter, x: View) -> View {
        let Some(rate) = self.adapter_dropout() else { return x };
        let (dropped, op) = self.masked(adapter, (Some(x), "lora.dropped"), rate);
        if self.recorder.phase() != Phase::Backward {
            self.recorder.launch(op);
            self.recorder.again(dropped, op);
        }
        dropped
    }

    /// `[n, r]`.
    fn low_rank(&mut self, adapter: &Adapter, name: &str) -> View {
        self.activation(&format!("{}.{name}", adapter.name), Dim::plain(adapter.width))
    }

    /// `out = x W^T + b`, with what the map's adapters add. `like`: a value of that name, like `out`.
    pub(super) fn adapted(&mut self, map: &str, x: View, out: View, like: impl Fn(&mut Self, &str) -> View) {
        let adapters = self.adapters(map);
        let base = if adapters.is_empty() { out } else { like(self, &format!("{map}.base")) };
        let product = self.linear(map, x, base);
        self.recorder.launch(product);
        if adapters.is_empty() {
            return;
        }
        for adapter in &adapters {
            let mut u = self.low_rank(adapter, "lora.in");
            let (a, x) = (self.weight(&format!("{}.lora_a", adapter.name)), self.adapter_input(adapter, x));
            self.recorder.launch(Linear { x, weight: a, bias: None, out: u, ..product });
            if adapter.factor != 1.0 {
                let scaled = self.low_rank(adapter, "lora");
                self.recorder.launch(Scale { x: u, out: scaled, factor: adapter.factor });
                u = scaled;
            }
            let b = self.weight(&format!("{}.lora_b", adapter.name));
            let (residual, out) = (Some(adapter.of(base)), adapter.of(out));
            let low_rank = Linear { x: u, weight: b, bias: None, residual, out, ..product };
            if !self.has_magnitudes() {
                self.recorder.launch(low_rank);
                continue;
            }
            let Scaling { product: sum, bias, magnitude, squares } = self.scaling(map, adapter);
            self.recorder.launch(Linear { out: sum, ..low_rank });
            let weight = product.weight.rows(adapter.columns.start, adapter.columns.len());
            self.recorder.launch(AdaptedSquares { weight, a, b, scale: adapter.factor, out: squares });
            self.recorder.launch(Magnitudes { x: sum, bias, magnitude, squares, out });
        }
        for columns in beside(&adapters, out.cols) {
            let [src, dst] = [base, out].map(|view| view.columns(columns.start, columns.len()));
            self.recorder.launch(Copy { src, dst });
        }
    }

    /// From the gradient of a map's outputs to that of its product, before magnitudes scale it, with the gradients of the magnitudes.
    pub(super) fn product_gradient(&mut self, map: &str, dy: View) -> View {
        let adapters = if self.has_magnitudes() { self.adapters(map) } else { Vec::new() };
        let mut all = dy;
        for adapter in adapters {
            if adapter.is_last {
                // The stream's gradient is read again.
                all = self.residual_rows(&format!("{map}.product.gradient"));
            }
            let Scaling { product: x, bias, magnitude, squares } = self.scaling(map, &adapter);
            let (dout, dx) = (adapter.of(dy), adapter.of(all));
            let dmagnitude = self.weight_gradient(&format!("{}.magnitude", adapter.name));
            let accumulate = false;
            self.recorder.launch(MagnitudesBackward {
                dout,
                x,
                bias,
                magnitude,
                squares,
                dx,
                dmagnitude,
                accumulate,
            });
        }
        all
    }

    /// Gradients of the adapters of a map whose product has the gradient `dy`.
    pub(super) fn adapter_gradients(&mut self, map: &str, x: View, dy: View) {
        for adapter in self.adapters(map) {
            let (dy, x) = (adapter.of(dy), self.adapter_input(&adapter, x));
            let u = self.low_rank(&adapter, adapter.low_rank_input());
            let du = self.low_rank(&adapter, "lora.gradient");
            let gradient =
                |dweight, x, dy| LinearBackwardWeight { x, dy, dweight, dbias: None, accumulate: false };
            let db = self.weight_gradient(&format!("{}.lora_b", adapter.name));
            self.recorder.launch(gradient(db, u, dy));
            let weight = self.weight(&format!("{}.lora_b", adapter.name));
            let op = LinearBackwardInput { dy, weight, activation: None, dx: du, accumulate: false };
            self.recorder.launch(op);
            if adapter.factor != 1.0 {
                self.recorder.launch(Scale { x: du, out: du, factor: adapter.factor });
            }
            let da = self.weight_gradient(&format!("{}.lora_a", adapter.name));
            self.recorder.launch(gradient(da, x, du));
        }
    }

    /// Adds to `dx`, the gradient of a map's inputs, what reaches them through its adapters.
    pub(super) fn add_adapter_inputs(&mut self, map: &str, dx: View) {
        for adapter in self.adapters(map) {
            let dy = self.low_rank(&adapter, "lora.gradient");
            let weight = self.weight(&format!("{}.lora_a", adapter.name));
            let op = LinearBackwardInput { dy, weight, activation: None, dx, accumulate: true };
            let Some(rate) = self.adapter_dropout() else {
                self.recorder.launch(op);
                continue;
            };
            let (masked, dropout) = self.masked(&adapter, (None, "lora.dropped.gradient"), rate);
            self.recorder.launch(LinearBackwardInput { dx: masked, accumulate: false, ..op });
            self.recorder.launch(dropout);
            self.recorder.launch(Add { a: dx, b: masked, out: dx });
        }
    }
}
