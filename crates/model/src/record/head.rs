//! The end: last normalisation, output projection, loss.

use super::{Normed, Recording, TeacherShape, Writer};
use bessemer_arch::Placement;
use bessemer_mesh::Dim;
use bessemer_program::{Class, Input, Phase, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{LinearCrossEntropy, LossBackward, Norm, NormKind, Scale, Teacher};
use bessemer_units::DType;

const NORM: &str = "final_norm";

/// Name of the auxiliary loss `mean(tau^2 KL(teacher || student))` (Hinton et al. 2015).
pub const DISTILLATION_LOSS: &str = "distillation";

/// Name of the auxiliary loss `mean(lse^2)`, lse the log-sum-exp of a token's logits (Chowdhery et al. 2022, PaLM, section 5).
pub const Z_LOSS: &str = "z_loss";

impl Recording<'_> {
    /// The head: the loss alone, and fused with its gradients.
    pub fn head(&self) -> UnitProgram {
        let mut writer = self.begin("");
        writer.recorder.begin(Phase::Score);
        writer.score();
        if self.train {
            writer.recorder.begin(Phase::Backward);
            writer.loss_and_backward();
        }
        writer.finish()
    }

    /// What the output projection reads, without the projection: [`Class::External`] 0 are rows of the residual stream, 1 the rows that it
    /// reads. No operator where the stream itself is read.
    pub fn projected(&self) -> UnitProgram {
        let mut writer = self.begin("");
        writer.recorder.begin(Phase::Score);
        let dims = [Dim::plain(writer.n()), Dim::plain(writer.model().width)];
        let mut external = |number: usize, name: &str| {
            writer.recorder.value(name, Class::External(number), self.storage, dims.clone())
        };
        let (x, out) = (external(0, "rows"), external(1, "head.rows"));
        writer.projected_to(x, Some(out));
        writer.finish()
    }

    /// Logits of this many rows: [`Class::External`] 0 are rows of the residual stream, 1 the logits.
    pub fn logits(&self, rows: usize) -> UnitProgram {
        let recording = Recording { sequences: rows, seq: 1, ..*self };
        let mut writer = recording.begin("");
        writer.recorder.begin(Phase::Score);
        let (width, vocabulary) = (writer.model().width, writer.model().vocab_size);
        let external = |writer: &mut Writer<'_>, number: usize, name: &str, dtype: DType, cols: usize| {
            let dims = [Dim::plain(rows), Dim::plain(cols)];
            writer.recorder.value(name, Class::External(number), dtype, dims)
        };
        let x = external(&mut writer, 0, "rows", self.storage, width);
        let out = external(&mut writer, 1, "logits", self.storage, vocabulary);
        let (x, _) = writer.projected(x);
        let weight = writer.projection();
        let (bias, activation, residual, rowwise) = (None, None, None, self.rowwise);
        let product = bessemer_tensor::op::Linear { x, weight, bias, activation, residual, rowwise, out };
        writer.recorder.launch(product);
        writer.finish()
    }
}

