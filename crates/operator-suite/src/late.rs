//! A device around another one that runs its streams late, or out of the order of the calls, as far as events allow.

use bessemer_tensor::op::{Access, Op};
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::Bytes;
use std::collections::VecDeque;

/// Streams with a number of their own: three roles and the axes.
const STREAMS: usize = 3 + 16;

/// Which streams are late. A forgotten event shows where what it orders is exchanged: a copy before the operator that makes its values
/// shows with late operators, an operator before the copy that brings its values with late copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lateness {
    /// All: nothing runs before the host asks for a value, or an event leads to it.
    All,
    /// [`Stream::Compute`]; the others run at once.
    Operators,
    /// All but [`Stream::Compute`], which runs at once.
    Copies,
}

impl Lateness {
    /// Each of them.
    pub const EACH: [Lateness; 3] = [Lateness::All, Lateness::Operators, Lateness::Copies];

    fn of(self, stream: Stream) -> bool {
        match self {
            Lateness::All => true,
            Lateness::Operators => stream == Stream::Compute,
            Lateness::Copies => stream != Stream::Compute,
        }
    }
}

/// A device whose streams run late. What another stream has not waited for may have run or not, as [`Lateness`] says, and always
/// the same way. What is computed is the other device's.
///
/// [`LateStreams::checked`] makes an error of every access to memory that another stream writes, or of every write of memory that
/// another stream reads, which no event orders. [`LateStreams::without_wait`] leaves out one event: a test then finds that error, or
/// other values, if the event was needed.
pub struct LateStreams {
    inner: Box<dyn Backend>,
    lateness: Lateness,
    queues: [Queue; STREAMS],
    events: Vec<Mark>,
    /// Number of the wait that is left out, among those that order something.
    omitted: Option<usize>,
    waits: usize,
    failed: Option<Box<str>>,
    /// By buffer, if accesses are checked.
    accesses: Option<Vec<Vec<Accessed>>>,
}

/// An access that may run beside later ones in other streams.
struct Accessed {
    stream: usize,
    /// Number in its stream, from 1.
    at: u64,
    view: View,
    written: bool,
}

/// By stream: operators and copies that have been put into it.
type Clock = [u64; STREAMS];

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// Entries that have run.
    run: u64,
    /// What comes before the next entry.
    before: Clock,
}

impl Queue {
    fn end(&self) -> u64 {
        self.run + self.waiting.len() as u64
    }
}

/// A place in a stream.
#[derive(Clone, Copy)]
struct Mark {
    stream: usize,
    end: u64,
    before: Clock,
}

enum Work {
    Launch(Box<Op>),
    Floats(View, Vec<f32>),
    Indices(View, Vec<u32>),
    Bytes(View, Vec<u8>),
    Wait(Mark),
}

fn number(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::ToHost => 1,
        Stream::ToDevice => 2,
        Stream::Axis(axis) => 3 + usize::from(axis),
    }
}

impl LateStreams {
    /// Nothing in the streams of `inner`, all of whose work goes through this device from now on.
    pub fn new(inner: Box<dyn Backend>, lateness: Lateness) -> LateStreams {
        let queues = std::array::from_fn(|_| Queue::default());
        LateStreams {
            inner,
            lateness,
            queues,
            events: Vec::new(),
            omitted: None,
            waits: 0,
            failed: None,
            accesses: None,
        }
    }

    /// Refuses accesses that no event orders. A copy to the host in [`Stream::Axis`] counts as one that goes on when the call has returned:
    /// collectives may read until they are finished.
    #[must_use]
    pub fn checked(mut self) -> LateStreams {
        self.accesses = Some(Vec::new());
        self
    }

    /// Leaves out wait `number` of those that [`LateStreams::waits`] counts.
    #[must_use]
    pub fn without_wait(mut self, number: usize) -> LateStreams {
        self.omitted = Some(number);
        self
    }

    /// Waits so far that ordered a stream behind work which no earlier wait had put before it.
    pub fn waits(&self) -> usize {
        self.waits
    }

    fn works(&self, during: &'static str) -> Result<(), TensorError> {
        match &self.failed {
            Some(problem) => Err(TensorError::Device { during, problem: problem.clone() }),
            None => Ok(()),
        }
    }

    fn put(&mut self, stream: Stream, work: Work) -> Result<(), TensorError> {
        match &work {
            Work::Launch(op) => {
                let views = op.operands();
                let views = views.iter().map(|o| (o.view, o.access != Access::Read));
                self.access(stream, op.name(), views)?;
            }
            Work::Floats(view, _) => self.access(stream, "write_f32", [(*view, true)])?,
            Work::Indices(view, _) => self.access(stream, "write_u32", [(*view, true)])?,
            Work::Bytes(view, _) => self.access(stream, "write_bytes", [(*view, true)])?,
            Work::Wait(_) => {}
        }
        let number = number(stream);
        let queue = &mut self.queues[number];
        queue.waiting.push_back(work);
        let end = queue.end();
        if self.lateness.of(stream) { Ok(()) } else { self.run_until(number, end) }
    }

