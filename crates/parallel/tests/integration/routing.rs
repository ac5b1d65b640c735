//! Simulated exchanges of rows by counts: the bytes of a run, rows of the rank with most of them, and shadows.

use crate::experts::{mixture, on_ranks, worker_gradients};
use bessemer_fixture::SEQ;
use bessemer_parallel::{ParallelConfig, Stage, UpdateOps, Worker};
use bessemer_program::CollectiveKind;
use bessemer_sim::SimError;
use bessemer_sim::replay::{
    CollectiveSeconds, Loads, Medium, MessageSeconds, NodeCosts, RankWriter, ReplayGroup, RoutedRows,
    RoutingProfile, StepEvents, Traffic, replay,
};
use bessemer_tensor::op::Op;

const SEQUENCES: usize = 8;
const EXPERTS: usize = 4;

/// Costs of experts alone: a second for a FLOP of their products and for a byte of their exchanges.
#[derive(Default)]
struct Charged {
    /// Bytes that the rank sends in exchanges of rows.
    own: u64,
    /// Indexed by exchange: most bytes that a rank sends or receives.
    most: Vec<u64>,
    /// Rows of the products of experts, by launch.
    rows: Vec<usize>,
}

impl NodeCosts for Charged {
    fn op(&mut self, op: &Op) -> Result<f64, SimError> {
        let grouped = match op {
            Op::GroupedLinear(op) => Some(op.x.rows),
            Op::GroupedLinearBackwardInput(op) => Some(op.dy.rows),
            Op::GroupedLinearBackwardWeight(op) => Some(op.x.rows),
            _ => None,
        };
        self.rows.extend(grouped);
        Ok(if grouped.is_some() { op.flops().0 } else { 0.0 })
    }

    fn copy(&mut self, _: u64) -> f64 {
        0.0
    }

