//! Groups: subsets, nested, overlapping, several of the same ranks.

use crate::world::{ENGINES, LONG, each, world};
use bessemer_collectives::{CollectiveError, Communicator, Reduce};

fn sum(c: &mut dyn Communicator, value: f32) -> f32 {
    let mut v = [value];
    c.all_reduce("sum", &mut v, Reduce::Sum).unwrap();
    v[0]
}

/// Ranks 0..6 as a grid of two rows and three columns.
#[test]
fn rows_and_columns_of_a_grid_sum_apart_from_each_other() {
    for engine in ENGINES {
        each(world(engine, 6, LONG), |mut c| {
            let (r, value) = (c.rank(), 10f32.powi(c.rank() as i32));
            let (row, column) = (r / 3, r % 3);
            let mut rows = c.group("row", &[3 * row, 3 * row + 1, 3 * row + 2]).unwrap();
            let mut columns = c.group("column", &[column, column + 3]).unwrap();
            assert_eq!((rows.rank(), rows.size(), rows.label()), (column, 3, "row"));
            assert_eq!((columns.rank(), columns.size(), columns.label()), (row, 2, "column"));
            for _ in 0..20 {
                assert_eq!(sum(rows.as_mut(), value), [111.0, 111_000.0][row]);
                assert_eq!(sum(columns.as_mut(), value), [1001.0, 10_010.0, 100_100.0][column]);
                assert_eq!(sum(c.as_mut(), value), 111_111.0);
            }
        });
    }
}

#[test]
fn a_group_of_a_group_counts_positions_in_it() {
    for engine in ENGINES {
        each(world(engine, 5, LONG), |mut c| {
            if c.rank() == 2 {
                return;
            }
            // The order of the list is the order of the group.
            let mut four = c.group("four", &[4, 0, 3, 1]).unwrap();
            let want = [1, 3, 9, 2, 0][c.rank()];
            assert_eq!(four.rank(), want);
            if four.rank() < 2 {
                // World ranks 4 and 0.
                let mut two = four.group("two", &[1, 0]).unwrap();
                assert_eq!(two.rank(), usize::from(c.rank() == 4));
                assert_eq!(sum(two.as_mut(), c.rank() as f32), 4.0);
            }
            assert_eq!(sum(four.as_mut(), 1.0), 4.0);
        });
    }
}

#[test]
fn two_groups_of_one_label_and_the_same_ranks_are_two() {
    for engine in ENGINES {
        each(world(engine, 3, LONG), |mut c| {
            let mut first = c.group("same", &[0, 1, 2]).unwrap();
            let mut second = c.group("same", &[0, 1, 2]).unwrap();
            std::thread::scope(|scope| {
                // Used at once from two threads, in whatever order.
                scope.spawn(|| (0..200).for_each(|_| assert_eq!(sum(first.as_mut(), 1.0), 3.0)));
                (0..200).for_each(|_| assert_eq!(sum(second.as_mut(), 2.0), 6.0));
            });
        });
    }
}

/// Overlapping pairs around a ring, made and used in an order that differs between ranks.
#[test]
fn making_a_group_waits_for_nobody() {
    for engine in ENGINES {
        each(world(engine, 3, LONG), |mut c| {
            let r = c.rank();
            let (next, before) = ((r + 1) % 3, (r + 2) % 3);
            let ring = |a: usize, b: usize| [a.min(b), a.max(b)];
            let mut up = c.group("pair", &ring(r, next)).unwrap();
            let mut down = c.group("pair", &ring(r, before)).unwrap();
            // Pair {0, 1} first, then {1, 2}, then {0, 2}.
            match r {
                0 => assert_eq!((sum(up.as_mut(), 1.0), sum(down.as_mut(), 1.0)), (3.0, 5.0)),
                1 => assert_eq!((sum(down.as_mut(), 2.0), sum(up.as_mut(), 2.0)), (3.0, 6.0)),
                _ => assert_eq!((sum(down.as_mut(), 4.0), sum(up.as_mut(), 4.0)), (6.0, 5.0)),
            }
        });
    }
}

#[test]
fn a_list_that_is_no_group_is_refused() {
    for engine in ENGINES {
        let mut ranks = world(engine, 3, LONG);
        for (list, says) in [
            (&[0usize, 3] as &[usize], "there is no rank 3 in a group of 3"),
            (&[1, 2], "the list [1, 2] lacks this rank"),
            (&[0, 1, 0], "rank 0 is listed twice"),
            (&[], "the list [] lacks this rank"),
        ] {
            let error = ranks[0].group("odd", list).unwrap_err();
            assert!(matches!(error, CollectiveError::Call { .. }), "{error}");
            assert_eq!(error.to_string(), format!("group world, rank 0, group of \"odd\": {says}"));
        }
    }
}

#[test]
fn a_rank_that_leaves_before_it_joins_is_lost_to_the_group() {
    for engine in ENGINES {
        let results = each(world(engine, 3, LONG), |mut c| {
            if c.rank() == 1 {
                return None;
            }
            let mut group = c.group("late", &[0, 1, 2]).unwrap();
            Some(group.barrier("start").unwrap_err())
        });
        for error in results.into_iter().flatten() {
            assert!(matches!(error, CollectiveError::PeerLost { peer: 1, .. }), "{error}");
        }
    }
}
