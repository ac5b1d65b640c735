//! What a process of a run says of itself about twice a second: a small file that outlives it.
//!
//! A file is rewritten in place, without a rename and without fsync: it must cost nothing on a shared file system, and only the
//! living read it. A hash over the content tells a whole file from one that is being written.

use crate::identity::{ProcessIdentity, ProcessState};
use crate::launch_epoch::{FOLDER, folder};
use bessemer_durable::{AsDir, ConfinedDir};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;

/// Version of the file.
pub const HEARTBEAT_VERSION: u64 = 1;
/// Longest file that is read.
const LONGEST: u64 = 4 << 20;

/// Work of a rank at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankPhase {
    /// Work before the first step: data, buffers, a checkpoint.
    Preparing,
    /// A step.
    Training,
    /// A validation or the generation of samples.
    Evaluating,
    /// A save.
    Saving,
}

impl RankPhase {
    /// Name, as a sentence takes it.
    pub fn name(self) -> &'static str {
        match self {
            RankPhase::Preparing => "preparing",
            RankPhase::Training => "training",
            RankPhase::Evaluating => "evaluating",
            RankPhase::Saving => "saving",
        }
    }
}

/// A collective that a rank has begun and not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingCall {
    /// Kind of the collective, and name of its values.
    pub what: String,
    /// Label of the group.
    pub group: String,
    /// Collectives of this group on this rank before it.
    pub sequence: u64,
    /// Seconds since the call.
    pub seconds: f64,
}

/// State of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankBeat {
    /// Number of the rank.
    pub rank: usize,
    /// Steps done.
    pub step: u64,
    /// Work of the rank.
    pub phase: RankPhase,
    /// Grows whenever the rank gets on: with every step, every collective, every report of progress, every byte of a save.
    pub activity: u64,
    /// The collective that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitingCall>,
    /// Seconds that the training thread has spent in collectives since the beginning of the launch.
    pub waited: f64,
}

/// State of one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Version of the file.
    pub version: u64,
    /// Number of the launch.
    pub epoch: u64,
    /// Number of the process in its job.
    pub process: usize,
    /// The process, by which a supervisor finds it again: lines as [`ProcessIdentity::to_bytes`] writes them.
    pub identity: String,
    /// Number of this heartbeat, from 1.
    pub beat: u64,
    /// Seconds since the process began to send heartbeats.
    pub seconds: f64,
    /// Exit code with which the process is about to leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<i32>,
    /// Ranks of this process.
    pub ranks: Vec<RankBeat>,
}

impl Heartbeat {
    /// The process.
    pub fn identity(&self) -> Option<ProcessIdentity> {
        ProcessIdentity::from_bytes(self.identity.as_bytes())
    }

    /// Host and number of the process, for people.
    pub fn place(&self) -> String {
        self.identity().map_or_else(|| format!("process {}", self.process), |identity| identity.to_string())
    }

    /// State of the process, as far as `own`, a process of this host, can see it.
    pub fn state(&self, own: &ProcessIdentity) -> ProcessState {
        self.identity().map_or(ProcessState::Unknown, |identity| identity.state(own))
    }
}

fn file_name(process: usize) -> String {
    format!("process-{process:05}.json")
}

/// Writes the heartbeat of a process. `file` keeps the open file from one call to the next; the first call replaces the
/// file of an earlier process.
///
/// # Errors
/// The system's.
pub fn write_heartbeat(run: impl AsDir, beat: &Heartbeat, file: &mut Option<File>) -> io::Result<()> {
    let json = serde_json::to_vec(beat).map_err(io::Error::other)?;
    let mut bytes = format!("{:016x} {}\n", xxh3_64(&json), json.len()).into_bytes();
    bytes.extend_from_slice(&json);
    bytes.push(b'\n');
    let open = match file.take() {
        Some(open) => open,
        None => folder(run)?.create_replacing(file_name(beat.process))?,
    };
    open.write_all_at(&bytes, 0)?;
    *file = Some(open);
    Ok(())
}

