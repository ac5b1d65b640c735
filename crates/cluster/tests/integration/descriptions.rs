//! Descriptions of networks and jobs: every example, and what is refused.

use bessemer_cluster::collective::{CollectiveAlgorithm, TrafficKind};
use bessemer_cluster::{
    Description, EXAMPLES, Failures, NetworkFacts, Routing, TrafficJob, run_job, single_failures, sketch,
};
use bessemer_units::Bytes;

fn refused(text: &str) -> String {
    Description::parse("my.toml", text).unwrap_err().to_string()
}

#[test]
fn every_example_is_a_network() {
    let sizes = [8, 256, 16, 16, 64, 1024, 16_384, 1056, 1024, 1024, 1024, 1024];
    for ((name, text), size) in EXAMPLES.iter().zip(sizes) {
        let network = Description::parse(name, text).unwrap().network;
        let facts = NetworkFacts::new(&network);
        assert_eq!((facts.devices, network.name()), (size, *name));
        assert!(facts.bisection_bandwidth > 0.0 && facts.diameter >= 2);
    }
}

#[test]
fn examples_run_jobs_and_are_drawn() {
    for (name, text) in EXAMPLES.iter().filter(|e| e.0 != "fat-tree-16384") {
        let network = Description::parse(name, text).unwrap().network;
        let job =
            TrafficJob::from_specs(&[format!("data={}:all-reduce:1MiB:ring", network.devices())]).unwrap();
        let report = run_job(&network, &job, Routing::Static, &Failures::default()).unwrap();
        assert!(report.total > 0.0);
        let drawn = sketch(&network, &report.link_bytes);
        assert!(drawn.points.len() > 8 && drawn.points.len() < 2000 && drawn.edges.len() < 6000, "{name}");
        for p in &drawn.points {
            assert!(p.at.iter().all(|x| (0.0..=1.0).contains(x)), "{name}: {p:?}");
        }
        let cables: u32 = drawn.edges.iter().map(|e| e.cables).sum();
        assert!(cables as usize <= network.graph().cables());
        let busiest = drawn.edges.iter().map(|e| e.busy).fold(0.0, f64::max);
        assert!(busiest > 0.0 && busiest <= report.total, "{name}: {busiest} of {}", report.total);
    }
}

#[test]
fn cost_and_power_are_those_of_the_parts() {
    let text = "nodes = 128\n[network]\ntopology = \"fat-tree\"\nports = 16\nlink = \"ndr\"\nlatency_us = 1\n[parts]\nsource = \"offer\"\nswitch_usd = 1000\ntransceiver_usd = 10\nswitch_watts = 100\nnic_watts = 5\n";
    let description = Description::parse("x", text).unwrap();
    let facts = NetworkFacts::new(&description.network);
    // 3 N/k = 24 switches, 2 N cables with two transceivers each.
    assert_eq!((facts.switches, facts.cables, facts.transceivers), (24, 256, 512));
    let parts = description.parts.unwrap();
    let cost = facts.cost(&parts).unwrap();
    assert_eq!((cost.total, cost.without), (24_000.0 + 5_120.0, vec!["cables", "ports of nodes"]));
    let power = facts.power(&parts).unwrap();
    assert_eq!((power.total, power.without), (2400.0 + 640.0, vec!["transceivers"]));
}