    fn collective(&mut self, group: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds {
        let of_experts = group.label == "expert";
        let link = match traffic.kind {
            CollectiveKind::AllToAll if of_experts => {
                self.own += traffic.own;
                self.most.push(traffic.sent);
                traffic.sent as f64
            }
            _ => 0.0,
        };
        CollectiveSeconds { processor: 0.0, link, handoff: 0.0 }
    }

    fn message(&mut self, _: [usize; 2], _: u64) -> MessageSeconds {
        MessageSeconds::default()
    }

    fn medium(&mut self, _: &[usize]) -> Medium {
        Medium::Own
    }
}

/// Charges of the simulated step of a rank under a profile.
fn simulated(worker: &Worker, profile: &RoutingProfile) -> Charged {
    let (rank, ranks) = (worker.rank(), worker.plan().ranks());
    let (mut step, mut costs) = (StepEvents::of_some(ranks, vec![rank]), Charged::default());
    let mut writer = RankWriter::new(&mut step, &mut costs, rank).routed(profile.clone());
    worker.write_events(&mut writer, &UpdateOps::default()).unwrap();
    writer.finish();
    costs
}

fn of_loads(loads: Loads) -> RoutingProfile {
    RoutingProfile { loads }
}

/// Routes of a router that was drawn: the ranks' counts give the bytes of each rank. Of a router of zeros: recorded sums do.
#[test]
fn simulated_exchanges_have_the_bytes_of_the_run() {
    let model = mixture(true);
    // The last ones exchange in pieces.
    for (ranks, experts, stage, drawn, sequences) in [
        (2, 2, Stage::Ddp, true, SEQUENCES),
        (4, 4, Stage::Ddp, true, SEQUENCES),
        (4, 4, Stage::Zero3, true, SEQUENCES),
        (2, 2, Stage::Ddp, false, SEQUENCES),
        (4, 4, Stage::Ddp, false, SEQUENCES),
        (4, 2, Stage::Zero1, false, SEQUENCES),
        (2, 2, Stage::Ddp, true, 4 * SEQUENCES),
        (4, 4, Stage::Ddp, true, 4 * SEQUENCES),
        (4, 4, Stage::Ddp, false, 4 * SEQUENCES),
    ] {
        let config = ParallelConfig { experts, stage, ..ParallelConfig::default() };
        let p = experts as usize;
        // Bytes that each rank has sent, and its choices in each layer.
        let run = on_ranks(&model, &config, (ranks, sequences), |cpu, worker, ledger| {
            for tensor in worker.params().into_iter().filter(|t| !drawn && t.name.contains("router")) {
                worker.write(cpu, &tensor, &vec![0.0; tensor.len()]).unwrap();
            }
            ledger.clear();
            let sent = worker_gradients(cpu, worker, sequences, ledger).2;
            (sent, worker.own_loads().choices.iter().map(|count| u64::from(*count)).collect::<Vec<u64>>())
        });
        let loads = match drawn {
            true => {
                let layer = |layer: usize| {
                    let of_rank = |rank: &(u64, Vec<u64>)| rank.1[layer * EXPERTS..][..EXPERTS].to_vec();
                    RoutedRows::new(p, run.iter().flat_map(of_rank).collect()).unwrap()
                };
                Loads::Routed((0..model.layers).map(layer).collect())
            }
            false => {
                let sum = |at: usize| run.iter().map(|rank| rank.1[at]).sum();
                let layer = |layer: usize| (layer * EXPERTS..(layer + 1) * EXPERTS).map(sum).collect();
                Loads::Recorded((0..model.layers).map(layer).collect())
            }
        };
        let found = on_ranks(&model, &config, (ranks, sequences), |_, worker, _| {
            simulated(worker, &of_loads(loads.clone())).own
        });
        let offsets = (model.layers * 4 * (EXPERTS + 1) * (p - 1)) as u64;
        for (rank, (own, (sent, _))) in found.iter().zip(&run).enumerate() {
            assert_eq!(
                own + offsets,
                *sent,
                "{ranks} ranks, {experts} share experts, {stage:?}: rank {rank}"
            );
        }
        assert!(found.iter().sum::<u64>() > 0);
    }
}

/// R = n k rows a rank: R d (p-1)/p elements are sent, and R rows computed.
#[test]
fn balanced_loads_have_the_bytes_of_the_formula() {
    let model = mixture(true);
    for p in [2usize, 4] {
        let config = ParallelConfig { experts: p as u64, ..ParallelConfig::default() };
        let rows = SEQUENCES / p * SEQ * 2;
        let bytes = (rows * model.width * 4 * (p - 1) / p) as u64;
        let check = |_: &mut _, worker: &mut Worker, _: &_| {
            let costs = simulated(worker, &RoutingProfile::default());
            assert_eq!(costs.most, vec![bytes; 4 * model.layers]);
            assert_eq!(costs.own, bytes * 4 * model.layers as u64);
            assert!(costs.rows.iter().all(|found| *found == rows), "{:?}", costs.rows);
        };
        on_ranks(&model, &config, (p, SEQUENCES), check);
    }
}

/// Exponent 1 of four experts: shares of 12, 6, 4 and 3 of 25, of which none is above half of the tokens' two choices.
#[test]
fn the_slowest_rank_of_a_zipf_law_is_that_of_the_hand_calculation() {
    let model = mixture(true);
    let config = ParallelConfig { experts: 2, ..ParallelConfig::default() };
    let tokens = SEQUENCES * SEQ;
    let share = |part: f64| part / 25.0 * 2.0 * tokens as f64;
    // The first rank computes the rows of the first two experts, the second one the others. Half of them come from the other rank.
    let rows = [share(18.0), share(7.0)];
    let per_row = (3 * 2 * model.width * 8) as f64;
    let lists = on_ranks(&model, &config, (2, SEQUENCES), |_, worker, _| {
        simulated(worker, &of_loads(Loads::Zipf(1.0)))
    });
    for (costs, wanted) in lists.iter().zip(rows) {
        assert!(
            costs.rows.iter().all(|found| (*found as f64 - wanted).abs() <= 1.0),
            "{:?} of {wanted}",
            costs.rows
        );
        let most = rows[0] / 2.0 * (model.width * 4) as f64;
        assert!(costs.most.iter().all(|found| (*found as f64 - most).abs() <= (4 * model.width) as f64));
    }
    let seconds = step_seconds(&model, &config, 2, &of_loads(Loads::Zipf(1.0)));
    let (exact, most) = (lists[0].rows[0] as f64, lists[0].most[0] as f64);
    // Three products of each row, forward and twice backward; four exchanges.
    let wanted = model.layers as f64 * (3.0 * per_row * exact + 4.0 * most);
    assert!((seconds / wanted - 1.0).abs() < 1e-9, "{seconds} against {wanted}");
}

/// Seconds of the step of all ranks.
fn step_seconds(
    model: &bessemer_arch::Model,
    config: &ParallelConfig,
    ranks: usize,
    profile: &RoutingProfile,
) -> f64 {
    let step = std::sync::Mutex::new(StepEvents::new(ranks));
    on_ranks(model, config, (ranks, SEQUENCES), |_, worker, _| {
        let (mut step, mut costs) = (step.lock().unwrap(), Charged::default());
        let mut writer = RankWriter::new(&mut step, &mut costs, worker.rank()).routed(profile.clone());
        worker.write_events(&mut writer, &UpdateOps::default()).unwrap();
        writer.finish();
    });
    replay(&step.into_inner().unwrap()).unwrap().seconds()
}

/// Where all choices are at two experts of one rank, shadows of both keep all rows local; each shadow is sent once and its gradient once.
#[test]
fn shadows_take_rows_out_of_exchanges_and_travel_themselves() {
    let model = mixture(true);
    let config = ParallelConfig { experts: 2, ..ParallelConfig::default() };
    // Links so fast that an expert costs less than its rows.
    let shadowed = ParallelConfig { shadows: 2, shadow_flops: 1e6, shadow_bandwidth: 1e9, ..config.clone() };
    let tokens = (SEQUENCES * SEQ) as u64;
    let profile = of_loads(Loads::Recorded(vec![vec![tokens, tokens, 0, 0]; model.layers]));
    // A matrix of each expert in each layer: width x 2 x 8 and 8 x width, forward and back.
    let expert = (3 * model.width * 8 * 4) as u64;
    let lists = on_ranks(&model, &shadowed, (2, SEQUENCES), |_, worker, _| simulated(worker, &profile));
    let layers = model.layers as u64;
    for (rank, costs) in lists.iter().enumerate() {
        // The first rank sends its experts to the second one, which sends its gradients back.
        assert_eq!(costs.own, layers * 2 * expert, "rank {rank}");
        assert_eq!(costs.most.iter().sum::<u64>(), 2 * layers * 2 * expert);
        let rows = costs.rows.iter().map(|rows| *rows as u64);
        assert!(
            rows.clone().all(|rows| rows == 0 || rows == tokens) && rows.sum::<u64>() == 6 * layers * tokens
        );
    }
    let without = step_seconds(&model, &config, 2, &profile);
    let with = step_seconds(&model, &shadowed, 2, &profile);
    assert!(with < 0.6 * without, "{with} against {without}");
}

/// Loads of a model with other experts or fewer layers.
#[test]
fn loads_of_another_model_are_refused() {
    let model = mixture(true);
    let config = ParallelConfig { experts: 2, ..ParallelConfig::default() };
    for layers in [vec![vec![5; 8]; model.layers], vec![vec![5; 4]; model.layers - 1]] {
        let profile = of_loads(Loads::Recorded(layers));
        on_ranks(&model, &config, (2, SEQUENCES), |_, worker, _| {
            let (mut step, mut costs) = (StepEvents::new(2), Charged::default());
            let mut writer = RankWriter::new(&mut step, &mut costs, worker.rank()).routed(profile.clone());
            let error = worker.write_events(&mut writer, &UpdateOps::default()).unwrap_err().to_string();
            assert!(error.contains("wanted loads of the same model"), "{error}");
        });
    }
}

/// Costs of experts' rows alone: a second for each piece of a quarter of them, in products, in exchanges and back.
struct Seconds {
    /// Bytes of a piece.
    piece: f64,
    /// FLOPs of the two products of a piece, forward.
    flops: f64,
}

impl NodeCosts for Seconds {
    fn op(&mut self, op: &Op) -> Result<f64, SimError> {
        let product = matches!(op, Op::GroupedLinear(_) | Op::GroupedLinearBackwardInput(_));
        Ok(if product { op.flops().0 / self.flops } else { 0.0 })
    }

