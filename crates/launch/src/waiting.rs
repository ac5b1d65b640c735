//! Reports, once per job, which rank was blocked in which collective and which peers had not arrived.

use crate::ProcessFailure;
use crate::failure::FAILED;
use bessemer_collectives::{Communicator, Message};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a process waits for what the others did last. They hear of the failure at once and are on their way here.
const WAIT: Duration = Duration::from_secs(2);
/// Most bytes that a process says of itself.
const BYTES: usize = 4096;
/// Bytes of a text's length, before it.
const LENGTH: usize = 4;

fn last(peer: usize) -> Message<'static> {
    Message::new("last collectives", 2, peer)
}

fn table_is_printed(peer: usize) -> Message<'static> {
    Message::new("the table is printed", 3, peer)
}

fn acknowledged(peer: usize) -> Message<'static> {
    Message::new("the table was heard of", 4, peer)
}

/// State of another process, as far as it is known.
#[derive(Debug, PartialEq)]
enum Said {
    /// Nothing yet.
    Nothing,
    /// It cannot be reached.
    Unreachable,
    /// It failed by itself and reports why.
    Cause,
    /// Its last collectives: it was blocked until the time-out too.
    Lines(String),
}

/// Collects what the processes of a failed job did last: the first of those that can be reached reports this process's
/// failure with the table of all, the others leave without a message. Where the connection is broken each reports its own part.
/// `lines`: this process's part, or `None` if it was not blocked until the time-out, so that the failure is its own and speaks for itself.
/// Returns the failure without what was reported.
pub fn report_table_once(
    group: &mut dyn Communicator,
    failure: ProcessFailure,
    lines: Option<String>,
    tell: &dyn Fn(&ProcessFailure),
) -> ProcessFailure {
    report_table(group, failure, lines, tell, WAIT)
}

