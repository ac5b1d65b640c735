//! Launchers and their variables.

use bessemer_collectives::launch::{Launch, LaunchError, LaunchSource, resolve};

/// Resolves with these variables.
fn env(variables: &[(&str, &str)]) -> Result<Launch, LaunchError> {
    resolve(&|name| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()))
}

/// (rank, world, local rank, source) of a launch.
fn parts(launch: &Launch) -> (usize, usize, Option<usize>, LaunchSource) {
    (launch.rank, launch.world, launch.local_rank, launch.source)
}

const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "5"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("PMIX_RANK", "5"),
];

#[test]
fn every_launcher_is_recognised() {
    assert_eq!(parts(&env(&[]).unwrap()), (0, 1, None, LaunchSource::Single));
    assert_eq!(parts(&env(&OPEN_MPI).unwrap()), (5, 8, Some(1), LaunchSource::OpenMpi));
    let torch = env(&[("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]);
    assert_eq!(parts(&torch.unwrap()), (3, 4, Some(1), LaunchSource::Torchrun));
    let hydra =
        env(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")]);
    assert_eq!(parts(&hydra.unwrap()), (1, 2, Some(1), LaunchSource::Pmi));
    let pmix = env(&[
        ("PMIX_RANK", "6"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "6"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_LOCALID", "2"),
    ]);
    assert_eq!(parts(&pmix.unwrap()), (6, 8, Some(2), LaunchSource::Pmi));
    let step =
        env(&[("SLURM_STEP_ID", "3"), ("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_LOCALID", "0")]);
    assert_eq!(parts(&step.unwrap()), (1, 2, Some(0), LaunchSource::Slurm));
    let job = env(&[("JOB_COMPLETION_INDEX", "2"), ("WORLD_SIZE", "4")]);
    assert_eq!(parts(&job.unwrap()), (2, 4, None, LaunchSource::Kubernetes));
}

#[test]
fn the_first_source_wins() {
    let torch = [&OPEN_MPI[..], &[("RANK", "9"), ("WORLD_SIZE", "16")]].concat();
    assert_eq!(parts(&env(&torch).unwrap()), (9, 16, None, LaunchSource::Torchrun));
}

#[test]
fn slurm_counts_only_inside_a_step() {
    // A shell in an allocation, a batch script, the interactive step: one process whatever SLURM_NTASKS says.
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "0")];
    assert_eq!(env(&batch).unwrap(), Launch::single());
    let interactive = [&batch[..], &[("SLURM_STEP_ID", "4294967290")]].concat();
    assert_eq!(env(&interactive).unwrap(), Launch::single());
}

#[test]
fn contradictions_are_errors() {
    let says = |variables: &[(&str, &str)], words: &[&str]| {
        let error = env(variables).unwrap_err().to_string();
        assert!(
            !error.contains("--"),
            "advice names a flag of the program, which has none for this: {error}"
        );
        for word in words {
            assert!(error.contains(word), "{error:?} does not say {word:?}");
        }
    };
    says(&[("RANK", "x"), ("WORLD_SIZE", "2")], &["RANK is \"x\""]);
    says(&[("RANK", "-1"), ("WORLD_SIZE", "2")], &["\"-1\""]);
    says(&[("RANK", "0")], &["RANK is set", "WORLD_SIZE is not"]);
    says(&[("WORLD_SIZE", "2")], &["WORLD_SIZE is set", "RANK is not"]);
    says(&[("RANK", "2"), ("WORLD_SIZE", "2")], &["the rank is 2", "there are 2 ranks", "torchrun"]);
    says(&[("RANK", "0"), ("WORLD_SIZE", "0")], &["there are 0 ranks"]);
    says(&[("OMPI_COMM_WORLD_SIZE", "2")], &["OMPI_COMM_WORLD_RANK is not"]);
    says(&[("PMIX_RANK", "1")], &["PMIX_RANK is set", "WORLD_SIZE"]);
    says(&[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1")], &["SLURM_NTASKS is not"]);
    says(&[("JOB_COMPLETION_INDEX", "1")], &["spec.completions"]);
    says(
        &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")],
        &["the local rank is 1", "the rank is 0"],
    );
    says(
        &[("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")],
        &["2 ranks on this host"],
    );
}

#[test]
fn an_engine_that_came_up_otherwise_is_refused() {
    let launch = env(&OPEN_MPI).unwrap();
    assert_eq!(launch.agrees("MPI", 5, 8), Ok(()));
    let error = launch.agrees("MPI", 0, 1).unwrap_err().to_string();
    assert!(
        error.contains("rank 0 of 1") && error.contains("rank 5 of 8") && error.contains("mpirun"),
        "{error}"
    );
    assert_eq!(Launch::single().agrees("MPI", 3, 4), Ok(()));
}
