//! A checkpoint that every rank writes its own slices of: the messages between the ranks.
//!
//! ```text
//! rank 0 begins ── ticket ──► every rank writes and syncs its files ── description ──► rank 0 commits ── outcome ──► all
//! ```
//! Only these messages pass between ranks; no tensor does. A rank that is gone ends the group's calls within the communicator's
//! time-out: the save is then dropped, and the preceding checkpoint stays.

use crate::TrainError;
use bessemer_checkpoint::{
    CheckpointError, Contents, LentTensors, PartRequest, SaveReport, SaveTicket, Store, TensorParts,
    TensorSlice, TensorSource, TensorSpec, WrittenPart, slice_specs,
};
use bessemer_collectives::{Communicator, Message};
use bessemer_parallel::{OwnSlice, ParallelError, StateCopy};
use bessemer_runlog::LogSync;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Messages.
const TICKET: &str = "checkpoint begins";
const LENGTH: &str = "checkpoint part, length";
const PART: &str = "checkpoint part";
const OUTCOME: &str = "checkpoint ends";

/// Store of the checkpoints of a run, on every rank.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) store: Store,
    /// The whole tensors.
    pub(super) tensors: Vec<TensorSpec>,
    /// Largest tensor file.
    pub(super) max_file_bytes: u64,
}

impl Destination {
    /// Bytes of the tensors of a checkpoint.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |t: &TensorSpec| t.shape.iter().product::<usize>() as u64 * t.dtype.size() as u64;
        self.tensors.iter().map(bytes).sum()
    }
}

/// Contents of a checkpoint besides tensors.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) step: u64,
    pub(super) tokens: u64,
    pub(super) state: serde_json::Value,
    pub(super) recipe: String,
    pub(super) tokenizer: String,
    /// The run's log, which holds the records up to the step: it is made durable before the checkpoint.
    pub(super) log: Option<LogSync>,
}

/// A save that has ended on all ranks.
pub(super) enum Written {
    /// A durable checkpoint; with the report on rank 0.
    Durable(Option<SaveReport>),
    /// A rank has values that are not finite: nothing was saved.
    Refused(String),
}

/// A rank's answer to the ticket.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Part(WrittenPart),
    NotFinite(String),
    Failed(String),
}

/// Outcome of a save, in the message to all ranks.
const DURABLE: u32 = 1;
const REFUSED: u32 = 2;

/// Reads elements of the saved state of a rank, as [`bessemer_parallel::OwnSlices::read`] counts them.
pub(super) type ReadSlice<'a> = dyn FnMut(Range<usize>, &mut [f32]) -> Result<(), ParallelError> + 'a;

/// Source of the values of a rank's slices.
pub(super) enum SliceValues<'a> {
    Read(&'a mut ReadSlice<'a>),
    Copied(&'a StateCopy),
}

