//! Samples that are documents: each is one document, or a piece of one that is longer than a sample.
//!
//! ```text
//! document with n targets, sequence S:   pieces of S, S, ..., n mod S targets
//! piece [a, b) of targets:               inputs t[a-1] .. t[b-2], targets t[a] .. t[b-1]
//! micro-batch of B samples:              padded to one of a few lengths; padding has no target
//!
//! padded     sample c: piece P(c mod N) of epoch c div N; the length is the smallest that the longest sample of the micro-batch fits
//!            pairs: documents 2 P and 2 P + 1, with P = P(c div 2 mod N / 2), are samples c and c + 1
//! bucketed   pieces belong to the bucket of the smallest length that they fit. Micro-batch g = c div B of epoch g div M,
//!            M = sum over buckets of N_b div B: micro-batch P(g mod M) of all buckets in turn; its samples are pieces
//!            P_b(j B) .. P_b(j B + B - 1) of bucket b
//! ```
//!
//! Where documents end with a separator, that of the document before is the first input, so that the first token of a document is
//! predicted as in windows, and an epoch has the targets of the split, each once (bucketed: but for N_b mod B pieces of each
//! bucket, which differ from epoch to epoch).
//!
//! All of it is a function of (shards, lengths, B, seed, counter). Cost: one pass over the documents' ends when the loader is made and 8
//! bytes a bucket for every [`BLOCK`] documents; then a binary search and at most [`BLOCK`] documents a sample, whatever the counter.
//! A bucket with fewer than B pieces is joined with the next longer one.

use crate::order::fold;
use crate::training::check_sequence_length;
use crate::{Batch, IGNORED, LoadError, Loader, Permutation, Sample};
use bessemer_shards::{ShardError, ShardSet};
use std::ops::Range;
use std::sync::Arc;

/// Documents between two entries of the index.
pub(crate) const BLOCK: u64 = 32;

/// How documents become micro-batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentConfig {
    /// Tokens of a sample at most.
    pub seq_len: usize,
    /// Lengths below `seq_len` that a micro-batch may be padded to.
    pub shorter: Vec<usize>,
    /// B, samples of a micro-batch.
    pub micro_batch: usize,
    /// Samples of a micro-batch are of one bucket.
    pub bucketed: bool,
    /// Documents end with a separator.
    pub separated: bool,
    /// Documents 2 i and 2 i + 1 are samples 2 j and 2 j + 1: the chosen and the rejected answer of a preference. Not with buckets.
    pub pairs: bool,
}

/// A document, or a piece of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// Offset in the split of the first target.
    start: u64,
    /// Targets.
    len: usize,
}

/// Place of a sample's piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PiecePlace {
    bucket: usize,
    /// Number of the piece in its bucket.
    number: u64,
    epoch: u64,
}

/// How samples are ordered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleOrder {
    pub(crate) seed: u64,
    pub(crate) shuffle: bool,
}

/// The pieces of a split, by bucket.
#[derive(Debug)]
pub(crate) struct Documents {
    config: DocumentConfig,
    /// Lengths of the buckets, ascending; the last is the longest of a sample. One bucket unless samples are bucketed.
    buckets: Vec<usize>,
    /// All lengths that a micro-batch may have, ascending.
    lengths: Vec<usize>,
    /// By block of documents and bucket: pieces before the block.
    before: Vec<u64>,
    /// By bucket: pieces.
    pieces: Vec<u64>,
    /// Seeds of the buckets' orders.
    seeds: Vec<u64>,
    targets: u64,
}

impl Documents {
    fn new(set: &ShardSet, config: DocumentConfig, seed: u64) -> Result<Documents, LoadError> {
        check_sequence_length(config.seq_len)?;
        let mut lengths: Vec<usize> = config.shorter.clone();
        lengths.retain(|length| (1..config.seq_len).contains(length));
        lengths.push(config.seq_len);
        lengths.sort_unstable();
        lengths.dedup();
        let buckets = if config.bucketed { lengths.clone() } else { vec![config.seq_len] };
        let mut documents = Documents {
            buckets,
            lengths,
            before: Vec::new(),
            pieces: Vec::new(),
            seeds: Vec::new(),
            targets: 0,
            config,
        };
        documents.count(set)?;
        if documents.config.pairs {
            documents.check_pairs(set)?;
        }
        let wanted = if documents.config.bucketed { documents.config.micro_batch as u64 } else { 1 };
        while let Some(few) = documents.pieces.iter().position(|pieces| *pieces < wanted) {
            if documents.buckets.len() == 1 {
                return Err(LoadError::TooFewDocuments {
                    path: set.path().to_owned(),
                    split: set.split().into(),
                    documents: set.document_count(),
                    samples: documents.pieces[0],
                    wanted,
                });
            }
            let shorter = few.min(documents.buckets.len() - 2);
            documents.buckets.remove(shorter);
            let pieces = documents.pieces.remove(shorter);
            documents.pieces[shorter] += pieces;
        }
        documents.count(set)?;
        documents.seeds =
            documents.buckets.iter().map(|length| fold(seed, &format!("bucket {length}"))).collect();
        Ok(documents)
    }

