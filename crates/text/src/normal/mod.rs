//! Normal forms: what two texts must share to count as the same.

mod cc_net;
mod simplify;

pub use cc_net::{cc_net_dedup, cc_net_normalize, paragraph_key};
pub use simplify::Simplify;

use crate::unicode::{Class, class};
use unicode_normalization::UnicodeNormalization;

/// Appends the canonical decomposition (NFD) of `text` without its non-spacing marks (Mn).
///
/// ASCII characters are starters that neither decompose nor reorder, so the runs between them are independent.
fn push_unaccented(text: &str, out: &mut String) {
    let mut rest = text;
    while let Some(start) = rest.bytes().position(|b| !b.is_ascii()) {
        out.push_str(&rest[..start]);
        let run = &rest[start..];
        let len = run.bytes().position(|b| b.is_ascii()).unwrap_or(run.len());
        out.extend(run[..len].nfd().filter(|&c| !class(c).meets(Class::MARK_NONSPACING)));
        rest = &run[len..];
    }
    out.push_str(rest);
}
