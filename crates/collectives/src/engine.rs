//! The frame of every call: what threads and messages do alike around what they do differently.

use crate::call::{Call, position};
use crate::{Breaker, Collective, CollectiveError, Communicator, Memory, Message};

/// Moves values between the ranks of one group. Calls come checked, and none after an error.
pub(crate) trait Engine: Send + std::fmt::Debug {
    fn label(&self) -> &str;

    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    fn breaker(&self) -> Breaker;

    /// The error that ended the group for this rank.
    fn failed(&mut self) -> &mut Option<CollectiveError>;

    /// Returns an error if another rank or thread did something that stands against this call.
    fn obstacle(&self, call: &Call<'_>) -> Result<(), CollectiveError>;

    /// Announces to the other ranks that this one makes no further call.
    fn announce_failure(&mut self, error: &CollectiveError);

    fn perform(&mut self, call: &Call<'_>, memory: Memory<'_>) -> Result<(), CollectiveError>;

    fn arrived(&mut self, call: &Call<'_>, message: Message<'_>) -> Result<bool, CollectiveError>;

    /// Makes a group of these ranks, in which this one is at `position`.
    fn join(
        &mut self,
        label: &str,
        ranks: &[usize],
        position: usize,
    ) -> Result<Box<dyn Communicator>, CollectiveError>;
}

/// Runs a call: refuses it after an error or if it is wrong; remembers and announces its error.
fn guarded<E: Engine, R>(
    engine: &mut E,
    call: &Call<'_>,
    work: impl FnOnce(&mut E) -> Result<R, CollectiveError>,
) -> Result<R, CollectiveError> {
    if let Some(error) = engine.failed() {
        let error = error.clone();
        return Err(error.at(call.site(engine.label(), engine.rank())));
    }
    let checked = call.check(engine.label(), engine.rank(), engine.size());
    let result = checked.and_then(|()| engine.obstacle(call)).and_then(|()| work(engine));
    if let Err(error) = &result {
        *engine.failed() = Some(error.clone());
        engine.announce_failure(error);
    }
    result
}

impl<T: Engine> Communicator for T {
    fn label(&self) -> &str {
        Engine::label(self)
    }

    fn rank(&self) -> usize {
        Engine::rank(self)
    }

    fn size(&self) -> usize {
        Engine::size(self)
    }

    fn breaker(&self) -> Breaker {
        Engine::breaker(self)
    }

    fn run(&mut self, collective: &Collective<'_>, memory: Memory<'_>) -> Result<(), CollectiveError> {
        let call = Call::new(collective, &memory);
        guarded(self, &call, |engine| engine.perform(&call, memory))
    }

    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        let collective = Collective::receive(message);
        let call = Call::look(&collective);
        guarded(self, &call, |engine| Engine::arrived(engine, &call, message))
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let own = (Engine::label(self), Engine::rank(self), Engine::size(self));
        let position = position(own, label, ranks)?;
        self.join(label, ranks, position)
    }
}
