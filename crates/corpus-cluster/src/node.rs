//! A step of a corpus plan as a node of a DataFusion physical plan, and the codec that carries it to the executors.
//!
//! A node holds a description (bytes that only [`TaskRunner`] understands) and its inputs. Its rows are shuffle blocks. A task is
//! blocking code on a thread of its own: it pulls from its inputs and pushes into a channel of two batches, so a slow reader
//! blocks the task and memory stays bounded.

use crate::shuffle_block;
use arrow_array::RecordBatch;
use ballista_core::serde::BallistaPhysicalExtensionCodec;
use bessemer_dataflow::Result as PlanResult;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::TaskContext;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, SendableRecordBatchStream,
};
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use futures::StreamExt;
use std::fmt;
use std::sync::Arc;

/// Batches of one partition of an input, pulled by blocking code.
pub(crate) type Pull<'a> = dyn FnMut() -> PlanResult<Option<RecordBatch>> + 'a;
/// Takes a batch of the result.
pub(crate) type Push<'a> = dyn FnMut(RecordBatch) -> PlanResult<()> + 'a;

/// Runs the tasks of steps. Every executor has one.
pub(crate) trait TaskRunner: Send + Sync {
    /// Runs the step of `description` on one partition of its input.
    fn run_task(&self, description: &[u8], input: &mut Pull<'_>, output: &mut Push<'_>) -> PlanResult<()>;
}

/// A step as a node.
pub(crate) struct StepExec {
    description: Arc<[u8]>,
    input: Arc<dyn ExecutionPlan>,
    runner: Arc<dyn TaskRunner>,
    properties: Arc<PlanProperties>,
}

impl StepExec {
    pub(crate) fn new(
        description: Arc<[u8]>,
        input: Arc<dyn ExecutionPlan>,
        runner: Arc<dyn TaskRunner>,
    ) -> StepExec {
        let partitions = input.output_partitioning().partition_count();
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(shuffle_block::schema()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        StepExec { description, input, runner, properties }
    }
}

impl fmt::Debug for StepExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepExec")
            .field("description", &String::from_utf8_lossy(&self.description))
            .finish_non_exhaustive()
    }
}

impl DisplayAs for StepExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepExec: {}", String::from_utf8_lossy(&self.description))
    }
}

impl ExecutionPlan for StepExec {
    fn name(&self) -> &str {
        "StepExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        // Units must stay whole: no optimizer may repartition their rows.
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: datafusion::physical_plan::ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => {
                Ok(Arc::new(StepExec::new(self.description.clone(), input, self.runner.clone())))
            }
            _ => Err(DataFusionError::Internal("a step has exactly one input".into())),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options =
            datafusion::physical_plan::ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut input = self.input.execute(partition, context)?;
        let (description, runner) = (self.description.clone(), self.runner.clone());
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<RecordBatch>>(2);
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            let mut pull = || match runtime.block_on(input.next()) {
                None => Ok(None),
                Some(Ok(batch)) => Ok(Some(batch)),
                Some(Err(cause)) => Err(foreign("read the previous step's blocks", &cause)),
            };
            let mut push = |batch| {
                // The reader is gone: its task was cancelled, and this one is over too.
                sender.blocking_send(Ok(batch)).map_err(|_| bessemer_dataflow::Error::Stopped)
            };
            if let Err(error) = runner.run_task(&description, &mut pull, &mut push) {
                // Without a reader there is nobody to report to.
                let _ = sender.blocking_send(Err(DataFusionError::External(Box::new(error))));
            }
        });
        let batches = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|batch| (batch, receiver))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(shuffle_block::schema(), batches)))
    }
}

/// Wraps an error of the cluster as an error of a plan.
pub(crate) fn foreign(action: &str, cause: &dyn fmt::Display) -> bessemer_dataflow::Error {
    bessemer_dataflow::Error::Plan { stage: "cluster".into(), problem: format!("cannot {action}: {cause}") }
}

/// First bytes of an encoded [`StepExec`]; everything else is Ballista's.
const STEP_PREFIX: &[u8] = b"bessemer corpus step 1\0";

/// Carries steps as their descriptions and leaves every other node to Ballista.
pub(crate) struct StepCodec {
    pub(crate) runner: Arc<dyn TaskRunner>,
    pub(crate) ballista: BallistaPhysicalExtensionCodec,
}

impl fmt::Debug for StepCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepCodec")
    }
}

impl PhysicalExtensionCodec for StepCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(description) = bytes.strip_prefix(STEP_PREFIX) else {
            return self.ballista.try_decode(bytes, inputs, context, converter);
        };
        match inputs {
            [input] => Ok(Arc::new(StepExec::new(description.into(), input.clone(), self.runner.clone()))),
            _ => {
                Err(DataFusionError::Internal(format!("a step with {} inputs instead of one", inputs.len())))
            }
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        match node.downcast_ref::<StepExec>() {
            Some(step) => {
                bytes.extend_from_slice(STEP_PREFIX);
                bytes.extend_from_slice(&step.description);
                Ok(())
            }
            None => self.ballista.try_encode(node, bytes, converter),
        }
    }
}
