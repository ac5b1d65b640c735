//! How fast copies travel to peers.

/// A limit on the rate at which bytes are sent: a token bucket. It reads no clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TokenBucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: f64,
}

impl TokenBucket {
    /// `rate` bytes a second, of which up to `burst` may be sent at once.
    pub(crate) fn new(rate: f64, burst: f64) -> TokenBucket {
        TokenBucket { rate, burst, tokens: burst, at: 0.0 }
    }

    /// Takes the tokens for `bytes` at time `now` (seconds, not decreasing). Returns how long the sender waits before it sends them.
    pub(crate) fn take(&mut self, now: f64, bytes: f64) -> f64 {
        self.tokens = (self.tokens + (now - self.at) * self.rate).min(self.burst) - bytes;
        self.at = now;
        if self.tokens >= 0.0 { 0.0 } else { -self.tokens / self.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_keeps_its_rate() {
        let mut bucket = TokenBucket::new(100.0, 50.0);
        assert_eq!(bucket.take(0.0, 50.0), 0.0);
        assert_eq!(bucket.take(0.0, 50.0), 0.5);
        assert_eq!(bucket.take(0.5, 10.0), 0.1);
        // What is not used in a long pause is at most a burst.
        assert_eq!(bucket.take(100.0, 60.0), 0.1);
    }
}