#[test]
fn bad_descriptions_say_what_was_wanted_and_found() {
    let typo = refused("nodes = 4\n[network]\ntopolgy = \"switch\"\n");
    assert!(
        typo.contains("my.toml")
            && typo.contains("`topolgy` (did you mean \"topology\"?)")
            && typo.contains("line 3"),
        "{typo}"
    );
    let base = "nodes = 4\n[network]\ntopology = \"fat-tree\"\n";
    let link = refused(&format!("{base}ports = 4\n"));
    assert!(link.contains("network.link: wanted a name of the catalogue"), "{link}");
    let name = refused(&format!("{base}ports = 4\nlink = \"ndrr\"\nlatency_us = 1\n"));
    assert!(name.contains("found ndrr") && name.contains("ndr, "), "{name}");
    let latency = refused(&format!("{base}ports = 4\nlink = \"ndr\"\n"));
    assert!(latency.contains("network.latency_us") && latency.contains("found none"), "{latency}");
    let ports = refused(&format!("{base}link = \"ndr\"\nlatency_us = 1\n"));
    assert!(ports.contains("network.ports") && ports.contains("add ports"), "{ports}");
    let foreign = refused(&format!("{base}ports = 4\nlink = \"ndr\"\nlatency_us = 1\ndims = [2]\n"));
    assert!(foreign.contains("network.dims") && foreign.contains("belongs to torus"), "{foreign}");
    let sizes = refused(
        "nodes = 5\n[network]\ntopology = \"fat-tree\"\nports = 4\nlevels = 2\nlink = \"ndr\"\nlatency_us = 1\n",
    );
    assert!(sizes.contains("my.toml: hosts of the network") && sizes.contains("take 6 hosts"), "{sizes}");
    let kind = refused("nodes = 4\n[network]\ntopology = \"ring\"\nlink = \"ndr\"\nlatency_us = 1\n");
    assert!(kind.contains("found ring") && kind.contains("rail-only"), "{kind}");
    let count = refused(
        "nodes = 4\n[network]\ntopology = \"torus\"\ndims = [4, 4]\nlink = \"ndr\"\nlatency_us = 1\n",
    );
    assert!(count.contains("nodes: wanted 16") && count.contains("found 4"), "{count}");
    let node = refused(
        "nodes = 4\n[node]\ndevices = 8\n[network]\ntopology = \"switch\"\nlink = \"ndr\"\nlatency_us = 1\n",
    );
    assert!(node.contains("node.link"), "{node}");
    let nics = refused(
        "nodes = 4\n[node]\ndevices = 8\nnics = 3\nlink = \"nvlink4\"\nlatency_us = 1\n[network]\ntopology = \"switch\"\nlink = \"ndr\"\nlatency_us = 1\n",
    );
    assert!(nics.contains("node.nics") && nics.contains("divisor of the 8"), "{nics}");
    for (key, place) in [("devices", "node.devices"), ("devices = 1\nnics", "node.nics")] {
        for topology in ["dragonfly\"\np = 4\na = 8\nh = 4", "torus\"\ndims = [2, 2]", "switch\""] {
            let none = refused(&format!(
                "[node]\n{key} = 0\n[network]\ntopology = \"{topology}\nlink = \"ndr\"\nlatency_us = 1\n",
            ));
            assert!(none.contains(place) && none.contains("1 or more"), "{none}");
        }
    }
    let half =
        refused("nodes = 4\n[network]\ntopology = \"switch\"\nlink = \"ndr\"\nlatency_us = 1\nslots = 4\n");
    assert!(half.contains("both or neither"), "{half}");
    let price = refused(
        "nodes = 4\n[network]\ntopology = \"switch\"\nlink = \"ndr\"\nlatency_us = 1\n[parts]\nsource = \"x\"\nswitch_usd = -1\n",
    );
    assert!(price.contains("parts.switch_usd"), "{price}");
    assert!(refused("").contains("[network]"));
    let unaligned = refused(
        "nodes = 64\n[node]\ndevices = 6\nlink = \"nvlink4\"\nlatency_us = 1\n[network]\ntopology = \"fat-tree\"\nports = 64\nlink = \"ndr\"\nlatency_us = 1\n",
    );
    assert!(
        unaligned.contains("a divisor or a multiple of 32") && unaligned.contains("found 6"),
        "{unaligned}"
    );
}

