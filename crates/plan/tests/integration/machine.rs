//! The catalogue, and descriptions of machines.

use bessemer_plan::{AllReduce, Machine, PlanError};

#[test]
fn the_catalogue_can_be_read_and_every_figure_has_a_source() {
    let machines = Machine::catalogue().unwrap();
    assert_eq!(machines.len(), 5);
    for machine in &machines {
        for figure in [
            "matrix_flops",
            "memory_bandwidth",
            "memory",
            "multiprocessors",
            "network_bandwidth",
            "all_reduce",
        ] {
            assert!(
                machine.sources.iter().any(|source| source.contains(figure)),
                "{}: {figure}",
                machine.name
            );
        }
        for ranks in [2, 3, 8, 16] {
            let times: Vec<f64> = (10..34)
                .map(|power| machine.all_reduce.seconds(ranks, f64::from(1u32 << 10) * 2f64.powi(power - 10)))
                .collect();
            assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{} {ranks}: {times:?}", machine.name);
        }
        assert_eq!(machine.all_reduce.seconds(1, 1e9), 0.0);
    }
    // Ports of a node by the rate of their link, to the bit.
    let network = |name: &str| Machine::named(name).unwrap().network_bandwidth;
    assert_eq!([network("a100-40gb"), network("a100-80gb"), network("h100-80gb")], [200e9, 200e9, 400e9]);
    // A description that was written is read as it was.
    let h100 = Machine::named("h100-80gb").unwrap();
    assert_eq!(Machine::parse(&h100.to_toml().unwrap()).unwrap(), h100);
    assert!(
        matches!(Machine::named("tpu"), Err(PlanError::UnknownMachine { known, .. }) if known.contains("h100-80gb"))
    );
}

#[test]
fn measured_times_are_met_and_a_ring_has_its_closed_form() {
    let a100 = Machine::named("a100-80gb").unwrap();
    assert!((a100.all_reduce.seconds(8, 8.0 * 1048576.0) - 129.8e-6).abs() < 1e-12);
    // Between two sizes, and beyond the last by its bandwidth.
    let (low, middle, high) =
        (a100.all_reduce.seconds(8, 8e6), a100.all_reduce.seconds(8, 12e6), a100.all_reduce.seconds(8, 16e6));
    assert!(low < middle && middle < high);
    let gibibyte = a100.all_reduce.seconds(8, 1073741824.0);
    assert!((a100.all_reduce.seconds(8, 2147483648.0) - 2.0 * gibibyte).abs() < 1e-12);
    // 64 MiB over 8 ranks at 200 GB/s, 5 us a message.
    let ring = AllReduce::Ring { bus_bandwidth: 200e9, base_microseconds: 1e-9, hop_microseconds: 5.0 };
    assert!((ring.seconds(8, 67108864.0) - 657.2e-6).abs() < 5e-8);
}

#[test]
fn wrong_descriptions_are_refused() {
    let text = include_str!("../../machines/h100-80gb.toml");
    for (from, to, said) in [
        ("node = 8", "node = 0", "node is 0"),
        ("node = 8", "nodes = 8", "unknown field `nodes` (did you mean \"node\"?)"),
        ("matrix_flops = 989e12", "matrix_flops = -1.0", "matrix_flops is -1"),
        ("matrix_flops = 989e12", "matrix_flops = nan", "matrix_flops is NaN"),
        ("bus_bandwidth = 370.8e9", "bus_bandwidth = 0.0", "all_reduce: wanted figures above 0"),
        ("bus_bandwidth = 370.8e9", "bus_bandwidth = 451e9", "at most 4.5e11, the rate of nvlink4"),
        (
            "link = \"ndr\"",
            "link = \"nrd\"",
            "network.link is \"nrd\" (did you mean \"ndr\"?); wanted one of ",
        ),
        (
            "node_link = \"nvlink4\"",
            "node_link = \"nvlink\"",
            "node_link is \"nvlink\" (did you mean \"nvlink",
        ),
        ("ports = 8 }", "ports = 0 }", "network_bandwidth is 0"),
        ("ports = 8 }", "port = 8 }", "unknown field `port` (did you mean \"ports\"?)"),
        ("node = 8", "node = 8\nnetwork_bandwidth = 1e9", "wanted one of them"),
    ] {
        assert!(text.contains(from));
        let error = Machine::parse(&text.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let text = include_str!("../../machines/a100-80gb.toml");
    for (from, to, said) in [
        ("bytes = [1048576,", "bytes = [9048576,", "ascending"),
        ("times = [45.1,", "times = [0.0,", "each above 0"),
        ("times = [45.1,", "times = [", "wanted 11"),
    ] {
        assert!(text.contains(from));
        let error = Machine::parse(&text.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert!(Machine::parse("name = ").is_err());
}
