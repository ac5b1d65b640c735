//! A model of the lecture: embedding, layers, output projection with the loss; and its training.

use super::layers::Layer;
use super::rig::{Init, Param, Rig};
use super::text::{Text, random_windows};
use bessemer_tensor::op::{
    Embedding, EmbeddingBackward, Fill, IGNORED, LinearCrossEntropy, LossBackward, PositionTable,
};
use bessemer_tensor::{Backend, View};

/// Sequences of a batch.
pub(crate) const BATCH: usize = 32;
/// Characters of a sequence.
pub(crate) const SEQ: usize = 8;
/// Width of the models.
pub(crate) const WIDTH: usize = 32;
/// Rows of a batch.
pub(crate) const ROWS: usize = BATCH * SEQ;

/// Embedding, layers, loss.
pub(crate) struct Lecture {
    ids: View,
    targets: View,
    positions: View,
    table: Param,
    position_table: Option<Param>,
    layers: Vec<Box<dyn Layer>>,
    /// Input of each layer and of the output projection, and their gradients.
    streams: Vec<View>,
    dstreams: Vec<View>,
    /// Input of the projection: the last stream, with a column of ones if the projection has a bias.
    features: View,
    dfeatures: View,
    head: Param,
    loss: View,
    /// `[1, ROWS]`: 1 / ROWS.
    loss_factors: View,
}

impl Lecture {
    /// The bigram model `logits = table[id]`: the projection is the identity, and is not trained.
    pub(crate) fn bigram(rig: &mut Rig, vocab: usize) -> Lecture {
        let table = rig.param(vocab, vocab, Init::Normal);
        let head = Param { value: rig.matrix(vocab, vocab), grad: rig.matrix(vocab, vocab) };
        let identity: Vec<f32> =
            (0..vocab * vocab).map(|e| if e % (vocab + 1) == 0 { 1.0 } else { 0.0 }).collect();
        rig.backend.write_f32(head.value, &identity).unwrap();
        Lecture::of(rig, table, None, Vec::new(), head)
    }

    /// Token and position tables, layers, and a projection with bias. The loss operator has no bias, so it becomes one
    /// more column of the matrix, for a feature that is always 1.
    pub(crate) fn layered(rig: &mut Rig, vocab: usize, layers: Vec<Box<dyn Layer>>) -> Lecture {
        let table = rig.param(vocab, WIDTH, Init::Normal);
        let positions = rig.param(SEQ, WIDTH, Init::Normal);
        let head = rig.param(vocab, WIDTH + 1, Init::Uniform(1.0 / (WIDTH as f32).sqrt()));
        Lecture::of(rig, table, Some(positions), layers, head)
    }

    fn of(
        rig: &mut Rig,
        table: Param,
        position_table: Option<Param>,
        layers: Vec<Box<dyn Layer>>,
        head: Param,
    ) -> Lecture {
        let (width, columns) = (table.value.cols, head.value.cols);
        let (features, dfeatures) = (rig.matrix(ROWS, columns), rig.matrix(ROWS, columns));
        rig.launch(Fill { dst: features, value: 1.0 });
        let mut streams = |last: View| {
            let mut list: Vec<View> = layers.iter().map(|_| rig.matrix(ROWS, width)).collect();
            list.push(last.columns(0, width));
            list
        };
        let (streams, dstreams) = (streams(features), streams(dfeatures));
        let positions = rig.indices(ROWS);
        let places: Vec<u32> = (0..ROWS).map(|n| (n % SEQ) as u32).collect();
        rig.backend.write_u32(positions, &places).unwrap();
        let loss_factors = rig.matrix(1, ROWS);
        rig.backend.write_f32(loss_factors, &[1.0 / ROWS as f32; ROWS]).unwrap();
        Lecture {
            ids: rig.indices(ROWS),
            targets: rig.indices(ROWS),
            positions,
            table,
            position_table,
            layers,
            streams,
            dstreams,
            features,
            dfeatures,
            head,
            loss: rig.matrix(1, ROWS),
            loss_factors,
        }
    }

    /// Returns the sum of the losses of one batch; with its gradients if requested.
    fn pass(&self, rig: &mut Rig, ids: &[u32], targets: &[u32], with_gradients: bool) -> f64 {
        rig.backend.write_u32(self.ids, ids).unwrap();
        rig.backend.write_u32(self.targets, targets).unwrap();
        let positions = |of: fn(&Param) -> View| {
            self.position_table.map(|p| PositionTable { table: of(&p), positions: self.positions })
        };
        rig.launch(Embedding {
            table: self.table.value,
            tensor_shard: None,
            ids: self.ids,
            positions: positions(|p| p.value),
            out: self.streams[0],
        });
        for (layer, xy) in self.layers.iter().zip(self.streams.windows(2)) {
            layer.forward(rig, xy[0], xy[1]);
        }
        let backward = LossBackward {
            factors: self.loss_factors,
            z_loss: None,
            dx: self.dfeatures,
            dweight: self.head.grad,
            accumulate: false,
        };
        rig.launch(LinearCrossEntropy {
            x: self.features,
            weight: self.head.value,
            targets: self.targets,
            loss: self.loss,
            scored_lse: None,
            backward: with_gradients.then_some(backward),
            teacher: None,
        });
        if with_gradients {
            for (i, layer) in self.layers.iter().enumerate().rev() {
                layer.backward(rig, self.streams[i], self.dstreams[i + 1], self.dstreams[i]);
            }
            for p in [Some(self.table), self.position_table].into_iter().flatten() {
                rig.launch(Fill { dst: p.grad, value: 0.0 });
            }
            rig.launch(EmbeddingBackward {
                ids: self.ids,
                dout: self.dstreams[0],
                dtable: self.table.grad,
                tensor_shard: None,
                positions: positions(|p| p.grad),
            });
        }
        let mut losses = vec![0.0; ROWS];
        rig.backend.read_f32(self.loss, &mut losses).unwrap();
        losses.iter().map(|&l| f64::from(l)).sum()
    }

    /// Nats a character over all of `data` in windows that do not overlap; the last batch is filled up with targets that
    /// are not scored.
    fn score(&self, rig: &mut Rig, data: &[u32]) -> f64 {
        let windows = (data.len() - 1) / SEQ;
        let mut nats = 0.0;
        for first in (0..windows * SEQ).step_by(ROWS) {
            let n = ROWS.min(windows * SEQ - first);
            let (mut ids, mut targets) = (vec![0; ROWS], vec![IGNORED; ROWS]);
            ids[..n].copy_from_slice(&data[first..first + n]);
            targets[..n].copy_from_slice(&data[first + 1..first + n + 1]);
            nats += self.pass(rig, &ids, &targets, false);
        }
        nats / (windows * SEQ) as f64
    }
}

/// Trains at a constant rate and returns the validation loss.
pub(crate) fn train(rig: &mut Rig, model: &Lecture, text: &Text, lr: f64, steps: u64) -> f64 {
    let mut adamw = rig.adamw();
    for step in 1..=steps {
        let (ids, targets) = random_windows(&text.train, BATCH, SEQ, rig.key(step, "batch"));
        model.pass(rig, &ids, &targets, true);
        let stats = adamw.step(&mut rig.backend, step, lr).unwrap();
        assert!(!stats.skipped, "step {step}: gradient is not finite");
    }
    model.score(rig, &text.validation)
}
