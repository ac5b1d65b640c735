//! Processes wait for the data that the first one prepares before training.
//!
//! ```text
//! first process    prepares the data ── polls for "stop was asked for" ──► tells every other process: train, or stop
//! the others       poll for that decision ── asked to stop themselves: they tell the first process and go on polling
//! ```
//! Nobody stands in a barrier, which no signal ends: a signal to any process stops the preparation, and all processes end as
//! interrupted.

use bessemer_collectives::{CollectiveError, Communicator, Message};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks for a message or a signal.
const POLL: Duration = Duration::from_millis(20);

fn decision(peer: usize) -> Message<'static> {
    Message::new("the data are ready", 10, peer)
}

fn stop_asked(peer: usize) -> Message<'static> {
    Message::new("stop was requested", 11, peer)
}

fn plan_length(peer: usize) -> Message<'static> {
    Message::new("bytes of the plan", 12, peer)
}

fn plan(peer: usize) -> Message<'static> {
    Message::new("the plan", 13, peer)
}

/// What the first process decides once the data are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// All processes train.
    Train,
    /// Some process was asked to stop: all end.
    Stop,
}

/// All processes of a job, before training. Process 0 is the first.
#[derive(Debug)]
pub struct Meeting {
    group: Box<dyn Communicator>,
    decided: bool,
    /// Number of the launch, if a supervisor launched the job: the first process knows it, the others hear it with the decision.
    pub launch: Option<u64>,
}

impl Meeting {
    /// `group` has all processes and carries nothing else.
    pub fn new(group: Box<dyn Communicator>) -> Meeting {
        Meeting { group, decided: false, launch: None }
    }

    /// Returns what the first process says (`said` there), on every process. One that was asked to stop waits for it all the same.
    ///
    /// # Errors
    /// Another process is gone.
    pub fn share(&mut self, said: Vec<u8>) -> Result<Vec<u8>, CollectiveError> {
        if self.group.rank() == 0 {
            for peer in 1..self.group.size() {
                self.group.send(plan_length(peer), &(said.len() as u64).to_le_bytes()[..])?;
                self.group.send(plan(peer), &said[..])?;
            }
            return Ok(said);
        }
        while !self.group.arrived(plan_length(0)).unwrap_or(true) {
            std::thread::sleep(POLL);
        }
        let mut length = [0u8; 8];
        self.group.receive(plan_length(0), &mut length[..])?;
        let mut heard = vec![0u8; u64::from_le_bytes(length) as usize];
        self.group.receive(plan(0), &mut heard[..])?;
        Ok(heard)
    }