    /// Refuses documents that are no pairs, or of which one is no sample: then the number of a document is not that of its sample.
    fn check_pairs(&self, set: &ShardSet) -> Result<(), LoadError> {
        let (documents, samples) = (set.document_count(), self.pieces[0]);
        let (fits, one) = (self.config.micro_batch.is_multiple_of(2), self.buckets.len() == 1);
        if documents == samples && documents.is_multiple_of(2) && fits && one {
            return Ok(());
        }
        Err(LoadError::NoPairs {
            path: set.path().to_owned(),
            split: set.split().into(),
            documents,
            samples,
            micro_batch: self.config.micro_batch,
        })
    }

    /// Makes the index.
    fn count(&mut self, set: &ShardSet) -> Result<(), ShardError> {
        let mut pieces = vec![0; self.buckets.len()];
        self.before.clear();
        self.targets = 0;
        for number in 0..set.document_count() {
            if number % BLOCK == 0 {
                self.before.extend_from_slice(&pieces);
            }
            let Some(targets) = self.targets_of(set, number)? else { break };
            let (full, rest) = self.cut(&targets);
            self.targets += targets.end - targets.start;
            pieces[self.buckets.len() - 1] += full;
            if rest > 0 {
                pieces[self.bucket_of(rest)] += 1;
            }
        }
        self.pieces = pieces;
        Ok(())
    }

    /// The targets of a document.
    fn targets_of(&self, set: &ShardSet, number: u64) -> Result<Option<Range<u64>>, ShardError> {
        let tokens = set.document_tokens(number)?;
        // Without a separator the token before is another document's text.
        let first = |start: u64| if self.config.separated { start.max(1) } else { start + 1 };
        Ok(tokens.map(|tokens| first(tokens.start).min(tokens.end)..tokens.end))
    }

    /// Full pieces of a document, and targets of its last one.
    fn cut(&self, targets: &Range<u64>) -> (u64, usize) {
        let (len, most) = (targets.end - targets.start, self.config.seq_len as u64);
        (len / most, (len % most) as usize)
    }

    /// The bucket of a piece.
    fn bucket_of(&self, len: usize) -> usize {
        self.buckets.partition_point(|length| *length < len)
    }

    /// Piece `number` of a bucket.
    fn piece(&self, set: &ShardSet, bucket: usize, number: u64) -> Result<Piece, ShardError> {
        let stride = self.buckets.len();
        let blocks = self.before.len() / stride;
        let (mut low, mut high) = (0, blocks);
        while low < high {
            let middle = (low + high) / 2;
            if self.before[middle * stride + bucket] <= number { low = middle + 1 } else { high = middle }
        }
        let block = low.saturating_sub(1);
        let mut left = number - self.before[block * stride + bucket];
        let last = bucket == stride - 1;
        for document in block as u64 * BLOCK.. {
            let Some(targets) = self.targets_of(set, document)? else { break };
            let (full, rest) = self.cut(&targets);
            let full_here = if last { full } else { 0 };
            if left < full_here {
                let start = targets.start + left * self.config.seq_len as u64;
                return Ok(Piece { start, len: self.config.seq_len });
            }
            left -= full_here;
            if rest > 0 && self.bucket_of(rest) == bucket {
                if left == 0 {
                    return Ok(Piece { start: targets.end - rest as u64, len: rest });
                }
                left -= 1;
            }
        }
        // The index was made of these documents.
        let tokens = set.token_count();
        Err(ShardError::OutOfRange { path: set.path().to_owned(), start: tokens, end: tokens, tokens })
    }

    /// Samples of an epoch.
    pub(crate) fn samples_per_epoch(&self) -> u64 {
        let group = if self.config.bucketed { self.config.micro_batch as u64 } else { 1 };
        self.pieces.iter().map(|pieces| pieces / group * group).sum()
    }

    /// Targets of a sample at most.
    pub(crate) fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    /// Targets of all pieces.
    pub(crate) fn targets(&self) -> u64 {
        self.targets
    }

    /// The place of the piece that is sample `counter`.
    fn place(&self, order: SampleOrder, counter: u64) -> PiecePlace {
        let seed = order.seed;
        let shuffled = |n: u64, seed: u64, epoch: u64, place: u64| match order.shuffle {
            true => Permutation::new(n, seed, epoch).apply(place),
            false => place,
        };
        if !self.config.bucketed {
            let together = if self.config.pairs { 2 } else { 1 };
            let (epoch, place) = (counter / self.pieces[0], counter % self.pieces[0]);
            let first = shuffled(self.pieces[0] / together, seed, epoch, place / together) * together;
            return PiecePlace { bucket: 0, number: first + place % together, epoch };
        }
        let group = self.config.micro_batch as u64;
        let groups: u64 = self.pieces.iter().map(|pieces| pieces / group).sum();
        let (number, within) = (counter / group, counter % group);
        let epoch = number / groups;
        let mut of_all = shuffled(groups, seed, epoch, number % groups);
        let mut bucket = 0;
        while of_all >= self.pieces[bucket] / group {
            of_all -= self.pieces[bucket] / group;
            bucket += 1;
        }
        let number = shuffled(self.pieces[bucket], self.seeds[bucket], epoch, of_all * group + within);
        PiecePlace { bucket, number, epoch }
    }

