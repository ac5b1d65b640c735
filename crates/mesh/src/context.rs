//! How ranks of the context axis share a sequence: which positions each has, and what they exchange for attention, the one operator
//! that relates positions.

use crate::dim::{DimRange, even};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which positions of a sequence each of several ranks has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PositionOrder {
    /// Rank i of n the i-th of n consecutive stretches.
    #[default]
    Consecutive,
    /// Rank i of n stretches i and 2n - 1 - i of 2n: causal attention is then equally much work for all of them
    /// (Grattafiori et al. 2024, Llama 3, section 3.3.2).
    ZigZag,
    /// Rank i of n every n-th position from i on (Brandon et al. 2023, Striped Attention).
    Striped,
}

impl PositionOrder {
    /// The order in which `ranks` ranks share `len` positions: zig-zag where this makes equal stretches.
    pub fn balanced(len: usize, ranks: usize) -> PositionOrder {
        match len.is_multiple_of(2 * ranks) {
            true => PositionOrder::ZigZag,
            false => PositionOrder::Consecutive,
        }
    }

    /// The stretches of `len` positions that rank `rank` of `ranks` has.
    pub fn stretches(self, len: usize, ranks: usize, rank: usize) -> impl Iterator<Item = DimRange> {
        let halves = self == PositionOrder::ZigZag;
        let count = match self {
            PositionOrder::Consecutive => 1,
            PositionOrder::ZigZag => 2,
            PositionOrder::Striped => even(len, ranks, rank).len,
        };
        (0..count).map(move |i| match (self, i) {
            (PositionOrder::Striped, i) => DimRange { start: rank + i * ranks, len: 1 },
            _ if !halves => even(len, ranks, rank),
            (_, 0) => even(len, 2 * ranks, rank),
            _ => even(len, 2 * ranks, 2 * ranks - 1 - rank),
        })
    }

    /// Whether any query of rank `query` sees a key of rank `key`, of `ranks` that share `len` positions: it sees those up to its own
    /// position, and of these the last `window` if there is one.
    pub fn sees(self, len: usize, ranks: usize, window: Option<usize>, query: usize, key: usize) -> bool {
        let window = window.unwrap_or(usize::MAX);
        if self == PositionOrder::Striped {
            // The nearest key before a query is of the same round, or of the round before.
            let first = if query >= key { query } else { query + ranks };
            return first < len && first - key < window;
        }
        self.stretches(len, ranks, query).any(|q| {
            self.stretches(len, ranks, key).any(|k| {
                let nearest = (q.start + 1).saturating_sub(k.end());
                q.len > 0 && k.len > 0 && q.end() > k.start && nearest < window
            })
        })
    }
}

/// What the ranks that share a sequence exchange around attention.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContextMethod {
    /// Keys and values of all positions are gathered, for this rank's queries (Grattafiori et al. 2024, Llama 3, section 3.3.2).
    #[default]
    AllGather,
    /// Queries, keys and values of this rank's positions are exchanged for those of all positions of some heads, and results
    /// are exchanged back: all-to-alls (Jacobs et al. 2023, DeepSpeed-Ulysses).
    Ulysses,
    /// Keys and values go round the ranks, from neighbour to neighbour, and each computes its queries' attention to those that it has
    /// (Li et al. 2021, RSA; Liu et al. 2023, Ring Attention).
    Ring,
    /// Early positions see few keys: ranks that have them compute blocks of ranks with late ones (Li et al. 2023, LightSeq, or
    /// DistFlashAttn, algorithm 2).
    #[serde(rename = "lightseq")]
    LightSeq,
}

/// Order of positions that a recipe asks for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContextOrder {
    /// The order that gives all ranks equally much work by the method.
    #[default]
    Auto,
    /// Rank i of n has the i-th of n consecutive stretches.
    Consecutive,
    /// The sequence is cut into 2n pieces; rank i of n owns pieces i and 2n - 1 - i, which balances causal attention.
    ZigZag,
    /// Rank i of n has every n-th position from i on.
    Striped,
}

impl ContextOrder {
    /// Name in recipes and messages.
    pub fn name(self) -> &'static str {
        match self {
            ContextOrder::Auto => "auto",
            ContextOrder::Consecutive => "consecutive",
            ContextOrder::ZigZag => "zig-zag",
            ContextOrder::Striped => "striped",
        }
    }
}