/// Saves the slices of every rank of `group`, which all call this. `identity`: on rank 0.
///
/// # Errors
/// A write error of this rank or of another one.
pub(super) fn write_slices(
    to: &Destination,
    identity: Option<Identity>,
    slices: &[OwnSlice],
    values: SliceValues<'_>,
    group: &mut dyn Communicator,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Written, TrainError> {
    let bytes = to.bytes();
    let begin = |identity: Identity| {
        if let Some(log) = &identity.log {
            log.sync()?;
        }
        Ok::<_, TrainError>((to.store.begin(identity.step, bytes)?, identity))
    };
    let begun = identity.map(begin);
    let mut words = match &begun {
        Some(Ok((saving, _))) => {
            let SaveTicket { step, process } = saving.ticket();
            [1, process, step as u32, (step >> 32) as u32]
        }
        _ => [0; 4],
    };
    group.broadcast(TICKET, 0, &mut words).map_err(ParallelError::from)?;
    let begun = begun.transpose()?;
    if words[0] == 0 {
        return Err(other_rank(0, "could not begin a checkpoint".into()));
    }
    let step = u64::from(words[2]) | u64::from(words[3]) << 32;
    let ticket = SaveTicket { step, process: words[1] };
    let (answer, own) = match write_part(to, ticket, slices, values, (group.rank(), group.size()), progress) {
        Ok(part) => (Answer::Part(part), None),
        Err(e) => match &e {
            TrainError::Checkpoint(CheckpointError::NotFinite { .. }) => {
                (Answer::NotFinite(e.to_string()), None)
            }
            other => (Answer::Failed(other.to_string()), Some(e)),
        },
    };
    let Some((saving, identity)) = begun else {
        send(group, &answer)?;
        let mut outcome = [0u32];
        group.broadcast(OUTCOME, 0, &mut outcome).map_err(ParallelError::from)?;
        return match (outcome[0], own) {
            (_, Some(own)) => Err(own),
            (DURABLE, None) => Ok(Written::Durable(None)),
            (REFUSED, None) => {
                Ok(Written::Refused("a rank refused to save values that are not finite".into()))
            }
            _ => Err(other_rank(0, "could not save the checkpoint".into())),
        };
    };
    let mut answers = vec![answer];
    for rank in 1..group.size() {
        answers.push(receive(group, rank)?);
    }
    let contents = Contents {
        tokens: identity.tokens,
        state: identity.state,
        recipe: identity.recipe,
        tokenizer: Some(identity.tokenizer),
        tensors: to.tensors.clone(),
    };
    // A checkpoint that is not committed is removed.
    let result = match (own, parts_of(answers)) {
        (Some(own), _) => Err(own),
        (None, Parts::All(parts)) => {
            saving.commit(parts, contents).map(|report| Written::Durable(Some(report))).map_err(Into::into)
        }
        (None, Parts::Refused(text)) => Ok(Written::Refused(text)),
        (None, Parts::Failed { rank, problem }) => Err(other_rank(rank, problem)),
    };
    let mut outcome = [match &result {
        Ok(Written::Durable(_)) => DURABLE,
        Ok(Written::Refused(_)) => REFUSED,
        Err(_) => 0,
    }];
    group.broadcast(OUTCOME, 0, &mut outcome).map_err(ParallelError::from)?;
    result
}

fn other_rank(rank: usize, problem: String) -> TrainError {
    CheckpointError::OnRank { rank, problem }.into()
}

/// Combined answers of the ranks: a failure counts before a refusal.
enum Parts {
    All(Vec<WrittenPart>),
    Refused(String),
    Failed { rank: usize, problem: String },
}

fn parts_of(answers: Vec<Answer>) -> Parts {
    let (mut parts, mut refused) = (Vec::new(), None);
    for (rank, answer) in answers.into_iter().enumerate() {
        match answer {
            Answer::Part(part) => parts.push(part),
            Answer::NotFinite(text) => refused = refused.or(Some(text)),
            Answer::Failed(problem) => return Parts::Failed { rank, problem },
        }
    }
    refused.map_or(Parts::All(parts), Parts::Refused)
}

/// Writes this rank's files.
fn write_part(
    to: &Destination,
    ticket: SaveTicket,
    slices: &[OwnSlice],
    values: SliceValues<'_>,
    (rank, ranks): (usize, usize),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<WrittenPart, TrainError> {
    let slice = |s: &OwnSlice| TensorSlice { tensor: s.tensor, part: s.part.clone() };
    let boxes: Vec<_> = slices.iter().map(slice).collect();
    let specs = slice_specs(&to.tensors, &boxes);
    let mut write = |tensors: &mut dyn TensorSource| {
        let max_file_bytes = to.max_file_bytes;
        let part = PartRequest { rank, ranks, tensors, slices: &boxes, max_file_bytes, progress };
        to.store.write_part(ticket, part)
    };
    let read = match values {
        SliceValues::Copied(copy) => {
            return Ok(write(&mut LentTensors::new(specs, |entry| copy.values(&slices[entry])))?);
        }
        SliceValues::Read(read) => read,
    };
    let mut lost = None;
    let mut source = TensorParts::new(specs, |entry: usize, first: usize, values: &mut [f32]| {
        let from = slices[entry].at.start + first;
        read(from..from + values.len(), values).map_err(|e| {
            let text = e.to_string();
            lost = Some(e);
            text.into()
        })
    });
    let written = write(&mut source);
    drop(source);
    match (written, lost) {
        (Err(_), Some(lost)) => Err(lost.into()),
        (written, _) => Ok(written?),
    }
}

fn send(group: &mut dyn Communicator, answer: &Answer) -> Result<(), TrainError> {
    let bytes = serde_json::to_vec(answer)
        .map_err(|e| TrainError::State { place: "part of a checkpoint".into(), problem: e.to_string() })?;
    let length = bytes.len() as u64;
    let words = [length as u32, (length >> 32) as u32];
    group.send(Message::new(LENGTH, 0, 0), &words).map_err(ParallelError::from)?;
    Ok(group.send(Message::new(PART, 0, 0), &bytes).map_err(ParallelError::from)?)
}

fn receive(group: &mut dyn Communicator, rank: usize) -> Result<Answer, TrainError> {
    let mut words = [0u32; 2];
    group.receive(Message::new(LENGTH, 0, rank), &mut words).map_err(ParallelError::from)?;
    let length = u64::from(words[0]) | u64::from(words[1]) << 32;
    let mut bytes = vec![0u8; length as usize];
    group.receive(Message::new(PART, 0, rank), &mut bytes).map_err(ParallelError::from)?;
    serde_json::from_slice(&bytes).map_err(|e| TrainError::State {
        place: format!("part of a checkpoint from rank {rank}"),
        problem: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
    use bessemer_mesh::BoxRange;
    use bessemer_units::DType;
    use std::time::Duration;

    const RANKS: usize = 3;

    /// Fault of a rank.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Fault {
        Nothing,
        /// Its device fails.
        Device(usize),
        /// A value that is not finite.
        NotFinite(usize),
        /// The rank never writes.
        Dies(usize),
    }

    /// Rank `rank`'s row of a tensor of one row a rank.
    fn save(
        to: &Destination,
        step: u64,
        fault: Fault,
        group: &mut dyn Communicator,
    ) -> Result<Written, TrainError> {
        let rank = group.rank();
        let part = BoxRange { start: vec![rank, 0], shape: vec![1, 4] };
        let slices = [OwnSlice { tensor: 0, part, at: 0..4 }];
        let identity = (rank == 0).then(|| Identity {
            step,
            tokens: 1,
            state: serde_json::json!({}),
            recipe: String::new(),
            tokenizer: "t".into(),
            log: None,
        });
        let mut read = |_: Range<usize>, values: &mut [f32]| {
            values.fill(rank as f32);
            if fault == Fault::Device(rank) {
                return Err(ParallelError::Layout("the device is gone".into()));
            }
            if fault == Fault::NotFinite(rank) {
                values[2] = f32::NAN;
            }
            Ok(())
        };
        write_slices(to, identity, &slices, SliceValues::Read(&mut read), group, &mut |_, _| ())
    }

    fn all(to: &Destination, step: u64, fault: Fault) -> Vec<Option<Result<Written, TrainError>>> {
        let settings = ThreadSettings { patience: Duration::from_secs(20), ..ThreadSettings::default() };
        let worlds = ThreadCommunicator::world("checkpoint", RANKS, &settings);
        std::thread::scope(|scope| {
            let run = |mut world: ThreadCommunicator| {
                scope.spawn(move || {
                    let group: &mut dyn Communicator = &mut world;
                    (fault != Fault::Dies(group.rank())).then(|| save(to, step, fault, group))
                })
            };
            let ranks: Vec<_> = worlds.into_iter().map(run).collect();
            ranks.into_iter().map(|r| r.join().expect("no rank panics")).collect()
        })
    }

    fn entries(store: &Store) -> Vec<String> {
        let names =
            std::fs::read_dir(store.dir()).expect("a store").map(|e| e.expect("an entry").file_name());
        let mut names: Vec<_> = names.filter_map(|n| n.into_string().ok()).filter(|n| n != ".lock").collect();
        names.sort();
        names
    }

    /// Whatever one rank does, there is no deadlock, all ranks agree how the save ended, and the preceding checkpoint stays.
    #[test]
    fn a_rank_that_fails_costs_one_checkpoint_and_no_more() {
        let place = tempfile::tempdir().expect("a directory");
        let store = Store::open(place.path().join("c"));
        let tensors = vec![TensorSpec { name: "w".into(), shape: vec![RANKS, 4], dtype: DType::F32 }];
        let to = Destination { store: store.clone(), tensors, max_file_bytes: 1 << 20 };
        let durable = |results: Vec<Option<Result<Written, TrainError>>>| {
            results.iter().all(|r| matches!(r, Some(Ok(Written::Durable(_)))))
        };
        assert!(durable(all(&to, 1, Fault::Nothing)));
        for rank in 0..RANKS {
            let results = all(&to, 2, Fault::Device(rank));
            for (other, result) in results.into_iter().enumerate() {
                let Some(Err(e)) = result else { panic!("rank {other} has saved without rank {rank}") };
                let known = if other == rank || other == 0 { "the device is gone" } else { "rank 0" };
                assert!(e.to_string().contains(known), "rank {other}: {e}");
            }
            let results = all(&to, 2, Fault::NotFinite(rank));
            assert!(results.iter().all(|r| matches!(r, Some(Ok(Written::Refused(_))))));
            let results = all(&to, 2, Fault::Dies(rank));
            assert!(results.iter().flatten().all(Result::is_err));
            assert_eq!(entries(&store), ["step-00000001"], "rank {rank}");
        }
        assert!(durable(all(&to, 2, Fault::Nothing)));
        let loaded = store.load(2).expect("a checkpoint");
        let wanted: Vec<f32> = (0..RANKS * 4).map(|i| (i / 4) as f32).collect();
        assert_eq!(loaded.read_tensor("w").expect("a tensor").values, wanted);
        assert_eq!(loaded.manifest().files.len(), RANKS);
    }

    #[test]
    fn a_store_that_cannot_be_written_ends_the_save_on_all_ranks() {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::write(place.path().join("c"), "").expect("a file");
        let to = Destination {
            store: Store::open(place.path().join("c")),
            tensors: vec![TensorSpec { name: "w".into(), shape: vec![RANKS, 4], dtype: DType::F32 }],
            max_file_bytes: 1 << 20,
        };
        let results = all(&to, 2, Fault::Nothing);
        assert!(results.iter().all(|r| matches!(r, Some(Err(_)))));
    }
}
