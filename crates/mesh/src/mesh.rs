//! Ranks as points of a grid with named axes.

use crate::axis::Axis;

/// Axes that multiply the number of ranks.
const AXES: usize = Axis::ALL.len();

/// Axes from the fastest link outward: ranks that differ only on the first are neighbours. Tensor parallelism talks
/// most and waits for every word, data parallelism least (Llama 3: tensor, context, pipeline, data).
const FASTEST_FIRST: [Axis; AXES] = [
    Axis::TensorColumn,
    Axis::TensorRow,
    Axis::TensorDepth,
    Axis::Tensor,
    Axis::ContextHeads,
    Axis::Context,
    Axis::Expert,
    Axis::Shard,
    Axis::Pipeline,
    Axis::Replicate,
];

/// Why ranks do not make a mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mesh: {0}")]
pub struct MeshError(pub(crate) String);

/// The mesh that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    degrees: Vec<(Axis, usize)>,
    order: Vec<Axis>,
}

impl Default for MeshConfig {
    fn default() -> Self {
        MeshConfig { degrees: Vec::new(), order: FASTEST_FIRST.to_vec() }
    }
}

impl MeshConfig {
    /// One rank.
    pub fn new() -> MeshConfig {
        MeshConfig::default()
    }

    /// So many ranks along this axis; 0: as many as the other axes leave. Axes that are not named have 1.
    pub fn with(mut self, axis: Axis, degree: usize) -> MeshConfig {
        self.degrees.retain(|d| d.0 != axis);
        self.degrees.push((axis, degree));
        self
    }

    /// The order of the axes from the fastest link outward. Axes that are not named follow in the usual order.
    pub fn order(mut self, fastest_first: &[Axis]) -> MeshConfig {
        self.order = fastest_first.to_vec();
        self.order.extend(FASTEST_FIRST.iter().filter(|a| !fastest_first.contains(a)));
        self
    }
}

/// A rank's place on each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coord {
    at: [usize; AXES],
}

impl Coord {
    /// Place on one axis.
    pub fn at(&self, axis: Axis) -> usize {
        self.at[axis.slot()]
    }

    /// The same, elsewhere on one axis.
    pub fn with(mut self, axis: Axis, at: usize) -> Coord {
        self.at[axis.slot()] = at;
        self
    }
}

/// A grid of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    degrees: [usize; AXES],
    order: Vec<Axis>,
}

impl Mesh {
    /// A mesh of `ranks` ranks.
    ///
    /// # Errors
    /// Degrees whose product is not `ranks`; a tensor line and a tensor grid at once; an order that names an axis
    /// twice.
    pub fn new(config: &MeshConfig, ranks: usize) -> Result<Mesh, MeshError> {
        let wrong = |problem: String| Err(MeshError(problem));
        let mut seen = Vec::new();
        for axis in &config.order {
            if seen.contains(axis) {
                return wrong(format!("the order of axes names {axis} twice"));
            }
            seen.push(*axis);
        }
        if ranks == 0 {
            return wrong("wanted at least one rank, found 0".into());
        }
        let mut degrees = [1; AXES];
        for (axis, degree) in &config.degrees {
            degrees[axis.slot()] = *degree;
        }
        fill(&mut degrees, ranks)?;
        let mesh = Mesh { degrees, order: config.order.clone() };
        let grid = [Axis::TensorRow, Axis::TensorColumn, Axis::TensorDepth];
        if mesh.degree(Axis::Tensor) > 1 && mesh.size(&grid) > 1 {
            return wrong(
                "tensor parallelism is a line or a grid, found both; set tensor or the grid to 1".into(),
            );
        }
        Ok(mesh)
    }

    /// Ranks along one axis; one rank if `degree` is 0.
    pub fn along(axis: Axis, degree: usize) -> Mesh {
        let mut degrees = [1; AXES];
        degrees[axis.slot()] = degree.max(1);
        Mesh { degrees, order: FASTEST_FIRST.to_vec() }
    }

