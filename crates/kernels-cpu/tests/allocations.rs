//! Warm launches allocate nothing.

mod devices;

use bessemer_counting_alloc::{CountingAllocator, allocations};
use bessemer_operator_suite::warm_launches_allocate_nothing;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_warm_launch_allocates_nothing() {
    warm_launches_allocate_nothing(&devices::Cpu, &allocations);
}
