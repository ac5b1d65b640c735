//! Which rank of how many this process is, from what launchers leave in the environment.
//!
//! Every launcher has its own variables; [`resolve`] takes the first of these that is there: torchrun
//! (`RANK`, `WORLD_SIZE`), Open MPI (`OMPI_COMM_WORLD_*`), PMI (`PMIX_RANK` or `PMI_RANK`, `PMI_SIZE`), a Slurm step
//! (`SLURM_PROCID`), an indexed Kubernetes Job (`JOB_COMPLETION_INDEX`), and otherwise one process on its own. Values that
//! contradict each other within one source are errors. Two sources may differ: torchrun under `srun` starts several
//! ranks in one Slurm task.

/// Source of rank and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LaunchSource {
    /// torchrun, Kubeflow and others that follow PyTorch.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A process manager that speaks PMI: MPICH, Intel MPI, Slurm's plug-ins.
    Pmi,
    /// A Slurm step (`srun`).
    Slurm,
    /// A Kubernetes Job with `completionMode: Indexed`.
    Kubernetes,
    /// No launcher: one process.
    Single,
}

impl std::fmt::Display for LaunchSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LaunchSource::Torchrun => "torchrun (RANK, WORLD_SIZE)",
            LaunchSource::OpenMpi => "Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)",
            LaunchSource::Pmi => "PMI (PMI_RANK or PMIX_RANK, PMI_SIZE)",
            LaunchSource::Slurm => "Slurm step (SLURM_PROCID, SLURM_NTASKS)",
            LaunchSource::Kubernetes => "Kubernetes Job (JOB_COMPLETION_INDEX)",
            LaunchSource::Single => "no launcher",
        })
    }
}

/// Position of this process among those of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Number of this process.
    pub rank: usize,
    /// Number of processes.
    pub world: usize,
    /// Number of this process on its host, if the launcher sets it.
    pub local_rank: Option<usize>,
    /// Number of processes on this host, if the launcher sets it.
    pub local_world: Option<usize>,
    /// Source of the numbers.
    pub source: LaunchSource,
}

impl std::fmt::Display for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.world)?;
        if let Some(local) = self.local_rank {
            write!(f, ", {local} on its host")?;
        }
        write!(f, "; from: {}", self.source)
    }
}

/// Errors of the launcher's variables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A variable holds no number.
    #[error("{variable} is {found:?}; wanted a whole number from 0. Correct or unset it")]
    Garbage {
        /// The variable.
        variable: String,
        /// Value of the variable.
        found: String,
    },
    /// One variable of a pair is missing.
    #[error("{present} is set, but {missing} is not. {advice}")]
    Half {
        /// Variable that is set.
        present: String,
        /// Variables of which one is missing.
        missing: String,
        /// Advice.
        advice: String,
    },
    /// A number is outside its range.
    #[error("{what} is {number}, but {limit}; the numbers come from the {from}")]
    Range {
        /// Name of the number.
        what: String,
        /// Value of the number.
        number: usize,
        /// Limit that it exceeds.
        limit: String,
        /// Source of the numbers.
        from: String,
    },
    /// The engine has another rank or size than the launcher's variables.
    #[error(
        "{engine} came up as rank {rank} of {world}, but the launcher's variables give {launch}. Start the \
         ranks with {engine}'s own launcher (mpirun or mpiexec of the same installation that this program \
         was built with, or srun --mpi=...)"
    )]
    Disagreement {
        /// Name of the engine.
        engine: String,
        /// Rank in the engine.
        rank: usize,
        /// Size of the engine.
        world: usize,
        /// Position according to the launcher.
        launch: Box<Launch>,
    },
}

impl Launch {
    /// Returns the position of a process without launcher.
    pub fn single() -> Launch {
        Launch { rank: 0, world: 1, local_rank: None, local_world: None, source: LaunchSource::Single }
    }

    /// Checks that an engine (MPI) has the rank and size of the launcher's variables. Without the engine's launcher every
    /// process would be a job of its own and train alone. Without a known launcher the engine's numbers are taken.
    ///
    /// # Errors
    /// [`LaunchError::Disagreement`].
    pub fn agrees(&self, engine: &str, rank: usize, world: usize) -> Result<(), LaunchError> {
        if self.source == LaunchSource::Single || (self.rank, self.world) == (rank, world) {
            return Ok(());
        }
        Err(LaunchError::Disagreement {
            engine: engine.to_owned(),
            rank,
            world,
            launch: Box::new(self.clone()),
        })
    }
}

/// Variables of a launcher, behind a function so that no library reads the environment.
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn number(&self, name: &str) -> Result<Option<usize>, LaunchError> {
        let Some(text) = (self.lookup)(name) else { return Ok(None) };
        // A variable set to nothing is what shells and manifests leave of one that is not there.
        if text.trim().is_empty() {
            return Ok(None);
        }
        match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(LaunchError::Garbage { variable: name.to_owned(), found: text }),
        }
    }

    /// Returns the first of these variables that is set, with its name.
    fn first(&self, names: &[&'static str]) -> Result<Option<(&'static str, usize)>, LaunchError> {
        for name in names {
            if let Some(number) = self.number(name)? {
                return Ok(Some((name, number)));
            }
        }
        Ok(None)
    }
}

