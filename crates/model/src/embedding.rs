//! The beginning: `x = dropout(scale * tokens[ids] + positions[position])`; positions are a learned table, a fixed one of
//! sines and cosines (Vaswani et al. 2017), or not added at all.
//!
//! With tied embeddings the token table's gradient has two terms, added in this order: the output projection's (which
//! replaces what was there in the first micro-batch), then the rows looked up, in the order of the tokens.

use crate::error::ModelError;
use crate::params::{ParamTable, Weight};
use crate::pass::Pass;
use crate::portion::Cut;
use crate::seams::{SeamAt, SeamPlace};
use bessemer_arch::{Model, PositionChoice, Unit};
use bessemer_tensor::op::{
    Add, Dropout, DropoutMask, Embedding, EmbeddingBackward, Fill, PositionTable, Scale, TablePortion,
};
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;

/// What is added for a position.
#[derive(Debug, Clone, Copy)]
enum Positions {
    Learned(Weight),
    Fixed(View),
}

impl Positions {
    fn value(&self) -> View {
        match self {
            Positions::Learned(weight) => weight.value,
            Positions::Fixed(table) => *table,
        }
    }
}

/// Behind the look-up.
const OUT: SeamAt = SeamAt { unit: Unit::Embedding, place: SeamPlace::EmbeddingOut };

/// The tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddingTables {
    tokens: Weight,
    positions: Option<Positions>,
    scale: f32,
    /// Rows of the token table that are here, if not all are.
    portion: Option<TablePortion>,
    /// The output projection, in the same span, writes to the token table's gradient first.
    tied: bool,
}

/// `PE[p, 2i] = sin(p / 10000^(2i/D))`, `PE[p, 2i+1] = cos(p / 10000^(2i/D))`, row-major.
fn sinusoids(context: usize, width: usize) -> Vec<f32> {
    let value = |p: usize, column: usize| {
        let pair = (column / 2 * 2) as f64;
        let angle = p as f64 / 10_000f64.powf(pair / width as f64);
        (if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    };
    (0..context).flat_map(|p| (0..width).map(move |column| value(p, column))).collect()
}

impl EmbeddingTables {
    /// Allocates and fills the fixed table ("constants") if the model has one. `with_head`: the head is in the same span.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        model: &Model,
        cut: &Cut,
        table: &ParamTable,
        with_head: bool,
    ) -> Result<EmbeddingTables, ModelError> {
        let positions = match model.positions {
            PositionChoice::Learned => Some(Positions::Learned(table.get("embed.positions"))),
            PositionChoice::Sinusoidal => {
                let values = sinusoids(model.context, model.width);
                let name = "embed.positions";
                let spec = BufferSpec { class: "constants", name, dtype: DType::F32, len: values.len() };
                let view = backend.alloc(spec)?.matrix(model.context, model.width);
                backend.write_f32(view, &values)?;
                Some(Positions::Fixed(view))
            }
            PositionChoice::Rope | PositionChoice::Alibi | PositionChoice::None => None,
        };
        Ok(EmbeddingTables {
            tokens: table.get("embed.tokens"),
            positions,
            scale: model.embedding_scale as f32,
            portion: cut.vocabulary,
            tied: model.tied_embeddings && with_head,
        })
    }

    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut Weight)) {
        visit(&mut self.tokens);
        if let Some(Positions::Learned(weight)) = &mut self.positions {
            visit(weight);
        }
    }

    /// `ids` are those of all rows, `positions` those of the rows of x. `branch_nd` is scratch of the rows of x, `whole_nd`
    /// of all rows if x is not all of them.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        ids: View,
        positions: View,
        x_nd: View,
        (branch_nd, whole_nd): (View, Option<View>),
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        let table = self.positions.map(|p| p.value());
        let out = whole_nd.unwrap_or(x_nd);
        let tokens = Embedding { table: self.tokens.value, portion: self.portion, ids, positions: None, out };
        if self.scale == 1.0 && self.portion.is_none() {
            let positions = table.map(|table| PositionTable { table, positions });
            pass.launch(Embedding { positions, ..tokens })?;
        } else {
            pass.launch(tokens)?;
            match whole_nd {
                Some(whole_nd) => pass.reduce_scatter(OUT, whole_nd, x_nd)?,
                None if self.portion.is_some() => pass.seam_forward(OUT, x_nd)?,
                None => {}
            }
            if self.scale != 1.0 {
                pass.launch(Scale { x: x_nd, out: x_nd, factor: self.scale })?;
            }
            if let Some(table) = table {
                pass.launch(Embedding {
                    table,
                    portion: None,
                    ids: positions,
                    positions: None,
                    out: branch_nd,
                })?;
                pass.launch(Add { a: x_nd, b: branch_nd, out: x_nd })?;
            }
        }
        match dropout {
            Some(mask) => pass.launch(Dropout { x: x_nd, out: x_nd, mask, global_cols: x_nd.cols }),
            None => Ok(()),
        }
    }

    /// As [`EmbeddingTables::forward`].
    pub(crate) fn backward(
        &self,
        pass: &mut Pass<'_>,
        ids: View,
        positions: View,
        (dx_nd, whole_nd): (View, Option<View>),
        dropout: Option<DropoutMask>,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        if let Some(mask) = dropout {
            pass.launch(Dropout { x: dx_nd, out: dx_nd, mask, global_cols: dx_nd.cols })?;
        }
        let learned = match self.positions {
            Some(Positions::Learned(weight)) => Some(weight),
            _ => None,
        };
        if !accumulate {
            // The operator only adds.
            let fresh = if self.tied { None } else { Some(self.tokens) };
            for w in fresh.into_iter().chain(learned) {
                pass.launch(Fill { dst: w.grad(), value: 0.0 })?;
            }
        }
        let dtable = self.tokens.grad();
        let tokens = EmbeddingBackward { ids, dout: dx_nd, dtable, portion: self.portion, positions: None };
        if self.scale == 1.0 && self.portion.is_none() {
            let positions = learned.map(|w| PositionTable { table: w.grad(), positions });
            pass.launch(EmbeddingBackward { positions, ..tokens })?;
        } else {
            if let Some(w) = learned {
                let dtable = w.grad();
                pass.launch(EmbeddingBackward { ids: positions, dtable, portion: None, ..tokens })?;
            }
            if self.scale != 1.0 {
                pass.launch(Scale { x: dx_nd, out: dx_nd, factor: self.scale })?;
            }
            match whole_nd {
                Some(whole_nd) => pass.gather(OUT, dx_nd, whole_nd)?,
                None if self.portion.is_some() => pass.seam_backward(OUT, dx_nd)?,
                None => {}
            }
            pass.launch(EmbeddingBackward { dout: whole_nd.unwrap_or(dx_nd), ..tokens })?;
        }
        pass.gradient_ready(&self.tokens)?;
        learned.map_or(Ok(()), |w| pass.gradient_ready(&w))
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
