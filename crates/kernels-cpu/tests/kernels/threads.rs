use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Rung};

#[test]
fn thread_counts_are_as_asked_and_unavailable_rungs_are_refused() {
    let b = CpuBackend::new(CpuConfig { threads: 3, pin: true, ..CpuConfig::default() }).unwrap();
    assert_eq!(b.threads(), 3);
    assert_eq!(b.rung(), Rung::detect());
    assert!(CpuBackend::new(CpuConfig { threads: 0, ..CpuConfig::default() }).unwrap().threads() >= 1);
    assert!(CpuBackend::new(CpuConfig { threads: 100_000, ..CpuConfig::default() }).is_err());
}
