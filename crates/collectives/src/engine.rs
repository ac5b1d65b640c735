//! The frame of every call: what threads and messages do alike around what they do differently.

use crate::call::{Call, position};
use crate::order::Element;
use crate::{Breaker, CollectiveError, Communicator, Message, Parts, Reduce, Source, Values};

/// Moves values between the ranks of one group. Calls come checked, and none after an error.
pub(crate) trait Engine: Send + std::fmt::Debug {
    fn label(&self) -> &str;

    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    fn breaker(&self) -> Breaker;

    /// The error that ended the group for this rank.
    fn failed(&mut self) -> &mut Option<CollectiveError>;

    /// What another rank or thread did that stands against this call.
    fn stands(&self, call: &Call<'_>) -> Result<(), CollectiveError>;

    /// The others learn that this rank makes no further call.
    fn tell(&mut self, error: &CollectiveError);

    fn all_reduce<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        reduce: Reduce,
    ) -> Result<(), CollectiveError>;

    fn reduce_scatter<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError>;

    fn all_gather<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        parts: &Parts,
    ) -> Result<(), CollectiveError>;

    fn all_to_all<E: Element>(
        &mut self,
        call: &Call<'_>,
        send: (&[E], &Parts),
        receive: (&mut [E], &Parts),
    ) -> Result<(), CollectiveError>;

    fn broadcast<E: Element>(
        &mut self,
        call: &Call<'_>,
        root: usize,
        values: &mut [E],
    ) -> Result<(), CollectiveError>;

    fn send<E: Element>(
        &mut self,
        call: &Call<'_>,
        message: Message<'_>,
        values: &[E],
    ) -> Result<(), CollectiveError>;

    fn receive<E: Element>(
        &mut self,
        call: &Call<'_>,
        message: Message<'_>,
        values: &mut [E],
    ) -> Result<(), CollectiveError>;

    fn arrived(&mut self, call: &Call<'_>, message: Message<'_>) -> Result<bool, CollectiveError>;

    fn barrier(&mut self, call: &Call<'_>) -> Result<(), CollectiveError>;

    /// A group of these ranks, in which this one is at `position`.
    fn join(
        &mut self,
        label: &str,
        ranks: &[usize],
        position: usize,
    ) -> Result<Box<dyn Communicator>, CollectiveError>;
}

/// A call: refused after an error or if it is wrong, otherwise made; an error is remembered and told.
fn make<E: Engine, R>(
    engine: &mut E,
    call: &Call<'_>,
    work: impl FnOnce(&mut E) -> Result<R, CollectiveError>,
) -> Result<R, CollectiveError> {
    if let Some(error) = engine.failed() {
        let error = error.clone();
        return Err(error.again(call.place(engine.label(), engine.rank())));
    }
    let checked = call.check(engine.label(), engine.rank(), engine.size());
    let result = checked.and_then(|()| engine.stands(call)).and_then(|()| work(engine));
    if let Err(error) = &result {
        *engine.failed() = Some(error.clone());
        engine.tell(error);
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

    fn all_reduce(&mut self, name: &str, values: Values<'_>, reduce: Reduce) -> Result<(), CollectiveError> {
        let call = Call::all_reduce(name, &values, reduce);
        make(self, &call, |engine| match values {
            Values::F32(v) => Engine::all_reduce(engine, &call, v, reduce),
            Values::Bf16(v) => Engine::all_reduce(engine, &call, v, reduce),
        })
    }

    fn reduce_scatter(
        &mut self,
        name: &str,
        values: Values<'_>,
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let call = Call::reduce_scatter(name, &values, parts, reduce);
        make(self, &call, |engine| match values {
            Values::F32(v) => Engine::reduce_scatter(engine, &call, v, parts, reduce),
            Values::Bf16(v) => Engine::reduce_scatter(engine, &call, v, parts, reduce),
        })
    }

    fn all_gather(&mut self, name: &str, values: Values<'_>, parts: &Parts) -> Result<(), CollectiveError> {
        let call = Call::all_gather(name, &values, parts);
        make(self, &call, |engine| match values {
            Values::F32(v) => Engine::all_gather(engine, &call, v, parts),
            Values::Bf16(v) => Engine::all_gather(engine, &call, v, parts),
        })
    }

    fn all_to_all(
        &mut self,
        name: &str,
        send: (Source<'_>, &Parts),
        receive: (Values<'_>, &Parts),
    ) -> Result<(), CollectiveError> {
        let call = Call::all_to_all(name, (&send.0, send.1), (&receive.0, receive.1));
        make(self, &call, |engine| match (send.0, receive.0) {
            (Source::F32(s), Values::F32(v)) => {
                Engine::all_to_all(engine, &call, (s, send.1), (v, receive.1))
            }
            (Source::Bf16(s), Values::Bf16(v)) => {
                Engine::all_to_all(engine, &call, (s, send.1), (v, receive.1))
            }
            // Refused by the check of the call.
            _ => Ok(()),
        })
    }

    fn broadcast(&mut self, name: &str, root: usize, values: Values<'_>) -> Result<(), CollectiveError> {
        let call = Call::broadcast(name, root, &values);
        make(self, &call, |engine| match values {
            Values::F32(v) => Engine::broadcast(engine, &call, root, v),
            Values::Bf16(v) => Engine::broadcast(engine, &call, root, v),
        })
    }

    fn send(&mut self, message: Message<'_>, values: Source<'_>) -> Result<(), CollectiveError> {
        let call = Call::send(message, &values);
        make(self, &call, |engine| match values {
            Source::F32(v) => Engine::send(engine, &call, message, v),
            Source::Bf16(v) => Engine::send(engine, &call, message, v),
        })
    }

    fn receive(&mut self, message: Message<'_>, values: Values<'_>) -> Result<(), CollectiveError> {
        let call = Call::receive(message, &values);
        make(self, &call, |engine| match values {
            Values::F32(v) => Engine::receive(engine, &call, message, v),
            Values::Bf16(v) => Engine::receive(engine, &call, message, v),
        })
    }

    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        let call = Call::arrived(message);
        make(self, &call, |engine| Engine::arrived(engine, &call, message))
    }

    fn barrier(&mut self, name: &str) -> Result<(), CollectiveError> {
        let call = Call::barrier(name);
        make(self, &call, |engine| Engine::barrier(engine, &call))
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let position = position(Engine::label(self), Engine::rank(self), Engine::size(self), label, ranks)?;
        self.join(label, ranks, position)
    }
}
