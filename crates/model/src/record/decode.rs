//! Decoding with cached keys and values.
//!
//! | external | new positions of each of B sequences | one position of each of several slots |
//! |---|---|---|
//! | 0, 1 | keys and values of the layer from the first new position on, `[B C, G E]` | those of all slots, `[S C, G E]` |
//! | 2, 3 | the same from the first position that is seen on | 2: places of the rows, u32 `[1, 3 R]` |

use super::attention::{ATTENTION, Qkv};
use super::{Recording, Writer};
use bessemer_mesh::Dim;
use bessemer_program::{Class, Phase, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{AttentionCached, AttentionSlots, Copy};
use bessemer_units::DType;

impl Recording<'_> {
    /// Layer `index` for `seq` new positions of each sequence, with a cache of `capacity` positions for each.
    pub fn decode_layer(&self, index: usize, capacity: usize) -> UnitProgram {
        let rows = self.sequences * capacity;
        self.cached_layer(index, |writer, Qkv { q, k, v }, out| {
            for (number, name, src) in [(0, "keys.new", k), (1, "values.new", v)] {
                let cache = writer.cache(number, name, rows);
                for b in 0..self.sequences {
                    let (src, dst) = (src.rows(b * self.seq, self.seq), cache.rows(b * capacity, self.seq));
                    writer.recorder.launch(Copy { src, dst });
                }
            }
            let (k_cache, v_cache) = (writer.cache(2, "keys", rows), writer.cache(3, "values", rows));
            let (shape, alibi, window) = (writer.attention_shape(), writer.alibi(), writer.model().window);
            let op = AttentionCached { shape, past: 0, capacity, window, alibi, q, k_cache, v_cache, out };
            writer.recorder.launch(op);
        })
    }

    /// Layer `index` for one new position of each of `sequences` rows, in a cache of `slots` slots.
    pub fn decode_slots_layer(&self, index: usize, slots: usize, capacity: usize) -> UnitProgram {
        self.cached_layer(index, |writer, Qkv { q, k, v }, out| {
            let rows = slots * capacity;
            let (k_cache, v_cache) = (writer.cache(0, "keys", rows), writer.cache(1, "values", rows));
            let dims = [Dim::plain(1), Dim::plain(AttentionSlots::PLACE * writer.n())];
            let places = writer.recorder.value("places", Class::External(2), DType::U32, dims);
            let (shape, alibi, window) = (writer.attention_shape(), writer.alibi(), writer.model().window);
            let op =
                AttentionSlots { shape, capacity, window, alibi, places, q, k, v, k_cache, v_cache, out };
            writer.recorder.launch(op);
        })
    }

    /// A layer whose attention `attend` records.
    fn cached_layer(&self, index: usize, attend: impl Fn(&mut Writer<'_>, Qkv, View)) -> UnitProgram {
        let mut writer = self.begin_layer(index);
        writer.recorder.begin(Phase::Score);
        let x = writer.stream(Class::StreamIn);
        let qkv = writer.project(x);
        let out = writer.mixed("attention.mixed");
        attend(&mut writer, qkv, out);
        let middle = writer.residual_rows("attention.out");
        writer.leave(ATTENTION, out, x, middle);
        writer.mlp_forward();
        writer.finish()
    }
}

impl Writer<'_> {
    /// Keys or values of the layer.
    fn cache(&mut self, number: usize, name: &str, rows: usize) -> View {
        let cols = self.model().kv_heads * self.model().head_dim;
        let dims = [Dim::plain(rows), Dim::plain(cols)];
        self.recorder.value(name, Class::External(number), DType::F32, dims)
    }
}
