//! The attention block f: `Attention(rope(x Wqkv + b)) Wo + b`.
//!
//! Queries, keys and values are one fused product; its columns are all query heads, all key heads, all value heads.
//! Rotation happens in place on the first two parts at once, so the saved queries and keys are the rotated ones, as the
//! backward pass of the attention wants them. With QK-norm (Henry et al. 2020; Qwen3) all query heads share one weight, all
//! key heads another, or one weight is as wide as all of them (OLMoE); raw queries and keys stay in the fused product for the backward pass, attention reads the normalised
//! ones.
//!
//! Cost forward: 2 n D (H + 2G) E + 2 n H E D FLOPs of products and 4 E H FLOPs for each attended pair.

use super::residual::Block;
use super::{Normed, Writer};
use bessemer_arch::{Model, PositionChoice, RopeScalingKind};
use bessemer_mesh::{Block as Heads, Dim};
use bessemer_program::{Class, Input};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Alibi, Attention, AttentionBackward, AttentionDropout, AttentionMask, AttentionShape, Norm, NormKind,
    Rope, RopeScaling,
};
use bessemer_units::DType;

pub(super) const ATTENTION: Block = Block {
    norm: "attention_norm",
    first: "attention.qkv",
    last: "attention.out",
    dropout: "attention.out.dropout",
    branch: "attention.branch",
};

/// Queries, keys and values as attention reads them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Qkv {
    pub(super) q: View,
    pub(super) k: View,
    pub(super) v: View,
}

