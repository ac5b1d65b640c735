//! Reports once what several processes of a job found independently, such as a mistake in the recipe.

use crate::ProcessFailure;
use bessemer_collectives::{Communicator, Message};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// How long a process that cannot begin waits for others to say the same. All read the recipe at their start.
const WAIT: Duration = Duration::from_secs(1);
const FOUND: &str = "the cause of the failure";
const REPORTED: &str = "reported failure";

/// Reports a user's mistake once: the first of the processes with the same message does so, with their number, before any of
/// them leaves (a launcher may end all as soon as one has left). Returns the failure without what was reported.
pub fn report_once(
    group: &mut dyn Communicator,
    failure: ProcessFailure,
    tell: &dyn Fn(&ProcessFailure),
) -> ProcessFailure {
    if !failure.is_mistake() {
        return failure;
    }
    let (me, ranks) = (group.rank(), group.size());
    let mine = digest(&failure);
    for peer in (0..ranks).filter(|p| *p != me) {
        // Whoever is gone says nothing either.
        let _ = group.send(Message::new(FOUND, 0, peer), &mine);
    }
    let until = Instant::now() + WAIT;
    let mut same = vec![me];
    let mut open: Vec<usize> = (0..ranks).filter(|p| *p != me).collect();
    while !open.is_empty() && Instant::now() < until {
        open.retain(|peer| match take(group, FOUND, *peer) {
            None => true,
            Some(theirs) => {
                if theirs == mine {
                    same.push(*peer);
                }
                false
            }
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    let first = same.iter().copied().min().unwrap_or(me);
    let silent = ProcessFailure { code: failure.code, message: String::new() };
    if first != me {
        let until = Instant::now() + 2 * WAIT;
        while Instant::now() < until {
            if take(group, REPORTED, first).is_some() {
                return silent;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let who = if me == 0 { String::new() } else { format!("rank {me}: ") };
    let also = match same.len() - 1 {
        0 => String::new(),
        1 => "\n(one other process reports the same)".into(),
        others => format!("\n({others} other processes report the same)"),
    };
    tell(&ProcessFailure { message: format!("{who}{}{also}", failure.message), ..failure });
    for peer in same.into_iter().filter(|p| *p != me) {
        let _ = group.send(Message::new(REPORTED, 1, peer), &[0u32; 2]);
    }
    silent
}

/// A message that has arrived.
fn take(group: &mut dyn Communicator, name: &str, from: usize) -> Option<[u32; 2]> {
    let message = Message::new(name, u64::from(name == REPORTED), from);
    let mut values = [0u32; 2];
    let there = group.arrived(message).is_ok_and(|there| there);
    (there && group.receive(message, &mut values).is_ok()).then_some(values)
}

/// Hash of code and message.
fn digest(failure: &ProcessFailure) -> [u32; 2] {
    let mut hasher = DefaultHasher::new();
    (failure.code, &failure.message).hash(&mut hasher);
    let hash = hasher.finish();
    [hash as u32, (hash >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FAILED;
    use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
    use std::sync::Mutex;

    const RECIPE: u8 = bessemer_supervise::code::CONFIG as u8;

    /// Report of a rank that fails.
    fn reported(failures: &[Option<(u8, &str)>]) -> (Vec<String>, Vec<(u8, String)>) {
        let said = Mutex::new(Vec::new());
        let world = ThreadCommunicator::world("failures", failures.len(), &ThreadSettings::default());
        let left = std::thread::scope(|scope| {
            let rank = |(mut c, failure): (ThreadCommunicator, &Option<(u8, &str)>)| {
                let said = &said;
                let failure = failure.map(|(code, message)| ProcessFailure { code, message: message.into() });
                scope.spawn(move || {
                    let tell = |f: &ProcessFailure| said.lock().unwrap().push(f.message.clone());
                    let Some(failure) = failure else {
                        std::thread::sleep(2 * WAIT);
                        return None;
                    };
                    let left = report_once(&mut c, failure, &tell);
                    Some((left.code, left.message))
                })
            };
            let threads: Vec<_> = world.into_iter().zip(failures).map(rank).collect();
            threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
        });
        let mut said = said.into_inner().unwrap();
        said.sort();
        (said, left)
    }

    #[test]
    fn what_all_say_is_reported_by_the_first_and_counted() {
        let wrong = Some((RECIPE, "width is odd"));
        let (said, left) = reported(&[wrong; 4]);
        assert_eq!(said, ["width is odd\n(3 other processes report the same)"]);
        assert_eq!(left, vec![(RECIPE, String::new()); 4]);
    }

    #[test]
    fn what_only_some_say_is_reported_with_their_rank() {
        let missing = Some((RECIPE, "no such file"));
        let (said, left) = reported(&[None, missing, Some((RECIPE, "no memory")), missing]);
        assert_eq!(said, ["rank 1: no such file\n(one other process reports the same)", "rank 2: no memory"]);
        assert_eq!(left.len(), 3);
    }

    #[test]
    fn other_failures_are_left_to_whoever_has_them() {
        let (said, left) = reported(&[Some((FAILED, "disk full")); 2]);
        assert_eq!((said.len(), left[1].1.as_str()), (0, "disk full"));
    }
}
