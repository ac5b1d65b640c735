//! The HTTP message of a response record and the content codings of its body.
#![no_main]

use bessemer_web::http;
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    if let Ok(response) = http::parse(data) {
        response.content_type();
        if let Ok(body) = response.decoded(LIMIT) {
            assert!(body.bytes.len() <= LIMIT.max(data.len()));
        }
    }
});
