//! Spherical k-means with the first centres of k-means|| (Bahmani, Moseley, Vattani, Kumar, Vassilvitskii, "Scalable
//! K-Means++", 2012).
//!
//! Deterministic: every draw is a function of (seed, round, index), every sum runs in the order of the points, and
//! threads share only the search for the nearest centre, which is made for each point by itself.
//!
//! Cost: n · k · d multiplications a round.

use super::{dot, normalise};
use bessemer_external_sort::for_each_on_threads;
use bessemer_units::splitmix::{nth, unit};
use std::sync::atomic::{AtomicBool, Ordering};

/// Rounds of oversampling.
const ROUNDS: u64 = 5;

/// Parameters of k-means.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Centres.
    pub clusters: usize,
    /// Most rounds.
    pub iterations: usize,
    /// Share by which the mean distance must fall for another round.
    pub tolerance: f64,
    /// Seed.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
}

/// Centres, one after the other, each of length 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Centres {
    /// Dimensions.
    pub dimensions: usize,
    /// Coordinates, centre by centre.
    pub values: Vec<f32>,
}

impl Centres {
    /// Number of centres.
    pub fn count(&self) -> usize {
        self.values.len() / self.dimensions.max(1)
    }

    /// The nearest centre of a point of length 1 (the lowest of equally near ones) and its cosine.
    pub fn nearest(&self, point: &[f32]) -> (usize, f32) {
        let mut best = (0, f32::NEG_INFINITY);
        for (index, centre) in self.values.chunks_exact(self.dimensions).enumerate() {
            let cosine = dot(centre, point);
            if cosine > best.1 {
                best = (index, cosine);
            }
        }
        best
    }

    /// The nearest centre of each point.
    pub fn assign(&self, points: &[f32], threads: usize) -> Vec<(usize, f32)> {
        let count = points.len() / self.dimensions;
        let share = count.div_ceil(threads.max(1)).max(1);
        let mut found = vec![(0, 0.0); count];
        let parts = found.chunks_mut(share).zip(points.chunks(share * self.dimensions)).collect();
        for_each_on_threads(parts, threads, |(out, part): (&mut [(usize, f32)], &[f32])| {
            for (out, point) in out.iter_mut().zip(part.chunks_exact(self.dimensions)) {
                *out = self.nearest(point);
            }
        });
        found
    }
}

/// A uniform number in [0, 1) of (seed, round, index).
fn uniform(seed: u64, round: u64, index: u64) -> f64 {
    unit(nth(nth(seed, round), index))
}

/// Distance of a cosine: half the squared chord.
fn distance(cosine: f32) -> f64 {
    f64::from(1.0 - cosine).max(0.0)
}

/// The first centres: ROUNDS rounds draw about 2k points by their distance to what was drawn; k of these are chosen
/// by k-means++, weighted by the points nearest to them.
fn first_centres(points: &[f32], dimensions: usize, settings: &Settings, stop: &AtomicBool) -> Centres {
    let count = points.len() / dimensions;
    let point = |index: usize| &points[index * dimensions..(index + 1) * dimensions];
    let start = (nth(settings.seed, 0) % count as u64) as usize;
    let mut chosen = vec![start];
    let mut near: Vec<f64> = (0..count).map(|index| distance(dot(point(start), point(index)))).collect();
    for round in 1..=ROUNDS {
        let total: f64 = near.iter().sum();
        if total <= 0.0 || stop.load(Ordering::Relaxed) {
            break;
        }
        let each = 2.0 * settings.clusters as f64 / ROUNDS as f64 * 2.0 / total;
        let drawn: Vec<usize> = (0..count)
            .filter(|&index| uniform(settings.seed, round, index as u64) < each * near[index])
            .collect();
        let fresh = gather(points, dimensions, &drawn);
        if !drawn.is_empty() {
            let nearest = fresh.assign(points, settings.threads);
            for (near, (_, cosine)) in near.iter_mut().zip(nearest) {
                *near = near.min(distance(cosine));
            }
        }
        chosen.extend(drawn);
    }
    chosen.sort_unstable();
    chosen.dedup();
    let candidates = gather(points, dimensions, &chosen);
    if chosen.len() <= settings.clusters {
        return candidates;
    }
    let mut weights = vec![0.0_f64; chosen.len()];
    for (index, _) in candidates.assign(points, settings.threads) {
        weights[index] += 1.0;
    }
    gather(&candidates.values, dimensions, &plus_plus(&candidates, &weights, settings))
}

