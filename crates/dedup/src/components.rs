//! Connected components of a graph of documents, in memory or outside of it, with the same result.
//!
//! Edges are collected in a [`WordSorter`]. If they fit into the memory granted, a union-find over the sorted nodes
//! links every root to the lower one. If not, rounds of *large star* and *small star* (Kiveris, Lattanzi, Mirrokni,
//! Rastogi, Vassilvitskii, "Connected Components in MapReduce and Beyond", 2014) hook each node to the lowest one it
//! knows until only stars are left. A round is two external sorts of at most twice the edges; their number grows with
//! the square of the logarithm of the largest component (five or so in practice).
//!
//! Either way every node ends with the lowest node of its component.

use bessemer_dataflow::{Error, Result};
use bessemer_external_sort::{SortMemory, SortedWords, WordSorter};
use std::sync::atomic::{AtomicBool, Ordering};

/// A node: the words of a place.
type Node = [u64; 2];

/// Bytes per edge of the union-find: the edge, its nodes, their parents.
const BYTES_PER_EDGE: u64 = 80;

fn edge(record: [u64; 4]) -> (Node, Node) {
    ([record[0], record[1]], [record[2], record[3]])
}

fn record(from: Node, to: Node) -> [u64; 4] {
    [from[0], from[1], to[0], to[1]]
}

/// Collects edges.
pub(crate) struct Graph<'s> {
    memory: &'s SortMemory<'s>,
    edges: WordSorter<'s, 4>,
}

impl<'s> Graph<'s> {
    pub(crate) fn new(memory: &'s SortMemory<'s>) -> Self {
        Graph { memory, edges: WordSorter::new(memory) }
    }

    /// Says that two different nodes belong together.
    pub(crate) fn link(&mut self, a: Node, b: Node) -> Result<()> {
        Ok(self.edges.push(record(a.max(b), a.min(b)))?)
    }

    /// Calls `each` with every node that has an edge, in order, and the lowest node of its component.
    pub(crate) fn components(
        self,
        stop: &AtomicBool,
        each: &mut dyn FnMut(Node, Node) -> Result<()>,
    ) -> Result<()> {
        if self.edges.pushed().saturating_mul(BYTES_PER_EDGE) <= self.memory.limit() as u64 / 4 * 3 {
            in_memory(self.edges.finish(), each)
        } else {
            outside(self.memory, self.edges, stop, each)
        }
    }
}

fn root(parents: &mut [u32], mut node: u32) -> u32 {
    while parents[node as usize] != node {
        let up = parents[parents[node as usize] as usize];
        parents[node as usize] = up;
        node = up;
    }
    node
}

fn in_memory(mut edges: SortedWords<'_, 4>, each: &mut dyn FnMut(Node, Node) -> Result<()>) -> Result<()> {
    let mut list: Vec<(Node, Node)> = Vec::new();
    while let Some(record) = edges.next()? {
        let next = edge(record);
        if list.last() != Some(&next) {
            list.push(next);
        }
    }
    drop(edges);
    let mut nodes: Vec<Node> = list.iter().flat_map(|&(a, b)| [a, b]).collect();
    nodes.sort_unstable();
    nodes.dedup();
    // Fewer than 2^32 nodes: more would not fit into 2^32 × 80 bytes, checked by the caller's budget.
    let place = |node: Node| nodes.binary_search(&node).map_or(0, |at| at as u32);
    let mut parents: Vec<u32> = (0..nodes.len() as u32).collect();
    for &(a, b) in &list {
        let (a, b) = (root(&mut parents, place(a)), root(&mut parents, place(b)));
        parents[a.max(b) as usize] = a.min(b);
    }
    for at in 0..nodes.len() {
        let lowest = root(&mut parents, at as u32);
        each(nodes[at], nodes[lowest as usize])?;
    }
    Ok(())
}

/// Reads a sorted list of edges without its repeats.
struct Edges<'s> {
    sorted: SortedWords<'s, 4>,
    last: Option<[u64; 4]>,
}

impl Edges<'_> {
    fn next(&mut self) -> Result<Option<(Node, Node)>> {
        loop {
            let Some(next) = self.sorted.next()? else { return Ok(None) };
            if self.last != Some(next) {
                self.last = Some(next);
                return Ok(Some(edge(next)));
            }
        }
    }
}

fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
}

fn outside<'s>(
    memory: &'s SortMemory<'s>,
    edges: WordSorter<'s, 4>,
    stop: &AtomicBool,
    each: &mut dyn FnMut(Node, Node) -> Result<()>,
) -> Result<()> {
    let mut current = edges.finish();
    loop {
        check(stop)?;
        let (stars, only_stars) = large_star(memory, current)?;
        if only_stars {
            return tell(memory, stars.finish(), each);
        }
        check(stop)?;
        current = small_star(memory, stars.finish())?;
    }
}

