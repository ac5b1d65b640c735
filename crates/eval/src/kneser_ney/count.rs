//! Counting n-grams: sorted runs of packed symbols, bucketed by first symbol.

use super::trie::{Builder, KneserNey};
use std::sync::{Mutex, PoisonError};

/// Packed n-grams that wait for sorting, over all buckets: 64 MiB.
const PENDING: usize = 1 << 23;

/// What can go wrong while an n-gram model is trained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NgramError {
    /// The packed n-gram would not fit into 64 bits, or the order is 0.
    #[error("n-gram order: wanted 1 to {max} for an alphabet of {alphabet} symbols, found {order}")]
    Order {
        /// Request.
        order: u32,
        /// Largest order for the alphabet.
        max: u32,
        /// Symbols of the alphabet.
        alphabet: u16,
    },
    /// No symbol or more than 16 bits can tell apart.
    #[error("n-gram alphabet: wanted 1 to 65532 symbols, found {0}")]
    Alphabet(u16),
    /// A symbol of the text is not in the alphabet.
    #[error(
        "symbol {symbol} at position {at} of document {document} is outside the alphabet of {alphabet} symbols"
    )]
    Symbol {
        /// The symbol.
        symbol: u16,
        /// Its position in the document.
        at: u64,
        /// Number of the document, from 0.
        document: u64,
        /// Symbols of the alphabet.
        alphabet: u16,
    },
    /// Counts and table positions are 32-bit numbers.
    #[error(
        "n-gram training text: wanted at most 4294967295 symbols, found more; train on a part of the text"
    )]
    TooMuchText,
    /// The distinct n-grams need more memory than allowed.
    #[error(
        "the n-gram tables need about {wanted} bytes after {symbols} symbols, {allowed} are allowed; \
         lower the n-gram order, give it less text, or allow more memory"
    )]
    Memory {
        /// Bytes that the next step would hold.
        wanted: u64,
        /// The bound.
        allowed: u64,
        /// Symbols taken in so far.
        symbols: u64,
    },
    /// There is nothing to estimate from.
    #[error("an n-gram model needs at least one symbol of text, found none")]
    NoText,
}

/// Distinct packed n-grams with one first symbol.
#[derive(Default)]
struct Bucket {
    pending: Vec<u64>,
    keys: Vec<u64>,
    counts: Vec<u32>,
}

impl Bucket {
    /// Sorts what is pending into the distinct keys and sums the counts.
    fn fold(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.pending.sort_unstable();
        let room = self.keys.len() + self.pending.chunk_by(u64::eq).count();
        let mut keys = Vec::with_capacity(room);
        let mut counts = Vec::with_capacity(room);
        let mut old = 0;
        for run in self.pending.chunk_by(u64::eq) {
            let key = run[0];
            let from = old;
            while old < self.keys.len() && self.keys[old] < key {
                old += 1;
            }
            keys.extend_from_slice(&self.keys[from..old]);
            counts.extend_from_slice(&self.counts[from..old]);
            // Fits: the trainer takes in at most u32::MAX symbols.
            let mut count = run.len() as u32;
            if old < self.keys.len() && self.keys[old] == key {
                count += self.counts[old];
                old += 1;
            }
            keys.push(key);
            counts.push(count);
        }
        keys.extend_from_slice(&self.keys[old..]);
        counts.extend_from_slice(&self.counts[old..]);
        (self.keys, self.counts) = (keys, counts);
        self.pending.clear();
    }
}

/// N-grams of one order, bucketed by first symbol.
struct Buckets {
    of: Vec<Bucket>,
    pending: usize,
    /// Bits below the first symbol of a packed n-gram.
    shift: u32,
}

impl Buckets {
    fn new(symbols: usize, shift: u32) -> Buckets {
        Buckets { of: (0..symbols).map(|_| Bucket::default()).collect(), pending: 0, shift }
    }

    #[inline]
    fn push(&mut self, key: u64) {
        self.of[(key >> self.shift) as usize].pending.push(key);
        self.pending += 1;
    }

