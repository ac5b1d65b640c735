//! The coordinate check of a parametrisation (Yang et al. 2022, "Tensor Programs V", appendix D.1): the same few steps at
//! growing widths, and the size of every kind of activation.
//!
//! Under muP the change of each since the initialisation is of the same size at every width; under the standard
//! parametrisation, at one learning rate for all widths, changes grow with it. As in the authors' program a run sees one
//! batch again and again, so that a change is one of the weights alone.

use crate::run::Trainee;
use crate::text::SymbolText;
use bessemer_arch::{InitChoice, Model, ModelConfig};
use bessemer_runlog::coord_check::{CoordKind, CoordRun, CoordSettings, Coordinates};
use bessemer_runlog::study::StudySettings;
use bessemer_runtime::{Ranks, Shape, StageRanks, TokenBatch};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_train::TrainError;

/// How initial values and learning rates follow the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parametrisation {
    /// Name on the command line and in files.
    pub name: &'static str,
    /// Name for people, with source.
    pub title: &'static str,
    init: InitChoice,
}

/// Both parametrisations, in the order in which a check runs them.
pub const PARAMETRISATIONS: [Parametrisation; 2] = [
    Parametrisation { name: "mup", title: "muP (Yang et al. 2022, table 8)", init: InitChoice::MuP },
    Parametrisation {
        name: "standard",
        title: "standard: normal .02, one learning rate (GPT-2, Radford et al. 2019)",
        init: InitChoice::Gpt2,
    },
];

impl Parametrisation {
    /// The decoder of a width: pre-normalised, learned positions, GELU, biases, an output projection of its own, more
    /// heads as it grows.
    ///
    /// # Errors
    /// Sizes that cannot be, by their keys in the `[model]` table.
    pub fn model(&self, settings: &CoordSettings, width: u64, symbols: usize) -> Result<Model, TrainError> {
        let config = ModelConfig {
            architecture: "gpt2".into(),
            layers: Some(settings.layers),
            width: Some(width),
            heads: Some(width / settings.head_dim.max(1)),
            context: Some(settings.context),
            tied_embeddings: Some(false),
            init: Some(self.init),
            mup_base_width: (self.init == InitChoice::MuP).then_some(settings.base_width),
            ..ModelConfig::default()
        };
        config.resolve(Some(symbols)).map_err(|e| TrainError::Recipe(e.to_string()))
    }
}

/// The part of a check's settings that a run of one width shares with the study of initialisations.
pub fn run_settings(settings: &CoordSettings, width: u64) -> StudySettings {
    StudySettings {
        layers: settings.layers,
        width,
        heads: width / settings.head_dim.max(1),
        context: settings.context,
        batch: settings.batch,
        steps: settings.steps,
        lr: settings.lr,
        beta1: settings.beta1,
        beta2: settings.beta2,
    }
}

/// Takes what both blocks of each layer add to the residual stream, of a decoder that keeps them
/// ([`bessemer_runtime::Decoder::keep_branches`]).
#[derive(Debug, Default)]
struct Branches {
    attention: Vec<f32>,
    mlp: Vec<f32>,
}

impl StageRanks for Branches {}

impl Ranks for Branches {
    fn watches(&self) -> bool {
        true
    }

    fn written(&mut self, backend: &mut dyn Backend, name: &str, value: View) -> Result<(), TensorError> {
        let all = match name {
            "attention.branch" => &mut self.attention,
            "mlp.branch" => &mut self.mlp,
            _ => return Ok(()),
        };
        append(backend, value, all)
    }
}

/// Reads a view, which may be some columns of a wider matrix, behind what is there.
fn append(backend: &mut dyn Backend, view: View, all: &mut Vec<f32>) -> Result<(), TensorError> {
    let first = all.len();
    all.resize(first + view.len(), 0.0);
    backend.read_f32(view, &mut all[first..])
}

