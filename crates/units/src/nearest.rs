//! Suggestions for names that were mistyped.

/// Longest name that is compared, in bytes: the comparison takes time by the square of the length.
const LONGEST: usize = 64;

/// Known name that was probably meant by `typed`; `None` if none is near.
///
/// A third of the letters may differ (Damerau-Levenshtein distance, upper case as lower case, `-` as `_`), at least one. A name that
/// contains the other, from three letters on, comes after those.
///
/// ```
/// let verbs = ["run", "runs", "train"];
/// assert_eq!(bessemer_units::nearest("rnu", verbs), Some("run"));
/// assert_eq!(bessemer_units::nearest("bench", verbs), None);
/// ```
pub fn nearest<'n>(typed: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    if typed.is_empty() || typed.len() > LONGEST {
        return None;
    }
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let typed = plain(typed);
    let scored = names.into_iter().filter(|name| name.len() <= LONGEST).filter_map(|original| {
        let name = plain(original);
        let distance = strsim::damerau_levenshtein(&typed, &name);
        let longest = typed.chars().count().max(name.chars().count());
        let close = distance <= 1.max(longest / 3) && distance < longest;
        let contained =
            typed.len() >= 3 && name.len() >= 3 && (name.contains(&typed) || typed.contains(&name));
        (close || contained).then_some((if close { distance } else { longest / 3 + 1 }, original))
    });
    scored.min().map(|(_, name)| name)
}

/// ` (did you mean "run"?)` for the nearest of the names, or an empty string.
pub fn did_you_mean<'n>(typed: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    nearest(typed, names).map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_suggested_only_if_it_is_near() {
        let names = ["lr", "betas", "weight_decay", "warmup_steps", "seq_len", "batch_tokens"];
        for (typed, wanted) in [
            ("lrr", Some("lr")),
            ("beta", Some("betas")),
            ("weigth_decay", Some("weight_decay")),
            ("weight-decay", Some("weight_decay")),
            ("warmup", Some("warmup_steps")),
            ("seqlen", Some("seq_len")),
            ("SEQ_LEN", Some("seq_len")),
            ("tokens", Some("batch_tokens")),
            ("zzzzzz", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names), wanted, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), names), None);
        let long = "lr".repeat(1 << 20);
        assert_eq!(nearest("lr", [&*long]), None);
    }

    #[test]
    fn the_suggestion_is_in_brackets_or_empty() {
        assert_eq!(did_you_mean("trian", ["train", "run"]), " (did you mean \"train\"?)");
        assert_eq!(did_you_mean("zzz", ["train", "run"]), "");
    }
}
