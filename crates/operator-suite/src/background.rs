//! Reads that go on beside launches.

use crate::Suite;
use bessemer_tensor::op::{Fill, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError};
use bessemer_units::DType;

/// Whatever is launched meanwhile, a read has the values of the moment at which it began.
pub(crate) fn a_read_beside_launches_has_the_values_of_its_beginning(suite: &Suite<'_>) {
    let mut device = suite.setup(suite.fastest(), 2).backend;
    let len = 3 << 20;
    let mut alloc = |name, dtype| {
        device.alloc(BufferSpec { class: "weights", name, dtype, len }).unwrap().matrix(3, 1 << 20)
    };
    let (a, b, c) = (alloc("a", DType::F32), alloc("b", DType::Bf16), alloc("c", DType::F32));
    let fill = |device: &mut dyn Backend, dst, value| {
        device.launch(Stream::Compute, &Op::Fill(Fill { dst, value })).unwrap();
    };
    let mut memory = vec![0.0; 2 * len];
    for round in 0..20 {
        let now = round as f32;
        fill(&mut *device, a, now);
        fill(&mut *device, b, now + 1.0);
        let pending = device.begin_read(vec![(a, 0), (b, len)], memory).unwrap();
        fill(&mut *device, c, 5.0);
        match round % 3 {
            0 => fill(&mut *device, b, -1.0),
            1 => device.write_f32(a, &vec![-1.0; len]).unwrap(),
            _ => {}
        }
        let read = pending.wait().unwrap();
        assert!(read.finite);
        assert!(read.values[..len].iter().all(|v| *v == now), "{round}");
        assert!(read.values[len..].iter().all(|v| *v == now + 1.0), "{round}");
        memory = read.values;
    }
    fill(&mut *device, b, f32::INFINITY);
    assert!(!device.begin_read(vec![(a, 0), (b, len)], memory).unwrap().wait().unwrap().finite);
    let e = device.begin_read(vec![(a, 1)], vec![0.0; len]).unwrap_err();
    assert!(matches!(e, TensorError::Shape { .. }), "{e}");
    // A backend that goes waits for its reads.
    let pending = device.begin_read(vec![(c, 0)], vec![0.0; len]).unwrap();
    drop(device);
    assert!(pending.wait().unwrap().values.iter().all(|v| *v == 5.0));
}
