//! Steps that are simulated: a few ranks represent all, exactly, and jobs of any size are simulated.

use bessemer_arch::Model;
use bessemer_recipe::Recipe;
use bessemer_sim::SimError;
use bessemer_sim::replay::{CollectiveSeconds, Medium, MessageSeconds, NodeCosts, ReplayGroup, Traffic};
use bessemer_tensor::op::Op;
use bessemer_train::{SimulatedRanks, SimulatedStep, simulated_step};

/// Seconds of operations and bytes that are the same everywhere, over ports that all collectives share.
#[derive(Default)]
struct Alike {
    medium: Medium,
    /// Ranks of a node, inside of which nothing is shared; 0: all are on nodes of their own.
    node: usize,
    /// Bytes a second of the second memory; 0: no time.
    disk: f64,
    /// Bytes that go to it and come from it.
    moved: u64,
}

impl NodeCosts for Alike {
    fn op(&mut self, op: &Op) -> Result<f64, SimError> {
        Ok(1e-6 + 1e-10 * op.flops().0)
    }

    fn copy(&mut self, bytes: u64) -> f64 {
        1e-10 * bytes as f64
    }

    fn second_memory(&mut self, bytes: u64) -> f64 {
        self.moved += bytes;
        if self.disk > 0.0 { bytes as f64 / self.disk } else { 0.0 }
    }

