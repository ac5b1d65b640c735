//! The communicators of one rank, one for each axis.

use crate::channel::Channel;
use crate::plan::{Coord, Plan};
use bessemer_collectives::{CollectiveError, Communicator};
use bessemer_mesh::Axis;

/// A rank's groups: the ranks that differ from it on one axis only.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) coord: Coord,
    pub(crate) world: Box<dyn Communicator>,
    pub(crate) shard: Channel,
    pub(crate) replicate: Channel,
    pub(crate) tensor: Box<dyn Communicator>,
}

impl Groups {
    /// Every rank of `world` makes its groups in the same order: tensor, shard, replicate.
    pub(crate) fn new(mut world: Box<dyn Communicator>, plan: &Plan) -> Result<Groups, CollectiveError> {
        let at = plan.coord(world.rank());
        let rank = world.rank();
        let mut along = |axis: Axis| world.group(axis.name(), &plan.mesh.group(rank, &[axis]));
        let tensor = along(Axis::Tensor)?;
        let shard = along(Axis::Shard)?;
        let replicate = along(Axis::Replicate)?;
        Ok(Groups {
            coord: at,
            world,
            tensor,
            shard: Channel::new(shard, plan.overlap)?,
            replicate: Channel::new(replicate, plan.overlap)?,
        })
    }
}
