//! What all wrappers share: a communicator around another, and around every group made from it.

use crate::call::Call;
use crate::{Breaker, CollectiveError, Communicator, Message, Parts, Reduce, Source, Values};

/// Makes the call that is wrapped.
pub(crate) type Run<'a> = dyn FnMut(&mut dyn Communicator) -> Result<(), CollectiveError> + 'a;

/// What a wrapper does about a call.
pub(crate) trait Around: Send + std::fmt::Debug + 'static {
    /// Is given the call, the communicator below, and how to make the call on it.
    fn around(
        &mut self,
        call: &Call<'_>,
        inner: &mut Box<dyn Communicator>,
        run: &mut Run<'_>,
    ) -> Result<(), CollectiveError>;

    /// What becomes of a message of so many bytes before it is sent.
    fn address<'a>(&mut self, message: Message<'a>, _bytes: u64) -> Message<'a> {
        message
    }

    /// The same for a group.
    fn of_group(&self, group: &dyn Communicator) -> Self;
}

/// A communicator with something around it.
#[derive(Debug)]
pub(crate) struct Wrapped<A> {
    inner: Box<dyn Communicator>,
    around: A,
}

impl<A: Around> Wrapped<A> {
    pub(crate) fn boxed(inner: Box<dyn Communicator>, around: A) -> Box<dyn Communicator> {
        Box::new(Wrapped { inner, around })
    }
}

impl<A: Around> Communicator for Wrapped<A> {
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

    fn all_reduce(
        &mut self,
        name: &str,
        mut values: Values<'_>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let call = Call::all_reduce(name, &values, reduce);
        let mut run = |c: &mut dyn Communicator| c.all_reduce(name, values.reborrow(), reduce);
        self.around.around(&call, &mut self.inner, &mut run)
    }

    fn reduce_scatter(
        &mut self,
        name: &str,
        mut values: Values<'_>,
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let call = Call::reduce_scatter(name, &values, parts, reduce);
        let mut run = |c: &mut dyn Communicator| c.reduce_scatter(name, values.reborrow(), parts, reduce);
        self.around.around(&call, &mut self.inner, &mut run)
    }

    fn all_gather(
        &mut self,
        name: &str,
        mut values: Values<'_>,
        parts: &Parts,
    ) -> Result<(), CollectiveError> {
        let call = Call::all_gather(name, &values, parts);
        let mut run = |c: &mut dyn Communicator| c.all_gather(name, values.reborrow(), parts);
        self.around.around(&call, &mut self.inner, &mut run)
    }

    fn all_to_all(
        &mut self,
        name: &str,
        send: (Source<'_>, &Parts),
        mut receive: (Values<'_>, &Parts),
    ) -> Result<(), CollectiveError> {
        let call = Call::all_to_all(name, (&send.0, send.1), (&receive.0, receive.1));
        let mut run = |c: &mut dyn Communicator| c.all_to_all(name, send, (receive.0.reborrow(), receive.1));
        self.around.around(&call, &mut self.inner, &mut run)
    }

    fn broadcast(&mut self, name: &str, root: usize, mut values: Values<'_>) -> Result<(), CollectiveError> {
        let call = Call::broadcast(name, root, &values);
        let mut run = |c: &mut dyn Communicator| c.broadcast(name, root, values.reborrow());
        self.around.around(&call, &mut self.inner, &mut run)
    }

    fn send(&mut self, message: Message<'_>, values: Source<'_>) -> Result<(), CollectiveError> {
        let call = Call::send(message, &values);
        let message = self.around.address(message, call.bytes());
        self.around.around(&call, &mut self.inner, &mut |c| c.send(message, values))
    }

    fn receive(&mut self, message: Message<'_>, mut values: Values<'_>) -> Result<(), CollectiveError> {
        let call = Call::receive(message, &values);
        self.around.around(&call, &mut self.inner, &mut |c| c.receive(message, values.reborrow()))
    }

    /// A look is no call: it is not counted, recorded or delayed.
    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        self.inner.arrived(message)
    }

    fn barrier(&mut self, name: &str) -> Result<(), CollectiveError> {
        self.around.around(&Call::barrier(name), &mut self.inner, &mut |c| c.barrier(name))
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let group = self.inner.group(label, ranks)?;
        let around = self.around.of_group(group.as_ref());
        Ok(Wrapped::boxed(group, around))
    }
}
