//! The order in which the pieces of transfers begin and end on a rank. [`crate::exchange`] runs it, and [`crate::replay`] writes
//! it as events.
//!
//! ```text
//! gradients: Start(t) ─► begins every piece of t; where as many as may be are in flight, the oldest end first
//!            Wait(t)  ─► the oldest pieces end until none of t is in flight
//!            a piece of two legs begins its second when its first ends, and is then the youngest
//! values:    Start(t) ─► begins as many pieces of t as may be in flight, unless another gather has begun
//!            Wait(t)  ─► a gather of another unit ends first; then each piece of t ends, and the next one begins
//! ```
//! [`PiecesInFlight`] sets how many may be in flight. A value or gradient does not depend on it.

use bessemer_program::{CollectiveKind, PiecesInFlight, Transfer};
use std::collections::VecDeque;

/// Operations of a rank on the pieces of its transfers.
pub(crate) trait PieceWork {
    /// State of a piece while it is in flight.
    type Ticket;
    type Error;

    /// Pieces of a transfer.
    fn pieces(&self, transfer: Transfer) -> usize;

    /// Begins a piece.
    fn begin(&mut self, transfer: Transfer, piece: usize) -> Result<Self::Ticket, Self::Error>;

    /// Ends leg `leg` of a piece, counted from 0, and begins the next one if there is one.
    fn end(
        &mut self,
        transfer: Transfer,
        piece: usize,
        leg: usize,
        ticket: Self::Ticket,
    ) -> Result<Option<Self::Ticket>, Self::Error>;
}

/// A piece in flight.
#[derive(Debug)]
struct Flight<T> {
    transfer: Transfer,
    piece: usize,
    leg: usize,
    ticket: T,
}

/// A gather of a unit's values that has begun.
#[derive(Debug, Clone, Copy)]
struct Gathering {
    transfer: Transfer,
    /// The next piece to begin.
    next: usize,
}

/// The pieces of one chunk's transfers that are in flight.
#[derive(Debug)]
pub(crate) struct PieceFlow<T> {
    most: PiecesInFlight,
    reducing: VecDeque<Flight<T>>,
    gathering: Option<Gathering>,
    arriving: VecDeque<Flight<T>>,
}

impl<T> PieceFlow<T> {
    /// Returns a flow with nothing in flight, and at most so many pieces of each kind from now on: at least one.
    pub(crate) fn new(most: PiecesInFlight) -> PieceFlow<T> {
        PieceFlow {
            most,
            reducing: VecDeque::with_capacity(most.gradients),
            gathering: None,
            arriving: VecDeque::with_capacity(most.values),
        }
    }

    /// Most pieces that travel at once.
    pub(crate) fn most(&self) -> PiecesInFlight {
        self.most
    }

    /// Begins a transfer.
    pub(crate) fn start<W: PieceWork<Ticket = T>>(
        &mut self,
        work: &mut W,
        transfer: Transfer,
    ) -> Result<(), W::Error> {
        if transfer.kind == CollectiveKind::AllGather {
            return self.ask(work, transfer);
        }
        for piece in 0..work.pieces(transfer) {
            while self.reducing.len() >= self.most.gradients.max(1) {
                self.settle(work)?;
            }
            let ticket = work.begin(transfer, piece)?;
            self.reducing.push_back(Flight { transfer, piece, leg: 0, ticket });
        }
        Ok(())
    }

    /// Completes a transfer; a gather is begun if it has not.
    pub(crate) fn wait<W: PieceWork<Ticket = T>>(
        &mut self,
        work: &mut W,
        transfer: Transfer,
    ) -> Result<(), W::Error> {
        if transfer.kind != CollectiveKind::AllGather {
            while self.reducing.iter().any(|flight| flight.transfer == transfer) {
                self.settle(work)?;
            }
            return Ok(());
        }
        if self.gathering.is_some_and(|begun| begun.transfer != transfer) {
            // A pass that ended early has begun another gather, whose values are not used.
            self.arrive(work)?;
        }
        self.ask(work, transfer)?;
        self.arrive(work)
    }

    /// Ends a leg of the oldest piece of gradients.
    fn settle<W: PieceWork<Ticket = T>>(&mut self, work: &mut W) -> Result<(), W::Error> {
        let Some(Flight { transfer, piece, leg, ticket }) = self.reducing.pop_front() else { return Ok(()) };
        let next = work.end(transfer, piece, leg, ticket)?;
        self.reducing.extend(next.map(|ticket| Flight { transfer, piece, leg: leg + 1, ticket }));
        Ok(())
    }

    fn ask<W: PieceWork<Ticket = T>>(&mut self, work: &mut W, transfer: Transfer) -> Result<(), W::Error> {
        if self.gathering.is_some() {
            return Ok(());
        }
        self.gathering = Some(Gathering { transfer, next: 0 });
        while self.ask_more(work)? {}
        Ok(())
    }

    /// Begins the next piece of the gather, if there is one and another may be in flight.
    fn ask_more<W: PieceWork<Ticket = T>>(&mut self, work: &mut W) -> Result<bool, W::Error> {
        let Some(Gathering { transfer, next }) = self.gathering else { return Ok(false) };
        if next == work.pieces(transfer) || self.arriving.len() >= self.most.values.max(1) {
            return Ok(false);
        }
        let ticket = work.begin(transfer, next)?;
        self.arriving.push_back(Flight { transfer, piece: next, leg: 0, ticket });
        self.gathering = Some(Gathering { transfer, next: next + 1 });
        Ok(true)
    }

