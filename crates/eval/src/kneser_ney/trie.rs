//! The finished model: a trie of n-grams in sorted arrays, and its probabilities.

use super::NgramSizes;

/// No node: the context was not seen.
const NONE: u32 = u32::MAX;

/// Highest order that any alphabet allows (symbols of two bits; see [`super::KneserNeyTrainer::new`]).
const MAX_ORDER: usize = 32;

/// Discounts for adjusted counts 1, 2, and 3 or more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Discounts([f64; 3]);

impl Discounts {
    /// Estimates from the adjusted counts of one order; see the module's formula.
    pub(super) fn estimate(counts: &[u32]) -> Discounts {
        let mut with = [0u64; 5];
        for &c in counts {
            if (1..=4).contains(&c) {
                with[c as usize] += 1;
            }
        }
        let t = with.map(|n| n as f64);
        let y = t[1] / (t[1] + 2.0 * t[2]);
        let d = [1, 2, 3].map(|k: usize| k as f64 - (k as f64 + 1.0) * y * t[k + 1] / t[k]);
        let usable =
            with[1..].iter().all(|&n| n > 0) && (1..).zip(d).all(|(k, d)| d > 0.0 && d <= f64::from(k));
        Discounts(if usable { d } else { [0.5, 1.0, 1.5] })
    }

    #[inline]
    fn of(&self, count: u32) -> f64 {
        if count == 0 { 0.0 } else { self.0[count.min(3) as usize - 1] }
    }
}

/// n-grams of one order, sorted; those with the same first symbols lie side by side.
#[derive(Debug, Default)]
struct Level {
    /// Last symbol of each n-gram.
    symbols: Vec<u16>,
    /// Adjusted count of each n-gram.
    counts: Vec<u32>,
    /// Discounts of this order.
    discounts: [f64; 3],
    /// The n-grams as contexts; empty at the highest order.
    contexts: Contexts,
}

/// n-grams of one order as contexts of the order above.
#[derive(Debug, Default)]
struct Contexts {
    /// Where the extensions of each context begin in the level above; one more entry ends the last.
    first: Vec<u32>,
    /// Sum of the extensions' adjusted counts, 0 without an extension.
    sums: Vec<u32>,
    /// Weight of the shorter context, 1 without an extension.
    weights: Vec<f64>,
}

impl Contexts {
    fn with_capacity(contexts: usize) -> Contexts {
        Contexts {
            first: Vec::with_capacity(contexts + 1),
            sums: Vec::with_capacity(contexts),
            weights: Vec::with_capacity(contexts),
        }
    }

    /// Appends a context whose extensions begin at `first` and have these adjusted counts.
    fn push(&mut self, first: usize, counts: &[u32], discounts: &Discounts) {
        // Fits: adjusted counts are at most the raw ones, which add up to at most u32::MAX.
        let sum: u32 = counts.iter().sum();
        let weight = counts.iter().map(|&c| discounts.of(c)).sum::<f64>() / f64::from(sum);
        self.first.push(first as u32);
        self.sums.push(sum);
        self.weights.push(if sum == 0 { 1.0 } else { weight });
    }
}

/// Builds the trie from the highest order down.
pub(super) struct Builder {
    alphabet: u16,
    bits: u32,
    order: u32,
    /// From the highest order down.
    levels: Vec<Level>,
    /// Contexts of the order that comes next.
    contexts: Contexts,
}

impl Builder {
    pub(super) fn new(alphabet: u16, bits: u32, order: u32) -> Builder {
        Builder { alphabet, bits, order, levels: Vec::new(), contexts: Contexts::default() }
    }

    /// Adds the n-grams `keys` with their adjusted counts; `lower` are the sorted n-grams of the order below.
    pub(super) fn add(&mut self, lower: &[u64], keys: &[u64], counts: Vec<u32>) {
        let discounts = Discounts::estimate(&counts);
        let mut contexts = Contexts::with_capacity(lower.len());
        let mut at = 0;
        for &context in lower {
            let first = at;
            while at < keys.len() && keys[at] >> self.bits == context {
                at += 1;
            }
            contexts.push(first, &counts[first..at], &discounts);
        }
        debug_assert_eq!(at, keys.len(), "every n-gram's first symbols are an n-gram of the order below");
        contexts.first.push(keys.len() as u32);
        self.push_level(keys, counts, discounts, contexts);
    }

