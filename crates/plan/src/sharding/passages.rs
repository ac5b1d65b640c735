//! Values that travel from the decision which makes them to those which read them, and what that costs.

use super::exchange::{Place, Traffic};
use super::operators::Builder;
use super::unit::Layouts;
use bessemer_program::Phase;
use bessemer_tensor::View;

/// Where a value lies: by option of a decision and axis.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) decision: usize,
    pub(super) places: Vec<Vec<Place>>,
}

/// A value that a decision reads: by option of the reader and axis, as it wants it.
pub(super) struct Reading {
    pub(super) phase: Phase,
    pub(super) version: usize,
    pub(super) view: View,
    pub(super) from: Home,
    pub(super) reader: usize,
    pub(super) wanted: Vec<Vec<Place>>,
}

impl Builder<'_> {
    /// Prices all readings: those of one version of a value by one decision in one pass once for each layout.
    pub(super) fn price_readings(&mut self) {
        let mut readings = std::mem::take(&mut self.readings);
        while let Some(first) = readings.first() {
            let key =
                |r: &Reading| (r.phase, r.view.buffer.id, r.view.offset, r.view.cols, r.version, r.reader);
            let wanted = key(first);
            let alike: Vec<Reading> = readings.extract_if(.., |r| key(r) == wanted).collect();
            let Reading { from, reader, view, .. } = &alike[0];
            let (options, columns) = (from.places.len(), self.decisions[*reader].options.len());
            let bytes = view.bytes() as f64;
            let mut table = vec![Traffic::default(); options * columns];
            for (at, traffic) in table.iter_mut().enumerate() {
                let (a, b) = (at / columns, at % columns);
                if from.decision == *reader && a != b {
                    continue;
                }
                let mut layouts: Vec<&[Place]> = alike.iter().map(|r| &r.wanted[b][..]).collect();
                layouts.sort_unstable();
                layouts.dedup();
                for to in layouts {
                    *traffic += self.change(bytes, &from.places[a], to, Way::Read);
                }
            }
            let nodes = [from.decision, *reader];
            self.charge(nodes, table);
        }
    }

    /// Brings what options of a decision have made to where the value lies.
    pub(super) fn carry(&mut self, decision: usize, bytes: f64, made: &[Vec<Place>], home: &Home, way: Way) {
        let columns = home.places.len();
        let mut table = vec![Traffic::default(); made.len() * columns];
        for (at, traffic) in table.iter_mut().enumerate() {
            let (a, b) = (at / columns, at % columns);
            if decision != home.decision || a == b {
                *traffic = self.change(bytes, &made[a], &home.places[b], way);
            }
        }
        self.charge([decision, home.decision], table);
    }

    fn change(&self, bytes: f64, from: &[Place], to: &[Place], way: Way) -> Traffic {
        match self.layouts {
            Layouts::Partition { .. } if !from.iter().zip(to).all(|(from, to)| way.leads(*from, *to)) => {
                Traffic::IMPOSSIBLE
            }
            _ => self.devices.exchange(bytes, from, to),
        }
    }

    /// Adds a table of traffic to a pair of decisions, or its diagonal to one decision.
    fn charge(&mut self, [a, b]: [usize; 2], table: Vec<Traffic>) {
        let columns = self.decisions[b].options.len();
        if a == b {
            for (at, option) in self.decisions[a].options.iter_mut().enumerate() {
                let Traffic { seconds, sent } = table[at * columns + at];
                option.seconds += seconds;
                option.sent += sent;
            }
            return;
        }
        let rows = self.decisions[a].options.len();
        let (nodes, table) = match a < b {
            true => ([a, b], table),
            false => ([b, a], (0..rows * columns).map(|at| table[at % rows * columns + at / rows]).collect()),
        };
        match self.passages.get_mut(&nodes) {
            Some(all) => all.iter_mut().zip(table).for_each(|(sum, more)| *sum += more),
            None => drop(self.passages.insert(nodes, table)),
        }
    }
}

/// Whether a value is on its way to its place or from there to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Made,
    Read,
}

impl Way {
    /// Whether `partition` takes a value from one place to the other.
    fn leads(self, from: Place, to: Place) -> bool {
        from == to
            || match self {
                Way::Made => from == Place::Partial && matches!(to, Place::Replicate | Place::Rows),
                Way::Read => from == Place::Rows && to == Place::Replicate,
            }
    }
}
