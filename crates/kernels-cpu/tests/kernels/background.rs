//! Reads that go on beside launches.

use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_tensor::op::{Fill, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError};
use bessemer_units::DType;

/// Whatever is launched meanwhile, a read has the values of the moment at which it began.
#[test]
fn a_read_beside_launches_has_the_values_of_its_beginning() {
    let mut cpu = CpuBackend::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
    let len = 3 << 20;
    let mut alloc = |name, dtype| {
        cpu.alloc(BufferSpec { class: "weights", name, dtype, len }).unwrap().matrix(3, 1 << 20)
    };
    let (a, b, c) = (alloc("a", DType::F32), alloc("b", DType::Bf16), alloc("c", DType::F32));
    let fill = |cpu: &mut CpuBackend, dst, value| {
        cpu.launch(Stream(0), &Op::Fill(Fill { dst, value })).unwrap();
    };
    let mut memory = vec![0.0; 2 * len];
    for round in 0..20 {
        let now = round as f32;
        fill(&mut cpu, a, now);
        fill(&mut cpu, b, now + 1.0);
        let pending = cpu.begin_read(vec![(a, 0), (b, len)], memory).unwrap();
        fill(&mut cpu, c, 5.0);
        match round % 3 {
            0 => fill(&mut cpu, b, -1.0),
            1 => cpu.write_f32(a, &vec![-1.0; len]).unwrap(),
            _ => {}
        }
        let read = pending.wait().unwrap();
        assert!(read.finite);
        assert!(read.values[..len].iter().all(|v| *v == now), "{round}");
        assert!(read.values[len..].iter().all(|v| *v == now + 1.0), "{round}");
        memory = read.values;
    }
    fill(&mut cpu, b, f32::INFINITY);
    assert!(!cpu.begin_read(vec![(a, 0), (b, len)], memory).unwrap().wait().unwrap().finite);
    let e = cpu.begin_read(vec![(a, 1)], vec![0.0; len]).unwrap_err();
    assert!(matches!(e, TensorError::Shape { .. }), "{e}");
    // A backend that goes waits for its reads.
    let pending = cpu.begin_read(vec![(c, 0)], vec![0.0; len]).unwrap();
    drop(cpu);
    assert!(pending.wait().unwrap().values.iter().all(|v| *v == 5.0));
}
