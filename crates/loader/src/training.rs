//! Training samples: shuffled windows, addressed by a counter.

use crate::documents::{Documents, SampleOrder};
use crate::mixing::Mixture;
use crate::order::ORDER_VERSION;
use crate::{
    Batch, EpochOrder, Grouping, IGNORED, LoadError, LoaderState, OrderOrigin, Sample, TargetCounts,
};
use bessemer_shards::ShardSet;
use std::ops::Range;
use std::sync::Arc;

/// Largest sequence length: positions are 32-bit and a window has one token more.
pub(crate) const LONGEST_SEQUENCE: usize = (u32::MAX >> 1) as usize;

/// The samples of a run of tokens: windows in an order of their own.
///
/// An epoch has N = (T − 1) div S samples for T tokens and sequence length S. The windows of an epoch begin at a
/// shift drawn from [0, (T − 1) mod S], the tokens that do not fill a window, so that these are not the same
/// ones in every epoch. Without shuffling, the shift is 0 and windows come from front to back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stream {
    /// Offset of the first token.
    pub(crate) first: u64,
    /// Samples in an epoch, N; 0 if there are fewer tokens than a window has.
    pub(crate) samples: u64,
    /// Tokens that do not fill a window, (T − 1) mod S.
    pub(crate) remainder: u64,
    /// Seed of the order.
    pub(crate) seed: u64,
    /// Blocks and groups of the order; none of a uniform one.
    pub(crate) grouping: Option<Grouping>,
}

impl Stream {
    pub(crate) fn over(tokens: Range<u64>, seq_len: usize, seed: u64) -> Stream {
        let (targets, s) = ((tokens.end - tokens.start).saturating_sub(1), seq_len as u64);
        Stream { first: tokens.start, samples: targets / s, remainder: targets % s, seed, grouping: None }
    }

    fn order(&self, epoch: u64) -> EpochOrder {
        EpochOrder::new(self.samples, self.seed, epoch, self.grouping)
    }

    /// Offset of the first token of the sample at `place` of the epoch that `order` belongs to.
    fn token(&self, place: u64, seq_len: usize, order: Option<&EpochOrder>) -> u64 {
        let (window, shift) = match order {
            Some(order) => (order.window(place), order.epoch_value(self.remainder + 1)),
            None => (place, 0),
        };
        self.first + window * seq_len as u64 + shift
    }
}

/// Serves the windows of a split in the order of (seed, sample counter), or those of its components by the weights of a
/// [`Mixture`]. Holds no position: any thread or rank may ask for any samples.
///
/// Without a mixture the split is one stream: N = (T − 1) div S samples an epoch for T tokens and sequence length S. With
/// one, each component is a stream with epochs of its own, and no window reaches across components.
#[derive(Debug, Clone)]
pub struct Loader {
    set: Arc<ShardSet>,
    seq_len: usize,
    seed: u64,
    shuffle: bool,
    /// One, or one a component.
    streams: Vec<Stream>,
    mixture: Option<Arc<Mixture>>,
    /// Where samples are documents and not windows.
    pub(crate) documents: Option<Arc<Documents>>,
    /// Where the order took the place of another one.
    origin: OrderOrigin,
}

impl Loader {
    /// A loader of windows with `seq_len` inputs.
    ///
    /// # Errors
    /// [`LoadError::TooFewTokens`] if the split is smaller than one window, [`LoadError::NothingScored`], [`LoadError::SequenceLength`].
    pub fn new(set: Arc<ShardSet>, seq_len: usize, seed: u64, shuffle: bool) -> Result<Loader, LoadError> {
        check_sequence_length(seq_len)?;
        let tokens = set.token_count();
        let stream = Stream::over(0..tokens, seq_len, seed);
        if stream.samples == 0 {
            return Err(LoadError::TooFewTokens {
                path: set.path().to_owned(),
                split: set.split().into(),
                tokens,
                wanted: seq_len as u64 + 1,
                seq_len,
            });
        }
        LoadError::unless_scored(&set, 1)?;
        let streams = vec![stream];
        let origin = OrderOrigin::default();
        Ok(Loader { set, seq_len, seed, shuffle, streams, mixture: None, documents: None, origin })
    }

    /// A loader of the samples of a mixture of the split's components.
    pub fn mixed(set: Arc<ShardSet>, seed: u64, shuffle: bool, mixture: Mixture) -> Loader {
        let (seq_len, streams) = (mixture.seq_len(), mixture.streams(seed));
        let (mixture, origin) = (Some(Arc::new(mixture)), OrderOrigin::default());
        Loader { set, seq_len, seed, shuffle, streams, mixture, documents: None, origin }
    }

    /// The same samples in a run that has consumed others before: sample `origin.samples` is the first of this order, whose components
    /// go on behind what they had given.
    pub fn from_origin(self, origin: OrderOrigin) -> Loader {
        Loader { origin, ..self }
    }

    /// The same windows in an order by groups of blocks, of each component where there are several. Components with one group or less keep the uniform
    /// order.
    pub fn grouped(mut self, grouping: Option<Grouping>) -> Loader {
        for stream in &mut self.streams {
            stream.grouping = grouping.filter(|grouping| grouping.divides(stream.samples));
        }
        self
    }