/// k-means++ over weighted points.
fn plus_plus(candidates: &Centres, weights: &[f64], settings: &Settings) -> Vec<usize> {
    let point =
        |index: usize| &candidates.values[index * candidates.dimensions..(index + 1) * candidates.dimensions];
    let mut near = vec![2.0_f64; weights.len()];
    let mut picked = Vec::with_capacity(settings.clusters);
    for round in 0..settings.clusters as u64 {
        let total: f64 = near.iter().zip(weights).map(|(near, weight)| near * weight).sum();
        let mut left = uniform(settings.seed, ROUNDS + 1, round) * total;
        let mut choice = None;
        for (index, (near, weight)) in near.iter().zip(weights).enumerate() {
            let part = near * weight;
            if part > 0.0 {
                choice = Some(index);
                if left < part {
                    break;
                }
                left -= part;
            }
        }
        // Every candidate is chosen or equal to one that is.
        let Some(choice) = choice else { break };
        picked.push(choice);
        for (index, near) in near.iter_mut().enumerate() {
            *near = near.min(distance(dot(point(choice), point(index))));
        }
        near[choice] = 0.0;
    }
    picked
}

fn gather(points: &[f32], dimensions: usize, indices: &[usize]) -> Centres {
    let values = indices
        .iter()
        .flat_map(|&index| points[index * dimensions..(index + 1) * dimensions].iter().copied())
        .collect();
    Centres { dimensions, values }
}

/// Centres of points of length 1. There may be fewer than asked for, where there are fewer different points. Without
/// points there are none.
pub fn kmeans(points: &[f32], dimensions: usize, settings: &Settings, stop: &AtomicBool) -> Centres {
    if points.is_empty() {
        return Centres { dimensions, values: Vec::new() };
    }
    let mut centres = first_centres(points, dimensions, settings, stop);
    let mut last = f64::INFINITY;
    for _ in 0..settings.iterations {
        let nearest = centres.assign(points, settings.threads);
        let total: f64 = nearest.iter().map(|(_, cosine)| distance(*cosine)).sum();
        if stop.load(Ordering::Relaxed) || last - total <= settings.tolerance * last.min(f64::MAX) {
            break;
        }
        last = total;
        let mut sums = vec![0.0_f64; centres.values.len()];
        for (&(index, _), point) in nearest.iter().zip(points.chunks_exact(dimensions)) {
            let sum = &mut sums[index * dimensions..(index + 1) * dimensions];
            sum.iter_mut().zip(point).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        for (centre, sum) in centres.values.chunks_exact_mut(dimensions).zip(sums.chunks_exact(dimensions)) {
            let mut mean: Vec<f32> = sum.iter().map(|x| *x as f32).collect();
            // A centre without points, or whose points cancel out, stays where it is.
            if normalise(&mut mean) {
                centre.copy_from_slice(&mean);
            }
        }
    }
    centres
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blobs(per: u64) -> Vec<f32> {
        let mut points = Vec::new();
        for i in 0..4 * per {
            let mut point: Vec<f32> =
                (0..8).map(|d| uniform(5, i, d) as f32 * 0.2 + if d == i % 4 { 1.0 } else { 0.0 }).collect();
            assert!(normalise(&mut point));
            points.extend(point);
        }
        points
    }

    #[test]
    fn four_blobs_are_four_clusters_whatever_the_threads() {
        let points = blobs(50);
        let stop = AtomicBool::new(false);
        let settings = Settings { clusters: 4, iterations: 30, tolerance: 0.0, seed: 42, threads: 1 };
        let centres = kmeans(&points, 8, &settings, &stop);
        assert_eq!(centres.count(), 4);
        let assigned = centres.assign(&points, 2);
        for (index, (cluster, cosine)) in assigned.iter().enumerate() {
            assert_eq!(*cluster, assigned[index % 4].0);
            assert!(*cosine > 0.9);
        }
        for threads in [2, 7] {
            assert_eq!(kmeans(&points, 8, &Settings { threads, ..settings }, &stop), centres);
        }
    }

    #[test]
    fn fewer_points_than_clusters_and_none() {
        let stop = AtomicBool::new(false);
        let settings = Settings { clusters: 9, iterations: 5, tolerance: 0.0, seed: 1, threads: 2 };
        let same = [1.0, 0.0].repeat(20);
        assert_eq!(kmeans(&same, 2, &settings, &stop).count(), 1);
        assert_eq!(kmeans(&[], 2, &settings, &stop).count(), 0);
    }
}
