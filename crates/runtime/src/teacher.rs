//! Distillation: a model that makes predictions for the batches of another one, its student.
//!
//! The teacher runs forward only, in f32, as an evaluation does: no dropout, no capacity, no noise. It leaves the rows that its output
//! projection reads; logits are made in the student's loss, some rows at a time ([`bessemer_tensor::op::Teacher`]).

use crate::config::ActivationConfig;
use crate::decoder::{Decoder, Purpose, Shape};
use crate::error::ModelError;
use crate::memory::ScratchBuffers;
use crate::params::{Param, alloc_in};
use crate::step::TokenBatch;
use crate::units::StageUnit;
use bessemer_arch::{Model, Unit};
use bessemer_model::{Recording, TeacherShape};
use bessemer_program::{OneDevice, Phase, StepValues, each_op, plan_memory, run};
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::{Bytes, DType};

/// Class of the parameters of a teacher.
const CLASS: &str = "teacher";

/// Operands of a student's loss from its teacher.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TeacherOperands {
    /// `[n, D]` f32: rows that the teacher's output projection reads.
    pub rows: View,
    /// `[V, D]`: the projection.
    pub projection: View,
    /// tau, by which the logits of both are divided.
    pub temperature: f32,
}

impl TeacherOperands {
    pub(crate) fn shape(&self) -> TeacherShape {
        TeacherShape {
            width: self.rows.cols,
            projection: self.projection.dtype(),
            temperature: self.temperature,
        }
    }

    /// Views in the order of the program's external values.
    pub(crate) fn views(&self) -> [View; 2] {
        [self.rows, self.projection]
    }
}

/// A teacher whose memory is allocated.
#[derive(Debug)]
pub struct Teacher {
    decoder: Decoder,
    /// Program from the residual stream to the rows that the projection reads.
    projected: StageUnit,
    /// Memory of its values.
    table: Vec<View>,
    operands: TeacherOperands,
}

impl Teacher {
    /// Allocates a teacher for the batches of its student, whose shape is given; parameters are zero until they are written.
    ///
    /// # Errors
    /// Sequences longer than the teacher's context, or an error of the backend (out of memory).
    pub fn new(
        backend: &mut dyn Backend,
        model: &Model,
        shape: Shape,
        temperature: f32,
    ) -> Result<Teacher, ModelError> {
        let shape = Shape { purpose: Purpose::Score, ..shape };
        shape.check(model)?;
        let params = alloc_in(backend, CLASS, model.params())?;
        let mut decoder = Decoder::with_params(backend, model, shape, ActivationConfig::default(), params)?;
        let shardings = model.shardings();
        let recording = Recording::new(model, &shardings, [shape.sequences, shape.seq], DType::F32);
        let program = recording.projected();
        let memory = plan_memory(&program, &[Phase::Score]);
        decoder.buffers.scratch =
            ScratchBuffers::alloc(backend, "activations", &memory.scratch, &decoder.buffers.scratch)?;
        let number = |name: &str| decoder.params.iter().position(|p| p.spec.name == name);
        let parameters = program.parameters.iter().map(|name| number(name).unwrap_or(usize::MAX)).collect();
        let table = if model.tied_embeddings { "embed.tokens" } else { "head.weight" };
        let projection = number(table)
            .map(|at| decoder.params[at].value)
            .ok_or_else(|| ModelError::UnknownParameter { name: table.into(), hint: String::new() })?;
        let projected = StageUnit { unit: Unit::Head, program, memory, distinct: true, parameters };
        let stream = decoder.stream_of(0);
        let rows = match projected.program.list(Phase::Score).is_empty() {
            true => stream,
            false => {
                let name = "rows of the output projection";
                let spec = BufferSpec { class: "activations", name, dtype: DType::F32, len: stream.len() };
                backend.alloc(spec)?.matrix(stream.rows, stream.cols)
            }
        };
        let mut memory_of_values = Vec::new();
        decoder.logits_binding(&projected, &[stream, rows]).fill(&mut memory_of_values);
        let mut most = Bytes(0);
        each_op(&projected.program, Phase::Score, &memory_of_values, &mut |op: &Op| {
            op.check()?;
            most = most.max(backend.workspace(op)?);
            Ok(())
        })?;
        backend.reserve_workspace(most)?;
        let operands = TeacherOperands { rows, projection, temperature };
        Ok(Teacher { decoder, projected, table: memory_of_values, operands })
    }

    /// Operands of the student's loss ([`ActivationConfig::teacher`]).
    pub fn operands(&self) -> TeacherOperands {
        self.operands
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.decoder.model()
    }

    /// Its parameters, for the caller to write.
    pub fn params(&self) -> &[Param] {
        self.decoder.params()
    }

    /// Makes the rows of a batch.
    ///
    /// # Errors
    /// A batch of another shape or with foreign indices, or an error of the backend.
    pub fn forward(&mut self, backend: &mut dyn Backend, batch: &TokenBatch<'_>) -> Result<(), ModelError> {
        self.decoder.check_batch(batch)?;
        self.decoder.held.free(0);
        self.decoder.stage_forward(backend, &mut OneDevice, 0, batch, None)?;
        let StageUnit { program, parameters, .. } = &self.projected;
        let values = &StepValues::default();
        run(program, Phase::Score, (&self.table, parameters), values, backend, &mut OneDevice)?;
        Ok(())
    }
}

impl Decoder {
    /// Sets the teacher of a student, whose operands the decoder was made with ([`ActivationConfig::teacher`]). Training passes then run it
    /// first, while its loss is weighed.
    ///
    /// # Errors
    /// Another teacher than the decoder was made for.
    pub fn set_teacher(&mut self, teacher: Teacher) -> Result<(), ModelError> {
        if self.config.teacher != Some(teacher.operands) {
            return Err(ModelError::Stage(
                "wanted the teacher whose operands the decoder was made with (ActivationConfig::teacher), found another".into(),
            ));
        }
        self.teacher = Some(Box::new(teacher));
        Ok(())
    }

    /// Runs the teacher for a batch of a training step, if its loss counts in that step.
    pub(crate) fn teach(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        step: u64,
    ) -> Result<(), ModelError> {
        let name = bessemer_model::DISTILLATION_LOSS;
        let weighed = self.weighed.iter().any(|loss| loss.name == name && loss.weight_at(step) != 0.0);
        if self.config.teacher.is_none() || !weighed {
            return Ok(());
        }
        match &mut self.teacher {
            Some(teacher) => teacher.forward(backend, batch),
            None => Err(ModelError::Stage(
                "wanted a teacher for a loss that compares with one, found none; give it to the decoder (Decoder::set_teacher)".into(),
            )),
        }
    }
}