impl ContextMethod {
    /// Name in recipes and messages.
    pub fn name(self) -> &'static str {
        match self {
            ContextMethod::AllGather => "all-gather",
            ContextMethod::Ulysses => "ulysses",
            ContextMethod::Ring => "ring",
            ContextMethod::LightSeq => "lightseq",
        }
    }

    /// Whether ranks compute blocks of queries and keys, of one rank each.
    pub fn by_blocks(self) -> bool {
        matches!(self, ContextMethod::Ring | ContextMethod::LightSeq)
    }

    /// Whether a micro-batch is one sequence: consecutive rows of several are no stretch of each.
    pub fn one_sequence(self) -> bool {
        self != ContextMethod::Ulysses
    }
}

/// A method with an order of positions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContextSharing {
    /// Exchange around attention.
    pub method: ContextMethod,
    /// Positions of each rank.
    pub order: ContextOrder,
}

impl ContextSharing {
    /// A method with its own order.
    pub const fn of(method: ContextMethod) -> ContextSharing {
        ContextSharing { method, order: ContextOrder::Auto }
    }

    /// Why `ranks` ranks cannot share the attention of a layer of so many heads so, and what to change.
    pub fn problem(self, ranks: usize, heads: usize, kv_heads: usize) -> Option<String> {
        let (method, order) = (self.method.name(), self.order.name());
        let any_order = matches!(self.method, ContextMethod::AllGather | ContextMethod::Ring);
        if !any_order && !matches!(self.order, ContextOrder::Auto | ContextOrder::Consecutive) {
            return Some(format!(
                "parallel.context_order = \"{order}\" with parallel.context_method = \"{method}\", by which every rank computes equally \
                 much of consecutive positions: wanted \"auto\" or \"consecutive\", or parallel.context_method = \"ring\" or \"all-gather\""
            ));
        }
        let wanted =
            heads_wanted(ranks, heads, kv_heads).filter(|_| self.method == ContextMethod::Ulysses)?;
        Some(format!(
            "parallel.context = {ranks} with parallel.context_method = \"{method}\", which gives each rank some heads: wanted {wanted}; \
             take another parallel.context, or parallel.context_method = \"lightseq\", \"ring\" or \"all-gather\"",
        ))
    }

    /// Why `ranks` ranks cannot share a sequence of `len` positions in this order, and what to change.
    pub fn length_problem(self, len: usize, ranks: usize) -> Option<String> {
        (self.order == ContextOrder::ZigZag && !len.is_multiple_of(2 * ranks)).then(|| {
            format!(
                "parallel.context_order = \"zig-zag\" gives each of {ranks} ranks two of {} equally long stretches of a sequence, and \
                 train.seq_len = {len}: wanted a multiple of {}, or parallel.context_order = \"auto\", \"consecutive\" or \"striped\"",
                2 * ranks,
                2 * ranks
            )
        })
    }

    /// The order in which `ranks` ranks share `len` positions.
    pub fn positions(self, len: usize, ranks: usize) -> PositionOrder {
        match (self.order, self.method) {
            (ContextOrder::ZigZag, _) => PositionOrder::ZigZag,
            (ContextOrder::Striped, _) => PositionOrder::Striped,
            (ContextOrder::Consecutive, _) => PositionOrder::Consecutive,
            (ContextOrder::Auto, ContextMethod::AllGather | ContextMethod::Ring) => {
                PositionOrder::balanced(len, ranks)
            }
            (ContextOrder::Auto, ContextMethod::Ulysses | ContextMethod::LightSeq) => {
                PositionOrder::Consecutive
            }
        }
    }

    /// Whether each of `ranks` ranks that share `len` positions computes and sends as much as any other between two exchanges, if
    /// attention is causal and has no window: it has whole heads, or sees as many positions of every other rank.
    pub fn even(self, len: usize, ranks: usize) -> bool {
        match self.method {
            ContextMethod::Ulysses => true,
            ContextMethod::AllGather | ContextMethod::Ring => {
                self.positions(len, ranks) == PositionOrder::ZigZag
            }
            ContextMethod::LightSeq => false,
        }
    }
}