    /// Stores a level, whose contexts were made by the call before, and keeps those of the order below.
    fn push_level(&mut self, keys: &[u64], counts: Vec<u32>, discounts: Discounts, below: Contexts) {
        let mask = (1u64 << self.bits) - 1;
        let symbols = keys.iter().map(|k| (k & mask) as u16).collect();
        let contexts = std::mem::replace(&mut self.contexts, below);
        self.levels.push(Level { symbols, counts, discounts: discounts.0, contexts });
    }

    /// Bytes of the tables so far.
    pub(super) fn bytes(&self) -> u64 {
        self.levels.iter().map(Level::bytes).sum::<u64>() + self.contexts.bytes()
    }

    /// Adds order 1 and closes the model.
    pub(super) fn finish(
        mut self,
        keys: &[u64],
        counts: Vec<u32>,
        symbols: u64,
        documents: u64,
    ) -> KneserNey {
        let discounts = Discounts::estimate(&counts);
        let mut root = Contexts::default();
        root.push(0, &counts, &discounts);
        let (sum, weight) = (f64::from(root.sums[0]), root.weights[0]);
        self.push_level(keys, counts, discounts, Contexts::default());
        self.levels.reverse();
        let mut unigrams = vec![NONE; usize::from(self.alphabet) + 3];
        for (at, &key) in keys.iter().enumerate() {
            unigrams[key as usize] = at as u32;
        }
        let uniform = 1.0 / (f64::from(self.alphabet) + 1.0);
        // Order 1 needs no search: its probabilities by symbol, `</s>` being the last.
        let discounts = self.levels[0].discounts;
        let unigram_probabilities = (0..=usize::from(self.alphabet))
            .map(|symbol| {
                let count = match unigrams[symbol] {
                    NONE => 0,
                    at => self.levels[0].counts[at as usize],
                };
                discounted(count, &discounts) / sum + weight * uniform
            })
            .collect();
        let mut sizes = NgramSizes {
            ngrams: self.levels.iter().map(|l| l.symbols.len() as u64).collect(),
            table_bytes: 0,
            symbols,
            documents,
        };
        sizes.table_bytes = self.levels.iter().map(Level::bytes).sum();
        KneserNey {
            alphabet: self.alphabet,
            order: self.order as usize,
            levels: self.levels,
            unigrams,
            unigram_probabilities,
            sizes,
        }
    }
}

impl Level {
    fn bytes(&self) -> u64 {
        2 * self.symbols.capacity() as u64 + 4 * self.counts.capacity() as u64 + self.contexts.bytes()
    }
}

impl Contexts {
    fn bytes(&self) -> u64 {
        4 * (self.first.capacity() + self.sums.capacity()) as u64 + 8 * self.weights.capacity() as u64
    }
}

#[inline]
fn discounted(count: u32, discounts: &[f64; 3]) -> f64 {
    if count == 0 { 0.0 } else { f64::from(count) - discounts[count.min(3) as usize - 1] }
}

/// An interpolated modified Kneser-Ney model over symbols `0..alphabet`; see the module for formulas and cost.
#[derive(Debug)]
pub struct KneserNey {
    alphabet: u16,
    order: usize,
    /// By order, from 1.
    levels: Vec<Level>,
    /// Node of order 1 by symbol, [`NONE`] for one that training did not see.
    unigrams: Vec<u32>,
    /// p(symbol) without a context, by symbol; the last is `</s>`.
    unigram_probabilities: Vec<f64>,
    sizes: NgramSizes,
}

/// What a model remembers of a history: for each suffix of it that was seen in training, its node.
#[derive(Debug, Clone)]
struct State {
    /// `nodes[k]` is the node of the last `k + 1` symbols.
    nodes: [u32; MAX_ORDER],
}

impl KneserNey {
    /// The order: symbols of the longest n-gram.
    pub fn order(&self) -> u32 {
        self.order as u32
    }

    /// Symbols of the alphabet, not counting the end of a document.
    pub fn alphabet(&self) -> u16 {
        self.alphabet
    }

    /// The symbol `</s>` that ends a document.
    pub fn end(&self) -> u16 {
        self.alphabet
    }

    /// The symbol `<s>` before a document, which only stands in contexts.
    pub fn begin(&self) -> u16 {
        self.alphabet + 1
    }

    /// How large the model is and how much it saw.
    pub fn sizes(&self) -> &NgramSizes {
        &self.sizes
    }

