//! Memory of finished messages for later ones: once warm, a job that sends what it sent before allocates nothing.

/// Unused buffers of messages: at most as many as were ever in use at once.
#[derive(Debug, Default)]
pub struct SpareBuffers {
    buffers: Vec<Vec<u8>>,
    /// Number of buffers that are in use.
    used: usize,
    /// Number of buffers that are kept.
    most: usize,
}

impl SpareBuffers {
    /// Returns a buffer of this length with unspecified contents: the smallest that is large enough, else the largest, which
    /// grows.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn take(&mut self, length: usize) -> Result<Vec<u8>, String> {
        self.used += 1;
        self.most = self.most.max(self.used);
        let capacity = |i: &usize| self.buffers[*i].capacity();
        let fits = (0..self.buffers.len()).filter(|i| capacity(i) >= length).min_by_key(capacity);
        // While there are few buffers, they are needed for messages of their own length.
        let largest =
            || (0..self.buffers.len()).max_by_key(capacity).filter(|_| 2 * self.buffers.len() > self.most);
        let mut buffer = match fits.or_else(largest) {
            Some(index) => self.buffers.swap_remove(index),
            None => Vec::new(),
        };
        let more = length.saturating_sub(buffer.len());
        buffer.try_reserve_exact(more).map_err(|_| format!("no memory for its {length} bytes"))?;
        buffer.resize(length, 0);
        Ok(buffer)
    }

    /// Keeps a buffer, in place of the smallest if there are enough.
    pub fn give(&mut self, buffer: Vec<u8>) {
        self.used = self.used.saturating_sub(1);
        if buffer.capacity() == 0 {
            return;
        }
        if self.buffers.len() < self.most {
            self.buffers.push(buffer);
        } else if let Some(smallest) = self.buffers.iter_mut().min_by_key(|b| b.capacity())
            && smallest.capacity() < buffer.capacity()
        {
            *smallest = buffer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_holds_it_is_taken() {
        let mut spare = SpareBuffers { most: 4, ..SpareBuffers::default() };
        for length in [100, 10, 1000] {
            spare.give(vec![7; length]);
        }
        let taken = |spare: &mut SpareBuffers, length| {
            let buffer = spare.take(length).unwrap();
            assert_eq!(buffer.len(), length);
            buffer.capacity()
        };
        assert_eq!(taken(&mut spare, 50), 100);
        assert_eq!(taken(&mut spare, 50), 1000);
        assert_eq!(taken(&mut spare, 50), 50, "there is none left that holds it");
    }

    #[test]
    fn as_many_are_kept_as_were_in_use_at_once() {
        let mut spare = SpareBuffers::default();
        let three: Vec<_> = (0..3).map(|_| spare.take(8).unwrap()).collect();
        three.into_iter().for_each(|buffer| spare.give(buffer));
        spare.give(vec![0; 8]);
        assert_eq!(spare.buffers.len(), 3);
    }

    #[test]
    fn no_more_are_kept_than_wanted_and_the_largest_of_them() {
        let mut spare = SpareBuffers { most: 2, ..SpareBuffers::default() };
        for length in [10, 20, 30, 5] {
            spare.give(vec![0; length]);
        }
        let mut kept: Vec<usize> = spare.buffers.iter().map(Vec::capacity).collect();
        kept.sort_unstable();
        assert_eq!(kept, [20, 30]);
        assert!(spare.take(usize::MAX).unwrap_err().contains("no memory"));
    }
}