    /// On the first process: does `work` and sets `stop` as soon as another process was asked to stop.
    pub fn prepare<T>(&mut self, stop: &AtomicBool, work: impl FnOnce() -> T) -> T {
        /// Ends the watch even if the work panics.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                    self.hear(stop);
                    std::thread::sleep(POLL);
                }
            });
            let _done = Done(&done);
            work()
        })
    }

    /// Sets `stop` if another process was asked to stop.
    fn hear(&mut self, stop: &AtomicBool) {
        // A process that is gone is noticed by whoever needs its work.
        let mut others = 1..self.group.size();
        if others.any(|peer| self.group.arrived(stop_asked(peer)).is_ok_and(|arrived| arrived)) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// On the first process: orders the others to train, or to stop if any process was asked to.
    ///
    /// # Errors
    /// Another process is gone.
    pub fn decide(&mut self, stop: &AtomicBool) -> Result<Decision, CollectiveError> {
        self.hear(stop);
        let stops = stop.load(Ordering::Relaxed);
        self.decided = true;
        let mut said = [u8::from(stops); 9];
        said[1..].copy_from_slice(&self.launch.unwrap_or(0).to_le_bytes());
        for peer in 1..self.group.size() {
            self.group.send(decision(peer), &said)?;
        }
        Ok(if stops { Decision::Stop } else { Decision::Train })
    }

    /// On the first process, which ends as interrupted: the others hear of it if they still wait.
    pub fn stop(&mut self) {
        if self.group.rank() == 0 && !self.decided {
            // Whoever is gone waits no longer.
            let _ = self.decide(&AtomicBool::new(true));
        }
    }

    /// On another process: waits for the decision, and passes on that this process was asked to stop.
    ///
    /// # Errors
    /// The first process is gone.
    pub fn wait(&mut self, stop: &AtomicBool) -> Result<Decision, CollectiveError> {
        let mut passed_on = false;
        // On an error `receive` answers at once, and the recorder of collectives notes it.
        while !self.group.arrived(decision(0)).unwrap_or(true) {
            if !passed_on && stop.load(Ordering::Relaxed) {
                passed_on = true;
                self.group.send(stop_asked(0), &[1u8])?;
            }
            std::thread::sleep(POLL);
        }
        let mut said = [0u8; 9];
        self.group.receive(decision(0), &mut said)?;
        let launch = u64::from_le_bytes(std::array::from_fn(|i| said[1 + i]));
        self.launch = (launch > 0).then_some(launch);
        Ok(if said[0] == 0 { Decision::Train } else { Decision::Stop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
    use std::time::Instant;

    /// Decisions of three processes, of which `signalled` is asked to stop while the first one prepares the data for at most
    /// `seconds`, as interruptible work.
    fn decisions(signalled: Option<usize>, seconds: u64) -> Vec<Decision> {
        let world = ThreadCommunicator::world("meeting", 3, &ThreadSettings::default());
        std::thread::scope(|scope| {
            let process = |(rank, c): (usize, ThreadCommunicator)| {
                scope.spawn(move || {
                    let (mut meeting, stop) = (Meeting::new(Box::new(c)), AtomicBool::new(false));
                    std::thread::sleep(Duration::from_millis(100));
                    stop.store(signalled == Some(rank), Ordering::Relaxed);
                    if rank > 0 {
                        return meeting.wait(&stop).unwrap();
                    }
                    let until = Instant::now() + Duration::from_secs(seconds);
                    meeting.prepare(&stop, || {
                        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    });
                    // A stage that was stopped ends the first process before it meets the others.
                    match stop.load(Ordering::Relaxed) {
                        true => {
                            meeting.stop();
                            Decision::Stop
                        }
                        false => meeting.decide(&stop).unwrap(),
                    }
                })
            };
            let threads: Vec<_> = world.into_iter().enumerate().map(process).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_signal_to_any_process_ends_all_of_them_while_the_data_are_prepared() {
        for signalled in 0..3 {
            let begun = Instant::now();
            assert_eq!(decisions(Some(signalled), 600), [Decision::Stop; 3], "{signalled}");
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn all_hear_the_number_of_the_launch() {
        let world = ThreadCommunicator::world("meeting", 3, &ThreadSettings::default());
        let heard: Vec<Option<u64>> = std::thread::scope(|scope| {
            let meet = |(rank, c): (usize, ThreadCommunicator)| {
                scope.spawn(move || {
                    let (mut meeting, stop) = (Meeting::new(Box::new(c)), AtomicBool::new(false));
                    meeting.launch = (rank == 0).then_some(u64::MAX - 1);
                    let met = if rank == 0 { meeting.decide(&stop) } else { meeting.wait(&stop) };
                    assert_eq!(met.unwrap(), Decision::Train);
                    meeting.launch
                })
            };
            let threads: Vec<_> = world.into_iter().enumerate().map(meet).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(heard, [Some(u64::MAX - 1); 3]);
    }

    #[test]
    fn all_hear_the_plan_of_the_first() {
        let world = ThreadCommunicator::world("meeting", 3, &ThreadSettings::default());
        let heard: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let share = |(rank, c): (usize, ThreadCommunicator)| {
                scope.spawn(move || Meeting::new(Box::new(c)).share(vec![rank as u8 + 7; 3]).unwrap())
            };
            let threads: Vec<_> = world.into_iter().enumerate().map(share).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(heard, vec![vec![7u8; 3]; 3]);
    }

    #[test]
    fn without_a_signal_all_train() {
        assert_eq!(decisions(None, 0), [Decision::Train; 3]);
    }
}
