//! Schedules as text; what is read is verified, and written it reads the same.

use bessemer_schedule::{Limits, parse, verify};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(program) = parse(text) {
        let _ = verify(&program, &Limits::default());
        let written = program.to_text();
        assert_eq!(parse(&written).expect("what is written can be read"), program);
    }
}
