//! Values that the forward list leaves and a backward list finds stored, and how passes put them away in between.

use crate::node::Node;
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_tensor::View;

/// The lists that may find a value stored.
const BACKWARD: [Phase; 3] = [Phase::Backward, Phase::BackwardInput, Phase::BackwardWeight];

impl UnitProgram {
    /// Whether a backward list reads the value before it writes it, and no list between it and the forward list has written it.
    fn finds_stored(&self, phase: Phase, value: usize) -> bool {
        let pending = phase == Phase::BackwardWeight && self.writes(Phase::BackwardInput, value);
        self.reads_first(phase, value) && !pending
    }

    /// Whether a backward list reads the value as the forward list has left it.
    pub(crate) fn is_stored(&self, value: usize) -> bool {
        let made = match self.values[value].class {
            Class::Local => self.writes(Phase::Forward, value),
            class => class == Class::StreamIn,
        };
        made && BACKWARD.iter().any(|phase| self.finds_stored(*phase, value))
    }

    /// Puts a stored value away between the lists: the node `leave` follows the last node of the forward list that touches it, and
    /// `restore` comes before the first node of each backward list that does. The value itself then lives within one list. The stream
    /// that enters a unit leaves when the unit begins, and is restored to a value of its own, with this suffix.
    pub(crate) fn put_away(
        &mut self,
        id: usize,
        suffix: &str,
        leave: impl Fn(View) -> Node,
        restore: impl Fn(View) -> Node,
    ) {
        let value = self.values[id].clone();
        let all = value.view(id);
        let lists: Vec<Phase> = BACKWARD.into_iter().filter(|phase| self.finds_stored(*phase, id)).collect();
        let touches = |node: &Node| node.touches().iter().any(|t| t.value() == id);
        // A value of the unit's own takes its old name in the backward lists; the stream that has entered is another unit's by then.
        let restored = match value.class {
            Class::Local => all,
            _ => {
                let name = format!("{}.{suffix}", value.name);
                self.add(Value { name, class: Class::Local, residual: false, ..value.clone() })
            }
        };
        for phase in lists {
            let list = &mut self.lists[phase.index()];
            let first = list.iter().position(touches).unwrap_or(0);
            for node in &mut list[first..] {
                node.for_each_view(&mut |view| {
                    if view.buffer == all.buffer {
                        view.buffer = restored.buffer;
                    }
                });
            }
            list.insert(first, restore(restored));
        }
        let list = &mut self.lists[Phase::Forward.index()];
        let after = match value.class {
            Class::Local => list.iter().rposition(touches).map_or(0, |last| last + 1),
            _ => 0,
        };
        list.insert(after, leave(all));
    }
}