    /// The mesh of the ranks that differ on these axes only.
    pub fn along_axes(&self, axes: &[Axis]) -> Mesh {
        let mut mesh = self.clone();
        for (degree, axis) in mesh.degrees.iter_mut().zip(Axis::ALL) {
            *degree = if axes.contains(&axis) { *degree } else { 1 };
        }
        mesh
    }

    /// The mesh in which the ranks of `axes` differ on `into`, which is one of them, at their [`Mesh::position`] along `axes`; and the place
    /// there of the rank at `coord`.
    pub fn folded(&self, coord: &Coord, axes: &[Axis], into: Axis) -> (Mesh, Coord) {
        let mut mesh = self.clone();
        for axis in axes {
            mesh.degrees[axis.slot()] = 1;
        }
        mesh.degrees[into.slot()] = self.size(axes);
        let at = axes.iter().fold(*coord, |coord, axis| coord.with(*axis, 0));
        (mesh, at.with(into, self.position(self.rank(coord), axes)))
    }

    /// Those of `axes` that have several ranks, or the first one if none has.
    pub fn dividing<'a>(&'a self, axes: &'a [Axis]) -> impl Iterator<Item = Axis> + 'a {
        let several = |axis: &Axis| self.degree(*axis) > 1;
        let none = axes.first().copied().filter(|_| !axes.iter().any(several));
        axes.iter().copied().filter(several).chain(none)
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.degrees.iter().product()
    }

    /// Ranks along an axis.
    pub fn degree(&self, axis: Axis) -> usize {
        self.degrees[axis.slot()]
    }

    /// Ranks in a group along these axes.
    pub fn size(&self, axes: &[Axis]) -> usize {
        self.fastest_first(axes).map(|a| self.degree(a)).product()
    }

    /// Returns the coordinate of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn coord(&self, rank: usize) -> Coord {
        assert!(rank < self.world(), "rank {rank} of {}", self.world());
        let mut coord = Coord { at: [0; AXES] };
        let mut rest = rank;
        for axis in &self.order {
            coord = coord.with(*axis, rest % self.degree(*axis));
            rest /= self.degree(*axis);
        }
        coord
    }

    /// Returns the rank at a coordinate.
    pub fn rank(&self, coord: &Coord) -> usize {
        self.order.iter().rev().fold(0, |rank, axis| rank * self.degree(*axis) + coord.at(*axis))
    }

    /// The ranks that differ from `rank` on these axes only, ascending; itself included.
    pub fn group(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        let start = self.fastest_first(axes).fold(self.coord(rank), |c, a| c.with(a, 0));
        let mut coords = vec![start];
        for axis in self.fastest_first(axes) {
            let inner = std::mem::take(&mut coords);
            coords =
                (0..self.degree(axis)).flat_map(|at| inner.iter().map(move |c| c.with(axis, at))).collect();
        }
        coords.iter().map(|c| self.rank(c)).collect()
    }

    /// Position of `rank` in its group along these axes.
    pub fn position(&self, rank: usize, axes: &[Axis]) -> usize {
        let coord = self.coord(rank);
        let (mut position, mut stride) = (0, 1);
        for axis in self.fastest_first(axes) {
            position += coord.at(axis) * stride;
            stride *= self.degree(axis);
        }
        position
    }

    /// A coordinate moved to a position along these axes: the inverse of [`Mesh::position`].
    pub fn moved(&self, coord: Coord, axes: &[Axis], position: usize) -> Coord {
        let step = |(coord, rest): (Coord, usize), axis| {
            (coord.with(axis, rest % self.degree(axis)), rest / self.degree(axis))
        };
        self.fastest_first(axes).fold((coord, position), step).0
    }

    /// Every group along these axes, by their first ranks.
    pub fn groups(&self, axes: &[Axis]) -> Vec<Vec<usize>> {
        (0..self.world()).filter(|r| self.position(*r, axes) == 0).map(|r| self.group(r, axes)).collect()
    }

    /// "rank 5 (pipeline 1, tensor 0)": axes with one rank are left out.
    pub fn describe(&self, rank: usize) -> String {
        let coord = self.coord(rank);
        let places: Vec<String> = Axis::ALL
            .iter()
            .filter(|a| self.degree(**a) > 1)
            .map(|a| format!("{a} {}", coord.at(*a)))
            .collect();
        if places.is_empty() {
            format!("rank {rank}")
        } else {
            format!("rank {rank} ({})", places.join(", "))
        }
    }

    /// Those of `axes` that this mesh has, each once, fastest first.
    fn fastest_first<'a>(&'a self, axes: &'a [Axis]) -> impl Iterator<Item = Axis> + 'a {
        self.order.iter().copied().filter(|a| axes.contains(a))
    }
}