/// Runs one width and seed on a fresh backend. `on_step` is called before each step with the updates done; false ends the
/// run without a result.
///
/// # Errors
/// A text that is too short, sizes that do not fit together, or an error of a lower layer. Divergence is a result.
pub fn coordinate_run(
    backend: &mut dyn Backend,
    parametrisation: &Parametrisation,
    settings: &CoordSettings,
    text: &SymbolText,
    width: u64,
    seed: u64,
    on_step: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<CoordRun>, TrainError> {
    let of_run = run_settings(settings, width);
    text.require(&of_run)?;
    let model = parametrisation.model(settings, width, text.facts().symbols as usize)?;
    let mut trainee = Trainee::new(backend, &model, &of_run, seed)?;
    trainee.probe.keep_branches(backend)?;
    let (inputs, targets) = text.batch(&of_run, seed, 0);
    let empty = |kind| Coordinates { kind, size: Vec::new(), change: Vec::new() };
    let mut run = CoordRun {
        width,
        seed,
        losses: Vec::new(),
        diverged_at: None,
        coordinates: CoordKind::ALL.map(empty).to_vec(),
    };
    let mut start: Vec<Vec<f32>> = Vec::new();
    for step in 0..=settings.steps {
        if !on_step(step) {
            return Ok(None);
        }
        let (now, loss) = trainee.look(backend, &inputs, &targets)?;
        let sizes: Vec<f64> = now.iter().map(|v| rms(v.iter().map(|x| f64::from(*x)))).collect();
        if start.is_empty() {
            start.clone_from(&now);
        }
        if !loss.is_finite() || sizes.iter().any(|s| !s.is_finite()) {
            run.diverged_at = Some(step);
            return Ok(Some(run));
        }
        run.losses.push(loss);
        for (((c, size), now), start) in run.coordinates.iter_mut().zip(sizes).zip(&now).zip(&start) {
            c.size.push(size);
            c.change.push(rms(now.iter().zip(start).map(|(a, b)| f64::from(*a) - f64::from(*b))));
        }
        if step < settings.steps
            && trainee.step(backend, &inputs, &targets, (step, settings.lr))?.stats.skipped
        {
            run.diverged_at = Some(step + 1);
            return Ok(Some(run));
        }
    }
    Ok(Some(run))
}

impl Trainee {
    /// Values of every kind of activation, in the order of [`CoordKind::ALL`], and the mean loss.
    fn look(
        &mut self,
        backend: &mut dyn Backend,
        inputs: &[u32],
        targets: &[u32],
    ) -> Result<(Vec<Vec<f32>>, f64), TrainError> {
        let batch = TokenBatch { ids: inputs, targets, positions: None };
        let mut branches = Branches::default();
        self.copy_to_probe(backend)?;
        let loss = self.probe.loss_through(backend, &mut branches, &batch, None)?.mean();
        let traces = self.probe.traces();
        let (mut embedding, mut scores, mut stream) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(first) = traces.first() {
            append(backend, first.stream, &mut embedding)?;
        }
        for trace in &traces {
            let (mut q, mut k) = (Vec::new(), Vec::new());
            append(backend, trace.queries, &mut q)?;
            append(backend, trace.keys, &mut k)?;
            attention_logits(self.probe.model(), self.probe.shape(), &q, &k, &mut scores);
        }
        append(backend, self.probe.stream_end(), &mut stream)?;
        let mut logits = Vec::new();
        self.probe.logits(backend, &batch, |_, row| logits.extend_from_slice(row))?;
        Ok((vec![embedding, scores, branches.attention, branches.mlp, stream, logits], loss))
    }
}

/// `scale q_i . k_j` for all j up to i of every sequence and head.
fn attention_logits(model: &Model, shape: Shape, q: &[f32], k: &[f32], all: &mut Vec<f32>) {
    let (e, heads) = (model.head_dim, model.heads);
    let (q_row, k_row, group) = (heads * e, model.kv_heads * e, heads / model.kv_heads);
    let scale = model.attention_scale() as f32;
    for sequence in 0..shape.sequences {
        for head in 0..heads {
            for i in 0..shape.seq {
                let at = (sequence * shape.seq + i) * q_row + head * e;
                let query = &q[at..at + e];
                for j in 0..=i {
                    let at = (sequence * shape.seq + j) * k_row + head / group * e;
                    let product: f32 = query.iter().zip(&k[at..at + e]).map(|(a, b)| a * b).sum();
                    all.push(scale * product);
                }
            }
        }
    }
}

/// Root mean square.
fn rms(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len();
    (values.map(|v| v * v).sum::<f64>() / n as f64).sqrt()
}
