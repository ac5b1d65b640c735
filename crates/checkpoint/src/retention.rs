//! Which checkpoints stay.

/// The rule by which old checkpoints are removed. The newest complete one always stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The newest that stay; 0 counts as 1.
    pub keep_last: u64,
    /// Each step that is a multiple of this stays as well.
    pub keep_every: Option<u64>,
}

impl Retention {
    /// The steps that may go, oldest first, of `steps` in any order.
    pub fn removable(&self, steps: &[u64]) -> Vec<u64> {
        let mut sorted = steps.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let last = usize::try_from(self.keep_last.max(1)).unwrap_or(usize::MAX);
        sorted.truncate(sorted.len().saturating_sub(last));
        if let Some(n) = self.keep_every.filter(|n| *n > 0) {
            sorted.retain(|s| !s.is_multiple_of(n));
        }
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_and_the_milestones_stay() {
        let steps = [500, 100, 200, 300, 400, 1000, 1100];
        let r = Retention { keep_last: 2, keep_every: Some(500) };
        assert_eq!(r.removable(&steps), [100, 200, 300, 400]);
        assert_eq!(Retention { keep_last: 0, keep_every: None }.removable(&[7]), [0u64; 0]);
        assert_eq!(Retention { keep_last: 1, keep_every: Some(0) }.removable(&[7, 8]), [7]);
        assert_eq!(Retention { keep_last: u64::MAX, keep_every: None }.removable(&steps), [0u64; 0]);
    }
}