/// Label of a group along these axes: "shard", "replicate+shard".
pub fn label(axes: &[Axis]) -> String {
    let mut names: Vec<Axis> = axes.to_vec();
    names.sort();
    names.dedup();
    names.iter().map(|a| a.name()).collect::<Vec<_>>().join("+")
}

/// Sets the degree that is 0 and holds the product against the ranks.
fn fill(degrees: &mut [usize; AXES], ranks: usize) -> Result<(), MeshError> {
    let open: Vec<usize> = (0..AXES).filter(|s| degrees[*s] == 0).collect();
    let product = |d: &[usize; AXES]| d.iter().try_fold(1usize, |p, n| p.checked_mul(*n));
    let named = |d: &[usize; AXES]| {
        let list: Vec<String> =
            (Axis::ALL.iter().zip(d).filter(|(_, n)| **n != 1)).map(|(a, n)| format!("{a} {n}")).collect();
        if list.is_empty() { "every axis 1".to_string() } else { list.join(" x ") }
    };
    if let [first, second, ..] = open[..] {
        let (a, b) = (Axis::ALL[first], Axis::ALL[second]);
        return Err(MeshError(format!(
            "only one axis can take the ranks that are left, found {a} and {b} at 0"
        )));
    }
    if let [slot] = open[..] {
        degrees[slot] = 1;
        let taken = product(degrees).unwrap_or(usize::MAX);
        if !ranks.is_multiple_of(taken) {
            return Err(MeshError(format!(
                "{} takes {taken} ranks, which does not divide the {ranks} there are; {}",
                named(degrees),
                advice(degrees, ranks, Some(slot))
            )));
        }
        degrees[slot] = ranks / taken;
    }
    match product(degrees) {
        Some(wanted) if wanted == ranks => Ok(()),
        wanted => Err(MeshError(format!(
            "{} makes {} ranks, but there are {ranks}; {}",
            named(degrees),
            wanted.map_or("too many".into(), |w| w.to_string()),
            advice(degrees, ranks, None)
        ))),
    }
}

/// Which single axis to change. `open` takes what is left, so for any other a divisor will do.
fn advice(degrees: &[usize; AXES], ranks: usize, open: Option<usize>) -> String {
    let mut ways = Vec::new();
    // Data axes first: they change the least of a run.
    for axis in [Axis::Replicate, Axis::Shard, Axis::Pipeline, Axis::Context, Axis::Tensor] {
        let slot = Axis::ALL.iter().position(|a| *a == axis);
        let others =
            (0..AXES).filter(|s| Some(*s) != slot).try_fold(1usize, |p, s| p.checked_mul(degrees[s]));
        let (Some(slot), Some(others)) = (slot, others) else { continue };
        let changes = open.is_none() || degrees[slot] > 1;
        if Some(slot) != open && changes && others <= ranks && ranks.is_multiple_of(others) {
            let most = ranks / others;
            let degree = match open {
                None => most,
                // The largest that is no larger than what was asked for.
                Some(_) => (1..=degrees[slot].min(most)).rev().find(|d| most.is_multiple_of(*d)).unwrap_or(1),
            };
            ways.push(format!("{axis} to {degree}"));
        }
    }
    let taken = degrees.iter().try_fold(1usize, |p, n| p.checked_mul(*n));
    let start = match (taken, open) {
        (Some(t), None) => format!("start {t} ranks"),
        (Some(t), Some(_)) => format!("start a multiple of {t} ranks"),
        _ => return "take smaller degrees".into(),
    };
    if ways.is_empty() {
        format!("change several axes, or {start}")
    } else {
        format!("set {}, or {start}", ways.join(" or "))
    }
}
