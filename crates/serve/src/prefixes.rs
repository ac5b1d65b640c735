//! Prompts whose keys and values the slots hold: a prompt that begins as one of them is not computed from its beginning.
//!
//! A slot keeps what it holds after its text has ended, until another prompt takes it; no memory is added. Only whole pieces of prompts count, in which
//! a position has the same bits wherever a prompt is cut, and a prompt takes over as much as leaves such a piece. So a text is the
//! same whether its prompt was there or not. Tokens that a model has chosen came in another way and do not count, nor do those of another
//! model (a base and its adapters share the slots).

use std::collections::VecDeque;

/// The prompts of all slots.
#[derive(Debug)]
pub(crate) struct HeldPrompts(Vec<Held>);

/// Beginning of a prompt in a slot.
#[derive(Debug, Default, Clone)]
struct Held {
    model: usize,
    tokens: Vec<u32>,
}

impl Held {
    /// Tokens at the beginning that a prompt of a model shares.
    fn alike(&self, (model, prompt): (usize, &[u32])) -> usize {
        let shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b);
        if self.model == model { shared.count() } else { 0 }
    }
}

/// Place of the beginning of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) slot: usize,
    /// Tokens.
    pub(crate) len: usize,
}

impl HeldPrompts {
    pub(crate) fn new(slots: usize) -> HeldPrompts {
        HeldPrompts(vec![Held::default(); slots])
    }

    /// Takes a slot out of `free`: the one that begins most as the prompt does, the first of equals.
    pub(crate) fn take_slot(
        &self,
        free: &mut VecDeque<usize>,
        model: usize,
        prompt: &[u32],
    ) -> Option<usize> {
        let likeness = |slot: usize| self.0.get(slot).map_or(0, |held| held.alike((model, prompt)));
        let best = (0..free.len()).rev().max_by_key(|&i| likeness(free[i]))?;
        free.remove(best)
    }

    /// The slot that holds most of a prompt, if that is more than the `fed` tokens that slot `own` has of it; the own slot before others. Before the first
    /// piece (`fed` = 0) the own slot still holds what another prompt has left. `chunk`: prompts are cut at multiples of it; `free_piece`: tokens of a piece
    /// that may begin elsewhere.
    pub(crate) fn longest(
        &self,
        (model, prompt): (usize, &[u32]),
        own: usize,
        fed: usize,
        (chunk, free_piece): (usize, usize),
    ) -> Option<Source> {
        let usable = |held: &Held| {
            // One token at least goes through, for its logits.
            let len = held.alike((model, prompt)).min(prompt.len() - 1);
            let begin = len - len % chunk;
            let end = (begin + chunk).min(prompt.len());
            len.min(end.saturating_sub(free_piece)).max(begin)
        };
        let of = |slot: usize| Source { slot, len: usable(&self.0[slot]) };
        let slots = (0..self.0.len()).filter(|&slot| slot != own || fed == 0);
        slots.map(of).filter(|found| found.len > fed).max_by_key(|found| (found.len, found.slot == own))
    }

    /// A slot holds the beginning of a prompt, copied or kept.
    pub(crate) fn hold(&mut self, slot: usize, model: usize, prompt: &[u32]) {
        self.0[slot] = Held { model, tokens: prompt.to_vec() };
    }

    /// A slot holds `prompt` of a model, the tokens of it from `from` on as one piece.
    pub(crate) fn brought(
        &mut self,
        slot: usize,
        model: usize,
        prompt: &[u32],
        from: usize,
        free_piece: Option<usize>,
    ) {
        let held = &mut self.0[slot];
        let whole = free_piece.is_some_and(|least| prompt.len() - from >= least);
        if whole && held.tokens.len() == from {
            held.model = model;
            held.tokens.extend_from_slice(&prompt[from..]);
        }
    }

    /// What a slot holds is unknown.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.0[slot].tokens.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_is_taken_over_as_leaves_a_whole_piece() {
        let tokens: Vec<u32> = (0..400).collect();
        let mut held = HeldPrompts::new(3);
        held.hold(1, 0, &tokens[..300]);
        let len =
            |held: &HeldPrompts, prompt: &[u32]| held.longest((0, prompt), 0, 0, (128, 8)).map(|s| s.len);
        let forked = [&tokens[..100], &[999; 30]].concat();
        for (prompt, wanted) in [
            (&forked[..], Some(100)),
            (&tokens[..400], Some(300)),
            // The rest of a piece would be short: it is brought from its beginning on, or with tokens that are there.
            (&tokens[..303], Some(295)),
            (&tokens[..260], Some(256)),
            (&tokens[..258], Some(256)),
            (&tokens[..257], Some(256)),
            (&tokens[..256], Some(248)),
            (&tokens[..8], None),
            (&tokens[..9], Some(1)),
            (&tokens[1..], None),
        ] {
            assert_eq!(len(&held, prompt), wanted, "{} tokens", prompt.len());
        }
        // A prompt that ends its piece with others takes over no more than leaves a piece.
        held.hold(1, 0, &tokens[..254]);
        assert_eq!(len(&held, &tokens), Some(248));
        assert_eq!(held.longest((0, &tokens), 2, 248, (128, 8)), None);
        held.hold(2, 0, &tokens[..254]);
        assert_eq!(held.longest((0, &tokens), 2, 0, (128, 8)), Some(Source { slot: 2, len: 248 }));
    }

    #[test]
    fn pieces_that_are_short_or_apart_do_not_count() {
        let mut held = HeldPrompts::new(1);
        held.brought(0, 0, &[1; 10], 0, Some(8));
        held.brought(0, 0, &[1; 13], 10, Some(8));
        assert_eq!(held.0[0].tokens.len(), 10);
        held.brought(0, 0, &[1; 30], 13, Some(8));
        assert_eq!(held.0[0].tokens.len(), 10);
        held.brought(0, 0, &[1; 20], 10, Some(8));
        assert_eq!(held.0[0].tokens.len(), 20);
        held.forget(0);
        held.brought(0, 0, &[1; 10], 0, None);
        assert!(held.0[0].tokens.is_empty());
    }

    #[test]
    fn prompts_of_another_model_do_not_count() {
        let tokens: Vec<u32> = (0..40).collect();
        let mut held = HeldPrompts::new(2);
        held.hold(1, 2, &tokens);
        let len = |model| held.longest((model, &tokens), 0, 0, (128, 8)).map(|found| found.len);
        assert_eq!([len(0), len(2)], [None, Some(32)]);
        let free = || VecDeque::from([0, 1]);
        assert_eq!(held.take_slot(&mut free(), 2, &tokens), Some(1));
        assert_eq!(held.take_slot(&mut free(), 1, &tokens), Some(0));
        held.forget(1);
        held.brought(1, 1, &tokens, 0, Some(8));
        assert_eq!(held.longest((2, &tokens), 0, 0, (128, 8)), None);
        assert_eq!(held.longest((1, &tokens), 0, 0, (128, 8)), Some(Source { slot: 1, len: 32 }));
    }

    #[test]
    fn a_prompt_takes_the_free_slot_that_is_most_like_it() {
        let mut held = HeldPrompts::new(4);
        held.hold(1, 0, &[1, 2, 3]);
        held.hold(3, 0, &[1, 2]);
        let mut free = VecDeque::from([2, 0, 3, 1]);
        assert_eq!(held.take_slot(&mut free, 0, &[1, 2, 3, 4]), Some(1));
        assert_eq!(held.take_slot(&mut free, 0, &[7]), Some(2));
        assert_eq!((held.take_slot(&mut free, 0, &[1]), free), (Some(3), VecDeque::from([0])));
    }
}
