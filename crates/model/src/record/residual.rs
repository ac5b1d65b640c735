//! How a block f joins the residual stream.
//!
//! | placement | forward | saved besides the block's own |
//! |---|---|---|
//! | pre | `x_out = x + dropout(f(Norm(x)))` | Norm(x), statistics |
//! | pre, norm "none" | `x_out = x + dropout(f(x))` | nothing |
//! | post | `x_out = Norm(s)`, `s = x + dropout(f(x))` | s, statistics |
//! | deepnorm | `x_out = Norm(s)`, `s = alpha x + dropout(f(x))` (Wang et al. 2022) | s, statistics |
//!
//! f ends with a linear map `y W^T + b`. Backward, the gradients of x_out and of x share one value: pre adds what comes
//! through the block and its normalisation to it; post first takes ds through the normalisation and then
//! `dx = alpha ds + (what comes through the block)`.

use super::{Normed, Writer};
use bessemer_arch::Placement;
use bessemer_mesh::Dim;
use bessemer_program::Class;
use bessemer_tensor::View;
use bessemer_tensor::op::{ActivationBackward, ActivationKind, Add, LinearBackwardInput, Scale};

/// Names of a block: "attention" or "mlp".
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Its normalisation.
    pub(super) norm: &'static str,
    /// Its first linear map, which reads the stream.
    pub(super) first: &'static str,
    /// Its last linear map.
    pub(super) last: &'static str,
    /// The place of its dropout.
    pub(super) dropout: &'static str,
    /// What its last linear map gives, before it joins the stream.
    pub(super) branch: &'static str,
}

impl Writer<'_> {
    fn is_pre(&self) -> bool {
        self.model().placement == Placement::Pre
    }

    fn alpha(&self) -> f32 {
        self.model().residual_scale() as f32
    }

    /// Norm(x), recorded where the model normalises before its blocks.
    fn pre_norm(&mut self, block: Block, x: View) -> Option<Normed> {
        let kind = self.norm_kind().filter(|_| self.is_pre())?;
        let out = self.residual_rows(&format!("{}.out", block.norm));
        Some(self.norm(block.norm, kind, x, out, Dim::plain(1)))
    }

    /// The rows that a block reads.
    pub(super) fn enter(&mut self, block: Block, x: View) -> View {
        match self.pre_norm(block, x) {
            Some(normed) => {
                let op = self.norm_op(block.norm, &normed);
                self.recorder.again(normed.out, op);
                normed.out
            }
            None => x,
        }
    }

    /// From the input `y` of the block's last linear map to the stream behind the block.
    pub(super) fn leave(&mut self, block: Block, y: View, x: View, x_out: View) {
        let branch = self.residual_rows(block.branch);
        self.adapted(block.last, y, branch, Self::residual_rows);
        self.join(block, branch, x, x_out);
    }

    /// From what a block gives to the stream behind it.
    pub(super) fn join(&mut self, block: Block, mut branch: View, x: View, x_out: View) {
        let post = self.norm_kind().filter(|_| !self.is_pre());
        let sum = match post {
            Some(_) => self.residual_rows(&format!("{}.sum", block.norm)),
            None => x_out,
        };
        if self.drops() {
            let dropped = self.residual_rows(&format!("{}.dropped", block.branch));
            self.dropout(block.dropout, branch, dropped);
            branch = dropped;
        }
        let (alpha, mut a) = (self.alpha(), x);
        if alpha != 1.0 {
            a = self.residual_rows(&format!("{}.scaled", block.norm));
            self.recorder.launch(Scale { x, out: a, factor: alpha });
        }
        self.recorder.launch(Add { a, b: branch, out: sum });
        if let Some(kind) = post {
            self.norm(block.norm, kind, sum, x_out, Dim::plain(1));
        }
    }

    /// From the gradient of the stream behind the block to `dy`, that of the input `y` of its last linear map, through the
    /// activation that made `y` if there is one. Returns what [`Writer::enter_backward`] adds to.
    pub(super) fn leave_backward(
        &mut self,
        block: Block,
        y: View,
        activation: Option<(ActivationKind, View)>,
        dy: View,
    ) -> View {
        let (dbranch, kept) = self.join_backward(block);
        let dproduct = self.linear_gradients(block.last, y, dbranch);
        match activation {
            Some((kind, pre)) if self.is_adapted(block.last) => {
                self.adapted_input_gradient(block.last, dproduct, dy);
                self.recorder.launch(ActivationBackward { kind, x: pre, dout: dy, dx: dy });
            }
            activation => {
                let op = LinearBackwardInput { activation, ..self.input_gradient(block.last, dproduct, dy) };
                self.recorder.launch(op);
                self.add_adapter_inputs(block.last, dy);
            }
        }
        kept
    }

    /// From the gradient of the stream behind a block to that of what the block gives, and what [`Writer::enter_backward`] adds to.
    pub(super) fn join_backward(&mut self, block: Block) -> (View, View) {
        let dx = self.stream(Class::StreamGradient);
        let mut kept = dx;
        if let Some(kind) = self.norm_kind().filter(|_| !self.is_pre()) {
            let sum = self.residual_rows(&format!("{}.sum", block.norm));
            kept = self.residual_rows(&format!("{}.sum.gradient", block.norm));
            let normed = self.normed(block.norm, kind, sum);
            self.norm_gradients(block.norm, &normed, dx, kept, false);
        }
        let mut dproduct = kept;
        if self.drops() {
            dproduct = self.residual_rows(&format!("{}.gradient", block.branch));
            self.dropout(block.dropout, kept, dproduct);
        }
        (dproduct, kept)
    }

    /// The gradient of the block's first linear map's own parameters and input, and with that the gradient of x. `input` is
    /// what the block has read, `dy` the gradient of that map's outputs.
    pub(super) fn enter_backward(&mut self, block: Block, x: View, input: View, dy: View, kept: View) {
        let dy = self.linear_gradients(block.first, input, dy);
        let dinput = self.entry_gradient(block);
        self.adapted_input_gradient(block.first, dy, dinput);
        self.entered_backward(block, x, dinput, kept);
    }

    /// Memory of the gradient of the rows that a block has read.
    pub(super) fn entry_gradient(&mut self, block: Block) -> View {
        match self.is_pre() {
            true => self.residual_rows(&format!("{}.in.gradient", block.first)),
            false => self.stream(Class::StreamGradient),
        }
    }

    /// From the gradient of the rows that a block has read to that of x.
    pub(super) fn entered_backward(&mut self, block: Block, x: View, dinput: View, kept: View) {
        let (dx, pre) = (self.stream(Class::StreamGradient), self.is_pre());
        match self.norm_kind() {
            Some(kind) if pre => {
                let normed = self.normed(block.norm, kind, x);
                self.norm_gradients(block.norm, &normed, dinput, dx, true);
            }
            None if pre => self.recorder.launch(Add { a: dx, b: dinput, out: dx }),
            _ => {
                let alpha = self.alpha();
                if alpha != 1.0 {
                    self.recorder.launch(Scale { x: kept, out: kept, factor: alpha });
                }
                self.recorder.launch(Add { a: dx, b: kept, out: dx });
            }
        }
    }

    /// The rows that a block has read.
    pub(super) fn read_again(&mut self, block: Block, x: View) -> View {
        match self.norm_kind().filter(|_| self.is_pre()) {
            Some(_) => self.residual_rows(&format!("{}.out", block.norm)),
            None => x,
        }
    }
}
