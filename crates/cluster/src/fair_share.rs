//! Max-min fair rates: no flow can get more without another getting less that has no more than it (Bertsekas and Gallager 1992,
//! section 6.5).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Rates of flows over links. Keeps a slot for each link of the network between calls.
#[derive(Debug)]
pub struct FairShares {
    /// Place of each link among those in use; `NONE` if no flow uses it.
    slots: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// Bit pattern of a positive f64, which orders as the number does, with an index; reversed for a min-heap.
type Share = Reverse<(u64, u32)>;

impl FairShares {
    /// For a network of so many links.
    pub fn new(links: usize) -> FairShares {
        FairShares { slots: vec![NONE; links] }
    }

    /// Returns the rate of each flow, given its links and the capacity of each link. A flow without links has an infinite rate.
    ///
    /// Progressive filling: the link whose free capacity divided by its flows without a rate is least gives them this rate. Ties
    /// go to the link that comes first. O(L log L) for L uses of links.
    pub fn rates(&mut self, paths: &[&[u32]], capacity: impl Fn(u32) -> f64) -> Vec<f64> {
        let mut used = Vec::new();
        let mut users: Vec<u32> = Vec::new();
        for link in paths.iter().flat_map(|p| p.iter()) {
            if self.slots[*link as usize] == NONE {
                self.slots[*link as usize] = used.len() as u32;
                used.push(*link);
                users.push(0);
            }
            users[self.slots[*link as usize] as usize] += 1;
        }
        // Flows of each link.
        let mut first = vec![0u32; used.len() + 1];
        for (slot, n) in users.iter().enumerate() {
            first[slot + 1] = first[slot] + n;
        }
        let mut end = first.clone();
        let mut flows = vec![0u32; first[used.len()] as usize];
        for (flow, path) in paths.iter().enumerate() {
            for link in *path {
                let slot = self.slots[*link as usize] as usize;
                flows[end[slot] as usize] = flow as u32;
                end[slot] += 1;
            }
        }
        let mut free: Vec<f64> = used.iter().map(|l| capacity(*l)).collect();
        let share = |free: f64, users: u32| free.max(0.0) / f64::from(users);
        let mut heap: BinaryHeap<Share> = (0..used.len())
            .map(|slot| Reverse((share(free[slot], users[slot]).to_bits(), slot as u32)))
            .collect();
        let mut rates = vec![f64::INFINITY; paths.len()];
        while let Some(Reverse((bits, slot))) = heap.pop() {
            let s = slot as usize;
            if users[s] == 0 {
                continue;
            }
            // Shares only grow while others get their rates: an old entry goes back in its new place.
            let now = share(free[s], users[s]);
            if now.to_bits() > bits {
                heap.push(Reverse((now.to_bits(), slot)));
                continue;
            }
            for &flow in &flows[first[s] as usize..first[s + 1] as usize] {
                if rates[flow as usize].is_finite() {
                    continue;
                }
                rates[flow as usize] = now;
                for link in paths[flow as usize] {
                    let other = self.slots[*link as usize] as usize;
                    free[other] -= now;
                    users[other] -= 1;
                }
            }
        }
        for link in used {
            self.slots[link as usize] = NONE;
        }
        rates
    }
}
