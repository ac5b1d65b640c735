//! Descriptions of networks, and jobs on them. A small network runs a small job.

use bessemer_cluster::{Description, Failures, Routing, TrafficJob, run_job};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = TrafficJob::parse("fuzz.toml", text) {
        assert!(!error.to_string().is_empty());
    }
    match Description::parse("fuzz.toml", text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(description) => {
            let network = description.network;
            let ranks = network.devices().min(16);
            let specs = [format!("data={ranks}:all-reduce:1MiB:ring")];
            let job = TrafficJob::from_specs(&specs).expect("a job of a few ranks");
            let report = run_job(&network, &job, Routing::Adaptive, &Failures::default());
            assert!(report.is_ok_and(|r| r.total.is_finite()), "{text}");
        }
    }
}
