//! Control messages between ranks: a few numbers of 64 bits, which travel as u32.

use bessemer_collectives::{CollectiveError, Communicator, Parts};

/// Memory of control messages, which the next one uses again.
#[derive(Debug, Default)]
pub(crate) struct ControlMessages {
    words: Vec<u32>,
    parts: Parts,
    numbers: Vec<u64>,
}

impl ControlMessages {
    /// Gathers every rank's numbers, in the order of the ranks; all ranks give equally many.
    pub(crate) fn gather(
        &mut self,
        group: &mut dyn Communicator,
        name: &str,
        numbers: &[u64],
    ) -> Result<&[u64], CollectiveError> {
        self.numbers.clear();
        if group.size() == 1 {
            self.numbers.extend_from_slice(numbers);
            return Ok(&self.numbers);
        }
        let (each, ranks) = (2 * numbers.len(), group.size());
        self.parts.set((0..ranks).map(|_| each));
        self.words.resize(self.parts.len(), 0);
        let mine = &mut self.words[self.parts.range(group.rank())];
        for (pair, number) in mine.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
            *pair = [*number as u32, (*number >> 32) as u32];
        }
        group.all_gather(name, &mut self.words, &self.parts)?;
        let number = |[low, high]: &[u32; 2]| u64::from(*low) | u64::from(*high) << 32;
        self.numbers.extend(self.words.as_chunks::<2>().0.iter().map(number));
        Ok(&self.numbers)
    }

    /// Returns the sum over the ranks, added in their order.
    pub(crate) fn sum(
        &mut self,
        group: &mut dyn Communicator,
        name: &str,
        value: f64,
    ) -> Result<f64, CollectiveError> {
        if group.size() == 1 {
            return Ok(value);
        }
        Ok(self.gather(group, name, &[value.to_bits()])?.iter().copied().map(f64::from_bits).sum())
    }
}
