//! With the feature `mpi`: asks MPI's compiler wrapper for its flags and compiles the shim with them. The wrapper is
//! `mpicc`, or what `BESSEMER_MPICC` or `MPICC` name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "mpi")]
    mpi::build();
}

#[cfg(feature = "mpi")]
mod mpi {
    use std::process::Command;

    /// What a wrapper adds to a compiler's command line.
    struct Flags {
        compile: Vec<String>,
        link: Vec<String>,
    }

    pub(super) fn build() {
        for name in ["BESSEMER_MPICC", "MPICC", "PATH"] {
            println!("cargo:rerun-if-env-changed={name}");
        }
        println!("cargo:rerun-if-changed=src/mpi/shim.c");
        let named =
            ["BESSEMER_MPICC", "MPICC"].iter().find_map(|v| std::env::var(v).ok().filter(|v| !v.is_empty()));
        let wrapper = named.unwrap_or_else(|| "mpicc".to_owned());
        let flags = match ask(&wrapper) {
            Ok(flags) => flags,
            Err(problem) => fail(&wrapper, &problem),
        };
        let mut shim = cc::Build::new();
        shim.file("src/mpi/shim.c").warnings(true).extra_warnings(true);
        for flag in &flags.compile {
            // Headers of MPI are the system's: their warnings are not ours.
            match flag.strip_prefix("-I") {
                Some(folder) => shim.flag("-isystem").flag(folder),
                None => shim.flag(flag),
            };
        }
        if let Err(problem) = shim.try_compile("bessemer_mpi_shim") {
            fail(&wrapper, &format!("the shim does not compile with {:?}: {problem}", flags.compile));
        }
        for flag in &flags.link {
            if let Some(folder) = flag.strip_prefix("-L") {
                println!("cargo:rustc-link-search=native={folder}");
            } else if let Some(library) = flag.strip_prefix("-l") {
                println!("cargo:rustc-link-lib={library}");
            }
        }
        println!("cargo:rustc-env=BESSEMER_MPIRUN={}", beside(&wrapper));
    }

    /// Flags by the options of Open MPI, then by those of MPICH and what descends from it (Intel MPI, MVAPICH, Cray).
    fn ask(wrapper: &str) -> Result<Flags, String> {
        let mut said = Vec::new();
        for (compile, link) in
            [("-showme:compile", "-showme:link"), ("-compile-info", "-link-info"), ("-show", "-show")]
        {
            match (answer(wrapper, compile), answer(wrapper, link)) {
                (Ok(compile), Ok(link)) if link.iter().any(|f| f.starts_with("-l")) => {
                    let kept = |prefixes: [&str; 2], all: Vec<String>| {
                        all.into_iter().filter(|f| prefixes.iter().any(|p| f.starts_with(p))).collect()
                    };
                    return Ok(Flags {
                        compile: kept(["-I", "-D"], compile),
                        link: kept(["-L", "-l"], link),
                    });
                }
                (Ok(_), Ok(link)) => said.push(format!("{wrapper} names no library: {link:?}")),
                (Err(e), _) | (_, Err(e)) => said.push(e),
            }
        }
        Err(said.join("; "))
    }

    fn answer(wrapper: &str, option: &str) -> Result<Vec<String>, String> {
        let out = Command::new(wrapper).arg(option).output().map_err(|e| format!("{wrapper}: {e}"))?;
        if !out.status.success() {
            let error = String::from_utf8_lossy(&out.stderr);
            return Err(format!("{wrapper} {option}: {}", error.lines().next().unwrap_or("failed")));
        }
        Ok(String::from_utf8_lossy(&out.stdout).split_whitespace().map(str::to_owned).collect())
    }

    /// The launcher of the same installation: mpicc.mpich has mpirun.mpich beside it.
    fn beside(wrapper: &str) -> String {
        match wrapper.rsplit_once("mpicc") {
            Some((folder, suffix)) => format!("{folder}mpirun{suffix}"),
            None => "mpirun".to_owned(),
        }
    }

    #[allow(clippy::print_stderr, clippy::exit, reason = "how a build script says what is missing")]
    fn fail(wrapper: &str, problem: &str) -> ! {
        eprintln!(
            "\nerror: the feature `mpi` needs an MPI development package; asked `{wrapper}` and found none.\n  {problem}\n\n  \
             Debian, Ubuntu:  apt-get install libopenmpi-dev openmpi-bin     (or: libmpich-dev mpich)\n  \
             Fedora, RHEL:    dnf install openmpi-devel && module load mpi\n  \
             elsewhere:       name the compiler wrapper: BESSEMER_MPICC=/path/to/mpicc\n\n  \
             Without --features mpi nothing of this is needed.\n"
        );
        std::process::exit(1);
    }
}
