//! Retention: the checkpoints that stay.

/// The rule by which old checkpoints are removed. The newest complete one always stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention {
    /// The newest that stay; 0 counts as 1.
    pub keep_last: u64,
    /// Each step that is a multiple of this stays as well.
    pub keep_every: Option<u64>,
    /// Steps that stay whatever the other rules say, such as those with the lowest validation loss.
    pub keep: Vec<u64>,
    /// One checkpoint that is older than the newest by at least this many steps stays: what is wrong with a run may show
    /// only that much later.
    pub look_back: Option<u64>,
}

impl Retention {
    /// The steps that may go, oldest first, of `steps` in any order.
    pub fn removable(&self, steps: &[u64]) -> Vec<u64> {
        let mut sorted = steps.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let old = self.look_back.map_or_else(Vec::new, |look_back| look_back_pair(&sorted, look_back));
        let last = usize::try_from(self.keep_last.max(1)).unwrap_or(usize::MAX);
        sorted.truncate(sorted.len().saturating_sub(last));
        let milestone = |s: u64| self.keep_every.is_some_and(|n| n > 0 && s.is_multiple_of(n));
        sorted.retain(|s| !milestone(*s) && !self.keep.contains(s) && !old.contains(s));
        sorted
    }
}

/// The newest step that is old enough, or the oldest of all while there is none; and the one after it, which takes its
/// place when it is old enough itself. Without the second one the newest steps, which follow each other closely, would
/// all be gone before one of them is old enough.
fn look_back_pair(sorted: &[u64], look_back: u64) -> Vec<u64> {
    let bound = sorted.last().and_then(|newest| newest.checked_sub(look_back));
    let old_enough = bound.map_or(0, |bound| sorted.partition_point(|s| *s <= bound));
    sorted.iter().skip(old_enough.saturating_sub(1)).take(2).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_the_milestones_and_the_named_stay() {
        let steps = [500, 100, 200, 300, 400, 1000, 1100];
        let r = Retention { keep_last: 2, keep_every: Some(500), ..Retention::default() };
        assert_eq!(r.removable(&steps), [100, 200, 300, 400]);
        assert_eq!(Retention { keep: vec![200, 7], ..r }.removable(&steps), [100, 300, 400]);
        assert_eq!(Retention::default().removable(&[7]), [0u64; 0]);
        let r = Retention { keep_last: 1, keep_every: Some(0), ..Retention::default() };
        assert_eq!(r.removable(&[7, 8]), [7]);
        let all = Retention { keep_last: u64::MAX, ..Retention::default() };
        assert_eq!(all.removable(&steps), [0u64; 0]);
    }

    /// A run that saves every 10 steps and rotates after each: from the first checkpoint that is old enough on there is
    /// always one.
    #[test]
    fn one_older_than_the_look_back_always_stays() {
        for (keep_last, look_back) in [(1, 128), (3, 128), (3, 7), (1, 0), (50, 128), (2, 1000)] {
            let rule = Retention { keep_last, look_back: Some(look_back), ..Retention::default() };
            let mut there: Vec<u64> = Vec::new();
            for step in (10..3000).step_by(10) {
                there.push(step);
                let going = rule.removable(&there);
                there.retain(|s| !going.contains(s));
                assert!(there.len() as u64 <= keep_last + 2, "{there:?}");
                let oldest = there[0];
                assert!(
                    step < 10 + look_back || step - oldest >= look_back,
                    "{there:?}, look-back {look_back}"
                );
                // Nor does it get ever older: the one after it was at most as far from the newest when it was chosen.
                let most = (2 * look_back).max(10 * keep_last) + 20;
                assert!(step - oldest <= most, "{there:?}, look-back {look_back}");
            }
        }
    }
}
