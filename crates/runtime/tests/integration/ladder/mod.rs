//! The trainer ladder: models of growing size on tiny-shakespeare, whose validation losses are known.
//!
//! Rungs 1 to 5 are those of Karpathy's "Let's build GPT" (ng-video-lecture): a bigram table, one head, four heads, a
//! feed-forward layer, three blocks. They are not decoders of this crate (no residual, no output projection, scores
//! scaled by the whole width), so they are put together from single operators and their backward halves, with PyTorch's
//! initial values and the AdamW of `optim`. Rung 6 is nanoGPT's configuration for a CPU, rung 10 minGPT's sorting task:
//! both are a [`bessemer_runtime::Decoder`]. All but the last are compared with the same models in PyTorch
//! (`golden/ladder/make.py`), which give the published losses.
#![allow(clippy::print_stdout)] // what was reached, with --nocapture

mod decoders;
mod golden;
mod layers;
mod lecture;
mod rig;
mod text;

use bessemer_test_tier::either;
use golden::Golden;
use layers::{Block, Heads, Layer, LayerNorm, Rectified};
use lecture::{BATCH, Lecture, ROWS, SEQ, WIDTH, train};
use rig::Rig;
use text::Text;

/// Trains a rung with every seed and compares the mean validation loss with PyTorch's.
fn rung(
    name: &str,
    seeds: &[u64],
    (lr, steps): (f64, u64),
    allowed: f64,
    model: impl Fn(&mut Rig, usize) -> Lecture,
) {
    let Some(text) = Text::find() else { return };
    let one = |seed: &u64| {
        let mut rig = Rig::new(*seed);
        let model = model(&mut rig, text.vocab);
        train(&mut rig, &model, &text, lr, steps)
    };
    let losses: Vec<f64> = seeds.iter().map(one).collect();
    Golden::read(name).hold(&losses, allowed);
}

#[test]
fn rung_1_bigram_table() {
    rung("r1", &[1337, 1, 2], (1e-2, 3000), 0.02, Lecture::bigram);
}

#[test]
fn rung_2_one_head() {
    rung("r2", either(&[1337], &[1337, 1]), (1e-3, 5000), 0.02, |rig, vocab| {
        let head = Heads::new(rig, BATCH, SEQ, WIDTH, 1);
        Lecture::layered(rig, vocab, vec![Box::new(head)])
    });
}

/// A part of the fourth rung.
#[test]
#[ignore = "a minute; run it by name"]
fn rung_3_four_heads() {
    rung("r3", &[1337, 1], (1e-3, 5000), 0.03, |rig, vocab| {
        let heads = Heads::new(rig, BATCH, SEQ, WIDTH, 4);
        Lecture::layered(rig, vocab, vec![Box::new(heads)])
    });
}

#[test]
fn rung_4_feed_forward() {
    rung("r4", either(&[1337], &[1337, 1]), (1e-3, 5000), 0.03, |rig, vocab| {
        let heads = Heads::new(rig, BATCH, SEQ, WIDTH, 4);
        let feed_forward = Rectified::new(rig, ROWS, WIDTH);
        Lecture::layered(rig, vocab, vec![Box::new(heads), Box::new(feed_forward)])
    });
}

#[test]
fn rung_5_three_blocks() {
    rung("r5", &[1337], (1e-3, 5000), 0.04, |rig, vocab| {
        let mut layers: Vec<Box<dyn Layer>> = Vec::new();
        for _ in 0..3 {
            layers.push(Box::new(Block::new(rig, BATCH, SEQ, WIDTH, 4)));
        }
        layers.push(Box::new(LayerNorm::new(rig, ROWS, WIDTH)));
        Lecture::layered(rig, vocab, layers)
    });
}
