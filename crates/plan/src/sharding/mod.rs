//! Intra-operator parallelism by the method of Alpa (Zheng et al. 2022): which loop of each operator which axis shards, so that computing,
//! communicating and bringing values from one layout to the next take least time together.
//!
//! [`UnitGraph`] lists the decisions about a recorded unit program with their prices, [`CostGraph`] holds them as numbers. [`minimum`] solves one exactly,
//! [`fronts`] with a limit of memory, [`link`] joins units: identical layers are solved once. [`lower_bound`] bounds what any solution
//! takes. Alpa solves an integer programme; graphs of transformers have so low a treewidth that elimination finds its optimum.

mod bound;
mod chain;
mod eliminate;
mod exchange;
mod graph;
mod localize;
mod operators;
mod pareto;
mod passages;
mod search;
mod training;
mod unequal;
mod unit;

pub use bound::{LowerBound, lower_bound};
pub use chain::{Chain, ChainSolution};
pub use eliminate::minimum;
pub use exchange::{Devices, Place, ShardAxis, Traffic};
pub use graph::{CostGraph, Edge, Entangled, Price, Solution, Weights};
pub use pareto::{Front, MOST_POINTS, Point, Traces, fronts, link};
pub use search::{
    ShardingError, ShardingLayout, ShardingPlan, ShardingPlans, ShardingQuestion, UnitChoice, UnitPrograms,
    sharding_plans,
};
pub use training::{BoundBy, Prices, Seconds, Training};
pub use unequal::{MOST_UNEQUAL_DEVICES, UnequalStage, UnequalStages, unequal_stages};
pub use unit::{Decision, Layouts, LoopLabel, Passage, ShardOption, UnitGraph};
