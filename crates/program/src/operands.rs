//! Operands of a partitioned operator: the view that it reads, sliced or gathered where the layout of the value differs from the one
//! that the operator needs, and the view that it writes, with the collective that brings the result to the layout of the
//! value.

use crate::localize::Local;
use crate::node::{CollectiveKind, Launch, Node};
use crate::partition::{LayoutConflict, Partition};
use crate::rank::AxisRole;
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_mesh::{Dim, Placement, PositionOrder, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Add, Copy, Fill, Op, Operand};

impl Partition<'_> {
    /// The view that an operand reads: sliced or gathered where the layout of its value differs from the one that the operator needs. `columns`: if
    /// rows are gathered, only those columns of them, under this name.
    pub(crate) fn read(
        &mut self,
        op: &Op,
        id: usize,
        view: View,
        (dim, columns): (Option<usize>, Option<&str>),
    ) -> Result<View, Box<LayoutConflict>> {
        let placement = self.placements[id].unwrap_or_default();
        match (placement, dim) {
            (Placement::Shard { dim: found }, Some(wanted)) if found == wanted => {
                Ok(self.local_view(id, view, placement))
            }
            (Placement::Replicate, None) => Ok(self.local_view(id, view, placement)),
            (Placement::Replicate, Some(0)) if self.has_stretches() => {
                let remedy = "make it where its rows are";
                Err(self.conflict(op, id, "a rank's rows are several stretches of it", remedy))
            }
            (Placement::Replicate, Some(dim)) => Ok(self.sliced(id, view, dim)),
            (Placement::Shard { dim: 0 }, None) => Ok(match columns {
                Some(name) if view.cols < self.global.values[id].cols => self.gather_columns(id, view, name),
                _ => self.gather(id, view, 0),
            }),
            (Placement::Shard { dim: 1 }, None) if self.gathers_columns(id) => Ok(self.gather(id, view, 1)),
            (Placement::Shard { .. }, _) => {
                let remedy = "shard both alike, or replicate one of them";
                Err(self.conflict(op, id, "it computes along another dim", remedy))
            }
            (Placement::Partial { .. }, _) => {
                Err(self.conflict(op, id, "it needs the sum", "reduce it before this operator"))
            }
        }
    }

    /// Whether a rank's rows are not consecutive in the whole.
    fn has_stretches(&self) -> bool {
        self.rank.divides_rows_first() && self.rank.order != PositionOrder::Consecutive
    }

    /// The local view of a value, in its layout here.
    pub(crate) fn local_view(&self, id: usize, view: View, placement: Placement) -> View {
        let all = &self.global.values[id];
        let part = view.rows < all.rows && self.rank.divides_rows_first();
        if part && placement == (Placement::Shard { dim: 0 }) {
            // A part that axes before have left, as if they divided all rows: they divide this rank's.
            let (row, col) = (view.offset / all.cols, view.offset % all.cols);
            let (row, rows) = (row / self.rank.degree, view.rows / self.rank.degree);
            return self.out.values[id].view(id).rows(row, rows).columns(col, view.cols);
        }
        let (rows, cols) = (self.local(id, placement, 0), self.local(id, placement, 1));
        sub_view(view, self.global.values[id].cols, (&rows, &cols), self.out.values[id].view(id))
    }

    /// This rank's part, along a dim, of a view of a value that is replicated.
    pub(crate) fn sliced(&self, id: usize, view: View, dim: usize) -> View {
        let whole = self.out.values[id].view(id);
        let mut part = even(if dim == 0 { view.rows } else { view.cols }, self.rank.degree, self.rank.index);
        let mut view = View { buffer: whole.buffer, ..view };
        if self.rank.divides_rows_first() && matches!(self.global.values[id].class, Class::Input(_)) {
            // The view is a part that axes before have left, as if they divided all tokens: they divide this rank's.
            part.start = self.rank.index * (whole.cols / self.rank.degree) + view.offset / self.rank.degree;
            view = View { cols: whole.cols, offset: 0, ..view };
        }
        if dim == 0 { view.rows(part.start, part.len) } else { view.columns(part.start, part.len) }
    }

    /// Whether columns of a value of which each rank has some, consecutive and equally many ones, may be gathered.
    fn gathers_columns(&self, id: usize) -> bool {
        let columns = &self.global.values[id].form.dims[1];
        let consecutive = matches!(columns.blocks[..], [block] if block.replicas(self.rank.degree) == 1);
        self.rank.role != AxisRole::Line && consecutive && columns.len().is_multiple_of(self.rank.degree)
    }

    /// All rows, or all columns, of a value of which each rank has some.
    pub(crate) fn gather(&mut self, id: usize, view: View, dim: usize) -> View {
        let of = |whole: View| View { buffer: whole.buffer, ..view };
        let all = (id, 0, self.global.values[id].cols);
        if let Some(whole) = self.gathered.get(&all) {
            return of(*whole);
        }
        let src = self.out.values[id].view(id);
        let dst = self.whole_copy(id, if dim == 0 { "all_rows" } else { "all_columns" }, None);
        let collective = self.collective(CollectiveKind::AllGather, (id, dim), src, dst);
        self.push(Node::Collective(collective));
        self.gathered.insert(all, dst);
        of(dst)
    }

    /// All rows of some columns of a value of which each rank has some rows.
    fn gather_columns(&mut self, id: usize, view: View, name: &str) -> View {
        let columns = (id, view.offset % self.global.values[id].cols, view.cols);
        if let Some(whole) = self.gathered.get(&columns) {
            return *whole;
        }
        let src = self.local_view(id, view, Placement::Shard { dim: 0 });
        let dst = self.whole_copy(id, &format!("{name}.all_rows"), Some(view.cols));
        let collective = self.collective(CollectiveKind::AllGather, (id, 0), src, dst);
        self.push(Node::Collective(collective));
        self.gathered.insert(columns, dst);
        dst
    }

    /// Elements of this value that other ranks have sent are no longer those of the value.
    pub(crate) fn forget(&mut self, id: usize) {
        self.by_heads.remove(&id);
        self.gathered.retain(|(of, _, _), _| *of != id);
    }

    /// A new value with the whole shape of another, or with only so many columns.
    pub(crate) fn whole_copy(&mut self, id: usize, what: &str, cols: Option<usize>) -> View {
        let value = &self.global.values[id];
        let mut whole = Value {
            name: format!("{}.{what}", value.name),
            class: Class::Local,
            layout: value.layout.with(self.rank.axis, Placement::Replicate),
            // Ranks of a later axis have some of its rows too.
            residual: value.residual && self.rank.role == AxisRole::Line,
            ..value.clone()
        };
        if let Some(cols) = cols {
            (whole.form.dims[1], whole.cols) = (Dim::plain(cols), cols);
        }
        self.temporary(whole)
    }

    /// A value of the unit's own: the one of that name, unless this list has used it already.
    pub(crate) fn temporary(&mut self, value: Value) -> View {
        let used = |name: &str, out: &UnitProgram, phase: Phase| {
            out.find(name)
                .is_some_and(|id| out.list(phase).iter().flat_map(Node::touches).any(|t| t.value() == id))
        };
        let base = value.name.clone();
        let names = std::iter::once(base.clone()).chain((2..).map(|i| format!("{base}.{i}")));
        let phase = self.phase;
        let name = names.into_iter().find(|name| !used(name, &self.out, phase)).unwrap_or(base);
        match self.out.find(&name) {
            Some(id) => self.out.values[id].view(id),
            None => self.out.add(Value { name, ..value }),
        }
    }

    /// The view that an operand writes, and the collectives on it after the operator.
    pub(crate) fn write(
        &mut self,
        op: &Op,
        name: &str,
        (id, view): (usize, View),
        (made, by_rows): (Placement, bool),
        after: &mut Vec<Node>,
    ) -> Result<View, Box<LayoutConflict>> {
        let (class, cols) = (self.global.values[id].class, self.global.values[id].cols);
        let wanted = match self.placements[id] {
            Some(placement) => placement,
            None => {
                let placement = match (made, self.rank.role) {
                    _ if matches!(class, Class::AuxiliaryLoss(_) | Class::Counts) || leaves_terms(op) => made,
                    (Placement::Partial { .. }, AxisRole::Columns) => Placement::Shard { dim: 1 },
                    (Placement::Partial { .. }, AxisRole::Turned) => Placement::Shard { dim: 0 },
                    (Placement::Partial { .. }, _) if by_rows => Placement::Shard { dim: 0 },
                    (Placement::Partial { .. }, _) => Placement::Replicate,
                    _ => made,
                };
                self.place(id, placement);
                placement
            }
        };
        let here = self.local_view(id, view, wanted);
        match (made, wanted) {
            _ if made == wanted => Ok(here),
            (Placement::Partial { .. }, Placement::Replicate)
                if self.global.values[id].parameter.is_some() =>
            {
                let axis = self.rank.axis;
                let layout = &mut self.out.values[id].layout;
                *layout = layout.with(axis, made);
                Ok(here)
            }
            (Placement::Partial { .. }, Placement::Replicate) => {
                after.push(Node::Collective(self.collective(CollectiveKind::AllReduce, (id, 0), here, here)));
                Ok(here)
            }
            (Placement::Partial { .. }, Placement::Shard { dim: 0 }) if view.cols < cols => {
                let terms = self.whole_copy(id, &format!("{name}.terms"), Some(view.cols));
                after.push(Node::Collective(self.collective(
                    CollectiveKind::ReduceScatter,
                    (id, 0),
                    terms,
                    here,
                )));
                Ok(terms)
            }
            (Placement::Shard { dim: 1 }, Placement::Replicate) if class == Class::Losses => {
                Ok(self.losses_of_rows(id, after))
            }
            (Placement::Partial { .. }, Placement::Shard { dim }) if dim == 0 || self.gathers_columns(id) => {
                let terms = self.whole_copy(id, "terms", None);
                after.push(Node::Collective(self.collective(
                    CollectiveKind::ReduceScatter,
                    (id, dim),
                    terms,
                    here,
                )));
                Ok(View { buffer: terms.buffer, ..view })
            }
            _ => {
                let wanted = format!("it makes it {made}");
                Err(self.conflict(op, id, &wanted, "declare the value so, or shard what the operator reads"))
            }
        }
    }

    /// Whether an operator computes a term of a gradient of which each rank keeps a part.
    pub(crate) fn scatters_gradient(&self, operand: &Operand, made: Placement) -> bool {
        let id = operand.view.buffer.id as usize;
        let sharded = matches!(self.placements[id], Some(Placement::Shard { .. }));
        sharded && self.global.values[id].parameter.is_some() && matches!(made, Placement::Partial { .. })
    }

    /// The view in which an operator writes its term of a gradient, or a gradient next to such a one. The terms are reduce-scattered, and
    /// this rank's part is added to the gradient's contents: nothing, in the pass that begins the gradients of an update.
    pub(crate) fn write_terms(&mut self, operand: &Operand, made: Placement, after: &mut Vec<Node>) -> View {
        let (id, view) = (operand.view.buffer.id as usize, operand.view);
        let terms = self.whole_copy(id, "terms", None);
        let (own, axis) = (self.placements[id].unwrap_or_default(), self.rank.axis);
        let of_terms = &mut self.out.values[terms.buffer.id as usize].layout;
        *of_terms = of_terms.with(axis, made);
        let here = self.local_view(id, view, own);
        let part = match own {
            Placement::Shard { dim } => {
                let value = &self.out.values[id];
                let name = format!("{}.part", value.name);
                let part = Value { name, class: Class::Local, ..value.clone() };
                let part = self.temporary(part);
                after.push(Node::Collective(self.collective(
                    CollectiveKind::ReduceScatter,
                    (id, dim),
                    terms,
                    part,
                )));
                part
            }
            _ => {
                let layout = &mut self.out.values[id].layout;
                *layout = layout.with(axis, made);
                terms
            }
        };
        let begin = |dst: View| Op::from(Fill { dst, value: 0.0 });
        let gradient = matches!(self.global.values[id].class, Class::Gradient(_));
        match operand.access {
            // The operator adds to the existing contents.
            Access::Update => self.push(Node::launch(begin(terms))),
            _ if gradient => {
                after.push(Node::Launch(Launch { first_only: true, ..Launch::new(begin(here)) }));
            }
            // Terms of another axis.
            _ => {
                after.push(Node::launch(Copy { src: part, dst: here }));
                return View { buffer: terms.buffer, ..view };
            }
        }
        after.push(Node::launch(Add { a: here, b: part, out: here }));
        View { buffer: terms.buffer, ..view }
    }
}

/// Whether the result of an operator stays a term of a sum: offsets of a rank's own rows, and rows of experts, which are combined before
/// they are summed (1/k of the elements).
fn leaves_terms(op: &Op) -> bool {
    matches!(op, Op::AssignRows(_) | Op::GroupedLinear(_) | Op::GroupedLinearBackwardInput(_))
}

/// Key that distinguishes operands of an operator: no two of them are the same view unless they are the same value.
pub(crate) fn key(view: &View) -> usize {
    // Number of the value and first element; views of one operator on one value differ in it or are one view.
    (view.buffer.id as usize) << 40 | view.offset
}

/// `view` of a value with `cols` columns, where only some of its rows and columns are in `here`.
pub(crate) fn sub_view(
    view: View,
    cols: usize,
    (rows_held, cols_held): (&Local, &Local),
    here: View,
) -> View {
    let (row, col) = (view.offset / cols.max(1), view.offset % cols.max(1));
    let rows = rows_held.range(row, view.rows);
    let cols = cols_held.range(col, view.cols);
    here.rows(rows.start, rows.len()).columns(cols.start, cols.len())
}
