//! Whose memory holds copies of whose state (Gemini: Wang et al. 2023, section 4).
//!
//! N failure domains, m copies of each domain's state, its own included. If m divides N, the domains form N/m groups and every member
//! holds the state of all members. Else there are floor(N/m) - 1 such groups, and the m + (N mod m) domains left are a ring:
//! the one at position j stores on positions j, j + 1, .., j + m - 1. The first placement is optimal; the recovery probability of the second is
//! within (2m - 3)/C(N, m) of the optimum.
//!
//! When k domains are lost at once, state is lost if a group is lost whole, or m neighbours of a ring. The number of sets of k domains
//! without such a loss is a coefficient of the product of the groups' polynomials, so that the probability is exact for every placement.

use std::ops::Range;

/// Groups of failure domains that hold each other's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    copies: usize,
    /// Domains of each group; a group of more than `copies` domains is a ring.
    groups: Vec<Range<usize>>,
}

impl Placement {
    /// Placement of `copies` copies, the own one included, over `domains` failure domains: as many as there are domains, at most.
    pub fn new(domains: usize, copies: usize) -> Placement {
        let copies = copies.clamp(1, domains.max(1));
        let full = if domains.is_multiple_of(copies) { domains / copies } else { domains / copies - 1 };
        let mut groups: Vec<_> = (0..full).map(|g| g * copies..(g + 1) * copies).collect();
        if full * copies < domains {
            groups.push(full * copies..domains);
        }
        Placement { copies, groups }
    }

    /// One ring over all domains, to compare with.
    pub fn ring(domains: usize, copies: usize) -> Placement {
        Placement { copies: copies.clamp(1, domains.max(1)), groups: std::iter::once(0..domains).collect() }
    }

    /// Copies of each domain's state, its own included.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// Domains whose memory holds the state of `domain`: itself first, then the peers in the order in which they are sent to.
    pub fn holders(&self, domain: usize) -> Vec<usize> {
        let Some(group) = self.groups.iter().find(|group| group.contains(&domain)) else {
            return Vec::new();
        };
        (0..self.copies).map(|i| group.start + (domain - group.start + i) % group.len()).collect()
    }

    /// Whether every domain's state is in the memory of a domain that is not lost.
    pub fn survives(&self, lost: &[usize]) -> bool {
        let survives = |domain| self.holders(domain).iter().any(|holder| !lost.contains(holder));
        self.groups.iter().cloned().flatten().all(survives)
    }

    /// Probability that all state can be recovered from memory when `lost` domains, each set of them equally likely, are lost at once.
    pub fn recovery_probability(&self, lost: usize) -> f64 {
        // Probability by the number of domains lost among those of the groups so far: hypergeometric mixtures, so that no
        // binomial coefficient overflows.
        let all: usize = self.groups.iter().map(Range::len).sum();
        let ln = LnChoose::new(all);
        let (mut domains, mut so_far) = (0, vec![1.0]);
        for group in &self.groups {
            let own = recoverable_fractions(group.len(), self.copies);
            let both = domains + group.len();
            so_far = (0..=both.min(lost))
                .map(|k| {
                    let from = k.saturating_sub(group.len())..=k.min(domains);
                    from.map(|i| {
                        let ways = ln.of(domains, i) + ln.of(group.len(), k - i) - ln.of(both, k);
                        ways.exp() * so_far[i] * own[k - i]
                    })
                    .sum()
                })
                .collect();
            domains = both;
        }
        so_far.get(lost).copied().unwrap_or(0.0)
    }
}

/// Lower bound of the recovery probability of groups of `copies` among `domains` when `lost` are lost: 1 below `copies`, else
/// `1 - N C(N-m, k-m) / (m C(N, k))`. It counts sets in which several groups are lost more than once, so it is exact below 2m.
pub fn recovery_bound(domains: usize, copies: usize, lost: usize) -> f64 {
    if lost < copies {
        return 1.0;
    }
    let ln = LnChoose::new(domains);
    let whole = ln.of(domains - copies, lost - copies) - ln.of(domains, lost);
    (1.0 - domains as f64 / copies as f64 * whole.exp()).max(0.0)
}

