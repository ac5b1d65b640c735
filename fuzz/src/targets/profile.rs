//! Profiles of rules in TOML, and what they say of their own text.

use bessemer_rules::{DocumentView, Profile, Scratch};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // No folder: a profile that names files is refused rather than read from wherever this runs.
    if let Ok(profile) = Profile::parse(text, None) {
        profile.explain(&DocumentView::of(text), &mut Scratch::new());
    }
}
