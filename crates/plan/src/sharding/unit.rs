//! Graphs of units: decisions about their operators, options, and what values that travel between decisions cost.

use super::exchange::{Place, Traffic};

/// The layouts that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layouts {
    /// All that the rules of the operators allow.
    Any,
    /// Those that programs are rewritten to, over one axis of tensor parallelism. `sequence`: the rows of the residual stream are sharded.
    Partition {
        /// Whether they are.
        sequence: bool,
    },
}

/// The loop of an operator that an axis shards, by its label in the rule; none if nothing is sharded.
pub type LoopLabel = Option<&'static str>;

/// One option of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardOption {
    /// By axis: the loop; of the residual stream its dim, "rows" or "columns".
    pub loops: Vec<LoopLabel>,
    /// Seconds of a micro-batch, forward and backward: operators, and collectives that no other decision has a say in.
    pub seconds: f64,
    /// Bytes that a rank sends for it in a micro-batch.
    pub sent: f64,
    /// Elements of its parameters on a rank.
    pub elements: f64,
    /// By axis: elements whose gradients are terms of a sum.
    pub partial: Vec<f64>,
    /// Bytes that a rank keeps for the backward pass of a micro-batch.
    pub saved: f64,
    /// By parameter of the decision and axis: its layout.
    pub places: Vec<Vec<Place>>,
}

/// A heavy operator with its backward operators, or the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Name of the parameter whose product it is, or of the operator.
    pub name: String,
    /// Names of its parameters within the unit.
    pub parameters: Vec<String>,
    /// The options.
    pub options: Vec<ShardOption>,
}

/// Two decisions between which values travel.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// The decisions.
    pub nodes: [usize; 2],
    /// By option of the first and then of the second: what a micro-batch costs.
    pub traffic: Vec<Traffic>,
}

/// The operators of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitGraph {
    /// The decisions; the first is the residual stream.
    pub decisions: Vec<Decision>,
    /// The pairs between which values travel.
    pub passages: Vec<Passage>,
    /// Bytes of the residual stream of a micro-batch.
    pub stream_bytes: f64,
}

/// Number of the residual stream among the decisions.
pub(super) const STREAM: usize = 0;

impl UnitGraph {
    /// Seconds and bytes of a micro-batch on a rank with these options.
    pub fn micro_batch(&self, options: &[usize]) -> Traffic {
        let mut all = Traffic::default();
        for (decision, option) in self.decisions.iter().zip(options) {
            let option = &decision.options[*option];
            all += Traffic { seconds: option.seconds, sent: option.sent };
        }
        for Passage { nodes: [a, b], traffic } in &self.passages {
            all += traffic[options[*a] * self.decisions[*b].options.len() + options[*b]];
        }
        all
    }

    /// By option: the layout of the residual stream.
    pub(super) fn stream(&self) -> impl Iterator<Item = Vec<Place>> + '_ {
        let options = self.decisions.get(STREAM).map_or(&[][..], |decision| &decision.options);
        options.iter().map(|option| option.loops.iter().map(stream_place).collect())
    }

    /// The same graph without the options in which a parameter lies otherwise. Nothing changes where the unit has no such parameter.
    pub fn with_parameter(&self, name: &str, places: &[Place]) -> UnitGraph {
        let mut graph = self.clone();
        let owner = graph
            .decisions
            .iter()
            .enumerate()
            .find_map(|(at, d)| d.parameters.iter().position(|p| p == name).map(|number| (at, number)));
        let Some((owner, number)) = owner else { return graph };
        let kept: Vec<usize> = graph.decisions[owner]
            .options
            .iter()
            .enumerate()
            .filter(|(_, option)| option.places[number] == places)
            .map(|(at, _)| at)
            .collect();
        for Passage { nodes: [a, b], traffic } in &mut graph.passages {
            let columns = self.decisions[*b].options.len();
            let stays = |at: &usize| {
                (*a != owner || kept.contains(&(at / columns)))
                    && (*b != owner || kept.contains(&(at % columns)))
            };
            *traffic = (0..traffic.len()).filter(stays).map(|at| traffic[at]).collect();
        }
        let options = &self.decisions[owner].options;
        graph.decisions[owner].options = kept.iter().map(|at| options[*at].clone()).collect();
        graph
    }

    /// Every layout over the axes that a parameter has in some option.
    pub fn layouts_of(&self, name: &str) -> Vec<Vec<Place>> {
        let owner = self.decisions.iter().find(|decision| decision.parameters.iter().any(|p| p == name));
        let mut all: Vec<Vec<Place>> = owner.map_or(Vec::new(), |decision| {
            let number = decision.parameters.iter().position(|p| p == name).unwrap_or_default();
            decision.options.iter().map(|option| option.places[number].clone()).collect()
        });
        all.sort();
        all.dedup();
        all
    }
}

/// Layout of the residual stream by an option.
pub(super) fn stream_place(label: &LoopLabel) -> Place {
    match label {
        Some("rows") => Place::Rows,
        Some(_) => Place::Columns,
        None => Place::Replicate,
    }
}