/// Fraction, by their size, of the sets of lost members of a group of `size` after which all its state can be recovered. A ring loses the state of
/// a member with `copies` neighbours; a group of `copies` is the ring in which that takes all of them.
fn recoverable_fractions(size: usize, copies: usize) -> Vec<f64> {
    if size == copies {
        return (0..=size).map(|k| if k < size { 1.0 } else { 0.0 }).collect();
    }
    // Sets without `copies` neighbours on a circle: `first` lost ones before the first that is kept, then a line that ends in a run
    // of lost ones short enough to join them. Counts stay below 2^size.
    let mut counts = vec![0.0f64; size + 1];
    for first in 0..copies.min(size) {
        // By the run of lost ones at the end and by the number lost; the member behind `first` is kept.
        let mut line = vec![vec![0.0f64; size + 1]; copies];
        line[0][first] = 1.0;
        for _ in first + 1..size {
            let mut next = vec![vec![0.0f64; size + 1]; copies];
            for (run, by_lost) in line.iter().enumerate() {
                for (lost, count) in by_lost.iter().enumerate().filter(|(_, count)| **count > 0.0) {
                    next[0][lost] += count;
                    if run + 1 < copies {
                        next[run + 1][lost + 1] += count;
                    }
                }
            }
            line = next;
        }
        for by_lost in &line[..copies - first] {
            counts.iter_mut().zip(by_lost).for_each(|(sum, count)| *sum += count);
        }
    }
    let ln = LnChoose::new(size);
    counts.iter().enumerate().map(|(k, count)| count / ln.of(size, k).exp()).collect()
}

/// Logarithms of binomial coefficients.
struct LnChoose(Vec<f64>);

impl LnChoose {
    /// For sets of up to `most`.
    fn new(most: usize) -> LnChoose {
        let next = |sum: &mut f64, n: usize| {
            *sum += (n.max(1) as f64).ln();
            Some(*sum)
        };
        LnChoose((0..=most).scan(0.0, next).collect())
    }

    fn of(&self, n: usize, k: usize) -> f64 {
        self.0[n] - self.0[k] - self.0[n - k]
    }
}

/// Whose memory holds the state of which rank: the domains of a [`Placement`] with their ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankPlacement {
    domains: Vec<Vec<usize>>,
    domain_of: Vec<usize>,
    placement: Placement,
}

impl RankPlacement {
    /// `domain_of`: the failure domain of each rank, any numbers; domains stand in the order of their first rank. The i-th
    /// rank of a domain stores with the i-th rank of its peers, modulo their number.
    pub fn new(domain_of: &[u64], copies: usize) -> RankPlacement {
        let mut names: Vec<u64> = Vec::new();
        let mut domains: Vec<Vec<usize>> = Vec::new();
        let mut numbers = Vec::with_capacity(domain_of.len());
        for (rank, name) in domain_of.iter().enumerate() {
            let number = names.iter().position(|known| known == name).unwrap_or_else(|| {
                names.push(*name);
                domains.push(Vec::new());
                names.len() - 1
            });
            domains[number].push(rank);
            numbers.push(number);
        }
        let placement = Placement::new(domains.len(), copies);
        RankPlacement { domains, domain_of: numbers, placement }
    }

    /// Placement of the domains.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Number of failure domains.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// Ranks that hold copies of the state of `rank`, without itself.
    pub fn peers(&self, rank: usize) -> Vec<usize> {
        let own = self.domain_of[rank];
        let position = self.domains[own].iter().position(|r| *r == rank).unwrap_or(0);
        let of = |domain: usize| self.domains[domain][position % self.domains[domain].len()];
        self.placement.holders(own).into_iter().skip(1).map(of).collect()
    }

    /// Ranks of whose state `rank` holds copies, ascending, without itself.
    pub fn sources(&self, rank: usize) -> Vec<usize> {
        (0..self.domain_of.len()).filter(|other| self.peers(*other).contains(&rank)).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;

    /// All sets of `k` of `n`.
    fn sets(n: usize, k: usize) -> Vec<Vec<usize>> {
        let bits = |mask: &u32| (0..n).filter(|i| mask >> i & 1 == 1).collect::<Vec<_>>();
        (0u32..1 << n).filter(|mask| mask.count_ones() as usize == k).map(|mask| bits(&mask)).collect()
    }

    fn enumerated(placement: &Placement, n: usize, k: usize) -> f64 {
        let sets = sets(n, k);
        sets.iter().filter(|lost| placement.survives(lost)).count() as f64 / sets.len() as f64
    }

    #[test]
    fn published_probabilities() {
        let table = [
            (16, 2, 2, 0.9333, 0.9333, 0.8667),
            (16, 2, 3, 0.8000, 0.8000, 0.6286),
            (8, 2, 2, 0.8571, 0.8571, 0.7143),
            (4, 2, 2, 0.6667, 0.6667, 0.3333),
        ];
        for (n, m, k, group, bound, ring) in table {
            let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 5e-5, "{found}, {wanted}");
            near(Placement::new(n, m).recovery_probability(k), group);
            near(recovery_bound(n, m, k), bound);
            near(Placement::ring(n, m).recovery_probability(k), ring);
        }
    }

