//! Findings about numbers that a broken machine has computed, and their consequences. This module does not access a device or another rank.

use bessemer_collectives::disagreement;
use bessemer_runlog::{Fault, FaultVerdict};
use std::collections::{BTreeMap, BTreeSet};

/// Faults of one host after which the run leaves it: the third is one too many.
const PATIENCE: usize = 2;

/// Hash of this rank's part of one set of values, and the number of the set. All ranks that hold a set give it the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldHash {
    pub(crate) set: u64,
    pub(crate) hash: u64,
}

/// Which ranks hold something else than the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Sets that differ.
    pub(crate) sets: BTreeSet<u64>,
    /// Ranks that may be wrong.
    pub(crate) suspects: BTreeSet<usize>,
    /// A majority has named them.
    pub(crate) majority: bool,
}

/// Compares the hashes of all ranks; `None` if the holders of each set agree. Where a majority names ranks, only those are suspects.
pub(crate) fn mismatch(all: &[Vec<HeldHash>]) -> Option<Mismatch> {
    let mut holders: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
    for (rank, list) in all.iter().enumerate() {
        for held in list {
            holders.entry(held.set).or_default().push((rank, held.hash));
        }
    }
    let (mut named, mut unnamed) = (Mismatch { majority: true, ..Mismatch::default() }, Mismatch::default());
    for (set, holders) in holders {
        let Some(found) = disagreement(&holders) else { continue };
        let of = if found.majority { &mut named } else { &mut unnamed };
        of.sets.insert(set);
        of.suspects.extend(found.suspects);
    }
    match (named.sets.is_empty(), unnamed.sets.is_empty()) {
        (true, true) => None,
        (true, false) => Some(unnamed),
        (false, _) => {
            named.sets.append(&mut unnamed.sets);
            Some(named)
        }
    }
}

/// Reaction of a run to a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// The run continues.
    GoOn,
    /// The run continues without these hosts, on other ones.
    OtherHost(BTreeSet<String>),
    /// The run is started again with its ranks on other hosts, which shows the suspect that is wrong.
    Disambiguate,
}

/// Decides on the newest of a run's faults, `newest`; `earlier` are those before. `named`: one of its hosts is wrong for sure.
///
/// A host that is named for the third time is left. Of faults without a name the second one moves the ranks to other hosts; a host that is
/// a suspect of all of them is then the one.
pub(crate) fn consequence(earlier: &[Fault], newest: &Fault, named: bool) -> Consequence {
    let counts = |fault: &&Fault| fault.verdict != FaultVerdict::Reproduced && !fault.hosts.is_empty();
    let hosts = |fault: &Fault| fault.hosts.iter().cloned().collect::<BTreeSet<String>>();
    let past: Vec<&Fault> = earlier.iter().filter(counts).collect();
    let own = hosts(newest);
    if own.is_empty() {
        return Consequence::GoOn;
    }
    if named || own.len() == 1 {
        let times = |host: &String| past.iter().filter(|fault| hosts(fault).contains(host)).count();
        let bad: BTreeSet<String> = own.into_iter().filter(|host| times(host) >= PATIENCE).collect();
        return if bad.is_empty() { Consequence::GoOn } else { Consequence::OtherHost(bad) };
    }
    let unnamed: Vec<_> = past.iter().map(|fault| hosts(fault)).filter(|hosts| hosts.len() > 1).collect();
    if unnamed.is_empty() {
        return Consequence::GoOn;
    }
    let common = unnamed.iter().fold(own, |common, hosts| &common & hosts);
    match common.len() {
        1 => Consequence::OtherHost(common),
        _ => Consequence::Disambiguate,
    }
}

/// Results of one computation of a step's passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepEvidence {
    /// Bits of each rank's part of the loss.
    pub(crate) losses: Vec<Vec<u64>>,
    /// Bits of the gradient norm on each rank.
    pub(crate) norms: Vec<u64>,
    /// Hash of the gradients that each rank contributes.
    pub(crate) gradients: Vec<u64>,
}

impl StepEvidence {
    /// Ranks whose own part of the loss differs from that of another computation, or else their gradient norm, if it does not differ on all
    /// ranks: gradients are sums over all ranks and identify no rank.
    pub(crate) fn differing(&self, other: &StepEvidence) -> Vec<usize> {
        let pairs = self.losses.iter().zip(&other.losses).enumerate();
        let losses: Vec<usize> = pairs.filter(|(_, (a, b))| a != b).map(|(rank, _)| rank).collect();
        let pairs = self.norms.iter().zip(&other.norms).enumerate();
        let norms: Vec<usize> = pairs.filter(|(_, (a, b))| a != b).map(|(rank, _)| rank).collect();
        match losses.is_empty() && norms.len() < self.norms.len() {
            true => norms,
            false => losses,
        }
    }
}

