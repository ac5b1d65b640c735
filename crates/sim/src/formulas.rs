//! The published closed forms, for equal times on all ranks and messages that take no time.
//!
//! `p` ranks, `m` micro-batches, times of one rank and one micro-batch. Sources: Huang et al. 2019 (GPipe); Narayanan et
//! al. 2021 (1F1B, interleaved); Lamy-Poirier 2023 (breadth-first); Qi et al. 2024 (zero bubble); Li & Hoefler 2021 (Chimera); DeepSeek-V3 2024 (DualPipe).

use crate::PassTimes;

/// GPipe and 1F1B: (p - 1)(T_F + T_B + T_W).
pub fn flush_bubble(p: usize, t: &PassTimes) -> f64 {
    (p - 1) as f64 * t.sum()
}

/// Interleaved 1F1B, and breadth-first with m >= p, with v chunks a rank: (p - 1)(T_F + T_B + T_W) / v.
pub fn interleaved_bubble(p: usize, chunks: usize, t: &PassTimes) -> f64 {
    flush_bubble(p, t) / chunks as f64
}

/// Share of idle time of GPipe and 1F1B: (p - 1)/(m + p - 1).
pub fn flush_bubble_rate(p: usize, m: usize) -> f64 {
    (p - 1) as f64 / (m + p - 1) as f64
}

/// ZB-H1: (p - 1)(T_F + T_B - T_W), where T_W is at most T_F and T_B.
pub fn zb_h1_bubble(p: usize, t: &PassTimes) -> f64 {
    (p - 1) as f64 * (t.forward + t.backward_input - t.backward_weight)
}

/// ZB-H2: (p - 1)(T_F + T_B - 2 T_W), as span minus work; never below 0.
pub fn zb_h2_bubble_in_span(p: usize, t: &PassTimes) -> f64 {
    ((p - 1) as f64 * (t.forward + t.backward_input - 2.0 * t.backward_weight)).max(0.0)
}

/// ZB-V with at least twice as many micro-batches as ranks, as simulated: (p - 1) max(T_B/2, T_B - T_W) while T_B is at least T_F. Of it
/// (p - 1) T_F/2 is what the last rank begins later; a schedule whose next step begins on each rank as soon as this one ends there has none of it (Qi et al. 2024, where T_F = T_B =
/// T_W).
pub fn zb_v_bubble(p: usize, t: &PassTimes) -> f64 {
    (p - 1) as f64 * (t.backward_input / 2.0).max(t.backward_input - t.backward_weight)
}

/// Chimera with as many micro-batches as ranks: 2 (D - 2) T_F where the full backward takes twice the forward.
pub fn chimera_bubble(p: usize, forward: f64) -> f64 {
    2.0 * (p - 2) as f64 * forward
}

/// DualPipe over R ranks, as simulated: (R/2 - 1)(F&B + T_F - 2 T_W) while T_W is at most T_B. (The printed form has
/// T_B for T_F.)
pub fn dualpipe_bubble(p: usize, t: &PassTimes) -> f64 {
    let pair = t.together.unwrap_or(t.sum());
    (p / 2 - 1) as f64 * (pair + t.forward - 2.0 * t.backward_weight)
}
