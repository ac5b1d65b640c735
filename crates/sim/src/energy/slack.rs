//! How much later work may end without making the step longer.

use super::Profile;
use crate::{Costs, Timeline};
use bessemer_schedule::{Filler, Flow, Instruction, Place, Program};
use std::collections::BTreeMap;

/// What waits for what between ranks. Queues on links are left out: the simulation has the last word.
pub(super) struct Graph {
    /// For each receive the send that it waits for, for each send the receive that waits for it, and the way's time.
    partner: Vec<Vec<Option<(usize, usize, f64)>>>,
    /// Those who come together, by their first member in the order of time.
    meetings: Vec<Vec<(usize, usize)>>,
    /// Meeting of an instruction.
    meeting: BTreeMap<(usize, usize), usize>,
}

impl Graph {
    pub(super) fn new(program: &Program, costs: &Costs, timeline: &Timeline) -> Graph {
        let mut partner: Vec<Vec<_>> = program.lists.iter().map(|l| vec![None; l.len()]).collect();
        let mut sends: BTreeMap<(Flow, usize, Place), (usize, usize)> = BTreeMap::new();
        let mut subjects: BTreeMap<(usize, usize, u8), Vec<(usize, usize)>> = BTreeMap::new();
        for (rank, index) in in_order(timeline) {
            match &program.lists[rank][index] {
                Instruction::Send { flow, micro, to, .. } => {
                    sends.insert((*flow, *micro, *to), (rank, index));
                }
                Instruction::Receive { flow, micro, chunk, .. } => {
                    let key = (*flow, *micro, Place { rank, chunk: *chunk });
                    if let Some((from, at)) = sends.remove(&key) {
                        let link = costs.messages.link(from, rank);
                        let way = costs.messages.transfer(link) + link.latency;
                        partner[rank][index] = Some((from, at, way));
                        partner[from][at] = Some((rank, index, way));
                    }
                }
                other => {
                    let Some((chunk, number, sum)) = common(other) else { continue };
                    if let Some(stage) = program.stage_at(Place { rank, chunk }) {
                        subjects.entry((stage, number, sum)).or_default().push((rank, index));
                    }
                }
            }
        }
        let meetings: Vec<_> = subjects.into_values().collect();
        let members = meetings.iter().enumerate();
        let meeting = members.flat_map(|(id, all)| all.iter().map(move |m| (*m, id))).collect();
        Graph { partner, meetings, meeting }
    }

    /// Lowers by one step every clock for which that saves energy and whose work then ends no later than it may, in the
    /// order of time: what is lowered earlier leaves less space to what follows. Returns how many.
    pub(super) fn lower(
        &self,
        program: &Program,
        profile: &Profile,
        timeline: &Timeline,
        clocks: &mut [Vec<usize>],
        limit: f64,
    ) -> usize {
        let first = program_start(program, timeline);
        let base = |rank: usize, index: usize| match &program.lists[rank][index] {
            Instruction::Send { .. } | Instruction::Receive { .. } => 0.0,
            _ => timeline.intervals[rank][index].length(),
        };
        let latest = self.latest(program, timeline, first + limit, |rank, index| {
            base(rank, index) * profile.effect(clocks[rank][index], &program.lists[rank][index]).time
        });
        let mut end: Vec<Vec<f64>> = program.lists.iter().map(|l| vec![0.0; l.len()]).collect();
        let mut lowered = 0;
        for (rank, index) in in_order(timeline) {
            let instruction = &program.lists[rank][index];
            let before = |r: usize, i: usize, end: &[Vec<f64>]| if i == 0 { 0.0 } else { end[r][i - 1] };
            let mut start = before(rank, index, &end);
            if let (Instruction::Receive { .. }, Some((from, at, way))) =
                (instruction, self.partner[rank][index])
            {
                start = start.max(end[from][at] + way);
            }
            if let Some(id) = self.meeting.get(&(rank, index)) {
                let members = self.meetings[*id].iter();
                start = members.map(|(r, i)| before(*r, *i, &end)).fold(start, f64::max);
            }
            let time = base(rank, index);
            let clock = clocks[rank][index];
            let now = profile.effect(clock, instruction);
            let mut factor = now.time;
            if Profile::adjustable(instruction) && time > 0.0 && clock + 1 < profile.clocks.len() {
                let next = profile.effect(clock + 1, instruction);
                // Idle power is drawn anyway: only what is above it counts.
                let cost = |e: super::Effect| (e.watts - profile.idle_watts) * e.time;
                if cost(next) < cost(now) && start + time * next.time <= latest[rank][index] {
                    clocks[rank][index] += 1;
                    factor = next.time;
                    lowered += 1;
                }
            }
            end[rank][index] = start + time * factor;
        }
        lowered
    }

    /// Until when each instruction must end so that everything ends by `limit`.
    fn latest(
        &self,
        program: &Program,
        timeline: &Timeline,
        limit: f64,
        time: impl Fn(usize, usize) -> f64,
    ) -> Vec<Vec<f64>> {
        let mut latest: Vec<Vec<f64>> = program.lists.iter().map(|l| vec![limit; l.len()]).collect();
        // When the one behind must begin.
        let behind = |latest: &[Vec<f64>], rank: usize, index: usize| {
            if index + 1 < latest[rank].len() { self.begin(latest, &time, rank, index + 1) } else { limit }
        };
        for (rank, index) in in_order(timeline).rev() {
            let mut end = behind(&latest, rank, index);
            if let (Instruction::Send { .. }, Some((to, at, way))) =
                (&program.lists[rank][index], self.partner[rank][index])
            {
                end = end.min(latest[to][at] - way);
            }
            latest[rank][index] = end;
            if let Some(id) = self.meeting.get(&(rank, index)) {
                // All that follow any member come later in the order of time, so they are known.
                for (r, i) in &self.meetings[*id] {
                    latest[*r][*i] = behind(&latest, *r, *i);
                }
            }
        }
        latest
    }

    /// Until when an instruction must begin: with all others of its meeting.
    fn begin(
        &self,
        latest: &[Vec<f64>],
        time: &impl Fn(usize, usize) -> f64,
        rank: usize,
        index: usize,
    ) -> f64 {
        let own = latest[rank][index] - time(rank, index);
        let Some(id) = self.meeting.get(&(rank, index)) else { return own };
        self.meetings[*id].iter().map(|(r, i)| latest[*r][*i] - time(*r, *i)).fold(own, f64::min)
    }
}

/// What ranks that hold a stage do together: chunk, number, and which of such things.
fn common(instruction: &Instruction) -> Option<(usize, usize, u8)> {
    match instruction {
        Instruction::Reduce { chunk, update } => Some((*chunk, *update, 0)),
        Instruction::Gather { chunk, update } => Some((*chunk, *update, 1)),
        Instruction::Fill(fill) if fill.filler == Filler::SyncCurvature => Some((fill.chunk, fill.unit, 2)),
        _ => None,
    }
}

fn in_order(timeline: &Timeline) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
    timeline.order.iter().map(|(rank, index)| (*rank as usize, *index as usize))
}

fn program_start(program: &Program, timeline: &Timeline) -> f64 {
    let starts = (0..program.ranks()).filter_map(|r| timeline.extent(program, r)).map(|t| t.start);
    let first = starts.fold(f64::INFINITY, f64::min);
    if first.is_finite() { first } else { 0.0 }
}