    /// Counts an operator or a copy, and refuses it if it runs beside another access that it may not run beside.
    fn access(
        &mut self,
        stream: Stream,
        during: &'static str,
        views: impl IntoIterator<Item = (View, bool)>,
    ) -> Result<(), TensorError> {
        let here = number(stream);
        let before = &mut self.queues[here].before;
        before[here] += 1;
        let (before, Some(accesses)) = (*before, &mut self.accesses) else { return Ok(()) };
        for (view, written) in views {
            let buffer = view.buffer.id as usize;
            accesses.resize_with(accesses.len().max(buffer + 1), Vec::new);
            let beside = accesses[buffer].iter().find(|other| {
                other.at > before[other.stream] && (written || other.written) && view.overlaps(&other.view)
            });
            if let Some(Accessed { stream: other, written: by_other, .. }) = beside {
                let does = |written| if written { "writes" } else { "reads" };
                let (this, that) = (does(written), does(*by_other));
                let problem: Box<str> = format!(
                    "stream {here} {this} memory that stream {other} {that}, and has not waited for it"
                )
                .into();
                self.failed = Some(problem.clone());
                return Err(TensorError::Device { during, problem });
            }
            accesses[buffer].push(Accessed { stream: here, at: before[here], view, written });
        }
        Ok(())
    }

    /// The host has waited for a stream: all that it holds, and waited for, comes before everything from now on.
    fn passed(&mut self, stream: usize) {
        let passed = self.queues[stream].before;
        for queue in &mut self.queues {
            queue.before.iter_mut().zip(passed).for_each(|(here, passed)| *here = passed.max(*here));
        }
        for list in self.accesses.iter_mut().flatten() {
            list.retain(|access| access.at > passed[access.stream]);
        }
    }

    fn run_until(&mut self, stream: usize, end: u64) -> Result<(), TensorError> {
        while self.queues[stream].run < end {
            let Some(work) = self.queues[stream].waiting.pop_front() else { break };
            self.queues[stream].run += 1;
            let result = match work {
                Work::Wait(mark) => {
                    self.run_until(mark.stream, mark.end)?;
                    continue;
                }
                Work::Launch(op) => self.inner.launch(Stream::Compute, &op),
                Work::Floats(dst, values) => self.inner.write_f32(dst, &values),
                Work::Indices(dst, values) => self.inner.write_u32(dst, &values),
                Work::Bytes(dst, bytes) => self.inner.write_bytes(Stream::Compute, dst, &bytes),
            };
            if let Err(e) = result {
                let late = e.found_late();
                self.failed = Some(late.to_string().into());
                return Err(late);
            }
        }
        Ok(())
    }

    fn run_all_of(&mut self, stream: Stream) -> Result<(), TensorError> {
        let number = number(stream);
        self.run_until(number, self.queues[number].end())?;
        if !matches!(stream, Stream::Axis(_)) {
            self.passed(number);
        }
        Ok(())
    }
}

impl Backend for LateStreams {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.inner.alloc(spec)
    }

    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        self.inner.workspace(op)
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.inner.reserve_workspace(bytes)
    }

    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError> {
        self.works("launch")?;
        op.check()?;
        self.put(stream, Work::Launch(Box::new(op.clone())))
    }

    fn record(&mut self, stream: Stream) -> Result<Event, TensorError> {
        self.works("record")?;
        let number = number(stream);
        let Queue { before, .. } = self.queues[number];
        self.events.push(Mark { stream: number, end: self.queues[number].end(), before });
        Ok(Event(self.events.len() as u64 - 1))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), TensorError> {
        self.works("wait")?;
        let Some(mark) = self.events.get(event.0 as usize).copied() else {
            let problem = format!("event {} was not recorded", event.0).into();
            return Err(TensorError::Device { during: "wait", problem });
        };
        let before = &mut self.queues[number(stream)].before;
        if mark.before.iter().zip(&*before).all(|(mark, here)| mark <= here) {
            return Ok(());
        }
        self.waits += 1;
        if self.omitted == Some(self.waits - 1) {
            return Ok(());
        }
        before.iter_mut().zip(mark.before).for_each(|(here, mark)| *here = mark.max(*here));
        self.put(stream, Work::Wait(mark))
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        self.works("sync")?;
        for stream in 0..STREAMS {
            self.run_until(stream, self.queues[stream].end())?;
            self.passed(stream);
        }
        self.inner.sync()
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.works("write_f32")?;
        self.put(Stream::Compute, Work::Floats(dst, values.to_vec()))
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.works("write_u32")?;
        self.put(Stream::Compute, Work::Indices(dst, values.to_vec()))
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.works("read_f32")?;
        self.access(Stream::Compute, "read_f32", [(src, false)])?;
        self.run_all_of(Stream::Compute)?;
        self.inner.read_f32(src, values)
    }

    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.works("read_bytes")?;
        self.access(stream, "read_bytes", [(src, false)])?;
        self.run_all_of(stream)?;
        self.inner.read_bytes(Stream::Compute, src, bytes)
    }

    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.works("write_bytes")?;
        self.put(stream, Work::Bytes(dst, bytes.to_vec()))
    }

    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}