    fn arrive<W: PieceWork<Ticket = T>>(&mut self, work: &mut W) -> Result<(), W::Error> {
        while let Some(Flight { transfer, piece, leg, ticket }) = self.arriving.pop_front() {
            work.end(transfer, piece, leg, ticket)?;
            self.ask_more(work)?;
        }
        self.gathering = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_mesh::Axis;
    use bessemer_units::ReduceDType;

    /// Units of so many pieces, and their events: "+0.1" begins piece 1 of unit 0, "/0.1" its second leg, "-0.1" ends it.
    struct Log {
        pieces: Vec<usize>,
        events: Vec<String>,
    }

    impl PieceWork for Log {
        type Ticket = (usize, usize);
        type Error = ();

        fn pieces(&self, transfer: Transfer) -> usize {
            self.pieces[transfer.flat]
        }

        fn begin(&mut self, transfer: Transfer, piece: usize) -> Result<(usize, usize), ()> {
            self.events.push(format!("+{}.{piece}", transfer.flat));
            Ok((transfer.flat, piece))
        }

        fn end(
            &mut self,
            transfer: Transfer,
            piece: usize,
            leg: usize,
            ticket: (usize, usize),
        ) -> Result<Option<(usize, usize)>, ()> {
            assert_eq!(ticket, (transfer.flat, piece));
            let goes_on = transfer.dtype == ReduceDType::Int8 && leg == 0;
            self.events.push(format!("{}{}.{piece}", if goes_on { '/' } else { '-' }, transfer.flat));
            Ok(goes_on.then_some(ticket))
        }
    }

    fn transfer(kind: CollectiveKind, flat: usize) -> Transfer {
        Transfer { kind, axis: Axis::Shard, flat, term: false, dtype: ReduceDType::Stored }
    }

    #[test]
    fn gradients_end_oldest_first_and_three_are_in_flight() {
        let mut log = Log { pieces: vec![2, 3], events: Vec::new() };
        let [first, second] = [0, 1].map(|flat| transfer(CollectiveKind::ReduceScatter, flat));
        let mut flow = PieceFlow::new(PiecesInFlight::DEFAULT);
        flow.start(&mut log, first).unwrap();
        flow.start(&mut log, second).unwrap();
        flow.wait(&mut log, first).unwrap();
        assert_eq!(log.events.join(" "), "+0.0 +0.1 +1.0 -0.0 +1.1 -0.1 +1.2");
        flow.wait(&mut log, second).unwrap();
        assert_eq!(log.events[7..].join(" "), "-1.0 -1.1 -1.2");
    }

    /// A second leg waits after the first legs in flight, so that those are sent while it is encoded.
    #[test]
    fn a_second_leg_begins_when_the_first_ends() {
        let mut log = Log { pieces: vec![2, 3], events: Vec::new() };
        let [first, second] = [0, 1].map(|flat| {
            let dtype = ReduceDType::Int8;
            Transfer { dtype, ..transfer(CollectiveKind::AllReduce, flat) }
        });
        let mut flow = PieceFlow::new(PiecesInFlight::DEFAULT);
        flow.start(&mut log, first).unwrap();
        flow.start(&mut log, second).unwrap();
        let begun = "+0.0 +0.1 +1.0 /0.0 /0.1 /1.0 -0.0 +1.1 -0.1 +1.2";
        assert_eq!(log.events.join(" "), begun);
        flow.wait(&mut log, first).unwrap();
        assert_eq!(log.events.join(" "), begun, "nothing of it is in flight");
        flow.wait(&mut log, second).unwrap();
        assert_eq!(log.events[10..].join(" "), "-1.0 /1.1 /1.2 -1.1 -1.2");
    }

    /// However many pieces travel, each begins and ends once, in its order.
    #[test]
    fn more_pieces_in_flight_begin_earlier() {
        let run = |values, gradients| {
            let mut log = Log { pieces: vec![3, 2], events: Vec::new() };
            let mut flow = PieceFlow::new(PiecesInFlight { values, gradients });
            for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
                let [first, second] = [0, 1].map(|flat| transfer(kind, flat));
                flow.start(&mut log, first).unwrap();
                flow.wait(&mut log, first).unwrap();
                flow.start(&mut log, second).unwrap();
                flow.wait(&mut log, second).unwrap();
            }
            log.events.join(" ")
        };
        let one = "+0.0 -0.0 +0.1 -0.1 +0.2 -0.2 +1.0 -1.0 +1.1 -1.1";
        assert_eq!(run(1, 1), format!("{one} {one}"));
        let all = "+0.0 +0.1 +0.2 -0.0 -0.1 -0.2 +1.0 +1.1 -1.0 -1.1";
        assert_eq!(run(8, 8), format!("{all} {all}"));
    }

    #[test]
    fn a_gather_begins_its_next_piece_when_one_has_arrived() {
        let mut log = Log { pieces: vec![3, 1], events: Vec::new() };
        let [first, second] = [0, 1].map(|flat| transfer(CollectiveKind::AllGather, flat));
        let mut flow = PieceFlow::new(PiecesInFlight::DEFAULT);
        flow.start(&mut log, first).unwrap();
        // It begins when the first one ends.
        flow.start(&mut log, second).unwrap();
        assert_eq!(log.events.join(" "), "+0.0 +0.1");
        flow.wait(&mut log, first).unwrap();
        assert_eq!(log.events.join(" "), "+0.0 +0.1 -0.0 +0.2 -0.1 -0.2");
        flow.wait(&mut log, second).unwrap();
        assert_eq!(log.events[6..].join(" "), "+1.0 -1.0");
        // A gather that no pass waits for ends before the next.
        flow.start(&mut log, second).unwrap();
        flow.wait(&mut log, first).unwrap();
        assert_eq!(log.events[8..].join(" "), "+1.0 -1.0 +0.0 +0.1 -0.0 +0.2 -0.1 -0.2");
    }
}
