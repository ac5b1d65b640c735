//! The pass `partition_activations`: of the residual stream that enters a layer, each tensor-parallel rank keeps some rows
//! between the forward and the backward pass (Rajbhandari et al. 2020, ZeRO, section 6.1: P_a).
//!
//! Without sequence parallelism every rank of the tensor axis has all rows of the stream, and t ranks keep it t times. After
//! this pass rank i keeps rows `i n / t .. (i + 1) n / t`. The backward pass gathers all rows before its first operator that
//! reads them: of n rows of width d a rank sends n d (t-1)/t elements a layer and micro-batch. Rows are copied and gathered as
//! they are, so bits are unchanged.

use crate::node::{Collective, CollectiveKind, Node};
use crate::overlap::numbers;
use crate::rank::Rank;
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_mesh::{Placement, even};
use bessemer_tensor::op::Copy;

/// Rewrites a unit that [`crate::partition()`] has made for a rank, whose share of the rows is as large as that of the others.
/// Does nothing if the backward pass does not read them.
pub fn partition_activations(unit: &mut UnitProgram, rank: Rank) {
    let stream = unit.values.iter().position(|v| v.class == Class::StreamIn);
    let Some(stream) = stream.filter(|_| rank.degree > 1) else { return };
    let touches = |node: &Node| node.touches().iter().any(|t| t.value() == stream);
    let Some(first) = unit.list(Phase::Backward).iter().position(touches) else { return };
    let value = unit.values[stream].clone();
    let rows = even(value.rows, rank.degree, rank.index);
    let all = value.view(stream);
    let local = Value { class: Class::Local, residual: false, ..value.clone() };
    let part = unit.add(Value {
        name: format!("{}.part", value.name),
        layout: value.layout.with(rank.axis, Placement::Shard { dim: 0 }),
        rows: rows.len,
        ..local.clone()
    });
    let whole = unit.add(Value { name: format!("{}.whole", value.name), ..local });
    let kept = Node::launch(Copy { src: all.rows(rows.start, rows.len), dst: part });
    unit.lists[Phase::Forward.index()].insert(0, kept);
    let name = format!("{}{}", unit.name, value.name);
    let list = &mut unit.lists[Phase::Backward.index()];
    for node in list.iter_mut() {
        node.for_each_view(&mut |view| {
            if view.buffer == all.buffer {
                view.buffer = whole.buffer;
            }
        });
    }
    let id = numbers(list, 1).start;
    let (kind, axis, order, dim) = (CollectiveKind::AllGather, rank.axis, rank.order, 0);
    let (columns, messages, versions) = (Vec::new(), Vec::new(), Vec::new());
    let (src, dst, rows) = (part, whole, 0..0);
    let gather = Collective {
        id,
        kind,
        axis,
        name,
        dim,
        order,
        columns,
        messages,
        by_counts: None,
        src,
        dst,
        rows,
        versions,
    };
    let gather = Collective { rows: 0..gather.total_rows(), ..gather };
    list.insert(first, Node::Collective(gather));
}
