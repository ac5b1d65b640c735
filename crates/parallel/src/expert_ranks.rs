//! Experts over ranks where one rank has all tokens, to score and to decode ([`bessemer_runtime::ExpertRows`]).
//!
//! | rank | holds | in every pass |
//! |---|---|---|
//! | 0 | everything but the other ranks' experts | announces the pass, then runs all units ([`ExpertPeers`]) |
//! | others | their experts | compute rows until rank 0 announces the end ([`compute_rows`]) |
//!
//! A pass is announced by an all-gather of one number, so ranks may wait between passes for as long as the communicator's patience allows.
//! A rank that fails ends its communicator, and with it every pass of the others. After a pass that did not reach its end no other begins.

use crate::control::ControlMessages;
use crate::error::ParallelError;
use crate::groups::LayerGroups;
use crate::ranks::UnitRanks;
use crate::tensor::TensorGroup;
use bessemer_arch::TensorShard;
use bessemer_collectives::{CollectiveError, Communicator, HostStaging};
use bessemer_mesh::Axis;
use bessemer_program::{Collective, Ranks, UnitProgram};
use bessemer_runtime::{Decoder, ExpertRows, Phase, StageRanks, Unit};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::DType;

const ANNOUNCEMENT: &str = "announcement of a pass";
/// Announcements of rank 0; others send 0.
const END: u64 = 0;
const PASS: u64 = 1;

/// The group of the ranks with the experts, and memory for `programs`.
fn group<'p>(
    mut world: Box<dyn Communicator>,
    part: &TensorShard,
    programs: impl Iterator<Item = &'p UnitProgram>,
) -> Result<TensorGroup, CollectiveError> {
    let me = world.rank();
    let alone = world.group(Axis::Tensor.name(), &[me])?;
    let groups = LayerGroups {
        all: None,
        axes: vec![(Axis::Tensor, alone)],
        experts: Some(world),
        data_experts: None,
    };
    let mut group = TensorGroup::new(groups, part, (false, false), &[], &HostStaging::default())?;
    group.plan_staging(programs, &[], DType::F32);
    Ok(group)
}

fn announce(
    group: &mut TensorGroup,
    control: &mut ControlMessages,
    number: u64,
) -> Result<u64, CollectiveError> {
    match group.expert_ranks()? {
        Some(mut ranks) => Ok(control.gather(&mut *ranks, ANNOUNCEMENT, &[number])?[0]),
        None => Ok(END),
    }
}

/// The ranks with the other experts, as passes of rank 0 reach them ([`Decoder::set_peers`]). Dropped between two passes it ends the other ranks.
#[derive(Debug)]
pub struct ExpertPeers {
    /// The ranks with the other experts; `None` after a failure.
    group: Option<TensorGroup>,
    control: ControlMessages,
    /// First and last layer with experts.
    layers: (Unit, Unit),
    in_pass: bool,
}

impl ExpertPeers {
    /// The peers of `decoder`, which is rank 0 of `world`.
    ///
    /// # Errors
    /// A decoder that has all experts; an error of the other ranks.
    pub fn new(world: Box<dyn Communicator>, decoder: &Decoder) -> Result<ExpertPeers, ParallelError> {
        let with_experts = |layer: &usize| decoder.model().experts_of(*layer).is_some();
        let mut layers = (0..decoder.model().layers).filter(with_experts);
        let (Some(part), Some(first)) = (decoder.tensor_shard(), layers.next()) else {
            let wanted = "ranks that share experts need a decoder with a part of them, found one with all of a model's layers";
            return Err(ParallelError::Layout(wanted.into()));
        };
        let layers = (Unit::Layer(first), Unit::Layer(layers.next_back().unwrap_or(first)));
        let group = group(world, part, decoder.programs().map(|(_, program, _)| program))?;
        Ok(ExpertPeers { group: Some(group), control: ControlMessages::default(), layers, in_pass: false })
    }

    /// Runs a part of a pass with the other ranks; after a failure they are left.
    fn with_group<T>(
        &mut self,
        work: impl FnOnce(&mut TensorGroup, &mut ControlMessages) -> Result<T, TensorError>,
    ) -> Result<T, TensorError> {
        let Some(group) = &mut self.group else {
            let problem = "a rank with other experts has failed: no pass can follow";
            return Err(TensorError::Outside(problem.into()));
        };
        let done = work(group, &mut self.control);
        if done.is_err() {
            self.group = None;
        }
        done
    }
}

impl Drop for ExpertPeers {
    fn drop(&mut self) {
        if let Some(group) = self.group.as_mut().filter(|_| !self.in_pass) {
            // Ranks that have failed need no announcement.
            let _ = announce(group, &mut self.control, END);
        }
    }
}

impl Ranks for ExpertPeers {
    fn collective(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        src: View,
        dst: View,
    ) -> Result<(), TensorError> {
        self.with_group(|group, _| UnitRanks::of(group).collective(backend, collective, src, dst))
    }

    fn exchange(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        offsets: View,
        sides: (View, View),
    ) -> Result<(), TensorError> {
        self.with_group(|group, _| UnitRanks::of(group).exchange(backend, collective, offsets, sides))
    }
}

impl StageRanks for ExpertPeers {
    fn unit_begins(&mut self, _: &mut dyn Backend, unit: Unit, _: Phase) -> Result<(), TensorError> {
        if unit != self.layers.0 {
            return Ok(());
        }
        if std::mem::replace(&mut self.in_pass, true) {
            self.group = None;
        }
        self.with_group(|group, control| {
            let announced = announce(group, control, PASS);
            announced.map(drop).map_err(|e| TensorError::Outside(e.to_string().into()))
        })
    }

    fn unit_ends(&mut self, _: &mut dyn Backend, unit: Unit, _: Phase) -> Result<(), TensorError> {
        self.in_pass &= unit != self.layers.1;
        Ok(())
    }
}

/// Computes rows of this rank's experts, pass after pass, until rank 0 of `world` announces the end.
///
/// # Errors
/// Errors of the backend and of the other ranks.
pub fn compute_rows(
    world: Box<dyn Communicator>,
    part: &TensorShard,
    rows: &mut ExpertRows,
    backend: &mut dyn Backend,
) -> Result<(), ParallelError> {
    let mut group = group(world, part, rows.programs())?;
    let mut control = ControlMessages::default();
    while announce(&mut group, &mut control, END)? == PASS {
        let mut ranks = UnitRanks::of(&mut group);
        let done = rows.run(backend, &mut ranks);
        if let Some(failed) = ranks.failed {
            return Err(failed.into());
        }
        done?;
    }
    Ok(())
}
