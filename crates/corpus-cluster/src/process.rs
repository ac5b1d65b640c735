//! The processes of a cluster: a scheduler, executors, and the client's side of a job.

use crate::Error;
use crate::block_file::CAME_TWICE;
use crate::contract::ExecutorOptions;
use crate::node::{StepCodec, StepExec, TaskRunner};
use crate::shuffle_block;
use arrow_array::RecordBatch;
use ballista_core::config::{BallistaConfig, TaskSchedulingPolicy};
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::StreamExt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How tasks reach executors: each asks for as many as it has free slots. Ballista's other policy, in which the scheduler keeps the
/// count of free slots, does not return the slots of tasks whose stage is rolled back when an executor is lost, so that executors
/// stand idle for ever (apache/datafusion-ballista issue 2418 describes the same for cancelled jobs).
const POLICY: TaskSchedulingPolicy = TaskSchedulingPolicy::PullStaged;
/// Seconds without a question for tasks after which an executor counts as dead and its tasks go to others. One without a free slot
/// still asks every 5 seconds.
const DEAD_AFTER_S: u64 = 15;
/// Seconds between two looks for dead executors.
const LOOK_EVERY_S: u64 = 2;

fn failed(action: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Error {
    move |cause| Error::Cluster { action, cause: cause.to_string() }
}

/// Returns the error of a job that ended with `cause`. Ballista repeats the tasks of a lost executor while the job runs, but the
/// last step's results are fetched from the executors that made them, and of a failure there only a text arrives. Where a task was
/// repeated whose first results are listed too, a reader finds blocks twice and refuses them: the job begins anew then as well.
fn unfinished(cause: &str) -> Error {
    let lost = ["GrpcConnectionError", "FetchFailed", "tonic::transport::Error", CAME_TWICE];
    if lost.iter().any(|word| cause.contains(word)) {
        return Error::Lost { cause: cause.to_string() };
    }
    failed("finish the job")(&cause)
}

fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|cause| failed("start the threads of the network")(&cause))
}

fn codec(runner: &Arc<dyn TaskRunner>) -> Arc<StepCodec> {
    Arc::new(StepCodec { runner: runner.clone(), ballista: Default::default() })
}

/// Serves as the cluster's scheduler until the process ends.
pub(crate) fn scheduler(address: &str, runner: &Arc<dyn TaskRunner>) -> Result<(), Error> {
    let socket: std::net::SocketAddr = address.parse().map_err(|cause| Error::Address {
        found: address.to_string(),
        problem: format!("{cause}; wanted IP:PORT, for example 127.0.0.1:50050"),
    })?;
    let config = SchedulerConfig {
        bind_host: socket.ip().to_string(),
        bind_port: socket.port(),
        scheduling_policy: POLICY,
        external_host: socket.ip().to_string(),
        executor_timeout_seconds: DEAD_AFTER_S,
        expire_dead_executor_interval_seconds: LOOK_EVERY_S,
        no_executors_grace_period_seconds: 60,
        min_ready_executors: 1,
        override_physical_codec: Some(codec(runner)),
        ..SchedulerConfig::default()
    };
    runtime(2)?.block_on(async {
        let cluster = BallistaCluster::new_from_config(&config)
            .await
            .map_err(|cause| failed("start the scheduler")(&cause))?;
        start_server(cluster, socket, Arc::new(config))
            .await
            .map_err(|cause| failed("serve as scheduler")(&cause))
    })
}

