//! Bodies of requests: read as they arrive, bounded each and all together.

use crate::server::Limits;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bytes of each body that do not count: a few large bodies that arrive slowly do not keep small ones out.
const OWN_BYTES: usize = 16 << 10;

/// Cause for which a body is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBody {
    TooLarge,
    /// The other bodies take what there is.
    NoRoom,
    Late,
    Broken,
}

/// Bytes of bodies that all connections hold together, beyond [`OWN_BYTES`] each.
#[derive(Debug, Clone)]
pub(crate) struct BodyPool(Arc<Semaphore>);

/// A body with its part of the pool, which is free again when the last view of the bytes is gone.
struct Counted {
    bytes: Vec<u8>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BodyPool {
    pub(crate) fn new(bytes: usize) -> BodyPool {
        BodyPool(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// Reads a body to its end.
    pub(crate) async fn read(&self, body: Incoming, limits: &Limits) -> Result<Bytes, NoBody> {
        timeout(limits.arrival, self.collect(body, limits.body_bytes)).await.unwrap_or(Err(NoBody::Late))
    }

    async fn collect(&self, mut body: Incoming, most: usize) -> Result<Bytes, NoBody> {
        // A length that is announced is refused before it is sent.
        if body.size_hint().lower() > most as u64 {
            return Err(NoBody::TooLarge);
        }
        let mut all = Counted { bytes: Vec::new(), _permit: None };
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.map_err(|_| NoBody::Broken)?.into_data() else { continue };
            if piece.len() > most - all.bytes.len() {
                return Err(NoBody::TooLarge);
            }
            let beyond = |len: usize| len.saturating_sub(OWN_BYTES);
            let more = beyond(all.bytes.len() + piece.len()) - beyond(all.bytes.len());
            if more > 0 {
                let count = u32::try_from(more).map_err(|_| NoBody::TooLarge)?;
                let permit = Arc::clone(&self.0).try_acquire_many_owned(count).map_err(|_| NoBody::NoRoom)?;
                match &mut all._permit {
                    Some(held) => held.merge(permit),
                    none => *none = Some(permit),
                }
            }
            all.bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from_owner(all))
    }
}
