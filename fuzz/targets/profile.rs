//! Profiles of rules in TOML, and what they say of their own text.
#![no_main]

use bessemer_rules::{DocumentView, Profile, Scratch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // No folder: a profile that names files is refused rather than read from wherever this runs.
    if let Ok(profile) = Profile::parse(text, None) {
        profile.explain(&DocumentView::of(text), &mut Scratch::new());
    }
});