#[test]
fn jobs_are_axes_the_fastest_first() {
    let job = TrafficJob::parse(
        "job.toml",
        "overhead_us = 2\n[[axis]]\naxis = \"tensor\"\nranks = 8\ncollective = \"all-reduce\"\nbytes = \"64 MiB\"\ncount = 4\n\
         [[axis]]\naxis = \"data\"\nranks = 16\ncollective = \"reduce-scatter\"\nbytes = \"1 GiB\"\nalgorithm = \"ring\"\n\
         [[axis]]\naxis = \"expert\"\nranks = 4\ncollective = \"all-to-all\"\nbytes = \"1MiB\"\n[[axis]]\naxis = \"pipeline\"\nranks = 2\n",
    )
    .unwrap();
    assert_eq!((job.ranks(), job.traffic.len(), job.overhead), (256, 3, 2e-6));
    let first = &job.traffic[0];
    assert_eq!((first.kind, first.bytes, first.count), (TrafficKind::AllReduce, Bytes(64 << 20), 4));
    assert_eq!(job.traffic[1].algorithm, Some(CollectiveAlgorithm::Ring));
    let groups = job.groups(first.axis, 8).unwrap();
    assert_eq!((groups.len(), &groups[1]), (32, &(8..16).collect::<Vec<u32>>()));
    let data = job.groups(job.traffic[1].axis, 16).unwrap();
    assert_eq!((data.len(), &data[1][..3]), (16, &[1, 9, 17][..]));
    let experts = job.groups(job.traffic[2].axis, 4).unwrap();
    assert_eq!((experts.len(), &experts[1][..]), (64, &[4, 5, 6, 7][..]));
}

#[test]
fn bad_jobs_say_what_was_wanted_and_found() {
    let spec = |s: &str| TrafficJob::from_specs(&[s.to_string()]).unwrap_err().to_string();
    assert!(spec("tensor").contains("AXIS=RANKS"));
    assert!(spec("tenso=8").contains("found tenso") && spec("tenso=8").contains("tensor, "));
    assert!(spec("tensor=8:all-reduce").contains("AXIS=RANKS:COLLECTIVE:BYTES"));
    assert!(spec("tensor=8:reduce:1MiB").contains("all-to-all"));
    assert!(spec("tensor=8:all-reduce:many").contains("many"));
    assert!(spec("tensor=8:all-to-all:1MiB:ring").contains("one of pairwise"));
    assert!(spec("tensor=0").contains("found 0"));
    assert!(spec("tensor=9999999").contains("1 to 1048576"));
    let twice = ["data=8:all-reduce:1MiB", "data=4:all-reduce:1MiB"].map(str::to_string);
    assert!(TrafficJob::from_specs(&twice).unwrap_err().to_string().contains("wanted 8, as before, found 4"));
    let typo =
        TrafficJob::parse("job.toml", "[[axis]]\naxis = \"data\"\nrank = 4\n").unwrap_err().to_string();
    assert!(
        typo.contains("job.toml")
            && typo.contains("`rank` (did you mean \"ranks\"?)")
            && typo.contains("line 3"),
        "{typo}"
    );
    let network = Description::parse("n", EXAMPLES[0].1).unwrap().network;
    let job = TrafficJob::from_specs(&["data=9:all-reduce:1MiB".to_string()]).unwrap();
    let error = run_job(&network, &job, Routing::Static, &Failures::default()).unwrap_err().to_string();
    assert!(error.contains("at most 8 ranks") && error.contains("found 9"), "{error}");
}

#[test]
fn rail_only_wants_tensor_inside_the_domain_and_data_between_equal_ranks() {
    let text = EXAMPLES.iter().find(|e| e.0 == "rail-only-1024").unwrap().1;
    let network = Description::parse("rails", text).unwrap().network;
    let job = |specs: &[&str]| {
        TrafficJob::from_specs(&specs.iter().map(|s| s.to_string()).collect::<Vec<_>>()).unwrap()
    };
    let good = job(&[
        "tensor=64:all-reduce:1MiB",
        "pipeline=4:neighbours:1MiB",
        "data=4:all-reduce:1MiB",
        "expert=8:all-to-all:1MiB",
    ]);
    assert_eq!(good.broken_rail_rules(&network).unwrap(), Vec::<String>::new());
    let bad = job(&["tensor=48:all-reduce:1MiB", "data=16:all-reduce:1MiB"]);
    let broken = bad.broken_rail_rules(&network).unwrap();
    assert_eq!(broken.len(), 2, "{broken:?}");
    assert!(
        broken[0].contains("axis tensor") && broken[0].contains("fast domain of 64 devices"),
        "{}",
        broken[0]
    );
    // The same job costs more where the rule is broken.
    let swapped = job(&["data=16:all-reduce:1MiB", "tensor=64:all-reduce:64MiB"]);
    let kept = job(&["tensor=64:all-reduce:64MiB", "data=16:all-reduce:1MiB"]);
    let time = |j: &TrafficJob| run_job(&network, j, Routing::Static, &Failures::default()).unwrap().total;
    assert_eq!(swapped.broken_rail_rules(&network).unwrap().len(), 1);
    assert!(2.0 * time(&kept) < time(&swapped), "{} and {}", time(&kept), time(&swapped));
}