    fn collective(&mut self, _: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds {
        let link = 1e-6 * traffic.rounds() as f64 + 1e-8 * traffic.sent as f64;
        CollectiveSeconds { processor: 0.0, link, handoff: 0.0 }
    }

    fn message(&mut self, _: [usize; 2], bytes: u64) -> MessageSeconds {
        MessageSeconds { send: 0.0, receive: 0.0, busy: 1e-8 * bytes as f64, latency: 1e-6 }
    }

    fn medium(&mut self, ranks: &[usize]) -> Medium {
        let node = |rank: &usize| rank.checked_div(self.node);
        match ranks.iter().all(|rank| node(rank).is_some() && node(rank) == node(&ranks[0])) {
            true => Medium::Own,
            false => self.medium,
        }
    }
}

fn recipe(sets: &[&str]) -> (Recipe, Model) {
    let text = "[model]\narchitecture = 'llama'\nlayers = 4\nwidth = 64\nheads = 4\nkv_heads = 4\n[train]\nsteps = 5\n\
                batch_tokens = 512\nseq_len = 32\nmicro_batch = 1\n";
    let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
    let recipe = bessemer_recipe::parse_recipe("r.toml", text, &sets).unwrap().value;
    let model = recipe.model.resolve(Some(256)).unwrap();
    (recipe, model)
}

fn step(sets: &[&str], ranks: usize, which: SimulatedRanks, medium: Medium) -> SimulatedStep {
    let (recipe, model) = recipe(sets);
    simulated_step(&recipe, ranks, &model, which, &mut Alike { medium, ..Alike::default() }).unwrap()
}

#[test]
fn representatives_take_the_time_of_all_ranks_to_the_bit() {
    let layouts: [(&[&str], usize, usize); 20] = [
        (&[], 4, 1),
        (&["parallel.data=zero3"], 4, 1),
        (&["parallel.data=zero2", "parallel.shard=2"], 8, 1),
        (&["parallel.tensor=4", "parallel.sequence=true", "parallel.data=zero1"], 8, 1),
        (&["parallel.pipeline=4", "parallel.data=zero1"], 8, 4),
        (
            &[
                "parallel.pipeline=2",
                "parallel.schedule=interleaved",
                "parallel.chunks=2",
                "parallel.tensor=2",
            ],
            8,
            2,
        ),
        (
            &["parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.data=zero1", "parallel.tensor=2"],
            16,
            2,
        ),
        (&["parallel.context=2", "parallel.tensor=2", "parallel.data=zero3"], 8, 1),
        (&["parallel.context=4", "parallel.context_method=ring", "parallel.pipeline=2"], 16, 2),
        (&["parallel.context=4", "parallel.context_method=ring", "parallel.overlap=false"], 4, 1),
        (&["parallel.context=4", "parallel.context_method=ulysses", "parallel.data=zero1"], 8, 1),
        (&["parallel.context=4", "parallel.context_heads=2", "parallel.context_method=ring"], 8, 1),
        (
            &[
                "parallel.context=2",
                "parallel.context_method=ring",
                "parallel.tensor=2",
                "parallel.sequence=true",
                "parallel.pipeline=2",
                "parallel.schedule=zb-h1",
                "parallel.data=zero1",
            ],
            16,
            2,
        ),
        (&["parallel.context=2", "parallel.context_method=ring", "train.recompute=full"], 4, 1),
        (&["parallel.context=2", "parallel.data=zero1", "optim.optimizer=muon"], 4, 2),
        // Some ranks compute, send or wait more than others.
        (&["parallel.context=4", "parallel.context_method=lightseq"], 8, 4),
        (&["parallel.context=4", "parallel.context_method=ring", "parallel.context_order=striped"], 8, 4),
        (&["parallel.context=4", "parallel.context_method=ring", "model.window=9"], 8, 4),
        (
            &[
                "parallel.pipeline=2",
                "parallel.tensor=2",
                "parallel.data=zero1",
                "parallel.order=['pipeline','shard','tensor']",
            ],
            8,
            2,
        ),
        (&["parallel.pipeline=2", "parallel.schedule=chimera", "parallel.tensor=2"], 8, 2),
    ];
    for (sets, ranks, few) in layouts {
        for medium in [Medium::Own, Medium::Network] {
            let all = step(sets, ranks, SimulatedRanks::All, medium);
            let some = step(sets, ranks, SimulatedRanks::Representatives, medium);
            assert_eq!((all.events.lists.len(), some.events.lists.len()), (ranks, few), "{sets:?}");
            assert_eq!(some.seconds(), all.seconds(), "{sets:?} over {medium:?}");
            // Every event of a representative, not only the last.
            for (list, rank) in some.events.ranks().iter().enumerate() {
                assert_eq!(some.replay.events[list], all.replay.events[*rank], "{sets:?}, rank {rank}");
            }
        }
    }
}

/// Neighbours of a ring of four on nodes of two: every second message crosses the network, and two ranks represent four. On nodes of three
/// none represents another; keys and values that are gathered have one medium for all.
#[test]
fn ranks_whose_traffic_is_carried_otherwise_are_simulated() {
    let ring = ["parallel.context=4", "parallel.context_method=ring", "parallel.pipeline=2"];
    let gathered = ["parallel.context=4", "parallel.context_method=all-gather", "parallel.pipeline=2"];
    let step = |sets: &[&str], node: usize, which| {
        let (recipe, model) = recipe(sets);
        let mut costs = Alike { medium: Medium::Network, node, ..Alike::default() };
        simulated_step(&recipe, 16, &model, which, &mut costs).unwrap()
    };
    for (sets, node, few) in
        [(&ring, 0, 2), (&ring, 2, 4), (&ring, 3, 8), (&ring, 4, 2), (&gathered, 2, 2), (&gathered, 4, 2)]
    {
        let all = step(sets, node, SimulatedRanks::All);
        let some = step(sets, node, SimulatedRanks::Representatives);
        assert_eq!(some.events.lists.len(), few, "{sets:?}, nodes of {node}");
        // Copies on nodes of three use different media, and one represents all.
        let ranks = some.events.ranks().iter().enumerate().filter(|_| node != 3);
        for (list, rank) in ranks {
            let equal = some.replay.events[list] == all.replay.events[*rank];
            assert!(equal, "{sets:?}, nodes of {node}, rank {rank}");
        }
    }
}

/// Concurrent collectives on one port are slower than each on a link of its own.
#[test]
fn traffic_of_several_axes_at_once_shares_ports() {
    let sets = ["parallel.pipeline=2", "parallel.tensor=2", "parallel.data=zero2"];
    let [own, shared] = [Medium::Own, Medium::Network]
        .map(|medium| step(&sets, 16, SimulatedRanks::Representatives, medium).seconds());
    assert!(shared > own, "{shared} over shared ports, {own} over own links");
}

/// Writes and reads run concurrently with the passes; a disk that is too slow takes at least as long as the data in one direction, and never
/// longer than without concurrency.
#[test]
fn a_second_memory_costs_what_the_passes_do_not_hide() {
    let (recipe, model) = recipe(&["train.offload=disk", "parallel.pipeline=2"]);
    let step = |disk| {
        let mut costs = Alike { disk, ..Alike::default() };
        let found = simulated_step(&recipe, 2, &model, SimulatedRanks::All, &mut costs).unwrap();
        (found.seconds(), costs.moved as f64)
    };
    let (free, moved) = step(0.0);
    assert!(moved > 0.0);
    let (fast, _) = step(1e15);
    assert!((fast / free - 1.0).abs() < 1e-3, "{fast} {free}");
    let mut before = free;
    // Each of the two stages moves a half, one way a quarter.
    for disk in [1e8, 1e7, 1e6] {
        let (seconds, again) = step(disk);
        assert_eq!(again, moved);
        assert!(seconds > before && seconds >= 0.25 * moved / disk, "{seconds} s at {disk} bytes a second");
        assert!(seconds <= free + 1.01 * moved / disk, "{seconds} s at {disk} bytes a second");
        before = seconds;
    }
}

/// Llama 3 405B in the layout of its paper.
#[test]
fn hundreds_of_billions_of_parameters_on_16384_devices_are_simulated() {
    let (recipe, model) = recipe(&[
        "model.layers=126",
        "model.width=16384",
        "model.heads=128",
        "model.kv_heads=8",
        "model.ffn_width=53248",
        "model.context=8192",
        "train.seq_len=8192",
        "train.batch_tokens=16777216",
        "train.storage=bf16",
        "train.weights=bf16",
        "parallel.tensor=8",
        "parallel.sequence=true",
        "parallel.pipeline=16",
        "parallel.stages=[7,8,8,8,8,8,8,8,8,8,8,8,8,8,8,7]",
        "parallel.data=zero1",
    ]);
    let costs = &mut Alike { medium: Medium::Network, ..Alike::default() };
    let found = simulated_step(&recipe, 16384, &model, SimulatedRanks::Representatives, costs).unwrap();
    let events: usize = found.events.lists.iter().map(Vec::len).sum();
    assert!(events > 200_000, "{events} events");
    assert_eq!(found.events.lists.len(), 16);
    // Work of a device: 6 operations a parameter and token, those of attention not counted.
    let floor = 1e-10 * 6.0 * 400e9 * 16_777_216.0 / 16384.0;
    assert!(found.seconds() > floor, "{} s, at least {floor} s", found.seconds());
}