/// Result of computing a step again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// The next computation is needed.
    Undecided,
    /// The newest computation has confirmed the first: the model made the numbers.
    Reproduced,
    /// The newest computation has confirmed another one: that of number `wrong` was wrong.
    Outvoted {
        /// Number of the computation that differs from the two others.
        wrong: usize,
    },
    /// Three computations have given three results.
    Unstable,
}

/// Judges the computations of one step so far, in their order.
pub(crate) fn judge(computations: &[StepEvidence]) -> Repeated {
    match computations {
        [a, b] if a == b => Repeated::Reproduced,
        [a, b, c] if a == c && a != b => Repeated::Outvoted { wrong: 1 },
        [_, b, c] if b == c => Repeated::Outvoted { wrong: 0 },
        [_, _, _, ..] => Repeated::Unstable,
        _ => Repeated::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(list: &[(u64, u64)]) -> Vec<HeldHash> {
        list.iter().map(|(set, hash)| HeldHash { set: *set, hash: *hash }).collect()
    }

    #[test]
    fn ranks_that_differ_are_named_by_a_majority_of_any_set() {
        let same = held(&[(1, 5), (2, 7)]);
        assert_eq!(mismatch(&[same.clone(), same.clone()]), None);
        assert_eq!(mismatch(&[]), None);
        let found = mismatch(&[same.clone(), held(&[(1, 5), (2, 8)])]).unwrap();
        assert_eq!((found.suspects, found.majority), (BTreeSet::from([0, 1]), false));
        // Set 1 is held by three ranks, set 2 by two of them.
        let ranks = [held(&[(1, 5), (2, 7)]), held(&[(1, 6), (2, 8)]), held(&[(1, 5)])];
        let found = mismatch(&ranks).unwrap();
        assert_eq!((found.suspects, found.majority), (BTreeSet::from([1]), true));
        assert_eq!(found.sets, BTreeSet::from([1, 2]));
    }

    fn fault(hosts: &[&str]) -> Fault {
        Fault {
            verdict: FaultVerdict::Transient,
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            ..Fault::default()
        }
    }

    #[test]
    fn a_host_that_is_named_three_times_is_left() {
        let other = |hosts: &[&str]| Consequence::OtherHost(hosts.iter().map(|h| (*h).to_owned()).collect());
        let (a, b) = (fault(&["a"]), fault(&["b"]));
        assert_eq!(consequence(&[], &a, true), Consequence::GoOn);
        assert_eq!(consequence(&[a.clone(), b.clone()], &a, true), Consequence::GoOn);
        assert_eq!(consequence(&[a.clone(), b.clone(), a.clone()], &a, true), other(&["a"]));
        // Numbers that the model made are no fault of a host.
        let model = Fault { verdict: FaultVerdict::Reproduced, ..a.clone() };
        assert_eq!(consequence(&[model.clone(), model], &a, true), Consequence::GoOn);
        assert_eq!(consequence(&[a.clone(), a.clone()], &fault(&[]), true), Consequence::GoOn);
        // All ranks on one host: who else?
        assert_eq!(consequence(&[a.clone(), a.clone()], &a, false), other(&["a"]));
    }

    #[test]
    fn ranks_that_change_their_hosts_tell_two_suspects_apart() {
        let both = fault(&["a", "b"]);
        assert_eq!(consequence(&[], &both, false), Consequence::GoOn);
        assert_eq!(consequence(std::slice::from_ref(&both), &both, false), Consequence::Disambiguate);
        let found = consequence(&[both.clone(), both], &fault(&["b", "c"]), false);
        assert_eq!(found, Consequence::OtherHost(BTreeSet::from(["b".to_owned()])));
    }

    #[test]
    fn two_of_three_computations_decide() {
        let made = |loss: u64, norms: [u64; 2], gradient: u64| StepEvidence {
            losses: vec![vec![1], vec![loss]],
            norms: norms.to_vec(),
            gradients: vec![gradient],
        };
        let (good, bad, other) = (made(2, [5, 5], 3), made(9, [6, 6], 9), made(2, [7, 7], 4));
        let of = |list: &[&StepEvidence]| judge(&list.iter().map(|e| (*e).clone()).collect::<Vec<_>>());
        assert_eq!(of(&[&bad]), Repeated::Undecided);
        assert_eq!(of(&[&bad, &bad]), Repeated::Reproduced);
        assert_eq!(of(&[&bad, &good]), Repeated::Undecided);
        assert_eq!(of(&[&bad, &good, &good]), Repeated::Outvoted { wrong: 0 });
        assert_eq!(of(&[&good, &bad, &good]), Repeated::Outvoted { wrong: 1 });
        assert_eq!(of(&[&bad, &good, &other]), Repeated::Unstable);
        assert_eq!(bad.differing(&good), [1]);
        assert!(other.differing(&good).is_empty());
        assert_eq!(made(2, [8, 5], 3).differing(&good), [0]);
    }
}