#[test]
fn the_fastest_algorithm_is_taken_and_the_others_are_told() {
    let network = Description::parse("n", EXAMPLES[0].1).unwrap().network;
    let run = |bytes: &str| {
        let job = TrafficJob::from_specs(&[format!("data=8:all-reduce:{bytes}")]).unwrap();
        run_job(&network, &job, Routing::Static, &Failures::default()).unwrap().times.remove(0)
    };
    // Few latencies for short buffers, few bytes for long ones.
    assert_eq!(run("1kB").algorithm, CollectiveAlgorithm::RecursiveDoubling);
    let long = run("1GB");
    assert_eq!(long.algorithm, CollectiveAlgorithm::HalvingDoubling);
    assert!(long.others.iter().all(|(_, seconds)| *seconds >= long.seconds));
    assert_eq!(long.others.len(), 3, "ring, recursive doubling, double tree: {:?}", long.others);
}

#[test]
fn a_dead_part_costs_time_or_cuts_off() {
    let text = "nodes = 16\n[node]\ndevices = 4\nlink = \"nvlink4\"\nlatency_us = 1\n[network]\ntopology = \"fat-tree\"\nports = 16\nlink = \"ndr\"\nlatency_us = 1\n";
    let network = Description::parse("n", text).unwrap().network;
    let job = TrafficJob::from_specs(&["data=64:all-reduce:64MiB:halving-doubling".into()]).unwrap();
    let report = run_job(&network, &job, Routing::Static, &Failures::default()).unwrap();
    let dead = single_failures(&network, &job, &report, Routing::Static).unwrap();
    let parts: Vec<_> = dead.iter().map(|d| (d.part.as_str(), d.of, d.cut_off)).collect();
    assert_eq!(
        parts,
        [
            ("cable from device 0 to node switch 0", 64, 0),
            ("cable from device 0 to switch 0", 64, 0),
            ("cable from switch 0 to switch 8", 64, 0),
            ("node switch 0", 16, 0),
            ("switch 0 (level 1)", 8, 8),
            ("switch 8 (level 2)", 4, 0),
        ]
    );
    for part in &dead {
        match &part.total {
            Ok(total) => assert!(*total >= report.total, "{part:?}"),
            Err(e) => assert!(part.cut_off > 0 && e.to_string().contains("cut off"), "{part:?}"),
        }
    }
    let spine = dead[5].total.as_ref().unwrap();
    assert!(*spine > 1.05 * report.total, "a dead spine leaves three quarters of the uplinks");
}

/// What sums in switches are worth is the best algorithm between devices in their place, as often as the step has it.
#[test]
fn a_step_without_sums_in_switches_takes_the_next_algorithm() {
    let network =
        Description::parse("f", EXAMPLES.iter().find(|e| e.0 == "fat-tree-1024").unwrap().1).unwrap().network;
    let report = |specs: &[&str]| {
        let specs: Vec<String> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        let job = TrafficJob::from_specs(&specs).unwrap();
        run_job(&network, &job, Routing::Static, &Failures::default()).unwrap()
    };
    let both = report(&["tensor=8:all-reduce:64MiB", "data=4:all-gather:64MiB"]);
    let sums = &both.times[0];
    let (algorithm, seconds) = sums.between_devices().unwrap();
    assert_eq!((algorithm, seconds), sums.others[0]);
    assert_eq!(both.between_devices(), Some(seconds + both.times[1].seconds));
    assert!(both.times[1].between_devices().is_none());
    // Nothing sums, or nothing else may.
    assert!(report(&["data=8:all-gather:64MiB"]).between_devices().is_none());
    assert!(report(&["tensor=8:all-reduce:64MiB:switch-tree"]).between_devices().is_none());
}