    /// Folds all buckets, the largest first, on up to `threads` threads, the caller's being one.
    fn fold(&mut self, threads: usize) {
        let mut order: Vec<&mut Bucket> = self.of.iter_mut().filter(|b| !b.pending.is_empty()).collect();
        // The queue is taken from its end.
        order.sort_by_key(|b| b.pending.len());
        let threads = threads.clamp(1, order.len().max(1));
        let queue = Mutex::new(order);
        let work = || {
            loop {
                // A panic elsewhere leaves the queue whole: only `pop` runs under the lock.
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
                match next {
                    Some(bucket) => bucket.fold(),
                    None => break,
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without another thread the work is done by this one.
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        self.pending = 0;
    }

    /// Distinct n-grams.
    fn distinct(&self) -> u64 {
        self.of.iter().map(|b| b.keys.len() as u64).sum()
    }

    /// All keys and counts in order of the keys.
    fn into_sorted(self) -> (Vec<u64>, Vec<u32>) {
        let total = self.of.iter().map(|b| b.keys.len()).sum();
        let (mut keys, mut counts) = (Vec::with_capacity(total), Vec::with_capacity(total));
        for bucket in self.of {
            keys.extend_from_slice(&bucket.keys);
            counts.extend_from_slice(&bucket.counts);
        }
        (keys, counts)
    }
}

/// Takes in a text symbol by symbol and trains a [`KneserNey`] model on it.
pub struct KneserNeyTrainer {
    alphabet: u16,
    order: u32,
    threads: usize,
    memory: u64,
    bits: u32,
    /// n-grams of the highest order.
    counted: Buckets,
    /// Packed n-grams of orders 2 to `order - 1` that begin with `<s>` or a
    /// fragment, by order; they have no symbol before them.
    starts: Vec<Vec<u64>>,
    /// Entries of `starts`.
    starting: u64,
    /// The last `order` symbols, packed.
    history: u64,
    /// Symbols of the present document or fragment so far.
    at: u64,
    /// Some text began in the middle of a document.
    fragments: bool,
    documents: u64,
    symbols: u64,
}

impl KneserNeyTrainer {
    /// A trainer for symbols `0..alphabet` and n-grams of `order` symbols that uses `threads` threads (at least 1) and
    /// refuses to hold more than about `memory` bytes.
    ///
    /// # Errors
    /// [`NgramError::Alphabet`], [`NgramError::Order`].
    pub fn new(alphabet: u16, order: u32, threads: usize, memory: u64) -> Result<Self, NgramError> {
        if alphabet == 0 || alphabet > u16::MAX - 3 {
            return Err(NgramError::Alphabet(alphabet));
        }
        // The alphabet, `</s>`, `<s>` and the beginning of a fragment.
        let bits = u32::BITS - (u32::from(alphabet) + 2).leading_zeros();
        let max = u64::BITS / bits;
        if order == 0 || order > max {
            return Err(NgramError::Order { order, max, alphabet });
        }
        let mut trainer = KneserNeyTrainer {
            alphabet,
            order,
            threads,
            memory,
            bits,
            counted: Buckets::new(usize::from(alphabet) + 3, bits * (order - 1)),
            starts: vec![Vec::new(); order as usize],
            starting: 0,
            history: 0,
            at: 0,
            fragments: false,
            documents: 0,
            symbols: 0,
        };
        trainer.begin_document();
        Ok(trainer)
    }

    /// What follows is the beginning of a document, as it is in a new trainer and after
    /// [`KneserNeyTrainer::end_document`]. A document that was not ended stays cut off: training does not see its end.
    pub fn begin_document(&mut self) {
        self.history = u64::from(self.alphabet) + 1;
        self.at = 0;
    }

    /// What follows is a piece from the middle of a document: nothing is known of the symbols before it. (A model that
    /// trained on windows of a text saw such pieces.) They are counted as text after a symbol of its own that scoring
    /// never meets.
    pub fn begin_fragment(&mut self) {
        self.history = u64::from(self.alphabet) + 2;
        self.at = 0;
        self.fragments = true;
    }

    fn mask(&self, order: u32) -> u64 {
        u64::MAX >> (u64::BITS - self.bits * order)
    }

    #[inline]
    fn take(&mut self, symbol: u16) -> Result<(), NgramError> {
        self.history = (self.history << self.bits | u64::from(symbol)) & self.mask(self.order);
        self.at += 1;
        self.symbols += 1;
        // `<s>` and `at` symbols are an n-gram of order `at + 1`.
        if self.at + 1 < u64::from(self.order) {
            self.starts[self.at as usize].push(self.history);
            self.starting += 1;
            if self.starting.is_multiple_of(1 << 20) {
                // Documents shorter than an n-gram never fill the buckets, so they are held to the bound here.
                self.check_memory(8 * self.starting)?;
            }
        } else {
            // At order 1 this counts every symbol but `<s>`, as it should.
            self.counted.push(self.history);
            if self.counted.pending >= PENDING {
                self.fold()?;
            }
        }
        Ok(())
    }

    /// Adds a symbol to the present document.
    ///
    /// # Errors
    /// [`NgramError::Symbol`], [`NgramError::TooMuchText`], [`NgramError::Memory`].
    pub fn push(&mut self, symbol: u16) -> Result<(), NgramError> {
        if symbol >= self.alphabet {
            let (at, document, alphabet) = (self.at, self.documents, self.alphabet);
            return Err(NgramError::Symbol { symbol, at, document, alphabet });
        }
        self.room_for(1)?;
        self.take(symbol)
    }

    /// Adds bytes to the present document. Documents may come in pieces.
    ///
    /// # Errors
    /// As [`KneserNeyTrainer::push`].
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), NgramError> {
        if self.alphabet < super::BYTES {
            return bytes.iter().try_for_each(|&b| self.push(u16::from(b)));
        }
        self.room_for(bytes.len() as u64)?;
        bytes.iter().try_for_each(|&b| self.take(u16::from(b)))
    }

    /// Ends the present document, which may be empty.
    ///
    /// # Errors
    /// As [`KneserNeyTrainer::push`].
    pub fn end_document(&mut self) -> Result<(), NgramError> {
        self.room_for(1)?;
        self.take(self.alphabet)?;
        self.documents += 1;
        self.begin_document();
        Ok(())
    }

    fn room_for(&self, symbols: u64) -> Result<(), NgramError> {
        // One is kept for the end of the document.
        if self.symbols + symbols < u64::from(u32::MAX) { Ok(()) } else { Err(NgramError::TooMuchText) }
    }

    /// Folds what is pending into the distinct n-grams, within the memory bound.
    fn fold(&mut self) -> Result<(), NgramError> {
        self.counted.fold(self.threads);
        let starts: u64 = self.starts.iter().map(|s| 8 * s.capacity() as u64).sum();
        let pending: u64 = self.counted.of.iter().map(|b| 8 * b.pending.capacity() as u64).sum();
        // 12 bytes an n-gram here; while the order below is derived, 8 more for each and, where few n-grams repeat,
        // as many of that order at 12 and 22 bytes.
        let wanted = pending + starts + self.counted.distinct() * (12 + 12);
        self.check_memory(wanted)
    }

    fn check_memory(&self, wanted: u64) -> Result<(), NgramError> {
        if wanted <= self.memory {
            return Ok(());
        }
        Err(NgramError::Memory { wanted, allowed: self.memory, symbols: self.symbols })
    }

    /// Folds before the buckets are full.
    #[cfg(test)]
    pub(super) fn fold_now(&mut self) {
        self.fold().expect("the tests' texts are small");
    }

    /// Builds the model.
    ///
    /// # Errors
    /// [`NgramError::NoText`] without a symbol, [`NgramError::Memory`].
    pub fn finish(mut self) -> Result<KneserNey, NgramError> {
        if self.symbols == 0 {
            return Err(NgramError::NoText);
        }
        self.fold()?;
        let empty = Buckets::new(0, 0);
        let mut counted = std::mem::replace(&mut self.counted, empty);
        for bucket in &mut counted.of {
            bucket.pending = Vec::new();
        }
        let mut builder = Builder::new(self.alphabet, self.bits, self.order);
        let (mut keys, mut counts) = counted.into_sorted();
        if self.order == 1 {
            self.add_start_symbols(&mut keys, &mut counts);
        }
        for order in (1..self.order).rev() {
            let held = builder.bytes() + keys.capacity() as u64 * 12;
            self.check_memory(held + keys.len() as u64 * 8)?;
            let (lower_keys, lower_counts) = self.derive(&keys, order);
            self.check_memory(held + lower_keys.len() as u64 * (12 + 22))?;
            builder.add(&lower_keys, &keys, counts);
            (keys, counts) = (lower_keys, lower_counts);
        }
        Ok(builder.finish(&keys, counts, self.symbols, self.documents))
    }

    /// The n-grams of `order` with their adjusted counts, from the sorted distinct ones of the order above.
    fn derive(&mut self, above: &[u64], order: u32) -> (Vec<u64>, Vec<u32>) {
        let mut lower = Buckets::new(usize::from(self.alphabet) + 3, self.bits * (order - 1));
        let mask = self.mask(order);
        for &key in above {
            // Each distinct n-gram above is one distinct symbol before its last `order` symbols.
            lower.push(key & mask);
        }
        if order > 1 {
            // Those that begin with `<s>` or a fragment have no symbol before them and keep their raw counts.
            for key in std::mem::take(&mut self.starts[order as usize - 1]) {
                lower.push(key);
            }
        }
        lower.fold(self.threads);
        let (mut keys, mut counts) = lower.into_sorted();
        if order == 1 {
            self.add_start_symbols(&mut keys, &mut counts);
        }
        (keys, counts)
    }

    /// `<s>` and the beginning of a fragment are never predicted, but they are contexts: nodes without a count, the last
    /// of order 1.
    fn add_start_symbols(&self, keys: &mut Vec<u64>, counts: &mut Vec<u32>) {
        let first = u64::from(self.alphabet) + 1;
        for symbol in first..=first + u64::from(self.fragments) {
            keys.push(symbol);
            counts.push(0);
        }
    }
}