/// Every node tells its higher neighbours of the lowest node it knows. Says also whether the graph was a set of
/// stars around their lowest nodes before, in which case the result is the same set.
fn large_star<'s>(
    memory: &'s SortMemory<'s>,
    edges: SortedWords<'s, 4>,
) -> Result<(WordSorter<'s, 4>, bool)> {
    let mut both = WordSorter::<4>::new(memory);
    let mut edges = Edges { sorted: edges, last: None };
    while let Some((a, b)) = edges.next()? {
        both.push(record(a, b))?;
        both.push(record(b, a))?;
    }
    drop(edges);
    let mut both = Edges { sorted: both.finish(), last: None };
    let mut result = WordSorter::<4>::new(memory);
    let mut only_stars = true;
    // The node, the lowest it knows, its lower and higher neighbours so far.
    let mut group: Option<(Node, Node, u64, u64)> = None;
    while let Some((node, neighbour)) = both.next()? {
        let (_, lowest, lower, higher) = match &mut group {
            Some(group) if group.0 == node => group,
            // Neighbours come in order, so the first is the lowest.
            _ => group.insert((node, neighbour.min(node), 0, 0)),
        };
        if neighbour > node {
            *higher += 1;
            result.push(record(neighbour, *lowest))?;
        } else {
            *lower += 1;
        }
        only_stars &= *lower == 0 || (*lower == 1 && *higher == 0);
    }
    Ok((result, only_stars))
}

/// Connects every node and its lower neighbours with the lowest of them.
fn small_star<'s>(memory: &'s SortMemory<'s>, edges: SortedWords<'s, 4>) -> Result<SortedWords<'s, 4>> {
    let mut edges = Edges { sorted: edges, last: None };
    let mut result = WordSorter::<4>::new(memory);
    let mut group: Option<(Node, Node)> = None;
    while let Some((node, neighbour)) = edges.next()? {
        match group {
            Some((same, lowest)) if same == node => result.push(record(neighbour, lowest))?,
            _ => {
                group = Some((node, neighbour));
                result.push(record(node, neighbour))?;
            }
        }
    }
    Ok(result.finish())
}

/// Gives out leaves and centres in one order.
fn tell<'s>(
    memory: &'s SortMemory<'s>,
    stars: SortedWords<'s, 4>,
    each: &mut dyn FnMut(Node, Node) -> Result<()>,
) -> Result<()> {
    let mut all = WordSorter::<4>::new(memory);
    let mut stars = Edges { sorted: stars, last: None };
    while let Some((leaf, centre)) = stars.next()? {
        all.push(record(leaf, centre))?;
        all.push(record(centre, centre))?;
    }
    drop(stars);
    let mut all = Edges { sorted: all.finish(), last: None };
    while let Some((node, lowest)) = all.next()? {
        each(node, lowest)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::splitmix::nth;
    use std::collections::BTreeMap;

    fn solve(edges: &[(u64, u64)], memory: usize) -> Vec<(Node, Node)> {
        let folder = tempfile::tempdir().unwrap();
        let dir = bessemer_durable::ConfinedDir::open(folder.path()).unwrap();
        let memory = SortMemory::new(memory, &dir, 2);
        let mut graph = Graph::new(&memory);
        for &(a, b) in edges {
            graph.link([a / 100, a % 100], [b / 100, b % 100]).unwrap();
        }
        let mut found = Vec::new();
        graph
            .components(&AtomicBool::new(false), &mut |node, lowest| {
                found.push((node, lowest));
                Ok(())
            })
            .unwrap();
        found
    }

    /// The plainest way: labels are lowered until nothing changes.
    fn plain(edges: &[(u64, u64)]) -> Vec<(Node, Node)> {
        let mut label: BTreeMap<u64, u64> = edges.iter().flat_map(|&(a, b)| [(a, a), (b, b)]).collect();
        loop {
            let before = label.clone();
            for (a, b) in edges {
                let low = label[a].min(label[b]);
                label.insert(*a, low);
                label.insert(*b, low);
            }
            if label == before {
                let node = |x: u64| [x / 100, x % 100];
                return label.into_iter().map(|(a, b)| (node(a), node(b))).collect();
            }
        }
    }

    #[test]
    fn in_and_outside_memory_agree_with_the_plain_way() {
        let path: Vec<(u64, u64)> = (0..300).map(|i| (i + 1, i)).collect();
        let star: Vec<(u64, u64)> = (1..300).map(|i| (i, 0)).collect();
        let shuffled: Vec<(u64, u64)> = (0..400).map(|i| (i * 7919 % 401, (i + 1) * 7919 % 401)).collect();
        let random = |nodes: u64, edges: u64| -> Vec<(u64, u64)> {
            (0..edges)
                .map(|i| (nth(1, 2 * i) % nodes, nth(1, 2 * i + 1) % nodes))
                .filter(|(a, b)| a != b)
                .collect()
        };
        for edges in
            [path, star, shuffled, random(500, 200), random(500, 500), random(5000, 3000), vec![(3, 1)]]
        {
            let expected = plain(&edges);
            assert_eq!(solve(&edges, 1 << 24), expected);
            assert_eq!(solve(&edges, 0), expected);
        }
        assert!(solve(&[], 0).is_empty());
    }
}