    fn copy(&mut self, _: u64) -> f64 {
        0.0
    }

    fn collective(&mut self, group: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds {
        let rows = group.label == "expert" && traffic.kind == CollectiveKind::AllToAll;
        let link = if rows { traffic.sent as f64 / self.piece } else { 0.0 };
        CollectiveSeconds { processor: 0.0, link, handoff: 0.0 }
    }

    fn message(&mut self, _: [usize; 2], _: u64) -> MessageSeconds {
        MessageSeconds::default()
    }

    fn medium(&mut self, _: &[usize]) -> Medium {
        Medium::Own
    }
}

/// Sends, products and results of 0111, 1111 and 0111 seconds take 10 seconds one after the other and 6 in pieces on one link (He et al. 2022).
#[test]
fn pieces_take_the_golden_time_of_the_smart_schedule() {
    let model = mixture(true);
    let sequences = 4 * SEQUENCES;
    let rows = (sequences / 4 * SEQ * 2 / 4) as f64;
    let seconds = |overlap| {
        let config = ParallelConfig { experts: 4, overlap, ..ParallelConfig::default() };
        let step = std::sync::Mutex::new(StepEvents::new(4));
        on_ranks(&model, &config, (4, sequences), |_, worker, _| {
            let mut step = step.lock().unwrap();
            let width = model.width as f64;
            let mut costs = Seconds { piece: rows * width * 4.0, flops: rows * 6.0 * width * 8.0 };
            let mut writer = RankWriter::new(&mut step, &mut costs, worker.rank());
            worker.write_events(&mut writer, &UpdateOps::default()).unwrap();
            writer.finish();
        });
        replay(&step.into_inner().unwrap()).unwrap().seconds()
    };
    // A forward and a backward pass of each layer.
    let layers = 2.0 * model.layers as f64;
    for (overlap, wanted) in [(false, 10.0), (true, 6.0)] {
        let found = seconds(overlap) / layers;
        assert!((found - wanted).abs() < 1e-9, "{found} seconds of a layer, wanted {wanted}");
    }
}
