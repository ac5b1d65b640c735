//! A network before its first update.

use bessemer_runlog::study::StudyStart;
use bessemer_runtime::{Decoder, Phase, Ranks, StageRanks, Unit};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_train::TrainError;

/// Watches a backward pass: norms of the gradients at the ends of the layers.
#[derive(Debug)]
pub(crate) struct StreamGradients {
    /// The gradient of the residual stream.
    view: View,
    /// (layer, norm) in the order of the pass.
    found: Vec<(usize, f64)>,
}

impl StreamGradients {
    pub(crate) fn of(decoder: &Decoder) -> StreamGradients {
        StreamGradients { view: decoder.stream_gradient(), found: Vec::new() }
    }
}

impl Ranks for StreamGradients {}

impl StageRanks for StreamGradients {
    fn unit_begins(
        &mut self,
        backend: &mut dyn Backend,
        unit: Unit,
        phase: Phase,
    ) -> Result<(), TensorError> {
        if let (Unit::Layer(layer), Phase::Backward) = (unit, phase) {
            self.found.push((layer, norm(&values(backend, self.view)?)));
        }
        Ok(())
    }
}

/// What the first forward and backward pass has left in a decoder, and what `gradients` heard of it.
pub(crate) fn look(
    backend: &mut dyn Backend,
    decoder: &Decoder,
    mut gradients: StreamGradients,
) -> Result<StudyStart, TrainError> {
    let traces = decoder.traces();
    let mut start = StudyStart::default();
    for view in traces.iter().map(|t| t.stream).chain([decoder.stream_end()]) {
        start.activation_std.push(deviation(&values(backend, view)?));
    }
    gradients.found.sort_unstable_by_key(|g| g.0);
    start.stream_gradient = gradients.found.into_iter().map(|g| g.1).collect();
    for (layer, trace) in traces.iter().enumerate() {
        let mut squares = 0.0;
        for param in decoder.params().iter().filter(|p| p.spec.id.unit() == Unit::Layer(layer)) {
            if let Some(grad) = param.grad {
                squares += norm(&values(backend, grad)?).powi(2);
            }
        }
        start.parameter_gradient.push(squares.sqrt());
        if let (Some(a), Some(b)) = (trace.attention_rstd, trace.mlp_rstd) {
            start.norm_factor.push(mean(&values(backend, a)?) * mean(&values(backend, b)?));
        }
    }
    Ok(start)
}

fn values(backend: &mut dyn Backend, view: View) -> Result<Vec<f32>, TensorError> {
    let mut values = vec![0.0; view.len()];
    backend.read_f32(view, &mut values)?;
    Ok(values)
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f32]) -> f64 {
    let centre = mean(values);
    let squares: f64 = values.iter().map(|v| (f64::from(*v) - centre).powi(2)).sum();
    (squares / values.len() as f64).sqrt()
}