fn report_table(
    group: &mut dyn Communicator,
    failure: ProcessFailure,
    lines: Option<String>,
    tell: &dyn Fn(&ProcessFailure),
    wait: Duration,
) -> ProcessFailure {
    if failure.code != FAILED || group.size() == 1 {
        return failure;
    }
    let me = group.rank();
    let mut said: Vec<Said> = std::iter::repeat_with(|| Said::Nothing).take(group.size()).collect();
    let own = encode(lines.as_deref().unwrap_or(""));
    for (peer, said) in said.iter_mut().enumerate().filter(|(p, _)| *p != me) {
        if group.send(last(peer), &own).is_err() {
            *said = Said::Unreachable;
        }
    }
    let Some(lines) = lines else { return failure };
    said[me] = Said::Lines(lines);
    let until = Instant::now() + wait;
    while said.contains(&Said::Nothing) && Instant::now() < until {
        for (peer, said) in said.iter_mut().enumerate().filter(|(_, s)| **s == Said::Nothing) {
            let mut theirs = vec![0; BYTES + LENGTH];
            match take(group, last(peer), &mut theirs) {
                Ok(false) => {}
                Ok(true) => *said = decode(&theirs),
                Err(()) => *said = Said::Unreachable,
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let silent = ProcessFailure { code: failure.code, message: String::new() };
    if said.contains(&Said::Cause) {
        // As without a table: the first process tells that it lost another one, which tells why.
        return if me == 0 { failure } else { silent };
    }
    let teller = said.iter().position(|s| matches!(s, Said::Lines(_))).unwrap_or(me);
    if teller != me && comes(group, table_is_printed(teller), 2 * wait) {
        let _ = group.send(acknowledged(teller), &[0u8]);
        // A process that leaves breaks the group for those that have not heard yet: the teller leaves first. It sends nothing
        // more under this tag, so this ends when it is gone.
        comes(group, table_is_printed(teller), wait);
        return silent;
    }
    tell(&ProcessFailure { message: format!("{}\n{}", failure.message, table(&said)), ..failure });
    let peers = || said.iter().enumerate().filter(|(p, s)| *p != me && matches!(s, Said::Lines(_)));
    for (peer, _) in peers() {
        // Whoever is gone by now needs no word.
        let _ = group.send(table_is_printed(peer), &[0u8]);
    }
    for (peer, _) in peers() {
        comes(group, acknowledged(peer), wait / 2);
    }
    silent
}

/// Whether a message of one byte comes within `limit`, from a group that is not broken by then.
fn comes(group: &mut dyn Communicator, message: Message<'_>, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    while Instant::now() < until {
        match take(group, message, &mut [0]) {
            Ok(false) => std::thread::sleep(Duration::from_millis(1)),
            Ok(true) => return true,
            Err(()) => return false,
        }
    }
    false
}

fn table(said: &[Said]) -> String {
    let parts: Vec<&String> =
        said.iter().filter_map(|s| if let Said::Lines(lines) = s { Some(lines) } else { None }).collect();
    if said.contains(&Said::Unreachable)
        && let [own] = parts[..]
    {
        return format!("Last collectives of this rank (the others can no longer be reached):{own}");
    }
    let mut text = String::from("Last collectives of each rank:");
    for (rank, said) in said.iter().enumerate() {
        match said {
            Said::Lines(lines) => text.push_str(lines),
            Said::Nothing => text.push_str(&format!(
                "\n  rank {rank}: does not answer: it is stopped, hangs, or computes outside of collectives"
            )),
            Said::Unreachable => {
                text.push_str(&format!("\n  rank {rank}: can no longer be reached from here"))
            }
            Said::Cause => {}
        }
    }
    text
}

/// The length of a text in little-endian bytes, then the text, filled up with zeros: receivers know the size of messages.
fn encode(text: &str) -> Vec<u8> {
    let used = text.len().min(BYTES);
    let mut bytes = vec![0; BYTES + LENGTH];
    bytes[..LENGTH].copy_from_slice(&(used as u32).to_le_bytes());
    bytes[LENGTH..][..used].copy_from_slice(&text.as_bytes()[..used]);
    bytes
}

fn decode(bytes: &[u8]) -> Said {
    let (length, text) = bytes.split_at(LENGTH);
    let used = u32::from_le_bytes(std::array::from_fn(|i| length[i])) as usize;
    match used.min(BYTES) {
        0 => Said::Cause,
        used => Said::Lines(String::from_utf8_lossy(&text[..used]).into_owned()),
    }
}

/// Whether a message has arrived and is in `values` now; an error if none can arrive any more.
fn take(group: &mut dyn Communicator, message: Message<'_>, values: &mut [u8]) -> Result<bool, ()> {
    match group.arrived(message) {
        Ok(true) => group.receive(message, values).map(|()| true).map_err(drop),
        Ok(false) => Ok(false),
        Err(_) => Err(()),
    }
}

/// Ends of the ranks of this process, of which one may hang so that its thread cannot be waited for.
#[derive(Debug)]
pub struct RankEnds {
    ranks: usize,
    grace: Duration,
    ended: AtomicUsize,
    told: AtomicBool,
}

impl RankEnds {
    /// `grace`: how long the others get to end after one has timed out.
    pub fn new(ranks: usize, grace: Duration) -> RankEnds {
        RankEnds { ranks, grace, ended: AtomicUsize::new(0), told: AtomicBool::new(false) }
    }

    /// Called by a rank that comes to its end, with its number and message if it timed out. If others do not come to theirs
    /// within the grace, one rank calls `leave` with the message.
    pub fn end(&self, timed_out: Option<(usize, &str)>, leave: &dyn Fn(String)) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        let Some((rank, message)) = timed_out else { return };
        let until = Instant::now() + self.grace;
        while self.ended.load(Ordering::SeqCst) < self.ranks {
            if Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            if !self.told.swap(true, Ordering::SeqCst) {
                leave(format!("rank {rank}: {message}"));
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
    use std::sync::Mutex;

    fn failed(message: impl Into<String>) -> ProcessFailure {
        ProcessFailure { code: FAILED, message: message.into() }
    }

    /// What the processes tell whose parts are these, and what each still has to tell. `None`: one that hangs.
    fn told(parts: &[Option<Option<&str>>]) -> (Vec<String>, Vec<String>) {
        let (said, wait) = (Mutex::new(Vec::new()), WAIT / 4);
        let world = ThreadCommunicator::world("failures", parts.len(), &ThreadSettings::default());
        let left = std::thread::scope(|scope| {
            let rank = |(mut c, part): (ThreadCommunicator, &Option<Option<&str>>)| {
                let (said, part) = (&said, part.map(|lines| lines.map(str::to_owned)));
                scope.spawn(move || {
                    let tell = |f: &ProcessFailure| said.lock().unwrap().push(f.message.clone());
                    let Some(lines) = part else {
                        std::thread::sleep(2 * wait);
                        return None;
                    };
                    let failure = failed(format!("failure of {}", c.rank()));
                    let left = report_table(&mut c, failure, lines, &tell, wait);
                    // As a process that leaves takes its communicators along.
                    std::thread::sleep(2 * wait);
                    Some(left.message)
                })
            };
            let threads: Vec<_> = world.into_iter().zip(parts).map(rank).collect();
            threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
        });
        (said.into_inner().unwrap(), left)
    }

    #[test]
    fn the_first_that_answers_tells_the_table_of_all() {
        let (said, left) =
            told(&[None, Some(Some("\n  rank 1: waits in a")), Some(Some("\n  rank 2: waits in b"))]);
        assert_eq!(said.len(), 1, "{said:?}");
        let (lines, text) =
            (["rank 1: waits in a", "rank 2: waits in b", "rank 0: does not answer"], &said[0]);
        assert!(text.starts_with("failure of 1\n") && lines.iter().all(|l| text.contains(l)), "{text}");
        assert_eq!(left, ["", ""]);
    }

    #[test]
    fn a_failure_with_a_reason_of_its_own_needs_no_table() {
        let (said, left) =
            told(&[Some(Some("\n  rank 0: waits")), Some(None), Some(Some("\n  rank 2: waits"))]);
        assert!(said.is_empty(), "{said:?}");
        assert_eq!(left, ["failure of 0", "failure of 1", ""]);
    }

    #[test]
    fn a_thread_that_hangs_does_not_keep_the_job() {
        let said = Mutex::new(Vec::new());
        let leave = |message: String| said.lock().unwrap().push(message);
        let threads = RankEnds::new(3, Duration::from_millis(100));
        std::thread::scope(|scope| {
            scope.spawn(|| threads.end(Some((0, "gave up")), &leave));
            scope.spawn(|| threads.end(Some((1, "gave up")), &leave));
        });
        assert_eq!(said.lock().unwrap().len(), 1);
        // Nobody leaves early where all come to their end.
        let threads = RankEnds::new(2, Duration::from_secs(60));
        std::thread::scope(|scope| {
            scope.spawn(|| threads.end(Some((0, "gave up")), &leave));
            scope.spawn(|| threads.end(None, &leave));
        });
        assert_eq!(said.lock().unwrap().len(), 1);
    }
}
