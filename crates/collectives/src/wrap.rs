//! What all wrappers share: a communicator around another, and around every group made from it.

use crate::{Breaker, Collective, CollectiveError, Communicator, Memory, Message};

/// A wrapper's own work around a collective.
pub(crate) trait Wrapper: Send + std::fmt::Debug + 'static {
    /// Runs the collective on the communicator below, or does something else.
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError>;

    /// Makes the wrapper of a group.
    fn for_group(&self) -> Self;
}

/// A communicator with a wrapper around it.
#[derive(Debug)]
pub(crate) struct Wrapped<W> {
    inner: Box<dyn Communicator>,
    wrapper: W,
}

impl<W: Wrapper> Wrapped<W> {
    pub(crate) fn boxed(inner: Box<dyn Communicator>, wrapper: W) -> Box<dyn Communicator> {
        Box::new(Wrapped { inner, wrapper })
    }
}

impl<W: Wrapper> Communicator for Wrapped<W> {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn breaker(&self) -> Breaker {
        self.inner.breaker()
    }

    fn run(&mut self, collective: &Collective<'_>, memory: Memory<'_>) -> Result<(), CollectiveError> {
        self.wrapper.run(&mut self.inner, collective, memory)
    }

    /// A look is no call: it is not counted, recorded or delayed.
    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        self.inner.arrived(message)
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        Ok(Wrapped::boxed(self.inner.group(label, ranks)?, self.wrapper.for_group()))
    }
}