    /// Discounts of `order` (from 1) for adjusted counts 1, 2, and 3 or more.
    pub fn discounts(&self, order: u32) -> Option<[f64; 3]> {
        self.levels.get((order as usize).checked_sub(1)?).map(|l| l.discounts)
    }

    /// p(`symbol` | `context`), the end of the context being nearest to the symbol. A context that is to mean the
    /// beginning of a document starts with [`KneserNey::begin`]. 0 for a symbol that is neither in the alphabet nor
    /// [`KneserNey::end`].
    pub fn probability(&self, context: &[u16], symbol: u16) -> f64 {
        let mut state = self.state();
        for &s in context {
            self.step(&mut state, s);
        }
        self.step(&mut state, symbol)
    }

    /// Weight that the model gives to the context without its first symbol when it has seen `context`; 1 for a
    /// context that was never followed by anything.
    pub fn backoff_weight(&self, context: &[u16]) -> f64 {
        let mut state = self.state();
        for &s in context {
            self.step(&mut state, s);
        }
        let Some(level) = context.len().checked_sub(1) else {
            return 1.0;
        };
        match state.nodes.get(level) {
            Some(&node) if node != NONE && level + 1 < self.order => {
                self.levels[level].contexts.weights[node as usize]
            }
            _ => 1.0,
        }
    }

    /// Nats of one document of symbols, with or without the cost of its end. Infinite for a symbol outside the
    /// alphabet.
    pub fn symbol_nats(&self, document: impl IntoIterator<Item = u16>, include_end: bool) -> f64 {
        let mut scorer = self.scorer();
        document.into_iter().for_each(|symbol| scorer.push(symbol));
        if include_end {
            scorer.end_document();
        }
        scorer.nats()
    }

    /// A scorer at the beginning of a document.
    pub fn scorer(&self) -> Scorer<'_> {
        let mut scorer = Scorer { model: self, state: self.state(), nats: 0.0, product: 1.0 };
        scorer.begin_document();
        scorer
    }

    fn state(&self) -> State {
        State { nodes: [NONE; MAX_ORDER] }
    }

    /// The probability of `symbol` after the history; then the history with the symbol.
    #[inline]
    fn step(&self, state: &mut State, symbol: u16) -> f64 {
        let mut probability = self.unigram_probabilities.get(usize::from(symbol)).copied().unwrap_or(0.0);
        let mut shorter = self.unigrams.get(usize::from(symbol)).copied().unwrap_or(NONE);
        for k in 0..self.order - 1 {
            let node = std::mem::replace(&mut state.nodes[k], shorter);
            shorter = NONE;
            if node == NONE {
                continue;
            }
            let (node, contexts, above) = (node as usize, &self.levels[k].contexts, &self.levels[k + 1]);
            let sum = contexts.sums[node];
            if sum == 0 {
                continue;
            }
            probability *= contexts.weights[node];
            let (first, end) = (contexts.first[node] as usize, contexts.first[node + 1] as usize);
            if let Ok(at) = above.symbols[first..end].binary_search(&symbol) {
                let at = first + at;
                probability += discounted(above.counts[at], &above.discounts) / f64::from(sum);
                shorter = at as u32;
            }
        }
        probability
    }
}

/// Sums the nats of documents that come in pieces.
#[derive(Debug, Clone)]
pub struct Scorer<'a> {
    model: &'a KneserNey,
    state: State,
    nats: f64,
    /// Probabilities whose logarithms are not in `nats` yet: a product is cheaper than a sum of logarithms.
    product: f64,
}

impl Scorer<'_> {
    /// Forgets the history: what follows is the beginning of a document.
    pub fn begin_document(&mut self) {
        self.state = self.model.state();
        self.model.step(&mut self.state, self.model.begin());
    }

    /// Scores a symbol.
    #[inline]
    pub fn push(&mut self, symbol: u16) {
        self.product *= self.model.step(&mut self.state, symbol);
        // Long before it can underflow.
        if self.product < 1e-200 {
            self.nats -= self.product.ln();
            self.product = 1.0;
        }
    }

    /// Scores bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.push(u16::from(b)));
    }

    /// Scores the end of the document; the next begins.
    pub fn end_document(&mut self) {
        self.push(self.model.end());
        self.begin_document();
    }

    /// Nats of everything scored. Infinite if there was a symbol outside the alphabet.
    pub fn nats(&self) -> f64 {
        self.nats - self.product.ln()
    }
}