/// Executes tasks of a scheduler until the process is terminated.
pub(crate) fn executor(options: &ExecutorOptions, runner: &Arc<dyn TaskRunner>) -> Result<(), Error> {
    let (scheduler_host, scheduler_port) = host_port(&options.scheduler)?;
    let (host, port) = host_port(&options.listen)?;
    let work_dir = options.work_dir.to_str().ok_or_else(|| Error::Address {
        found: options.work_dir.display().to_string(),
        problem: "the path of the working folder must be UTF-8".into(),
    })?;
    bessemer_durable::create_dir_all(&options.work_dir)
        .map_err(|cause| failed("create the working folder")(&cause))?;
    let config = ExecutorProcessConfig {
        bind_host: host.clone(),
        external_host: Some(host),
        port,
        task_scheduling_policy: POLICY,
        scheduler_host,
        scheduler_port,
        scheduler_connect_timeout_seconds: 30,
        vcores: options.slots.max(1),
        work_dir: Some(work_dir.to_string()),
        override_physical_codec: Some(codec(runner)),
        ..ExecutorProcessConfig::default()
    };
    runtime(options.slots.max(1) + 1)?
        .block_on(start_executor_process(Arc::new(config)))
        .map_err(|cause| failed("work for the scheduler")(&cause))
}

pub(crate) fn host_port(text: &str) -> Result<(String, u16), Error> {
    let wrong = |problem: &str| Error::Address { found: text.to_string(), problem: problem.to_string() };
    let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("wanted HOST:PORT"))?;
    let port = port.parse().map_err(|_| wrong("the part after the colon is not a port from 1 to 65535"))?;
    if host.is_empty() || port == 0 {
        return Err(wrong("wanted HOST:PORT, for example 127.0.0.1:50050"));
    }
    Ok((host.to_string(), port))
}

/// One step of a job and the shuffle before it.
pub(crate) struct JobStep {
    /// Partitions of the shuffle into which this step's inputs come; none for the first step.
    pub(crate) shuffle: Option<usize>,
    /// Description of the task, for [`TaskRunner::run_task`].
    pub(crate) description: Vec<u8>,
}

/// The client of a cluster.
pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    scheduler: String,
    runner: Arc<dyn TaskRunner>,
}

impl Client {
    pub(crate) fn connect(scheduler: &str, runner: &Arc<dyn TaskRunner>) -> Result<Client, Error> {
        let (host, port) = host_port(scheduler)?;
        Ok(Client {
            runtime: runtime(2)?,
            scheduler: format!("http://{host}:{port}"),
            runner: runner.clone(),
        })
    }

    /// Runs a job. `seeds` are distributed over `slices` partitions of the first step; `take` receives the blocks of the last step.
    pub(crate) fn run(
        &self,
        seeds: &[RecordBatch],
        slices: usize,
        steps: &[JobStep],
        stop: &AtomicBool,
        take: &mut dyn FnMut(&RecordBatch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let plan =
            self.plan(seeds, slices, steps).map_err(|cause| failed("make a plan for the cluster")(&cause))?;
        let codec = codec(&self.runner);
        let session =
            SessionConfig::new_with_ballista().with_ballista_physical_extension_codec(codec.clone());
        self.runtime.block_on(async {
            let mut stream = execute_physical_plan::<PhysicalPlanNode>(
                self.scheduler.clone(),
                &BallistaConfig::default(),
                plan,
                codec.as_ref(),
                format!("{:032x}", u128::from(std::process::id())),
                session,
            )
            .await
            .map_err(|cause| unfinished(&cause.to_string()))?;
            loop {
                tokio::select! {
                    batch = stream.next() => match batch {
                        None => return Ok(()),
                        Some(Err(cause)) => return Err(unfinished(&cause.to_string())),
                        Some(Ok(batch)) => take(&batch)?,
                    },
                    () = tokio::time::sleep(Duration::from_millis(200)) => {
                        if stop.load(Ordering::Relaxed) {
                            return Err(Error::Plan(bessemer_dataflow::Error::Stopped));
                        }
                    }
                }
            }
        })
    }

    fn plan(
        &self,
        seeds: &[RecordBatch],
        slices: usize,
        steps: &[JobStep],
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        let mut dealt: Vec<Vec<RecordBatch>> = vec![Vec::new(); slices.clamp(1, seeds.len().max(1))];
        let count = dealt.len();
        for (index, seed) in seeds.iter().enumerate() {
            dealt[index % count].push(seed.clone());
        }
        let source = MemorySourceConfig::try_new(&dealt, shuffle_block::schema(), None)?;
        let mut plan: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(source);
        for step in steps {
            if let Some(partitions) = step.shuffle {
                let key = Arc::new(Column::new("partition", 0));
                plan = Arc::new(RepartitionExec::try_new(
                    plan,
                    Partitioning::Hash(vec![key], partitions.max(1)),
                )?);
            }
            plan = Arc::new(StepExec::new(step.description.clone().into(), plan, self.runner.clone()));
        }
        Ok(plan)
    }
}

/// Whether something listens at a scheduler's address.
pub(crate) fn reachable(scheduler: &str, patience: Duration) -> Result<(), Error> {
    let (host, port) = host_port(scheduler)?;
    let unreachable = |cause: String| Error::Unreachable { scheduler: scheduler.to_string(), cause };
    let addresses =
        (host.as_str(), port).to_socket_addrs().map_err(|cause| unreachable(cause.to_string()))?;
    let mut last = String::from("the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(_) => return Ok(()),
            Err(cause) => last = cause.to_string(),
        }
    }
    Err(unreachable(last))
}

