//! Ordered byte ranges: merging, subtracting, widening to character boundaries.

/// First byte and one past the last.
pub(super) type Interval = (u64, u64);

/// Merges sorted ranges that overlap or touch.
pub(super) fn merge(ranges: &mut Vec<Interval>) {
    let mut kept = 0;
    for i in 0..ranges.len() {
        let (start, end) = ranges[i];
        if kept > 0 && start <= ranges[kept - 1].1 {
            ranges[kept - 1].1 = ranges[kept - 1].1.max(end);
        } else {
            ranges[kept] = (start, end);
            kept += 1;
        }
    }
    ranges.truncate(kept);
}

/// What of `ranges` lies outside `without`; both sorted and merged.
pub(super) fn subtract(ranges: &[Interval], without: &[Interval]) -> Vec<Interval> {
    let mut result = Vec::new();
    let mut from = 0;
    for &(mut start, end) in ranges {
        while from < without.len() && without[from].1 <= start {
            from += 1;
        }
        let mut at = from;
        while start < end {
            match without.get(at) {
                Some(&(hole, hole_end)) if hole < end => {
                    if start < hole {
                        result.push((start, hole));
                    }
                    start = hole_end;
                    at += 1;
                }
                _ => {
                    result.push((start, end));
                    break;
                }
            }
        }
    }
    result
}

fn continues(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte & 0xC0 == 0x80)
}

/// The range widened so that it cuts no UTF-8 character of `text`; by 3 bytes at most on either side, so that
/// bytes that are no UTF-8 cannot carry it away.
pub(super) fn aligned(text: &[u8], (start, end): Interval) -> Interval {
    let (mut first, mut last) = (start as usize, end as usize);
    while first > 0 && start as usize - first < 3 && continues(text.get(first)) {
        first -= 1;
    }
    while last - (end as usize) < 3 && continues(text.get(last)) {
        last += 1;
    }
    (first as u64, last as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_ranges_merge_and_holes_are_cut_out() {
        let mut ranges = vec![(0, 3), (3, 5), (4, 9), (12, 13)];
        merge(&mut ranges);
        assert_eq!(ranges, [(0, 9), (12, 13)]);
        assert_eq!(subtract(&ranges, &[(1, 2), (4, 12)]), [(0, 1), (2, 4), (12, 13)]);
        assert_eq!(subtract(&[(0, 9)], &[(0, 4), (8, 20)]), [(4, 8)]);
        assert_eq!(subtract(&[(2, 4), (6, 8)], &[(0, 7)]), [(7, 8)]);
        assert_eq!(subtract(&ranges, &[]), ranges);
    }

    #[test]
    fn characters_are_not_cut() {
        let text = "aé日b".as_bytes();
        assert_eq!(aligned(text, (2, 4)), (1, 6));
        assert_eq!(aligned(text, (1, 3)), (1, 3));
        assert_eq!(aligned(&[0x80; 20], (9, 10)), (6, 13));
        assert_eq!(aligned(&[0x80; 2], (0, 2)), (0, 2));
    }
}