    /// Blocks and groups of the order; none if all of it is uniform.
    pub fn grouping(&self) -> Option<Grouping> {
        self.streams.iter().find_map(|stream| stream.grouping).filter(|_| self.shuffle)
    }

    pub(crate) fn over_documents(
        set: Arc<ShardSet>,
        documents: Documents,
        seed: u64,
        shuffle: bool,
    ) -> Loader {
        let seq_len = documents.seq_len();
        Loader {
            set,
            seq_len,
            seed,
            shuffle,
            streams: Vec::new(),
            mixture: None,
            documents: Some(Arc::new(documents)),
            origin: OrderOrigin::default(),
        }
    }

    /// Seed of the order, and whether it is shuffled.
    pub(crate) fn order(&self) -> SampleOrder {
        SampleOrder { seed: self.seed, shuffle: self.shuffle }
    }

    /// The split that samples come from.
    pub fn shards(&self) -> &Arc<ShardSet> {
        &self.set
    }

    /// The mixture, where components are weighed.
    pub fn mixture(&self) -> Option<&Mixture> {
        self.mixture.as_deref()
    }

    /// Inputs in a sample; of documents, at most.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Samples in an epoch, N; of a mixture, of one pass over each component.
    pub fn samples_per_epoch(&self) -> u64 {
        match &self.documents {
            Some(documents) => documents.samples_per_epoch(),
            None => self.streams.iter().map(|stream| stream.samples).sum(),
        }
    }

    /// Target tokens in an epoch: N · S, or those of all documents.
    pub fn tokens_per_epoch(&self) -> u64 {
        match &self.documents {
            Some(documents) => documents.targets(),
            None => self.samples_per_epoch() * self.seq_len as u64,
        }
    }

    /// Epochs that `samples` samples are, as a fraction.
    pub fn epochs(&self, samples: u64) -> f64 {
        samples as f64 / self.samples_per_epoch() as f64
    }

    /// The stream that gives sample `counter`, and the number of that sample in it.
    fn turn(&self, counter: u64) -> (usize, u64) {
        let counter = counter.saturating_sub(self.origin.samples);
        let (component, number) = self.mixture.as_ref().map_or((0, counter), |mixture| mixture.at(counter));
        (component, self.before(component) + number)
    }

    /// Samples that a component had given before this order began.
    fn before(&self, component: usize) -> u64 {
        self.origin.given.get(component).copied().unwrap_or(0)
    }

    /// Number of sample `counter` of the run in an order without a mixture.
    pub(crate) fn number(&self, counter: u64) -> u64 {
        self.before(0) + counter.saturating_sub(self.origin.samples)
    }

    /// What a run of `samples` samples takes of each component of its mixture, with what they had given before this order began;
    /// nothing without a mixture.
    pub fn taken(&self, samples: u64) -> Vec<crate::Taken> {
        let own = samples.saturating_sub(self.origin.samples);
        self.mixture.as_ref().map_or_else(Vec::new, |mixture| mixture.taken_after(own, &self.origin.given))
    }

    /// Component and window of sample `counter`, where samples are windows.
    fn window(&self, counter: u64) -> Sample {
        let (component, number) = self.turn(counter);
        self.locate(counter, component, number, &mut None)
    }

    /// Origin of sample `counter`.
    ///
    /// # Errors
    /// Of documents, if a file can no longer be read.
    pub fn sample(&self, counter: u64) -> Result<Sample, LoadError> {
        match &self.documents {
            Some(documents) => {
                let token = self.tokens_of(documents, self.number(counter))?.start;
                let epoch = self.epoch_of(documents, counter);
                Ok(Sample { counter, component: 0, epoch, token })
            }
            None => Ok(self.window(counter)),
        }
    }

    /// Epoch of sample `counter`.
    fn epoch(&self, counter: u64) -> u64 {
        match &self.documents {
            Some(documents) => self.epoch_of(documents, counter),
            None => self.window(counter).epoch,
        }
    }

    /// As [`Loader::sample`], for a sample whose stream and number there are known. `last` is the order that was used
    /// last, with its stream and epoch.
    fn locate(
        &self,
        counter: u64,
        component: usize,
        number: u64,
        last: &mut Option<(usize, u64, EpochOrder)>,
    ) -> Sample {
        let stream = &self.streams[component];
        let (epoch, place) = (number / stream.samples, number % stream.samples);
        if !self.shuffle {
            return Sample { counter, component, epoch, token: stream.token(place, self.seq_len, None) };
        }
        let (.., order) = match last.take() {
            Some(known) if (known.0, known.1) == (component, epoch) => last.insert(known),
            _ => last.insert((component, epoch, stream.order(epoch))),
        };
        Sample { counter, component, epoch, token: stream.token(place, self.seq_len, Some(order)) }
    }