impl Writer<'_> {
    fn query_heads(&self) -> Heads {
        Heads::heads(self.model().heads, self.model().head_dim)
    }

    fn key_heads(&self) -> Heads {
        Heads::heads(self.model().kv_heads, self.model().head_dim)
    }

    fn qkv(&mut self, name: &str) -> View {
        let (q, kv) = (self.query_heads(), self.key_heads());
        self.activation(name, Dim::of([q, kv, kv]))
    }

    fn qk(&mut self, name: &str) -> View {
        let (q, kv) = (self.query_heads(), self.key_heads());
        self.activation(name, Dim::of([q, kv]))
    }

    /// `[n, H E]`.
    pub(super) fn mixed(&mut self, name: &str) -> View {
        let q = self.query_heads();
        self.activation(name, Dim::of([q]))
    }

    /// The parts of a fused matrix; with QK-norm the first two of `qk`.
    fn parts(&self, qkv: View, qk: Option<View>) -> Qkv {
        let (q, kv) = (self.model().attention_width(), self.model().kv_heads * self.model().head_dim);
        let of = qk.unwrap_or(qkv);
        Qkv { q: of.columns(0, q), k: of.columns(q, kv), v: qkv.columns(q + kv, kv) }
    }

    /// QK-norm of one part, queries or keys.
    fn head_norm(&mut self, name: &str, x: View, out: View) {
        let normed = self.head_normed(name, x, out);
        let eps = self.model().norm_eps as f32;
        let Normed { kind, weight, rstd, .. } = normed;
        self.recorder.launch(Norm { kind, x, weight, bias: None, out, mean: None, rstd, eps });
    }

    fn head_normed(&mut self, name: &str, x: View, out: View) -> Normed {
        let heads = if name.ends_with("q_norm") { self.model().heads } else { self.model().kv_heads };
        let stretches = self.model().qk_norm_stretches(heads);
        let rstd = self.numbers(&format!("{name}.rstd"), Dim::of([Heads::heads(stretches, 1)]));
        let weight = self.weight(&format!("{name}.weight"));
        Normed { kind: NormKind::Rms, x, weight, out, mean: None, rstd }
    }

    fn rotate(&mut self, qk: View, inverse: bool) {
        let model = self.model();
        if model.positions != PositionChoice::Rope {
            return;
        }
        let heads = model.heads + model.kv_heads;
        let (theta, scaling) = (model.rope_theta as f32, rope_scaling(model));
        let x = qk.columns(0, heads * model.head_dim);
        let positions = self.input(Input::Positions);
        self.recorder.launch(Rope { x, positions, heads, theta, scaling, inverse });
    }

    pub(super) fn attention_shape(&self) -> AttentionShape {
        let model = self.model();
        AttentionShape {
            batch: self.recording.sequences,
            seq: self.recording.seq,
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            scale: model.attention_scale() as f32,
        }
    }

    pub(super) fn alibi(&self) -> Option<Alibi> {
        let model = self.model();
        (model.positions == PositionChoice::Alibi).then(|| Alibi::of(model.heads))
    }

    fn attention_mask(&mut self) -> AttentionMask {
        let documents = self.model().document_end.is_some().then(|| self.input(Input::Documents));
        AttentionMask {
            window: self.model().window,
            alibi: self.alibi(),
            documents,
            ..AttentionMask::default()
        }
    }

    fn attention_dropout(&mut self) -> Option<AttentionDropout> {
        let (heads, seq) = (self.model().heads, self.recording.seq);
        self.drops().then(|| AttentionDropout::of(heads, self.mask("attention.dropout", heads * seq * seq)))
    }

    /// f32 `[B H, T]`: rows of a sequence's heads follow each other.
    fn lse(&mut self) -> View {
        let (heads, sequences) = (Heads::heads(self.model().heads, 1), self.recording.sequences);
        let dims = [Dim::of(vec![heads; sequences]), Dim::plain(self.recording.seq)];
        self.recorder.value("attention.lse", Class::Local, DType::F32, dims)
    }

    /// Queries, keys and values of the rows of `x`.
    pub(super) fn project(&mut self, x: View) -> Qkv {
        let input = self.enter(ATTENTION, x);
        let qkv = self.qkv("attention.qkv.out");
        self.adapted(ATTENTION.first, input, qkv, Self::qkv);
        if !self.model().qk_norm {
            self.rotate(qkv, false);
            return self.parts(qkv, None);
        }
        let qk = self.qk("attention.qk.out");
        let (raw, normed) = (self.parts(qkv, None), self.parts(qkv, Some(qk)));
        self.head_norm("attention.q_norm", raw.q, normed.q);
        self.head_norm("attention.k_norm", raw.k, normed.k);
        self.rotate(qk, false);
        normed
    }

    pub(super) fn attention_forward(&mut self) {
        let x = self.stream(Class::StreamIn);
        let Qkv { q, k, v } = self.project(x);
        let (out, lse) = (self.mixed("attention.mixed"), self.lse());
        let (shape, mask, dropout) =
            (self.attention_shape(), self.attention_mask(), self.attention_dropout());
        self.recorder.launch(Attention { shape, q, k, v, out, lse, mask, dropout });
        let middle = self.residual_rows("attention.out");
        self.leave(ATTENTION, out, x, middle);
    }

    pub(super) fn attention_backward(&mut self) {
        let x = self.stream(Class::StreamIn);
        let (out, lse) = (self.mixed("attention.mixed"), self.lse());
        let dout = self.mixed("attention.mixed.gradient");
        let kept = self.leave_backward(ATTENTION, out, None, dout);
        let (qkv, dqkv) = (self.qkv("attention.qkv.out"), self.qkv("attention.qkv.gradient"));
        let normed = self.model().qk_norm;
        let qk = normed.then(|| (self.qk("attention.qk.out"), self.qk("attention.qk.gradient")));
        let (values, gradients) = (self.parts(qkv, qk.map(|q| q.0)), self.parts(dqkv, qk.map(|q| q.1)));
        let (shape, mask, dropout) =
            (self.attention_shape(), self.attention_mask(), self.attention_dropout());
        let Qkv { q, k, v } = values;
        let (dq, dk, dv) = (gradients.q, gradients.k, gradients.v);
        self.recorder.launch(AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout });
        self.rotate(qk.map_or(dqkv, |q| q.1), true);
        if qk.is_some() {
            let (raw, draw) = (self.parts(qkv, None), self.parts(dqkv, None));
            for (name, x, out, dout, dx) in
                [("attention.q_norm", raw.q, q, dq, draw.q), ("attention.k_norm", raw.k, k, dk, draw.k)]
            {
                let normed = self.head_normed(name, x, out);
                self.norm_gradients(name, &normed, dout, dx, false);
            }
        }
        let input = self.read_again(ATTENTION, x);
        self.enter_backward(ATTENTION, x, input, dqkv, kept);
    }
}

/// The operator's description of the model's stretched angles.
fn rope_scaling(model: &Model) -> RopeScaling {
    let Some(s) = model.rope_scaling else { return RopeScaling::None };
    let factor = s.factor as f32;
    match s.kind {
        RopeScalingKind::Linear => RopeScaling::Linear { factor },
        RopeScalingKind::Llama3 => RopeScaling::Llama3 {
            factor,
            low_freq_factor: s.low_freq_factor as f32,
            high_freq_factor: s.high_freq_factor as f32,
            original_positions: s.original_context as usize,
        },
    }
}
