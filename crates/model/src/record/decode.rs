//! Decoding with cached keys and values.
//!
//! | external | what |
//! |---|---|
//! | 0, 1 | keys and values of the layer from the first new position on, `[B C, G E]` with row b C + position |
//! | 2, 3 | the same from the first position that is seen on |

use super::attention::{ATTENTION, Qkv};
use super::{Recording, Writer};
use bessemer_mesh::Dim;
use bessemer_program::{Class, Phase, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{AttentionCached, Copy};
use bessemer_units::DType;

impl Recording<'_> {
    /// Layer `index` for `seq` new positions of every sequence, with a cache of `capacity` positions.
    pub(crate) fn decode_layer(&self, index: usize, capacity: usize) -> UnitProgram {
        let mut writer = self.begin(&format!("layers.{index}."));
        writer.recorder.begin(Phase::Score);
        let x = writer.stream(Class::StreamIn);
        let Qkv { q, k, v } = writer.project(x);
        writer.append(0, "keys.new", k, capacity);
        writer.append(1, "values.new", v, capacity);
        let (k_cache, v_cache) = (writer.cache(2, "keys", capacity), writer.cache(3, "values", capacity));
        let out = writer.mixed("attention.mixed");
        let (shape, alibi, window) = (writer.attention_shape(), writer.alibi(), writer.model().window);
        let op = AttentionCached { shape, past: 0, capacity, window, alibi, q, k_cache, v_cache, out };
        writer.recorder.launch(op);
        let middle = writer.residual_rows("attention.out");
        writer.leave(ATTENTION, out, x, middle);
        writer.mlp_forward();
        writer.finish()
    }
}

impl Writer<'_> {
    /// Keys or values of the layer.
    fn cache(&mut self, number: usize, name: &str, capacity: usize) -> View {
        let (rows, cols) =
            (self.recording.sequences * capacity, self.model().kv_heads * self.model().head_dim);
        let dims = [Dim::plain(rows), Dim::plain(cols)];
        self.recorder.value(name, Class::External(number), DType::F32, dims)
    }

    /// Copies the new rows of every sequence behind its old ones.
    fn append(&mut self, number: usize, name: &str, src: View, capacity: usize) {
        let (sequences, new) = (self.recording.sequences, self.recording.seq);
        let cache = self.cache(number, name, capacity);
        if new == 1 {
            // One row a sequence: the destination rows are `capacity` rows apart.
            let dst = View { rows: sequences, stride: capacity * cache.stride, ..cache };
            return self.recorder.launch(Copy { src, dst });
        }
        for b in 0..sequences {
            self.recorder.launch(Copy { src: src.rows(b * new, new), dst: cache.rows(b * capacity, new) });
        }
    }
}
