//! Low-rank adapters beside a linear map: `out = x W^T + b + (s x A^T) B^T` (Hu et al. 2021, LoRA).
//!
//! Backward, with u = s x A^T and du = s dout B: `dB = dout^T u`, `dA = du^T x`, `dx += du A`.
//!
//! Cost forward: 2 n r (inputs + outputs) FLOPs for each adapter.

use super::Writer;
use bessemer_arch::AdapterTarget;
use bessemer_mesh::Dim;
use bessemer_tensor::View;
use bessemer_tensor::op::{Copy, Linear, LinearBackwardInput, LinearBackwardWeight, Scale};
use std::ops::Range;

/// An adapter of a map of the layer.
struct Adapter {
    name: &'static str,
    /// r.
    width: usize,
    factor: f32,
    /// Outputs of the map that it adapts.
    columns: Range<usize>,
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
            width: adapters.width(),
            factor: adapters.scale() as f32,
            columns: target.outputs(model),
        };
        adapters.targets.iter().filter(of_map).map(adapter).collect()
    }

    pub(super) fn is_adapted(&self, map: &str) -> bool {
        !self.adapters(map).is_empty()
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
            let weight = self.weight(&format!("{}.lora_a", adapter.name));
            self.recorder.launch(Linear { weight, bias: None, out: u, ..product });
            if adapter.factor != 1.0 {
                let scaled = self.low_rank(adapter, "lora");
                self.recorder.launch(Scale { x: u, out: scaled, factor: adapter.factor });
                u = scaled;
            }
            let weight = self.weight(&format!("{}.lora_b", adapter.name));
            let (residual, out) = (Some(adapter.of(base)), adapter.of(out));
            self.recorder.launch(Linear { x: u, weight, bias: None, residual, out, ..product });
        }
        for columns in beside(&adapters, out.cols) {
            let [src, dst] = [base, out].map(|view| view.columns(columns.start, columns.len()));
            self.recorder.launch(Copy { src, dst });
        }
    }

    /// Gradients of the adapters of a map whose outputs have the gradient `dy`.
    pub(super) fn adapter_gradients(&mut self, map: &str, x: View, dy: View) {
        for adapter in self.adapters(map) {
            let dy = adapter.of(dy);
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
            self.recorder.launch(op);
        }
    }
}