impl Writer<'_> {
    fn projection_name(&self) -> &'static str {
        if self.model().tied_embeddings { "embed.tokens" } else { "head.weight" }
    }

    fn projection(&mut self) -> View {
        let name = self.projection_name();
        self.weight(name)
    }

    fn losses(&mut self) -> View {
        let n = self.n();
        self.recorder.value("losses", Class::Losses, DType::F32, [Dim::plain(1), Dim::plain(n)])
    }

    fn final_norm(&self) -> Option<NormKind> {
        self.norm_kind().filter(|_| self.model().placement == Placement::Pre)
    }

    /// The rows that the output projection reads, Norm(x) scaled; and the normalisation.
    fn projected(&mut self, x: View) -> (View, Option<Normed>) {
        self.projected_to(x, None)
    }

    /// As [`Writer::projected`], written to `out` if it is given; not where the rows are x itself.
    fn projected_to(&mut self, x: View, out: Option<View>) -> (View, Option<Normed>) {
        let mut at = x;
        let factor = self.model().logit_scale() as f32;
        let normed = self.final_norm().map(|kind| {
            let out = out.filter(|_| factor == 1.0).unwrap_or_else(|| self.residual_rows("final_norm.out"));
            self.norm(NORM, kind, x, out, Dim::plain(1))
        });
        if let Some(normed) = &normed {
            at = normed.out;
        }
        if factor != 1.0 {
            let out = out.unwrap_or_else(|| self.residual_rows("head.in"));
            self.recorder.launch(Scale { x: at, out, factor });
            at = out;
        }
        (at, normed)
    }

    fn score(&mut self) {
        let (x, targets) = (self.stream(Class::StreamIn), self.input(Input::Targets));
        let (x, _) = self.projected(x);
        let (weight, loss) = (self.projection(), self.losses());
        self.recorder.launch(LinearCrossEntropy {
            x,
            weight,
            targets,
            loss,
            scored_lse: None,
            backward: None,
            teacher: None,
        });
    }

    fn loss_and_backward(&mut self) {
        let (x, targets) = (self.stream(Class::StreamIn), self.input(Input::Targets));
        let dx = self.stream(Class::StreamGradient);
        let (read, normed) = self.projected(x);
        let dread = if normed.is_some() { self.residual_rows("head.in.gradient") } else { dx };
        let name = self.projection_name();
        let dweight = self.weight_gradient(name);
        let factors = self.input(Input::LossFactors);
        let dims = [Dim::plain(1), Dim::plain(self.n())];
        let (lse, z_weight) = self.recorder.auxiliary_loss(Z_LOSS, true, dims);
        let z_loss = Some(z_weight.columns(0, 1));
        let backward = Some(LossBackward { factors, z_loss, dx: dread, dweight, accumulate: false });
        let (weight, loss) = (self.projection(), self.losses());
        let (scored_lse, teacher) = (Some(lse), self.teacher());
        self.recorder.launch(LinearCrossEntropy {
            x: read,
            weight,
            targets,
            loss,
            scored_lse,
            backward,
            teacher,
        });
        let factor = self.model().logit_scale() as f32;
        if factor != 1.0 {
            self.recorder.launch(Scale { x: dread, out: dread, factor });
        }
        if let Some(normed) = normed {
            self.norm_gradients(NORM, &normed, dread, dx, false);
        }
    }

    /// The predictions of a teacher, if there is one: [`Class::External`] 0 are the rows that its output projection reads, 1 the projection.
    fn teacher(&mut self) -> Option<Teacher> {
        let TeacherShape { width, projection, temperature } = self.recording.teacher?;
        let (n, vocabulary) = (self.n(), self.model().vocab_size);
        let external = |writer: &mut Self, number: usize, name: &str, dtype: DType, rows: usize| {
            let dims = [Dim::plain(rows), Dim::plain(width)];
            writer.recorder.value(name, Class::External(number), dtype, dims)
        };
        let x = external(self, 0, "teacher.rows", DType::F32, n);
        let weight = external(self, 1, "teacher.head.weight", projection, vocabulary);
        let dims = [Dim::plain(1), Dim::plain(n)];
        let (divergence, factor) = self.recorder.auxiliary_loss(DISTILLATION_LOSS, false, dims);
        Some(Teacher { x, weight, factor: factor.columns(0, 1), temperature, divergence })
    }

    /// The operator of a normalisation that was recorded.
    pub(super) fn norm_op(&mut self, name: &str, normed: &Normed) -> Norm {
        let Normed { kind, x, weight, out, mean, rstd } = *normed;
        let (bias, eps) = (self.parameter(&format!("{name}.bias")), self.model().norm_eps as f32);
        Norm { kind, x, weight, bias, out, mean, rstd, eps }
    }

    /// A normalisation over whole rows of `x`, as an earlier list has recorded it.
    pub(super) fn normed(&mut self, name: &str, kind: NormKind, x: View) -> Normed {
        let weight = self.weight(&format!("{name}.weight"));
        let mean = (kind == NormKind::Layer).then(|| self.numbers(&format!("{name}.mean"), Dim::plain(1)));
        let rstd = self.numbers(&format!("{name}.rstd"), Dim::plain(1));
        Normed { kind, x, weight, out: x, mean, rstd }
    }
}