/// Waits until a scheduler has an executor. A job without one would wait for ever.
pub(crate) fn await_executor(scheduler: &str, patience: Duration, stop: &AtomicBool) -> Result<(), Error> {
    let begun = Instant::now();
    while !ready(scheduler)? {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Plan(bessemer_dataflow::Error::Stopped));
        }
        if begun.elapsed() >= patience {
            return Err(Error::NoExecutor { scheduler: scheduler.to_string(), seconds: patience.as_secs() });
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Requests `/readyz` of a scheduler, which answers 200 or, without executors, 503.
fn ready(scheduler: &str) -> Result<bool, Error> {
    let (host, port) = host_port(scheduler)?;
    let unreachable = |cause: std::io::Error| Error::Unreachable {
        scheduler: scheduler.to_string(),
        cause: cause.to_string(),
    };
    let mut stream = TcpStream::connect((host.as_str(), port)).map_err(unreachable)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(unreachable)?;
    let question = format!("GET /readyz HTTP/1.1\r\nHost: {scheduler}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).map_err(unreachable)?;
    // The status line is enough; the rest of the answer is not read.
    let mut answer = Vec::new();
    stream.take(32).read_to_end(&mut answer).map_err(unreachable)?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_whitespace().nth(1) {
        Some("200") if answer.starts_with("HTTP/") => Ok(true),
        Some("503") if answer.starts_with("HTTP/") => Ok(false),
        _ => Err(Error::NoScheduler {
            scheduler: scheduler.to_string(),
            found: format!("{:?}", answer.lines().next().unwrap_or_default()),
        }),
    }
}

/// Returns the absolute form of a path.
pub(crate) fn absolute(path: &Path) -> Result<std::path::PathBuf, Error> {
    std::path::absolute(path).map_err(|cause| failed("make the path absolute")(&cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_differs_from_a_failed_step() {
        let refused = r#"Execution error: GrpcConnectionError("Error connecting to Ballista scheduler or executor at http://127.0.0.1:1")"#;
        assert!(matches!(unfinished(refused), Error::Lost { .. }));
        assert!(matches!(
            unfinished("stage \"cluster\": shuffle block (0, 2, 0) came twice"),
            Error::Lost { .. }
        ));
        assert!(matches!(unfinished("Execution error: no such file"), Error::Cluster { .. }));
    }

    #[test]
    fn addresses_are_a_host_and_a_port() {
        assert_eq!(host_port("a.b:50").unwrap(), ("a.b".to_string(), 50));
        for wrong in ["a.b", ":50", "a.b:0", "a.b:70000", "a.b:x"] {
            assert!(host_port(wrong).is_err(), "{wrong}");
        }
    }
}