    /// What the first `samples` samples of a run read of these shards, as ranges of tokens in any order: of each stream the samples of
    /// the first two epochs. Later epochs bring no token that these have not. Other shards and orders that the run has read before
    /// are not known here.
    ///
    /// # Errors
    /// Of documents, if a file can no longer be read.
    pub fn seen(&self, samples: u64) -> Result<Box<dyn Iterator<Item = Range<u64>> + '_>, LoadError> {
        if let Some(documents) = &self.documents {
            let numbers = 0..self.number(samples).min(2 * documents.samples_per_epoch());
            let ranges: Result<Vec<_>, _> = numbers.map(|number| self.tokens_of(documents, number)).collect();
            return Ok(Box::new(ranges?.into_iter()));
        }
        Ok(Box::new(self.windows_seen(samples)))
    }

    fn windows_seen(&self, samples: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let given = match &self.mixture {
            Some(_) => self.taken(samples).iter().map(|taken| taken.samples).collect(),
            None => vec![self.number(samples)],
        };
        let length = self.seq_len as u64 + 1;
        given.into_iter().enumerate().flat_map(move |(component, given)| {
            let mut last = None;
            (0..given.min(2 * self.streams[component].samples)).map(move |number| {
                let start = self.locate(number, component, number, &mut last).token;
                start..start + length
            })
        })
    }

    /// Fills `out` with samples `first_sample .. first_sample + n`: a pure function of the shards, the mixture, the
    /// sequence length, the seed and the counter. Allocates nothing once `out` has had this shape.
    ///
    /// # Errors
    /// [`LoadError::Shard`] naming the damaged file and block; the content of `out` is unspecified then.
    pub fn batch(&self, first_sample: u64, n: usize, out: &mut Batch) -> Result<(), LoadError> {
        if first_sample.checked_add(n as u64).is_none() {
            return Err(LoadError::CounterOverflow { first: first_sample, count: n });
        }
        if let Some(documents) = &self.documents {
            return self.batch_of_documents(documents, first_sample, n, out);
        }
        out.shape(n, self.seq_len)?;
        let mut order = None;
        for i in 0..n {
            let counter = first_sample + i as u64;
            let (component, number) = self.turn(counter);
            let sample = self.locate(counter, component, number, &mut order);
            let row = out.row(i);
            let last = self.seq_len - 1;
            self.set.read(sample.token, row.inputs)?;
            row.targets[..last].copy_from_slice(&row.inputs[1..]);
            self.set.read(sample.token + self.seq_len as u64, &mut row.targets[last..])?;
            let scored = self.set.replace_unscored(sample.token + 1, row.targets, IGNORED)?;
            out.samples.push(sample);
            out.scored += scored;
        }
        Ok(())
    }

    /// Counts the targets of samples `first .. first + n`. Reads no tokens; of shards with a mask, its bits.
    ///
    /// # Errors
    /// [`LoadError::CounterOverflow`]; if a file can no longer be read or its mask is damaged.
    pub fn count_targets(&self, first: u64, n: u64) -> Result<TargetCounts, LoadError> {
        let Some(end) = first.checked_add(n) else {
            return Err(LoadError::CounterOverflow {
                first,
                count: usize::try_from(n).unwrap_or(usize::MAX),
            });
        };
        let mut counts = TargetCounts::default();
        if let Some(documents) = &self.documents {
            for counter in first..end {
                let targets = self.targets_of(documents, counter)?;
                counts.add(targets.end - targets.start, self.set.count_scored(targets)?);
            }
            return Ok(counts);
        }
        let targets = self.seq_len as u64;
        if !self.set.has_mask() {
            return Ok(TargetCounts { targets: n * targets, scored: n * targets, unscored_samples: 0 });
        }
        let mut order = None;
        for counter in first..end {
            let (component, number) = self.turn(counter);
            let start = self.locate(counter, component, number, &mut order).token + 1;
            counts.add(targets, self.set.count_scored(start..start + targets)?);
        }
        Ok(counts)
    }

    /// What a checkpoint keeps after `samples` samples: enough to go on, and to know other data.
    pub fn state(&self, samples: u64) -> LoaderState {
        LoaderState {
            order_version: ORDER_VERSION,
            samples,
            epoch: self.epoch(samples),
            seed: self.seed,
            shuffle: self.shuffle,
            seq_len: self.seq_len as u64,
            tokens: self.set.token_count(),
            data_checksum: format!("{:016x}", self.set.checksum()),
            grouping: self.grouping(),
            lengths: self.documents.as_ref().map(|documents| documents.identity()),
            mixture: self.mixture.as_ref().map_or_else(Vec::new, |mixture| mixture.identity()),
            origin: Some(&self.origin).filter(|origin| **origin != OrderOrigin::default()).cloned(),
        }
    }

    /// Moves a state of this loader to where `samples` samples are consumed.
    pub fn advance(&self, state: &mut LoaderState, samples: u64) {
        (state.samples, state.epoch) = (samples, self.epoch(samples));
    }
}

pub(crate) fn check_sequence_length(seq_len: usize) -> Result<(), LoadError> {
    if (1..=LONGEST_SEQUENCE).contains(&seq_len) {
        return Ok(());
    }
    Err(LoadError::SequenceLength { largest: LONGEST_SEQUENCE, found: seq_len })
}
