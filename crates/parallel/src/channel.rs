//! A communicator whose collectives may be under way while the rank computes.

use bessemer_collectives::{
    Buffer, Collective, CollectiveError, Communicator, Overlap, Parts, Reduce, Ticket,
};
use std::ops::{Deref, DerefMut};

/// A collective that was started.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Done at once.
    Done(Buffer),
    /// Under way.
    Ahead(Ticket),
}

/// A communicator for staging buffers, which go in and come back.
#[derive(Debug)]
pub(crate) enum Channel {
    /// Every collective is done when it is started.
    Blocking(Box<dyn Communicator>),
    /// Collectives run one after the other on a thread of their own.
    Ahead(Overlap),
}

impl Channel {
    /// A channel over `group`; `overlap`: collectives run on a thread of their own, if there is anybody to talk to.
    pub(crate) fn new(group: Box<dyn Communicator>, overlap: bool) -> Result<Channel, CollectiveError> {
        if overlap && group.size() > 1 {
            return Ok(Channel::Ahead(Overlap::new(group)?));
        }
        Ok(Channel::Blocking(group))
    }

    /// The communicator itself, for collectives of small values, while nothing is under way.
    pub(crate) fn idle(&mut self) -> Result<impl DerefMut<Target = dyn Communicator> + '_, CollectiveError> {
        Ok(match self {
            Channel::Blocking(c) => Idle::Blocking(c),
            Channel::Ahead(o) => Idle::Ahead(o.idle()?),
        })
    }

    pub(crate) fn rank(&self) -> usize {
        match self {
            Channel::Blocking(c) => c.rank(),
            Channel::Ahead(o) => o.rank(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Channel::Blocking(c) => c.size(),
            Channel::Ahead(o) => o.size(),
        }
    }

    fn start(
        &mut self,
        name: &str,
        what: Collective<'_>,
        mut values: Buffer,
    ) -> Result<Pending, CollectiveError> {
        let group = match self {
            Channel::Blocking(group) => group,
            Channel::Ahead(o) => return Ok(Pending::Ahead(o.start(name, what, values)?)),
        };
        let lent = values.lend();
        match what {
            Collective::AllReduce(reduce) => group.all_reduce(name, lent, reduce)?,
            Collective::ReduceScatter(parts, reduce) => group.reduce_scatter(name, lent, parts, reduce)?,
            Collective::AllGather(parts) => group.all_gather(name, lent, parts)?,
        }
        Ok(Pending::Done(values))
    }

    pub(crate) fn all_reduce(&mut self, name: &str, values: Buffer) -> Result<Pending, CollectiveError> {
        self.start(name, Collective::AllReduce(Reduce::Sum), values)
    }

    pub(crate) fn reduce_scatter(
        &mut self,
        name: &str,
        values: Buffer,
        parts: &Parts,
    ) -> Result<Pending, CollectiveError> {
        self.start(name, Collective::ReduceScatter(parts, Reduce::Sum), values)
    }

    pub(crate) fn all_gather(
        &mut self,
        name: &str,
        values: Buffer,
        parts: &Parts,
    ) -> Result<Pending, CollectiveError> {
        self.start(name, Collective::AllGather(parts), values)
    }

    /// The buffer of a collective, when it is done.
    pub(crate) fn finish(&mut self, pending: Pending) -> Result<Buffer, CollectiveError> {
        match (pending, self) {
            (Pending::Done(values), _) => Ok(values),
            (Pending::Ahead(ticket), Channel::Ahead(o)) => o.finish(ticket),
            (Pending::Ahead(_), Channel::Blocking(_)) => {
                unreachable!("only an overlapped channel gives tickets")
            }
        }
    }
}

/// A communicator that nothing is under way on.
enum Idle<'a> {
    Blocking(&'a mut Box<dyn Communicator>),
    Ahead(bessemer_collectives::Idle<'a>),
}

impl Deref for Idle<'_> {
    type Target = dyn Communicator;

    fn deref(&self) -> &Self::Target {
        match self {
            Idle::Blocking(c) => &***c,
            Idle::Ahead(c) => &**c,
        }
    }
}

impl DerefMut for Idle<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Idle::Blocking(c) => &mut ***c,
            Idle::Ahead(c) => &mut **c,
        }
    }
}