    /// Everything that the order depends on besides the shards and the seed.
    pub(crate) fn identity(&self) -> String {
        let list = |lengths: &[usize]| lengths.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        match self.config.bucketed {
            true => format!("bucketed in {} by {}", list(&self.buckets), self.config.micro_batch),
            false if self.config.pairs => "padded pairs".into(),
            false => "padded".into(),
        }
    }
}

impl Loader {
    /// A loader whose samples are documents, cut at the sequence length.
    ///
    /// # Errors
    /// [`LoadError::TooFewDocuments`] if the split gives no micro-batch, [`LoadError::NothingScored`], [`LoadError::SequenceLength`], a file that can no longer be
    /// read.
    pub fn of_documents(
        set: Arc<ShardSet>,
        config: DocumentConfig,
        seed: u64,
        shuffle: bool,
    ) -> Result<Loader, LoadError> {
        let documents = Documents::new(&set, config, seed)?;
        LoadError::unless_scored(&set, 1)?;
        Ok(Loader::over_documents(set, documents, seed, shuffle))
    }

    /// Whether samples are documents.
    pub fn has_documents(&self) -> bool {
        self.documents.is_some()
    }

    /// Mean targets of a sample: of windows their length.
    pub fn mean_tokens(&self) -> f64 {
        match &self.documents {
            Some(documents) => documents.targets as f64 / documents.pieces.iter().sum::<u64>() as f64,
            None => self.seq_len() as f64,
        }
    }

    /// Number in the split of the document that is a sample, where documents are pairs.
    pub fn document_of(&self, counter: u64) -> Option<u64> {
        let documents = self.documents.as_ref().filter(|documents| documents.config.pairs)?;
        Some(documents.place(self.order(), self.number(counter)).number)
    }

    /// Bytes of the index of documents.
    pub fn index_bytes(&self) -> u64 {
        self.documents.as_ref().map_or(0, |documents| documents.before.len() as u64 * 8)
    }

    /// Tokens of a sequence of the micro-batch of samples `first .. first + n`, with padding.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn padded_length(&self, first: u64, n: usize) -> Result<usize, LoadError> {
        let Some(documents) = &self.documents else { return Ok(self.seq_len()) };
        let (mut longest, mut bucket) = (1, 0);
        for counter in first..first + n as u64 {
            let (piece, place) = self.piece_of(documents, counter)?;
            (longest, bucket) = (longest.max(piece.len), bucket.max(place.bucket));
        }
        if documents.config.bucketed {
            return Ok(documents.buckets[bucket]);
        }
        let at = documents.lengths.partition_point(|length| *length < longest);
        Ok(documents.lengths[at])
    }

    /// A sample's piece, and the place where it is found.
    fn piece_of(&self, documents: &Documents, counter: u64) -> Result<(Piece, PiecePlace), LoadError> {
        self.piece_at(documents, self.number(counter))
    }

    /// A piece by its number in the order.
    fn piece_at(&self, documents: &Documents, number: u64) -> Result<(Piece, PiecePlace), LoadError> {
        let place = documents.place(self.order(), number);
        Ok((documents.piece(self.shards(), place.bucket, place.number)?, place))
    }

    /// Epoch of a sample.
    pub(crate) fn epoch_of(&self, documents: &Documents, counter: u64) -> u64 {
        documents.place(self.order(), self.number(counter)).epoch
    }

    /// The tokens that the sample of a number in the order reads.
    pub(crate) fn tokens_of(&self, documents: &Documents, number: u64) -> Result<Range<u64>, LoadError> {
        let piece = self.piece_at(documents, number)?.0;
        Ok(piece.start - 1..piece.start + piece.len as u64)
    }

    /// The tokens that are targets of a sample.
    pub(crate) fn targets_of(&self, documents: &Documents, counter: u64) -> Result<Range<u64>, LoadError> {
        let Piece { start, len } = self.piece_of(documents, counter)?.0;
        Ok(start..start + len as u64)
    }

    /// Fills `out` with documents.
    pub(crate) fn batch_of_documents(
        &self,
        documents: &Documents,
        first: u64,
        n: usize,
        out: &mut Batch,
    ) -> Result<(), LoadError> {
        out.reserve(n, self.seq_len())?;
        out.shape(n, self.padded_length(first, n)?)?;
        for i in 0..n {
            let counter = first + i as u64;
            let (Piece { start, len }, PiecePlace { epoch, .. }) = self.piece_of(documents, counter)?;
            let mut row = out.row(i);
            self.shards().read(start - 1, &mut row.inputs[..len])?;
            row.targets[..len - 1].copy_from_slice(&row.inputs[1..len]);
            self.shards().read(start + len as u64 - 1, &mut row.targets[len - 1..len])?;
            let scored = self.shards().replace_unscored(start, &mut row.targets[..len], IGNORED)?;
            row.pad(len);
            out.samples.push(Sample { counter, component: 0, epoch, token: start - 1 });
            out.scored += scored;
        }
        Ok(())
    }
}