    #[test]
    fn mixed_placements() {
        let five = Placement::new(5, 2);
        assert_eq!((0..5).map(|d| five.holders(d)[1]).collect::<Vec<_>>(), [1, 0, 3, 4, 2]);
        assert!((five.recovery_probability(2) - 0.6).abs() < 1e-12);
        assert!((Placement::new(7, 2).recovery_probability(2) - 16.0 / 21.0).abs() < 1e-12);
    }

    /// Every placement of up to 9 domains, every number of copies and of lost domains; the inclusion-exclusion formula where groups are full;
    /// the bound, and the distance from the optimum that the paper proves.
    #[test]
    fn exact_probabilities_are_those_of_all_sets() {
        let ln = LnChoose::new(9);
        let choose = |n: usize, k: usize| if k > n { 0.0 } else { ln.of(n, k).exp() };
        for n in 1..=9 {
            for m in 1..=n {
                for k in 0..=n {
                    for placement in [Placement::new(n, m), Placement::ring(n, m)] {
                        let exact = placement.recovery_probability(k);
                        assert!((exact - enumerated(&placement, n, k)).abs() < 1e-9, "{placement:?} {k}");
                    }
                    let exact = Placement::new(n, m).recovery_probability(k);
                    if n.is_multiple_of(m) {
                        let term = |j: usize| choose(n / m, j) * choose(n - j * m, k - j * m);
                        let sum: f64 =
                            (0..=(k / m).min(n / m)).map(|j| (-1f64).powi(j as i32) * term(j)).sum();
                        assert!((exact - sum / choose(n, k)).abs() < 1e-9, "{n} {m} {k}");
                        let bound = recovery_bound(n, m, k);
                        assert!(exact > bound - 1e-9 && (k >= 2 * m || exact < bound + 1e-9));
                    } else if k == m {
                        let optimum = 1.0 - (n as f64 / m as f64).ceil() / choose(n, m);
                        assert!(optimum - exact <= (2.0 * m as f64 - 3.0) / choose(n, m) + 1e-9, "{n} {m}");
                    }
                }
            }
        }
    }

    #[test]
    fn thousands_of_domains_do_not_overflow() {
        let two = Placement::new(2048, 2).recovery_probability(2);
        assert!((two - (1.0 - 1.0 / 2047.0)).abs() < 1e-9, "{two}");
        assert!((0.0..1e-6).contains(&Placement::new(2048, 2).recovery_probability(1024)));
    }

    /// Random sets of lost domains, 3 sigma, for the placement of ranks: 3 ranks a domain, in an order that mixes the domains.
    #[test]
    fn random_losses_of_domains_have_the_exact_probability() {
        for (n, m, k) in [(16, 2, 3), (13, 3, 4), (7, 2, 2)] {
            let domain_of: Vec<u64> = (0..3 * n as u64).map(|rank| (rank * 5 + 3) % n as u64).collect();
            let ranks = RankPlacement::new(&domain_of, m);
            assert_eq!(ranks.domains(), n);
            let exact = ranks.placement().recovery_probability(k);
            let (mut state, trials, mut recovered) = (2026u64, 20_000, 0);
            for _ in 0..trials {
                let mut lost: Vec<u64> = Vec::new();
                while lost.len() < k {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let next = (state >> 33) % n as u64;
                    if !lost.contains(&next) {
                        lost.push(next);
                    }
                }
                let is_lost = |rank: usize| lost.contains(&domain_of[rank]);
                let safe =
                    |rank: usize| !is_lost(rank) || ranks.peers(rank).iter().any(|peer| !is_lost(*peer));
                recovered += u32::from((0..domain_of.len()).all(safe));
            }
            let found = f64::from(recovered) / f64::from(trials);
            let sigma = (exact * (1.0 - exact) / f64::from(trials)).sqrt();
            assert!((found - exact).abs() < 3.0 * sigma, "{n} {m} {k}: {found} for {exact}");
        }
    }

    #[test]
    fn peers_are_in_other_domains_and_sources_are_their_inverse() {
        // Domains of 2, 1 and 3 ranks.
        let ranks = RankPlacement::new(&[7, 7, 9, 1, 1, 1], 2);
        assert_eq!(ranks.domains(), 3);
        assert_eq!((0..6).map(|r| ranks.peers(r)).collect::<Vec<_>>(), [[2], [2], [3], [0], [1], [0]]);
        assert_eq!(ranks.sources(0), [3, 5]);
        assert_eq!(ranks.sources(5), Vec::<usize>::new());
        // One domain has nobody to store with.
        assert!(RankPlacement::new(&[1, 1], 2).peers(0).is_empty());
    }
}