/// The heartbeats of a run, in the order of the processes. Files that are being written, or are none, are passed over.
///
/// # Errors
/// The system's; a folder that is missing holds no heartbeats.
pub fn read_heartbeats(run: impl AsDir) -> io::Result<Vec<Heartbeat>> {
    let folder = match run.as_dir()?.dir(FOLDER) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        folder => folder?,
    };
    let mut beats = Vec::new();
    for (name, _) in folder.list("")? {
        let text = name.to_string_lossy();
        if text.starts_with("process-") && text.ends_with(".json") {
            // Twice, for one that was caught in the middle.
            beats.extend((0..2).find_map(|_| read_one(&folder, &name)));
        }
    }
    beats.sort_by_key(|beat: &Heartbeat| beat.process);
    Ok(beats)
}

fn read_one(folder: &ConfinedDir, name: &OsStr) -> Option<Heartbeat> {
    let file = folder.open_file(name).ok()?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    parse(&bytes)
}

/// The content of a file; older and longer content may follow it.
fn parse(bytes: &[u8]) -> Option<Heartbeat> {
    let end = bytes.iter().take(64).position(|b| *b == b'\n')?;
    let (hash, length) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?;
    let json = bytes[end + 1..].get(..length.parse().ok()?)?;
    if u64::from_str_radix(hash, 16).ok()? != xxh3_64(json) {
        return None;
    }
    serde_json::from_slice(json).ok().filter(|beat: &Heartbeat| beat.version == HEARTBEAT_VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(process: usize, names: usize) -> Heartbeat {
        let waits = WaitingCall { what: "x".repeat(names), group: "data".into(), sequence: 5, seconds: 1.5 };
        let rank = RankBeat {
            rank: process,
            step: 7,
            phase: RankPhase::Training,
            activity: 9,
            waits: Some(waits),
            waited: 0.25,
        };
        let identity = String::from_utf8(ProcessIdentity::own("here".into()).to_bytes()).unwrap();
        let (version, epoch, beat) = (HEARTBEAT_VERSION, 2, 3);
        Heartbeat { version, epoch, process, identity, beat, seconds: 0.5, leaves: None, ranks: vec![rank] }
    }

    #[test]
    fn heartbeats_come_back_also_where_a_longer_one_stood() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(read_heartbeats(run.path()).unwrap(), []);
        let mut file = None;
        write_heartbeat(run.path(), &beat(11, 500), &mut file).unwrap();
        write_heartbeat(run.path(), &beat(11, 3), &mut file).unwrap();
        write_heartbeat(run.path(), &beat(2, 3), &mut None).unwrap();
        let read = read_heartbeats(run.path()).unwrap();
        assert_eq!(read, [beat(2, 3), beat(11, 3)]);
        let own = ProcessIdentity::own("here".into());
        assert_eq!(read[0].state(&own), ProcessState::Runs);
    }

    #[test]
    fn no_cut_and_no_flipped_bit_is_taken_for_a_heartbeat() {
        let run = tempfile::tempdir().unwrap();
        write_heartbeat(run.path(), &beat(0, 3), &mut None).unwrap();
        let path = run.path().join(FOLDER).join(file_name(0));
        let whole = std::fs::read(&path).unwrap();
        assert!(parse(&whole).is_some());
        for cut in 0..whole.len() - 1 {
            assert_eq!(parse(&whole[..cut]), None, "{cut}");
        }
        for bit in 0..8 * (whole.len() - 1) {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Hexadecimal digits have two cases.
            assert!(parse(&flipped).is_none_or(|b| b == beat(0, 3)), "bit {bit}");
        }
    }

    #[test]
    fn links_in_the_place_of_the_folder_and_of_files_are_not_written_through() {
        let place = tempfile::tempdir().unwrap();
        let (run, outside) = (place.path().join("run"), place.path().join("outside"));
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(&outside, run.join(FOLDER)).unwrap();
        let refused = [
            write_heartbeat(&run, &beat(0, 3), &mut None).unwrap_err(),
            crate::launch_epoch::claim(&run, 1).unwrap_err(),
            read_heartbeats(&run).unwrap_err(),
        ];
        for error in refused {
            assert!(error.to_string().contains("run/supervise"), "{error}");
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        std::fs::remove_file(run.join(FOLDER)).unwrap();
        // A second name of a file of somebody else is replaced.
        std::fs::create_dir(run.join(FOLDER)).unwrap();
        let precious = outside.join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::fs::hard_link(&precious, run.join(FOLDER).join(file_name(0))).unwrap();
        write_heartbeat(&run, &beat(0, 3), &mut None).unwrap();
        assert_eq!(read_heartbeats(&run).unwrap(), [beat(0, 3)]);
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    }
}
