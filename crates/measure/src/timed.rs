//! A backend that hands everything on and keeps the time of every launch.

use crate::observed::{Observed, Observer};
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, TensorError};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was launched under one name, or with one shape.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Spent {
    /// Launches.
    pub launches: u64,
    /// Wall time from launch to return. The CPU backend computes before it returns.
    pub time: Duration,
    /// Floating-point operations, as the operator counts them.
    pub flops: f64,
    /// Bytes of the operands.
    pub bytes: f64,
}

impl Spent {
    fn add(&mut self, op: &Op, time: Duration) {
        self.launches += 1;
        self.time += time;
        self.flops += op.flops().0;
        self.bytes += op.bytes().0 as f64;
    }
}

/// Launches between two calls of `Timed::take`.
#[derive(Debug, Default, Clone)]
pub struct Ledger {
    /// By operator and the shapes of its first two operands; empty unless asked for.
    pub shapes: BTreeMap<(&'static str, String), Spent>,
    /// Begin and end of the last launch of the loss.
    pub loss: Option<(Instant, Instant)>,
    /// Begin of the first launch of the gradient's norm, with which the optimizer begins.
    pub norm: Option<Instant>,
}

/// One launch.
#[derive(Debug, Clone)]
pub struct Launched {
    /// The operator.
    pub op: Op,
    /// Time of the launch.
    pub begin: Instant,
    /// Time of its return.
    pub end: Instant,
}

/// A backend around another one. The clock is read twice a launch, which costs less than 0.1 microseconds.
pub type Timed = Observed<LaunchTimes>;

/// Times of launches.
pub struct LaunchTimes {
    by_shape: bool,
    ledger: Ledger,
    launches: Option<Vec<Launched>>,
}

impl Timed {
    /// Keeps times by operator and shape if `by_shape`; without it nothing is allocated.
    pub fn new(inner: Box<dyn Backend>, by_shape: bool) -> Timed {
        Timed::around(inner, LaunchTimes { by_shape, ledger: Ledger::default(), launches: None })
    }

    /// Keeps every launch from now on.
    pub fn keep_launches(&mut self) {
        self.observer.launches = Some(Vec::new());
    }

    /// The launches since they are kept, or since the last call.
    pub fn take_launches(&mut self) -> Vec<Launched> {
        self.observer.launches.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Launches since the last call.
    pub fn take(&mut self) -> Ledger {
        std::mem::take(&mut self.observer.ledger)
    }
}

/// "x 1024x768, weight 2304x768": what tells launches of one operator apart.
fn shapes(op: &Op) -> String {
    let operands = op.operands();
    let shown = operands.iter().take(2).map(|o| format!("{} {}x{}", o.name, o.view.rows, o.view.cols));
    shown.collect::<Vec<_>>().join(", ")
}

impl Observer for LaunchTimes {
    fn launch(
        &mut self,
        op: &Op,
        launch: &mut dyn FnMut() -> Result<(), TensorError>,
    ) -> Result<(), TensorError> {
        let begun = Instant::now();
        let result = launch();
        let ended = Instant::now();
        if matches!(op, Op::LinearCrossEntropy(_)) {
            self.ledger.loss = Some((begun, ended));
        }
        if matches!(op, Op::SumSquares(_)) {
            self.ledger.norm.get_or_insert(begun);
        }
        if let Some(launches) = &mut self.launches {
            launches.push(Launched { op: op.clone(), begin: begun, end: ended });
        }
        if self.by_shape {
            self.ledger.shapes.entry((op.name(), shapes(op))).or_default().add(op, ended - begun);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_tensor::null::NullBackend;
    use bessemer_tensor::op::Fill;
    use bessemer_tensor::{Buffer, BufferSpec, Stream};
    use bessemer_units::DType;

    #[test]
    fn launches_are_kept_by_operator_and_shape_and_forgotten_when_taken() {
        let mut timed = Timed::new(Box::new(NullBackend::new()), true);
        let spec = BufferSpec { class: "x", name: "x", dtype: DType::F32, len: 12 };
        let x = timed.alloc(spec).unwrap();
        for view in [x.matrix(3, 4), x.matrix(3, 4), x.matrix(2, 6)] {
            timed.launch(Stream::Compute, &Fill { dst: view, value: 0.0 }.into()).unwrap();
        }
        let ledger = timed.take();
        let counts: Vec<_> =
            ledger.shapes.iter().map(|((op, s), t)| (*op, s.as_str(), t.launches, t.bytes)).collect();
        assert_eq!(counts, [("fill", "dst 2x6", 1, 48.0), ("fill", "dst 3x4", 2, 96.0)]);
        assert!(timed.take().shapes.is_empty() && ledger.loss.is_none());
        assert!(timed.take_launches().is_empty());
        timed.keep_launches();
        let fill = Op::from(Fill { dst: x.matrix(3, 4), value: 1.0 });
        timed.launch(Stream::Compute, &fill).unwrap();
        let launches = timed.take_launches();
        assert!(launches.len() == 1 && launches[0].op == fill && launches[0].begin <= launches[0].end);
        assert!(timed.take_launches().is_empty());
    }

    #[test]
    fn a_refused_launch_is_an_error_here_too() {
        let mut timed = Timed::new(Box::new(NullBackend::new()), false);
        let foreign = Buffer { id: 9, len: 10, dtype: DType::F32 }.vector();
        assert!(timed.launch(Stream::Compute, &Fill { dst: foreign, value: 0.0 }.into()).is_err());
    }
}