/// What ranks that exchange heads want instead of so many, if they cannot share these.
fn heads_wanted(ranks: usize, heads: usize, kv_heads: usize) -> Option<String> {
    if !heads.is_multiple_of(ranks) {
        return Some(format!("a number of query heads that it divides, found {heads}"));
    }
    let copies = kv_heads.is_multiple_of(ranks) || ranks.is_multiple_of(kv_heads);
    (!copies).then(|| {
        format!("key/value heads that it divides, or that divide it (they are copied then), found {kv_heads}")
    })
}

/// Why `ranks` ranks of [`crate::Axis::ContextHeads`] cannot share the attention of a layer of so many heads, and what to change.
pub fn exchange_problem(ranks: usize, heads: usize, kv_heads: usize) -> Option<String> {
    heads_wanted(ranks, heads, kv_heads).map(|wanted| {
        format!(
            "parallel.context_heads = {ranks} gives each rank of a group some heads: wanted {wanted}; take another \
             parallel.context_heads, or 1"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zig_zag_ranks_see_equally_many_positions() {
        let seen = |order: PositionOrder, rank| -> usize {
            order.stretches(24, 4, rank).flat_map(DimRange::range).map(|position| position + 1).sum()
        };
        let of = |order| (0..4).map(|rank| seen(order, rank)).collect::<Vec<_>>();
        assert_eq!(of(PositionOrder::ZigZag), [75; 4]);
        assert_eq!(of(PositionOrder::Consecutive), [21, 57, 93, 129]);
        assert_eq!(of(PositionOrder::Striped), [66, 72, 78, 84]);
        let all: Vec<_> = (0..4).flat_map(|r| PositionOrder::ZigZag.stretches(24, 4, r)).collect();
        let pairs: Vec<_> = all.iter().map(|s| (s.start, s.len)).collect();
        assert_eq!(pairs[..4], [(0, 3), (21, 3), (3, 3), (18, 3)]);
        assert_eq!(PositionOrder::balanced(24, 8), PositionOrder::Consecutive);
    }

    #[test]
    fn ranks_see_each_other_where_a_pair_of_positions_does() {
        for order in [PositionOrder::Consecutive, PositionOrder::ZigZag, PositionOrder::Striped] {
            for (len, ranks) in [(4, 4), (8, 4), (16, 4), (24, 3), (12, 2)] {
                if order == PositionOrder::ZigZag && len % (2 * ranks) > 0 {
                    continue;
                }
                for window in [None, Some(1), Some(2), Some(3), Some(5), Some(9)] {
                    for (query, key) in (0..ranks).flat_map(|q| (0..ranks).map(move |k| (q, k))) {
                        let positions = |rank| {
                            order.stretches(len, ranks, rank).flat_map(DimRange::range).collect::<Vec<_>>()
                        };
                        let keys = positions(key);
                        let visible = |q: usize, k: usize| k <= q && q - k < window.unwrap_or(len);
                        let wanted = positions(query).iter().any(|q| keys.iter().any(|k| visible(*q, *k)));
                        let found = order.sees(len, ranks, window, query, key);
                        assert_eq!(found, wanted, "{order:?} {len} {ranks} {window:?}: {query} {key}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_says_what_to_change() {
        let of = |method, order| ContextSharing { method, order };
        let e = of(ContextMethod::LightSeq, ContextOrder::ZigZag).problem(4, 8, 8).unwrap();
        assert!(e.contains("parallel.context_order = \"zig-zag\"") && e.contains("\"ring\""), "{e}");
        let e = of(ContextMethod::Ulysses, ContextOrder::Auto).problem(16, 8, 8).unwrap();
        assert!(e.contains("found 8") && e.contains("\"lightseq\""), "{e}");
        assert_eq!(of(ContextMethod::LightSeq, ContextOrder::Auto).problem(16, 8, 8), None);
        let e = of(ContextMethod::Ring, ContextOrder::ZigZag).length_problem(20, 4).unwrap();
        assert!(e.contains("train.seq_len = 20") && e.contains("multiple of 8"), "{e}");
        assert_eq!(of(ContextMethod::Ring, ContextOrder::Auto).positions(20, 4), PositionOrder::Consecutive);
    }
}
