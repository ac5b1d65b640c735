//! The beginning: `x = dropout(scale * tokens[ids] + positions[position])`; positions are a learned table, a fixed one of
//! sines and cosines (Vaswani et al. 2017), or not added at all.
//!
//! With tied embeddings the token table's gradient has two terms, added in this order: the output projection's (which
//! replaces what was there in the first micro-batch), then the rows looked up, in the order of the tokens.

use super::{Recording, Writer};
use bessemer_arch::PositionChoice;
use bessemer_mesh::Dim;
use bessemer_program::{Class, Input, Phase, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{Add, Embedding, EmbeddingBackward, Fill, Scale};
use bessemer_units::DType;

/// `PE[p, 2i] = sin(p / 10000^(2i/D))`, `PE[p, 2i+1] = cos(p / 10000^(2i/D))`, row-major.
pub fn sinusoids(context: usize, width: usize) -> Vec<f32> {
    let value = |p: usize, column: usize| {
        let pair = (column / 2 * 2) as f64;
        let angle = p as f64 / 10_000f64.powf(pair / width as f64);
        (if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    };
    (0..context).flat_map(|p| (0..width).map(move |column| value(p, column))).collect()
}

impl Recording<'_> {
    /// The embedding.
    pub fn embedding(&self) -> UnitProgram {
        let mut writer = self.begin("");
        for phase in [Phase::Forward, Phase::Score] {
            writer.recorder.begin(phase);
            writer.embedding_forward();
        }
        if self.train {
            writer.recorder.begin(Phase::Backward);
            writer.embedding_backward();
        }
        writer.finish()
    }
}

impl Writer<'_> {
    /// Rows that are added for positions.
    fn position_table(&mut self) -> Option<View> {
        match self.model().positions {
            PositionChoice::Learned => Some(self.weight("embed.positions")),
            PositionChoice::Sinusoidal => {
                let dims = [Dim::plain(self.model().context), Dim::plain(self.model().width)];
                Some(self.recorder.value("embed.sinusoids", Class::Constant, DType::F32, dims))
            }
            PositionChoice::Rope | PositionChoice::Alibi | PositionChoice::None => None,
        }
    }

    pub(super) fn embedding_forward(&mut self) {
        let (ids, x) = (self.input(Input::Ids), self.stream(Class::StreamOut));
        let (table, positions) = (self.weight("embed.tokens"), self.position_table());
        let scale = self.model().embedding_scale as f32;
        let drops = self.drops();
        // The last of the steps writes the stream.
        let mut steps = vec!["embed.rows"];
        steps.extend((scale != 1.0).then_some("embed.scaled"));
        steps.extend(positions.map(|_| "embed.sum"));
        steps.extend(drops.then_some("embed.dropped"));
        let last = steps[steps.len() - 1];
        let place = |writer: &mut Self, name: &str| if name == last { x } else { writer.residual_rows(name) };
        let mut at = place(self, "embed.rows");
        self.recorder.launch(Embedding { table, tensor_shard: None, ids, positions: None, out: at });
        if scale != 1.0 {
            let out = place(self, "embed.scaled");
            self.recorder.launch(Scale { x: at, out, factor: scale });
            at = out;
        }
        if let Some(table) = positions {
            let (ids, rows) = (self.input(Input::Positions), self.residual_rows("embed.position_rows"));
            self.recorder.launch(Embedding { table, tensor_shard: None, ids, positions: None, out: rows });
            let out = place(self, "embed.sum");
            self.recorder.launch(Add { a: at, b: rows, out });
            at = out;
        }
        if drops {
            let out = place(self, "embed.dropped");
            self.dropout("embed.dropout", at, out);
        }
    }

    fn embedding_backward(&mut self) {
        let (ids, dx) = (self.input(Input::Ids), self.stream(Class::StreamGradient));
        if self.drops() {
            self.dropout("embed.dropout", dx, dx);
        }
        let dtokens = self.weight_gradient("embed.tokens");
        let learned = self.model().positions == PositionChoice::Learned;
        let dpositions = learned.then(|| self.weight_gradient("embed.positions"));
        // The operator only adds.
        let fresh = (!self.recording.tied_here).then_some(dtokens);
        for dst in fresh.into_iter().chain(dpositions) {
            self.recorder.launch_first(Fill { dst, value: 0.0 });
        }
        let op = EmbeddingBackward { ids, dout: dx, dtable: dtokens, tensor_shard: None, positions: None };
        if let Some(dtable) = dpositions {
            let ids = self.input(Input::Positions);
            self.recorder.launch(EmbeddingBackward { ids, dtable, ..op });
        }
        let scale = self.model().embedding_scale as f32;
        if scale != 1.0 {
            self.recorder.launch(Scale { x: dx, out: dx, factor: scale });
        }
        self.recorder.launch(op);
    }
}

#[cfg(test)]
mod tests {
    use super::sinusoids;

    #[test]
    fn sines_and_cosines_alternate_with_falling_frequency() {
        let (context, width) = (50, 7);
        let table = sinusoids(context, width);
        for (p, column, wanted) in [
            (0, 0, 0.0),
            (0, 1, 1.0),
            (3, 0, 3f64.sin()),
            (3, 1, 3f64.cos()),
            (49, 4, (49.0 / 10_000f64.powf(4.0 / 7.0)).sin()),
            (49, 6, (49.0 / 10_000f64.powf(6.0 / 7.0)).sin()),
            (20, 5, (20.0 / 10_000f64.powf(4.0 / 7.0)).cos()),
        ] {
            assert!((f64::from(table[p * width + column]) - wanted).abs() < 1e-7, "{p} {column}");
        }
        assert_eq!(table.len(), context * width);
    }
}
