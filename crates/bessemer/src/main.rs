//! Bessemer: raw text in, trained and evaluated language model out.

fn main() {}
