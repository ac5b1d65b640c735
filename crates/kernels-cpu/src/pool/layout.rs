//! Which threads work together, and on which cores: those of a memory node one after the other.

use super::FAN_IN;
use std::ops::Range;

/// Workers in groups, and the core of each if they are bound.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Workers of each group, in order, no group empty.
    pub(super) groups: Vec<Range<usize>>,
    /// Core of each worker; empty if the system chooses.
    pub(super) cores: Vec<usize>,
}

impl Layout {
    /// Threads that the system moves between cores.
    pub(super) fn free(threads: usize) -> Layout {
        Layout { groups: even_groups(0..threads.max(1)).collect(), cores: Vec::new() }
    }

    /// Threads bound to the cores that the process may use, counted around.
    pub(super) fn bound(threads: usize) -> Layout {
        Layout::on(threads, &allowed_by_node(&allowed(), &nodes()))
    }

    /// `threads` threads bound to the cores of `nodes` in order, counted around. No group is on two nodes.
    fn on(threads: usize, nodes: &[Vec<usize>]) -> Layout {
        let threads = threads.max(1);
        let all: Vec<usize> = nodes.concat();
        if all.is_empty() {
            return Layout::free(threads);
        }
        let mut groups = Vec::new();
        let mut first = 0;
        for node in nodes.iter().cycle() {
            let end = (first + node.len()).min(threads);
            groups.extend(even_groups(first..end));
            first = end;
            if first == threads {
                break;
            }
        }
        Layout { groups, cores: all.into_iter().cycle().take(threads).collect() }
    }
}

/// Workers in as few groups of at most [`FAN_IN`] as possible, each about as large.
fn even_groups(workers: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (start, len) = (workers.start, workers.len());
    let groups = len.div_ceil(FAN_IN);
    (0..groups).map(move |g| start + len * g / groups..start + len * (g + 1) / groups)
}

/// The allowed cores of each node that has one; those that no node has come last.
fn allowed_by_node(allowed: &[usize], nodes: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut left = allowed.to_vec();
    let mut all: Vec<Vec<usize>> = Vec::new();
    for node in nodes {
        let (here, others) = left.into_iter().partition(|core| node.contains(core));
        all.push(here);
        left = others;
    }
    all.push(left);
    all.retain(|node| !node.is_empty());
    all
}

/// Cores that this thread may run on.
fn allowed() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    sched_getaffinity(None)
        .map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Cores of each memory node, as the system reports them; none if it does not.
fn nodes() -> Vec<Vec<usize>> {
    let entries = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let node = |entry: std::fs::DirEntry| {
        let number: usize = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cores = cpu_list(&std::fs::read_to_string(entry.path().join("cpulist")).ok()?)?;
        Some((number, cores))
    };
    let mut nodes: Vec<_> = entries.filter_map(node).collect();
    nodes.sort();
    nodes.into_iter().map(|(_, cores)| cores).collect()
}

/// Members of a list of processors or nodes as Linux writes it, such as "0-3,8"; `None` if it is none.
pub fn cpu_list(text: &str) -> Option<Vec<usize>> {
    /// No machine has as many: a longer list is a mistake.
    const MOST: usize = 1 << 16;
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last < first || last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Binds the calling thread to a core. Failure only costs speed.
pub(super) fn bind_to(core: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &one);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(cpu_list("\t0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!((cpu_list("0"), cpu_list("\n")), (Some(vec![0]), Some(Vec::new())));
        for wrong in ["3-1", "x", "1-", "0-99999999999", "0-65536"] {
            assert_eq!(cpu_list(wrong), None, "{wrong}");
        }
    }

    /// Two nodes with alternating core numbers, as some firmware assigns them, and a process that may not use all.
    #[test]
    fn threads_fill_one_node_after_the_other_and_groups_stay_on_one() {
        let nodes = allowed_by_node(&[0, 1, 2, 3, 5, 7], &[vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
        assert_eq!(nodes, [vec![0, 2], vec![1, 3, 5, 7]]);
        let three = Layout::on(3, &nodes);
        assert_eq!((three.groups, three.cores), (vec![0..2, 2..3], vec![0, 2, 1]));
        // More threads than cores begin again.
        let eight = Layout::on(8, &nodes);
        assert_eq!((eight.groups, eight.cores), (vec![0..2, 2..6, 6..8], vec![0, 2, 1, 3, 5, 7, 0, 2]));
        // A core that no node claims is used all the same; without any the system chooses.
        assert_eq!(allowed_by_node(&[4, 9], &[vec![4], vec![]]), [vec![4], vec![9]]);
        assert_eq!(Layout::on(2, &[]), Layout::free(2));
    }

    #[test]
    fn groups_are_even_and_have_at_most_eight() {
        let sizes = |threads| Layout::free(threads).groups.iter().map(|g| g.len()).collect::<Vec<_>>();
        assert_eq!((sizes(0), sizes(1), sizes(8)), (vec![1], vec![1], vec![8]));
        assert_eq!((sizes(9), sizes(20)), (vec![4, 5], vec![6, 7, 7]));
        let node: Vec<usize> = (0..10).collect();
        let two = Layout::on(20, &[node.clone(), node]);
        assert_eq!(two.groups, [0..5, 5..10, 10..15, 15..20]);
    }

    #[test]
    fn this_machine_has_a_core_for_each_thread() {
        let bound = Layout::bound(3);
        assert!(bound.cores.is_empty() || bound.cores.len() == 3, "{bound:?}");
        assert_eq!(bound.groups.last().map(|g| g.end), Some(3));
    }
}
