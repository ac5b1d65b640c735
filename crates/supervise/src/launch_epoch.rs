//! The number of a launch: it keeps an older launch of the same run from going on beside the newest one.
//!
//! A lock on the run directory goes with its process. A host that is cut off keeps its processes, and with some network file
//! systems their lock is lost. So every launch has a number, one more than any before it, and a process whose number is no longer
//! the newest one must end.

use bessemer_durable::{AsDir, ConfinedDir};
use std::io;
use std::path::Path;

/// Folder of a run directory with the files of the supervisor and of the heartbeats.
pub const FOLDER: &str = "supervise";
const FILE: &str = "epoch";

/// Makes or opens the folder of the supervisor's files in a run directory.
///
/// # Errors
/// A link or a file in its place; the system's.
pub fn folder(run: impl AsDir) -> io::Result<ConfinedDir> {
    run.as_dir()?.create_dir(FOLDER)
}

/// Newest launch of a run; 0 if no supervisor has launched it.
///
/// # Errors
/// The system's, or a file that holds no number.
pub fn newest(run: impl AsDir) -> io::Result<u64> {
    let run = run.as_dir()?;
    let file = Path::new(FOLDER).join(FILE);
    match run.read_to_string(&file) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let found: String = text.chars().take(40).collect();
            io::Error::other(format!(
                "{}: wanted the number of the newest launch, found {found:?}; remove the file if no process \
                 is using the run",
                run.path().join(file).display()
            ))
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Makes `epoch` the newest launch of a run.
///
/// # Errors
/// The system's; a newer launch has begun.
pub fn claim(run: impl AsDir, epoch: u64) -> io::Result<()> {
    let run = run.as_dir()?;
    let newest = newest(&run)?;
    if newest > epoch {
        return Err(io::Error::other(outdated(run.path(), epoch, newest)));
    }
    if newest < epoch {
        folder(&run)?.write(FILE, format!("{epoch}\n").as_bytes())?;
    }
    Ok(())
}

/// Sentence about a launch that is not the newest one.
pub fn outdated(run: &Path, epoch: u64, newest: u64) -> String {
    format!(
        "launch {epoch} of {} is not the newest: launch {newest} has taken over; this process ends so that only one writes",
        run.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_newer_launches_take_over() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(newest(run.path()).unwrap(), 0);
        claim(run.path(), 3).unwrap();
        claim(run.path(), 3).unwrap();
        let refused = claim(run.path(), 2).unwrap_err().to_string();
        assert!(refused.contains("launch 3 has taken over"), "{refused}");
        claim(run.path(), 4).unwrap();
        assert_eq!(newest(run.path()).unwrap(), 4);
        std::fs::write(run.path().join(FOLDER).join(FILE), "four").unwrap();
        let refused = newest(run.path()).unwrap_err().to_string();
        assert!(refused.contains("found \"four\""), "{refused}");
    }
}
