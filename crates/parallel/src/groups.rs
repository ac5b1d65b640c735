//! The communicators of one rank, one for each axis.

use crate::channel::Channel;
use crate::plan::{Coord, Plan};
use bessemer_collectives::{CollectiveError, Communicator};

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
        let along = |count: usize, move_to: &dyn Fn(usize) -> Coord| -> Vec<usize> {
            (0..count).map(|i| plan.rank(move_to(i))).collect()
        };
        let tensor = along(plan.tensor, &|tensor| Coord { tensor, ..at });
        let shard = along(plan.shard, &|shard| Coord { shard, ..at });
        let replicate = along(plan.replicate, &|replicate| Coord { replicate, ..at });
        let tensor = world.group("tensor", &tensor)?;
        let shard = world.group("shard", &shard)?;
        let replicate = world.group("replicate", &replicate)?;
        Ok(Groups {
            coord: at,
            world,
            tensor,
            shard: Channel::new(shard, plan.overlap)?,
            replicate: Channel::new(replicate, plan.overlap)?,
        })
    }
}