/// Variables of a source.
struct Names {
    source: LaunchSource,
    rank: &'static [&'static str],
    world: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_world: &'static [&'static str],
    advice: &'static str,
}

const SOURCES: [Names; 5] = [
    Names {
        source: LaunchSource::Torchrun,
        rank: &["RANK"],
        world: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_world: &["LOCAL_WORLD_SIZE"],
        advice: "torchrun sets both; set or unset both",
    },
    Names {
        source: LaunchSource::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        advice: "mpirun sets both; start with mpirun",
    },
    Names {
        source: LaunchSource::Pmi,
        rank: &["PMI_RANK", "PMIX_RANK"],
        // PMIx keeps the size out of the environment; under srun --mpi=pmix the step has it.
        world: &["PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["MPI_LOCALRANKID", "SLURM_LOCALID"],
        local_world: &["MPI_LOCALNRANKS"],
        advice: "the process manager sets the rank but not the number of ranks; set WORLD_SIZE and RANK",
    },
    Names {
        source: LaunchSource::Slurm,
        rank: &["SLURM_PROCID"],
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_world: &[],
        advice: "start with srun, which sets both",
    },
    Names {
        source: LaunchSource::Kubernetes,
        rank: &["JOB_COMPLETION_INDEX"],
        world: &["WORLD_SIZE"],
        local_rank: &[],
        local_world: &[],
        advice: "an indexed Job does not state its number of pods; set WORLD_SIZE in its template to \
                 spec.completions",
    },
];

/// Steps that Slurm makes for its own use (batch script, interactive shell, external) have numbers from here on. Their one
/// process sees `SLURM_NTASKS` of the whole allocation, which says nothing about itself.
const SLURM_OWN_STEPS: usize = 0xffff_fff0;

fn applies(names: &Names, variables: &Variables<'_>) -> Result<bool, LaunchError> {
    match names.source {
        LaunchSource::Slurm => {
            let step = variables.first(&["SLURM_STEP_ID", "SLURM_STEPID"])?;
            Ok(step.is_some_and(|(_, step)| step < SLURM_OWN_STEPS))
        }
        // An indexed Job's template sets WORLD_SIZE for its own sake.
        LaunchSource::Torchrun => {
            Ok(variables.number("RANK")?.is_some() || variables.number("JOB_COMPLETION_INDEX")?.is_none())
        }
        _ => Ok(true),
    }
}

fn from(names: &Names, variables: &Variables<'_>) -> Result<Option<Launch>, LaunchError> {
    if !applies(names, variables)? {
        return Ok(None);
    }
    let rank = variables.first(names.rank)?;
    let world = variables.first(names.world)?;
    let half = |present: &str, missing: &[&str]| LaunchError::Half {
        present: present.to_owned(),
        missing: missing.join(" or "),
        advice: names.advice.to_owned(),
    };
    let (rank, world) = match (rank, world) {
        (None, None) => return Ok(None),
        // Sizes of Slurm and Kubernetes stand in the lists of others too, and say nothing without the rank.
        (None, Some((name, _))) if names.world[0] == name && names.source != LaunchSource::Kubernetes => {
            return Err(half(name, names.rank));
        }
        (None, Some(_)) => return Ok(None),
        (Some((name, _)), None) => return Err(half(name, names.world)),
        (Some((_, rank)), Some((_, world))) => (rank, world),
    };
    Ok(Some(Launch {
        rank,
        world,
        local_rank: variables.first(names.local_rank)?.map(|(_, n)| n),
        local_world: variables.first(names.local_world)?.map(|(_, n)| n),
        source: names.source,
    }))
}

/// Finds rank and size of this process. `lookup` gives the value of an environment variable.
///
/// # Errors
/// Variables that hold no numbers, half of a pair, or numbers that contradict each other.
pub fn resolve(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Launch, LaunchError> {
    let variables = Variables { lookup };
    let mut launch = Launch::single();
    for names in &SOURCES {
        if let Some(found) = from(names, &variables)? {
            launch = found;
            break;
        }
    }
    within(&launch)?;
    Ok(launch)
}

/// Checks that ranks are below their sizes, and that a host has no more ranks than the job.
fn within(launch: &Launch) -> Result<(), LaunchError> {
    let refuse = |what: &str, number: usize, limit: String| {
        Err(LaunchError::Range { what: what.to_owned(), number, limit, from: launch.source.to_string() })
    };
    if launch.rank >= launch.world {
        let limit = format!("there are {} ranks, counted from 0", launch.world);
        return refuse("the rank", launch.rank, limit);
    }
    if let Some(local) = launch.local_rank {
        let bound = launch.local_world.unwrap_or(launch.world);
        if local >= bound {
            return refuse(
                "the local rank",
                local,
                format!("there are {bound} ranks on this host, counted from 0"),
            );
        }
        if local > launch.rank {
            return refuse("the local rank", local, format!("the rank is {}", launch.rank));
        }
    }
    match launch.local_world {
        Some(local) if local > launch.world => {
            refuse("the number of ranks on this host", local, format!("there are {} in all", launch.world))
        }
        _ => Ok(()),
    }
}
