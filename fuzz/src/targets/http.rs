//! The HTTP message of a response record and the content codings of its body.

use bessemer_web::http;

const LIMIT: usize = 1 << 20;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    if let Ok(response) = http::parse(data) {
        response.content_type();
        if let Ok(body) = response.decoded(LIMIT) {
            assert!(body.bytes.len() <= LIMIT.max(data.len()));
        }
    }
}
